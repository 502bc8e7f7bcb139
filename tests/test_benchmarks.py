"""The scripts in `benchmarks/` run, and say what they need. What they measure here means nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long


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
