"""`npy`: the token files of OLMo-core and Dolma. Despite their name they have no header.

    <domain>/<column>/shard_0000.npy       the little-endian values of all rows, one row after the other
    <domain>/<column>/shard_0000.csv.gz    a line "start,end" for each row, in values

* Masks are one byte a token, 0 or 1, in any dtype of the column: OLMo-core maps them as bool. All other columns keep
  their dtype. OLMo-core reads ids as uint8, uint16, uint32 or uint64. A signed dtype has the same bytes, because no id
  is below 0.
* A row of lists of lists has a third field, the lengths of its lists: "0,7,3 0 4".
* The gzip streams are not compressed (17 bytes a row), so their bytes do not depend on the version of zlib. They store
  no time and no name.

OLMo-core reads a domain like this. It sorts the files of both globs, so masks and ids match:

    NumpyFSLDatasetConfig(
        paths=["out/wiki/sequence/*.npy"],
        label_mask_paths=["out/wiki/loss_mask/*.npy"],
        expand_glob=True,
        dtype=NumpyDatasetDType.uint32,
        ...
    )

Source: olmo_core/data/utils.py, `load_array_slice`, `write_document_indices` and `iter_document_indices` (it reads the
first two fields of a line); olmo_core/data/numpy_dataset.py.
"""

import gzip
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats import FilesOfShard
from beam_prep.formats.flat import FlatColumn, FlatFormat, mapped

BLOCK = (1 << 16) - 1
"""Most bytes of an uncompressed block of a gzip stream."""


class Npy(FlatFormat):
    """The format `npy`; see the module."""

    name = "npy"
    piece = 1 << 12
    """Rows whose lines are made at a time."""

    def warnings(self, holds: Collection[str]) -> Iterator[str]:
        """See `Format`."""
        if "labels" in holds:
            yield "OLMo-core reads a mask, and no labels: use columns 'loss_mask'"

    def stored(self, column: Column) -> str:
        if column.role != "mask" or column.dtype == "bool":
            return column.dtype
        return "uint8" if column.dtype.startswith("u") else "int8"

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        return f"{column.name}/shard_{shard:04d}.npy"

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        names = ((self.values_file(column, shard, shards), _borders_file(column, shard)) for column in columns)
        return dict.fromkeys(name for pair in names for name in pair)

    def borders(self, columns: Sequence[FlatColumn], shard: int, shards: int) -> Iterator[tuple[str, Iterator[bytes]]]:
        for each in columns:
            yield _borders_file(each.column, shard), _gzipped(_lines(each, self.piece))

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        opened = {}
        for column in columns:
            borders, inner = _borders(folder / _borders_file(column, shard), column.levels)
            values = mapped(folder / self.values_file(column, shard, shards), self.stored(column), int(borders[-1]))
            lists = values if inner is None else Ragged.from_lengths(values, inner.flat)
            opened[column.name] = Ragged(lists, borders if inner is None else inner.offsets)
        return opened


def _borders_file(column: Column, shard: int) -> str:
    return f"{column.name}/shard_{shard:04d}.csv.gz"


def _lines(column: FlatColumn, piece: int) -> Iterator[bytes]:
    """The CSV lines of all rows, in pieces of so many rows."""
    start = 0
    for index, lengths in enumerate(column.rows):
        borders = start + offsets_of(lengths)
        start = int(borders[-1])
        lists = Ragged.from_lengths(column.inner[index], column.lists[index]) if column.lists else None
        for at in range(0, len(lengths), piece):
            fields: list[str] = list(map("%d,%d".__mod__, pairwise(borders[at : at + piece + 1].tolist())))
            if lists is not None:
                inner = lists[at : at + piece].to_lists()
                fields = [f"{field},{' '.join(map(str, row))}" for field, row in zip(fields, inner, strict=True)]
            yield "".join(f"{field}\n" for field in fields).encode()


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A gzip stream of uncompressed blocks."""
    yield b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no time, no name, no system
    held, crc, size = b"", 0, 0
    for piece in pieces:
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        held += piece
        while len(held) > BLOCK:
            yield _block(held[:BLOCK], last=False)
            held = held[BLOCK:]
    yield _block(held, last=True)
    yield struct.pack("<II", crc, size & 0xFFFFFFFF)


def _block(data: bytes, last: bool) -> bytes:
    return struct.pack("<BHH", last, len(data), len(data) ^ 0xFFFF) + data


def _borders(path: Path, depth: int) -> tuple[Array, Ragged | None]:
    """The offsets of rows, in values; and for lists of lists the lengths of each row's lists, else None."""
    rows = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    fields = list(zip(*rows, strict=True)) or [()] * (depth + 1)
    if len(fields) != depth + 1:
        raise ValueError(f"{path.name} has {len(fields)} fields a line, wanted {depth + 1}")
    starts, ends = (np.array(numbers, np.int64) for numbers in fields[:2])
    borders = np.append(0, ends)
    if not np.array_equal(borders[:-1], starts) or (np.diff(borders) < 0).any():
        raise ValueError(f"{path.name}: its rows do not follow each other")
    if depth == 1:
        return borders, None
    lists = Ragged.from_lists([list(map(int, text.split())) for text in fields[2]], np.int64)
    if (lists.flat < 0).any() or not np.array_equal(lists.sums(), np.diff(borders)):
        raise ValueError(f"{path.name}: its lists do not add up to its rows")
    return borders, lists
