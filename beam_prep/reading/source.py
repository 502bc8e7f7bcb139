"""`Source`: one kind of input file, and what is asked of it. `reading/sources.py` lists the kinds."""

import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from beam_prep.data.block import InputFile, Origin, Split, at_offset
from beam_prep.errors import InputError
from beam_prep.reading.blocks import BOM, RawBlock, Readable, read_blocks, read_up_to
from beam_prep.reading.records import Records, parse


class Compression(NamedTuple):
    """A compression of entire files.

    Attributes:
        name: as `InputFile` has it.
        magic: the first bytes of such a file.
        unpack: the command that decompresses one, and keeps it.
    """

    name: str
    magic: bytes
    unpack: str


COMPRESSIONS = {
    ".gz": Compression("gzip", b"\x1f\x8b", "gzip -dk"),
    ".bz2": Compression("bzip2", b"BZh", "bzip2 -dk"),
    ".zst": Compression("zstd", b"\x28\xb5\x2f\xfd", "zstd -dk"),
}
"""By the ending of a file's name."""


def split_name(path: str) -> tuple[str, str, str]:
    """(stem, ending, ending of the compression) of a file's name, the endings in lower case.

    >>> split_name("a/b.JSON.gz"), split_name("chats.jsonl")
    (('a/b', '.json', '.gz'), ('chats', '.jsonl', ''))
    """
    stem, packed = os.path.splitext(path)
    if packed.lower() not in COMPRESSIONS:
        stem, packed = path, ""
    stem, ending = os.path.splitext(stem)
    return stem, ending.lower(), packed.lower()


class Position:
    """How far a file was read.

    Attributes:
        stored: bytes, as it is stored. What a library has read ahead is among them.
    """

    stored = 0


class Files(Protocol):
    """Opens files on this disk and in stores: the module `storage.files`."""

    def open_input(
        self, source: InputFile, start: int = 0, size: int | None = None, position: Position | None = None
    ) -> AbstractContextManager[Readable]: ...

    def open_table(self, source: InputFile) -> AbstractContextManager[Any]: ...


SHARED_BYTES = 4 * 1024 * 1024
"""Bytes of a compressed file from which on several workers read it."""

_STEP = 1 << 20


class Source:
    """A kind of input file. This one is JSONL; others override what is different: see docs/adding.md.

    Attributes:
        name: for messages: `it is ...`, `it cannot be read as ...`.
        endings: of the names of its files; the first one is what messages advise. What no kind names is JSONL.
        compressible: its files may have the ending of a compression behind that.
        magic: the first bytes of each of its files; b"": they are text.
        unit: what its records are called in messages: `line 12`.
        by_row: places count records, from 0; False: bytes of the content.
        is_seekable: a range of bytes of a file that is not compressed can be read without what is before it.
        is_packed: a file has several bytes of content for each of its own.
    """

    name = "JSONL"
    endings: tuple[str, ...] = ()
    compressible = True
    magic = b""
    unit = "line"
    by_row = False
    is_seekable = True
    is_packed = False

    def place(self, number: int) -> str:
        """Which record of a file it is, from 1, for messages: `line 1,200`."""
        return f"{self.unit} {number:,}"

    def at(self, path: str, offset: int) -> str:
        """A file, and where a record begins in it, for messages: see `at_offset`."""
        return at_offset(path, offset, self.by_row)

    def is_stream(self, file: InputFile) -> bool:
        """True if records are found from the file's beginning on."""
        return file.compression is not None or not self.is_seekable

    def splits(self, number: int, file: InputFile, block_bytes: int, workers: int = 1) -> list[Split]:
        """The ranges of a file that are read by themselves. An empty file is one split, as a stream is.

        Several workers can share a large file that is compressed with gzip or Zstandard: each decompresses all of it,
        which takes little beside its records, and makes only its part of the blocks.

        Args:
            number: of the file.
            file: the file.
            block_bytes: of a block.
            workers: that may share a compressed file.
        """
        if self.is_stream(file):
            fast = self.is_seekable and file.compression in ("gzip", "zstd")
            parts = max(1, workers) if fast and file.size >= SHARED_BYTES else 1
            return [Split(number, file, 0, -1, part, parts) for part in range(parts)]
        return ranges(number, file, block_bytes)

    def blocks(
        self, split: Split, files: Files, block_bytes: int, max_line_bytes: int, digests: bool
    ) -> Generator[tuple[RawBlock, Origin]]:
        """The blocks of a split, as they are read. An empty file has one, too: the manifest lists it.

        Args:
            split: of a file.
            files: opens it.
            block_bytes: of a block.
            max_line_bytes: a longer line is rejected.
            digests: the blocks have the digests of the file's bytes. Without, less of some kinds is read.

        Raises:
            InputError: the file changed, is damaged, or cannot be read.
        """
        source = split.source
        end = split.start
        size = None if split.stop < 0 else split.stop - split.start
        position, before = Position(), 0
        with files.open_input(source, split.start, size, position) as stream:
            for number, raw in enumerate(read_blocks(stream, split.start, split.stop, block_bytes, max_line_bytes)):
                end = raw.start + raw.size
                stored = raw.size if source.compression is None else position.stored - before
                before = position.stored
                if number % split.parts == split.part:
                    yield raw, replace(raw.origin(split.file, source, block_bytes, max_line_bytes), stored=stored)
        if end < split.stop:
            raise InputError(f"{source.path!r} became shorter while the job ran: run again when nobody writes to it")
        if end == 0 and split.part == 0:
            raw = RawBlock(0, 0, 0, b"", b"")
            yield raw, raw.origin(split.file, source, block_bytes, max_line_bytes)

    def lines(self, stream: Readable, path: str) -> Readable:
        """The content of a file as lines of JSON, byte for byte: offsets and digests are those of what it gives."""
        return stream

    def parse(self, raw: RawBlock, origin: Origin) -> Records:
        """The records of a block; see `records.parse`."""
        return parse(raw, origin)

    def record_at(self, file: InputFile, files: Files, offset: int) -> bytes:
        """The line of a record, without its end.

        Args:
            file: where it is.
            files: opens it.
            offset: where it begins: bytes of the content, or the records before it, see `by_row`.

        Raises:
            InputError: none begins there, or the file cannot be read.
        """
        seeks = not self.is_stream(file)
        with files.open_input(file, offset if seeks else 0) as stream:
            left, before = min(offset, 1) if seeks else offset, b""
            while left and (before := read_up_to(stream, min(left, _STEP))):
                left -= len(before)
            after_bom = offset == len(BOM) and before[-1:] == BOM[-1:]
            begins = offset == 0 or not self.is_seekable or before[-1:] == b"\n" or after_bom
            parts = [read_up_to(stream, _STEP)]
            if left or not begins or not parts[0]:
                raise InputError("no line begins there: the file is not what it was when the output was made")
            while parts[-1] and b"\n" not in parts[-1]:
                parts.append(read_up_to(stream, _STEP))
        return b"".join(parts).partition(b"\n")[0].rstrip(b"\r")

    def columns(self, file: InputFile, files: Files) -> Sequence[str] | None:
        """The names of the fields that every record of a file has; None: each has its own.

        Raises:
            InputError: it cannot be read.
        """
        return None


def ranges(number: int, file: InputFile, block_bytes: int) -> list[Split]:
    """Splits of so many bytes each; of an empty file one."""
    starts = range(0, max(file.size, 1), block_bytes)
    return [Split(number, file, start, min(start + block_bytes, file.size)) for start in starts]
