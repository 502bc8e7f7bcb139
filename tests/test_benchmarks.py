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
from tests.conftest import ROOT, shared

pytestmark = pytest.mark.long

FOLDER = ROOT / "benchmarks"
SCRIPT = FOLDER / "end_to_end.py"


def run_script(*arguments: str | Path, script: Path = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def material() -> Path:
    return shared("bench", "make_corpus.py").parent.parent


def test_a_tiny_corpus_gives_tables_and_a_log_that_gives_them_again(tmp_path: Path) -> None:
    page, log = tmp_path / "page.md", tmp_path / "log.jsonl"
    page.write_text("above\n<!-- end_to_end: begin -->\nold\n<!-- end_to_end: end -->\nbelow\n")
    given: list[str | Path] = ["--jobs", "chat_role", "--sizes", "1", "--repeats", "1"]
    given += ["--cache", tmp_path / "cache", "--log", log]
    done = run_script(*given, "--shared", material(), "--markdown", page)
    assert done.returncode == 0, done.stderr
    used = next(cells(line) for line in done.stdout.splitlines() if "in-process" in line)
    assert used[:4] == ["1", "`beam-prep chat_last`", "in-process", "1"]
    assert all(float(number.replace(",", "")) > 0 for number in used[5:])
    assert "| `beam-prep chat_role`" in done.stdout
    text = page.read_text()
    assert text.startswith("above\n<!-- end_to_end: begin -->\n")
    assert text.endswith("\n<!-- end_to_end: end -->\nbelow\n")
    assert done.stdout.strip() in text
    assert "old" not in text
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["chat_1mb.jsonl"]
    again = run_script("--report", log)
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_shapes_are_measured_and_their_rows_are_those_of_datasets_map(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    given: list[str | Path] = ["--only", "rollouts", "domains", "packed_tfrecord", "--mb", "0.5", "--rounds", "1"]
    done = run_script(*given, "--shared", material(), "--cache", tmp_path, script=FOLDER / "shapes.py")
    assert done.returncode == 0, done.stderr
    found = {line[0]: line[7] for line in map(cells, done.stdout.splitlines()) if len(line) == 9}
    assert [found[row] for row in ("rollouts", "domains", "packed_tfrecord")] == ["all", "all", "counts equal"]


def test_the_docs_name_no_place_of_a_machine() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"^.*benchmarks/\S* .*/(?:tmp|work|home|root)/.*$", text, re.M)


def test_the_pages_of_the_docs_have_the_markers() -> None:
    pages = {"end_to_end": "performance.md", "profile": "performance.md", "shapes": "performance.md"}
    pages |= {"plan_scale": "scale.md", "plan_runner": "scale.md"}
    for name, page in pages.items():
        text = (ROOT / "docs" / page).read_text()
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1


def test_the_profile_knows_every_stage_of_a_run(tmp_path: Path) -> None:
    script = FOLDER / "profile_stages.py"
    done = run_script("--size", "1", "--cache", tmp_path, "--shared", material(), script=script)
    assert done.returncode == 0, done.stderr
    found = {line[0]: line[1:] for line in map(cells, done.stdout.splitlines()) if len(line) == 4}
    assert list(found)[2:] == [
        *("read", "parse", "render", "encode", "mask", "truncate, labels", "token cache", "plan, write"),
        *("Beam itself", "all"),
    ]
    parts = [float(row[0]) for row in list(found.values())[2:]]
    assert all(part >= 0 for part in parts)
    assert sum(parts[:-1]) == pytest.approx(parts[-1], abs=0.06)  # each is rounded


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

    config = json.loads((FOLDER / "configs" / "chat_last.json").read_text())
    config["output"]["max_tokens_per_shard"] = 60

    def _compared(change: Callable[[list[dict[str, Any]]], Any], records: Any = RECORDS, **options: Any) -> Any:
        result = run(config, records, **options)
        rows = [{name: row[name].tolist() for name in row} for row in beam_prep.open(result.output)]
        change(rows)
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
        return compare_rows(Path(result.output), tmp_path / "saved", {"input_ids": "input_ids", "labels": "labels"})

    return _compared


def test_equal_rows_are_equal(compared: Callable[..., dict[str, Any]]) -> None:
    assert compared(lambda rows: None) == {"ours": 7, "peer": 7, "left_out": {}, "equal": 7, "differ": {}}


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


def test_rejected_lines_are_passed_over(compared: Callable[..., dict[str, Any]]) -> None:
    lines = [json.dumps(record) for record in RECORDS]
    lines.insert(2, "no JSON")

    def change(rows: list[dict[str, Any]]) -> None:
        rows.insert(2, {"input_ids": [1], "labels": [1]})

    found = compared(change, "\n".join(lines).encode(), max_reject_rate=1.0)
    assert found == {"ours": 7, "peer": 8, "left_out": {"bad_json": 1}, "equal": 7, "differ": {}}


def test_other_numbers_of_rows_are_not_compared(compared: Callable[..., dict[str, Any]]) -> None:
    found = compared(lambda rows: rows.pop())
    assert (found["ours"], found["peer"], found["equal"]) == (7, 6, 0)


def test_our_writers_give_the_bytes_of_tensorflow_and_pyarrow() -> None:
    for module in ("tensorflow", "h5py"):
        pytest.importorskip(module)
    done = run_script("--rows", "20", "--repeats", "1", script=FOLDER / "writers.py")
    assert done.returncode == 0, done.stderr
    same = {row[0]: row[-1] for row in map(cells, done.stdout.splitlines()) if len(row) > 1}
    assert (same["`tfrecord`"], same["`arrow`"]) == ("yes", "yes")


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
