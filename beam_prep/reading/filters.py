"""Rules, and functions of the user, that keep, change, drop or reject records."""

from collections.abc import Callable
from typing import Any

import numpy as np

from beam_prep.data.block import Reject, step
from beam_prep.errors import UserFunctionError
from beam_prep.reading.json_line import describe
from beam_prep.reading.records import Record, Records


@step
def filter_by_chars(records: Records, min_chars: int, max_chars: int, fields: tuple[str, ...]) -> Records:
    """Removes text fields with fewer than `min_chars` or more than `max_chars` code points.

    A record that loses all its text `fields` is dropped (`too_short` / `too_long`). Fields that are no strings stay:
    ApplyTemplate rejects them.
    """

    def work(row: Record) -> Record | str | bool:
        texts = {name: row[name] for name in fields if isinstance(row.get(name), str)}
        outside = {name for name, text in texts.items() if not min_chars <= len(text) <= max_chars}
        if not outside:
            return row
        if len(outside) == len(texts) and all(row.get(name) is None for name in fields if name not in texts):
            raise LeftOut(_why([*texts.values()], min_chars))
        return {name: value for name, value in row.items() if name not in outside}

    return work_on_each(records, work)


def _why(texts: list[str], min_chars: int) -> str:
    """The reason to drop a record whose texts are all too short or too long."""
    filled = [text for text in texts if text.strip()]
    if not filled:
        return "empty"
    return "too_short" if any(len(text) < min_chars for text in filled) else "too_long"


class LeftOut(Exception):
    """A rule drops the record."""


@step
def filter_records(records: Records, function: Callable[[Record], bool | str]) -> Records:
    """Keeps records for which `function` returns True; False drops (`filtered`), a string rejects with this reason.

    Raises:
        UserFunctionError: the function raised, or returned something else.
    """

    def work(row: Record) -> Record:
        answer = _call(function, row)
        if not isinstance(answer, (bool, np.bool_)):
            raise UserFunctionError(
                f"{_name(function)} gave {describe(answer)}; FilterRecords wants True, False or a reason (a string)"
            )
        if not answer:
            raise LeftOut("filtered")
        return row

    return work_on_each(records, work)


@step
def map_records(records: Records, function: Callable[[Record], Record | str]) -> Records:
    """Replaces each record by `function(record)`; a string rejects the record, and is the reason.

    Raises:
        UserFunctionError: the function raised, or returned neither an object nor a string.
    """

    def work(row: Record) -> Record:
        answer = _call(function, row)
        if not isinstance(answer, dict):
            raise UserFunctionError(f"{_name(function)} gave {describe(answer)}; MapRecords wants a dict or a reason")
        return answer

    return work_on_each(records, work)


def work_on_each(records: Records, work: Callable[[Record], Any]) -> Records:
    """Applies `work` to every row. If it raises Reject or LeftOut, the row leaves the block."""
    rows, kept, ledger = [], [], records.ledger.copy()
    for index, (line, row) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        try:
            row = work(row)
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        except LeftOut as drop:
            ledger.drop(line, drop.args[0])
        except UserFunctionError as error:
            raise UserFunctionError(f"{error}, at {records.where(index)}") from error.__cause__
        else:
            rows.append(row)
            kept.append(index)
    line = records.line[np.asarray(kept, dtype=np.int64)]
    return Records(records.origin, ledger, line, records.receipt, rows, made=records.made)


def _call(function: Callable[[Record], Any], row: Record) -> Any:
    """What the function gives for a record. A text rejects the record, and is the reason."""
    # The run ends here and names the record: an error in a user's code must not be skipped.
    try:
        answer = function(row)
    except Exception as error:
        message = " ".join(str(error).split())  # one line, so that logs do not separate the text behind it
        raise UserFunctionError(f"{_name(function)} raised {type(error).__name__}: {message}") from error
    if isinstance(answer, str) and answer:
        raise Reject(answer, f"{_name(function)} refused the record")
    return answer


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
