"""Cuts a stream of bytes into blocks: every line belongs to exactly one block, at any block size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from beam_prep.data.block import InputFile, Origin
from beam_prep.data.hashing import CHUNK, block_digest, tree_nodes

BOM = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Most bytes of a line, without its line feed."""

SHOWN_BYTES = 64 * 1024
"""Bytes that are kept of a longer line."""


class Readable(Protocol):
    """A stream that blocks are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Bytes of one block. The block owns the lines that *begin* in `[start, start + size)` of the content.

    Attributes:
        start: offset of the range in the content.
        size: bytes of the range.
        skip: bytes at the head of the range that belong to a line of the previous block.
        data: the bytes from `start + skip` to the end of the last line, which may be beyond the range.
        head: the skipped bytes.
        cut: the last line is longer than the limit, and `data` ends within it.
    """

    start: int
    size: int
    skip: int
    data: bytes
    head: bytes
    cut: bool = False

    def origin(self, file: int, source: InputFile, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES) -> Origin:
        """The origin of the block: its place in the file, and its digests."""
        # Only tests have a block size that is no multiple of the chunk: it changes the digests.
        chunk = CHUNK if block_bytes % CHUNK == 0 else block_bytes
        mine = self.size - self.skip
        nodes = tree_nodes(memoryview(self.data)[:mine], self.start, chunk, self.head)
        bom = self.start == 0 and self.data.startswith(BOM)
        digest = block_digest(nodes, self.skip, bom, memoryview(self.data)[mine:], self.cut)
        return Origin(
            file, source, self.start, self.skip, self.size, nodes, digest, max_line_bytes=max_line_bytes, cut=self.cut
        )


_LINE_END, _MOST_AT_ONCE = CHUNK // 2, 1024 * 1024
"""Bytes of one read behind a block's range: of the first (most often the last line ends there), and of later ones."""


def read_blocks(
    stream: Readable, start: int, stop: int, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[RawBlock]:
    """Cuts a stream into blocks.

    Args:
        stream: positioned at `start`, or at the byte before it if `start` is not 0 (this byte says whether a line
            begins at `start`).
        start: offset of the first block.
        stop: end of the range, which is one block; -1: blocks of `block_bytes` to the end of the stream.
        block_bytes: bytes of a block's range.
        max_line_bytes: a longer line is not read to its end.
    """
    line_begins = start == 0 or stream.read(1) == b"\n"
    ahead = b""  # bytes behind the previous block's range that were read with it
    while stop < 0 or start < stop:
        wanted = block_bytes if stop < 0 else stop - start
        own = b"".join((ahead[:wanted], read_up_to(stream, wanted - len(ahead))))
        ahead, size = ahead[wanted:], len(own)
        if size == 0:
            return
        first = 0 if line_begins else (own.find(b"\n") + 1 or size)
        line_begins = own.endswith(b"\n")
        rest, cut = b"", False
        if first < size and not line_begins:
            begun = size - max(own.rfind(b"\n") + 1, first)
            ahead, rest, cut = _finish_line(stream, ahead, begun, max_line_bytes)
        block = RawBlock(start, size, first, b"".join((memoryview(own)[first:], rest)), own[:first], cut)
        del own  # it would stay in memory while the block is worked on
        yield block
        del block
        start += size


def read_up_to(stream: Readable, size: int) -> bytes:
    """Up to `size` bytes; fewer only at the end (a decompressing stream may give less at each call)."""
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _finish_line(stream: Readable, ahead: bytes, begun: int, max_line_bytes: int) -> tuple[bytes, bytes, bool]:
    """Reads to the end of a line that was read in part.

    Returns:
        (all bytes read behind this part, `ahead` included, for the next block; the rest of the line, with its line
        feed, or only its beginning; True if the line is too long).
    """
    read, end, step = bytearray(ahead), ahead.find(b"\n"), _LINE_END
    while end < 0 and begun + len(read) <= max(max_line_bytes, SHOWN_BYTES) and (part := stream.read(step)):
        read += part
        end = read.find(b"\n", len(read) - len(part))
        step = min(2 * step, _MOST_AT_ONCE)
    size = begun + (len(read) if end < 0 else end)
    if size <= max_line_bytes:
        return bytes(read), bytes(read if end < 0 else read[: end + 1]), False
    return bytes(read), bytes(read[: max(0, min(size, SHOWN_BYTES) - begun)]), True
