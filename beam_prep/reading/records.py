"""Cuts a stream of bytes into blocks, at any block size, and parses their lines to `Records`.

Every line belongs to exactly one block. A bad line becomes a reject, never an error. JSON is parsed exactly: integers
of any size, no repeated keys, a reason for each refusal.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import orjson

from beam_prep.data.block import ALIVE, Block, InputFile, Ledger, Origin, Reason, Reject, without_collector
from beam_prep.data.hashing import CHUNK, block_digest, tree_nodes
from beam_prep.data.ragged import Array

BOM = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Most bytes of a line, without its line end."""

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


_LINE_END = CHUNK // 2
"""Bytes of one read behind a block's range: most often its last line ends there."""


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
    read, end = bytearray(ahead), ahead.find(b"\n")
    while (
        end < 0
        and begun + len(read) <= max(max_line_bytes, SHOWN_BYTES) + len(BOM + b"\r")
        and (part := stream.read(_LINE_END))
    ):
        read += part
        end = read.find(b"\n", len(read) - len(part))
    size = begun + (len(read) if end < 0 else end)
    if size <= max_line_bytes + len(BOM + b"\r"):  # which do not count: `parse` looks again
        return bytes(read), bytes(read if end < 0 else read[: end + 1]), False
    return bytes(read), bytes(read[: max(0, min(size, SHOWN_BYTES) - begun)]), True


LOST = ("empty", "rows_without_loss")
"""Reasons of drops without any rule of the config: the record has nothing to train on."""

CONTAMINATED = "contaminated"
"""The reason of drops of records that are in evaluation data; also the counter of rows that are marked so."""

SHOWN, REJECTS_SHOWN = 20, 3
"""Numbers of drops, and of rejects, of each reason that a report quotes: the first ones."""
_FIELDS = 30
_FIELD_LIMIT = 64
_TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that a report quotes: it was dropped, rejected, or kept and marked.

    Attributes:
        line: its number in the block, from 0.
        offset: bytes from the block's first line; of a table: rows.
        reason: why it was dropped, rejected or marked.
        text: the beginning of the line.
        fields: the record's keys; None: the line is not JSON, or texts are not kept.
        bare: the keys of empty values: null, blank text, an empty list.
        note: what the step found that dropped or marked it, or the message of the reject; "" without a note, or if
            texts are not kept.
        kind: `dropped`, `rejected`, or `marked`.
    """

    line: int
    offset: int
    reason: str
    text: str = ""
    fields: list[str] | None = None
    bare: list[str] | None = None
    note: str = ""
    kind: str = "dropped"


def shown(ledger: Ledger, text_limit: int) -> list[Drop]:
    """The first drops, rejects and marked records (`contaminated`) of a block for each reason, in the order of lines.

    Args:
        ledger: of the block.
        text_limit: most characters kept of a record; 0: no text, keys or note.
    """
    found = []
    for code, (kind, reason) in enumerate(ledger.outcomes, start=1):
        if kind != "blank":
            lines = np.flatnonzero(ledger.status == code)[: REJECTS_SHOWN if kind == "rejected" else SHOWN].tolist()
            found += [_drop(ledger, line, kind, reason, text_limit) for line in lines]
    marked = [line for line in sorted(ledger.notes) if ledger.status[line] == ALIVE]
    found += [_drop(ledger, line, "marked", CONTAMINATED, text_limit) for line in marked[:SHOWN]]
    return sorted(found, key=lambda drop: drop.line)


def _drop(ledger: Ledger, line: int, kind: str, reason: str, text_limit: int) -> Drop:
    start, offset = int(ledger.starts[line]), int(ledger.offsets([line])[0])
    if not text_limit:
        return Drop(line, offset, reason, kind=kind)
    if kind == "rejected":
        return Drop(line, offset, reason, ledger.text(line, text_limit), note=ledger.messages[line], kind=kind)
    note = ledger.notes.get(line, "")
    text = ledger.text(line, min(text_limit, _TEXT_LIMIT))
    try:
        record = orjson.loads(ledger.raw[start : ledger.ends[line]].strip(b" ,\t\r"))
    except orjson.JSONDecodeError:
        return Drop(line, offset, reason, text, note=note, kind=kind)
    fields = list(record.items())[:_FIELDS] if isinstance(record, dict) else []
    bare = [name[:_FIELD_LIMIT] for name, value in fields if is_absent(value)]
    return Drop(line, offset, reason, text, [name[:_FIELD_LIMIT] for name, _ in fields], bare, note, kind)


def is_absent(value: Any) -> bool:
    """True for null, blank text and an empty list."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


