"""Rows <-> `tf.train.Example` messages. The protobuf library reads them; numpy writes them.

Source: tensorflow/core/example/{example,feature}.proto. In text form a row is

    features { feature { key: "sequence" value { int64_list { value: [5, 6, 7] } } } feature { ... } }

The bytes are those of `tf.train.Example.SerializeToString(deterministic=True)`: keys in the order of their bytes, lists
packed. The protobuf library does not write them: it promises no order of keys between versions (upb, its Python
runtime, puts "key/lengths" before "key"), and makes a Python object of each value; docs/decisions/writers.md has the
cost. Parsers accept any order.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from beam_prep.data.ragged import Array, Ragged, changes, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats.contract import Row, cast

# `tf.train.Example` has its own pool, because TensorFlow may be loaded in the same process.
_PROTO = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tensorflow.BytesList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tensorflow.FloatList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tensorflow.Int64List" label: LABEL_OPTIONAL oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type_name: ".tensorflow.Feature" label: LABEL_OPTIONAL }
  }
  field { name: "feature" number: 1 type_name: ".tensorflow.Features.FeatureEntry" label: LABEL_REPEATED }
}
message_type {
  name: "Example" field { name: "features" number: 1 type_name: ".tensorflow.Features" label: LABEL_OPTIONAL }
}
"""

_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
_EXAMPLE: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("tensorflow.Example"))

_FIELD = {"string": "bytes_list", "float32": "float_list", "int64": "int64_list"}
_NUMBER = {"string": 1, "float32": 2, "int64": 3}
"""Type of a feature -> the number of its field in `Feature`."""


def stored_in_example(column: Column) -> str:
    """The dtype of a column's values in an Example: its floats are float32."""
    return "float32" if column.dtype == "float64" else column.dtype


def feature_type(column: Column) -> str:
    """The type of a column's values in an Example: "int64", "float32" or "string" (bytes, in UTF-8)."""
    if column.role == "string":
        return "string"
    return "float32" if np.dtype(column.dtype).kind == "f" else "int64"


def lengths_key(column: Column) -> str:
    """The key of the inner lengths of a column of lists of lists."""
    return f"{column.name}/lengths"


