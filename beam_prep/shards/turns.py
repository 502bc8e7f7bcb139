"""Turns apart: a record that is several rows is one row of the token cache, with their lengths beside it.

So whatever takes or places records (the plan, splits, deduplication, mixes, a shuffle) has a record's rows together.
They become rows again when a shard is written.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.tokens.batch import Batch

ROW_LENGTHS = Column("row_lengths", "int32", 1, "rows")
"""The column of the token cache that has the tokens of each row of a record."""


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Statistics of turns apart. They add up over parts of a shard.

    Attributes:
        rows: records that came in.
        turns: rows that were made of them.
    """

    rows: int = 0
    turns: int = 0

    def __add__(self, other: "TurnStats") -> "TurnStats":
        return TurnStats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def join_rows(batch: Batch) -> Batch:
    """One row for each record: its rows, one after the other, with `ROW_LENGTHS`. Counters are added up.

    Raises:
        ValueError: a column is not one value a token.
    """
    lengths = batch.tokens
    if not all(rows.depth == 1 and np.array_equal(rows.lengths, lengths) for rows in batch.columns.values()):
        raise ValueError("records of several rows have one value a token in each column")
    line, first = np.unique(batch.line, return_index=True)
    borders = np.append(first, len(batch))
    columns = {name: Ragged(rows.flat, rows.offsets[borders]) for name, rows in batch.columns.items()}
    columns[ROW_LENGTHS.name] = Ragged(lengths.astype(np.int32), borders)
    return batch._with(
        line=line.astype(np.int32),
        domain=[batch.domain[row] for row in first.tolist()],
        columns=columns,
        schema={**batch.schema, ROW_LENGTHS.name: ROW_LENGTHS},
        counters={name: np.diff(offsets_of(counts)[borders]) for name, counts in batch.counters.items()},
        row=None,
    )


def lengths_of(columns: Mapping[str, Ragged], tokens: Array) -> tuple[Array, Array]:
    """(tokens of each row to write, the row of the token cache that it is of), int64 [rows] each.

    Args:
        columns: of rows of the token cache.
        tokens: int64, of each.
    """
    rows = columns.get(ROW_LENGTHS.name)
    if rows is None:
        return tokens, np.arange(len(tokens))
    return rows.flat.astype(np.int64), np.repeat(np.arange(len(rows)), rows.lengths)


def split_rows(
    columns: Mapping[str, Ragged], schema: Mapping[str, Column], cut: Array | None
) -> tuple[dict[str, Ragged], Array | None, TurnStats]:
    """The rows of records, and for each the tokens that were cut from it (of a record: from its first row).

    Args:
        columns: of rows of the token cache, with `ROW_LENGTHS`.
        schema: of the others, by name.
        cut: int64 [rows of the token cache]; None: none were.
    """
    lengths, record = lengths_of(columns, np.zeros(0, np.int64))
    offsets = offsets_of(lengths)
    rows = {
        name: found.take(record) if schema[name].metadata else Ragged(found.flat, offsets)
        for name, found in columns.items()
        if name != ROW_LENGTHS.name
    }
    if cut is not None:
        cut = np.where(np.diff(record, prepend=-1) > 0, cut[record], 0)
    return rows, cut, TurnStats(len(columns[ROW_LENGTHS.name]), len(lengths))
