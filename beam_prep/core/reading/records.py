"""Blocks of JSONL -> `Records`; a bad line is a reject, never an error."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson

from beam_prep.core.data.block import ALIVE, Block, Ledger, Origin, Reject
from beam_prep.core.data.columns import Columns, Wanted
from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.places import is_table
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.search import places_of
from beam_prep.core.reading.blocks import BOM, SHOWN_BYTES, RawBlock
from beam_prep.core.reading.json_line import describe, parse_carefully
from beam_prep.core.reading.parse_columns import read_columns

Record = dict[str, Any]

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_NESTED = {dict, list}


@dataclass(slots=True)
class Records(Block):
    """Parsed objects of a block.

    >>> records = bp.testing.records([{"text": "Hello"}, "not JSON", {"text": "Bye"}])
    >>> list(records.rows)
    [{'text': 'Hello'}, {'text': 'Bye'}]
    >>> records.line.tolist(), bp.testing.rejects(records)
    ([0, 2], [(1, 'bad_json')])

    Attributes:
        rows: one dict a row, aligned with `line`.
        columns: the same as columns, where that was wanted and possible; then `rows` parses records when they are read.
    """

    rows: Sequence[Record] = field(default_factory=list)
    columns: Columns | None = None

    def part(self, places: range) -> "Records":
        """A range of the rows, as objects. The ledger counts the others as dropped."""
        ledger, taken = self.ledger.copy(), np.asarray(places, np.int64)
        ledger.drop(np.delete(self.line, taken), "filtered")
        return Records(self.origin, ledger, self.line[taken], rows=[self.rows[place] for place in places])

    def keep(self, places: Array, ledger: Ledger) -> "Records":
        """The rows at these places, ascending, with a ledger that says what became of the others."""
        rows, columns = self.rows, self.columns
        return replace(
            self,
            ledger=ledger,
            line=self.line[places],
            rows=rows.take(places) if isinstance(rows, Lines) else [rows[place] for place in places.tolist()],
            columns=None if columns is None else columns.take(places),
        )

    @property
    def in_columns(self) -> int:
        """How many rows are given as columns."""
        if isinstance(self.rows, MostLines):
            return self.rows.in_columns
        return 0 if self.columns is None else len(self.columns)

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "rows", len(self.rows)
        if self.columns is not None:
            # Rows that are not those of the columns would be ignored.
            yield "columns of these", len(self.columns) if isinstance(self.rows, Lines) else 0


Change = Callable[[Record], Record]


class Lines(OnDemand[Record]):
    """Records that are parsed when they are read, from lines that are known to be right.

    Args:
        raw, starts, ends: the lines.
        change: what an adapter does to each, if there is one.
    """

    def __init__(self, raw: bytes, starts: Array, ends: Array, change: Change | None = None) -> None:
        self._raw, self._starts, self._ends, self._change = raw, starts, ends, change

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Record]:
        careful = _LONG_NUMBER.search(self._raw) is not None
        for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            line = self._raw[start:end]
            row = parse_carefully(line) if careful and _LONG_NUMBER.search(line) else orjson.loads(line)
            yield row if self._change is None else self._change(row)

    def _at(self, index: int) -> Record:
        line = self._raw[self._starts[index] : self._ends[index]]
        row: Record = parse_carefully(line) if _LONG_NUMBER.search(line) else orjson.loads(line)
        return row if self._change is None else self._change(row)

    def take(self, rows: Array) -> "Lines":
        return Lines(self._raw, self._starts[rows], self._ends[rows], self._change)

    def changed(self, change: Change, done: Mapping[int, Record], columns: Columns) -> "Lines":
        """The records as an adapter changes them.

        Args:
            change: changes a record.
            done: row -> those that are changed already: of `MostLines`, all that are parsed.
            columns: the changed records; those that are done are not `plain` in it.
        """
        if not done:
            return Lines(self._raw, self._starts, self._ends, change)
        return MostLines(self._raw, self._starts, self._ends, done, columns, change)


class MostLines(Lines):
    """Records of which most are given as columns, too; the others are parsed.

    Only who makes pieces of text uses these columns. Whoever gives other rows gives them without.

    Attributes:
        columns: an entry a row; of those that are parsed, nothing.
    """

    def __init__(
        self,
        raw: bytes,
        starts: Array,
        ends: Array,
        parsed: Mapping[int, Record],
        columns: Columns,
        change: Change | None = None,
    ) -> None:
        super().__init__(raw, starts, ends, change)
        self._parsed, self.columns = parsed, columns

    @property
    def in_columns(self) -> int:
        """How many are given as columns."""
        return len(self) - len(self._parsed)

    def __iter__(self) -> Iterator[Record]:
        return map(self._at, range(len(self)))

    def _at(self, index: int) -> Record:
        found = self._parsed.get(index)
        return super()._at(index) if found is None else found

    def take(self, rows: Array) -> "MostLines":
        parsed = {new: self._parsed[old] for new, old in enumerate(rows.tolist()) if old in self._parsed}
        columns = self.columns.take(rows)
        return MostLines(self._raw, self._starts[rows], self._ends[rows], parsed, columns, self._change)


def parse(raw: RawBlock, origin: Origin, wanted: Wanted | None = None) -> Records:
    """Lines of a block -> parsed objects; the others are blank or rejected in the ledger.

    Args:
        raw: the block.
        origin: its origin.
        wanted: blocks in which all records are plain ones of that kind are parsed as columns; of others, the parts of
            which that holds: see `MostLines`.

    Reject reasons: `bad_json`, `bad_text` (half of a surrogate pair), `invalid_utf8`, `duplicate_key`, `bad_number`
    (beyond a double), `too_deep`, `not_an_object`, `line_too_long`. Integers beyond 64 bits stay exact.
    """
    by_row = is_table(origin.source.path)
    ledger = Ledger(raw.data, *_line_borders(raw.data, origin.start == 0), by_row=by_row)
    for line, reason, message in origin.refused:
        ledger.reject(line, reason, message)
    _reject_long(ledger, origin)
    _mark_blank(ledger)
    lines = np.flatnonzero(ledger.status == ALIVE)
    found = None
    if wanted is not None:
        borders = ledger.starts[lines], ledger.ends[lines]
        found = read_columns(raw.data, *borders, wanted)
        if found is not None and not found[1].any():
            rows_as_lines = Lines(raw.data, *borders)
            return Records(origin, ledger, lines.astype(np.int32), rows=rows_as_lines, columns=found[0])
    long_numbers = _lines_with_long_numbers(ledger)
    escaped_quotes = b"u0022" in raw.data  # found faster than with its backslash
    view = memoryview(raw.data)
    rows: list[Record] = []
    left = lines if found is None else lines[found[1]]
    for line, start, end in zip(left.tolist(), ledger.starts[left].tolist(), ledger.ends[left].tolist(), strict=True):
        try:
            try:
                row = orjson.loads(view[start:end])
            except orjson.JSONDecodeError as error:
                row = parse_carefully(raw.data[start:end], error)
            else:
                quotes = raw.data.count(b'"', start, end)
                if escaped_quotes:
                    quotes += raw.data.count(b"\\u0022", start, end)
                if line in long_numbers or _quotes(row) != quotes:
                    row = parse_carefully(raw.data[start:end])
            if type(row) is not dict:
                raise Reject("not_an_object", f"the line is {describe(row)}, wanted a JSON object")
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        else:
            rows.append(row)
    alive = np.flatnonzero(ledger.status == ALIVE).astype(np.int32)
    if found is None:
        return Records(origin, ledger, alive, rows=rows)
    columns, odd = found
    kept = ledger.status[lines] == ALIVE
    parsed = dict(zip(np.flatnonzero(odd[kept]).tolist(), rows, strict=True))
    columns = columns if kept.all() else columns.take(np.flatnonzero(kept))
    known = MostLines(raw.data, ledger.starts[alive], ledger.ends[alive], parsed, columns)
    return Records(origin, ledger, alive, rows=known)


def _line_borders(data: bytes, file_start: bool) -> tuple[Array, Array]:
    view = np.frombuffer(data, np.uint8)
    newlines = places_of(view, lambda part: part == ord("\n"))
    starts = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    ends = np.concatenate([newlines, np.array([len(data)], np.int64)])
    if starts[-1] == len(data):
        starts, ends = starts[:-1], ends[:-1]
    if len(starts) and file_start and data.startswith(BOM):
        starts[0] = len(BOM)
    filled = ends > starts
    ends[filled] -= view[ends[filled] - 1] == 13
    return starts, ends


def _reject_long(ledger: Ledger, origin: Origin) -> None:
    """Rejects the lines that are longer than allowed, and keeps their beginning only."""
    most = origin.max_line_bytes
    if len(ledger.raw) <= most and not origin.cut:
        return
    # With what does not belong to a line's text: a byte order mark, a carriage return.
    borders = np.concatenate([ledger.starts[1:], [len(ledger.raw) + (not ledger.raw.endswith(b"\n"))]])
    long = borders[: len(ledger.starts)] - 1 - ledger.starts > most
    if len(long) and ledger.starts[0]:
        long[0] |= ledger.ends[0] > most
    if origin.cut:
        long[-1] = True
    for line in np.flatnonzero(long).tolist():
        ledger.reject(line, "line_too_long", f"the line has more than {most} bytes (max_line_bytes)")
        ledger.ends[line] = min(ledger.ends[line], ledger.starts[line] + SHOWN_BYTES)


def _mark_blank(ledger: Ledger) -> None:
    view = np.frombuffer(ledger.raw, np.uint8)
    empty = (ledger.starts >= ledger.ends) & (ledger.status == ALIVE)
    maybe = np.flatnonzero(~empty & (ledger.status == ALIVE))
    maybe = maybe[np.isin(view[ledger.starts[maybe]], np.frombuffer(b" \t\r\v\f", np.uint8))]
    for line in maybe.tolist():
        empty[line] = not ledger.raw[ledger.starts[line] : ledger.ends[line]].strip()
    ledger.blank(np.flatnonzero(empty))


def _lines_with_long_numbers(ledger: Ledger) -> set[int]:
    """Lines with 19 digits in a row, which orjson may turn into a double that is not the number.

    Such a run covers ten digits that begin at a multiple of ten, so only every tenth byte is examined first.
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
