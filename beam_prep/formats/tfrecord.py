"""`tfrecord`: one `tf.train.Example` a row, in `<domain>/shard_0000.tfrecord`, `shard_0001.tfrecord` ...

Integer and bool columns are Int64Lists, float columns are FloatLists. Examples have no wider types: **float64 is
rounded to float32** (beyond its range: infinite), and uint64 values from 2**63 become the int64 with the same bits. A
column of lists of lists has its values, flat, under its key, and the lengths of the inner lists as the int64 feature
`<key>/lengths`. An empty row is a list without values. A string of a metadata column is a value of a BytesList.

TensorFlow reads it with `features.json` (`features` makes the content):

    spec = {
        key: tf.io.RaggedFeature(
            tf.as_dtype(feature["type"]),
            value_key=key,
            partitions=[tf.io.RaggedFeature.RowLengths(feature["lengths"])] if "lengths" in feature else [],
            row_splits_dtype=tf.int64,
        )
        for key, feature in json.load(open("features.json")).items()
    }
    rows = tf.data.TFRecordDataset(sorted(glob.glob("wiki/*.tfrecord")))
    rows = rows.batch(64).map(lambda batch: tf.io.parse_example(batch, spec))

Source of the frame around each Example: tensorflow/core/lib/io/record_writer.h: uint64 length, masked crc32c of these 8
bytes, the Example, masked crc32c of the Example, all little-endian.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from beam_prep.data.ragged import Array, Ragged, changes, offsets_of
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import Format, Row, ShardReader, ShardWriter, cast, map_file
from beam_prep.formats.manifest import FEATURES, ShardReceipt, dump

_HEAD, _FOOT = 12, 4


def features(columns: Sequence[Column]) -> dict[str, dict[str, str]]:
    """The content of `features.json`, which tells readers how to parse each feature.

    Key -> `type` ("int64", "float32" or "string", the type in the Example), `dtype` (the column's numpy dtype), `kind`
    ("ragged": rows differ in length; "single": a row has one value), and for lists of lists `lengths`, the key of the
    inner lengths.
    """
    found: dict[str, dict[str, str]] = {}
    for column in columns:
        entry = {"type": feature_type(column), "dtype": column.dtype, "kind": "ragged" if column.depth else "single"}
        found[column.name] = entry
        if column.levels == 2 and column.role != "string":
            entry["lengths"] = lengths_key(column)
            found[entry["lengths"]] = {"type": "int64", "dtype": "int64", "kind": "ragged"}
    return found


class TFRecordWriter(ShardWriter):
    """Writes rows at once; nothing stays in memory between calls."""

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        held = bytearray()
        for example in encode_examples(self._columns, columns):
            held += framed(example)
            if len(held) >= self._format.piece:
                self._file.write(held)
                held = bytearray()
        self._file.write(held)


def framed(example: bytes) -> bytes:
    """The record of an Example: the Example in its frame."""
    head = struct.pack("<Q", len(example))
    return head + _crc(head) + example + _crc(example)


def _crc(data: bytes) -> bytes:
    """The masked crc32c of `data`, as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class TFRecordReader(ShardReader):
    """Rows of one shard, decoded from its memory-mapped file."""

    def _open(self) -> None:
        self._data = map_file(self._path)

    def __len__(self) -> int:
        """The number of rows.

        Raises:
            FormatError: the file is cut, or the length of a record is damaged.
        """
        return len(self._starts) - 1

    def _row(self, number: int) -> Row:
        begin, end = int(self._starts[number]) + _HEAD, int(self._starts[number + 1]) - _FOOT
        payload = self._data[begin:end].tobytes()
        if _crc(payload) != self._data[end : end + _FOOT].tobytes():
            raise ValueError("its crc differs")
        return decode_example(payload, self._columns)

    def sizes(self) -> Array:
        """See `ShardReader.sizes`."""
        return np.diff(self._starts)

    @cached_property
    def _starts(self) -> Array:
        """int64 [rows + 1]: the start of each record, and the end of the file."""
        data, starts = self._data.data, [0]
        while starts[-1] < len(data):
            begin = starts[-1] + _HEAD
            head = bytes(data[begin - _HEAD : begin])
            where = f"{self._path}: row {len(starts) - 1}"
            if len(head) == _HEAD and _crc(head[:8]) != head[8:]:
                raise FormatError(f"{where} is damaged: the crc of its length differs")
            starts.append(begin + int.from_bytes(head[:8], "little") + _FOOT)
            if len(head) < _HEAD or starts[-1] > len(data):
                raise FormatError(f"{where} is cut")
        return np.array(starts)


class OfExamples(Format):
    """A format whose rows are Examples."""

    sizes_in = "bytes"
    piece = 1 << 20
    """Bytes that are encoded, or copied, before they are written."""

    def stored(self, column: Column) -> str:
        """See `Format`. An Example rounds to float32."""
        return "float32" if column.dtype == "float64" else column.dtype


class TFRecord(OfExamples):
    """The format `tfrecord`; see the module. A reader finds the start of each record on first use."""

    name = "tfrecord"
    file_name = "shard_{shard:04d}.tfrecord"
    writes = TFRecordWriter
    reads = TFRecordReader

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: Sequence[ShardReceipt]
    ) -> dict[str, bytes]:
        """See `Format`."""
        return {FEATURES: dump(features(columns))}


