"""Flat formats: all values of a column in one array, which readers map into memory, and the offsets of the rows.

`bin`, `npy` and `megatron` have a file for each column, `h5` has one file for all. They differ in file names and in how
they write the offsets of rows: see `FlatFormat`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats import Format, Row, ShardReader, ShardWriter, cast, check_rows, joined, map_file

OFFSETS, LISTS, INNER = "offsets", "list_offsets", "inner_offsets"
"""Offsets of rows, in values. For lists of lists, also offsets of rows, in lists, and offsets of lists, in values."""


class FlatColumn:
    """A column that is being written.

    Attributes:
        column, file: the column, and its file of values.
        size: how many values were written.
        rows: for each part that was written, the lengths of rows, in values.
        lists, inner: for lists of lists, the lengths of rows, in lists, and the lengths of lists, in values.
    """

    def __init__(self, column: Column, dtype: str, file: IO[bytes]) -> None:
        self.column, self.file, self.size = column, file, 0
        self.rows, self.lists, self.inner = list[Array](), list[Array](), list[Array]()
        self._dtype = dtype

    def borders(self) -> dict[str, Array]:
        """Name -> int64 offsets: `OFFSETS`; for lists of lists also `INNER` and `LISTS`."""
        lengths = {OFFSETS: self.rows}
        if self.column.levels == 2:
            lengths |= {INNER: self.inner, LISTS: self.lists}
        return {name: offsets_of(joined(parts, "int64", 1).flat) for name, parts in lengths.items()}

    def append(self, rows: Ragged) -> None:
        """Writes the values of rows, and keeps their lengths."""
        values = cast(rows.flat, self._dtype, self.column.name)
        self.size += len(values)
        self.rows.append(rows.flat_lengths)
        if isinstance(rows.values, Ragged):
            self.lists.append(rows.lengths)
            self.inner.append(rows.values.lengths)
        if len(values):
            self.file.write(values.view(np.uint8).data)


class FlatWriter(ShardWriter):
    """Writes values to the file of their column at once; only the lengths of rows stay in memory until `close`."""

    def __init__(
        self,
        format: "FlatFormat",
        open_file: Callable[[str], IO[bytes]],
        columns: Sequence[Column],
        shard: int,
        shards: int,
    ) -> None:
        self._format, self._open_file, self._place, self._columns = format, open_file, (shard, shards), tuple(columns)
        self._flat = [
            FlatColumn(each, format.stored(each), open_file(format.values_file(each, shard, shards)))
            for each in columns
        ]

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        for each in self._flat:
            each.append(columns[each.column.name])

    def close(self) -> None:
        """Closes the files of values, then writes the offsets. So a shard that is not complete lacks files."""
        for each in self._flat:
            each.file.close()
        for name, pieces in self._format.borders(self._flat, *self._place):
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(name)
            for piece in pieces:
                file.write(piece)
            file.close()


class FlatReader(ShardReader):
    """Rows of one shard, as views of its memory-mapped files. Columns that are cast are copies.

    Attributes:
        columns: every column, by name; absent if a file has another dtype than its column, as masks of `npy` have.
    """

    def _open(self) -> None:
        format, _, columns, *_ = self._given
        assert isinstance(format, FlatFormat)
        self._cast = {each.name: each.dtype for each in columns if format.stored(each) != each.dtype}
        self._mapped = format.open_columns(*self._given[1:])
        self._rows = check_rows(columns, self._mapped)
        if not self._cast:
            self.columns = self._mapped

    def __len__(self) -> int:
        return self._rows

    def _row(self, number: int) -> Row:
        return self._at(number)

    def rows(self, start: int, stop: int) -> dict[str, Ragged]:
        """Rows [start, stop), in the columns' dtypes."""
        return self._at(slice(start, stop))

    def _at(self, rows: int | slice) -> dict[str, Any]:
        found = {name: values[rows] for name, values in self._mapped.items()}
        return found | {name: _as(found[name], dtype) for name, dtype in self._cast.items()}

    def lengths(self, name: str) -> Array:
        """int64 [rows]: the length of each row of a column."""
        return self._mapped[name].lengths

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        lengths = (self._mapped[column.name].flat_lengths for column in self._columns if not column.metadata)
        return sum(lengths, start=np.zeros(self._rows, np.int64))


def _as(values: Any, dtype: str) -> Any:
    if isinstance(values, Ragged):
        return values.with_flat(_as(values.flat, dtype))
    return values.astype(np.dtype(dtype).newbyteorder("<"), copy=False)


def rows_over(values: Array, column: Column, borders: Callable[[str], Array]) -> Ragged:
    """A column over its values; `borders` gives the offsets of `FlatColumn.borders` by name.

    Raises:
        TypeError, ValueError: offsets are no integers, do not rise from 0 to the end, or contradict each other.
    """

    def rows(of: Array | Ragged, name: str) -> Ragged:
        return Ragged(of, np.asarray(borders(name)).astype(np.int64, casting="safe", copy=False))

    if column.levels == 1:
        return rows(values, OFFSETS)
    found = rows(rows(values, INNER), LISTS)
    if not np.array_equal(found.flat_offsets, rows(values, OFFSETS).offsets):
        raise ValueError(f"column {column.name!r}: {LISTS} and {INNER} give other rows than {OFFSETS}")
    return found


def mapped(path: Path, dtype: str, size: int) -> Array:
    """The values of a file; `size`: how many there must be.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another size.
    """
    stored = np.dtype(dtype).newbyteorder("<")
    data = map_file(path)
    if len(data) != size * stored.itemsize:
        raise ValueError(f"{path.name} has {len(data)} bytes, wanted {size * stored.itemsize} ({size} of {dtype})")
    return data.view(stored)


class FlatFormat(Format):
    """A format of little-endian values, one row after the other, without a header; bool is one byte, 0 or 1.

    A subclass names the files, and writes and reads the offsets of rows.
    """

    writes: type[ShardWriter] = FlatWriter
    reads = FlatReader

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        """The path of the file of a column's values, relative to the domain's folder."""
        raise NotImplementedError

    def borders(
        self, columns: Sequence["FlatColumn"], shard: int, shards: int
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        """The files with the offsets of rows: (name, content in pieces)."""
        raise NotImplementedError

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        """All columns over their mapped files, in the dtypes of the files. For its errors see `expected`."""
        raise NotImplementedError
