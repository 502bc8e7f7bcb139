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
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import google_crc32c
import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import FileFormat, FileReader, OpenFile, Row, check_rows, map_file
from beam_prep.formats.example import decode_example, encode_examples, feature_type, lengths_key, stored_in_example
from beam_prep.formats.manifest import FEATURES, ShardReceipt, dump

__all__ = ["TFRecord", "decode_example", "features", "framed", "require_fast_crc32c"]

_HEAD, _FOOT = 12, 4


class TFRecord(FileFormat):
    """The format `tfrecord`; see the module."""

    name = "tfrecord"
    file_name = "shard_{shard:04d}.tfrecord"
    sizes_in = "bytes"
    piece = 1 << 20
    """Records are written when this many bytes are encoded."""

    def stored(self, column: Column) -> str:
        """See `Format`. An Example rounds to float32."""
        return stored_in_example(column)

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: Sequence[ShardReceipt]
    ) -> dict[str, bytes]:
        """See `Format`."""
        return {FEATURES: dump(features(columns))}

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "TFRecordWriter":
        """See `Format.writer`.

        Raises:
            ImportError: google_crc32c runs without its C extension.
        """
        require_fast_crc32c()
        return TFRecordWriter(open_file, columns, self.file(shard, shards), self.piece)

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "TFRecordReader":
        """See `Format.read`. On first use the reader finds the start of each record in the file."""
        return TFRecordReader(folder / self.file(shard, shards), columns)


def require_fast_crc32c() -> None:
    """Refuses google_crc32c's pure Python fallback, which is a hundred times slower.

    Raises:
        ImportError: google_crc32c runs without its C extension.
    """
    if google_crc32c.implementation != "c":
        raise ImportError(
            f"google_crc32c runs as {google_crc32c.implementation!r}, not 'c': too slow to write tfrecord. Install a "
            "wheel with its C extension: pip install --force-reinstall --only-binary=:all: google-crc32c"
        )


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


class TFRecordWriter:
    """Writes rows at once; nothing stays in memory between calls. See `ShardWriter`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], name: str, piece: int) -> None:
        self._columns, self._piece = tuple(columns), piece
        self._file = open_file(name)

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`.

        Raises:
            ValueError: also for a row whose Example is larger than 2 GiB.
        """
        check_rows(self._columns, columns)
        held = bytearray()
        for example in encode_examples(self._columns, columns):
            held += framed(example)
            if len(held) >= self._piece:
                self._file.write(held)
                held = bytearray()
        self._file.write(held)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def framed(example: bytes) -> bytes:
    """The record of an Example: the Example in its frame."""
    head = struct.pack("<Q", len(example))
    return head + _crc(head) + example + _crc(example)


def _crc(data: bytes) -> bytes:
    """The masked crc32c of `data`, as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class TFRecordReader(FileReader):
    """Rows of one shard, decoded from its memory-mapped file; see `ShardReader`."""

    kind = "TFRecord"

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
            if len(head) < _HEAD:
                raise FormatError(f"{where} is cut")
            if _crc(head[:8]) != head[8:]:
                raise FormatError(f"{where} is damaged: the crc of its length differs")
            starts.append(begin + int.from_bytes(head[:8], "little") + _FOOT)
            if starts[-1] > len(data):
                raise FormatError(f"{where} is cut")
        return np.array(starts)
