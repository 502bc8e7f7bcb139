"""`bin`: raw arrays that `numpy.memmap` opens, with their row borders in a `meta.json`.

    <domain>/meta.json  <domain>/<key>.bin             a domain of one shard
    <domain>/shard_0000/meta.json  .../<key>.bin       a domain of more

* `<key>.bin`: the little-endian values of all rows, one row after the other, no header; bool is one byte, 0 or 1.
* `meta.json`, one line: `{"<key>": {"shape": [n], "dtype": "int32", "offsets": [0, ...]}}`. `offsets` are the row
  starts and the end, counted in values: row i is `values[offsets[i]:offsets[i + 1]]`.
* A column of lists of lists has `"inner_offsets"` (borders of the inner lists, in values) and `"list_offsets"` (row
  borders, in inner lists) besides. Its `offsets` still are row borders in values, for readers of the flat form.

The layout is that of AstrAI's MmapStore (its preprocessing guide, "Output Layout"), which ignores fields of an entry
that it does not know. There is no checksum in the files: the manifest has them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import (
    ColumnsReader,
    FilesOfShard,
    OpenFile,
    SizeUnit,
    cast,
    check_rows,
    map_file,
)

META = "meta.json"
_SLICE = 1 << 16


class Bin:
    """The format `bin`; see the module."""

    name = "bin"
    sizes_in: SizeUnit = "values"

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "BinWriter":
        """See `Format.writer`."""
        return BinWriter(open_file, columns, _folder(shard, shards))

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        names = [*(f"{column.name}.bin" for column in columns), META]
        return {_folder(shard, shards) + name: None for name in names}

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "BinReader":
        """See `Format.read`. Reads `meta.json` and maps the files; values are read when they are touched."""
        return BinReader(folder / _folder(shard, shards), columns)


def _folder(shard: int, shards: int) -> str:
    return "" if shards == 1 else f"shard_{shard:04d}/"


class BinWriter:
    """Appends every column's values to its file as they come; only row lengths stay in memory until `close`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], folder: str) -> None:
        self._open_file = open_file
        self._folder = folder
        self._columns = [_OpenColumn(column, open_file(f"{folder}{column.name}.bin")) for column in columns]

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        check_rows([column.column for column in self._columns], columns)
        for column in self._columns:
            column.append(columns[column.column.name])

    def close(self) -> None:
        """Closes the columns' files, then writes `meta.json`: a shard that was cut short has none."""
        for column in self._columns:
            column.file.close()
        # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
        file = self._open_file(self._folder + META)
        for index, column in enumerate(self._columns):
            file.write(b", " if index else b"{")
            for piece in column.meta():
                file.write(piece)
        file.write(b"}" if self._columns else b"{}")
        file.close()


class _OpenColumn:
    """A column that is being written: its file, and the lengths that become its offsets."""

    def __init__(self, column: Column, file: BinaryIO) -> None:
        self.column = column
        self.file = file
        self._size = 0
        self._lengths: dict[str, list[Array]] = {"offsets": []}
        if column.levels == 2:
            self._lengths |= {"inner_offsets": [], "list_offsets": []}

    def append(self, rows: Ragged) -> None:
        values = cast(rows.flat, self.column.dtype, self.column.name)
        self._size += len(values)
        self._lengths["offsets"].append(rows.flat_lengths)
        if isinstance(rows.values, Ragged):
            self._lengths["inner_offsets"].append(rows.values.lengths)
            self._lengths["list_offsets"].append(rows.lengths)
        if len(values):
            self.file.write(values.view(np.uint8).data)

    def meta(self) -> Iterator[bytes]:
        """The column's part of `meta.json`, in pieces: the text of 5 million borders need not be in memory at once."""
        yield f'{json.dumps(self.column.name)}: {{"shape": [{self._size}], "dtype": "{self.column.dtype}"'.encode()
        for key, lengths in self._lengths.items():
            yield f', "{key}": ['.encode()
            yield from _numbers(offsets_of(np.concatenate(lengths) if lengths else []))
            yield b"]"
        yield b"}"


