"""Bytes of JSONL -> `Records`: every line exactly once, at any block size; a bad line is a reject, never an error."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import orjson

from beam_prep.core.data.block import ALIVE, Block, InputFile, Ledger, Origin, Reject, step
from beam_prep.core.data.columns import Columns, Wanted, read_columns, sizes
from beam_prep.core.data.hashing import CHUNK, block_digest, tree_nodes
from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.ragged import Array
from beam_prep.errors import UserFunctionError

Record = dict[str, Any]

BOM = b"\xef\xbb\xbf"

MAX_DEPTH = 512
"""Levels of nesting of a line. The parsers could do more, but not always as many: their limit is the free stack."""

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_NESTED = {dict, list}
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


@dataclass(slots=True)
class Records(Block):
    """Parsed objects of a block.

    Attributes:
        rows: one dict a row, aligned with `line`.
        columns: the same as columns, where that was wanted and can be; then `rows` parses what is asked for.
    """

    rows: Sequence[Record] = field(default_factory=list)
    columns: Columns | None = None

    def part(self, places: range) -> "Records":
        """Some of the rows, as objects. The ledger takes the others for dropped."""
        ledger, taken = self.ledger.copy(), np.asarray(places, np.int64)
        ledger.drop(np.delete(self.line, taken), "filtered")
        return Records(self.origin, ledger, self.line[taken], rows=[self.rows[place] for place in places])

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "rows", len(self.rows)
        if self.columns is not None:
            # Other rows than those of the columns would not be looked at.
            yield "columns of these", len(self.columns) if isinstance(self.rows, _Lines) else 0


class _Lines(OnDemand[Record]):
    """Records that are parsed when they are asked for, from lines that are known to be right."""

    def __init__(self, raw: bytes, starts: Array, ends: Array) -> None:
        self._raw, self._starts, self._ends = raw, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    def _at(self, index: int) -> Record:
        line = self._raw[self._starts[index] : self._ends[index]]
        row: Record = _parse_carefully(line) if _LONG_NUMBER.search(line) else orjson.loads(line)
        return row

    def take(self, rows: Array) -> "_Lines":
        return _Lines(self._raw, self._starts[rows], self._ends[rows])


class Readable(Protocol):
    """What blocks are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Bytes of one block. It owns the lines that *begin* in `[start, start + size)` of the content.

    Attributes:
        start: offset of the range in the content.
        size: bytes of the range.
        skip: bytes at the head of the range that belong to a line of the block before.
        data: the bytes from `start + skip` to the end of the last line, which may lie beyond the range.
        head: the skipped bytes.
    """

    start: int
    size: int
    skip: int
    data: bytes
    head: bytes

    def origin(self, file: int, source: InputFile, block_bytes: int) -> Origin:
        """Digests of the block, and where it stands."""
        # A block size that is no multiple of the chunk is for tests only: its digests depend on it.
        chunk = CHUNK if block_bytes % CHUNK == 0 else block_bytes
        mine = self.size - self.skip
        nodes = tree_nodes(memoryview(self.data)[:mine], self.start, chunk, self.head)
        bom = self.start == 0 and self.data.startswith(BOM)
        digest = block_digest(nodes, self.skip, bom, self.data[mine:])
        return Origin(file, source, self.start, self.skip, self.size, nodes, digest)


_LINE_END = CHUNK // 2
"""Bytes that are read behind a block's range at once: most often the last line ends there."""


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
    buffer, here = b"", 0  # `start` is at `here` in the buffer: behind a long line, many blocks are cut from one buffer
    while stop < 0 or start < stop:
        want = block_bytes if stop < 0 else stop - start
        if len(buffer) - here < want or here > len(buffer) // 2:
            buffer, here = buffer[here:], 0
            buffer += _read(stream, want + _LINE_END - len(buffer))
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


def _read(stream: Readable, size: int) -> bytes:
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
        more = _read(stream, step)
        if not more:
            return buffer, len(buffer)
        buffer += more
        step *= 2
    return buffer, found + 1


