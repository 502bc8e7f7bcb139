"""`mds`: shards of mosaicml-streaming, one `<domain>/shard.00000.mds` a shard, and the domain's `index.json`.

    rows = StreamingDataset(local="out/wiki", batch_size=8)        # or remote="s3://bucket/out/wiki"

* A shard has four parts: the number of rows (uint32); the start of each row and the end (uint32); a description of the
  shard (JSON); the rows. A row has the sizes of its fields in bytes (uint32), then the fields. All is little-endian.
* Fields are sorted by name, as in the description. Each is an `ndarray:<dtype>` of one dimension: one byte (number of
  dimensions << 2, plus 0, 1 or 2 if the next number has 1, 2 or 4 bytes), the number of values, the values.
* bool is stored as uint8, 0 or 1: an MDS ndarray cannot be bool. A column of lists of lists has its values, flat, under
  its name, and the lengths of the inner lists as the int64 field `<name>/lengths`, as in `tfrecord`.
* A metadata column is a `str`, or a number in its dtype; a row does not store the size of a number.
* An empty row is an ndarray without values. `StreamingDataset` reads it, though `MDSWriter` writes none.
* The offsets are uint32, so a shard has less than 4 GiB. The offsets come first but are known last, so the rows are
  written to a temporary file (`TMPDIR`) before.
* `index.json` lists all shards of the domain with sizes and sha256. It is written when the output is published, because
  no shard knows the others.

Source: streaming/base/format/mds, `MDSWriter` (size_limit=None, hashes=["sha256"]), `NDArray`; base/format/writer.py.
"""

import itertools
import json
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress, pairwise
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats import Format, Row, ShardReader, ShardWriter, cast, in_temporary_folder, map_file
from beam_prep.formats.manifest import ShardReceipt
from beam_prep.shards.domains import part_of

INDEX = "index.json"
_NAME = "shard.{shard:05d}.mds"

_U4 = np.dtype("<u4")
_WIDTHS: dict[bytes, np.dtype[Any]] = {b"\x04": np.dtype("<u1"), b"\x05": np.dtype("<u2"), b"\x06": _U4}
"""First byte of an array of one dimension -> the dtype of its length."""


def _index(columns: Sequence[Column], folder: str, shards: Sequence[ShardReceipt]) -> dict[str, Any]:
    """The content of a domain's `index.json`; `folder`: the domain's folder in the output."""
    entries = []
    for shard in shards:
        name = _NAME.format(shard=shard.shard)
        file = {file.path: file for file in shard.files}[f"{folder}/{name}"]
        raw = {"basename": name, "bytes": file.bytes, "hashes": {"sha256": file.sha256}}
        entries.append({**_description(columns), "raw_data": raw, "samples": shard.rows, "zip_data": None})
    return {"shards": entries, "version": 2}


def _fields(columns: Sequence[Column]) -> list[Column]:
    """The fields of a row, in their order: a column of lists of lists has two."""
    found = [replace(column, depth=min(column.depth, 1)) for column in columns]
    found += [Column(f"{column.name}/lengths", "int64", 1, "lengths") for column in columns if column.depth == 2]
    return sorted(found, key=lambda field: field.name)


def _size(field: Column) -> int | None:
    """The bytes of a field, as in the description of a shard; None: each row stores them."""
    return None if field.depth or field.role == "string" else np.dtype(field.dtype).itemsize


def _encoding(field: Column) -> str:
    """The encoding of a field, as in the description of a shard."""
    if field.role == "string":
        return "str"
    dtype = "uint8" if field.dtype == "bool" else field.dtype
    return f"ndarray:{dtype}" if field.depth else dtype


def _description(columns: Sequence[Column]) -> dict[str, Any]:
    fields = _fields(columns)
    return {
        "column_encodings": [_encoding(field) for field in fields],
        "column_names": [field.name for field in fields],
        "column_sizes": [_size(field) for field in fields],
        "compression": None,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": None,
        "version": 2,
    }