Record = dict[str, Any]


def are_bare(messages: Sequence[Any]) -> bool:
    """True if all messages are objects of exactly a `role` and a `content`, both strings."""
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return False
        if type(message.get("role")) is not str or type(message.get("content")) is not str:
            return False
    return True


@dataclass(slots=True)
class Records(Block):
    """Parsed objects of a block.

    >>> records = bp.testing.records([{"text": "Hello"}, "not JSON", {"text": "Bye"}])
    >>> list(records.rows)
    [{'text': 'Hello'}, {'text': 'Bye'}]
    >>> records.line.tolist(), bp.testing.rejects(records)
    ([0, 2], [(1, 'bad_json')])

    Attributes:
        rows: one dict for each row, aligned with `line`.
    """

    rows: list[Record] = field(default_factory=list)

    def keep(self, places: Array, ledger: Ledger) -> "Records":
        """The rows at these ascending places. `ledger` has the outcome of the others."""
        rows = [self.rows[place] for place in places.tolist()]
        return replace(self, ledger=ledger, line=self.line[places], rows=rows)

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "rows", len(self.rows)


def parse(raw: RawBlock, origin: Origin, by_row: bool = False) -> Records:
    """Parses the lines of a block. In the ledger, the other lines are blank or rejected.

    Reject reasons: `bad_json`, `bad_text` (half of a surrogate pair), `invalid_utf8`, `duplicate_key`, `bad_number`
    (beyond a double), `too_deep`, `not_an_object`, `line_too_long`. Integers beyond 64 bits stay exact. NaN and
    Infinity are `bad_json`, but numbers in a table, because columns that nothing reads may hold them.

    Args:
        raw: the block.
        origin: its source.
        by_row: the lines are rows of a table.
    """
    ledger = Ledger(raw.data, *_line_borders(raw.data, origin.start == 0), by_row=by_row)
    for line, reason, message in origin.refused:
        ledger.reject(line, reason, message)
    rows: list[Record] = []
    constants = float if ledger.by_row else None
    blank: list[int] = []
    lines = np.flatnonzero(ledger.status == ALIVE)
    borders = zip(lines.tolist(), ledger.starts[lines].tolist(), ledger.ends[lines].tolist(), strict=True)
    with without_collector():
        for line, start, end in borders:
            text = raw.data[start:end]
            try:
                if end - start > origin.max_line_bytes or (origin.cut and line == len(ledger.starts) - 1):
                    ledger.ends[line] = min(end, start + SHOWN_BYTES)
                    limit = f"{origin.max_line_bytes} bytes (max_line_bytes)"
                    raise Reject("line_too_long", f"the line has more than {limit}")
                if not text or text.isspace():
                    blank.append(line)
                    continue
                row = parse_json(text, constants)
                if type(row) is not dict:
                    raise Reject("not_an_object", f"the line is {describe(row)}, wanted a JSON object")
                rows.append(row)
            except Reject as reject:
                ledger.reject(line, reject.reason, reject.message)
    ledger.blank(np.array(blank, np.int64))
    return Records(origin, ledger, np.flatnonzero(ledger.status == ALIVE).astype(np.int32), rows=rows)


def lines_beyond_json(ledger: Ledger) -> set[int]:
    """The rows of a table that may hold values that JSON lacks, see `check_values`; empty for other files."""
    places = [found.start() for found in BEYOND.finditer(ledger.raw)] if ledger.by_row else []
    return {*(np.searchsorted(ledger.starts, places, side="right") - 1).tolist()}


def _line_borders(data: bytes, file_start: bool) -> tuple[Array, Array]:
    view = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(view == ord("\n"))
    starts, ends = np.append(0, newlines + 1), np.append(newlines, len(data))
    if starts[-1] == len(data):
        starts, ends = starts[:-1], ends[:-1]
    if len(starts) and file_start and data.startswith(BOM):
        starts[0] = len(BOM)
    filled = ends > starts
    ends[filled] -= view[ends[filled] - 1] == 13
    return starts, ends


# One line

