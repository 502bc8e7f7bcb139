"""The history of ratios, and what `make bench-check` says of it. Nothing is timed: logs of runs are written here."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.shards.pack import plan_packs
from tests.conftest import ROOT

FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))  # as when they are run

import _history  # noqa: E402
import _rows  # noqa: E402
import check  # noqa: E402
import peer_shapes  # noqa: E402
from _history import Entry, Machine  # noqa: E402

sys.path.remove(str(FOLDER))


def entry(ratio: float, row: str = "chats") -> Entry:
    return Entry("2026-11-23", "abc", Machine("some processor", 2, 25.3), row, 60, ratio, 2.0, 2.0 * ratio)


@pytest.mark.parametrize(("ratio", "fell"), [(10.0, False), (9.0, False), (12.0, False), (8.99, True), (0.1, True)])
def test_a_ratio_has_fallen_if_it_lost_more_than_a_tenth(ratio: float, fell: bool) -> None:
    lines, fallen = _history.compare([entry(99), entry(10)], [entry(ratio)])
    assert fallen == ([entry(ratio)] if fell else [])
    assert ("FELL" in lines[0]) == fell


# check.py, with logs of runs


FACTS = {"date": "2026-11-24", "commit": "def", "machine": {"cpu": "some processor", "cores": 2, "memory_gb": 25.3}}


SESSION = {"session": {"machine": "some machine", "command": "some command", "facts": FACTS}}


def line_of(job: str, tool: str, wall: float) -> dict[str, Any]:
    usage = {"wall": wall, "cpu": 2 * wall, "pss": 1, "anonymous": 1, "own": 0.0}
    written = {"documents": 7, "rows": 7, "tokens": 1, "trained": 1, "left_out": 0}
    done = {"usage": usage, "written": written, "how": "somehow", "notes": {}}
    return {"run": {"job": job, "megabytes": 60, "size": 1, "tool": tool, "done": done}}


EQUAL = {"ours": 7, "peer": 7, "equal": 7, "left_out": {}, "differ": {}}


def runs(*seconds: tuple[float, float], job: str = "chats") -> list[dict[str, Any]]:
    tools = check.TOOLS[job]
    return [line_of(job, tool, wall) for pair in seconds for tool, wall in zip(tools, pair, strict=True)]


@pytest.fixture
def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls check.py with a log, and the history of `tmp_path`: (exit code, output, errors)."""

    def _judged(lines: Sequence[dict[str, Any]], *options: str) -> tuple[int, str, str]:
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        places = ["--history", str(tmp_path / "history.jsonl"), "--picture", str(tmp_path / "history.svg")]
        code = check.main(["--report", str(log), *places, *options])
        return code, *capsys.readouterr()

    return _judged


def test_a_row_without_an_entry_passes_and_can_be_recorded(tmp_path: Path, judged: Callable[..., Any]) -> None:
    lines = [SESSION, *runs((2.0, 18.0), (2.0, 20.0), (9.0, 90.0)), {"job": "chats", "megabytes": 60, "rows": EQUAL}]
    code, out, _ = judged(lines)
    assert (code, out.count("no entry yet")) == (0, 1)
    assert not (tmp_path / "history.jsonl").exists()
    code, out, _ = judged(lines, "--record")
    assert (code, out.count("no entry yet")) == (0, 1)
    wanted = Entry("2026-11-24", "def", Machine("some processor", 2, 25.3), "chats", 60, 10.0, 2.0, 20.0)  # of medians
    assert _history.read(tmp_path / "history.jsonl") == [wanted]
    assert "2026-11-24" in (tmp_path / "history.svg").read_text()


def test_an_equal_ratio_passes_and_a_fallen_one_fails(tmp_path: Path, judged: Callable[..., Any]) -> None:
    _history.append(tmp_path / "history.jsonl", [entry(10), entry(5, row="reader")])
    both = [SESSION, *runs((2.0, 20.0)), *runs((1.0, 5.0), job="reader")]
    code, out, _ = judged(both)
    assert (code, out.count("+0%")) == (0, 2)
    code, out, errors = judged([SESSION, *runs((2.0, 17.0)), *runs((1.0, 5.0), job="reader")])
    assert code == 1
    assert "chats, 60 MB, 2 cores: 8.50 (2.00 s, the peer 17.00 s): FELL by 15%, 10.00 on 2026-11-23 at abc" in out
    assert errors == "check: fell by more than 10 %: chats, 60 MB, 2 cores\n"


def test_the_history_of_the_project_is_one_and_its_picture_is_in_the_docs() -> None:
    entries = _history.read(check.HISTORY)
    assert all(not entry.commit.endswith("+") for entry in entries), "recorded with changes that are no commit"
    assert check.PICTURE.read_text(encoding="utf-8") == _history.picture(entries), "python benchmarks/check.py --draw"


# What the rows of the peer are compared with.


@given(lengths=st.lists(st.integers(1, 20), max_size=60))
def test_bins_of_the_peer_hold_every_document_once_and_are_as_few_as_ours(lengths: list[int]) -> None:
    bins = peer_shapes.best_fit(lengths, 20)
    assert sorted(row for rows in bins for row in rows) == list(range(len(lengths)))
    assert all(0 < sum(lengths[row] for row in rows) <= 20 for rows in bins)
    assert len(bins) == len(plan_packs(np.array(lengths, np.int64), "bfd", 20))


def test_lists_that_differ_are_found() -> None:
    ours = [[[1, 2], [3]], [[1], [2, 3]], [[1, 2]], [[4]], [[], [5]]]
    peer = [[[1, 2], [3]], [[1, 2], [3]], [[1, 2], []], [[9]], [[], [5]]]
    left, right = (Ragged.from_lists(each, depth=2) for each in (ours, peer))
    found = {what: wrong.tolist() for what, wrong in _rows._differences(left, right, "responses")}
    assert found == {
        "length": [False, True, True, False, False],
        "responses": [False, False, False, True, False],
    }
