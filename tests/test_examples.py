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
from tests.conftest import ROOT, tree

EXAMPLES = ROOT / "examples"


Run = Callable[[str, Path], str]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script in this process, in a folder of its own, as `run` does; gives what it prints."""

    def _here(script: str, output: Path) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(FORMATS, "data", {**vars(FORMATS)["data"]})  # a script may add a format
        monkeypatch.setattr(sys, "argv", [script, str(output)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return _here


def run(script: str, output: Path, *options: str) -> str:
    """What the script prints. It runs in a folder of its own: paths in it must not depend on where it is started."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, output, *options],
        cwd=output.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_and_short() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    # Of the last one the tests are in tests/trainers.
    here = {"custom_filter.py", "custom_format.py", "custom_mask.py", "hand_written_chain.py"}
    assert scripts == {*here, "train_tiny.py"}
    for name in scripts:
        assert len((EXAMPLES / name).read_text().splitlines()) < (66 if name in here else 100), name


@pytest.mark.long
def test_custom_filter_is_the_same_in_worker_processes(tmp_path: Path) -> None:
    printed = run("custom_filter.py", tmp_path / "out")
    assert printed == "kept 212 of 260; dropped {'filtered': 17}; rejected {'code_block': 31}\n"
    ledger = bp.open(tmp_path / "out").manifest["ledger"]
    assert ledger["kept"] + ledger["dropped"]["filtered"] + ledger["rejected"]["code_block"] == ledger["lines"]
    # A function that the script itself defines reaches workers, too.
    two = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    run("custom_filter.py", tmp_path / "workers", *two)
    assert tree(tmp_path / "workers") == tree(tmp_path / "out")


def test_custom_mask(here: Run, tmp_path: Path) -> None:
    assert here("custom_mask.py", tmp_path / "out") == "kept 99; dropped {'rows_without_loss': 161}\n"
    ds = bp.open(tmp_path / "out")
    assert ds.tokenizer is not None
    for row in ds:
        mask = row["loss_mask"]
        first, last = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        assert last == len(mask)  # one run of trained tokens, at the end
        assert 0 < last - first <= 64
        assert ds.tokenizer.decode(row["sequence"][mask]).startswith("<|im_start|>assistant\n")


def test_custom_format(here: Run, tmp_path: Path) -> None:
    here("custom_format.py", tmp_path / "out")
    lines = (tmp_path / "out/__default__/shard_0000.jsonl").read_text().splitlines()
    assert len(lines) == 43
    assert lines[0].endswith('"masks": [[1, 1], [1, 1], [1, 1]], "rewards": [1.0, 0.0, 0.0]}')


def test_hand_written_chain(here: Run, tmp_path: Path) -> None:
    here("hand_written_chain.py", tmp_path / "out")
    ds = bp.open(tmp_path / "out")
    assert ds.columns == ("input_ids", "labels")
    assert ds.schema[1].shifted
    assert len(ds) == 238
    assert len(ds.domains) > 10
    for row in ds.domain("cooking"):
        trained = np.flatnonzero(row["labels"][:-1] != -100)
        assert (row["labels"][trained] == row["input_ids"][trained + 1]).all()
