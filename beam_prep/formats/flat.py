"""What the flat formats share: a file of values for each column, mapped to be read, and what says where rows begin.

`bin`, `npy` and `megatron` differ in names and in how they write the borders of rows: see `FlatFormat`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import (
    ColumnsReader,
    Format,
    OpenFile,
    Row,
    cast,
    check_rows,
    map_file,
)


class FlatFormat(Format):
    """A format of little-endian values, one row after the other, without header; bool is one byte, 0 or 1.

    A subclass says how its files are called, and writes and reads the borders of rows.
    """

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        """The file of a column's values, relative to the domain's folder."""
        raise NotImplementedError

    def borders(
        self, columns: Sequence["FlatColumn"], shard: int, shards: int
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        """The files of the borders of rows, by name, each in pieces."""
        raise NotImplementedError

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        """All columns over their mapped files, in the dtype of the file.

        Raises:
            FormatError: a file is missing, or damaged, or does not hold these columns.
        """
        raise NotImplementedError

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "FlatWriter":
        """See `Format.writer`."""
        return FlatWriter(self, open_file, columns, shard, shards)

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "FlatReader":
        """See `Format.read`. Reads the borders and maps the values, which are read when they are touched."""
        return FlatReader(self, folder, columns, shard, shards)


class FlatColumn:
    """A column that is being written.

    Attributes:
        column, file: the column, and its file of values.
        size: values that were written.
        rows: lengths of rows in values, of each part that was written.
        lists, inner: of a column of lists of lists, the lengths of rows in lists, and of lists in values.
    """

    def __init__(self, column: Column, dtype: str, file: BinaryIO) -> None:
        self.column, self.file, self.size = column, file, 0
        self.rows, self.lists, self.inner = list[Array](), list[Array](), list[Array]()
        self._dtype = dtype

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


class FlatWriter:
    """Appends every column's values to its file as they come; only lengths stay in memory until `close`."""

    def __init__(
        self, format: FlatFormat, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int
    ) -> None:
        self._format, self._open_file, self._place = format, open_file, (shard, shards)
        self._columns = [
            FlatColumn(each, format.stored(each), open_file(format.values_file(each, shard, shards)))
            for each in columns
        ]

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        check_rows([each.column for each in self._columns], columns)
        for each in self._columns:
            each.append(columns[each.column.name])

    def close(self) -> None:
        """Closes the files of values, then writes the borders: a shard that was cut short lacks some."""
        for each in self._columns:
            each.file.close()
        for name, pieces in self._format.borders(self._columns, *self._place):
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(name)
            for piece in pieces:
                file.write(piece)
            file.close()


class FlatReader(ColumnsReader):
    """Rows of one shard, as views of its memory-mapped files; see `ShardReader`. What is cast is a copy.

    Raises:
        FormatError: see `FlatFormat.open_columns`. (A changed value shows only in the manifest's sha256.)
    """

    def __init__(self, format: FlatFormat, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> None:
        self._given = format, folder, tuple(columns), shard, shards
        # What has another dtype in its file than its column says: masks of `npy`.
        self._cast = {each.name: each.dtype for each in columns if format.stored(each) != each.dtype}
        opened = format.open_columns(folder, columns, shard, shards)
        super().__init__(opened, f"{folder}: shard {shard}: columns of different row counts", columns)
        if self._cast:
            del self.columns

    def __reduce__(self) -> tuple[type["FlatReader"], tuple[FlatFormat, Path, tuple[Column, ...], int, int]]:
        # A pickled map is a copy of the file.
        return FlatReader, self._given

    def row(self, index: int) -> Row:
        """See `ShardReader.row`."""
        found = super().row(index)
        for name, dtype in self._cast.items():
            row = found[name]
            found[name] = row.with_flat(_as(row.flat, dtype)) if isinstance(row, Ragged) else _as(row, dtype)
        return found

    def rows(self, start: int, stop: int) -> dict[str, Ragged]:
        """Rows from `start` to `stop`, in the columns' dtypes."""
        found = super().rows(start, stop)
        return found | {name: found[name].with_flat(_as(found[name].flat, dtype)) for name, dtype in self._cast.items()}


def _as(values: Array, dtype: str) -> Array:
    return values.astype(np.dtype(dtype).newbyteorder("<"), copy=False)


def mapped(path: Path, dtype: str, size: int, said_by: str) -> Array:
    """The values of a file.

    Args:
        path, dtype: the file, and the dtype of its values.
        size: how many values it must have.
        said_by: what says so, for the error.

    Raises:
        FormatError: it is missing, or of another size.
    """
    stored = np.dtype(dtype).newbyteorder("<")
    wanted = size * stored.itemsize
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    if found != wanted:
        raise FormatError(f"{path}: found {found} bytes, wanted {wanted} ({size} of {dtype}, says {said_by})")
    return map_file(path).view(stored) if size else np.zeros(0, stored)  # an empty file cannot be mapped