def _numbers(values: Array) -> Iterator[bytes]:
    """`1, 2, 3` in pieces. The text of a Python list of ints is JSON, and is made faster than by `json`."""
    for start in range(0, len(values), _SLICE):
        yield b", " if start else b""
        yield str(values[start : start + _SLICE].tolist())[1:-1].encode()


class BinReader(ColumnsReader):
    """Rows of one shard, as views of its memory-mapped files; see `ShardReader`.

    Attributes:
        columns: every column, by name.
    """

    def __init__(self, folder: Path, columns: Sequence[Column]) -> None:
        """Maps the shard in `folder`.

        Raises:
            FormatError: a file is missing or of another size than `meta.json` says, or `meta.json` is damaged or does
                not describe these columns. (A changed byte within a .bin file shows only in the manifest's sha256.)
        """
        self._given = (folder, tuple(columns))
        meta = _read_meta(folder / META)
        super().__init__(
            {column.name: _open_column(folder, column, meta) for column in columns},
            f"{folder / META}: columns of different row counts",
            columns,
        )

    def __reduce__(self) -> tuple[type["BinReader"], tuple[Path, tuple[Column, ...]]]:
        # A pickled memmap is a copy of the file.
        return BinReader, self._given


def _read_meta(path: Path) -> Any:
    try:
        # Lists become arrays entry by entry: at most one column's borders exist as Python numbers.
        return json.loads(path.read_bytes(), object_hook=_arrays)
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except ValueError as error:
        raise FormatError(f"{path}: not the JSON of a shard: {error}") from None


def _arrays(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: np.array(value) if isinstance(value, list) else value for key, value in entry.items()}


def _open_column(folder: Path, column: Column, meta: Any) -> Ragged:
    """The column over its mapped file."""
    entry = meta.get(column.name) if isinstance(meta, dict) else None
    where = f"{folder / META}: {column.name!r}"
    if not isinstance(entry, dict):
        raise FormatError(f"{where}: no such key")
    if entry.get("dtype") != column.dtype:
        raise FormatError(f"{where}: found dtype {entry.get('dtype')}, wanted {column.dtype}")
    shape = _integers(entry, "shape", where)
    if len(shape) != 1 or shape[0] < 0:
        raise FormatError(f"{where}: found shape {shape.tolist()}, wanted one size")
    values = _map(folder / f"{column.name}.bin", column.dtype, int(shape[0]))
    offsets = _borders(entry, "offsets", len(values), where)
    if column.levels == 1:
        return Ragged(values, offsets)
    lists = Ragged(values, _borders(entry, "inner_offsets", len(values), where))
    rows = Ragged(lists, _borders(entry, "list_offsets", len(lists), where))
    if not np.array_equal(lists.offsets[rows.offsets], offsets):
        raise FormatError(f"{where}: list_offsets and inner_offsets give other rows than offsets")
    return rows


def _integers(entry: dict[str, Any], key: str, where: str) -> Array:
    array = entry.get(key)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.int64:
        raise FormatError(f"{where}: {key} is missing or no list of integers")
    return array


def _borders(entry: dict[str, Any], key: str, end: int, where: str) -> Array:
    borders = _integers(entry, key, where)
    if len(borders) == 0 or borders[0] != 0 or borders[-1] != end or (np.diff(borders) < 0).any():
        raise FormatError(f"{where}: {key} do not rise from 0 to {end}")
    return borders


def _map(path: Path, dtype: str, size: int) -> Array:
    stored = np.dtype(dtype).newbyteorder("<")
    wanted = size * stored.itemsize
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    if found != wanted:
        raise FormatError(f"{path}: found {found} bytes, wanted {wanted} ({size} of {dtype}, says {META})")
    return map_file(path).view(stored) if size else np.zeros(0, stored)  # an empty file cannot be mapped
