"""The history of ratios, and what `make bench-check` says of it. Nothing is timed: logs of runs are written here."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.shards.pack import plan_packs
from tests.conftest import ROOT, shared

FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))  # as when they are run

import _corpora  # noqa: E402
import _history  # noqa: E402
import _rows  # noqa: E402
import check  # noqa: E402
import peer_shapes  # noqa: E402
import shapes  # noqa: E402
from _history import Entry, Machine  # noqa: E402
from _measure import BenchmarkError  # noqa: E402
from _report import Log  # noqa: E402

sys.path.remove(str(FOLDER))

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
POSITIVE = st.floats(0.001, 1e6)
ENTRIES = st.lists(
    st.builds(
        Entry,
        date=st.dates().map(str),
        commit=TEXT,
        machine=st.builds(Machine, cpu=TEXT, cores=st.integers(1, 512), memory_gb=POSITIVE),
        row=TEXT,
        megabytes=POSITIVE,
        ratio=POSITIVE,
        ours_s=POSITIVE,
        peer_s=POSITIVE,
    ),
    max_size=5,
)


def entry(
    ratio: float = 10.0, row: str = "chats", cores: int = 2, megabytes: float = 60, date: str = "2026-11-23"
) -> Entry:
    return Entry(date, "abc", Machine("some processor", cores, 25.3), row, megabytes, ratio, 2.0, 2.0 * ratio)


@given(old=ENTRIES, new=ENTRIES)
def test_entries_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, old: Any, new: Any) -> None:
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    _history.append(path, old)
    before = path.read_bytes()
    _history.append(path, new)
    assert path.read_bytes().startswith(before)
    assert _history.read(path) == [*old, *new]


def test_no_file_is_a_history_without_entries(tmp_path: Path) -> None:
    assert _history.read(tmp_path / "nowhere.jsonl") == []


@pytest.mark.parametrize("line", ["no JSON", "{}", "[]", '{"machine": {}}', '{"machine": 1, "row": "chats"}'])
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    _history.append(path, [entry()])
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BenchmarkError, match=r"history\.jsonl, line 2 is no entry"):
        _history.read(path)


@pytest.mark.parametrize(("ratio", "fell"), [(10.0, False), (9.0, False), (12.0, False), (8.99, True), (0.1, True)])
def test_a_ratio_has_fallen_if_it_lost_more_than_a_tenth(ratio: float, fell: bool) -> None:
    lines, fallen = _history.compare([entry(99), entry(10)], [entry(ratio)])
    assert fallen == ([entry(ratio)] if fell else [])
    assert ("FELL" in lines[0]) == fell


@pytest.mark.parametrize("other", [entry(99, row="documents"), entry(99, cores=4), entry(99, megabytes=200)])
def test_other_rows_sizes_and_numbers_of_cores_are_not_compared(other: Entry) -> None:
    lines, fallen = _history.compare([other], [entry()])
    assert fallen == []
    assert "no entry yet for this row on 2 cores; --record adds one" in lines[0]


# check.py, with logs of runs


FACTS = {"date": "2026-11-24", "commit": "def", "machine": {"cpu": "some processor", "cores": 2, "memory_gb": 25.3}}


def session(**changes: Any) -> dict[str, Any]:
    return {"session": {"machine": "some machine", "command": "some command", "facts": {**FACTS, **changes}}}


def line_of(
    job: str, tool: str, wall: float, megabytes: float = 60, how: str = "somehow", own: float = 0.0, **notes: Any
) -> dict[str, Any]:
    usage = {"wall": wall, "cpu": 2 * wall, "pss": 1, "anonymous": 1, "own": own}
    written = {"documents": 7, "rows": 7, "tokens": 1, "trained": 1, "left_out": 0}
    done = {"usage": usage, "written": written, "how": how, "notes": notes}
    return {"run": {"job": job, "megabytes": megabytes, "size": 1, "tool": tool, "done": done}}


def equal(job: str, number: int = 7) -> dict[str, Any]:
    rows = {"ours": 7, "peer": 7, "equal": number, "left_out": {}, "differ": {} if number == 7 else {"labels": 1}}
    return {"job": job, "megabytes": 60, "rows": rows}


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
    lines = [session(), *runs((2.0, 18.0), (2.0, 20.0), (9.0, 90.0)), equal("chats")]
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
    both = [session(), *runs((2.0, 20.0)), *runs((1.0, 5.0), job="reader")]
    code, out, _ = judged(both)
    assert (code, out.count("+0%")) == (0, 2)
    code, out, errors = judged([session(), *runs((2.0, 17.0)), *runs((1.0, 5.0), job="reader")])
    assert code == 1
    assert "chats, 60 MB, 2 cores: 8.50 (2.00 s, the peer 17.00 s): FELL by 15%, 10.00 on 2026-11-23 at abc" in out
    assert errors == "check: fell by more than 10 %: chats, 60 MB, 2 cores\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([session(), *runs((2.0, 20.0)), equal("chats", 6)], "chats, 60 MB: rows differ from the peer's"),
        ([session(), session(commit="other"), *runs((2.0, 20.0))], "found 2 kinds of sessions"),
        ([{"session": {"machine": "m", "command": "c"}}, *runs((2.0, 20.0))], "wanted sessions of check.py"),
        ([*runs((2.0, 20.0))], "found 0 kinds of sessions"),
        ([session(), line_of("chats", shapes.OURS, 2.0)], "no row of which both times are known"),
    ],
)
def test_logs_that_say_nothing_of_a_ratio_are_refused(
    tmp_path: Path, judged: Callable[..., Any], lines: list[dict[str, Any]], message: str
) -> None:
    code, out, errors = judged(lines, "--record")
    assert (code, out) == (2, "")
    assert message in errors
    assert not (tmp_path / "history.jsonl").exists()


def test_the_history_of_the_project_is_one_and_its_picture_is_in_the_docs() -> None:
    entries = _history.read(check.HISTORY)
    assert all(not entry.commit.endswith("+") for entry in entries), "recorded with changes that are no commit"
    assert check.PICTURE.read_text(encoding="utf-8") == _history.picture(entries), "python benchmarks/check.py --draw"


def test_the_picture_has_a_line_for_each_row_and_no_raw_markup() -> None:
    entries = [entry(ratio, row, date=f"2026-11-{day}") for day, ratio in ((10, 4), (11, 8)) for row in ("a<b>&", "c")]
    found = ElementTree.fromstring(_history.picture(entries))
    lines = [each.get("points", "") for each in found.iter("{http://www.w3.org/2000/svg}polyline")]
    places = [[tuple(map(float, place.split(","))) for place in line.split()] for line in lines]
    assert [len(line) for line in places] == [2, 2]
    assert all(first[0] < last[0] and first[1] > last[1] for first, last in places)  # to the right, and up
    texts = "".join(found.itertext())
    assert "a<b>&, 60 MB, 2 cores" in texts
    assert "2026-11-10" in texts


# shapes.py


def log_of(*lines: dict[str, Any]) -> Log:
    log = Log()
    for line in json.loads(json.dumps(lines)):
        log.add(line)
    return log


def cells(text: str, first: str) -> list[list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [line[1:] for line in lines if line[0] == first]


def test_the_table_has_ratios_of_medians_and_how_rows_were_made() -> None:
    made: Any = {"encoded_by_gigatoken": 1234, "rendered_by_jinja": 2, "other": 3}
    times = [(shapes.OURS, 2.0), (shapes.MAP, 18.0), (shapes.OURS, 1.0), (shapes.MAP, 22.0)]
    log = log_of(*(line_of("tools", tool, wall, **made) for tool, wall in times), equal("tools", 6))
    (row,) = cells(shapes.report(log), "tools")
    assert row[:6] == ["60", "qwen2.5", "7", "1.5", "20.0", "13.3 (9.0-22.0)"]
    assert row[6:] == ["6 of 7, 1 labels", "encoded_by_gigatoken 1,234, rendered_by_jinja 2"]


def test_the_table_of_cores_has_the_share_of_the_launcher() -> None:
    walls = ((1, 20.0, "in-process", 40.0), (2, 10.0, "2 worker processes", 0.4), (16, 4.0, "16 worker processes", 1.0))
    log = log_of(*(line_of("chats", shapes.on_cores(n), wall, how=how, own=own) for n, wall, how, own in walls))
    assert [row[1:4] + row[4:5] + row[6:] for row in cells(shapes.report(log), "chats")] == [
        ["1", "in-process", "20.0 (20.0-20.0)", "1.00", "", ""],
        ["2", "2 worker processes", "10.0 (10.0-10.0)", "2.00", "0.40", "2.0%"],
        ["16", "16 worker processes", "4.0 (4.0-4.0)", "5.00", "1.00", "12.5%"],
    ]


def test_every_row_names_a_corpus_a_config_and_a_peer() -> None:
    for shape in shapes.SHAPES.values():
        assert shape.corpus in {*_corpora.KINDS, "chat", "text"}
        assert shape.peer in peer_shapes.SHAPES
        config = json.loads((FOLDER / "configs" / f"{shape.config}.json").read_bytes())
        assert config["preprocessing"]["max_seq_len"] in (shape.longest, 1_000_000)
        assert config.get("output", {}).get("domain_key") == shape.domain


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


def test_no_row_of_a_corpus_occurs_twice_and_later_ones_have_other_numbers() -> None:
    own = _corpora.maker(shared())
    real = list(_corpora.tools(shared()))
    different = {own.digest(row) for row in real}
    made = list(islice(_corpora.varied(iter(real), own, "tools"), 3 * len(different)))
    assert {own.digest(row) for row in made[: len(different)]} == different  # the first pass is real
    assert len({own.digest(row) for row in made}) == len(made)
    assert made == list(islice(_corpora.varied(iter(real), own, "tools"), len(made)))


def test_what_both_sides_of_a_pair_say_stays_the_same_in_both() -> None:
    own = _corpora.maker(shared())
    start = [{"role": "user", "content": "Is 7 prime?"}]
    pair = {side: [*start, {"role": "assistant", "content": f"{side} 12"}] for side in ("chosen", "rejected")}
    for row in islice(_corpora.varied(iter([pair]), own, "x"), 200):
        assert row["chosen"][0] == row["rejected"][0]
        assert row["chosen"][1]["role"] == "assistant"
