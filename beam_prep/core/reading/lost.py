"""Records that were dropped with nothing to train on, for the message of a run that fails on them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from beam_prep.core.data.block import Ledger

LOST = ("empty", "untrained")
"""Reasons for which a record is dropped without any rule of the config: there is nothing in it to train on."""

_LOST_SHOWN = 3
_FIELDS = 30
_FIELD_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Lost:
    """A record that was dropped with nothing to train on, as its line has it.

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
