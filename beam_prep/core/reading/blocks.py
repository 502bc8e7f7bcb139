"""A stream of bytes -> blocks: every line belongs to exactly one, at any block size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from beam_prep.core.data.block import InputFile, Origin
from beam_prep.core.data.hashing import CHUNK, block_digest, tree_nodes

BOM = b"\xef\xbb\xbf"


class Readable(Protocol):
    """A stream that blocks are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Bytes of one block. It owns the lines that *begin* in `[start, start + size)` of the content.

    Attributes:
        start: offset of the range in the content.
        size: bytes of the range.
        skip: bytes at the head of the range that belong to a line of the block before.
        data: the bytes from `start + skip` to the end of the last line, which may be beyond the range.
        head: the skipped bytes.
    """

    start: int
    size: int
    skip: int
    data: bytes
    head: bytes

    def origin(self, file: int, source: InputFile, block_bytes: int) -> Origin:
        """The digests of the block, and its place in the file."""
        # A block size that is no multiple of the chunk is for tests only: its digests depend on it.
        chunk = CHUNK if block_bytes % CHUNK == 0 else block_bytes
        mine = self.size - self.skip
        nodes = tree_nodes(memoryview(self.data)[:mine], self.start, chunk, self.head)
        bom = self.start == 0 and self.data.startswith(BOM)
        digest = block_digest(nodes, self.skip, bom, self.data[mine:])
        return Origin(file, source, self.start, self.skip, self.size, nodes, digest)


_LINE_END = CHUNK // 2
"""Bytes that are read after a block's range at once: most often the last line ends there."""


def read_blocks(stream: Readable, start: int, stop: int, block_bytes: int) -> Iterator[RawBlock]:
    """Cuts a stream into blocks.

    Args:
        stream: positioned at `start`, or one byte before it where `start` is not 0 (that byte says whether a line
            begins at `start`).
        start: offset of the first block.
        stop: end of the range, one block; -1: blocks of `block_bytes` to the end of the stream.
        block_bytes: size of a block's range.
    """
    line_begins = start == 0 or stream.read(1) == b"\n"
    buffer, here = b"", 0  # `start` is at `here` in the buffer: after a long line, many blocks are cut from one buffer
    while stop < 0 or start < stop:
        want = block_bytes if stop < 0 else stop - start
        if len(buffer) - here < want or here > len(buffer) // 2:
            buffer, here = buffer[here:], 0
            buffer += read_up_to(stream, want + _LINE_END - len(buffer))
        size = min(want, len(buffer) - here)
        if size == 0:
            return
        end = there = here + size
        first = here if line_begins else (buffer.find(b"\n", here, there) + 1 or there)
        line_begins = buffer[there - 1] == 10
        if first < there and not line_begins:
            buffer, end = _finish_line(stream, buffer, there)
        yield RawBlock(start, size, first - here, buffer[first:end], buffer[here:first])
        here = there
        start += size


def read_up_to(stream: Readable, size: int) -> bytes:
    """Up to `size` bytes; fewer only at the end (a decompressing stream may give less at each call)."""
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _finish_line(stream: Readable, buffer: bytes, position: int) -> tuple[bytes, int]:
    """Reads on until the line at `position` ends; (buffer, end of that line). Reads double, so that it stays linear."""
    step = CHUNK
    while (found := buffer.find(b"\n", position)) < 0:
        position = len(buffer)
        more = read_up_to(stream, step)
        if not more:
            return buffer, len(buffer)
        buffer += more
        step *= 2
    return buffer, found + 1
