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
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import (
    FileFormat,
    FileReader,
    OpenFile,
    Row,
    cast,
    check_rows,
    in_temporary_folder,
    map_file,
)
from beam_prep.formats.manifest import MANIFEST, ShardReceipt
from beam_prep.shards.domains import part_of

__all__ = ["INDEX", "MDS", "MDSReader", "MDSWriter"]

INDEX = "index.json"

_U4 = np.dtype("<u4")
_WIDTHS = (np.dtype("<u1"), np.dtype("<u2"), _U4)
_ONE_DIMENSION = 1 << 2
_COPY_BYTES = 1 << 20


class MDS(FileFormat):
    """The format `mds`; see the module."""

    name = "mds"
    file_name = "shard.{shard:05d}.mds"
    sizes_in = "bytes"
    strings = "single"
    largest = 7 << 29
    """Bytes of values, below 4 GiB: the offsets are uint32. The rest is room for sizes, offsets and description."""
    most_bytes = 2**32 - 1
    """Bytes of a shard with all of these: its last offset."""

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "MDSWriter":
        """See `Format.writer`."""
        return MDSWriter(open_file, columns, self.file(shard, shards), self.most_bytes)

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

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "MDSReader":
        """See `Format.read`. The file is mapped into memory; a row is decoded when it is read."""
        return MDSReader(folder / self.file(shard, shards), columns)


def _index(columns: Sequence[Column], folder: str, shards: Sequence[ShardReceipt]) -> dict[str, Any]:
    """The content of a domain's `index.json`; `folder`: the domain's folder in the output."""
    entries = []
    for shard in shards:
        name = MDS.file_name.format(shard=shard.shard)
        file = {file.path: file for file in shard.files}.get(f"{folder}/{name}")
        if file is None:
            raise FormatError(f"{MANIFEST} does not list {folder}/{name}, which {folder}/{INDEX} needs")
        raw = {"basename": name, "bytes": file.bytes, "hashes": {"sha256": file.sha256}}
        entries.append({**_description(columns), "raw_data": raw, "samples": shard.rows, "zip_data": None})
    return {"shards": entries, "version": 2}


def _fields(columns: Sequence[Column]) -> dict[str, tuple[Column, str]]:
    """Field -> (column, stored dtype), in the order of a row.

    Raises:
        ValueError: rows have lists of strings.
    """
    if lists := [column.name for column in columns if column.role == "string" and column.depth]:
        raise ValueError(f"column {lists[0]!r}: the format mds has no lists of strings")
    fields = {column.name: (column, "uint8" if column.dtype == "bool" else column.dtype) for column in columns}
    fields |= {f"{column.name}/lengths": (column, "int64") for column in columns if column.levels == 2}
    return dict(sorted(fields.items()))


def _encoding(column: Column, dtype: str) -> str:
    if column.depth == 0:
        return "str" if column.role == "string" else dtype
    return f"ndarray:{dtype}"


def _size(column: Column, dtype: str) -> int | None:
    """The bytes of a field of fixed size; None for other fields."""
    return np.dtype(dtype).itemsize if column.depth == 0 and column.role != "string" else None


def _description(columns: Sequence[Column]) -> dict[str, Any]:
    fields = _fields(columns)
    return {
        "column_encodings": [_encoding(*field) for field in fields.values()],
        "column_names": list(fields),
        "column_sizes": [_size(*field) for field in fields.values()],
        "compression": None,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": None,
        "version": 2,
    }


class MDSWriter:
    """Writes rows to a temporary file. `close` writes the offsets, then copies the rows. See `ShardWriter`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], name: str, most_bytes: int) -> None:
        self._columns, self._most_bytes = tuple(columns), most_bytes
        self._fields = _fields(columns)
        self._description = json.dumps(_description(columns)).encode()
        self._file = open_file(name)
        with in_temporary_folder():
            self._rows = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        self._sizes: list[int] = []
        self._bytes = len(self._description) + 8

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`.

        Raises:
            ValueError: also if the shard becomes larger than 4 GiB.
        """
        rows = check_rows(self._columns, columns)
        if not rows:
            return
        fields = [_encoded(columns[column.name], column, name) for name, (column, _) in self._fields.items()]
        # The sizes of fields of fixed size are not stored.
        said = [_size(*field) is None for field in self._fields.values()]
        pack = struct.Struct(f"<{sum(said)}I").pack
        parts: list[bytes] = []
        for row in zip(*fields, strict=True):
            sizes = [len(field) for field in row]
            head = pack(*compress(sizes, said))
            parts += [head, *row]
            self._sizes.append(len(head) + sum(sizes))
        self._bytes += sum(self._sizes[-rows:]) + _U4.itemsize * rows
        if self._bytes > self._most_bytes:
            raise ValueError(
                f"a shard has more than {self._most_bytes} bytes, which the format mds cannot hold: "
                "lower output.max_tokens_per_shard"
            )
        with in_temporary_folder():
            self._rows.write(b"".join(parts))

    def close(self) -> None:
        """Writes the offsets, then the rows, and closes the file."""
        rows = len(self._sizes)
        offsets = offsets_of(np.array(self._sizes, np.int64)) + _rows_begin(rows, len(self._description))
        self._file.write(np.concatenate([[rows], offsets]).astype(_U4).tobytes() + self._description)
        with in_temporary_folder():
            self._rows.seek(0)  # also writes what the file buffers
        shutil.copyfileobj(self._rows, self._file, _COPY_BYTES)
        self._rows.close()
        self._file.close()


