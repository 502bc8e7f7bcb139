"""`Source`: a kind of input file, JSONL or a JSON list. `reading/sources.py` lists all kinds.

A `.json` file that holds one list of records is read as JSONL on the fly, element by element.

    [{"a": 1},                    ->       {"a": 1}
     {"b": [2,                    ->       {"b": [2,^M 3]}
     3]}]

`ListAsLines` replaces bytes one for one, so every offset stays. A comma between elements becomes a line end, the list's
brackets become spaces, and line ends within elements become carriage returns, which are white space between values, and
forbidden within strings, like line ends. So `read_blocks` and `parse` work as for JSONL: each record once, blocks,
rejects with their byte offset. A scalar is `not_an_object`; nothing between two commas is a blank line.

An element ends at a comma that is in no string and no inner bracket. A bracket or quote too few or too many puts the
end of the list elsewhere than the end of the file: then the file is refused (`InputError` with the byte offset).

A file that does not begin with a bracket is JSONL, and passes unchanged.
"""

import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from beam_prep.data.block import InputFile, Origin, Split
from beam_prep.errors import InputError
from beam_prep.reading.records import BOM, RawBlock, Readable, Records, parse, read_blocks, read_up_to

COMPRESSIONS = {
    ".gz": ("gzip", b"\x1f\x8b"),
    ".bz2": ("bzip2", b"BZh"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}
"""Ending of a file's name -> (its compression, as in `InputFile` and on a command line, first bytes of such a file)."""


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
    """The progress of reading a file.

    Attributes:
        stored: bytes as stored, with those that a library has read ahead.
    """

    stored = 0


class Files(Protocol):
    """Opens files on this disk and in stores: the module `storage.files`."""

    def open_input(
        self, source: InputFile, start: int = 0, size: int | None = None, position: Position | None = None
    ) -> AbstractContextManager[Readable]: ...

    def open_table(self, source: InputFile) -> AbstractContextManager[Any]: ...


SHARED_BYTES = 4 * 1024 * 1024
"""Smallest size, in bytes, of a compressed file that several workers read."""


class Source:
    """A kind of input file. This class is JSONL; other kinds override its methods: see docs/adding.md.

    Attributes:
        name: for messages: `it is ...`, `it cannot be read as ...`.
        endings: of the names of its files; messages recommend the first one. Files with unknown endings are JSONL.
        magic: the first bytes of each of its files; b"" for text, which may be compressed.
        unit: the word for a record in messages: `line 12`.
        by_row: True: offsets count records, from 0; False: bytes of the content.
        is_seekable: True: a byte range of an uncompressed file can be read without the bytes before it.
        is_packed: True: a file has several bytes of content for each stored byte.
    """

    name = "JSONL"
    endings: tuple[str, ...] = ()
    magic = b""
    unit = "line"
    by_row = False
    is_seekable = True
    is_packed = False

    def place(self, number: int) -> str:
        """The place of a record in its file, counted from 1, for messages: `line 1,200`."""
        return f"{self.unit} {number:,}"

    def is_stream(self, file: InputFile) -> bool:
        """True if records can only be found from the file's beginning."""
        return file.compression is not None or not self.is_seekable

    def splits(self, number: int, file: InputFile, block_bytes: int, workers: int = 1) -> list[Split]:
        """The ranges of a file that are read separately. An empty file is one split, and so is a stream.

        Several workers can share a large gzip or Zstandard file: each decompresses all of it, which is fast compared to
        the work on its records, and makes only its part of the blocks.

        Args:
            number: index of the file in the job's input.
            file: the file.
            block_bytes: bytes of a block.
            workers: number of workers that may share a compressed file.
        """
        if self.is_stream(file):
            fast = self.is_seekable and file.compression in ("gzip", "zstd")
            parts = max(1, workers) if fast and file.size >= SHARED_BYTES else 1
            return [Split(number, file, 0, -1, part, parts) for part in range(parts)]
        return ranges(number, file, block_bytes)

    def blocks(
        self, split: Split, files: Files, block_bytes: int, max_line_bytes: int, digests: bool
    ) -> Generator[tuple[RawBlock, Origin]]:
        """The blocks of a split, one after the other. An empty file has one block, too: the manifest lists it.

        Args:
            split: the split.
            files: opens the file.
            block_bytes: bytes of a block.
            max_line_bytes: a longer line is rejected.
            digests: True: the blocks have the digests of the file's bytes. False: some kinds read less.

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
        """The content of a file as lines of JSON, byte for byte: offsets and digests refer to the result."""
        return stream

    def parse(self, raw: RawBlock, origin: Origin) -> Records:
        """The records of a block; see `records.parse`."""
        return parse(raw, origin, self.by_row)

    def columns(self, file: InputFile, files: Files) -> Sequence[str] | None:
        """The names of the fields that all records of a file have; None: each record has its own fields.

        A run asks before it reads. So a source with columns also has to refuse files of other formats here.

        Raises:
            InputError: the file cannot be read.
        """
        return None


def ranges(number: int, file: InputFile, block_bytes: int) -> list[Split]:
    """Splits of `block_bytes` bytes each; one split for an empty file."""
    starts = range(0, max(file.size, 1), block_bytes)
    return [Split(number, file, start, min(start + block_bytes, file.size)) for start in starts]


Line = tuple[bytes, tuple[str, str] | None]
"""A line of JSON without its line end; and (reason, message) if its record is rejected."""


Cut = tuple[int, bytes, tuple[tuple[int, str, str], ...]]
"""(number of lines, joined lines, `Origin.refused`)."""


def cut_lines(lines: Iterable[Line], block_bytes: int) -> Iterator[Cut]:
    """Groups of lines that just reach `block_bytes`."""
    held: list[bytes] = []
    refused: list[tuple[int, str, str]] = []
    size = 0
    for line, problem in lines:
        if problem is not None:
            refused.append((len(held), *problem))
        held.append(line)
        size += len(line) + 1
        if size >= block_bytes:
            yield len(held), b"\n".join([*held, b""]), tuple(refused)
            held, refused, size = [], [], 0
    if held:
        yield len(held), b"\n".join([*held, b""]), tuple(refused)


# JSON lists

_WHITE = b" \t\r\n"
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_LEVELS = np.array([(byte in b"[{") - (byte in b"]}") for byte in range(256)], np.int8)
"""How many levels deeper it is behind a byte."""
_MARKS = np.array([byte in b'[{]},"' for byte in range(256)])


class ListAsLines:
    """A stream with the same length as the given one; see the module.

    Args:
        stream: the file's content, from its first byte.
        name: the file, for error messages.
    """

    def __init__(self, stream: Readable, name: str) -> None:
        self._stream, self._name = stream, name
        self._is_list: bool | None = None  # None: only white space was read
        self._ended = self._in_string = self._escaped = False
        self._level = 0  # of brackets; 1: between the elements
        self._place = self._begins = 0  # bytes that were read, and where the element begins that they end in

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b"" only at the end.

        Raises:
            InputError: it is not certain where an element ends.
        """
        data = read_up_to(self._stream, size)
        if not data and self._is_list and not self._ended:
            raise self._error(self._begins, "no end of the list follows")
        made = data if not data or self._is_list is False else self._lines(data)
        self._place += len(data)
        return made

    def _lines(self, data: bytes) -> bytes:
        made = np.frombuffer(data.replace(b"\n", b"\r"), np.uint8).copy()
        if self._is_list is None:  # white space before the content belongs to the first line
            rest = data.lstrip(_WHITE + BOM)
            self._is_list = rest.startswith(b"[") if rest else None
            if not self._is_list:
                return made[: len(data) - len(rest)].tobytes() + rest
            made[-len(rest)] = ord(" ")
        plain = _ESCAPED.sub(b"  ", b"\\" * self._escaped + data)[self._escaped :]
        view = np.frombuffer(plain, np.uint8)
        places = np.flatnonzero(_MARKS[view])
        marks = view[places]
        in_string = (np.cumsum(marks == ord('"')) + self._in_string) % 2 == 1
        level = np.cumsum(np.where(in_string, 0, _LEVELS[marks])) + self._level
        borders = places[(marks == ord(",")) & ~in_string & (level == 1)]
        made[borders] = ord("\n")
        ends = places[level < 1]
        if self._ended or len(ends):
            end = -1 if self._ended else int(ends[0])
            rest = data[end + 1 :].strip(_WHITE)
            if rest or data[end : end + 1] == b"}":
                raise self._error(
                    self._place + max(0, end), f"found {rest[:20].decode(errors='replace')!r} after the list"
                )
            made[end : end + 1] = ord(" ")
            self._ended = True
        if len(borders):
            self._begins = self._place + int(borders[-1]) + 1
        self._escaped = plain.endswith(b"\\")
        if len(places):
            self._in_string, self._level = bool(in_string[-1]), int(level[-1])
        return made.tobytes()

    def _error(self, place: int, problem: str) -> InputError:
        advice = "mend it, leave it out, or name it .jsonl if it holds one record a line"
        return InputError(f"{self._name!r}, byte {place}: {problem} (is a quote or bracket missing?); {advice}")


class JSONList(Source):
    """`.json` files that hold one list of records."""

    name = "a JSON list"
    endings = (".json",)
    unit = "record"
    is_seekable = False

    def lines(self, stream: Readable, path: str) -> Readable:
        return ListAsLines(stream, path)

    def parse(self, raw: RawBlock, origin: Origin) -> Records:
        """As for JSONL, but a line's offset is that of its element's first byte."""
        records = parse(raw, origin)
        ledger = records.ledger
        for line in np.flatnonzero(ledger.starts < ledger.ends).tolist():
            text = ledger.raw[ledger.starts[line] : ledger.ends[line]]
            ledger.starts[line] += len(text) - len(text.lstrip(b" \t\r\n"))
        return records
