"""Lines of a block -> columns, by Arrow's parser; only where it is certain to read what `records.parse` does."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from beam_prep.core.data.columns import NUMBERS, Columns, Wanted, columns_of, fits, messages_of
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.search import places_of

_SAMPLED = 64
"""The fields and types of these lines are expected of the entire block. If a line differs, `parse` takes the block."""

_NULL_AFTER = re.compile(rb"\}[ \t\r]*null")

_PARTS = 16
"""Parts of a block that are read one by one: an odd record is one of the part in which it is, and of no other. A block
without odd records is read at once, which takes four fifths of the time."""
_ALL_ODD = 4
"""Parts with an odd record, from the first on, after which no other is tried."""
_odd: set[Wanted] = set()
"""Those of which the last block of this process had odd records: the next one may have some, too."""


def read_columns(raw: bytes, starts: Array, ends: Array, wanted: Wanted) -> tuple[Columns, Array] | None:
    """The lines of a block as columns, but for the parts of it in which a line is odd.

    Args:
        raw: the block.
        starts, ends: int64 [lines], borders of its lines, without those that are blank.
        wanted: the kind of the records.

    Returns:
        the columns, an entry a line; and bool [lines]: those of the other parts, of which there is nothing in any
        column. None if there are no others: each part has a line that is, or may be, something else or invalid.
    """
    borders = np.linspace(0, len(starts), max(1, min(_PARTS, len(starts) // _SAMPLED)) + 1).astype(np.int64)
    parts = [slice(first, last) for first, last in itertools.pairwise(borders.tolist())]
    schemas = (_schema(_first_lines(raw, starts[part], ends[part]), wanted) for part in parts[:_ALL_ODD])
    schema = next((found for found in schemas if found is not None), None)
    if schema is None or not len(starts) or len(raw) >= 1 << 27:
        return None
    table = None if wanted in _odd or len(parts) == 1 else _table(raw, starts, ends, wanted, schema)
    if table is not None:
        return columns_of(table, wanted), np.zeros(len(starts), bool)
    _odd.add(wanted)
    tables: list[pa.Table] = []
    odd = np.ones(len(starts), bool)
    for tried, part in enumerate(parts):
        if tried == _ALL_ODD and not tables:
            return None
        table = _table(raw, starts[part], ends[part], wanted, schema)
        if table is not None:
            tables.append(table)
            odd[part] = False
    if not odd.any():
        _odd.discard(wanted)
    if not tables:
        return None
    found = columns_of(pa.concat_tables(tables).combine_chunks(), wanted)
    return (found.spread(np.flatnonzero(~odd), len(starts)) if odd.any() else found), odd


def _first_lines(raw: bytes, starts: Array, ends: Array) -> list[bytes]:
    return [raw[start:end] for start, end in zip(starts[:_SAMPLED], ends[:_SAMPLED], strict=True)]


def _table(block: bytes, starts: Array, ends: Array, wanted: Wanted, schema: pa.Schema) -> pa.Table | None:
    """Some lines of a block as a table; None if a line is, or may be, something else or invalid."""
    if not len(starts):
        return None
    raw = memoryview(block)[starts[0] : ends[-1]]
    view = np.frombuffer(raw, np.uint8)
    starts, ends = starts - starts[0], ends - starts[0]
    # With nothing between the lines each object ends in its own: after "}" only another object can begin with "{".
    if (view[starts] != ord("{")).any() or (view[ends - 1] != ord("}")).any() or _more_between(raw, starts, ends):
        return None
    if _null_between(view, raw):
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(raw),
            pj.ReadOptions(use_threads=False, block_size=len(raw) + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        table.validate(full=True)  # UTF-8
    except pa.ArrowInvalid:
        return None
    table = table.combine_chunks()
    if len(table) != len(starts) or not _finite(table):
        return None
    names = [each.field for each in wanted.each if each.kind == "chats"]
    messages = [table[name].chunk(0).flatten() for name in names]
    if any(each.null_count for each in messages):
        return None
    # The order of the keys, too, must be that of the first messages, and one for all fields: objects are only counted.
    first = {schema.field(name).type.value_type.field(0).name for name in names}
    if len(first) > 1:
        return None
    for key in first:
        braces = places_of(view, lambda part: part == ord("{"))
        if _begin_with(view, braces, key) - _begin_with(view, starts, key) != sum(map(len, messages)):
            return None
    return table


def _more_between(raw: memoryview, starts: Array, ends: Array) -> bool:
    """True if a line that is a reject already lies between two others: Arrow would read it, too."""
    apart = np.flatnonzero(starts[1:] - ends[:-1] > 2)  # no other line has place in a line feed and a carriage return
    borders = zip(ends[apart].tolist(), starts[apart + 1].tolist(), strict=True)
    return any(bytes(raw[end:start]).strip(b" \t\r\n") for end, start in borders)


def _null_between(view: Array, raw: memoryview) -> bool:
    """True if a null may follow a record in its line: Arrow's parser would crash the process."""
    closed = places_of(view[:-2], lambda part: part == ord("}"))
    one = view[closed + 1]
    # Most are followed by a line feed, a comma or another bracket.
    closed = closed[(one == ord("n")) | (one == ord(" ")) | (one == ord("\t")) | (one == ord("\r"))]
    return any(_NULL_AFTER.match(raw, place) for place in closed.tolist())