def _rows_begin(rows: int, description: int) -> int:
    return _U4.itemsize * (rows + 2) + description


def _encoded(rows: Ragged, column: Column, field: str) -> list[bytes]:
    """The stored bytes of a field, for each row."""
    if field != column.name and isinstance(rows.values, Ragged):
        values, lengths = rows.values.lengths.astype("<i8"), rows.lengths
    else:
        values, lengths = cast(rows.flat, column.dtype, column.name), rows.flat_lengths
    data, borders = values.tobytes(), (offsets_of(lengths) * values.itemsize).tolist()
    found = [data[start:stop] for start, stop in pairwise(borders)]
    if column.depth == 0:
        return found
    return [_head(length) + each for length, each in zip(lengths.tolist(), found, strict=True)]


def _head(length: int) -> bytes:
    """The head of an ndarray: the bytes before its values."""
    width = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes([_ONE_DIMENSION | width]) + length.to_bytes(1 << width, "little")


class MDSReader(FileReader):
    """Rows of one shard, decoded from its memory-mapped file; see `ShardReader`."""

    kind = "MDS"

    def _open(self) -> None:
        self._fields = _fields(self._columns)
        self._data = map_file(self._path)
        self._starts = self._offsets()

    def _offsets(self) -> Array:
        """int64 [rows + 1]: the start of each row, and the end of the file."""
        data = self._data
        rows = int(data[:4].view(_U4)[0]) if len(data) >= 4 else 0
        if len(data) < _rows_begin(rows, 0):
            raise ValueError(f"found {len(data)} bytes, too few for the offsets of {rows} rows")
        offsets = data[4 : _rows_begin(rows, 0)].view(_U4).astype(np.int64)
        if offsets[-1] != len(data) or offsets[0] < _rows_begin(rows, 0) or (np.diff(offsets) < 0).any():
            raise ValueError(f"the offsets do not rise to the end of the file, {len(data)}")
        try:
            found = json.loads(data[_rows_begin(rows, 0) : offsets[0]].tobytes())
        except ValueError as error:
            raise ValueError(f"its description is not JSON: {error}") from None
        wanted = _description(self._columns)
        if found != wanted:
            raise ValueError(f"found {found}, wanted {wanted}")
        return offsets

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _row(self, number: int) -> Row:
        data = self._data[self._starts[number] : self._starts[number + 1]]
        arrays = dict(zip(self._fields, self._arrays(data), strict=True))
        return {column.name: _value(column, arrays) for column in self._columns}

    def _arrays(self, row: Array) -> Iterator[Array]:
        """The fields of a row.

        Raises:
            ValueError: the row is damaged.
        """
        fixed = [_size(*field) for field in self._fields.values()]
        start = _U4.itemsize * fixed.count(None)
        if len(row) < start:
            raise ValueError(f"found {len(row)} bytes, wanted at least {start}")
        said = iter(row[:start].view(_U4).tolist())
        sizes: list[int] = [next(said) if size is None else size for size in fixed]
        if start + sum(sizes) != len(row):
            raise ValueError(f"its fields have {sizes} bytes, all of it {len(row)}")
        for (name, (column, dtype)), size in zip(self._fields.items(), sizes, strict=True):
            stored, field = np.dtype(dtype).newbyteorder("<"), row[start : start + size]
            yield field.view(stored) if column.depth == 0 else _decoded(field, stored, name)
            start += size

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        return np.diff(self._starts)


def _decoded(field: Array, dtype: np.dtype[Any], name: str) -> Array:
    kind = int(field[0]) if len(field) else -1
    width = _WIDTHS[kind & 3] if kind >> 2 == 1 and kind & 3 < len(_WIDTHS) else None
    if width is None or len(field) < 1 + width.itemsize:
        raise ValueError(f"{name!r} is no array of one dimension")
    begin = 1 + width.itemsize
    count = int(field[1:begin].view(width)[0])
    if begin + count * dtype.itemsize != len(field):
        raise ValueError(f"{name!r} has {len(field)} bytes for {count} values")
    return field[begin:].view(dtype)


def _value(column: Column, arrays: Mapping[str, Array]) -> Array | Ragged:
    values = arrays[column.name].view(bool) if column.dtype == "bool" else arrays[column.name]
    return values if column.levels == 1 else Ragged.from_lengths(values, arrays[f"{column.name}/lengths"])
