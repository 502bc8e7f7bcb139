"""`arrow`: a domain's folder is what `Dataset.save_to_disk` of Hugging Face's `datasets` leaves.

    <domain>/data-00000-of-00003.arrow  ...        one a shard
    <domain>/state.json  <domain>/dataset_info.json    of the domain; written with shard 0

    rows = datasets.load_from_disk("out/wiki")     # memory-mapped; rows["sequence"] are list columns

* A shard is an Arrow IPC *stream*, uncompressed: a schema, record batches, the end marker. Columns are
  `list<item: dtype>` (depth 2: `list<item: list<item: dtype>>`) without nulls; bool values are bits.
* A record batch holds the next `BATCH_ROWS` rows, or fewer where their values would exceed `BATCH_BYTES`: its borders
  follow from the rows alone, and so do the bytes.
* Features are written as `Sequence`, which every version of datasets reads; the `List` of version 4 fails in version 3.
* `_fingerprint` is null: datasets then makes one from the files' paths and times. `map` names its caches by it, and one
  that does not change with the rows of every shard (which shard 0 cannot know) would give another dataset's cache.

Sources: arrow.apache.org/docs/format/Columnar.html, "IPC Streaming Format"; datasets/arrow_dataset.py, `save_to_disk`
and `load_from_disk`; datasets/arrow_writer.py, `_build_metadata` (the schema's key `huggingface`).
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import FilesOfShard, OpenFile, Row, SizeUnit, cast, check_rows, row_number

__all__ = ["Arrow", "ArrowReader", "ArrowWriter", "dataset_dict"]

STATE, INFO = "state.json", "dataset_info.json"
DATASET_DICT = "dataset_dict.json"

BATCH_ROWS = 1000
"""Rows of a record batch, at most: datasets' own default."""

BATCH_BYTES = 1 << 22
"""Bytes of a record batch's values, at most (a bool counted as one); a row that has more is a batch of its own."""

MAX_VALUES = 2**31 - 1
"""Values of a record batch that the borders of an Arrow list, int32, can count."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Arrow:
    """The format `arrow`; see the module."""

    name = "arrow"
    sizes_in: SizeUnit = "values"

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "ArrowWriter":
        """See `Format.writer`. Shard 0 writes the domain's `state.json` and `dataset_info.json` as well."""
        return ArrowWriter(open_file, columns, shard, shards)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {_file_name(shard, shards): None, **_described(columns, shard, shards)}

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "ArrowReader":
        """See `Format.read`. Reads the heads of the record batches; values are read when they are touched."""
        return ArrowReader(folder / _file_name(shard, shards), columns)


def dataset_dict(domains: Sequence[str]) -> dict[str, list[str]]:
    """The content of a `dataset_dict.json` beside the domains' folders.

    With it `datasets.load_from_disk` opens the folder above them, too, as a `DatasetDict` of the domains.
    """
    return {"splits": list(domains)}


def _file_name(shard: int, shards: int) -> str:
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def _features(columns: Sequence[Column]) -> dict[str, Any]:
    """The argument of `Features.from_dict`."""
    found = {}
    for column in columns:
        feature: dict[str, Any] = {"dtype": column.dtype, "_type": "Value"}
        for _ in range(column.depth):
            feature = {"feature": feature, "_type": "Sequence"}
        found[column.name] = feature
    return found


def _type(column: Column) -> pa.DataType:
    """`list<item: dtype>`, or the list of this."""
    found = pa.from_numpy_dtype(np.dtype(column.dtype))
    for _ in range(column.depth):
        found = pa.list_(found)
    return found


def _schema(columns: Sequence[Column]) -> pa.Schema:
    metadata = {"huggingface": json.dumps({"info": {"features": _features(columns)}})}
    return pa.schema([(column.name, _type(column)) for column in columns], metadata)


def _state(shards: int) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": _file_name(shard, shards)} for shard in range(shards)],
        "_fingerprint": None,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _info(columns: Sequence[Column]) -> dict[str, Any]:
    return {"citation": "", "description": "", "features": _features(columns), "homepage": "", "license": ""}


