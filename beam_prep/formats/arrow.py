"""`arrow`: a domain's folder has the layout that `Dataset.save_to_disk` of Hugging Face's `datasets` writes.

    <domain>/data-00000-of-00003.arrow  ...            one file a shard
    <domain>/state.json  <domain>/dataset_info.json    describe the domain; written with shard 0

    rows = datasets.load_from_disk("out/wiki")     # memory-mapped; rows["sequence"] are list columns

* A shard is an Arrow IPC *stream*, uncompressed: a schema, record batches, the end marker. Columns are
  `list<item: dtype>` (depth 2: `list<item: list<item: dtype>>`) without nulls; bool values are bits.
* A metadata column has one value a row (`string`, or a number in its dtype), and in packed rows a list of values.
* A record batch holds the next `batch_rows` rows, or fewer if their values exceed `batch_bytes`. So batches, and the
  bytes of the file, depend only on the rows.
* Features are written as `Sequence`, which every version of datasets reads; the `List` of version 4 fails in version 3.
* `_fingerprint` is null, so datasets makes one from the paths and times of the files. `map` names its caches by the
  fingerprint. Shard 0 does not know the rows of other shards, so a fingerprint written with it could stay the same
  although the rows changed, and `map` would use the cache of another dataset.

Sources: arrow.apache.org/docs/format/Columnar.html, "IPC Streaming Format"; datasets/arrow_dataset.py, `save_to_disk`
and `load_from_disk`; datasets/arrow_writer.py, `_build_metadata` (the schema's key `huggingface`).
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array, Ragged, narrow, ranges
from beam_prep.data.schema import Column
from beam_prep.formats import FilesOfShard, Format, Row, ShardReader, ShardWriter, cast, joined
from beam_prep.formats.manifest import DATASET_DICT, ShardReceipt, dump

STATE, INFO = "state.json", "dataset_info.json"

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_NAME = "data-{shard:05d}-of-{shards:05d}.arrow"


def features(columns: Sequence[Column]) -> dict[str, Any]:
    """The argument of `datasets`' `Features.from_dict`."""
    found = {}
    for column in columns:
        feature: dict[str, Any] = {"dtype": "string" if column.role == "string" else column.dtype, "_type": "Value"}
        for _ in range(column.depth):
            feature = {"feature": feature, "_type": "Sequence"}
        found[column.name] = feature
    return found


def _schema(columns: Sequence[Column]) -> pa.Schema:
    metadata = {"huggingface": json.dumps({"info": {"features": features(columns)}})}
    return pa.schema([(column.name, _type(column)) for column in columns], metadata)


def _type(column: Column) -> pa.DataType:
    """`list<item: dtype>`, nested as deep as the column; no list if a row is one value."""
    found = pa.string() if column.role == "string" else pa.from_numpy_dtype(column.dtype)
    for _ in range(column.depth):
        found = pa.list_(found)
    return found


def check_types(schema: pa.Schema, columns: Sequence[Column]) -> None:
    """Checks that a schema has the wanted columns.

    Raises:
        KeyError, ValueError: a column is missing, or has another type.
    """
    for column in columns:
        if (found := schema.field(column.name).type) != _type(column):
            raise ValueError(f"column {column.name!r}: found {found}, wanted {_type(column)}")


def array_of(values: Array | Ragged, strings: bool = False) -> pa.Array:
    """Rows or values as an Arrow array without nulls; with `strings`, the innermost lists are strings.

    Raises:
        RunError: a list has too many values for the int32 offsets of Arrow.
    """
    if not isinstance(values, Ragged):
        return pa.array(values)
    borders = narrow(values.offsets)
    if strings and not isinstance(values.values, Ragged):
        return pa.StringArray.from_buffers(len(values), pa.py_buffer(borders), pa.py_buffer(values.values))
    return pa.ListArray.from_arrays(pa.array(borders), array_of(values.values, strings))