def parse(raw: RawBlock, origin: Origin, wanted: Wanted | None = None) -> Records:
    """Lines of a block -> parsed objects; the others are blank or rejected in the ledger.

    Args:
        raw: the block.
        origin: its origin.
        wanted: blocks in which all records are plain ones of that kind are parsed as columns.

    Reject reasons: `bad_json`, `bad_text` (half of a surrogate pair), `invalid_utf8`, `duplicate_key`, `bad_number`
    (beyond a double), `too_deep`, `not_an_object`. Integers beyond 64 bits stay exact.
    """
    ledger = Ledger(raw.data, *_line_borders(raw.data, origin.start == 0))
    _mark_blank(ledger)
    lines = np.flatnonzero(ledger.status == ALIVE)
    if wanted is not None:
        borders = ledger.starts[lines], ledger.ends[lines]
        if (found := read_columns(raw.data, *borders, wanted)) is not None:
            return Records(origin, ledger, lines.astype(np.int32), rows=_Lines(raw.data, *borders), columns=found)
    long_numbers = _lines_with_long_numbers(ledger)
    escaped_quotes = b"u0022" in raw.data  # found faster than with its backslash
    view = memoryview(raw.data)
    rows = []
    for line, start, end in zip(
        lines.tolist(), ledger.starts[lines].tolist(), ledger.ends[lines].tolist(), strict=True
    ):
        try:
            try:
                row = orjson.loads(view[start:end])
            except orjson.JSONDecodeError as error:
                row = _parse_carefully(raw.data[start:end], error)
            else:
                quotes = raw.data.count(b'"', start, end)
                if escaped_quotes:
                    quotes += raw.data.count(b"\\u0022", start, end)
                if line in long_numbers or _quotes(row) != quotes:
                    row = _parse_carefully(raw.data[start:end])
            if type(row) is not dict:
                raise Reject("not_an_object", f"the line is {_describe(row)}, wanted a JSON object")
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        else:
            rows.append(row)
    alive = np.flatnonzero(ledger.status == ALIVE).astype(np.int32)
    return Records(origin, ledger, alive, rows=rows)


def _line_borders(data: bytes, file_start: bool) -> tuple[Array, Array]:
    view = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(view == 10)
    starts = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    ends = np.concatenate([newlines, np.array([len(data)], np.int64)])
    if starts[-1] == len(data):
        starts, ends = starts[:-1], ends[:-1]
    if len(starts) and file_start and data.startswith(BOM):
        starts[0] = len(BOM)
    some = ends > starts
    ends[some] -= view[ends[some] - 1] == 13
    return starts, ends


def _mark_blank(ledger: Ledger) -> None:
    view = np.frombuffer(ledger.raw, np.uint8)
    empty = ledger.starts >= ledger.ends
    maybe = np.flatnonzero(~empty)
    maybe = maybe[np.isin(view[ledger.starts[maybe]], np.frombuffer(b" \t\r\v\f", np.uint8))]
    for line in maybe.tolist():
        empty[line] = not ledger.raw[ledger.starts[line] : ledger.ends[line]].strip()
    ledger.blank(np.flatnonzero(empty))


def _lines_with_long_numbers(ledger: Ledger) -> set[int]:
    """Lines with 19 digits in a row, which orjson may turn into a double that is not the number.

    Such a run covers ten digits from some multiple of ten on, so only every tenth byte is looked at first.
    """
    view = np.frombuffer(ledger.raw, np.uint8)
    places = np.flatnonzero((view[: max(0, len(view) - 9) : 10] - np.uint8(48)) < 10) * 10
    for place in range(1, 10):
        places = places[(view[places + place] - np.uint8(48)) < 10]
        if not len(places):
            return set()
    lines = np.searchsorted(ledger.starts, places, side="right") - 1
    found: set[int] = set()
    for line, place in zip(lines.tolist(), places.tolist(), strict=True):
        if line not in found and _LONG_NUMBER.search(ledger.raw, max(0, place - 9), place + 19):
            found.add(line)
    return found


def _quotes(row: Any) -> int:
    """How many quotes the object takes as JSON. A repeated key that parsing dropped had at least two more."""
    if type(row) is dict and _NESTED.isdisjoint(map(type, row.values())):  # a long text is not written for it
        texts: list[str] = [*row, *(value for value in row.values() if type(value) is str)]
        return 2 * len(texts) + sum([text.count('"') for text in texts])
    try:
        return orjson.dumps(row).count(b'"')
    except TypeError:  # nested deeper than orjson writes
        return -1