def _described(columns: Sequence[Column], shard: int, shards: int) -> dict[str, bytes]:
    """The files that describe a domain, which its shard 0 writes."""
    described = {STATE: _state(shards), INFO: _info(columns)} if shard == 0 else {}
    return {name: json.dumps(content, indent=2).encode() for name, content in described.items()}


class ArrowWriter:
    """Writes record batches as they fill; at most one that is not full stays in memory. See `ShardWriter`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> None:
        self._open_file = open_file
        self._columns = tuple(columns)
        self._described = _described(columns, shard, shards)
        self._schema = _schema(columns)
        self._file = open_file(_file_name(shard, shards))
        self._file.write(memoryview(self._schema.serialize()))
        self._clear()

    def _clear(self) -> None:
        # The batch that is being filled: rows of earlier calls (copies) and of this one (a view), and their sizes.
        self._parts: list[dict[str, Ragged]] = []
        self._rows = self._bytes = 0

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`.

        Raises:
            ValueError: also for a row of more than `MAX_VALUES` values.
        """
        rows = check_rows(self._columns, columns)
        data = {
            column.name: columns[column.name].with_flat(cast(columns[column.name].flat, column.dtype, column.name))
            for column in self._columns
        }
        sizes = [ragged.flat_lengths * ragged.flat.itemsize for ragged in data.values()]
        ends = offsets_of(np.sum(sizes, axis=0)) if rows else np.zeros(1, np.int64)
        start = 0
        while start < rows:
            stop = self._fitting(ends, start)
            if stop == start:
                self._flush()
            else:
                self._parts.append({name: ragged[start:stop] for name, ragged in data.items()})
                self._rows += stop - start
                self._bytes += int(ends[stop] - ends[start])
                start = stop
        if rows:
            self._parts[-1] = {name: ragged.with_flat(ragged.flat.copy()) for name, ragged in self._parts[-1].items()}

    def _fitting(self, ends: Array, start: int) -> int:
        """The row up to which rows from `start` on fit into the batch; `ends`: their borders, in bytes.

        An empty batch takes a row of any size.
        """
        by_bytes = int(np.searchsorted(ends, ends[start] + BATCH_BYTES - self._bytes, "right")) - 1
        return max(min(by_bytes, start + BATCH_ROWS - self._rows), start if self._rows else start + 1)

    def _flush(self) -> None:
        arrays = [
            _array(Ragged.concat([part[column.name] for part in self._parts]), _type(column))
            for column in self._columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._file.write(memoryview(batch.serialize()))
        self._clear()

    def close(self) -> None:
        """Writes the last batch and closes the file; then, for shard 0, the files that describe the domain.

        Raises:
            ValueError: the last row has more than `MAX_VALUES` values.
        """
        if self._rows:
            self._flush()
        self._file.write(_END)
        self._file.close()
        for name, content in self._described.items():
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(name)
            file.write(content)
            file.close()


def _array(values: Array | Ragged, stored: pa.DataType) -> pa.Array:
    """Rows or values as an Arrow array over the same memory (bools are packed): no nulls, no bitmap of them."""
    if not isinstance(values, Ragged):
        data = np.packbits(values, bitorder="little") if values.dtype == bool else values
        return pa.Array.from_buffers(stored, len(values), [None, pa.py_buffer(data)], null_count=0)
    if values.offsets[-1] > MAX_VALUES:
        raise ValueError(f"a row of {values.offsets[-1]} values: the format arrow holds up to {MAX_VALUES}")
    borders = pa.py_buffer(values.offsets.astype(np.int32))
    inner = _array(values.values, stored.value_type)
    return pa.Array.from_buffers(stored, len(values), [None, borders], null_count=0, children=[inner])


class ArrowReader:
    """Rows of one shard, as views of its memory-mapped file (bools are copied); see `ShardReader`."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        """Maps the file.

        Raises:
            FormatError: it is missing, cut, damaged in what describes its batches, or does not hold these columns. (A
                changed value shows only in the manifest's sha256.)
        """
        self._path = path
        self._columns = tuple(columns)
        self._views: dict[int, dict[str, _View]] = {}
        try:
            self._batches = _batches(path, self._columns)
        except FileNotFoundError:
            raise FormatError(f"{path}: no such file") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{path}: not a complete Arrow stream of these columns: {error}") from None
        self._starts: list[int] = list(accumulate((batch.num_rows for batch in self._batches), initial=0))

    def __reduce__(self) -> tuple[type["ArrowReader"], tuple[Path, tuple[Column, ...]]]:
        # A pickled batch is a copy of its part of the file.
        return ArrowReader, (self._path, self._columns)

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """See `ShardReader.row`."""
        number = row_number(index, len(self))
        which = bisect_right(self._starts, number) - 1
        try:
            if which not in self._views:
                arrays = self._batches[which].columns
                self._views[which] = {
                    column.name: _View(array) for column, array in zip(self._columns, arrays, strict=True)
                }
            return {name: view.row(number - self._starts[which]) for name, view in self._views[which].items()}
        except ValueError as error:
            raise FormatError(f"{self._path}: row {number} is damaged: {error}") from None

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        sizes = [np.zeros(batch.num_rows, np.int64) + sum(map(_sizes, batch.columns)) for batch in self._batches]
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    def lengths(self, name: str) -> Array:
        """int64 [rows]: see `contract.ShardReader`."""
        lengths = [np.diff(batch.column(name).offsets.to_numpy()).astype(np.int64) for batch in self._batches]
        return np.concatenate([np.zeros(0, np.int64), *lengths])


def _sizes(rows: pa.ListArray) -> Array:
    """int64 [rows]: innermost values of each."""
    borders = rows.offsets.to_numpy().astype(np.int64)
    if pa.types.is_nested(rows.values.type):
        borders = rows.values.offsets.to_numpy().astype(np.int64)[borders]
    return np.diff(borders)


def _batches(path: Path, columns: Sequence[Column]) -> list[pa.RecordBatch]:
    """The record batches, of these columns only, over the mapped file.

    Raises:
        FileNotFoundError: there is no such file.
        pa.ArrowException, OSError, ValueError: it is damaged.
    """
    # The mapped memory outlives the closed file, which would keep a file descriptor.
    with pa.memory_map(str(path)) as source:
        stream = pa.ipc.open_stream(source)
        _check_types(stream.schema, columns)
        batches, end = [], source.tell()
        for batch in stream:
            batch.validate()
            batches.append(batch.select([column.name for column in columns]))
            end = source.tell()
        # Arrow takes a file that is cut between two batches for a complete one.
        if source.size() != end + len(_END) or source.read_at(len(_END), end) != _END:
            raise ValueError("its end is missing")
    return batches


def _check_types(schema: pa.Schema, columns: Sequence[Column]) -> None:
    for column in columns:
        found = [field.type for field in schema if field.name == column.name]
        if found != [_type(column)]:
            said = ", ".join(map(str, found)) or "none"
            raise ValueError(f"column {column.name!r}: found {said}, not {_type(column)}")


class _View:
    """A column of a record batch as numpy views: an Arrow array takes ten times as long for a row.

    Raises:
        ValueError: the column has nulls.
    """

    def __init__(self, array: pa.Array) -> None:
        # Of each level of lists: the borders, and the number of items that they cut.
        self._borders: list[tuple[Array, int]] = []
        while pa.types.is_list(array.type):
            self._borders.append((array.offsets.to_numpy(), len(array.values)))
            array = array.values
        self._bits = pa.types.is_boolean(array.type)
        self._values: Array = np.frombuffer(array.buffers()[1], np.uint8) if self._bits else array.to_numpy()

    def row(self, index: int) -> Array | Ragged:
        """One row.

        Raises:
            ValueError: its borders lie outside of the values.
        """
        start, stop = index, index + 1
        for borders, size in self._borders:
            lists = borders[start : stop + 1]
            if lists[0] < 0 or lists[-1] > size or (lists[1:] < lists[:-1]).any():
                raise ValueError(f"its borders do not rise from 0 to {size}")
            start, stop = int(lists[0]), int(lists[-1])
        values = self._flat(start, stop)
        return values if len(self._borders) == 1 else Ragged(values, lists.astype(np.int64) - start)

    def _flat(self, start: int, stop: int) -> Array:
        if not self._bits:
            return self._values[start:stop]
        first = start // 8
        bits = np.unpackbits(self._values[first : (stop + 7) // 8], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].view(bool)