class BatchWriter(ShardWriter):
    """Cuts rows into record batches, which depend only on the rows; at most one is kept. A subclass implements `_put`.

    A batch has at most the format's `batch_rows` rows and `batch_bytes` bytes of values (a bool counts as one byte). A
    larger row gets a batch of its own.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._schema = _schema(self._columns)
        self._held: dict[str, Ragged] = {}  # rows of the batch that is not full

    def _put(self, batch: pa.RecordBatch) -> None:
        """Writes a batch."""
        raise NotImplementedError

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        rows: dict[str, Ragged] = {}
        for column in self._columns:
            new = columns[column.name]
            new = new.with_flat(cast(new.flat, column.dtype, column.name))
            rows[column.name] = Ragged.concat([self._held[column.name], new]) if self._held else new
        sizes = np.sum([found.flat_lengths * found.flat.itemsize for found in rows.values()], axis=0)
        start = 0
        for part in ranges(sizes, self._format.batch_bytes, int(self._format.batch_rows)):
            if part.stop < len(sizes):
                self._put(self._batch(rows, part))
                start = part.stop
        self._held = {name: found[start:] for name, found in rows.items()}
        self._held = {name: found.with_flat(found.flat.copy()) for name, found in self._held.items()}

    def _batch(self, rows: Mapping[str, Ragged], part: slice) -> pa.RecordBatch:
        arrays = []
        for column in self._columns:
            values = rows[column.name][part]
            is_number = column.depth == 0 and column.role != "string"
            arrays.append(array_of(values.flat if is_number else values, column.role == "string"))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _flush(self) -> None:
        """Writes the last batch, if it has rows."""
        rows = len(next(iter(self._held.values()), ()))
        if rows:
            self._put(self._batch(self._held, slice(rows)))


class BatchReader(ShardReader):
    """A `ShardReader` of rows in record batches. A subclass sets `_starts` and implements `_batch`.

    Attributes:
        _starts: the first row of each batch, and the number of rows.
    """

    _starts: list[int]

    def _batch(self, number: int) -> pa.RecordBatch:
        """A record batch, by number.

        Raises:
            FormatError: the batch is damaged.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return self._starts[-1]

    def _row(self, number: int) -> Row:
        which = bisect_right(self._starts, number) - 1
        row = self._batch(which).slice(number - self._starts[which], 1)
        return {name: rows[0] for name, rows in rows_of(row).items()}

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        metadata = [column.name for column in self._columns if column.metadata]
        blocks = (rows_of(batch, metadata).values() for batch in self._all())
        sizes = [sum((rows.flat_lengths for rows in block), np.int64(0)) for block in blocks]
        return joined(sizes, "int64", 1).flat

    def lengths(self, name: str) -> Array:
        """int64 [rows]: the length of each row of a column."""
        return joined([_rows(batch.column(name)).lengths for batch in self._all()], "int64", 1).flat

    def _all(self) -> Iterator[pa.RecordBatch]:
        return map(self._batch, range(len(self._starts) - 1))


def rows_of(batch: pa.RecordBatch, beside: Collection[str] = ()) -> dict[str, Ragged]:
    """The columns of a batch, without those in `beside`: views of its memory (bools are copied).

    Raises:
        ValueError: a column has nulls, or offsets that lie outside of its values.
    """
    return {name: _rows(batch.column(name)) for name in batch.schema.names if name not in beside}


def _rows(array: pa.Array) -> Ragged:
    found = _values(array)
    return found if isinstance(found, Ragged) else Ragged(found, np.arange(len(found) + 1))


