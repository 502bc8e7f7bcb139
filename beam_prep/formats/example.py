"""Rows of columns <-> `tf.train.Example` messages, without protobuf's library: all rows of a chunk at once.

Source: tensorflow/core/example/{example,feature}.proto. In text form a row is

    features { feature { key: "sequence" value { int64_list { value: [5, 6, 7] } } } feature { ... } }

The bytes are those of `tf.train.Example.SerializeToString(deterministic=True)`: keys in the order of their bytes, lists
packed. (upb, protobuf's runtime in Python, puts "key/lengths" before "key"; its pure Python runtime sorts as we do.
Parsers take any order.) The size of every message of every row follows from the sizes of its lists, so all parts go
straight to their places.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import varint
from beam_prep.formats.contract import Row, cast

MAX_SIZE = 2**31 - 1
"""Bytes of a protobuf message that its readers accept."""

# A tag is field number * 8 + wire type. Messages, strings and packed lists have type 2: a length, then the bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIELD_1 = b"\x0a"
_MAP_VALUE = b"\x12"
_LIST_FIELD = {"string": 1, "float32": 2, "int64": 3}


def stored_in_example(column: Column) -> str:
    """The dtype of a column's values in an Example, whose floats are float32."""
    return "float32" if column.dtype == "float64" else column.dtype


def feature_type(column: Column) -> str:
    """The type of a column's values in an Example: "int64", "float32" or "string" (bytes, in UTF-8)."""
    if column.role == "string":
        return "string"
    return "float32" if np.dtype(column.dtype).kind == "f" else "int64"


def lengths_key(column: Column) -> str:
    """The key of the inner lengths of a column of lists of lists."""
    return f"{column.name}/lengths"


class Examples:
    """Rows as Examples, ready to be put somewhere.

    Attributes:
        sizes: int64 [rows], bytes of each message.
    """

    def __init__(self, columns: Sequence[Column], data: Mapping[str, Ragged]) -> None:
        """Encodes the values of all rows.

        Args:
            columns: at least one.
            data: the rows, as declared; see `contract.check_rows`.

        Raises:
            ValueError: a value does not fit its column's dtype, or a row's message is larger than 2 GiB.
        """
        self._lists = sorted(_encoded(columns, data), key=lambda item: item.key)
        self._features: Array = np.sum([item.size for item in self._lists], axis=0)
        self.sizes = _field_size(self._features)
        if (self.sizes > MAX_SIZE).any():
            raise ValueError(f"a row takes {self.sizes.max()} bytes as a tf.train.Example, protobuf ends at {MAX_SIZE}")

    def put(self, out: Array, at: Array) -> None:
        """Writes each row's message to `out`, uint8, from its index in `at`, int64 [rows], on."""
        cursor = _Cursor(out, at.copy())
        cursor.message(self._features)
        for item in self._lists:
            item.put(cursor)


def _encoded(columns: Sequence[Column], data: Mapping[str, Ragged]) -> Iterator["_List"]:
    ids: dict[str | None, varint.Encoded] = {}
    for column in columns:
        rows = data[column.name]
        if column.role == "string":
            yield _List(column.name, "string", *_strings(rows))
            continue
        values, offsets = cast(rows.flat, column.dtype, column.name), offsets_of(rows.flat_lengths)
        if column.role == "ids":
            ids[column.name] = encoded = varint.Encoded(values, *varint.encode(values))
            packed = encoded.body, encoded.borders(offsets)
        elif column.role == "labels" and column.of in ids:
            found = varint.encode_labels(values, offsets, ids[column.of])
            packed = varint.encode_rows(values, offsets) if found is None else found
        else:
            packed = _packed(column, values, offsets)
        yield _List(column.name, feature_type(column), *packed)
        if isinstance(rows.values, Ragged):
            yield _List(lengths_key(column), "int64", *varint.encode_rows(rows.values.lengths, rows.offsets))


