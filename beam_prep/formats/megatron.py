"""`megatron`: for each column and shard a pair of files that Megatron's `IndexedDataset` opens by its prefix.

    <domain>/shard_0000-sequence.bin   .../shard_0000-sequence.idx
    <domain>/shard_0000-loss_mask.bin  .../shard_0000-loss_mask.idx

    rows = IndexedDataset("out/wiki/shard_0000-sequence")       # the same prefix as for --data-path

* `.bin`: the little-endian values of all rows, one row after the other. Bool values are one byte, 0 or 1.
* `.idx`: the header `HEADER`; int32, the length of each sequence in values; int64, where each begins in the `.bin`, in
  bytes; int64, where documents begin in sequences, and the end. All little-endian.
* A row is a document of one sequence. In a column of lists of lists it is a document of as many sequences as it has
  lists. Pairs of ids, masks and labels so have the same sequences and documents.
* `-` separates the column: no column has it in its name, so `*-ids.idx` are the shards of `ids` and of no other column.

Megatron has codes for the dtypes in `CODES`. Of the others, bool is kept as uint8, and the rest is refused.

Source: megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `_IndexReader` (without modes).
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

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

__all__ = ["CODES", "Megatron", "MegatronReader", "MegatronWriter"]

HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the dtype, number of sequences, number of borders of documents (documents + 1)."""

CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
    "bool": 1,
}
"""Dtype of a column -> the code in the index."""

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_MAX_LENGTH = 2**31 - 1


class Megatron:
    """The format `megatron`; see the module."""

    name = "megatron"
    sizes_in: SizeUnit = "values"

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "MegatronWriter":
        """See `Format.writer`.

        Raises:
            ValueError: a column has a dtype for which Megatron has no code.
        """
        return MegatronWriter(open_file, columns, shard)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {_prefix(column, shard) + ending: None for column in columns for ending in (".bin", ".idx")}

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "MegatronReader":
        """See `Format.read`. Reads the indices and maps the values, which are read when they are touched."""
        return MegatronReader(folder, columns, shard)


def _prefix(column: Column, shard: int) -> str:
    return f"shard_{shard:04d}-{column.name}"


class MegatronWriter:
    """Appends every column's values to its file as they come; only lengths stay in memory until `close`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], shard: int) -> None:
        for column in columns:
            if column.role == "string":
                raise ValueError(f"column {column.name!r}: the format megatron holds numbers, and no strings")
            if column.dtype not in CODES:
                known = ", ".join(CODES)
                raise ValueError(f"column {column.name!r}: the format megatron has no {column.dtype}; it has {known}")
        self._open_file = open_file
        self._columns = [_OpenColumn(column, open_file(_prefix(column, shard) + ".bin")) for column in columns]
        self._shard = shard

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`.

        Raises:
            ValueError: also for a sequence of more than 2**31 - 1 values.
        """
        check_rows([column.column for column in self._columns], columns)
        for column in self._columns:
            column.append(columns[column.column.name])

    def close(self) -> None:
        """Closes the files of values, then writes the indices: a shard that was cut short lacks some."""
        for column in self._columns:
            column.file.close()
        for column in self._columns:
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(_prefix(column.column, self._shard) + ".idx")
            for part in column.index():
                file.write(part)
            file.close()


class _OpenColumn:
    """A column that is being written: its file, and the lengths that become its index."""

    def __init__(self, column: Column, file: BinaryIO) -> None:
        self.column = column
        self.file = file
        self._sequences: list[Array] = []
        self._documents: list[Array] = []

    def append(self, rows: Ragged) -> None:
        values = cast(rows.flat, self.column.dtype, self.column.name)
        sequences = rows.values.lengths if isinstance(rows.values, Ragged) else rows.lengths
        if len(sequences) and sequences.max() > _MAX_LENGTH:
            raise ValueError(
                f"column {self.column.name!r}: a sequence of {sequences.max()} values, megatron's index "
                f"holds up to {_MAX_LENGTH}"
            )
        self._sequences.append(sequences)
        self._documents.append(rows.lengths if isinstance(rows.values, Ragged) else np.ones(len(rows), np.int64))
        if len(values):
            self.file.write(values.view(np.uint8).data)

    def index(self) -> list[bytes]:
        """The content of the `.idx`, in parts."""
        sequences, documents = (
            np.concatenate([np.zeros(0, np.int64), *lengths]) for lengths in (self._sequences, self._documents)
        )
        header = HEADER.pack(_MAGIC, _VERSION, CODES[self.column.dtype], len(sequences), len(documents) + 1)
        pointers = offsets_of(sequences * np.dtype(self.column.dtype).itemsize)[:-1]
        return [
            header,
            sequences.astype("<i4").tobytes(),
            pointers.astype("<i8").tobytes(),
            offsets_of(documents).astype("<i8").tobytes(),
        ]


