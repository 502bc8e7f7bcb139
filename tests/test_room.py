"""A run that will probably lack room on a disk says so before it begins; one that has it is never stopped."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import Patch, Run, run_of, text_config

pytestmark = pytest.mark.long


def test_a_run_says_before_it_begins_what_it_lacks_room_for(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    config = text_config(output={"storage_format": ["bin", "tfrecord", "arrow", "h5"], "shuffle": {"seed": 17}})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    rows = [{"text": f"{row} " + "the cat sat on the mat " * 20} for row in range(300)]
    assert run(config, rows, cache_dir=tmp_path / "cache").manifest is not None
    (line,) = (each for each in run_of(tmp_path / "out")["warnings"] if "are needed" in each)
    whats = [part.partition(" in ")[0] for part in line.partition(": about ")[0].split(" and ")]
    assert " and ".join(whats) == "the token cache and sorted runs and the output"