MAX_DEPTH = 254
"""Most levels of nesting of a line: orjson writes no more."""
_TOO_DEEP = f"the line is nested deeper than {MAX_DEPTH} levels"

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""In a line whose digits are replaced by zeros: a number that orjson may turn into another double."""


def parse_json(line: bytes, constants: Callable[[str], float] | None = None) -> Any:
    """The value of a line.

    Args:
        line: the line.
        constants: converts `NaN`, `Infinity` and `-Infinity`; None: they are refused.

    Raises:
        Reject: the line is no JSON, or repeats a key: see `records.parse`.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _parse_carefully(line, error, constants)
    if _quotes(value) != line.count(b'"') + line.count(b"\\u0022") or _LONG_NUMBER in line.translate(_DIGITS):
        return _parse_carefully(line)
    return value


def _quotes(value: Any) -> int:
    """Number of quotes of a value as JSON. A repeated key, which the parser dropped, had at least two more."""
    try:
        return orjson.dumps(value).count(b'"')
    except TypeError:
        raise Reject("too_deep", _TOO_DEEP) from None


def _parse_carefully(
    line: bytes, error: orjson.JSONDecodeError | None = None, constants: Callable[[str], float] | None = None
) -> Any:
    """Parses with the standard library: exact integers, repeated keys, and why orjson refused the line."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise Reject("invalid_utf8", f"byte {bad.start} of the line is no UTF-8 ({bad.reason})") from None
    if error is not None:
        if "depth limit" in str(error):
            raise Reject("too_deep", _TOO_DEEP)
        if "surrogate" in str(error):
            raise Reject("bad_text", f"half of a surrogate pair: {error}")
        if constants is None and "infinity" not in str(error):  # the other parser names the number
            is_constant = text.startswith(("NaN", "Infinity"), error.pos)
            lacks = "; JSON has no NaN and no Infinity: write null" if is_constant else ""
            raise Reject("bad_json", f"{error}{lacks}")
    try:
        return json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_int=exact_integer,
            parse_float=finite_double,
            parse_constant=constants,
        )
    except json.JSONDecodeError as bad:
        raise Reject("bad_json", str(bad)) from None
    except RecursionError:
        raise Reject("too_deep", _TOO_DEEP) from None


def dumped(value: Any, sort: bool = False) -> bytes:
    """The JSON of a value; with sorted keys, equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:  # integers beyond 64 bits, or half of a surrogate pair
        text = json.dumps(value, ensure_ascii=False, sort_keys=sort, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (name := twice([name for name, _ in pairs])) is not None:
        raise Reject("duplicate_key", f"the key {name!r} is twice in one object")
    return dict(pairs)


def twice(names: Sequence[str]) -> str | None:
    """The first name that is there twice; None if there is none."""
    if len({*names}) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


def exact_integer(text: str) -> int:
    if len(text) > 308:
        finite_double(text)
    return int(text)


def finite_double(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Reject("bad_number", f"{text[:40]} is beyond a double")
    return number


def _is_binary(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and type(value.get("binary")) is int


def describe(value: Any) -> str:
    """A value for messages, such as `a number (3)`."""
    if value is None:
        return "null"
    if _is_binary(value):
        return f"binary ({value['binary']:,} bytes)"
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if type(value) not in (str, bool, int, float):
        return kind
    text = json.dumps(value[:50] if type(value) is str else value, ensure_ascii=False)
    return f"{kind} ({text if len(text) <= 40 else text[:40] + '...'})"


def check_type(value: Any, kinds: Any, where: str, wanted: str, reason: Reason = "wrong_type") -> None:
    """Raises Reject if a value has none of these types; `where` and `wanted` are for the message."""
    if not isinstance(value, kinds):
        raise Reject(reason, f"{where} is {describe(value)}, wanted {wanted}")


BINARY = b'{"binary" :%d}'
"""Stands for bytes of a table, with their number. The blank before the colon marks that no column held this object."""
BEYOND = re.compile(rb'NaN|Infinity|\{"binary" :')
"""Matches rows of tables with values that JSON lacks, and some others."""


def check_values(record: Mapping[str, Any], fields: Iterable[str]) -> None:
    """Checks the fields of a table's row that the run reads.

    Raises:
        Reject: `not_json`: a field holds a number that is not finite, or bytes.
    """
    todo = [(name, record.get(name)) for name in fields]
    for where, value in todo:  # without recursion: a record may be nested deeper than Python's stack allows
        if (type(value) is float and not math.isfinite(value)) or _is_binary(value):
            raise Reject("not_json", f"'{where}' is {describe(value)}, which JSON does not have")
        if isinstance(value, dict):
            todo += [(f"{where}.{name}", each) for name, each in value.items()]
        elif isinstance(value, list):
            todo += [(f"{where}[{place}]", each) for place, each in enumerate(value)]
