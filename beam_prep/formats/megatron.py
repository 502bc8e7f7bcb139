"""`megatron`: two files for each column of a shard, which Megatron's `IndexedDataset` opens by their prefix.

    <domain>/shard_0000-sequence.bin   .../shard_0000-sequence.idx
    <domain>/shard_0000-loss_mask.bin  .../shard_0000-loss_mask.idx

    rows = IndexedDataset("out/wiki/shard_0000-sequence")       # the same prefix as for --data-path

* `.bin`: the little-endian values of all rows, one row after the other. Bool values are one byte, 0 or 1.
* `.idx`: the header `HEADER`; the length of each sequence, in values (int32); the start of each sequence in the `.bin`,
  in bytes (int64); the start of each document, in sequences, and the end (int64). All is little-endian.
* A row is a document of one sequence. In a column of lists of lists, a row is a document with one sequence for each
  list. So ids, masks and labels have the same sequences and documents.
* `-` comes before the column. No column has `-` in its name, so `*-ids.idx` matches only shards of `ids`.

Megatron has codes for the dtypes in `CODES`. bool is stored as uint8; other dtypes are refused.

Source: megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `_IndexReader` (without modes).
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats import FilesOfShard, joined
from beam_prep.formats.flat import FlatColumn, FlatFormat, mapped

HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the dtype, number of sequences, number of document offsets (documents + 1)."""

_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
CODES = {**{dtype: code for code, dtype in enumerate(_DTYPES, 1)}, "bool": 1}
"""Dtype of a column -> the code in the index."""

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1


class Megatron(FlatFormat):
    """The format `megatron`; see the module."""

    name = "megatron"
    unknown_dtypes = ("uint32", "uint64", "float16")
    strings = "none"

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        return _prefix(column, shard) + ".bin"

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        return {_prefix(column, shard) + ending: None for column in columns for ending in (".bin", ".idx")}

    def borders(self, columns: Sequence[FlatColumn], shard: int, shards: int) -> Iterator[tuple[str, list[bytes]]]:
        for each in columns:
            yield _prefix(each.column, shard) + ".idx", _index_of(each)

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        opened = {}
        for column in columns:
            path = folder / (_prefix(column, shard) + ".idx")
            sequences, documents = _index(path.name, path.read_bytes(), column)
            rows = Ragged(mapped(path.with_suffix(".bin"), column.dtype, int(sequences[-1])), sequences)
            lists = Ragged(rows, documents)
            if column.levels == 1 and (lists.lengths != 1).any():
                raise ValueError(f"{path.name}: a row has other than one sequence")
            opened[column.name] = rows if column.levels == 1 else lists
        return opened


def _prefix(column: Column, shard: int) -> str:
    return f"shard_{shard:04d}-{column.name}"


def _index_of(column: FlatColumn) -> list[bytes]:
    """The content of the `.idx`, in pieces."""
    sequences = joined(column.inner or column.rows, "int64", 1).flat
    documents = joined(column.lists, "int64", 1).flat if column.lists else np.ones_like(sequences)
    dtype = column.column.dtype
    return [
        HEADER.pack(_MAGIC, _VERSION, CODES[dtype], len(sequences), len(documents) + 1),
        sequences.astype("<i4").tobytes(),
        offsets_of(sequences * np.dtype(dtype).itemsize)[:-1].astype("<i8").tobytes(),
        offsets_of(documents).astype("<i8").tobytes(),
    ]


def _index(name: str, data: bytes, column: Column) -> tuple[Array, Array]:
    """(offsets of sequences, in values; offsets of documents, in sequences), int64, from 0."""
    *header, count, borders = HEADER.unpack_from(data)
    if header != (wanted := [_MAGIC, _VERSION, CODES.get(column.dtype)]):
        raise ValueError(f"{name} begins with {header}, wanted {wanted} (code of {column.dtype})")
    if len(data) != (size := HEADER.size + 12 * count + 8 * borders):
        raise ValueError(f"{name} has {len(data)} bytes, wanted {size}: {count} sequences, {borders} borders")
    lengths = np.frombuffer(data, "<i4", count, HEADER.size)
    pointers = np.frombuffer(data, "<i8", count, HEADER.size + 4 * count)
    documents = np.frombuffer(data, "<i8", borders, HEADER.size + 12 * count).astype(np.int64)
    sequences = offsets_of(lengths)
    begins = sequences[:-1] * np.dtype(column.dtype).itemsize
    if (lengths < 0).any() or not np.array_equal(pointers, begins):
        raise ValueError(f"{name}: the sequences do not begin where the one before ends")
    return sequences, documents
