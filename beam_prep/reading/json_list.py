"""A `.json` file that holds one list of records, read as JSONL on the fly, in flat memory.

    [{"a": 1},                    ->       {"a": 1}
     {"b": [2,                    ->       {"b": [2,^M 3]}
     3]}]

`ListAsLines` replaces bytes one for one, so every offset stays. A comma between elements becomes a line end, the list's
brackets become spaces, and line ends within elements become carriage returns, which are white space between values, and
forbidden within strings, like line ends. So `read_blocks` and `parse` work as for JSONL: each record once, blocks,
rejects with their byte offset.

Damage within an element (a bad literal, a trailing comma, bytes that are no UTF-8) rejects that element. A scalar is
`not_an_object`; nothing between two commas is a blank line. If the borders of elements are uncertain, the file is
refused (`InputError` with the byte offset): a bracket or quote that never ends, a bracket too many, a line end within a
string, bytes behind the list. One kind of damage is not recognised: two faults that cancel out, such as a missing
bracket in one element and an extra one in a later element. Then everything between them is one reject, of at most
`MAX_ELEMENT` bytes.

A file that begins with an object is one record, or several records that each begin on a new line. If its first line is
a complete object, the file is JSONL, and passes unchanged, like a file that begins with anything else.
"""

import re
from enum import Enum, auto

import numpy as np

from beam_prep.data.block import Origin
from beam_prep.data.ragged import Array
from beam_prep.errors import InputError
from beam_prep.reading.blocks import BOM, RawBlock, Readable, read_up_to
from beam_prep.reading.records import Records, parse
from beam_prep.reading.source import Source

MAX_ELEMENT = 256 * 1024 * 1024
"""Most bytes of one element: a longer one means that a bracket or quote never ends."""

STEP = 256 * 1024
"""Bytes that are processed at once: intermediate results stay in the processor's cache."""

_WHITE = b" \t\r\n"
_SPACES = re.compile(rb"[ \t\r\n]*+")

_QUOTE, _COMMA, _LINE_END, _OPEN, _CLOSE = range(1, 6)
_CODES = {b'"': _QUOTE, b",": _COMMA, b"\n": _LINE_END, b"[": _OPEN, b"{": _OPEN, b"]": _CLOSE, b"}": _CLOSE}
_KINDS = bytes(_CODES.get(bytes([byte]), 0) for byte in range(256))
_DEPTHS = np.array([0, 0, 0, 0, 1, -1], np.int64)
"""The change of depth at each code."""


class _Mode(Enum):
    BEFORE = auto()  # only white space so far
    LIST = auto()
    AFTER_LIST = auto()
    OBJECTS = auto()
    LINES = auto()  # JSONL


