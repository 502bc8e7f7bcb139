"""Sealed files: content, then the checksums by which a reader proves the parts that it uses.

    content | crc32c of each 64 KB of the content | begin and end of each body | size, bodies, crc32c of the seal, magic

The crc32c of the seal covers the file's name, too, so that a sound file in another's place is refused.

Checksums are of bytes, not of values, and are checked before anything parses the bytes: with a damaged length
a reader would allocate, or read, anything. A *body* is a part of which a reader takes slices: of a file that is mapped
into memory, its chunks are checked when they are used. All else is checked when the file is opened.
"""

import struct
from collections.abc import Sequence
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from beam_prep.errors import FormatError
from beam_prep.formats.range_file import RangeFile

CHUNK = 64 * 1024
_TAIL = struct.Struct("<QII8s")
_MAGIC = b"BPSEALED"
_PART = 256 * CHUNK
"""Read at a time to prove all of a file that is not mapped: most are smaller."""

Data: TypeAlias = bytes | pa.Buffer
Proven: TypeAlias = npt.NDArray[np.bool_] | None


def seal(content: Data, name: str, bodies: Sequence[tuple[int, int]] = ()) -> bytes:
    """The seal, which is written after a file's content.

    Args:
        content: of the file.
        name: under which it is read.
        bodies: (first byte, one past the last) of the parts that are read in slices.
    """
    crcs = [google_crc32c.value(content[at : at + CHUNK]) for at in range(0, len(content), CHUNK)]
    sums = np.array(crcs, "<u4").tobytes() + np.array(bodies, "<u8").tobytes()
    size = struct.pack("<QI", len(content), len(bodies))
    return sums + _TAIL.pack(len(content), len(bodies), google_crc32c.value(sums + size + name.encode()), _MAGIC)


