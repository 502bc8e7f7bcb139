"""Fields that are kept as metadata."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.schema import Metadata, MetadataType
from beam_prep.reading.keys import keep_fields
from beam_prep.reading.records import Records

STRINGS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["", "\0", "a\0b", "😀", "x" * 100_000, "\u2028", '"\\', "\ufeff"]),
)


def metadata(records: Records, kind: MetadataType) -> Metadata:
    found = keep_fields(records, {"id": kind}).ledger.metadata
    assert found is not None
    return found


@given(st.lists(STRINGS, min_size=1, max_size=5))
def test_a_string_is_carried_as_it_is(values: list[str]) -> None:
    records = bp.testing.records([{"id": value} for value in values])
    found = metadata(records, "string")
    assert [bytes(np.asarray(value)).decode() for value in found.values["id"]] == values
    assert not found.problems


@pytest.mark.parametrize(("value", "text"), [(2**80, str(2**80)), (True, "true"), (-0.0, "-0.0"), (None, "")])
def test_a_number_in_a_column_of_strings_is_its_json(value: Any, text: str) -> None:
    found = metadata(bp.testing.records([{"id": value}]), "string")
    assert bytes(np.asarray(found.values["id"][0])).decode() == text
    assert found.missing.tolist() == [int(value is None)]


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([1], "string", "field 'id' is a list, wanted a string or a number"),
        (True, "int64", "field 'id' is a boolean (true), wanted a number (int64)"),
        (2, "bool", "field 'id' is a number (2), wanted true or false"),
        (None, "float32", "field 'id' is absent or null, wanted a number (float32)"),
        (1.5, "int64", "field 'id' is a number (1.5), wanted an integer that int64 holds"),
        (2**31, "int32", "field 'id' is a number (2147483648), wanted an integer that int32 holds"),
        (1e300, "float32", "field 'id' is a number (1e+300), wanted a number that float32 holds"),
    ],
)
def test_what_a_column_cannot_hold_is_said(value: Any, kind: MetadataType, message: str) -> None:
    assert metadata(bp.testing.records([{"id": value}]), kind).problems == {0: message}
