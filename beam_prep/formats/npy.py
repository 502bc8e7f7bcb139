"""`npy`: the token files of OLMo-core and Dolma. Despite their name they have no header.

    <domain>/<column>/shard_0000.npy       the little-endian values of all rows, one row after the other
    <domain>/<column>/shard_0000.csv.gz    a line "start,end" for each row, counted in values

* Masks are one byte a token, 0 or 1, whatever the column's dtype: OLMo-core maps them as bool. All other columns are in
  their dtype. OLMo-core reads ids as uint8, uint16, uint32 or uint64; a signed dtype has the same bytes, as no id is
  below 0.
* A row of lists of lists has a third field, the lengths of its lists: "0,7,3 0 4".
* The gzip streams are not compressed (17 bytes a row): their bytes do not depend on the version of zlib. They have no
  time, and no name.

A domain's files in OLMo-core; both globs are sorted, so that masks and ids are pairs:

    NumpyFSLDatasetConfig(
        paths=["out/wiki/sequence/*.npy"],
        label_mask_paths=["out/wiki/loss_mask/*.npy"],
        expand_glob=True,
        dtype=NumpyDatasetDType.uint32,
        ...
    )

Source: olmo_core/data/utils.py, `load_array_slice`, `write_document_indices` and `iter_document_indices`, which takes
the first two fields of a line; olmo_core/data/numpy_dataset.py.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import FilesOfShard, OpenFile, Row, SizeUnit, cast, check_rows, map_file, row_number

__all__ = ["Npy", "NpyReader", "NpyWriter"]

_SLICE = 1 << 12
"""Rows whose lines are made at once."""
_BLOCK = (1 << 16) - 1
"""Bytes of a block of a gzip stream that is not compressed, at most."""


class Npy:
    """The format `npy`; see the module."""

    name = "npy"
    sizes_in: SizeUnit = "values"

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "NpyWriter":
        """See `Format.writer`."""
        return NpyWriter(open_file, columns, shard)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {name: None for column in columns for name in _file_names(column, shard)}

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "NpyReader":
        """See `Format.read`. Reads the borders and maps the values, which are read when they are touched."""
        return NpyReader(folder, columns, shard)


def _file_names(column: Column, shard: int) -> tuple[str, str]:
    """Of the values, and of the borders."""
    return f"{column.name}/shard_{shard:04d}.npy", f"{column.name}/shard_{shard:04d}.csv.gz"


def _stored(column: Column) -> str:
    """The dtype of a column in its file."""
    if column.role != "mask" or column.dtype == "bool":
        return column.dtype
    return "uint8" if column.dtype.startswith("u") else "int8"


class NpyWriter:
    """Appends every column's values to its file as they come; only row lengths stay in memory until `close`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], shard: int) -> None:
        self._open_file = open_file
        self._shard = shard
        self._columns = [_OpenColumn(column, open_file(_file_names(column, shard)[0])) for column in columns]

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        check_rows([column.column for column in self._columns], columns)
        for column in self._columns:
            column.append(columns[column.column.name])

    def close(self) -> None:
        """Closes the values' files, then writes the borders: a shard that was cut short has none."""
        for column in self._columns:
            column.file.close()
        for column in self._columns:
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(_file_names(column.column, self._shard)[1])
            for piece in _gzipped(column.lines()):
                file.write(piece)
            file.close()