def nothing_proven(size: int) -> npt.NDArray[np.bool_]:
    """What is proven of a file of this size that was never open: bool, one a chunk or more, then one of the seal."""
    return np.zeros(-(-size // CHUNK) + 1, bool)


class Sealed:
    """The content of a sealed file. Nothing of it is given out unproven.

    Args:
        file: an Arrow file, at any place. Of one that lies in memory, or is mapped into it, slices are views.
        name: with which it was sealed.
        proven: see `nothing_proven`, of a file that is mapped into memory: what was proven when it was open before, to
            which is added what is proven now; None: nothing was.

    Raises:
        FormatError: the seal, or what is no body, is damaged; or the file is cut, has none, or was sealed as another.
    """

    def __init__(self, file: pa.NativeFile, name: str, proven: Proven = None) -> None:
        self._file, self.name = file, name
        self._mapped: pa.Buffer | None = None
        total = file.size()
        if total < _TAIL.size:
            raise self._damaged("it is cut")
        if isinstance(file, pa.MemoryMappedFile | pa.BufferReader):
            file.seek(0)
            self._mapped = file.read_buffer()
        size, bodies, crc, magic = _TAIL.unpack(self._raw(total - _TAIL.size, total))
        chunks = -(-size // CHUNK)
        if magic != _MAGIC or size + 4 * chunks + 16 * bodies + _TAIL.size != total:
            raise self._damaged("it is cut, or its end is damaged")
        self.size = int(size)
        self._proven = nothing_proven(self.size) if proven is None else proven
        sums = self._raw(size, total - _TAIL.size)
        self._crcs = np.frombuffer(sums, "<u4", chunks)
        if self._mapped is not None and self._proven[-1]:
            return
        if google_crc32c.value(bytes(sums) + struct.pack("<QI", size, bodies) + name.encode()) != crc:
            raise self._damaged("its end is damaged, or it is a copy of another file")
        if self._mapped is not None:
            borders = np.frombuffer(sums, "<u8", 2 * bodies, 4 * chunks).astype(np.int64).reshape(-1, 2)
            self._check_ranges(np.append(0, borders[:, 1]), np.append(borders[:, 0], self.size))
            self._proven[-1] = True

    def open(self) -> pa.ipc.RecordBatchFileReader:
        """The content as an Arrow file."""
        content = pa.PythonFile(_Proven(self), mode="r") if self._mapped is None else self._mapped.slice(0, self.size)
        try:
            return pa.ipc.open_file(content)
        except pa.ArrowInvalid as error:
            raise self._damaged(str(error)) from None

    def check(self, start: int, stop: int) -> None:
        """Proves bytes [start, stop) of a file that is mapped into memory; of any other they were proven when read.

        Raises:
            FormatError: they are not what was written.
        """
        if self._mapped is None or start >= stop:
            return
        for chunk in range(start // CHUNK, -(-stop // CHUNK)):
            if not self._proven[chunk]:
                self._prove(chunk, self._mapped[chunk * CHUNK : min((chunk + 1) * CHUNK, self.size)])
                self._proven[chunk] = True

    def check_array(self, values: pa.Array) -> None:
        """Proves the values of an array of numbers, or of bits, that is a view of the content."""
        if self._mapped is None or not len(values):
            return
        data, bits = values.buffers()[1], values.type.bit_width
        first = (data.address - self._mapped.address) * 8 + values.offset * bits
        self.check(first // 8, -(-(first + len(values) * bits) // 8))

    def check_values(self, values: pa.Array, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Proves the values [start, stop) of an array of numbers, or of bits, that is a view of the content."""
        if self._mapped is None:
            return
        data, bits = values.buffers()[1], values.type.bit_width
        if data is None:
            return
        base, filled = (data.address - self._mapped.address) * 8 + values.offset * bits, starts < stops
        self._check_ranges((base + starts[filled] * bits) // 8, (base + stops[filled] * bits + 7) // 8)

    def _check_ranges(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """`check` of many ranges, of which some may be empty."""
        filled = starts < stops
        edges = np.zeros(len(self._proven) + 1, np.int64)
        np.add.at(edges, starts[filled] // CHUNK, 1)
        np.add.at(edges, (stops[filled] - 1) // CHUNK + 1, -1)
        covered = np.cumsum(edges)[: -(-self.size // CHUNK)] > 0
        for chunk in np.flatnonzero(covered & ~self._proven[: len(covered)]).tolist():
            self.check(chunk * CHUNK, min((chunk + 1) * CHUNK, self.size))

    def check_all(self) -> None:
        """Proves all of the content.

        Raises:
            FormatError: it is not what was written.
        """
        self.check(0, self.size)
        if self._mapped is None:
            for start in range(0, self.size, _PART):
                self.read(start, min(start + _PART, self.size))

    def read(self, start: int, stop: int) -> Data:
        """Bytes [start, stop), proven. They are read in complete chunks."""
        if start >= stop:
            return b""
        first, last = start // CHUNK, -(-stop // CHUNK)
        data = self._raw(first * CHUNK, min(last * CHUNK, self.size))
        for chunk in range(first, last):
            self._prove(chunk, data[(chunk - first) * CHUNK : (chunk - first + 1) * CHUNK])
        return data[start - first * CHUNK : stop - first * CHUNK]

    def _prove(self, chunk: int, data: Data) -> None:
        if google_crc32c.value(data) != self._crcs[chunk]:
            raise self._damaged(f"the 64 KB from byte {chunk * CHUNK} on are not what was written")

    def _raw(self, start: int, stop: int) -> Data:
        if self._mapped is not None:
            return self._mapped[start:stop]
        return self._file.read_at(stop - start, start)

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"the token cache file {self.name} is damaged: {how}")


class _Proven(RangeFile):
    """The content of a sealed file for Arrow, which reads the parts that it wants."""

    def __init__(self, sealed: Sealed) -> None:
        super().__init__(sealed.size)
        self._sealed = sealed

    def read_range(self, start: int, stop: int) -> Data:
        return self._sealed.read(start, stop)
