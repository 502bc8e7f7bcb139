"""Metadata columns beside the tokens: strings and numbers of records, and the place of a row's line in the input."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column

MetadataType = Literal["string", "int32", "int64", "float32", "float64", "bool"]
"""The type of a metadata column."""

FILE, OFFSET = Column("file", "int32", 0, "file"), Column("offset", "int64", 0, "offset")
"""The columns of provenance: the index of the file in the manifest's `inputs`, and the byte offset of the line in it
(of a table: the rows before it). In the token cache, they count from the block, so that equal blocks of several files
are equal: see `placed`."""

MISSING = "keep_fields_missing"
"""The counter of strings that are empty because the record lacks the field."""


def metadata_column(name: str, kind: MetadataType) -> Column:
    """The column of a field."""
    return Column(name, "uint8", 0, "string") if kind == "string" else Column(name, kind, 0, "number")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of a block's records that become metadata columns, by line.

    Attributes:
        columns: the column of each field, in order.
        values: field -> a value for each line of the block; lines that are no record have an empty string, or 0.
        missing: int64 [lines]: number of string fields that the record lacks.
        problems: line -> why one of its values does not fit its column.
    """

    columns: tuple[Column, ...]
    values: Mapping[str, Ragged]
    missing: Array
    problems: Mapping[int, str] = field(default_factory=dict)


def placed(rows: Mapping[str, Ragged], file: int, first_byte: int) -> dict[str, Ragged]:
    """The rows of a block, with provenance in the input.

    Args:
        rows: from the token cache.
        file: index of the block's file.
        first_byte: offset of the block's first line in the file; of a table: its first row.
    """
    first = {FILE.name: file, OFFSET.name: first_byte}
    return {**rows, **{name: rows[name].with_flat(rows[name].flat + count) for name, count in first.items()}}


def one_each(values: Array) -> Ragged:
    """Numbers as rows of one value each."""
    return Ragged(values, np.arange(len(values) + 1))


def metadata_value(column: Column, value: Array | Ragged) -> Any:
    """The value of a row: a str, int or float; of a packed row, a list of str or an array of numbers."""
    if column.role != "string":
        return value if column.depth or isinstance(value, Ragged) else value[0].item()
    return [_text(each) for each in value] if isinstance(value, Ragged) else _text(value)


def metadata_values(column: Column, rows: Ragged) -> Any:
    """The values of rows: a list of str or an array of numbers; of packed rows, a list with the values of each row."""
    if column.depth:
        return [metadata_value(column, row) for row in rows]
    return [_text(row) for row in rows] if column.role == "string" else rows.flat


def _text(value: Array | Ragged) -> str:
    # The bytes of a damaged file may be no UTF-8; `verify` reports that.
    return np.asarray(value).tobytes().decode(errors="replace")
