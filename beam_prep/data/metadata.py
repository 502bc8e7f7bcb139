"""Metadata from records to rows, beside their tokens: strings, numbers, and where a line begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column

MetadataType = Literal["string", "int32", "int64", "float32", "float64", "bool"]
"""The type of a field that is kept as metadata."""

FILE, OFFSET = Column("file", "int32", 0, "file"), Column("offset", "int64", 0, "offset")
"""The columns of provenance: the number of the file in the manifest's `inputs`, and the byte at which the line begins
in it; of a table: the rows before it. In the token cache they count from the block, so that equal blocks of several
files are equal: see `placed`."""

MISSING = "keep_fields_missing"
"""The counter of strings that are empty because the record does not have them."""


def metadata_column(name: str, kind: MetadataType) -> Column:
    """The column of a field."""
    return Column(name, "uint8", 0, "string") if kind == "string" else Column(name, kind, 0, "number")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of a block's records that are kept as metadata, by line.

    Attributes:
        columns: of each field, in order.
        values: field -> a value for each line of the block; lines that are no record have an empty string, or 0.
        missing: int64 [lines]: strings that the record does not have.
        problems: line -> why a value of it cannot be carried.
    """

    columns: tuple[Column, ...]
    values: Mapping[str, Ragged]
    missing: Array
    problems: Mapping[int, str] = field(default_factory=dict)


def placed(rows: Mapping[str, Ragged], file: int, first_byte: int) -> dict[str, Ragged]:
    """Rows of a block with the provenance that they have in the input.

    Args:
        rows: as the token cache has them.
        file: of the block.
        first_byte: of the block's first line in that file; of a table: its first row.
    """
    first = {FILE.name: file, OFFSET.name: first_byte}
    return {**rows, **{name: rows[name].with_flat(rows[name].flat + count) for name, count in first.items()}}


def one_each(values: Array) -> Ragged:
    """Numbers as rows of one."""
    return Ragged(values, np.arange(len(values) + 1))


def metadata_value(column: Column, value: Array | Ragged) -> Any:
    """The value of a row: a str, an int or a float; of a packed row a list of str, or an array of numbers."""
    if column.role != "string":
        return value if column.depth or isinstance(value, Ragged) else value[0].item()
    return [_text(each) for each in value] if isinstance(value, Ragged) else _text(value)


def metadata_values(column: Column, rows: Ragged) -> Any:
    """The values of rows: a list of str, or an array of numbers; of packed rows a list of the values of each."""
    if column.depth:
        return [metadata_value(column, row) for row in rows]
    return [_text(row) for row in rows] if column.role == "string" else rows.flat


def _text(value: Array | Ragged) -> str:
    # The bytes of a damaged file may be no UTF-8; `verify` says so.
    return np.asarray(value).tobytes().decode(errors="replace")
