"""A `.json` file that holds one list of records, read as JSONL on the fly, element by element.

    [{"a": 1},                    ->       {"a": 1}
     {"b": [2,                    ->       {"b": [2,^M 3]}
     3]}]

`ListAsLines` replaces bytes one for one, so every offset stays. A comma between elements becomes a line end, the list's
brackets become spaces, and line ends within elements become carriage returns, which are white space between values, and
forbidden within strings, like line ends. So `read_blocks` and `parse` work as for JSONL: each record once, blocks,
rejects with their byte offset. A scalar is `not_an_object`; nothing between two commas is a blank line.

Where an element ends is what `json` finds. If it finds no end, because of a bracket or quote too few or too many, or
of something that JSON lacks, the file is refused (`InputError` with the byte offset).

A file that begins with an object is one record, or several records that each begin on a new line. If its first line is
a complete object, the file is JSONL, and passes unchanged, like a file that begins with anything else.
"""

import json
import re
from collections.abc import Iterator, Sequence

import numpy as np

from beam_prep.data.block import Origin
from beam_prep.errors import InputError
from beam_prep.reading.blocks import BOM, RawBlock, Readable, read_up_to
from beam_prep.reading.records import Records, parse
from beam_prep.reading.source import Source

MAX_ELEMENT = 64 * 1024 * 1024
"""Most bytes of one element: a longer one means that a bracket or quote never ends."""

WINDOW = 256 * 1024
"""Bytes that are looked at; more only for an element that is longer."""

_WHITE = " \t\r\n"
_IN_LIST = (re.compile(r"[ \t\r\n]*+"), (",", "]"))
_IN_LINES = (re.compile(r"[ \t\r]*+"), ("\n",))
"""White space beside elements, and what may follow an element."""
_DECODER = json.JSONDecoder(
    parse_int=str, parse_float=str
)  # `parse` judges numbers; Python's may be too long for `int`


class ListAsLines:
    """A stream with the same length as the given one; see the module.

    Args:
        stream: the file's content, from its first byte.
        name: the file, for error messages.
        window, max_element: see `WINDOW` and `MAX_ELEMENT`.
    """

    def __init__(self, stream: Readable, name: str, window: int = WINDOW, max_element: int = MAX_ELEMENT) -> None:
        self._stream, self._name, self._window, self._max_element = stream, name, window, max_element
        self._start = 0  # of the window
        self._text = ""  # the window, a character for each byte: what JSON means is ASCII, so places are those of bytes
        self._parts, self._left = self._lines(), b""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b"" only at the end.

        Raises:
            InputError: it is not certain where an element ends.
        """
        while not self._left and (part := next(self._parts, None)) is not None:
            self._left = part
        found, self._left = self._left[:size], self._left[size:]
        return found

    def _more(self) -> bool:
        """Doubles the window; False if there is no more, or it holds no element of the allowed size."""
        size = len(self._text)
        if size <= self._max_element:
            self._text += read_up_to(self._stream, max(self._window, size)).decode("latin-1")
        return len(self._text) > size

    def _take(self, end: int, borders: Sequence[int] = ()) -> bytes:
        """Removes the beginning of the window, and gives it with line ends at these borders, and nowhere else."""
        taken = bytearray(self._text[:end].replace("\n", "\r"), "latin-1")
        for place in borders:
            taken[place] = ord("\n")
        self._text = self._text[end:]
        self._start += end
        return bytes(taken)

    def _lines(self) -> Iterator[bytes]:
        rest = ""
        while not rest and self._more():  # white space before the content belongs to the first line
            rest = self._text.lstrip(_WHITE + BOM.decode("latin-1"))
            yield self._take(len(self._text) - len(rest))
        if rest.startswith("["):
            self._text = " " + rest[1:]
            yield from self._elements(*_IN_LIST)
        elif rest.startswith("{") and self._spans_lines():
            yield from self._elements(*_IN_LINES)
        while self._text or self._more():
            yield self._text.encode("latin-1")
            self._text = ""

    def _spans_lines(self) -> bool:
        """True if the first line is no complete object, nor broken."""
        while "\n" not in self._text and self._more():
            pass
        try:
            end = _DECODER.raw_decode(self._text)[1]
        except (json.JSONDecodeError, RecursionError) as error:
            end = getattr(error, "pos", 0)
        return -1 < self._text.find("\n") < end

    def _elements(self, spaces: re.Pattern[str], ends: tuple[str, ...]) -> Iterator[bytes]:
        place, borders = 0, list[int]()
        while True:
            try:
                end = self._end(place, spaces, ends)
            except (json.JSONDecodeError, RecursionError) as error:
                problem = self._error(getattr(error, "pos", place), getattr(error, "msg", str(error)))
                yield self._take(place, borders)
                place, borders = 0, []
                if self._more():
                    continue
                if ends != _IN_LINES[1]:
                    raise problem from None
                ends = ("\n", "")  # the last object may have no line end
                continue
            if self._text[end : end + 1] in ("]", ""):
                break
            borders.append(end)
            place = end + 1
        yield self._take(end, borders)
        self._text = self._text.replace("]", " ", 1)
        while self._text or self._more():
            if rest := self._text.strip(_WHITE):
                raise self._error(self._text.index(rest), f"found {rest[:20]!r} after the list")
            yield self._take(len(self._text))

    def _end(self, place: int, spaces: re.Pattern[str], ends: tuple[str, ...]) -> int:
        """The place of the comma, bracket or line end after an element, which may be blank."""
        end = spaces.match(self._text, place).end()  # type: ignore[union-attr]
        if self._text[end : end + 1] not in ends:
            end = _DECODER.raw_decode(self._text, end)[1]
            end = spaces.match(self._text, end).end()  # type: ignore[union-attr]
        if self._text[end : end + 1] not in ends:
            raise json.JSONDecodeError(f"Expecting {' or '.join(map(repr, ends))}", self._text, end)
        return end

    def _error(self, place: int, problem: str) -> InputError:
        advice = "mend it, leave it out, or name it .jsonl if it holds one record a line"
        return InputError(
            f"{self._name!r}, byte {self._start + place}: {problem} (is a quote or bracket missing?); {advice}"
        )


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
