"""The rows of a shard, many at a time."""

from collections.abc import Iterator, Sequence

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Column
from beam_prep.formats import ShardReader
from beam_prep.formats.contract import ColumnsReader, Row

VALUES_AT_ONCE = 1 << 20
"""Values of all columns of a part; a row that has more is a part of its own."""


def parts_of(reader: ShardReader, columns: Sequence[Column]) -> Iterator[dict[str, Ragged]]:
    """All rows in order.

    Raises:
        FormatError: a row is damaged.
    """
    if isinstance(reader, ColumnsReader):  # their columns are arrays
        ends = offsets_of(reader.sizes())
        start = 0
        while start < len(reader):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + VALUES_AT_ONCE, "right")) - 1)
            yield reader.rows(start, stop)
            start = stop
        return
    held: list[Row] = []
    size = 0
    for index in range(len(reader)):
        held.append(reader.row(index))
        size += sum(len(values.flat if isinstance(values, Ragged) else values) for values in held[-1].values())
        if size >= VALUES_AT_ONCE:
            yield _joined(held, columns)
            held, size = [], 0
    if held:
        yield _joined(held, columns)


def _joined(rows: Sequence[Row], columns: Sequence[Column]) -> dict[str, Ragged]:
    return {column.name: _column([row[column.name] for row in rows], column.levels) for column in columns}


def _column(rows: Sequence[Ragged | Array], depth: int) -> Ragged:
    values: Array = np.concatenate([row.flat if isinstance(row, Ragged) else row for row in rows])
    if depth == 1:
        return Ragged.from_lengths(values, [len(row) for row in rows])
    inner = np.concatenate([row.lengths for row in rows if isinstance(row, Ragged)])
    return Ragged.from_lengths(Ragged.from_lengths(values, inner), [len(row) for row in rows])