class _Cursor:
    """A place in each row's bytes: indices into `out`, int64 [rows], that move on as parts are put there."""

    def __init__(self, out: Array, at: Array) -> None:
        self._out = out
        self._at = at

    def message(self, sizes: Array, tag: bytes = _FIELD_1, rows: Array | slice = slice(None)) -> None:
        """Begins a message of the given size in each row (of `rows`): puts its tag and its size."""
        self.text(tag, rows)
        varint.put(self._out, self._at[rows], sizes)
        self._at[rows] += varint.sizes(sizes)

    def text(self, part: bytes, rows: Array | slice = slice(None)) -> None:
        """Puts the same bytes into each row (of `rows`)."""
        at = self._at[rows]
        for index, byte in enumerate(part):
            self._out[at + index] = byte
        self._at[rows] = at + len(part)

    def copy(self, values: Array, borders: Array) -> None:
        """Puts `values[borders[i]:borders[i + 1]]` into row i."""
        # Slices of memoryviews take half the time of slices of arrays.
        target, source = self._out.data, values.data
        for at, start, stop in zip(self._at.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            target[at : at + stop - start] = source[start:stop]
        self._at += np.diff(borders)


class _List:
    """One feature of all rows: its encoded values, and the sizes of the messages around them.

    Attributes:
        key: the feature's key.
        size: int64 [rows], bytes of the feature in the message `Features`, with its tag.
    """

    def __init__(self, key: str, kind: str, body: Array, borders: Array) -> None:
        self.key = key.encode()
        self._tag = bytes([_LIST_FIELD[kind] << 3 | _BYTES])
        self._body, self._borders = body, borders
        self._packed = np.diff(self._borders)
        # Of strings, each has its own tag and length, and their list has none.
        self._headed = kind != "string"
        self._list = np.where(self._packed > 0, _field_size(self._packed), 0) if self._headed else self._packed
        self._value = _field_size(self._list)
        self._key_field = _FIELD_1 + varint.encode(np.array([len(self.key)]))[0].tobytes() + self.key
        self._entry = len(self._key_field) + _field_size(self._value)
        self.size = _field_size(self._entry)

    def put(self, cursor: _Cursor) -> None:
        """Writes the feature of every row."""
        cursor.message(self._entry)
        cursor.text(self._key_field)
        cursor.message(self._value, _MAP_VALUE)
        cursor.message(self._list, self._tag)
        # A list without values is written as no list at all.
        if self._headed:
            filled = np.flatnonzero(self._packed)
            cursor.message(self._packed[filled], rows=filled)
        cursor.copy(self._body, self._borders)


def _strings(rows: Ragged) -> tuple[Array, Array]:
    """Wire bytes of a string each row, or of a list of them: uint8, and the rows' borders in them."""
    strings, borders = (rows.values, rows.offsets) if isinstance(rows.values, Ragged) else (rows, None)
    starts = offsets_of(_field_size(strings.lengths))
    out = np.empty(starts[-1], np.uint8)
    cursor = _Cursor(out, starts[:-1].copy())
    cursor.message(strings.lengths)
    cursor.copy(np.ascontiguousarray(strings.flat), strings.offsets)
    return out, starts if borders is None else starts[borders]


def _packed(column: Column, values: Array, offsets: Array) -> tuple[Array, Array]:
    """Wire bytes of all numbers, uint8, and the rows' borders in them."""
    if feature_type(column) == "float32":
        return cast(values, "float32", "").view(np.uint8), offsets * 4
    return varint.encode_rows(values, offsets)


def _field_size(sizes: Array) -> Array:
    """Bytes of messages of the given sizes, each with its tag (one byte) and its length."""
    return 1 + varint.sizes(sizes) + sizes


def decode_example(payload: bytes | bytearray | memoryview | Array, columns: Sequence[Column]) -> Row:
    """One row back from the bytes of its Example.

    Args:
        payload: the serialised message (of any writer: packed or not, fields in any order). An array must be uint8.
        columns: what to take out of it; other features are ignored.

    Returns:
        Column name to values [length] in the column's dtype, or to a `Ragged` where the column's depth is 2.

    Raises:
        FormatError: no Example, or a column's feature is missing, of another type, or holds what its dtype cannot.
    """
    try:
        found = _features(payload.data if isinstance(payload, np.ndarray) else memoryview(payload))
        return {column.name: _column(column, found) for column in columns}
    except ValueError as error:
        raise FormatError(f"not the tf.train.Example of a row: {error}") from None


def _column(column: Column, found: Mapping[str, memoryview]) -> Array | Ragged:
    if column.role == "string":
        strings = [np.frombuffer(part, np.uint8) for part in _parts(column.name, "string", found)]
        if column.depth == 0 and len(strings) != 1:
            raise ValueError(f"feature {column.name!r} has {len(strings)} strings, wanted one")
        flat = np.concatenate([np.zeros(0, np.uint8), *strings])
        return flat if column.depth == 0 else Ragged.from_lengths(flat, list(map(len, strings)))
    values = _values(column.name, feature_type(column), found)
    if column.depth == 0 and len(values) != 1:
        raise ValueError(f"feature {column.name!r} has {len(values)} values, wanted one")
    if column.dtype == "uint64":
        values = values.view(np.uint64)
    values = cast(values, column.dtype, column.name)
    if column.levels == 1:
        return values
    return Ragged.from_lengths(values, _values(lengths_key(column), "int64", found))


def _features(example: memoryview) -> dict[str, memoryview]:
    """Key to `Feature` message."""
    found: dict[str, memoryview] = {}
    for features in _bytes_fields(example, 1):
        for entry in _bytes_fields(features, 1):
            key = b"".join(_bytes_fields(entry, 1)).decode()
            found[key] = memoryview(b"".join(_bytes_fields(entry, 2)))
    return found


def _values(key: str, kind: str, found: Mapping[str, memoryview]) -> Array:
    """The values of a feature: int64 or float32 [length]."""
    # Packed or single, the bytes of a list's field 1 are its values.
    parts = [np.frombuffer(part, np.uint8) for part in _parts(key, kind, found)]
    data = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return data.view("<f4") if kind == "float32" else varint.decode(data)


def _parts(key: str, kind: str, found: Mapping[str, memoryview]) -> list[memoryview]:
    """What field 1 of a feature's list holds."""
    if key not in found:
        raise ValueError(f"no feature {key!r}")
    parts: list[memoryview] = []
    for field, wire, part in _fields(found[key]):
        if field == _LIST_FIELD[kind] and wire == _BYTES:
            parts += [item for number, _, item in _fields(part) if number == 1]
        elif field <= 3:
            raise ValueError(f"feature {key!r} is no list of {kind}")
    return parts


def _bytes_fields(message: memoryview, number: int) -> Iterator[memoryview]:
    return (part for field, wire, part in _fields(message) if field == number and wire == _BYTES)


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """The fields of a message: number, wire type, and its bytes (without the length where there is one)."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            size, at = _read_varint(message, at)
        elif wire == _VARINT:
            size = _read_varint(message, at)[1] - at
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"field {number} is cut")
        yield number, wire, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """A varint's value, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError(f"a varint at byte {at} is cut")