class MDSWriter(ShardWriter):
    """Writes rows to a temporary file. `close` writes the offsets, then copies the rows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._fields = _fields(self._columns)
        self._description = json.dumps(_description(self._columns)).encode()
        with in_temporary_folder():
            self._rows = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        self._sizes: list[int] = []
        self._bytes = len(self._description) + 8

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        """Also raises ValueError if the shard becomes larger than 4 GiB."""
        given = dict(columns)
        for name, rows in columns.items():
            if isinstance(rows.values, Ragged):
                given[f"{name}/lengths"] = Ragged(rows.values.lengths, rows.offsets)
        fields = [_encoded(given[field.name], field) for field in self._fields]
        # The sizes of fields of fixed size are not stored.
        said = [_size(field) is None for field in self._fields]
        pack = struct.Struct(f"<{sum(said)}I").pack
        parts: list[bytes] = []
        for row in zip(*fields, strict=True):
            sizes = [len(field) for field in row]
            head = pack(*compress(sizes, said))
            parts += [head, *row]
            size = len(head) + sum(sizes)
            self._sizes.append(size)
            self._bytes += size + _U4.itemsize
        if self._bytes > self._format.most_bytes:
            raise ValueError(
                f"a shard has more than {self._format.most_bytes} bytes, which the format mds cannot hold: "
                "lower output.max_tokens_per_shard"
            )
        with in_temporary_folder():
            self._rows.write(b"".join(parts))

    def close(self) -> None:
        """Writes the offsets, then the rows, and closes the file."""
        rows = len(self._sizes)
        offsets = offsets_of(np.array(self._sizes, np.int64)) + _rows_begin(rows, len(self._description))
        self._file.write(np.append(rows, offsets).astype(_U4).tobytes() + self._description)
        with in_temporary_folder():
            self._rows.seek(0)  # also writes what the file buffers
        shutil.copyfileobj(self._rows, self._file)
        self._rows.close()
        self._file.close()


def _rows_begin(rows: int, description: int) -> int:
    return _U4.itemsize * (rows + 2) + description


def _encoded(rows: Ragged, field: Column) -> list[bytes]:
    """The stored bytes of a field, for each row."""
    values, lengths = cast(rows.flat, field.dtype, field.name), rows.flat_lengths
    data, borders = values.tobytes(), (offsets_of(lengths) * values.itemsize).tolist()
    found = [data[start:stop] for start, stop in pairwise(borders)]
    if field.depth == 0:
        return found
    return [_head(length) + each for length, each in zip(lengths.tolist(), found, strict=True)]


def _head(length: int) -> bytes:
    """The head of an ndarray: the bytes before its values."""
    width = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes([4 | width]) + length.to_bytes(1 << width, "little")


class MDSReader(ShardReader):
    """Rows of one shard, decoded from its memory-mapped file."""

    def _open(self) -> None:
        self._fields = _fields(self._columns)
        self._data = map_file(self._path)
        self._starts = self._offsets()

    def _offsets(self) -> Array:
        """int64 [rows + 1]: the start of each row, and the end of the file."""
        data = self._data
        rows = int(data[:4].view(_U4).sum())
        begin = _rows_begin(rows, 0)
        offsets = data[4:begin].view(_U4).astype(np.int64)
        rising = len(offsets) == rows + 1 and offsets[0] >= begin and (np.diff(offsets) >= 0).all()
        if not rising or offsets[-1] != len(data):
            raise ValueError(f"the offsets of {rows} rows do not rise to the end of the file, {len(data)}")
        found, wanted = json.loads(data[begin : offsets[0]].tobytes()), _description(self._columns)
        if found != wanted:
            raise ValueError(f"found {found}, wanted {wanted}")
        return offsets

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _row(self, number: int) -> Row:
        row = self._data[self._starts[number] : self._starts[number + 1]]
        start = _U4.itemsize * sum(_size(field) is None for field in self._fields)
        said = row[:start].view(_U4).tolist()
        arrays = {}
        for field in self._fields:
            size = _size(field)
            stop = start + (said.pop(0) if size is None else size)
            arrays[field.name] = _decoded(row[start:stop], field)
            start = stop
        rows: Row = {}
        for column in self._columns:
            values, lists = arrays[column.name], column.depth == 2
            rows[column.name] = Ragged.from_lengths(values, arrays[f"{column.name}/lengths"]) if lists else values
        return rows

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        return np.diff(self._starts)


def _decoded(data: Array, field: Column) -> Array:
    """The values of a field.

    Raises:
        ValueError: the field is damaged.
    """
    dtype = np.dtype(field.dtype).newbyteorder("<")
    if field.depth == 0:
        return data.view(dtype)
    width = _WIDTHS.get(data[:1].tobytes(), _U4)
    begin = 1 + width.itemsize
    values = data[begin:].view(dtype)
    size = data[1:begin].view(width).tolist()
    if data[:1].tobytes() not in _WIDTHS or size != [len(values)]:
        raise ValueError(f"{field.name!r} is no array of one dimension, or has another length than it says")
    return values


class MDS(Format):
    """The format `mds`; see the module."""

    name = "mds"
    file_name = _NAME
    sizes_in = "bytes"
    strings = "single"
    writes = MDSWriter
    reads = MDSReader
    largest = 7 << 29
    """Bytes of values, below 4 GiB: the offsets are uint32. The rest is room for sizes, offsets and description."""
    most_bytes = 2**32 - 1
    """Bytes of a shard with all of these: its last offset."""

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: Sequence[ShardReceipt]
    ) -> dict[str, bytes]:
        """See `Format`: an `index.json` for each domain, as `MDSWriter` writes it."""
        found = {}
        for (split, domain), some in itertools.groupby(shards, lambda shard: (shard.split, shard.domain)):
            folder = part_of(split, domains[domain])
            text = json.dumps(_index(columns, folder, list(some)), sort_keys=True)
            found[f"{folder}/{INDEX}"] = text.encode()
        return found
