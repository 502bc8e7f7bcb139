"""Chunks: a document that is longer than a row may be becomes several rows.

With a stride, each chunk but the first begins with the last tokens of the one before, as context. The name and its
meaning (tokens that overlap) are those of `stride` in Hugging Face's tokenizers.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import NO_LOSS, Column
from beam_prep.shards.pack import join_pieces


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """Statistics of chunks. They add up over parts of a shard.

    Attributes:
        rows: rows that came in.
        rows_split: of these, in several chunks.
        chunks: chunks that were made.
        chunks_untrained: of these, without a trained token, and therefore not written.
        tokens_repeated: tokens that a written chunk has again, from the one before.
        tokens_left_out: tokens of chunks that are not written, without those that they had again.
    """

    rows: int = 0
    rows_split: int = 0
    chunks: int = 0
    chunks_untrained: int = 0
    tokens_repeated: int = 0
    tokens_left_out: int = 0

    def __add__(self, other: "ChunkStats") -> "ChunkStats":
        return ChunkStats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Chunking:
    """Cuts rows into chunks, of which the last may be shorter.

    >>> chunking = bp.Chunking(size=4, stride=1)
    >>> ids, mask = bp.Column("sequence", "int32", 1, "ids"), bp.Column("loss_mask", "int32", 1, "mask", "sequence")
    >>> rows = {"sequence": bp.Ragged.from_lists([[1, 2, 3, 4, 5, 6]])}
    >>> rows["loss_mask"] = bp.Ragged.from_lists([[0, 1, 1, 1, 1, 1]])
    >>> chunks, stats = chunking.rows(rows, {"sequence": ids, "loss_mask": mask})
    >>> chunks["sequence"].to_lists(), chunks["loss_mask"].to_lists()
    ([[1, 2, 3, 4], [4, 5, 6]], [[0, 1, 1, 1], [0, 1, 1]])

    Attributes:
        size: tokens of a chunk.
        stride: tokens of its predecessor with which a chunk begins. They are not trained a second time, if the output
            has a mask or labels.
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
        """int64 [rows]: the chunks of rows of these lengths, at least one each."""
        return np.asarray(1 - (-np.maximum(lengths - self.size, 0) // (self.size - self.stride)))

    def lengths(self, lengths: Array) -> tuple[Array, Array]:
        """The chunks of rows of these lengths: int64 [chunks] each, (tokens, row)."""
        row, start, stop = self._pieces(lengths)
        return stop - start, row

    def _pieces(self, lengths: Array) -> tuple[Array, Array, Array]:
        """int64 [chunks] each: the row, and the tokens [start, stop) of it."""
        first = offsets_of(self.counts(lengths))
        row = np.repeat(np.arange(len(lengths)), np.diff(first))
        start = (np.arange(first[-1]) - first[row]) * (self.size - self.stride)
        return row, start, np.minimum(start + self.size, lengths[row])

    def rows(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> tuple[dict[str, Ragged], ChunkStats]:
        """The chunks of all rows, in order.

        Args:
            columns: name -> one list of values a row, of equal lengths in all columns; not empty. What is carried
                along is repeated in every chunk of its row.
            schema: of these columns, by name.

        Raises:
            ValueError: a column has other lengths than the first, or is a list of lists.
        """
        lengths = next(iter(columns.values())).lengths
        beside = {name: rows for name, rows in columns.items() if schema[name].metadata}
        columns = {name: rows for name, rows in columns.items() if name not in beside}
        for name, rows in columns.items():
            if rows.depth != 1 or not np.array_equal(rows.lengths, lengths):
                raise ValueError(f"column {name!r} is not one value a token; only one output can be cut into chunks")
        row, start, stop = self._pieces(lengths)
        starts, sizes = offsets_of(lengths)[row] + start, stop - start
        repeated = np.where(start > 0, self.stride, 0)
        chunks, trained = {}, np.zeros(len(row), bool)
        for name, rows in columns.items():
            chunk = Ragged(join_pieces(rows.flat, starts, sizes), offsets_of(sizes))
            if (nothing := NO_LOSS.get(schema[name].role)) is not None:
                chunk = chunk.with_flat(_without_repeated(chunk, repeated, nothing))
                if schema[name].role != "weights":  # of 0 is a token that is trained all the same
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
    """The values, with `nothing` in place of the first `repeated` ones of each chunk."""
    if not repeated.any():
        return chunks.flat
    place = np.arange(len(chunks.flat)) - np.repeat(chunks.offsets[:-1], chunks.lengths)
    return np.where(place < np.repeat(repeated, chunks.lengths), chunks.flat.dtype.type(nothing), chunks.flat)
