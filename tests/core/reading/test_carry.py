"""Fields that are carried along: what they become does not depend on how a block is parsed."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.core.data.block import InputFile
from beam_prep.core.data.carried import Carried, CarryType
from beam_prep.core.data.columns import Wanted
from beam_prep.core.reading.blocks import RawBlock
from beam_prep.core.reading.carry import carry_fields
from beam_prep.core.reading.records import Records, parse

STRINGS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["", "\0", "a\0b", "😀", "x" * 100_000, "\u2028", '"\\', "\ufeff"]),
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -0.0, 1.0, 1.5, 1e16, 1e300, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 1e-400]),
    st.floats(allow_nan=False, allow_infinity=False),
)
TYPES: tuple[CarryType, ...] = ("string", "int32", "int64", "float32", "float64")


def read(lines: list[str], wanted: Wanted | None) -> Records:
    data = "".join(line + "\n" for line in lines).encode()
    raw = RawBlock(0, len(data), 0, data, b"")
    return parse(raw, raw.origin(0, InputFile("x.jsonl", len(data), 0.0), 65536), wanted)


def carried(records: Records, kind: CarryType) -> Carried:
    found = carry_fields(records, {"id": kind}).ledger.carried
    assert found is not None
    return found


@pytest.mark.parametrize("kind", TYPES)
@given(
    values=st.one_of(
        st.lists(st.one_of(STRINGS, st.none()), min_size=1, max_size=6),
        st.lists(NUMBERS, min_size=1, max_size=6),
        st.lists(st.one_of(STRINGS, NUMBERS, st.none(), st.booleans(), st.just([1])), min_size=1, max_size=6),
    ),
    blank=st.booleans(),
)
def test_columns_and_objects_carry_the_same_bytes(kind: CarryType, values: list[Any], blank: bool) -> None:
    lines = [json.dumps({"text": "a", "id": value}) for value in values]
    lines = ["", *lines] if blank else lines
    one, other = (carried(read(lines, wanted), kind) for wanted in (Wanted("texts", "text"), None))
    assert one.columns == other.columns
    assert one.problems == other.problems
    assert one.missing.tolist() == other.missing.tolist()
    mine, theirs = one.values["id"], other.values["id"]
    assert mine.offsets.tolist() == theirs.offsets.tolist()
    assert (mine.flat.dtype, mine.flat.tobytes()) == (theirs.flat.dtype, theirs.flat.tobytes())


@given(st.lists(STRINGS, min_size=1, max_size=5))
def test_a_string_is_carried_as_it_is(values: list[str]) -> None:
    records = bp.testing.records([{"id": value} for value in values])
    found = carried(records, "string")
    assert [bytes(np.asarray(value)).decode() for value in found.values["id"]] == values
    assert not found.problems


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (2**80, str(2**80)), (1.5, "1.5"), (True, "true"), (-0.0, "-0.0"), (None, "")]
)
def test_a_number_in_a_column_of_strings_is_its_json(value: Any, text: str) -> None:
    found = carried(bp.testing.records([{"id": value}]), "string")
    assert bytes(np.asarray(found.values["id"][0])).decode() == text
    assert found.missing.tolist() == [int(value is None)]


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([1], "string", "field 'id' is a list, wanted a string or a number"),
        ({"a": 1}, "string", "field 'id' is an object, wanted a string or a number"),
        ("7", "int64", "field 'id' is a string (\"7\"), wanted a number (int64)"),
        (True, "int64", "field 'id' is a boolean (true), wanted a number (int64)"),
        (None, "float32", "field 'id' is absent or null, wanted a number (float32)"),
        (1.5, "int64", "field 'id' is a number (1.5), wanted an integer that int64 holds"),
        (2**31, "int32", "field 'id' is a number (2147483648), wanted an integer that int32 holds"),
        (1e300, "float32", "field 'id' is a number (1e+300), which is beyond float32"),
    ],
)
def test_what_a_column_cannot_hold_is_said(value: Any, kind: CarryType, message: str) -> None:
    assert carried(bp.testing.records([{"id": value}]), kind).problems == {0: message}


def test_a_step_between_does_not_lose_what_is_carried() -> None:
    records = bp.testing.records([{"id": "a", "text": "x"}, {"id": "b", "text": "yy"}])
    kept = bp.FilterRecords(lambda record: len(record["text"]) > 1).step()(bp.Carry(["id"]).step()(records))
    found = kept.ledger.carried
    assert found is not None
    assert [bytes(np.asarray(value)).decode() for value in found.values["id"].take(kept.line)] == ["b"]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"field 'id' has type 'int8', wanted one of string, int32"):
        bp.Carry({"id": "int8"})
