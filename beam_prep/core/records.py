"""Bytes of JSONL -> `Records`: every line exactly once, at any block size; a bad line is a reject, never an error."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson

from beam_prep.core.block import ALIVE, Block, InputFile, Ledger, Origin, Reject
from beam_prep.core.hashing import CHUNK, block_digest, tree_nodes
from beam_prep.core.ragged import Array
from beam_prep.errors import UserFunctionError

Record = dict[str, Any]

BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Records(Block):
    """Parsed objects of a block.

    Attributes:
        rows: one dict a row, aligned with `line`.
    """

    rows: list[Record] = field(default_factory=list)


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
        content = self.head + self.data if self.head else self.data
        covered = memoryview(content)[: self.size]
        # A block size that is no multiple of the chunk is for tests only: its digests depend on it.
        chunk = CHUNK if block_bytes % CHUNK == 0 else block_bytes
        nodes = tree_nodes(covered, self.start, chunk)
        digest = block_digest(nodes, self.skip, content[self.size :])
        return Origin(file, source, self.start, self.skip, len(covered), nodes, digest)


def read_blocks(stream: Readable, start: int, stop: int, block_bytes: int) -> Iterator[RawBlock]:
    """Cuts a stream into blocks.

    Args:
        stream: positioned at `start`, or one byte before it where `start` is not 0 (that byte says whether a line
            begins at `start`).
        start: offset of the first block.
        stop: end of the range, one block; -1: blocks of `block_bytes` to the end of the stream.
        block_bytes: size of a block's range.
    """
    previous = b"\n" if start == 0 else stream.read(1)
    buffer = b""
    while stop < 0 or start < stop:
        want = block_bytes if stop < 0 else stop - start
        buffer += _read(stream, want - len(buffer))
        if not buffer:
            return
        size = min(want, len(buffer))
        skip = 0 if previous == b"\n" else (buffer.find(b"\n", 0, size) + 1 or size)
        end = size
        if skip < size and buffer[size - 1] != 10:
            buffer, end = _finish_line(stream, buffer, size)
        yield RawBlock(start, size, skip, buffer[skip:end], buffer[:skip])
        previous = buffer[size - 1 : size]
        buffer = buffer[size:]
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


def parse(raw: RawBlock, origin: Origin) -> Records:
    """Lines of a block -> parsed objects; the others are blank or rejected in the ledger.

    Reject reasons: `bad_json`, `invalid_utf8`, `duplicate_key`, `bad_number` (no double holds it), `too_deep`,
    `not_an_object`. Integers beyond 64 bits stay exact.
    """
    ledger = Ledger(raw.data, *_line_borders(raw.data, origin.start == 0))
    _mark_blank(ledger)
    careful = _lines_with_long_numbers(ledger)
    escaped_quotes = b"\\u0022" in raw.data
    view = memoryview(raw.data)
    rows = []
    lines = np.flatnonzero(ledger.status == ALIVE)
    for line, start, end in zip(
        lines.tolist(), ledger.starts[lines].tolist(), ledger.ends[lines].tolist(), strict=True
    ):
        try:
            try:
                row = orjson.loads(view[start:end])
            except orjson.JSONDecodeError as error:
                row = _parse_carefully(raw.data[start:end], error)
            else:
                if line in careful or escaped_quotes or _quotes(row) != raw.data.count(b'"', start, end):
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
    places = np.arange(0, max(0, len(view) - 9), 10)
    for step in range(10):
        places = places[(view[places + step] - np.uint8(48)) < 10]
        if not len(places):
            return set()
    return set((np.searchsorted(ledger.starts, places, side="right") - 1).tolist())


def _quotes(row: Any) -> int:
    """How many quotes the object takes as JSON. A repeated key that parsing dropped had at least two more."""
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
    if error is not None and "infinity" not in str(error):
        reason = "too_deep" if "depth limit" in str(error) else "bad_json"
        raise Reject(reason, str(error))
    try:
        row = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as bad:
        raise Reject("bad_json", str(bad)) from None
    except RecursionError:
        raise Reject("too_deep", "the line is nested too deeply") from None
    except UnicodeEncodeError:
        raise Reject("bad_json", "a string holds half of a surrogate pair") from None
    except ValueError:
        raise Reject("bad_number", "an integer has more than 4,300 digits") from None
    return row


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Reject("duplicate_key", f"the key {twice!r} stands twice in one object")
    return row


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Reject("bad_number", f"{text[:40]} is beyond a double")
    return number


def _no_constant(text: str) -> Any:
    raise Reject("bad_json", f"{text} is not JSON")


def _describe(value: Any) -> str:
    """`a number (3)`: what was found, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), "null")
    if kind == "null" or type(value) in (dict, list):
        return kind
    text = json.dumps(value, ensure_ascii=False)
    return f"{kind} ({text if len(text) <= 40 else text[:40] + '...'})"


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

    return _each(records, work)


class _Drop(Exception):
    """A record that a rule leaves out."""


def filter_records(records: Records, function: Callable[[Record], bool | str]) -> Records:
    """Keeps the records for which `function` gives True; False drops (`filtered`), a string rejects with that reason.

    Raises:
        UserFunctionError: the function raised, or gave something else.
    """

    def work(row: Record) -> Record:
        answer = _call(records, function, row)
        if isinstance(answer, str):
            raise Reject(answer, f"{_name(function)} refused the record")
        if not isinstance(answer, (bool, np.bool_)):
            raise UserFunctionError(
                f"{_name(function)} gave {_describe(answer)}; FilterRecords wants True, False or a reason (a string)"
            )
        if not answer:
            raise _Drop("filtered")
        return row

    return _each(records, work)


def map_records(records: Records, function: Callable[[Record], Record | str]) -> Records:
    """Puts `function(record)` in each record's place; a string rejects the record with that reason.

    Raises:
        UserFunctionError: the function raised, or gave neither an object nor a string.
    """

    def work(row: Record) -> Record:
        answer = _call(records, function, row)
        if isinstance(answer, str):
            raise Reject(answer, f"{_name(function)} refused the record")
        if not isinstance(answer, dict):
            raise UserFunctionError(f"{_name(function)} gave {_describe(answer)}; MapRecords wants a dict or a reason")
        return answer

    return _each(records, work)


def _each(records: Records, work: Callable[[Record], Any]) -> Records:
    """`work` on every row; a row for which it raises Reject or _Drop leaves the block."""
    rows, kept = [], []
    for index, (line, row) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        try:
            row = work(row)
        except Reject as reject:
            records.ledger.reject(line, reject.reason, reject.message)
        except _Drop as drop:
            records.ledger.drop(line, drop.args[0])
        except UserFunctionError as error:
            raise UserFunctionError(f"{error}, at {records.where(index)}") from error.__cause__
        else:
            rows.append(row)
            kept.append(index)
    line = records.line[np.asarray(kept, dtype=np.int64)]
    return Records(records.origin, records.ledger, line, records.receipt, rows)


def _call(records: Records, function: Callable[[Record], Any], row: Record) -> Any:
    # The run stops here with the record named: an error in a user's code is nothing to skip over.
    try:
        return function(row)
    except Exception as error:
        raise UserFunctionError(f"{_name(function)} raised {type(error).__name__}: {error}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
