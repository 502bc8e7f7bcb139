"""`bin`: raw arrays that `numpy.memmap` opens, with the offsets of rows in a `meta.json`.

    <domain>/meta.json  <domain>/<key>.bin             a domain of one shard
    <domain>/shard_0000/meta.json  .../<key>.bin       a domain of several shards

* `<key>.bin`: the little-endian values of all rows, one row after the other, no header; bool is one byte, 0 or 1.
* `meta.json`, one line: `{"<key>": {"shape": [n], "dtype": "int32", "offsets": [0, ...]}}`. `offsets` are the starts
  of rows and the end, in values: row i is `values[offsets[i]:offsets[i + 1]]`.
* A column of lists of lists also has `"inner_offsets"` (offsets of inner lists, in values) and `"list_offsets"`
  (offsets of rows, in inner lists). Its `offsets` are still offsets of rows in values, for readers of the flat form.

The layout is the same as in AstrAI's MmapStore (its preprocessing guide, "Output Layout"), which ignores unknown fields
of an entry. The files have no checksums; the manifest has them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import FilesOfShard
from beam_prep.formats.flat import FlatColumn, FlatFormat, mapped, rows_over

META = "meta.json"


class Bin(FlatFormat):
    """The format `bin`; see the module."""

    name = "bin"

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        return f"{_folder(shard, shards)}{column.name}.bin"

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        names = [*(self.values_file(column, shard, shards) for column in columns), _folder(shard, shards) + META]
        return dict.fromkeys(names)

    def borders(self, columns: Sequence[FlatColumn], shard: int, shards: int) -> Iterator[tuple[str, Iterator[bytes]]]:
        yield _folder(shard, shards) + META, _meta(columns)

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        folder = folder / _folder(shard, shards)
        meta = json.loads((folder / META).read_bytes())
        return {column.name: _open_column(folder, column, meta[column.name]) for column in columns}


def _folder(shard: int, shards: int) -> str:
    return "" if shards == 1 else f"shard_{shard:04d}/"


def _meta(columns: Sequence[FlatColumn]) -> Iterator[bytes]:
    """`meta.json`, column by column, so only one column's offsets are Python numbers at a time."""
    before = "{"
    for each in columns:
        entry: dict[str, Any] = {"shape": [each.size], "dtype": each.column.dtype}
        entry |= {key: borders.tolist() for key, borders in each.borders().items()}
        yield f"{before}{json.dumps(each.column.name)}: {json.dumps(entry)}".encode()
        before = ", "
    yield b"}" if columns else b"{}"


def _open_column(folder: Path, column: Column, entry: dict[str, Any]) -> Ragged:
    """The column over its mapped file; `entry`: what `meta.json` says of it."""
    if entry["dtype"] != column.dtype:
        raise ValueError(f"column {column.name!r}: {META} says dtype {entry['dtype']}, wanted {column.dtype}")
    (size,) = entry["shape"]
    return rows_over(mapped(folder / f"{column.name}.bin", column.dtype, int(size)), column, entry.__getitem__)