class _OpenColumn:
    """A column that is being written: its file, and the lengths that become its lines."""

    def __init__(self, column: Column, file: BinaryIO) -> None:
        self.column = column
        self.file = file
        self._lengths: list[Array] = []
        self._inner: list[Ragged] = []

    def append(self, rows: Ragged) -> None:
        values = cast(rows.flat, _stored(self.column), self.column.name)
        self._lengths.append(rows.flat_lengths)
        if isinstance(rows.values, Ragged):
            self._inner.append(Ragged(rows.values.lengths, rows.offsets.copy()))
        if len(values):
            self.file.write(values.view(np.uint8).data)

    def lines(self) -> Iterator[bytes]:
        """The lines of all rows, in pieces."""
        start = 0
        for index, lengths in enumerate(self._lengths):
            borders = start + offsets_of(lengths)
            start = int(borders[-1])
            for at in range(0, len(lengths), _SLICE):
                rows = borders[at : at + _SLICE + 1].tolist()
                fields: list[str] = list(map("%d,%d".__mod__, pairwise(rows)))
                if self._inner:
                    inner = self._inner[index][at : at + _SLICE].to_lists()
                    fields = [f"{field},{' '.join(map(str, row))}" for field, row in zip(fields, inner, strict=True)]
                yield "".join(f"{field}\n" for field in fields).encode()


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A gzip stream of blocks that are not compressed."""
    yield b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no time, no name, no system
    held, crc, size = b"", 0, 0
    for piece in pieces:
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        held += piece
        while len(held) > _BLOCK:
            yield _block(held[:_BLOCK], last=False)
            held = held[_BLOCK:]
    yield _block(held, last=True)
    yield struct.pack("<II", crc, size & 0xFFFFFFFF)


def _block(data: bytes, last: bool) -> bytes:
    return struct.pack("<BHH", last, len(data), len(data) ^ 0xFFFF) + data


class NpyReader:
    """Rows of one shard, as views of its memory-mapped files; masks in their dtype are copies. See `ShardReader`."""

    def __init__(self, folder: Path, columns: Sequence[Column], shard: int) -> None:
        """Maps the shard.

        Raises:
            FormatError: a file is missing or of another size than its borders say, or the borders are damaged. (A
                changed value shows only in the manifest's sha256.)
        """
        self._given = (folder, tuple(columns), shard)
        self._measured = [column.name for column in columns if not column.carried]
        self._dtypes = {column.name: column.dtype for column in columns}
        self._columns = {column.name: _open_column(folder, column, shard) for column in columns}
        counts = {name: len(rows) for name, rows in self._columns.items()}
        if len(set(counts.values())) > 1:
            raise FormatError(f"{folder}: shard {shard}: columns of different row counts: {counts}")
        self._rows = max(counts.values(), default=0)

    def __reduce__(self) -> tuple[type["NpyReader"], tuple[Path, tuple[Column, ...], int]]:
        # A pickled map is a copy of the file.
        return NpyReader, self._given

    def __len__(self) -> int:
        return self._rows

    def row(self, index: int) -> Row:
        """See `ShardReader.row`."""
        number = row_number(index, self._rows)
        found: Row = {}
        for name, rows in self._columns.items():
            row, dtype = rows[number], self._dtypes[name]
            found[name] = row.with_flat(_as(row.flat, dtype)) if isinstance(row, Ragged) else _as(row, dtype)
        return found

    def rows(self, start: int, stop: int) -> dict[str, Ragged]:
        """Rows from `start` to `stop`, in the columns' dtypes."""
        parts = {name: rows[start:stop] for name, rows in self._columns.items()}
        return {name: part.with_flat(_as(part.flat, self._dtypes[name])) for name, part in parts.items()}

    def lengths(self, name: str) -> Array:
        """int64 [rows]: see `contract.ShardReader`."""
        return self._columns[name].lengths

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        lengths = (self._columns[name].flat_lengths for name in self._measured)
        return sum(lengths, start=np.zeros(self._rows, np.int64))


def _as(values: Array, dtype: str) -> Array:
    return values.astype(np.dtype(dtype).newbyteorder("<"), copy=False)


def _open_column(folder: Path, column: Column, shard: int) -> Ragged:
    """The column over its mapped file, in the dtype of the file.

    Raises:
        FormatError: a file is missing, or one of them is damaged.
    """
    path, about = (folder / name for name in _file_names(column, shard))
    dtype = np.dtype(_stored(column)).newbyteorder("<")
    try:
        borders, inner = _borders(about, column.levels)
        found = path.stat().st_size
    except FileNotFoundError as error:
        raise FormatError(f"{error.filename}: no such file") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise FormatError(f"{about} is damaged: {error}") from None
    wanted = int(borders[-1]) * dtype.itemsize
    if found != wanted:
        raise FormatError(f"{path}: found {found} bytes, wanted {wanted} ({borders[-1]} of {dtype}, says {about.name})")
    values = map_file(path).view(dtype) if found else np.zeros(0, dtype)  # an empty file cannot be mapped
    if inner is None:
        return Ragged(values, borders)
    return Ragged(Ragged.from_lengths(values, inner.flat), inner.offsets)


def _borders(path: Path, depth: int) -> tuple[Array, Ragged | None]:
    """The borders of rows in values, and the lengths of each row's lists where they are lists of lists.

    Raises:
        OSError, EOFError, zlib.error, ValueError: the file cannot be read.
    """
    text = gzip.decompress(path.read_bytes())
    if not text:
        return np.zeros(1, np.int64), None if depth == 1 else Ragged.from_lengths(np.zeros(0, np.int64), [])
    from pyarrow import csv

    types = dict(zip(("start", "end", "lists"), (pa.int64(), pa.int64(), pa.string()), strict=True))
    names = list(types)[: depth + 1]
    table = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, column_names=names),
        csv.ParseOptions(quote_char=False),
        csv.ConvertOptions(column_types={name: types[name] for name in names}),
    )
    if any(column.null_count for column in table.columns):
        raise ValueError("a line has no numbers")
    starts, ends = (table[name].to_numpy() for name in ("start", "end"))
    borders = np.concatenate([[0], ends]).astype(np.int64)
    if not np.array_equal(borders[:-1], starts) or (np.diff(borders) < 0).any():
        raise ValueError("its rows do not follow each other")
    if depth == 1:
        return borders, None
    lists = [row.split() for row in table["lists"].to_pylist()]
    inner = Ragged.from_lists([list(map(int, row)) for row in lists], np.int64)
    sums = np.diff(np.concatenate([[0], np.cumsum(inner.flat)])[inner.offsets])
    if (inner.flat < 0).any() or not np.array_equal(sums, np.diff(borders)):
        raise ValueError("its lists do not add up to its rows")
    return borders, inner