class MegatronReader(ColumnsReader):
    """Rows of one shard, as views of its memory-mapped files; see `ShardReader`.

    Attributes:
        columns: every column, by name.
    """

    def __init__(self, folder: Path, columns: Sequence[Column], shard: int) -> None:
        """Maps the shard.

        Raises:
            FormatError: a file is missing, or an index is damaged, or does not describe these columns or the size of
                its file. (A changed byte within a .bin file shows only in the manifest's sha256.)
        """
        self._given = (folder, tuple(columns), shard)
        opened = {column.name: _open_column(folder / _prefix(column, shard), column) for column in columns}
        super().__init__(opened, f"{folder}: the indices of shard {shard} have different numbers of documents", columns)

    def __reduce__(self) -> tuple[type["MegatronReader"], tuple[Path, tuple[Column, ...], int]]:
        # A pickled memmap is a copy of the file.
        return MegatronReader, self._given


def _open_column(prefix: Path, column: Column) -> Ragged:
    """The column over its mapped file."""
    path = prefix.with_name(prefix.name + ".idx")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    sequences, documents = _index(path, data, column)
    values = _values(prefix.with_name(prefix.name + ".bin"), column, int(sequences[-1]))
    rows = Ragged(values, sequences)
    return rows if column.levels == 1 else Ragged(rows, documents)


def _index(path: Path, data: bytes, column: Column) -> tuple[Array, Array]:
    """Borders of sequences, in values, and of documents, in sequences: int64, beginning with 0."""
    if len(data) < HEADER.size:
        raise FormatError(f"{path}: found {len(data)} bytes, too few for an index")
    magic, version, code, count, borders = HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise FormatError(f"{path}: not an index of Megatron, version {_VERSION}")
    if code != CODES.get(column.dtype):
        raise FormatError(f"{path}: found dtype code {code}, wanted {CODES.get(column.dtype)} ({column.dtype})")
    if len(data) != (wanted := HEADER.size + 12 * count + 8 * borders):
        raise FormatError(f"{path}: found {len(data)} bytes, wanted {wanted}: {count} sequences, {borders} borders")
    lengths = np.frombuffer(data, "<i4", count, HEADER.size)
    pointers = np.frombuffer(data, "<i8", count, HEADER.size + 4 * count)
    documents = np.frombuffer(data, "<i8", borders, HEADER.size + 12 * count).astype(np.int64)
    sequences = offsets_of(lengths)
    if (lengths < 0).any() or not np.array_equal(pointers, sequences[:-1] * np.dtype(column.dtype).itemsize):
        raise FormatError(f"{path}: the sequences do not begin where the one before ends")
    if borders == 0 or documents[0] != 0 or documents[-1] != count or (np.diff(documents) < 0).any():
        raise FormatError(f"{path}: the borders of documents do not rise from 0 to {count}")
    if column.levels == 1 and not np.array_equal(documents, np.arange(count + 1)):
        raise FormatError(f"{path}: found documents of several sequences, wanted one each")
    return sequences, documents


def _values(path: Path, column: Column, size: int) -> Array:
    stored = np.dtype(column.dtype).newbyteorder("<")
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    if found != (wanted := size * stored.itemsize):
        raise FormatError(f"{path}: found {found} bytes, wanted {wanted} ({size} of {column.dtype}, says its index)")
    return map_file(path).view(stored) if size else np.zeros(0, stored)  # an empty file cannot be mapped