class ListAsLines:
    """A stream with the same length as the given one; see the module.

    Args:
        stream: the file's content, from its first byte.
        name: the file, for error messages.
        max_element: see `MAX_ELEMENT`.
    """

    def __init__(self, stream: Readable, name: str, max_element: int = MAX_ELEMENT) -> None:
        self._stream = stream
        self._name = name
        self._max_element = max_element
        self._mode = _Mode.BEFORE
        self._start = 0  # of the current bytes
        self._element = 0  # begin of the current element
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next byte follows a backslash
        self._first_line = True

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b"" only at the end.

        Raises:
            InputError: the borders of the elements are uncertain.
        """
        if size <= 0:
            return b""
        data = read_up_to(self._stream, min(size, STEP))
        if not data:
            self._check_end()
            return b""
        end = self._start + len(data)
        lines = self._begin(data) if self._mode is _Mode.BEFORE else data
        if self._mode is _Mode.LIST:
            lines = self._list(lines)
        elif self._mode is _Mode.OBJECTS:
            lines = self._objects(lines)
        elif self._mode is _Mode.AFTER_LIST:
            self._check_after_list(data, 0)
            lines = data.replace(b"\n", b"\r")
        self._start = end
        return lines

    def _begin(self, data: bytes) -> bytes:
        """Finds out the kind of the file. White space before its content belongs to the first line."""
        rest = data.lstrip(_WHITE + BOM)
        head = data[: len(data) - len(rest)].replace(b"\n", b"\r")
        if rest:
            self._mode = {b"[": _Mode.LIST, b"{": _Mode.OBJECTS}.get(rest[:1], _Mode.LINES)
        if self._mode is _Mode.LIST:  # everything from here on is within the list
            self._depth = 1
            rest = b" " + rest[1:]
        self._element = self._start + len(head) + _spaces(rest, 0)
        return head + rest

    def _list(self, data: bytes) -> bytes:
        places, kinds, depths = self._structure(data)
        ends = np.flatnonzero(depths == 0)
        if len(ends):
            last = int(places[ends[0]])
            if data[last] != ord("]"):
                raise self._error(last, f"found {chr(data[last])!r} where the list ends, wanted ']'")
            self._check_after_list(data, last + 1)
            self._mode = _Mode.AFTER_LIST
            data = data[:last] + b" " + data[last + 1 :]
        return self._cut(data, places[(kinds == _COMMA) & (depths == 1)])

    def _objects(self, data: bytes) -> bytes:
        head = b""
        if self._first_line and (found := data.find(b"\n")) >= 0:
            self._first_line = False
            self._structure(data[:found])
            if self._depth <= 0 and not self._in_string:
                self._mode = _Mode.LINES
                return data
            head, data = data[:found], data[found:]
            self._start += found
        places, kinds, depths = self._structure(data)
        if not self._first_line and (depths < 0).any():
            wrong = int(places[(depths < 0).argmax()])
            raise self._error(wrong, f"found {chr(data[wrong])!r}, which closes nothing, wanted an object")
        return head + self._cut(data, places[(kinds == _LINE_END) & (depths == 0)])

    def _structure(self, data: bytes) -> tuple[Array, Array, Array]:
        """Brackets, commas and line ends outside of strings: (places, codes, depth behind each)."""
        codes = np.frombuffer(bytearray(data.translate(_KINDS)), np.uint8)
        codes[self._escaped_bytes(data)] = 0
        places = np.flatnonzero(codes != 0)
        kinds = codes[places]
        quotes = kinds == _QUOTE
        inside = np.logical_xor.accumulate(quotes) ^ self._in_string
        if (torn := inside & (kinds == _LINE_END)).any():
            raise self._error(int(places[torn.argmax()]), "found a line end within a string, wanted its closing quote")
        outside = ~(inside | quotes)
        places, kinds = places[outside], kinds[outside]
        depths = np.cumsum(_DEPTHS[kinds]) + self._depth
        if len(inside):
            self._in_string = bool(inside[-1])
        if len(depths):
            self._depth = int(depths[-1])
        return places, kinds, depths

    def _escaped_bytes(self, data: bytes) -> Array:
        """Places of escaped bytes: behind an odd number of backslashes."""
        slashes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\\"))
        head = np.zeros(int(self._escaped), np.int64)
        if self._escaped:
            slashes = slashes[slashes > 0]
        runs = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(runs, append=len(slashes))
        odd = lengths % 2 == 1
        escaped = np.concatenate([head, slashes[runs[odd]] + lengths[odd]])
        self._escaped = len(escaped) > 0 and int(escaped[-1]) == len(data)
        return escaped[escaped < len(data)]

    def _cut(self, data: bytes, borders: Array) -> bytes:
        """The bytes with line ends at these borders, and nowhere else."""
        if len(borders):
            self._element = self._start + _spaces(data, int(borders[-1]) + 1)
        if self._start + len(data) - self._element > self._max_element:
            raise self._never_ends(f"{self._max_element} bytes without an end")
        lines = bytearray(data.replace(b"\n", b"\r"))
        np.frombuffer(lines, np.uint8)[borders] = ord("\n")
        return bytes(lines)

    def _check_after_list(self, data: bytes, place: int) -> None:
        place = _spaces(data, place)
        if place < len(data):
            found = data[place : place + 20].decode("utf-8", "replace")
            raise self._error(place, f"found {found!r} after the list, wanted nothing")

    def _check_end(self) -> None:
        if self._mode is _Mode.LIST or (self._mode is _Mode.OBJECTS and (self._depth > 0 or self._in_string)):
            raise self._never_ends("the end of the file")

    def _never_ends(self, found: str) -> InputError:
        wanted = "',' or ']' after the element" if self._mode is _Mode.LIST else "'}' of the object"
        place = self._element - self._start
        return self._error(place, f"found {found}, wanted {wanted} that begins here (is a quote or bracket missing?)")

    def _error(self, place: int, text: str) -> InputError:
        advice = "mend it, leave it out, or name it .jsonl if it holds one record a line"
        return InputError(f"{self._name!r}, byte {self._start + place}: {text}; {advice}")


def _spaces(data: bytes, place: int) -> int:
    """The end of the white space that begins at a place."""
    found = _SPACES.match(data, place)
    assert found is not None
    return found.end()


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
        filled = np.flatnonzero(ledger.starts < ledger.ends)
        first = np.frombuffer(ledger.raw, np.uint8)[ledger.starts[filled]]
        for line in filled[np.isin(first, np.frombuffer(_WHITE, np.uint8))].tolist():
            ledger.starts[line] = min(_spaces(ledger.raw, ledger.starts[line]), ledger.ends[line])
        return records
