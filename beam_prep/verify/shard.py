"""A shard in one format: its rows and tokens against the manifest, and against the same shard in another format."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, ShardReader
from beam_prep.formats.contract import Row
from beam_prep.formats.flat import FlatReader
from beam_prep.formats.manifest import MANIFEST, ShardReceipt
from beam_prep.verify.rows import Promises, RowChecks, trained_of

VALUES_AT_ONCE = 1 << 20
"""Values of all columns of a part; a row that has more is a part of its own."""


def parts_of(reader: ShardReader, columns: Sequence[Column]) -> Iterator[dict[str, Ragged]]:
    """All rows in order.

    Raises:
        FormatError: a row is damaged.
    """
    if isinstance(reader, FlatReader):  # their columns are arrays
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


class FoundShard:
    """A shard as a format's reader finds it.

    Args:
        columns: the columns of every row.
        promises: what the manifest says of its rows.
        formats: in which the shard is written.

    Attributes:
        rows: how many.
        tokens, trained: as a `ShardReceipt` has them.
        rows_without_loss: rows without a trained token.
        checks: what is impossible in the rows.
        sums: checksums of every column's values and lengths; empty if there is one format.
    """

    def __init__(self, columns: Sequence[Column], promises: Promises, formats: Sequence[str]) -> None:
        self._columns, self._formats = columns, formats
        self.rows = self.rows_without_loss = 0
        self.tokens = {column.name: 0 for column in columns if column.role == "ids"}
        self.trained = {column.name: 0 for column in columns if column.role in ("mask", "labels")}
        self.checks = RowChecks(columns, promises)
        self.sums: dict[str, tuple[int, ...]] = {}

    def add(self, part: Mapping[str, Ragged]) -> None:
        """Counts and checks the next rows."""
        rows = len(next(iter(part.values())))
        trained = {c.name: trained_of(c, part[c.name]) for c in self._columns if c.name in self.trained}
        self.rows += rows
        for name in self.tokens:
            self.tokens[name] += len(part[name].flat)
        for name, counts in trained.items():
            self.trained[name] += int(counts.sum())
        if trained:
            self.rows_without_loss += rows - int(
                np.count_nonzero(np.all([counts > 0 for counts in trained.values()], axis=0))
            )
        self.checks.add(part, trained)
        if len(self._formats) > 1:
            for column in self._columns:
                before = self.sums.get(column.name, (0, 0, 0))
                arrays = self._arrays(column, part[column.name])
                self.sums[column.name] = tuple(map(_crc, arrays, before))

    def _arrays(self, column: Column, rows: Ragged) -> tuple[Array, Array, Array]:
        known = filter(FORMATS.__contains__, self._formats)
        narrow = column.dtype == "float64" and any(FORMATS[name].stored(column) == "float32" for name in known)
        with np.errstate(over="ignore"):
            values = rows.flat.astype(np.float32) if narrow else rows.flat
        inner = rows.values.lengths if isinstance(rows.values, Ragged) else np.zeros(0, np.int64)
        return values, rows.lengths, inner


def _crc(values: Array, before: int) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data, before) if len(values) else before


def read_shard(
    folder: Path,
    name: str,
    columns: Sequence[Column],
    shard: int,
    shards: int,
    promises: Promises,
    formats: Sequence[str],
) -> FoundShard:
    """Reads a shard in one format.

    Args:
        folder: the folder of the domain.
        name: the format.
        columns: the columns of every row.
        shard, shards: its number, and how many its domain has.
        promises: what the manifest says of every row.
        formats: all in which the shard is written.

    Raises:
        FormatError: it cannot be read.
        ImportError: a library for the format is missing.
    """
    if name not in FORMATS:
        raise ImportError("this version cannot read the format: pip install --upgrade beam-prep")
    found = FoundShard(columns, promises, formats)
    reader = FORMATS[name].read(folder, columns, shard, shards)
    try:
        for part in parts_of(reader, columns):
            found.add(part)
    except ValueError as error:  # borders that a reader takes, and that are none
        raise FormatError(f"its rows cannot be read: {error}") from None
    return found


def shard_problems(found: FoundShard, shard: ShardReceipt) -> Iterator[str]:
    """Compares the rows and tokens of a shard with the manifest."""
    if found.rows != shard.rows:
        yield f"found {found.rows} rows, {MANIFEST} says {shard.rows}"
    listed = (
        found.rows_without_loss
        if shard.packing is None
        else shard.packing.get("packs_untrained", found.rows_without_loss)
    )
    if shard.packing is not None and found.rows_without_loss != listed:
        yield f"found {found.rows_without_loss} packed rows without a trained token, {MANIFEST} says {listed}"
    for kind, counts, wanted in (("tokens", found.tokens, shard.tokens), ("trained", found.trained, shard.trained)):
        for column, count in counts.items():
            if count != wanted.get(column):
                yield f"found {kind} {count} of {column!r}, {MANIFEST} says {wanted.get(column)}"
    yield from found.checks.problems()
    if shard.packing is not None:
        yield from _piece_problems(found.checks.documents, shard.packing)


def _piece_problems(pieces: int, packing: Mapping[str, int]) -> Iterator[str]:
    """The documents in the packs are the rows that came in, or parts of them."""
    filled = packing["rows"] - packing["rows_empty"]
    if not filled + packing["rows_split"] <= pieces or (packing["rows_split"] == 0 and pieces != filled):
        yield (
            f"found {pieces} documents in packed rows, {MANIFEST} says {filled} rows with tokens, "
            f"of which {packing['rows_split']} are split"
        )


def content_problems(found: FoundShard, other: FoundShard, name: str) -> Iterator[str]:
    """Compares a shard with itself in another format, which is called `name`."""
    for column in found.sums:
        if found.sums[column] != other.sums.get(column):
            yield f"found other values of {column!r}, or another order of rows, than in {name}"