def encode_examples(
    columns: Sequence[Column], data: Mapping[str, Ragged], chunk: int = 1 << 19, most_bytes: int = 2**31 - 1
) -> Iterator[bytes]:
    """The Example of each row.

    Args:
        columns: at least one column.
        data: the rows, checked by `contract.check_rows`.
        chunk: how many values are encoded at a time, few enough for the processor's cache.
        most_bytes: most bytes of a message that readers of protobuf accept.

    Raises:
        ValueError: a value does not fit its column's dtype, or a row's message is larger than `most_bytes`.
    """
    ends = np.sum([rows.flat_lengths for rows in data.values()], axis=0).cumsum()
    borders = [*changes(ends // chunk).tolist(), len(ends)]
    for start, stop in pairwise(borders):
        features = {key: each for column in columns for key, each in _features(column, data[column.name][start:stop])}
        for row in zip(*(features[key] for key in sorted(features)), strict=True):
            example = _field(1, b"".join(row))
            if len(example) > most_bytes:
                raise ValueError(f"a row takes {len(example)} bytes as a tf.train.Example, more than {most_bytes}")
            yield example


def _features(column: Column, rows: Ragged) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """The features of a column: the key, and the entry in `Features` for each row."""
    key, kind = column.name.encode(), feature_type(column)
    if kind == "string":
        texts = rows if column.depth else Ragged.from_lengths(rows, np.ones(len(rows), np.int64))
        yield key, _entries(key, kind, (b"".join(_field(1, bytes(text)) for text in row) for row in texts.to_lists()))
        return
    values = cast(rows.flat, column.dtype, column.name)
    yield key, _entries(key, kind, _packed(values, rows.flat_lengths, kind))
    if isinstance(rows.values, Ragged):
        key = lengths_key(column).encode()
        yield key, _entries(key, "int64", _packed(rows.values.lengths, rows.lengths, "int64"))


def _packed(values: Array, lengths: Array, kind: str) -> Iterator[bytes]:
    """The packed list of each row; b"" for a row without values."""
    if kind == "float32":
        data, sizes = cast(values, kind, "").tobytes(), np.full(len(values), 4)
    else:
        data, sizes = varints(values)
    borders = offsets_of(sizes)[offsets_of(lengths)]
    for start, stop in pairwise(borders.tolist()):
        yield _field(1, data[start:stop]) if start < stop else b""


def varints(values: Array) -> tuple[bytes, Array]:
    """Integers as protobuf varints: 7 bits a byte, lowest first; the top bit is set in all bytes but the last.

    Source: protobuf.dev/programming-guides/encoding, "Base 128 Varints". Negative numbers take 10 bytes (two's
    complement); uint64 values from 2**63 become the int64 with the same bits.

    Args:
        values: any integers or bools [n].

    Returns:
        The varints, one after the other; and the number of bytes of each, uint8 [n].
    """
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    limits = [np.uint64(1 << bits) for bits in range(7, 64, 7)]
    sizes = np.ones(len(rest), np.uint8)
    for limit in limits[: int(np.searchsorted(limits, rest.max(initial=0), "right"))]:
        sizes += rest >= limit
    # Column i holds byte i of each varint. Only the bytes up to the varint's size are returned.
    found = np.empty((len(rest), int(sizes.max(initial=1))), np.uint8)
    for place in range(found.shape[1]):
        found[:, place] = (rest >> np.uint64(7 * place)).astype(np.uint8) & 127 | (sizes > place + 1).view(
            np.uint8
        ) << 7
    return found[np.arange(found.shape[1]) < sizes[:, None]].tobytes(), sizes


def _entries(key: bytes, kind: str, lists: Iterator[bytes]) -> Iterator[bytes]:
    head, number = _field(1, key), _NUMBER[kind]
    for each in lists:
        yield _field(1, head + _field(2, _field(number, each)))


def _field(number: int, content: bytes) -> bytes:
    """A field of a message with wire type 2 (a message, a string, a packed list): number and type, size, content."""
    return _head(number, len(content)) + content


@lru_cache(maxsize=1 << 16)
def _head(number: int, size: int) -> bytes:
    return bytes([number << 3 | 2]) + varints(np.array([size]))[0]


def decode_example(payload: bytes | bytearray | memoryview | Array, columns: Sequence[Column]) -> Row:
    """Decodes one row from its Example.

    Args:
        payload: the serialised message, from any writer: packed or not, fields in any order. An array must be uint8.
        columns: the columns to decode; other features are ignored.

    Returns:
        Column name -> values [length] in the column's dtype, or a `Ragged` if the column's depth is 2.

    Raises:
        ValueError: the payload is no Example; or the feature of a column is missing, has another type, or has a value
            that the column's dtype cannot hold.
    """
    try:
        found = _EXAMPLE.FromString(bytes(payload)).features.feature
        return {column.name: _column(column, found) for column in columns}
    except (message.DecodeError, ValueError) as error:
        raise ValueError(f"not the tf.train.Example of a row: {error}") from None


def _column(column: Column, found: Mapping[str, Any]) -> Array | Ragged:
    kind = feature_type(column)
    values = _values(column.name, kind, found)
    if column.depth == 0 and len(values) != 1:
        raise ValueError(f"feature {column.name!r} has {len(values)} values, wanted one")
    if kind == "string":
        flat = np.frombuffer(b"".join(values), np.uint8)
        return Ragged.from_lengths(flat, list(map(len, values))) if column.depth else flat
    numbers = np.array(values, kind)
    numbers = cast(numbers.view("uint64") if column.dtype == "uint64" else numbers, column.dtype, column.name)
    if column.levels == 1:
        return numbers
    return Ragged.from_lengths(numbers, list(_values(lengths_key(column), "int64", found)))


def _values(key: str, kind: str, found: Mapping[str, Any]) -> Sequence[Any]:
    """The values of a feature.

    Raises:
        ValueError: there is no such feature, or it has another type.
    """
    if key not in found:
        raise ValueError(f"no feature {key!r}")
    if found[key].WhichOneof("kind") not in (None, _FIELD[kind]):
        raise ValueError(f"feature {key!r} is no list of {kind}")
    values: Sequence[Any] = getattr(found[key], _FIELD[kind]).value
    return values