def _values(array: pa.Array) -> Array | Ragged:
    if array.null_count:
        raise ValueError("it has nulls")
    if pa.types.is_list(array.type):
        return _lists(array.offsets.to_numpy(), array.values)
    if pa.types.is_string(array.type):  # stored as a list of bytes
        borders, data = array.buffers()[1:]  # may be None if there are no strings
        offsets = np.zeros(1, np.int32) if borders is None else np.frombuffer(borders, np.int32)
        return _lists(offsets[array.offset :][: len(array) + 1], np.frombuffer(data or b"", np.uint8))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _lists(offsets: Array, values: Any) -> Ragged:
    """Lists of values; `values`: an Arrow array or a numpy array. Arrow itself would crash with damaged offsets."""
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or last > len(values) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"its borders do not rise from 0 to {len(values)}")
    items = values[first:last]
    return Ragged(items if isinstance(items, np.ndarray) else _values(items), offsets.astype(np.int64) - first)


def _state(shards: int) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": _NAME.format(shard=shard, shards=shards)} for shard in range(shards)],
        "_fingerprint": None,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _info(columns: Sequence[Column]) -> dict[str, Any]:
    return {"citation": "", "description": "", "features": features(columns), "homepage": "", "license": ""}


def _described(columns: Sequence[Column], shard: int, shards: int) -> dict[str, bytes]:
    """The files that describe a domain; only shard 0 has them."""
    described = {STATE: _state(shards), INFO: _info(columns)} if shard == 0 else {}
    return {name: json.dumps(content, indent=2).encode() for name, content in described.items()}


class ArrowWriter(BatchWriter):
    """Writes a shard; shard 0 also the files that describe the domain."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._file.write(memoryview(self._schema.serialize()))
        _, self._open_file, *_, shard, shards = given
        self._described = _described(self._columns, shard, shards)

    def _put(self, batch: pa.RecordBatch) -> None:
        self._file.write(memoryview(batch.serialize()))

    def close(self) -> None:
        """Writes the last batch and closes the file; then, for shard 0, the files that describe the domain."""
        self._flush()
        self._file.write(_END)
        self._file.close()
        for name, content in self._described.items():
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(name)
            file.write(content)
            file.close()


class ArrowReader(BatchReader):
    """Rows of one shard, as views of its memory-mapped file (bools are copied)."""

    def _open(self) -> None:
        # The mapped memory outlives the file. An open file would keep a file descriptor.
        with pa.memory_map(str(self._path)) as source:
            stream = pa.ipc.open_stream(source)
            check_types(stream.schema, self._columns)
            self._batches, end = list[pa.RecordBatch](), source.tell()
            for batch in stream:
                batch.validate()
                self._batches.append(batch.select([column.name for column in self._columns]))
                end = source.tell()
            # Arrow takes a file that is cut between two batches for a complete one.
            if source.size() != end + len(_END) or source.read_at(len(_END), end) != _END:
                raise ValueError("its end is missing")
        self._starts = list(accumulate((batch.num_rows for batch in self._batches), initial=0))

    def _batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]


class Arrow(Format):
    """The format `arrow`; see the module."""

    name = "arrow"
    file_name = _NAME
    writes = ArrowWriter
    reads = ArrowReader
    batch_rows = 1000
    """Most rows of a record batch: the default of datasets."""
    batch_bytes = 1 << 22
    """Most bytes of the values of a record batch (a bool counts as one byte). A larger row gets a batch of its own."""

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {self.file(shard, shards): None, **_described(columns, shard, shards)}

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: Sequence[ShardReceipt]
    ) -> dict[str, bytes]:
        """See `Format`. The folder of a split opens as one dataset with all domains of the split."""
        splits = list(dict.fromkeys(shard.split for shard in shards if shard.split is not None))
        # With this file, `datasets.load_from_disk` opens the parent folder as a `DatasetDict` of these folders.
        found = {DATASET_DICT: dump({"splits": splits or sorted(domains.values())})}
        of_part = Counter(shard.part for shard in shards)
        for split in splits:
            names = [
                f"{domains[shard.domain]}/{self.file(shard.shard, of_part[shard.part])}"
                for shard in shards
                if shard.split == split
            ]
            state = {**_state(0), "_data_files": [{"filename": name} for name in names]}
            found |= {f"{split}/{STATE}": dump(state), f"{split}/{INFO}": dump(_info(columns))}
        return found
