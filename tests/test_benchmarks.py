"""The scripts in `benchmarks/` run, and say what they need. What they measure here means nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long

FOLDER = ROOT / "benchmarks"


def run_script(*arguments: str | Path, script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_plan_of_a_small_job_is_measured_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- plan_scale: begin -->\n<!-- plan_scale: end -->\n")
    done = run_script("--small", "--markdown", page, script=FOLDER / "plan_scale.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in page.read_text()
    found = {line[0]: line[1:] for line in map(cells, done.stdout.splitlines()) if len(line) in (4, 6)}
    assert found["receipts, packed"][0] == "100"


def test_a_few_nights_of_the_soak_are_as_from_scratch(tmp_path: Path) -> None:
    page = tmp_path / "soak.md"
    page.write_text("<!-- overwrite: begin -->\n<!-- overwrite: end -->\n")
    script = FOLDER / "soak.py"
    done = run_script("--refreshes", "3", "--seed", "1", "--markdown", page, script=script, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    counts = {line[0]: line[1] for line in map(cells, page.read_text().splitlines()) if len(line) == 2}
    assert counts["refreshes that differ from a run from scratch"] == "0"
