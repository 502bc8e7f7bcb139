"""Rows of Arrow as lines of JSON: what the JSON would have, or a line that is rejected."""

import itertools
import json
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import orjson
import pyarrow as pa
import pytest
from hypothesis import given

from beam_prep.data.block import InputFile
from beam_prep.reading.records import RawBlock, Records, parse
from beam_prep.reading.tables import lines_of, schema_problem, values

SOURCE = InputFile("x.parquet", 1, 0.0)


def listed(inner: pa.Array, sizes: list[int]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, *itertools.accumulate(sizes)], pa.int32()), inner)


TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.int32(), [2, 3]), pa.array([range(6), None], pa.list_(pa.int32(), 6))
)


def written(array: pa.Array) -> Any:
    assert schema_problem(pa.schema([("a", array.type)])) is None
    return json.loads(orjson.dumps(values(array)))


def parsed(rows: pa.RecordBatch) -> Records:
    lines = list(lines_of(rows))
    data = b"".join(line + b"\n" for line, _ in lines)
    raw = RawBlock(0, len(data), 0, data, b"")
    refused = tuple((place, *problem) for place, (_, problem) in enumerate(lines) if problem is not None)
    return parse(raw, replace(raw.origin(0, SOURCE, 65536), refused=refused), by_row=True)


def without_nulls(value: Any) -> Any:
    """As the module's docstring says it, in other words."""
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None or name == "content"}
    return value


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": texts, "content": texts | st.none()},
        optional={"calls": st.lists(st.fixed_dictionaries({"name": texts}, optional={"count": st.integers(0, 9)}))},
    ),
    max_size=3,
)
records = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "messages": messages | st.none(),
            "text": texts | st.none(),
            "score": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
            "number": st.integers(-(2**63), 2**63 - 1),
            "flags": st.lists(st.booleans() | st.none(), max_size=3),
        },
    ),
    min_size=1,
    max_size=6,
)


CALL = pa.struct([("name", pa.string()), ("count", pa.int8())])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("calls", pa.list_(CALL))])
PLAIN = {"text": pa.string(), "score": pa.float64(), "number": pa.int64(), "flags": pa.list_(pa.bool_())}
TYPES = pa.schema({"messages": pa.list_(MESSAGE), **PLAIN})


@given(records, st.integers(0, 3))
def test_lines_are_the_records_without_the_nulls_that_fill_columns(rows: list[dict[str, Any]], first: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=TYPES)
    found = [json.loads(line) for line, _ in lines_of(batch.slice(first))]
    columns = [{name: row.get(name) for name in TYPES.names} for row in rows]
    assert found == without_nulls(columns)[first:]


PAIRS = [None, [3, None], [4, 5], [4, 5]]
VIEWS = pa.array(["a", "b"], pa.string_view())
LARGE = pa.large_list(pa.struct([("content", pa.large_string()), ("n", pa.uint16())]))


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([3], pa.timestamp("us", "Europe/Berlin")), ["1970-01-01 00:00:00.000003Z"]),
        (pa.array([b"abc", None]), [{"binary": 3}, None]),
        (pa.array([b"a", b"b", None], pa.binary(1))[1:], [{"binary": 1}, None]),
        (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
        (pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int8())), [{"a": 1, "b": None}, None]),
        (pa.array([[1, 2], *PAIRS], pa.list_(pa.int8(), 2))[1:], PAIRS),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), VIEWS), ["b", None, "a"]),
        (pa.array([None, [{"content": "a"}, {"n": 1}]], LARGE), [None, [{"content": "a"}, {"n": 1}]]),
        (pa.array(['{"a": [1, null]}', '"x"', None, "[\n1]"], pa.json_()), [{"a": [1, None]}, "x", None, [1]]),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None, 2], pa.int8())), [True, False, None, True]),
        (pa.array([uuid.UUID(int=5).bytes, None], pa.uuid()), ["00000000-0000-0000-0000-000000000005", None]),
        (TENSORS, [[0, 1, 2, 3, 4, 5], None]),
        (pa.array([1500000, -1], pa.duration("us")), ["0:00:01.500000", "-1 day, 23:59:59.999999"]),
        (pa.array([Decimal("1.20")], pa.decimal256(50, 2)), [1.2]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_each_type_has_its_json(array: pa.Array, wanted: list[Any]) -> None:
    assert written(array) == wanted


def test_content_of_arguments_is_a_name_as_any_other() -> None:
    said = [{"role": "user", "content": None}, {"role": None, "content": None, "x": 1}]
    assert written(pa.array(said)) == [{"role": "user", "content": None}, {"x": 1}]


def test_decimals_keep_their_digits() -> None:
    array = pa.array([Decimal("12345678901234567890123.10"), None], pa.decimal128(38, 2))
    assert orjson.dumps(values(array)) == b"[12345678901234567890123.10,null]"


MAP = pa.map_(pa.string(), pa.int8())
EXTRA = "Extra data: line 1 column 4 (char 3)"


def _not_utf8() -> pa.Array:
    offsets, data = pa.py_buffer(b"\0\0\0\0\4\0\0\0\6\0\0\0"), pa.py_buffer(b'a\xff"\nok')
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])


@pytest.mark.parametrize(
    ("array", "reason", "said"),
    [
        (_not_utf8(), "invalid_utf8", "byte 1 of the text is no UTF-8 (invalid start byte)"),
        (pa.array([-(2**61), 1], pa.timestamp("s")), "not_json", "value out of range: -2305843009213693952"),
        (pa.array([[("a", 1), ("a", 2)], []], MAP), "duplicate_key", "the key 'a' is twice in a map"),
        (pa.array(['"a","b":1', "1"], pa.json_()), "bad_json", f"its JSON is refused, {EXTRA}"),
    ],
    ids=["bytes", "time", "map", "json"],
)
def test_what_json_cannot_say_is_one_reject(array: pa.Array, reason: str, said: str) -> None:
    found = parsed(pa.record_batch({"good": [1, 2], "text": array}))
    assert found.line.tolist() == [1]
    assert [found.ledger.outcomes[code - 1] for code in found.ledger.status[:1]] == [("rejected", reason)]
    assert found.ledger.messages == {0: f"column 'text': {said}"}


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (pa.list_(pa.month_day_nano_interval()), "column 'a' is of type month_day_nano_interval, which JSON does not"),
        (pa.list_view(pa.int8()), "column 'a' is of type list_view<item: int8>, which JSON does not have"),
        (pa.map_(pa.int8(), pa.int8()), "column 'a' is a map with keys of type int8, wanted texts"),
        (pa.struct([("x", pa.int8()), ("x", pa.int8())]), "column 'a' has two members of the name 'x'"),
    ],
    ids=["interval", "view", "map", "twice"],
)
def test_what_no_json_has_is_a_problem_of_the_table(kind: pa.DataType, problem: str) -> None:
    assert problem in str(schema_problem(pa.schema([("good", pa.string()), ("a", kind)])))


def test_columns_of_one_name_are_a_problem() -> None:
    assert schema_problem(pa.schema([("a", pa.int8()), ("a", pa.int8())])) == "two columns have the name 'a'"


def test_a_table_without_columns_has_empty_records() -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert list(lines_of(rows)) == [(b"{}", None), (b"{}", None)]
