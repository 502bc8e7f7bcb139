"""Rows as Arrow record batches, for `arrow` and `parquet`.

Columns are `list<item: dtype>` (depth 2: `list<item: list<item: dtype>>`) without nulls; bool values are bits. Batches
depend only on the rows. The schema's key `huggingface` holds the features of `datasets`.

A metadata column has one value a row (`string`, or a number in its dtype); in packed rows it is a list of such values.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array, Ragged, narrow, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats.contract import FileReader, Row, cast, check_rows


def features(columns: Sequence[Column]) -> dict[str, Any]:
    """The argument of `datasets`' `Features.from_dict`."""
    found = {}
    for column in columns:
        feature: dict[str, Any] = {"dtype": "string" if column.role == "string" else column.dtype, "_type": "Value"}
        for _ in range(column.depth):
            feature = {"feature": feature, "_type": "Sequence"}
        found[column.name] = feature
    return found


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The schema of the batches."""
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


class Batches:
    """Cuts rows into record batches, and hands on each batch when it is full; at most one batch is kept.

    Args:
        columns: the columns of the rows.
        most_rows: most rows of a batch.
        most_bytes: most bytes of a batch's values (a bool counts as one byte). A larger row gets a batch of its own.
        put: is called with each batch.
    """

    def __init__(
        self, columns: Sequence[Column], most_rows: int, most_bytes: int, put: Callable[[pa.RecordBatch], None]
    ) -> None:
        self.schema = schema_of(columns)
        self._columns, self._most_rows, self._most_bytes, self._put = tuple(columns), most_rows, most_bytes, put
        self._held: dict[str, Ragged] = {}  # rows of the batch that is not full

    def add(self, columns: Mapping[str, Ragged]) -> None:
        """Adds rows; see `ShardWriter.write`."""
        check_rows(self._columns, columns)
        rows: dict[str, Ragged] = {}
        for column in self._columns:
            new = columns[column.name]
            new = new.with_flat(cast(new.flat, column.dtype, column.name))
            found = Ragged.concat([self._held[column.name], new]) if self._held else new
            rows[column.name] = found
        ends = offsets_of(np.sum([found.flat_lengths * found.flat.itemsize for found in rows.values()], axis=0))
        start = 0
        while (stop := self._end(ends, start)) < len(ends) - 1:
            self._put(self._batch(rows, start, stop))
            start = stop
        self._held = {name: found[start:] for name, found in rows.items()}
        self._held = {name: found.with_flat(found.flat.copy()) for name, found in self._held.items()}

    def _end(self, ends: Array, start: int) -> int:
        """The end of the batch that begins at row `start`; `ends`: the offsets of the rows, in bytes."""
        by_bytes = int(np.searchsorted(ends, ends[start] + self._most_bytes, "right")) - 1
        return min(max(by_bytes, start + 1), start + self._most_rows)

    def _batch(self, rows: Mapping[str, Ragged], start: int, stop: int) -> pa.RecordBatch:
        arrays = []
        for column in self._columns:
            values = rows[column.name][start:stop]
            is_number = column.depth == 0 and column.role != "string"
            arrays.append(array_of(values.flat if is_number else values, column.role == "string"))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def flush(self) -> None:
        """Hands on the last batch, if it has rows."""
        rows = len(next(iter(self._held.values()), ()))
        if rows:
            self._put(self._batch(self._held, 0, rows))
        self._held = {}


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


class BatchReader(FileReader):
    """A `FileReader` of rows in record batches. A subclass sets `_starts` and implements `_batch`.

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
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    def lengths(self, name: str) -> Array:
        """int64 [rows]: the length of each row of a column."""
        return np.concatenate([np.zeros(0, np.int64), *(_rows(batch.column(name)).lengths for batch in self._all())])

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
