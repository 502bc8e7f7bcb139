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
from beam_prep.shards.pack import Stats
from beam_prep.tokens.batch import Batch


@dataclass(frozen=True, slots=True)
class ChunkStats(Stats):
    """Statistics of chunks.

    Attributes:
        rows: rows that came in.
        rows_split: rows that became several chunks.
        chunks: chunks that were made.
        chunks_untrained: chunks without a trained token, which are not written.
        tokens_repeated: tokens that a written chunk repeats from the previous chunk.
        tokens_left_out: tokens of chunks that are not written, repeated tokens not counted.
    """

    rows: int = 0
    rows_split: int = 0
    chunks: int = 0
    chunks_untrained: int = 0
    tokens_repeated: int = 0
    tokens_left_out: int = 0


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

    def counts(self, lengths: Array) -> Array:
        """int64 [rows]: the number of chunks of each row, at least 1; `lengths`: tokens of each row."""
        return np.asarray(1 - (-np.maximum(lengths - self.size, 0) // (self.size - self.stride)))

    def lengths(self, lengths: Array) -> tuple[Array, Array]:
        """(tokens of each chunk, the row it is cut from), int64 [chunks] each; `lengths`: tokens of each row."""
        row, start, stop = self._pieces(lengths)
        return stop - start, row

    def _pieces(self, lengths: Array) -> tuple[Array, Array, Array]:
        """int64 [chunks] each: row, start, stop. A chunk is the tokens [start, stop) of its row."""
        first = offsets_of(self.counts(lengths))
        row = np.repeat(np.arange(len(lengths)), np.diff(first))
        start = (np.arange(first[-1]) - first[row]) * (self.size - self.stride)
        return row, start, np.minimum(start + self.size, lengths[row])

    def rows(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> tuple[dict[str, Ragged], ChunkStats]:
        """The chunks of all rows, in order.

        Args:
            columns: name -> one list of values a row, of equal lengths in all columns; not empty. Metadata columns
                are repeated in every chunk of their row.
            schema: name -> column.

        Raises:
            ValueError: a column has other lengths than the first, or is a list of lists.
        """
        lengths = next(iter(columns.values())).lengths
        beside = {name: rows for name, rows in columns.items() if schema[name].metadata}
        columns = {name: rows for name, rows in columns.items() if name not in beside}
        for name, rows in columns.items():
            if rows.depth != 1 or not np.array_equal(rows.lengths, lengths):
                raise ValueError(f"column {name!r} does not have one value a token: only one output can be chunked")
        row, start, stop = self._pieces(lengths)
        starts, sizes = offsets_of(lengths)[row] + start, stop - start
        repeated = np.where(start > 0, self.stride, 0)
        chunks, trained = {}, np.zeros(len(row), bool)
        for name, rows in columns.items():
            chunk = Ragged(join_pieces(rows.flat, starts, sizes), offsets_of(sizes))
            if (nothing := NO_LOSS.get(schema[name].role)) is not None:
                chunk = chunk.with_flat(_without_repeated(chunk, repeated, nothing))
                if schema[name].role != "weights":  # a token with weight 0 still counts as trained
                    trained |= chunk.sums(chunk.flat != nothing) > 0
            chunks[name] = chunk
        chunks |= {name: rows.take(row) for name, rows in beside.items()}
        stats = ChunkStats(
            rows=len(lengths),
            rows_split=int(np.count_nonzero(self.counts(lengths) > 1)),
            chunks=len(row),
            tokens_repeated=int(repeated.sum()),
        )
        if (
            self.keep_rows_without_loss
            or not any(column.role in NO_LOSS for column in schema.values())
            or trained.all()
        ):
            return chunks, stats
        kept = {name: chunk.take(trained) for name, chunk in chunks.items()}
        again = int(repeated[~trained].sum())
        left_out = int(sizes[~trained].sum()) - again
        bare = int(np.count_nonzero(~trained))
        return kept, stats + ChunkStats(chunks_untrained=bare, tokens_repeated=-again, tokens_left_out=left_out)


def _without_repeated(chunks: Ragged, repeated: Array, nothing: int) -> Array:
    """The values of all chunks. The first `repeated` values of each chunk become `nothing`."""
    if not repeated.any():
        return chunks.flat
    place = np.arange(len(chunks.flat)) - np.repeat(chunks.offsets[:-1], chunks.lengths)
    return np.where(place < np.repeat(repeated, chunks.lengths), chunks.flat.dtype.type(nothing), chunks.flat)


# Turns apart

ROW_LENGTHS = Column("row_lengths", "int32", 1, "rows")
"""The column of the token cache that holds the length of each row of a record, in tokens."""


@dataclass(frozen=True, slots=True)
class TurnStats(Stats):
    """Statistics of turns apart.

    Attributes:
        rows: records that came in.
        turns: rows that they became.
    """

    rows: int = 0
    turns: int = 0


def join_rows(batch: Batch) -> Batch:
    """Joins the rows of each record into one row, and adds `ROW_LENGTHS`. Counters are added up.

    Raises:
        ValueError: a column does not have one value a token.
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
) -> tuple[dict[str, Ragged], Array | None, TurnStats]:
    """Splits records into their rows: (columns, tokens cut from each row, statistics).

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
    return rows, cut, TurnStats(len(columns[ROW_LENGTHS.name]), len(lengths))
