"""Every script in examples/ runs as a user runs it, in this process and (where it can) in worker processes; those in
benchmarks/ run, and say what they need: what they measure here means nothing; what `.ci/run` says at its end.
"""

import os
import re
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


# benchmarks/


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "part", "options", "says"),
    [
        ("plan_scale", "plan_scale", ["--small"], "receipts, packed"),
        ("plan_scale", "plan_compose", ["--small", "--compose"], "blocks of a run"),
        ("soak", "overwrite", ["--refreshes", "3", "--seed", "1"], "Nothing was wrong."),
    ],
)
def test_a_script_writes_its_table(script: str, part: str, options: list[str], says: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {part}: begin -->\n<!-- {part}: end -->\n")
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *options, "--markdown", str(page)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert says in page.read_text()


# .ci/run, with a `make` that only pretends

MAKE = """#!/bin/sh
echo "making $1"
case $1 in
    test) printf -- '--- 3 skipped ---\\n     2 no test material\\n     1 no Chromium\\n4 passed, 3 skipped in 1s\\n' ;;
    test-long) echo '1 failed, 2 passed in 3s'; exit 2 ;;
esac
"""


def test_the_last_lines_say_what_ran_what_was_skipped_and_what_did_not_run(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True)
    told = re.sub(r" +\d+ s ", " 0 s", done.stdout.partition("What ran")[2]).splitlines()[1:]
    assert [line.rstrip() for line in told] == [
        "check          passed 0 s",
        "test           passed 0 s 4 passed, 3 skipped in 1s",
        "    skipped:     2 no test material",
        "    skipped:     1 no Chromium",
        "test-long      FAILED 0 s 1 failed, 2 passed in 3s",
        "not run: docs test-engines test-faults test-browser test-trainers",
    ]
    assert done.returncode == 1
