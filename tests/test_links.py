"""Outputs that are named through links: the link stays, the data go to the disk that it names, and the lock is one."""

from pathlib import Path

import pytest

import beam_prep as bp
from beam_prep.errors import LockedError
from tests.conftest import ROOT, Run, text_config, write_lines

TEXT = text_config()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return write_lines(tmp_path / "in.jsonl", [{"text": f"record {number}. " * 10} for number in range(9)])


def test_an_output_that_is_a_link_is_followed(run: Run, source: Path, tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk" / "data")
    assert run(TEXT, source).output == str(tmp_path / "disk" / "data")
    source.write_text(source.read_text() * 2)
    run(TEXT, source, overwrite=True)
    assert link.is_symlink()
    assert len(bp.open(link)) == 18
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [".beam_prep", "data"]
    assert not (tmp_path / ".beam_prep").exists()


def test_a_job_through_a_linked_folder_finds_the_lock(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    config = bp.PipelineConfig.from_dict(TEXT)
    first = bp.Pipeline(config, source, tmp_path / "disk" / "out", ROOT / "examples/tokenizer")
    with first.claim().claims.locked(), pytest.raises(LockedError, match=r"another job is writing .*/disk/out"):
        run(TEXT, source, "link/out")
    run(TEXT, source, "link/out")
