"""Lists of records in `.json` files: each element once, at its own offset; what is broken is a reject or an error."""

import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.block import InputFile
from beam_prep.errors import InputError
from beam_prep.reading.records import read_blocks
from beam_prep.reading.source import JSONList, ListAsLines

NAME = "data/x.json"


@dataclass
class Found:
    """What is read from a file: records and rejects with their offsets."""

    records: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    rejects: list[tuple[int, str, str]] = field(default_factory=list)


def read(content: bytes, block_bytes: int = 1 << 20) -> Found:
    found = Found()
    source = InputFile(NAME, len(content), 0.0)
    for raw in read_blocks(ListAsLines(io.BytesIO(content), NAME), 0, -1, block_bytes):
        records = JSONList().parse(raw, raw.origin(0, source, block_bytes))
        ledger, begin = records.ledger, records.origin.first_byte
        found.records += records.rows
        found.offsets += [begin + int(start) for start in ledger.starts[records.line]]
        found.rejects += [
            (begin + int(ledger.starts[line]), ledger.outcomes[ledger.status[line] - 1][1], ledger.text(line))
            for line in sorted(ledger.messages)
        ]
    return found


def lines_of(content: bytes, window: int = 1 << 20) -> bytes:
    stream = ListAsLines(io.BytesIO(content), NAME)
    parts = []
    while part := stream.read(window):
        parts.append(part)
    return b"".join(parts)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
rows = st.lists(st.dictionaries(st.text('ab"\\[{,\n', max_size=4), values, max_size=4), max_size=8)
white = st.text(" \t\r\n", max_size=3)


@st.composite
def files(draw: st.DrawFn) -> tuple[list[Any], bytes]:
    """(records, a file that holds them as a list, in whatever layout)."""
    records = draw(rows)
    ascii_only = draw(st.booleans())
    pieces = [draw(white), "["]
    for place, record in enumerate(records):
        indent = draw(st.none() | st.integers(0, 2) | st.just("\t"))
        pieces += ["," if place else "", draw(white), json.dumps(record, indent=indent, ensure_ascii=ascii_only)]
        pieces.append(draw(white))
    pieces += [draw(white), "]", draw(white)]
    return records, "".join(pieces).encode()


@given(files(), st.integers(1, 40))
def test_every_element_once_at_its_offset(file: tuple[list[Any], bytes], block_bytes: int) -> None:
    records, content = file
    found = read(content)
    assert found.records == records
    assert found.rejects == []
    for record, offset in zip(records, found.offsets, strict=True):
        assert json.JSONDecoder().raw_decode(content[offset:].decode())[0] == record
        assert content[offset : offset + 1] == b"{"
    assert read(content, block_bytes) == found


@given(st.text('[]{},":\\ \n\ra1', max_size=40).map(str.encode), st.integers(1, 9))
def test_whatever_comes_the_result_does_not_depend_on_the_window(content: bytes, window: int) -> None:
    def outcome(window: int) -> bytes | type[InputError]:
        try:
            return lines_of(content, window)
        except InputError:
            return InputError

    whole = outcome(1 << 20)
    assert outcome(window) == whole
    if isinstance(whole, bytes):
        assert len(whole) == len(content)


@given(st.data())
def test_one_wrong_byte_costs_two_records_at_most_or_is_an_error(data: st.DataObject) -> None:
    record = st.dictionaries(st.text("ab", max_size=2), values, max_size=3)
    records = data.draw(st.lists(record, min_size=4, max_size=8))
    content = bytearray(json.dumps(records, indent=data.draw(st.sampled_from([None, 1]))).encode())
    place = data.draw(st.integers(1, len(content) - 1))
    content[place] = data.draw(st.sampled_from(b'[]{},:"\\ \nx0\xff\x00'))
    try:
        found = read(bytes(content))
    except InputError:
        return
    missing = len(records) - len(found.records)
    assert missing <= 2
    assert missing == 0 or found.rejects


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (b'{"a": NaN}', "bad_json"),
        (b"{'a': 1}", "bad_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'[{"a": 1}, {"b": 2}]', "not_an_object"),
    ],
)
def test_a_broken_element_is_one_reject(element: bytes, reason: str) -> None:
    content = b'[{"first": 1},\n  ' + element + b',\n  {"last": 2}]'
    found = read(content)
    assert found.records == [{"first": 1}, {"last": 2}]
    assert found.rejects == [(17, reason, element.decode("utf-8", "replace")[:1000])]
    assert found.offsets == [1, content.index(b'{"last"')]


def test_nothing_between_commas_is_a_blank_line() -> None:
    found = read(b'[{"a": 1},, {"b": 2},\n]')
    assert (found.records, found.rejects) == ([{"a": 1}, {"b": 2}], [])
    for empty in (b"[]", b"[ \n ]\n", b" \n"):
        found = read(empty)
        assert (found.records, found.rejects) == ([], [])
    assert read(b"") == Found()


@pytest.mark.parametrize(
    ("content", "place", "found"),
    [
        (b'[{"a": 1}, {"b": 2', 10, "no end of the list follows (is a quote or bracket missing?)"),
        (b'[{"a": 1}, {"b": "2},\n {"c": 3}]', 10, "no end of the list follows"),
        (b'[{"a": 1}, {"b": 2}}, {"c": 3}]', 19, "found ', {\"c\": 3}]' after the list"),
        (b'[{"a": 1}], {"b": 2}]', 9, "found ', {\"b\": 2}]' after the list"),
        (b"[" * 100_000, 0, "no end of the list follows"),
    ],
)
def test_uncertain_borders_are_an_error(content: bytes, place: int, found: str) -> None:
    for block_bytes in (1 << 20, 1):
        with pytest.raises(InputError) as error:
            read(content, block_bytes)
        assert str(error.value).startswith(f"'{NAME}', byte {place}: ")
        assert "mend it, leave it out, or name it .jsonl" in str(error.value)
    with pytest.raises(InputError) as error:
        read(content)
    assert found in str(error.value)


def test_jsonl_under_the_name_json_stays_jsonl() -> None:
    content = b'{"a": 1}\n{"b": [2\n\n{"c": "3}\nnope\n{"d": 4}\r\n'
    assert lines_of(content) == content
    found = read(content)
    assert found.records == [{"a": 1}, {"d": 4}]
    assert [reason for _, reason, _ in found.rejects] == ["bad_json"] * 3


@pytest.mark.parametrize("content", [b"17\n", b'"text"\n{"a": 1}\n', "[{}]".encode("utf-16"), b"\x00\x01\n"])
def test_no_list_and_no_object_is_read_line_by_line(content: bytes) -> None:
    assert lines_of(content) == content
    assert read(content).rejects
