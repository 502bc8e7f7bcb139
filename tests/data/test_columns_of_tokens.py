"""Columns by role: what is no value of a token is neither packed, padded nor cut; where no loss is, each says so."""

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

import beam_prep as bp
from beam_prep.data.schema import METADATA_ROLES, NO_LOSS, OF_RECORDS, Column
from beam_prep.readers.collate import collate
from beam_prep.readers.dataset import packed_columns
from beam_prep.shards.layout import Chunking
from beam_prep.tokens.rows import Padding

IDS = Column("input_ids", "int32", 1, "ids")
ROLES = get_args(get_type_hints(Column)["role"])


class Rows:
    """A dataset of these columns, as far as a packed view looks at them."""

    path = "out"

    def __init__(self, schema: tuple[Column, ...]) -> None:
        self.schema = schema


JOINING: dict[str, Callable[[tuple[Column, ...]], Any]] = {
    "packing": lambda columns: bp.Layout("bfd").columns(columns),
    "positions": lambda columns: bp.Layout(position_ids="doc_reset").columns(columns),
    "chunks": lambda columns: bp.Layout(chunking=Chunking(4)).columns(columns),
    "padding": lambda columns: Padding(4, 0).check({column.name: column for column in columns}),
    "a packed view": lambda columns: packed_columns(Rows(columns)),  # type: ignore[arg-type]
    "a packed batch": lambda columns: collate(columns, packed=True),
}


APART = [Column("more", "uint8", 1, role) for role in ROLES if {role} <= {*OF_RECORDS} - {*METADATA_ROLES}]


@pytest.mark.parametrize("column", [*APART, Column("more", "int32", 2, "mask", "input_ids")])
@pytest.mark.parametrize("how", JOINING)
def test_lists_and_what_belongs_to_a_record_are_not_joined_with_tokens(how: str, column: Column) -> None:
    with pytest.raises(ValueError, match=r"lists or values|no value for each token"):
        JOINING[how]((IDS, column))


CARRIED = [Column("more", "uint8", 0, role) for role in ROLES if role in METADATA_ROLES]
DTYPES = {"weights": "float32"}
FOR_LOSS = [Column("more", DTYPES.get(role, "int32"), 1, role, "input_ids") for role in ROLES if role in NO_LOSS]


@pytest.mark.parametrize("column", [*CARRIED, *FOR_LOSS])
@pytest.mark.parametrize("how", JOINING)
def test_what_is_carried_along_or_needed_for_the_loss_stays_beside_the_tokens(how: str, column: Column) -> None:
    JOINING[how]((IDS, column))


def test_of_every_role_it_is_decided_whose_its_values_are() -> None:
    of_tokens = {"ids", "mask", "labels", "weights", "token_value", "attention", "position", "lengths"}
    assert {role for role in ROLES if Column("more", "int32", 1, role).of_tokens} == of_tokens
    assert of_tokens | {*OF_RECORDS} == {*ROLES}