def _parse_carefully(line: bytes, error: orjson.JSONDecodeError | None = None) -> Any:
    """The standard library's parser, for what orjson cannot say: exact integers, repeated keys, why it refused."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise Reject("invalid_utf8", f"byte {bad.start} of the line is no UTF-8 ({bad.reason})") from None
    too_deep = Reject("too_deep", f"the line is nested deeper than {MAX_DEPTH} levels")
    if error is not None and "depth limit" in str(error):
        raise too_deep
    half = error is not None and "surrogate" in str(error)
    if error is not None and not half and "infinity" not in str(error):
        raise Reject("bad_json", str(error))
    if _deeper_than(MAX_DEPTH, line):
        raise too_deep
    try:
        row = json.loads(text, object_pairs_hook=_unique, parse_int=_whole, parse_float=_finite)
    except json.JSONDecodeError as bad:
        raise Reject("bad_json", str(bad)) from None
    except RecursionError:
        raise too_deep from None
    if error is not None:
        raise Reject("bad_text", f"half of a surrogate pair: {error}") if half else Reject("bad_number", str(error))
    return row


def _deeper_than(levels: int, line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") <= levels:
        return False
    view = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    opened = (view == ord("[")) | (view == ord("{"))
    closed = (view == ord("]")) | (view == ord("}"))
    return bool(np.cumsum(opened.astype(np.int64) - closed).max(initial=0) > levels)


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Reject("duplicate_key", f"the key {name!r} stands twice in one object")
            seen.add(name)
    return row


def _whole(text: str) -> int:
    if len(text) > 308:
        _finite(text)
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Reject("bad_number", f"{text[:40]} is beyond a double")
    return number


def _describe(value: Any) -> str:
    """`a number (3)`: what was found, for messages."""
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if type(value) not in (str, bool, int, float):
        return kind
    text = json.dumps(value[:50] if type(value) is str else value, ensure_ascii=False)
    return f"{kind} ({text if len(text) <= 40 else text[:40] + '...'})"


@step
def filter_by_chars(records: Records, min_chars: int, max_chars: int, fields: tuple[str, ...]) -> Records:
    """Takes out text fields with fewer than `min_chars` or more than `max_chars` code points.

    A record that loses all of the `fields` that it had is dropped (`too_short` / `too_long`). Fields that are not
    strings are left to ApplyTemplate, which rejects them.
    """

    def work(row: Record) -> Record | str | bool:
        texts = {name: row[name] for name in fields if isinstance(row.get(name), str)}
        outside = {name for name, text in texts.items() if not min_chars <= len(text) <= max_chars}
        if not outside:
            return row
        if len(outside) == len(texts) and all(row.get(name) is None for name in fields if name not in texts):
            short = any(len(texts[name]) < min_chars and texts[name].strip() for name in outside)
            blank = not any(text.strip() for text in texts.values())
            reason = "empty" if blank else "too_short" if short else "too_long"
            raise _Drop(reason)
        return {name: value for name, value in row.items() if name not in outside}

    columns = records.columns
    if columns is not None and columns.kind == "texts" and fields == (columns.field,):
        return _each_outside(records, columns, min_chars, max_chars, work)
    return _each(records, work)


def _each_outside(
    records: Records, columns: Columns, min_chars: int, max_chars: int, work: Callable[[Record], Any]
) -> Records:
    """`_each` of the rows whose one text is too short or too long: each of them is dropped."""
    assert isinstance(records.rows, _Lines)
    # A character takes one to four bytes, so most need not be counted.
    in_bytes = sizes(columns.text)
    unsure = np.flatnonzero(((in_bytes < 4 * min_chars) | (in_bytes > max_chars)) & columns.whole)
    lengths = columns.text.take(unsure).characters
    places = unsure[(lengths < min_chars) | (lengths > max_chars)]
    if len(places):
        rows = [records.rows[place] for place in places.tolist()]
        ledger = _each(replace(records, line=records.line[places], rows=rows, columns=None), work).ledger
        places = np.delete(np.arange(len(in_bytes)), places)
        records = replace(
            records,
            ledger=ledger,
            line=records.line[places],
            rows=records.rows.take(places),
            columns=columns.take(places),
        )
    return records


class _Drop(Exception):
    """A record that a rule leaves out."""


@step
def filter_records(records: Records, function: Callable[[Record], bool | str]) -> Records:
    """Keeps the records for which `function` gives True; False drops (`filtered`), a string rejects with that reason.

    Raises:
        UserFunctionError: the function raised, or gave something else.
    """

    def work(row: Record) -> Record:
        answer = _call(records, function, row)
        if isinstance(answer, str) and answer:
            raise Reject(answer, f"{_name(function)} refused the record")
        if not isinstance(answer, (bool, np.bool_)):
            raise UserFunctionError(
                f"{_name(function)} gave {_describe(answer)}; FilterRecords wants True, False or a reason (a string)"
            )
        if not answer:
            raise _Drop("filtered")
        return row

    return _each(records, work)


@step
def map_records(records: Records, function: Callable[[Record], Record | str]) -> Records:
    """Puts `function(record)` in each record's place; a string rejects the record with that reason.

    Raises:
        UserFunctionError: the function raised, or gave neither an object nor a string.
    """

    def work(row: Record) -> Record:
        answer = _call(records, function, row)
        if isinstance(answer, str) and answer:
            raise Reject(answer, f"{_name(function)} refused the record")
        if not isinstance(answer, dict):
            raise UserFunctionError(f"{_name(function)} gave {_describe(answer)}; MapRecords wants a dict or a reason")
        return answer

    return _each(records, work)


def _each(records: Records, work: Callable[[Record], Any]) -> Records:
    """`work` on every row; a row for which it raises Reject or _Drop leaves the block."""
    rows, kept, ledger = [], [], records.ledger.copy()
    for index, (line, row) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        try:
            row = work(row)
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        except _Drop as drop:
            ledger.drop(line, drop.args[0])
        except UserFunctionError as error:
            raise UserFunctionError(f"{error}, at {records.where(index)}") from error.__cause__
        else:
            rows.append(row)
            kept.append(index)
    line = records.line[np.asarray(kept, dtype=np.int64)]
    return Records(records.origin, ledger, line, records.receipt, rows, made=records.made)


def _call(records: Records, function: Callable[[Record], Any], row: Record) -> Any:
    # The run stops here with the record named: an error in a user's code is nothing to skip over.
    try:
        return function(row)
    except Exception as error:
        message = " ".join(str(error).split())  # on one line, so that what stands behind it is not lost in a log
        raise UserFunctionError(f"{_name(function)} raised {type(error).__name__}: {message}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


LOST = ("empty", "untrained")
"""Reasons to drop a record that no config asks for: there is nothing in it to train on."""

_LOST_SHOWN = 3
_FIELDS = 30
_FIELD_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Lost:
    """A record that was dropped with nothing to train on, as its line says it.

    Attributes:
        offset: bytes from the block's first line.
        reason: why it was dropped.
        fields: its keys.
        bare: those of them that hold nothing: null, blank text, an empty list.
    """

    offset: int
    reason: str
    fields: tuple[str, ...]
    bare: tuple[str, ...]


def lost_records(ledger: Ledger) -> list[Lost]:
    """The first of a block, of each reason, for a run that fails on them."""
    found = []
    for code, (kind, reason) in enumerate(ledger.outcomes, start=1):
        if kind != "dropped" or reason not in LOST:
            continue
        for line in np.flatnonzero(ledger.status == code)[:_LOST_SHOWN].tolist():
            start = int(ledger.starts[line])
            try:
                record = orjson.loads(ledger.raw[start : ledger.ends[line]].strip(b" ,\t\r"))
            except orjson.JSONDecodeError:
                continue  # other lines will do
            fields = list(record.items())[:_FIELDS] if isinstance(record, dict) else []
            bare = tuple(name[:_FIELD_LIMIT] for name, value in fields if value is None or _is_bare(value))
            found.append(Lost(start, reason, tuple(name[:_FIELD_LIMIT] for name, _ in fields), bare))
    return sorted(found, key=lambda record: record.offset)


def _is_bare(value: Any) -> bool:
    return not value.strip() if isinstance(value, str) else value == []
