"""Fields of records that are kept as metadata: they are read first, and become columns of the rows last.

No step in between sees them: they are in the ledger of their block, which has an entry for each line.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from beam_prep.data.block import Reject, step
from beam_prep.data.metadata import Metadata, MetadataType, metadata_column, one_each
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.reading.json_line import describe
from beam_prep.reading.records import Records


@step
def keep_fields(records: Records, fields: Mapping[str, MetadataType]) -> Records:
    """Notes fields of the records in the ledger. `CacheBlocks` makes columns of them.

    A string is taken as it is. A number (or true, or false) in a column of strings is the text that JSON writes for it;
    a field that is absent or null is an empty string, which `keep_fields_missing` counts. In a column of numbers there
    must be a number that the type holds: integers exactly, others rounded to its precision; in one of booleans true,
    false, 1 or 0. All else becomes a reject
    (`keep_fields`) if the record would be kept.

    Args:
        records: as they were read.
        fields: field -> its type.
    """
    if records.receipt is not None:
        return records
    lines = len(records.ledger.starts)
    values: dict[str, Ragged] = {}
    missing, problems = np.zeros(lines, np.int64), dict[int, str]()
    for name, kind in fields.items():
        column = [row.get(name) for row in records.rows]
        rows, absent, wrong = _strings(name, column) if kind == "string" else _numbers(name, column, kind)
        lengths = np.zeros(lines, np.int64)
        if kind == "string":
            lengths[records.line] = rows.lengths
            values[name] = Ragged.from_lengths(rows.flat, lengths)
        else:
            numbers = np.zeros(lines, kind)
            numbers[records.line] = rows.flat
            values[name] = one_each(numbers)
        missing[records.line[absent]] += 1
        for row, message in wrong.items():
            problems.setdefault(int(records.line[row]), message)
    columns = tuple(metadata_column(name, kind) for name, kind in fields.items())
    ledger = records.ledger.copy()
    ledger.metadata = Metadata(columns, values, missing, problems)
    return replace(records, ledger=ledger)


_Found = tuple[Ragged, Array, dict[int, str]]
"""A value for each row; the rows that lack theirs; row -> why its value cannot be carried."""


def _strings(name: str, column: Sequence[Any]) -> _Found:
    parts, wrong = [], dict[int, str]()
    for row, value in enumerate(column):
        try:
            parts.append(_string(value))
        except Reject as reject:
            parts.append(b"")
            wrong[row] = f"field {name!r} is {reject.message}"
    absent = np.array([row for row, value in enumerate(column) if value is None], np.int64)
    flat = np.frombuffer(b"".join(parts), np.uint8)
    return Ragged(flat, offsets_of([len(part) for part in parts])), absent, wrong


def _string(value: Any) -> bytes:
    """A value of a record as UTF-8.

    Raises:
        Reject: it is neither a string nor a number.
    """
    if type(value) is str:
        try:
            return value.encode()
        except UnicodeEncodeError:  # of a function of the user: no line that was parsed has it
            raise Reject("keep_fields", "a string with half of a surrogate pair") from None
    if value is None:
        return b""
    if type(value) not in (int, float, bool):
        raise Reject("keep_fields", f"{describe(value)}, wanted a string or a number")
    if type(value) is float and not np.isfinite(value):
        raise Reject("keep_fields", f"{describe(value)}, which JSON does not have")
    return json.dumps(value).encode()


def _numbers(name: str, column: Sequence[Any], kind: MetadataType) -> _Found:
    wrong = dict[int, str]()

    def each() -> Iterator[float]:
        for row, value in enumerate(column):
            try:
                yield _number(value, kind)
            except Reject as reject:
                wrong[row] = f"field {name!r} is {reject.message}"
                yield 0

    return one_each(np.fromiter(each(), kind, len(column))), np.zeros(0, np.int64), wrong


def _number(value: Any, kind: MetadataType) -> float:
    """A number of a record, as one of a type.

    Raises:
        Reject: it is none, or the type does not hold it.
    """
    if kind == "bool" and (isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1))):
        return bool(value)
    if kind == "bool" or type(value) not in (int, float):
        found = "absent or null" if value is None else describe(value)
        wanted = "true or false" if kind == "bool" else f"a number ({kind})"
        raise Reject("keep_fields", f"{found}, wanted {wanted}")
    if kind.startswith("float"):
        try:
            with np.errstate(over="ignore"):
                rounded = float(np.dtype(kind).type(float(value)))  # a double first, as JSON is mostly read
        except OverflowError:
            rounded = float("inf")
        if not np.isfinite(rounded):
            raise Reject("keep_fields", f"{describe(value)}, which is beyond {kind}")
        return rounded + 0.0
    limits = np.iinfo(kind)
    if value % 1 != 0 or not limits.min <= value <= limits.max:
        raise Reject("keep_fields", f"{describe(value)}, wanted an integer that {kind} holds")
    return int(value)
