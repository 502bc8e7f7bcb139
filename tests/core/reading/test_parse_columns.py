"""Lines as columns: a block is read at once, or in parts where one of its lines is odd."""

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.columns import Columns, Wanted
from beam_prep.core.data.ragged import Array
from beam_prep.core.reading import parse_columns
from beam_prep.core.reading.blocks import read_blocks
from beam_prep.core.reading.records import _line_borders, parse

CHATS, TEXTS = Wanted("chats", "messages"), Wanted("texts", "text")
LINES = 16 * 64
ODD = {
    CHATS: [
        b'{"messages": [{"role": "user", "content": "a", "name": "b"}]}',
        b'{"messages": [{"content": "a", "role": "user"}]}',
        b'{"messages": [], "messages": []}',
        b'{"messages": [{"role": "user", "content": "a"}}',
    ],
    TEXTS: [b'{"text": ["a"]}', b'{"text": "a", "id": 1}', b'{"text": "a", "text": "b"}', b'{"text": "a}'],
}


@pytest.fixture(autouse=True)
def none_seen() -> Iterator[None]:
    parse_columns._odd.clear()
    yield
    parse_columns._odd.clear()


def block(wanted: Wanted, odd: dict[int, bytes]) -> bytes:
    lines = []
    for line in range(LINES):
        messages = [{"role": "user", "content": f"{line} {{}}"}, {"role": "assistant", "content": "x" * (line % 7)}]
        record = {"messages": messages} if wanted == CHATS else {"text": f"a {line}"}
        lines.append(odd.get(line, json.dumps(record).encode()))
    return b"\n".join(lines)


def read(data: bytes, wanted: Wanted) -> tuple[Columns, Array] | None:
    return parse_columns.read_columns(data, *_line_borders(data, True), wanted)


def parts_of(data: bytes, wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many parts of a block are parsed."""
    calls, parse = [], parse_columns._table

    def counted(raw: bytes, *given: Any) -> Any:
        calls.append(raw)
        return parse(raw, *given)

    monkeypatch.setattr(parse_columns, "_table", counted)
    read(data, wanted)
    monkeypatch.undo()
    return len(calls)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([CHATS, TEXTS]), st.dictionaries(st.integers(0, LINES - 1), st.integers(0, 3), max_size=3))
def test_what_an_earlier_block_held_changes_nothing(wanted: Wanted, odd: dict[int, int]) -> None:
    data = block(wanted, {line: ODD[wanted][number] for line, number in odd.items()})
    parse_columns._odd.clear()
    first = read(data, wanted)
    parse_columns._odd.add(wanted)
    again = read(data, wanted)
    assert first is not None
    assert again is not None
    assert first[1].tolist() == again[1].tolist()
    assert first[0].table.equals(again[0].table)
    for name in ("offsets", "role", "plain"):
        assert np.array_equal(getattr(first[0], name), getattr(again[0], name))
    assert list(first[0].text) == list(again[0].text)


def test_a_block_is_read_at_once_unless_the_one_before_it_had_odd_records(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, odd = block(CHATS, {}), block(CHATS, {LINES // 2: ODD[CHATS][0]})
    assert parts_of(plain, CHATS, monkeypatch) == 1
    assert parts_of(odd, CHATS, monkeypatch) == 1 + 16
    assert parts_of(odd, CHATS, monkeypatch) == 16
    few = b'{"text": "a"}\n' * 70 + ODD[TEXTS][0]
    assert parts_of(few, TEXTS, monkeypatch) == 1  # of few lines there is one part
    parse_columns._odd.discard(TEXTS)
    assert parts_of(block(TEXTS, {}), TEXTS, monkeypatch) == 1  # of other records nothing is known
    assert parts_of(plain, CHATS, monkeypatch) == 16
    assert parts_of(plain, CHATS, monkeypatch) == 1


RECORDS = {
    CHATS: b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
    TEXTS: b'{"text": "a {b}, c"}',
    Wanted("lists", "answers"): b'{"answers": ["a", "b"]}',
}
MOST = 300


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*RECORDS]),
    st.lists(
        st.tuples(st.integers(0, 150), st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=3)), max_size=3
    ),
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\r\n"]),
)
def test_of_lines_that_are_too_long_nothing_is_read(
    wanted: Wanted, broken: list[tuple[int, list[tuple[int, bool]]]], end: bytes
) -> None:
    """Not as a part of the record that the line before it begins, either."""
    lines = [RECORDS[wanted]] * 151
    for line, cuts in broken:
        for cut, long in cuts:
            places = [match.end() for match in re.finditer(rb"[\[\]{},:]", RECORDS[wanted])]
            head, tail = lines[line][: places[cut % len(places)]], lines[line][places[cut % len(places)] :]
            lines[line] = head + b"\n" + b" " * MOST * long + tail
    raw = next(read_blocks(io.BytesIO(end.join(lines)), 0, -1, 1 << 30, MOST))
    origin = raw.origin(0, InputFile("a.jsonl", 0, 0.0), 1 << 30, MOST)
    found, expected = parse(raw, origin, wanted), parse(raw, origin)
    assert found.ledger.status.tolist() == expected.ledger.status.tolist()
    assert found.line.tolist() == expected.line.tolist()
    assert [*found.rows] == [*expected.rows]


def test_only_the_part_with_a_line_that_is_too_long_is_read_by_lines() -> None:
    long = b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"x" * MOST)
    data = block(CHATS, {LINES // 2: long})
    raw = next(read_blocks(io.BytesIO(data), 0, -1, 1 << 30, MOST))
    records = parse(raw, raw.origin(0, InputFile("a.jsonl", 0, 0.0), 1 << 30, MOST), CHATS)
    assert len(records) == LINES - 1
    assert LINES - 1 - records.in_columns == (LINES - 1) // 15  # parts of at least 64 lines
