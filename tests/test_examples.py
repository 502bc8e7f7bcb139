"""Every script in examples/ runs as a user runs it, in this process and (where it can) in worker processes."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.formats import FORMATS
from tests.conftest import ROOT, Capture, Patch, tree

EXAMPLES = ROOT / "examples"


Run = Callable[[str, Path], str]


@pytest.fixture
def here(monkeypatch: Patch, tmp_path: Path, capsys: Capture) -> Run:
    """Runs a script in this process, in a folder of its own, as `run` does; gives what it prints."""

    def _here(script: str, output: Path) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(FORMATS, "data", {**vars(FORMATS)["data"]})  # a script may add a format
        monkeypatch.setattr(sys, "argv", [script, str(output)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return _here


def test_every_example_is_tested() -> None:
    """The last one in tests/trainers."""
    here = {"custom_filter.py", "custom_format.py", "custom_mask.py", "hand_written_chain.py", "train_tiny.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == here


@pytest.mark.long
def test_custom_filter_is_the_same_in_worker_processes(tmp_path: Path) -> None:
    """A function that the script itself defines reaches workers, too."""
    for output, *options in (["out"], ["workers", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]):
        command = [sys.executable, str(EXAMPLES / "custom_filter.py"), str(tmp_path / output), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stdout == "kept 212 of 260; dropped {'filtered': 17}; rejected {'code_block': 31}\n", done.stderr
    assert tree(tmp_path / "workers") == tree(tmp_path / "out")


def test_custom_mask(here: Run, tmp_path: Path) -> None:
    assert here("custom_mask.py", tmp_path / "out") == "kept 99; dropped {'rows_without_loss': 161}\n"
    ds = bp.open(tmp_path / "out")
    assert ds.tokenizer is not None
    for row in ds:
        first, last = np.flatnonzero(np.diff(row["loss_mask"], prepend=False, append=False))
        assert 0 < last - first <= 64  # one run of trained tokens, at the end
        assert last == len(row["loss_mask"])
        assert ds.tokenizer.decode(row["sequence"][first:]).startswith("<|im_start|>assistant\n")


def test_custom_format(here: Run, tmp_path: Path) -> None:
    here("custom_format.py", tmp_path / "out")
    lines = (tmp_path / "out/__default__/shard_0000.jsonl").read_text().splitlines()
    assert len(lines) == 43
    assert lines[0].endswith('"masks": [[1, 1], [1, 1], [1, 1]], "rewards": [1.0, 0.0, 0.0]}')


def test_hand_written_chain(here: Run, tmp_path: Path) -> None:
    here("hand_written_chain.py", tmp_path / "out")
    ds = bp.open(tmp_path / "out")
    assert ds.schema[1].shifted
    assert (ds.columns, len(ds)) == (("input_ids", "labels"), 238)
    for row in ds.domain("cooking"):
        trained = np.flatnonzero(row["labels"][:-1] != -100)
        assert (row["labels"][trained] == row["input_ids"][trained + 1]).all()
