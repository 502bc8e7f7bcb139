"""The scripts in `benchmarks/` run, and say what they need. What they measure here means nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep
from tests.conftest import ROOT

pytestmark = pytest.mark.long

FOLDER = ROOT / "benchmarks"


def run_script(*arguments: str | Path, script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_mb_of_each_shape_is_measured_and_the_rows_are_those_of_datasets_map(tmp_path: Path) -> None:
    """Also without the test material."""
    pytest.importorskip("datasets")
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- marginal: begin -->\nold\n<!-- marginal: end -->\nbelow\n")
    rows = ("domains", "packed_tfrecord")
    given: list[str | Path] = [
        "--rows",
        *rows,
        "agents-mistral-v3",
        "--small",
        "0.2",
        "--large",
        "0.4",
        "--shared",
        tmp_path / "absent",
    ]
    done = run_script(*given, "--cache", tmp_path, "--markdown", page, script=FOLDER / "marginal.py")
    assert done.returncode == 0, done.stderr
    assert "agents-mistral-v3: skipped" in done.stderr
    found = {line[0]: line[8] for line in map(cells, done.stdout.splitlines()) if len(line) == 11}
    assert [found[row] for row in rows] == ["all", "counts equal"]
    assert page.read_text() == f"above\n<!-- marginal: begin -->\n\n{done.stdout}\n<!-- marginal: end -->\nbelow\n"


def test_the_plan_of_a_small_job_is_measured_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- plan_scale: begin -->\n<!-- plan_scale: end -->\n")
    done = run_script("--small", "--markdown", page, script=FOLDER / "plan_scale.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in page.read_text()
    found = {line[0]: line[1:] for line in map(cells, done.stdout.splitlines()) if len(line) in (4, 6)}
    assert all(float(found[step][1]) >= 0 for step in ("pack", "plan", "publish", "load"))
    assert found["receipts, packed"][0] == "100"
    # Some 39e9 tokens in shards of 1e8, of one to six domains.
    assert 390 <= int(found["shards to write"][0].replace(",", "")) <= 6 * 400
    # Each shard ends in a block; nearly all were guessed, in few rounds.
    reads, rounds = re.findall(r"([\d,]+) row indexes in ([\d,]+) rounds", done.stdout)[0]
    assert 380 <= int(reads) <= 450
    assert int(rounds) <= 5


RECORDS = [
    {"messages": [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": "A number. " * n}]}
    for n in range(1, 8)
]


@pytest.fixture
def compared(run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Compares the output of `RECORDS` with its own rows, changed by a function, as `datasets` saves them."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.syspath_prepend(str(FOLDER))
    from _rows import compare_rows

    config = json.loads((FOLDER / "configs" / "chat_role.json").read_text())
    config["output"]["max_tokens_per_shard"] = 60

    def _compared(change: Callable[[list[dict[str, Any]]], Any], records: Any = RECORDS, **options: Any) -> Any:
        result = run(config, records, **options)
        rows = [{name: row[name].tolist() for name in row} for row in beam_prep.open(result.output)]
        change(rows)
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
        return compare_rows(Path(result.output), tmp_path / "saved", {"input_ids": "input_ids", "labels": "labels"})

    return _compared


def test_each_row_that_differs_is_found(compared: Callable[..., dict[str, Any]]) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["labels"][-1] += 1
        rows[2]["labels"][-1] += 1
        rows[3]["input_ids"][0] += 1
        rows[3]["labels"][-1] += 1  # counted once
        rows[6] = {name: values[:-1] for name, values in rows[6].items()}

    found = compared(change)
    assert (found["equal"], found["differ"]) == (3, {"length": 1, "input_ids": 1, "labels": 2})
    assert found["first"] == "labels, line 2"


def test_a_few_nights_of_the_soak_are_as_from_scratch(tmp_path: Path) -> None:
    page = tmp_path / "soak.md"
    page.write_text("<!-- overwrite: begin -->\n<!-- overwrite: end -->\n")
    script = FOLDER / "soak.py"
    done = run_script("--refreshes", "3", "--seed", "1", "--markdown", page, script=script, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    counts = {line[0]: line[1] for line in map(cells, page.read_text().splitlines()) if len(line) == 2}
    assert counts["refreshes"] == "3"
    assert counts["kills, all processes of the job"] in ("1", "2")
    assert counts["refreshes that differ from a run from scratch"] == "0"
    assert "Nothing was wrong." in page.read_text()
