"""Records that were dropped: where the first ones are, and what was found there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from beam_prep.core.data.block import Ledger

LOST = ("empty", "untrained")
"""Reasons for which a record is dropped without any rule of the config: there is nothing in it to train on."""

SHOWN = 20
"""The drops of each reason whose places are kept: the first ones."""
_FIELDS = 30
_FIELD_LIMIT = 64
_TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that was dropped, as its line has it.

    Attributes:
        line: its number in the block, from 0.
        offset: bytes from the block's first line; of a table: rows.
        reason: why it was dropped.
        text: the beginning of the line.
        fields: the record's keys; None: the line is not JSON, or texts are not kept.
        bare: those of them that hold nothing: null, blank text, an empty list.
    """

    line: int
    offset: int
    reason: str
    text: str = ""
    fields: list[str] | None = None
    bare: list[str] | None = None


def drops(ledger: Ledger, text_limit: int) -> list[Drop]:
    """The first drops of a block, of each reason, in the order of their lines.

    Args:
        ledger: of the block.
        text_limit: characters that are kept of a record; 0: nothing of it is.
    """
    found = []
    for code, (kind, reason) in enumerate(ledger.outcomes, start=1):
        if kind == "dropped":
            lines = np.flatnonzero(ledger.status == code)[:SHOWN].tolist()
            found += [_drop(ledger, line, reason, text_limit) for line in lines]
    return sorted(found, key=lambda drop: drop.line)


def _drop(ledger: Ledger, line: int, reason: str, text_limit: int) -> Drop:
    start, offset = int(ledger.starts[line]), int(ledger.offsets([line])[0])
    if not text_limit:
        return Drop(line, offset, reason)
    text = ledger.text(line, min(text_limit, _TEXT_LIMIT))
    try:
        record = orjson.loads(ledger.raw[start : ledger.ends[line]].strip(b" ,\t\r"))
    except orjson.JSONDecodeError:
        return Drop(line, offset, reason, text)
    fields = list(record.items())[:_FIELDS] if isinstance(record, dict) else []
    bare = [name[:_FIELD_LIMIT] for name, value in fields if value is None or _is_bare(value)]
    return Drop(line, offset, reason, text, [name[:_FIELD_LIMIT] for name, _ in fields], bare)


def _is_bare(value: Any) -> bool:
    return not value.strip() if isinstance(value, str) else value == []
