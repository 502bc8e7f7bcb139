"""Records without order: one file of lines, whatever the order of arrival, the buckets and the blocks."""

import datetime
import enum
import itertools
import json
import uuid
from typing import Any, NamedTuple

import apache_beam as beam
import hypothesis.strategies as st
import numpy as np
import orjson
import pandas as pd
import pytest
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from hypothesis import example, given

import beam_prep as bp
from beam_prep.data.hashing import tree_digest
from beam_prep.errors import InputError
from beam_prep.reading.collection import MOST_BUCKETS, blocks, bucket_of, encode_record, line_size
from beam_prep.reading.records import MAX_DEPTH, Records

ONE = 1
"""One bucket."""


def read(elements: list[Any], buckets: int = ONE, block_bytes: int = 1 << 20, **limits: int) -> list[Records]:
    """The blocks of all buckets, in order."""
    grouped: dict[int, list[bytes]] = {}
    for element in elements:
        encoded = encode_record(element, **limits)
        grouped.setdefault(bucket_of(encoded, buckets), []).append(encoded)
    sizes = {bucket: sum(map(line_size, group)) for bucket, group in grouped.items()}
    found = (blocks(group, sizes, buckets, block_bytes) for group in sorted(grouped.items()))
    return [*itertools.chain.from_iterable(found)]


def rows(*elements: Any) -> list[Any]:
    return [row for block in read([*elements]) for row in block.rows]


def refused(element: Any) -> tuple[str, str, str]:
    """(reason, message, text) of an element that is a reject."""
    (block,) = read([element])
    assert len(block) == 0
    ((line, reason),) = bp.testing.rejects(block)
    return reason, block.ledger.messages[line], block.ledger.text(line)


def content(found: list[Records]) -> Any:
    """What the blocks say of the file: its lines with their places, its size, its digest."""
    lines: list[Any] = []
    end = 0
    for block in found:
        assert block.origin.start == end
        end += block.origin.size
        assert block.origin.size == len(block.ledger.raw)
        reasons = dict(bp.testing.rejects(block))
        for line, start in enumerate(block.ledger.starts.tolist()):
            why = (reasons.get(line), block.ledger.messages.get(line))
            lines.append((block.origin.first_byte + start, block.ledger.text(line), why))
    assert {block.origin.source.size for block in found} <= {end}
    return lines, tree_digest(node for block in found for node in block.origin.nodes)


SAID = st.text(max_size=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SAID
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAID, inner, max_size=3))
RECORDS = st.dictionaries(SAID, NESTED, max_size=3)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [3, None, "text", b"", {"a": b"1"}, {"a": {1}}, {1: 2}, {"a": float("nan")}, {"a": "\ud800"}, {"\udfff": 1}, [{}]]
)


@given(
    elements=st.lists(RECORDS | ODD, max_size=20).flatmap(lambda all: st.permutations([*all, *all[:3]])),
    buckets=st.sampled_from([1, 2, 16, 256]),
    block_bytes=st.integers(1, 200),
)
@example(elements=[], buckets=4, block_bytes=1)
def test_order_buckets_and_blocks_change_nothing(elements: list[Any], buckets: int, block_bytes: int) -> None:
    found = read(elements, buckets, block_bytes)
    assert content(found) == content(read(elements[::-1])) or not elements
    assert sum(len(block.ledger.starts) for block in found) == len(elements)
    assert all(block.origin.size - len(block.ledger.raw.splitlines()[-1]) - 1 < block_bytes for block in found)


@given(st.lists(RECORDS, max_size=8))
def test_every_record_comes_back_as_it_was(records: list[dict[str, Any]]) -> None:
    def texts(found: list[Any]) -> list[str]:
        return sorted(map(json.dumps, found))  # with the order of keys, and 1 apart from 1.0 and True

    assert texts(rows(*records)) == texts(records)


def test_lines_are_in_the_order_of_digests_of_records_with_sorted_keys() -> None:
    one, other = {"a": 1, "b": [{"c": 1, "d": 2}]}, {"b": [{"d": 2, "c": 1}], "a": 1}
    assert encode_record(one)[:16] == encode_record(other)[:16]
    assert encode_record(one)[16:] == orjson.dumps(one)
    assert list(map(list, rows(other, one))) == [["a", "b"], ["b", "a"]]  # its keys stay in their order


class Point(NamedTuple):
    x: int
    place: Any