def _begin_with(view: Array, braces: Array, first: str) -> int:
    """How many objects, by the places of their braces, begin with a key.

    A brace in a string is no object, and what follows it no key: quotes in strings are escaped.
    """
    wanted = np.frombuffer(b'"%b"' % first.encode(), np.uint8)
    places = braces[braces < len(view) - len(wanted) - 1] + 1
    places = places + (view[places] == ord(" "))
    for step, byte in enumerate(wanted.tolist()):
        places = places[view[places + step] == byte]
    return len(places)


_TYPES = {str: pa.string(), int: pa.float64(), float: pa.float64(), bool: pa.bool_(), type(None): pa.null()}


def _finite(table: pa.Table) -> bool:
    """False if a number is NaN or Infinity, which Arrow reads and JSON does not have."""
    numbers = [column.chunk(0).flatten() if column.type == NUMBERS[1] else column for column in table.columns]
    return all(pc.all(pc.is_finite(each)).as_py() is not False for each in numbers if pa.types.is_floating(each.type))


def _schema(lines: Sequence[bytes], wanted: Wanted) -> pa.Schema | None:
    """The fields of these records: the wanted ones, and others with plain values. None if there are more."""
    fields: dict[str, pa.DataType] = {}
    kinds = {each.field: each for each in wanted.each}
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        if type(record) is not dict:
            return None
        for name, value in record.items():
            kind = kinds.get(name)
            found = _TYPES.get(type(value)) if kind is None or kind.kind == "texts" else _type_in(value, kind)
            known = fields.get(name, pa.null())
            if found is None or (known not in (found, pa.null()) and found != pa.null()):
                return None
            fields[name] = known if found == pa.null() else found
    return pa.schema(fields) if all(fits(fields.get(name), each) for name, each in kinds.items()) else None


def _type_in(value: Any, wanted: Wanted) -> pa.DataType | None:
    """The type of a field that is to be of that kind, from a record; null where it does not tell, None: of no kind."""
    if value is None or value == []:
        return pa.null()
    if wanted.kind == "numbers":
        found = value if type(value) is list else [value]
        if not set(map(type, found)) <= {int, float}:
            return None
        return pa.list_(pa.float64()) if type(value) is list else pa.float64()
    if type(value) is not list:
        return None
    if wanted.kind == "lists":
        return pa.list_(pa.string()) if set(map(type, value)) <= {str, type(None)} else None
    if any(type(message) is not dict or not message.keys() <= set(wanted.keys) for message in value):
        return None
    orders = {tuple(message) for message in value if len(message) == 2}
    return pa.null() if not orders else messages_of(orders.pop()) if len(orders) == 1 else None