# Rows <-> `tf.train.Example` messages. The protobuf library reads them; numpy writes them.
#
# Source: tensorflow/core/example/{example,feature}.proto. In text form a row is
#
#     features { feature { key: "sequence" value { int64_list { value: [5, 6, 7] } } } feature { ... } }
#
# The bytes are those of `tf.train.Example.SerializeToString(deterministic=True)`: keys in the order of their bytes,
# lists packed. The protobuf library does not write them: it promises no order of keys between versions (upb, its Python
# runtime, puts "key/lengths" before "key"), and makes a Python object of each value; docs/decisions/writers.md has the
# cost. Parsers accept any order.

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


def feature_type(column: Column) -> str:
    """The type of a column's values in an Example: "int64", "float32" or "string" (bytes, in UTF-8)."""
    if column.role == "string":
        return "string"
    return "float32" if np.dtype(column.dtype).kind == "f" else "int64"


def lengths_key(column: Column) -> str:
    """The key of the inner lengths of a column of lists of lists."""
    return f"{column.name}/lengths"


def encode_examples(columns: Sequence[Column], data: Mapping[str, Ragged], chunk: int = 1 << 19) -> Iterator[bytes]:
    """The Example of each row.

    Args:
        columns: at least one column.
        data: the rows, checked by `check_rows`.
        chunk: how many values are encoded at a time, few enough for the processor's cache.

    Raises:
        ValueError: a value does not fit its column's dtype.
    """
    ends = np.sum([rows.flat_lengths for rows in data.values()], axis=0).cumsum()
    borders = [*changes(ends // chunk).tolist(), len(ends)]
    for start, stop in pairwise(borders):
        features = {key: each for column in columns for key, each in _features(column, data[column.name][start:stop])}
        for row in zip(*(features[key] for key in sorted(features)), strict=True):
            yield _field(1, b"".join(row))


def _features(column: Column, rows: Ragged) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """The features of a column: the key, and the entry in `Features` for each row."""
    key, kind = column.name.encode(), feature_type(column)
    if kind == "string":
        texts = rows if column.depth else Ragged.from_lengths(rows, np.ones(len(rows), np.int64))
        packed = (b"".join(_field(1, bytes(text)) for text in row) for row in texts.to_lists())
        yield key, _entries(key, kind, packed)
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
        bits = (rest >> np.uint64(7 * place)).astype(np.uint8) & 127
        more = (sizes > place + 1).view(np.uint8)
        found[:, place] = bits | more << 7
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
