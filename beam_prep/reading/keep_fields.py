"""Metadata columns: fields of records that are kept beside the tokens. They are read first, and written last.

No step in between sees them: the ledger of their block has an entry for each line.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from beam_prep.data.block import Reject, step
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Metadata, MetadataType, metadata_column, one_each
from beam_prep.reading.json_line import describe
from beam_prep.reading.records import Records


@step
def keep_fields(records: Records, fields: Mapping[str, MetadataType]) -> Records:
    """Notes fields of the records in the ledger. `CacheBlocks` makes metadata columns of them.

    In a string column, strings stay; numbers, true and false become their JSON text; an absent or null field becomes an
    empty string, which `keep_fields_missing` counts. A numeric column needs a number that its type holds: integers
    exactly, others rounded to its precision. A boolean column needs true, false, 1 or 0. Anything else rejects the
    record (`keep_fields`) if it would be kept.

    Args:
        records: the records as read.
        fields: field -> its type.
    """
    if records.receipt is not None:
        return records
    lines = len(records.ledger.starts)
    values: dict[str, Ragged] = {}
    missing, problems = np.zeros(lines, np.int64), dict[int, str]()
    for name, kind in fields.items():
        column = [row.get(name) for row in records.rows]
        found: list[Any] = []
        for line, value in zip(records.line.tolist(), column, strict=True):
            try:
                found.append(_string(value) if kind == "string" else _number(value, kind))
            except Reject as reject:
                found.append(b"" if kind == "string" else 0)
                problems.setdefault(line, f"field {name!r} is {reject.message}")
        if kind == "string":
            lengths = np.zeros(lines, np.int64)
            lengths[records.line] = list(map(len, found))
            values[name] = Ragged.from_lengths(np.frombuffer(b"".join(found), np.uint8), lengths)
            missing[records.line] += np.array([value is None for value in column], np.int64)
        else:
            numbers = np.zeros(lines, kind)
            numbers[records.line] = np.array(found, kind)
            values[name] = one_each(numbers)
    columns = tuple(metadata_column(name, kind) for name, kind in fields.items())
    ledger = records.ledger.copy()
    ledger.metadata = Metadata(columns, values, missing, problems)
    return replace(records, ledger=ledger)


def _string(value: Any) -> bytes:
    """A value of a record as UTF-8.

    Raises:
        Reject: the value is neither a string nor a number.
    """
    if type(value) is str:
        try:
            return value.encode()
        except UnicodeEncodeError:  # only a user's function makes such a string, never the parser
            raise Reject("keep_fields", "a string with half of a surrogate pair") from None
    if value is None:
        return b""
    if type(value) not in (int, float, bool):
        raise Reject("keep_fields", f"{describe(value)}, wanted a string or a number")
    if type(value) is float and not np.isfinite(value):
        raise Reject("keep_fields", f"{describe(value)}, which JSON does not have")
    return json.dumps(value).encode()


def _number(value: Any, kind: MetadataType) -> float:
    """A number of a record, converted to a type.

    Raises:
        Reject: the value is no number, or the type does not hold it.
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
                rounded = float(np.dtype(kind).type(float(value)))  # a double first, as most readers of JSON do
        except OverflowError:
            rounded = float("inf")
        if not np.isfinite(rounded):
            raise Reject("keep_fields", f"{describe(value)}, which is beyond {kind}")
        return rounded + 0.0
    limits = np.iinfo(kind)
    if value % 1 != 0 or not limits.min <= value <= limits.max:
        raise Reject("keep_fields", f"{describe(value)}, wanted an integer that {kind} holds")
    return int(value)