class Colour(enum.Enum):
    RED = "red"


MOMENT = datetime.datetime(2026, 3, 1, 12, 30, 0, 250, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (MOMENT, "2026-03-01T12:30:00.000250+00:00"),
        (pd.Timestamp("2026-03-01"), "2026-03-01T00:00:00"),
        (Timestamp(0), "1970-01-01T00:00:00Z"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Point(1, Point(2, None)), {"x": 1, "place": {"x": 2, "place": None}}),
        (beam.Row(a=1, b=[beam.Row(c="d")]), {"a": 1, "b": [{"c": "d"}]}),
        (Colour.RED, "red"),
        (np.arange(3, dtype=np.int32), [0, 1, 2]),
        (np.bool_(True), True),
    ],
)
def test_what_json_lacks_has_its_form(value: Any, found: Any) -> None:
    """With a null beside it, too: such records take another way."""
    assert rows({"value": value}) == [{"value": found}]
    assert rows({"value": value, "null": None}) == [{"value": found, "null": None}]
    assert type(rows({"value": value})[0]["value"]) is type(found)


def test_integers_beyond_64_bits_change_nothing_else_of_a_line() -> None:
    (block,) = read([{"b": "é", "a": 10**20}])
    assert block.ledger.text(0) == '{"b":"é","a":100000000000000000000}'


@pytest.mark.parametrize(
    ("element", "reason", "message", "text"),
    [
        ({"id": 7, "image": b"\xff"}, "not_json", "field 'image' is of type bytes", '{"id": 7, "image": "<bytes>"}'),
        ({"a": [1, {"b": {2}}]}, "not_json", "field 'a[1].b' is of type set", '{"a": [1, {"b": "<set>"}]}'),
        ({"a": float("nan")}, "not_json", "field 'a' is nan", '{"a": "<float>"}'),
        ({"a": MIN_TIMESTAMP}, "not_json", "of type Timestamp", '{"a": "<Timestamp>"}'),
        ({"a": {1: "x"}}, "not_json", "a key of field 'a' is of type int", '{"a": {"<int>": "x"}}'),
        ({"a": "x\ud800"}, "bad_text", "half of a surrogate pair: ", '{"a":"x\\ud800"}'),
        ({"a": 10**400}, "bad_number", "field 'a' is beyond a double", '{"a": "<int>"}'),
        ([{"a": 1}], "not_an_object", "the element is of type list, wanted a dict or a Row", '[{"a": 1}]'),
    ],
)
def test_what_json_cannot_hold_is_a_reject(element: Any, reason: str, message: str, text: str) -> None:
    found = refused(element)
    assert (found[0], found[2]) == (reason, text)
    assert message in found[1]


def nested(levels: int) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for _ in range(levels - 1):
        record = {"a": record}
    return record


def test_records_are_as_deep_as_lines_may_be() -> None:
    assert rows(nested(MAX_DEPTH)) == [nested(MAX_DEPTH)]
    assert refused(nested(MAX_DEPTH + 1))[0] == "too_deep"
    itself: dict[str, Any] = {}
    itself["a"] = itself
    assert refused(itself)[:2] == ("too_deep", f"the record is nested deeper than {MAX_DEPTH} levels")


def test_a_record_that_is_too_long_is_a_reject_with_its_beginning() -> None:
    ends = [{"text": "x" * 100 + end} for end in "ba"]
    (block,) = read([{"text": "short"}, *ends, *ends], max_line_bytes=100, shown_bytes=20)
    assert [*block.rows] == [{"text": "short"}]
    assert len(block.ledger.starts) == 5
    messages = set(block.ledger.messages.values())
    assert messages == {"the record has more than 100 bytes as JSON"}
    assert {block.ledger.text(line) for line in block.ledger.messages} == {'{"text":"xxxxxxxxxxx'}


def test_records_that_differ_from_run_to_run_of_the_source_end_the_job() -> None:
    encoded = [encode_record({"n": n}) for n in range(3)]
    sizes = {0: sum(map(line_size, encoded))}
    for other in ([*encoded, encoded[0]], encoded[1:]):
        with pytest.raises(InputError, match=rf"has \d+ bytes, wanted {sizes[0]}: the source gave other records"):
            list(blocks((0, other), sizes, ONE, 100))
    with pytest.raises(InputError, match="wanted 0"):
        list(blocks((0, encoded), {}, MOST_BUCKETS, 100))
