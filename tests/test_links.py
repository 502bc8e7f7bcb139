"""Outputs that are named through links: the link stays, the data go to the disk that it names, and the lock is one."""

import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.errors import LockedError
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT

TEXT = {"input": {"sections": [{"field": "text", "action": "train"}]}}


def job(source: Path, output: Path, **options: Any) -> Pipeline:
    config = bp.PipelineConfig.from_dict(TEXT)
    return Pipeline(config, source, output, ROOT / "examples/tokenizer", **options)


def run(source: Path, output: Path, **options: Any) -> str:
    return job(source, output, **options).run(["--runner=FnApiRunner"]).output


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"record {number}. " * 10}) + "\n" for number in range(9)))
    return path


def test_an_output_that_is_a_link_is_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk" / "data")
    assert run(source, link) == str(tmp_path / "disk" / "data")
    source.write_text(source.read_text() * 2)
    run(source, link, overwrite=True)
    assert link.is_symlink()
    assert len(bp.open(link)) == 18
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [".beam_prep", "data"]
    assert not (tmp_path / ".beam_prep").exists()


def test_a_job_through_a_linked_folder_finds_the_lock(source: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    first = job(source, tmp_path / "disk" / "out")
    with first.claim().claims.locked(), pytest.raises(LockedError, match=r"another job is writing .*/disk/out"):
        run(source, tmp_path / "link" / "out")
    run(source, tmp_path / "link" / "out")
