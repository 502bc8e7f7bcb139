"""Cuts one row of the token cache into several rows of a shard: chunks, and turns apart.

Chunks: a document longer than the row limit becomes several rows. With a stride, each later chunk begins with the last
tokens of the previous chunk, as context. `stride` means the same as in Hugging Face's tokenizers: tokens that overlap.

Turns apart: the token cache holds a record of several rows as one row, with the row lengths beside it. So the plan,
splits, deduplication, mixes and the shuffle keep the rows of a record together. They become rows again when a shard is
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from beam_prep.data.ragged import Array, Ragged, join_pieces, offsets_of
from beam_prep.data.schema import NO_LOSS, Column
from beam_prep.shards.pack import check_aligned
from beam_prep.tokens.batch import Batch


@dataclass(frozen=True, slots=True)
class Chunking:
    """Cuts rows into chunks of `size` tokens. The last chunk of a row may be shorter.

    >>> chunking = bp.Chunking(size=4, stride=1)
    >>> ids, mask = bp.Column("sequence", "int32", 1, "ids"), bp.Column("loss_mask", "int32", 1, "mask", "sequence")
    >>> rows = {"sequence": bp.Ragged.from_lists([[1, 2, 3, 4, 5, 6]])}
    >>> rows["loss_mask"] = bp.Ragged.from_lists([[0, 1, 1, 1, 1, 1]])
    >>> chunks, stats = chunking.rows(rows, {"sequence": ids, "loss_mask": mask})
    >>> chunks["sequence"].to_lists(), chunks["loss_mask"].to_lists()
    ([[1, 2, 3, 4], [4, 5, 6]], [[0, 1, 1, 1], [0, 1, 1]])

    Attributes:
        size: tokens of a chunk.
        stride: tokens that a chunk repeats from the previous chunk. They are not trained again if the output has a
            mask or labels.
        keep_rows_without_loss: write chunks without a trained token.

    Raises:
        ValueError: `size` is less than 1, or `stride` is not from 0 to less than `size`.
    """

    size: int
    stride: int = 0
    keep_rows_without_loss: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}, wanted at least 1")
        if not 0 <= self.stride < self.size:
            raise ValueError(f"stride is {self.stride}, wanted 0 to {self.size - 1}, less than a chunk")

    def lengths(self, lengths: Array) -> tuple[Array, Array]:
        """(tokens of each chunk, the row it is cut from), int64 [chunks] each; `lengths`: tokens of each row."""
        row, start, stop = self._pieces(lengths)
        return stop - start, row

    def _pieces(self, lengths: Array) -> tuple[Array, Array, Array]:
        """int64 [chunks] each: row, start, stop. A chunk is the tokens [start, stop) of its row."""
        first = offsets_of(1 - (-np.maximum(lengths - self.size, 0) // (self.size - self.stride)))
        row = np.repeat(np.arange(len(lengths)), np.diff(first))
        start = (np.arange(first[-1]) - first[row]) * (self.size - self.stride)
        return row, start, np.minimum(start + self.size, lengths[row])

    def rows(
        self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]
    ) -> tuple[dict[str, Ragged], dict[str, int]]:
        """The chunks of all rows, in order, and counts, which can be added.

        `rows` that came in; `rows_split`: that became several chunks; `chunks` that were made; `chunks_untrained`:
        without a trained token, they are not written; `tokens_repeated`: tokens that a written chunk repeats from the
        previous chunk; `tokens_left_out`: tokens of chunks that are not written, repeated tokens not counted.

        Args:
            columns: name -> one list of values a row, of equal lengths in all columns; not empty. Metadata columns
                are repeated in every chunk of their row.
            schema: name -> column.

        Raises:
            ValueError: see `check_aligned`.
        """
        lengths = next(iter(columns.values())).lengths
        beside = {name: rows for name, rows in columns.items() if schema[name].metadata}
        columns = {name: rows for name, rows in columns.items() if name not in beside}
        check_aligned(columns, lengths)
        row, start, stop = self._pieces(lengths)
        starts, sizes = offsets_of(lengths)[row] + start, stop - start
        repeated, borders = np.where(start > 0, self.stride, 0), offsets_of(sizes)
        again = np.arange(borders[-1]) < np.repeat(borders[:-1] + repeated, sizes)
        chunks, trained = {}, np.zeros(len(row), bool)
        for name, rows in columns.items():
            chunk = Ragged(join_pieces(rows.flat, starts, sizes), borders)
            if (nothing := NO_LOSS.get(schema[name].role)) is not None:
                chunk = chunk.with_flat(np.where(again, chunk.flat.dtype.type(nothing), chunk.flat))
                if schema[name].role != "weights":  # a token with weight 0 still counts as trained
                    trained |= chunk.sums(chunk.flat != nothing) > 0
            chunks[name] = chunk
        chunks |= {name: rows.take(row) for name, rows in beside.items()}
        if self.keep_rows_without_loss or not any(column.role in NO_LOSS for column in schema.values()):
            trained[:] = True
        counts = {
            "rows": len(lengths),
            "rows_split": int(np.count_nonzero(np.bincount(row) > 1)),
            "chunks": len(row),
            "chunks_untrained": int(np.count_nonzero(~trained)),
            "tokens_repeated": int(repeated[trained].sum()),
            "tokens_left_out": int((sizes - repeated)[~trained].sum()),
        }
        if trained.all():
            return chunks, counts
        return {name: chunk.take(trained) for name, chunk in chunks.items()}, counts


# Turns apart

ROW_LENGTHS = Column("row_lengths", "int32", 1, "rows")
"""The column of the token cache that holds the length of each row of a record, in tokens."""


def join_rows(batch: Batch) -> Batch:
    """Joins the rows of each record into one row, and adds `ROW_LENGTHS`. Counters are added up.

    Raises:
        ValueError: see `check_aligned`.
    """
    lengths = batch.tokens
    check_aligned(batch.columns, lengths)
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
        roles=batch.roles.mapped(lambda rows: Ragged(rows.flat, rows.offsets[borders])),
        row=None,
    )


def lengths_of(columns: Mapping[str, Ragged], tokens: Array) -> tuple[Array, Array]:
    """(tokens of each row to write, its row in the token cache), int64 [rows] each.

    Args:
        columns: rows of the token cache, by column.
        tokens: int64, the tokens of each of these rows.
    """
    rows = columns.get(ROW_LENGTHS.name)
    if rows is None:
        return tokens, np.arange(len(tokens))
    return rows.flat.astype(np.int64), np.repeat(np.arange(len(rows)), rows.lengths)


def split_rows(
    columns: Mapping[str, Ragged], schema: Mapping[str, Column], cut: Array | None
) -> tuple[dict[str, Ragged], Array | None]:
    """Splits records into their rows: (columns, tokens cut from each row).

    Tokens that were cut from a record count for its first row.

    Args:
        columns: rows of the token cache, with `ROW_LENGTHS`.
        schema: name -> column, without `ROW_LENGTHS`.
        cut: int64 [rows of the token cache], tokens that were cut; None: no token was cut.
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
    return rows, cut
