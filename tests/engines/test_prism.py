"""Prism, Beam's own small portable runner, gives the bytes that this process gives."""

import json
from pathlib import Path

import pytest

from tests.engines.build import built
from tests.engines.jobs import JOBS, Job, digests, run


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_prism_gives_the_same_bytes(job: Job, tmp_path: Path) -> None:
    source = job.write_input(tmp_path)
    run(job.config, source, tmp_path / "here", ["--runner=FnApiRunner"])
    run(
        job.config, source, tmp_path / "prism", ["--runner=PrismRunner", f"--prism_location={built('prism') / 'prism'}"]
    )
    assert digests(tmp_path / "prism") == digests(tmp_path / "here")
    here, there = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("here", "prism"))
    assert there["how"] == "runner: PrismRunner"
    assert there["report"] == here["report"]
