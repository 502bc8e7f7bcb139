"""Sealed files: content in parts, then a checksum of each part. A reader checks each part before it uses it.

    content | end of each part | crc32c of each part | number of parts, crc32c of the seal, magic

The crc32c of the seal also covers the file's name, so an intact file under the wrong name is refused.

In an Arrow stream the schema is the first part, and each record batch is a part. A part is checked when it is read,
before it is parsed: a damaged length could make a parser allocate or read any amount.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

from beam_prep.errors import FormatError

_TAIL = struct.Struct("<II8s")
_MAGIC = b"BPSEALED"

Data: TypeAlias = bytes | pa.Buffer


def seal(content: Data, name: str, ends: Sequence[int] = ()) -> bytes:
    """The seal, which is written after a file's content.

    Args:
        content: the file's content.
        name: the name under which the file is read.
        ends: the end of each part; the last is the end of the content. Without ends the content is one part.
    """
    borders = [0, *(ends or [len(content)])]
    crcs = [google_crc32c.value(content[start:stop]) for start, stop in pairwise(borders)]
    sums = np.array(borders[1:], "<u8").tobytes() + np.array(crcs, "<u4").tobytes()
    return sums + _TAIL.pack(len(crcs), google_crc32c.value(sums + name.encode()), _MAGIC)


def seal_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    facts: Mapping[str, object],
    name: str,
    compression: str | None = None,
) -> tuple[Data, bytes]:
    """An Arrow stream and its seal. `facts` (key -> JSON value) are stored in the schema, see `Sealed.fact`."""
    schema = schema.with_metadata({key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()})
    sink, ends = pa.BufferOutputStream(), [schema.serialize().size]
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    content = sink.getvalue()
    ends[-1] = len(content)
    return content, seal(content, name, ends)


class Sealed:
    """Reads a sealed file. Each part is checked before it is returned.

    Args:
        file: an open file. If it is in memory, or mapped into memory, parts are views.
        name: the name with which it was sealed.

    Raises:
        FormatError: the file is cut, has no seal or a damaged one, or was sealed under another name.
    """

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        self._file, self._name = file, name
        end = file.size() - _TAIL.size
        count, crc, magic = _TAIL.unpack(self._read(end, end + _TAIL.size)) if end >= 0 else (0, 0, b"")
        size = end - 12 * count
        if magic != _MAGIC or size < 0:
            raise self._damaged("it is cut, or its end is damaged")
        sums = self._read(size, end).to_pybytes()
        if google_crc32c.value(sums + name.encode()) != crc:
            raise self._damaged("its end is damaged, or it is a copy of another file")
        self._borders = [0, *np.frombuffer(sums, "<u8", count).tolist()]
        self._crcs = np.frombuffer(sums, "<u4", count, 8 * count)
        if self._borders[-1] != size:
            raise self._damaged("it is cut")

    @property
    def batches(self) -> int:
        """The number of record batches."""
        return len(self._crcs) - 1

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return pa.ipc.read_schema(self.part(0))

    def fact(self, key: str) -> Any:
        """A value of the `facts` given to `seal_batches`; None if there is no such key."""
        return json.loads(self.schema.metadata.get(key.encode(), b"null"))

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, by number.

        Raises:
            FormatError: its bytes are not what was written.
        """
        return pa.ipc.read_record_batch(self.part(1 + number), self.schema)

    def part(self, number: int) -> pa.Buffer:
        """A part of the content, by number.

        Raises:
            FormatError: its bytes are not what was written.
        """
        start, stop = self._borders[number : number + 2]
        data = self._read(start, stop)
        if google_crc32c.value(data) != self._crcs[number]:
            raise self._damaged(f"its bytes from {start} to {stop} are not what was written")
        return data

    def check_all(self) -> None:
        """Checks all parts.

        Raises:
            FormatError: a part is not what was written.
        """
        for number in range(len(self._crcs)):
            self.part(number)

    def _read(self, start: int, stop: int) -> pa.Buffer:
        self._file.seek(start)
        return self._file.read_buffer(stop - start)

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"the token cache file {self._name} is damaged: {how}")
