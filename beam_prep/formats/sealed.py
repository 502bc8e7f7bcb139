"""Sealed files: content in parts, then the checksum of each, by which a reader proves the parts that it uses.

    content | end of each part | crc32c of each part | number of parts, crc32c of the seal, magic

The crc32c of the seal covers the file's name, too, so that a sound file in another's place is refused.

Of an Arrow stream the first part is its schema, and each record batch is another. A part is proven when it is read,
before anything parses it: with a damaged length a reader would allocate, or read, anything.
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
        content: of the file.
        name: under which it is read.
        ends: of its parts, the last of which ends with the content. Without, it is one part.
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
    """An Arrow stream and its seal; `facts`: JSON by key, which are read with the schema."""
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
    """The content of a sealed file. Nothing of it is given out unproven.

    Args:
        file: an open file. Of one that lies in memory, or is mapped into it, parts are views.
        name: with which it was sealed.

    Raises:
        FormatError: the seal is damaged; or the file is cut, has none, or was sealed as another.
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
        """Of the record batches."""
        return pa.ipc.read_schema(self.part(0))

    def fact(self, key: str) -> Any:
        """What `seal_batches` was given under a key; None: nothing."""
        return json.loads(self.schema.metadata.get(key.encode(), b"null"))

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch.

        Raises:
            FormatError: it is not what was written.
        """
        return pa.ipc.read_record_batch(self.part(1 + number), self.schema)

    def part(self, number: int) -> pa.Buffer:
        """A part of the content.

        Raises:
            FormatError: it is not what was written.
        """
        start, stop = self._borders[number : number + 2]
        data = self._read(start, stop)
        if google_crc32c.value(data) != self._crcs[number]:
            raise self._damaged(f"its bytes from {start} to {stop} are not what was written")
        return data

    def check_all(self) -> None:
        """Proves all of the content.

        Raises:
            FormatError: it is not what was written.
        """
        for number in range(len(self._crcs)):
            self.part(number)

    def _read(self, start: int, stop: int) -> pa.Buffer:
        self._file.seek(start)
        return self._file.read_buffer(stop - start)

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"the token cache file {self._name} is damaged: {how}")
