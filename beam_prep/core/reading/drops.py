"""Records that were dropped: where the first ones are, and what was found there."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson

from beam_prep.core.data.block import ALIVE, Ledger

LOST = ("empty", "untrained")
"""Reasons for which a record is dropped without any rule of the config: there is nothing in it to train on."""

CONTAMINATED = "contaminated"
"""The reason for which a record is dropped that is in evaluation data, or the counter of rows that are marked so."""

SHOWN = 20
"""The drops of each reason whose places are kept: the first ones."""
_FIELDS = 30
_FIELD_LIMIT = 64
_TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that was dropped, or kept and marked, as its line has it.

    Attributes:
        line: its number in the block, from 0.
        offset: bytes from the block's first line; of a table: rows.
        reason: why it was dropped or marked.
        text: the beginning of the line.
        fields: the record's keys; None: the line is not JSON, or texts are not kept.
        bare: those of them that hold nothing: null, blank text, an empty list.
        note: what the step found that dropped or marked it; "" where there is nothing to say, or texts are not kept.
    """

    line: int
    offset: int
    reason: str
    text: str = ""
    fields: list[str] | None = None
    bare: list[str] | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Its fields; without a note that is empty, as earlier versions wrote it."""
        found = asdict(self)
        if not self.note:
            del found["note"]
        return found


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


def marks(ledger: Ledger, text_limit: int) -> list[Drop]:
    """The first records of a block that are kept and marked (`contaminated`). For the arguments see `drops`."""
    lines = [line for line in sorted(ledger.notes) if ledger.status[line] == ALIVE]
    return [_drop(ledger, line, CONTAMINATED, text_limit) for line in lines[:SHOWN]]


def _drop(ledger: Ledger, line: int, reason: str, text_limit: int) -> Drop:
    start, offset = int(ledger.starts[line]), int(ledger.offsets([line])[0])
    if not text_limit:
        return Drop(line, offset, reason)
    note = ledger.notes.get(line, "")
    text = ledger.text(line, min(text_limit, _TEXT_LIMIT))
    try:
        record = orjson.loads(ledger.raw[start : ledger.ends[line]].strip(b" ,\t\r"))
    except orjson.JSONDecodeError:
        return Drop(line, offset, reason, text, note=note)
    fields = list(record.items())[:_FIELDS] if isinstance(record, dict) else []
    bare = [name[:_FIELD_LIMIT] for name, value in fields if value is None or _is_bare(value)]
    return Drop(line, offset, reason, text, [name[:_FIELD_LIMIT] for name, _ in fields], bare, note)


def _is_bare(value: Any) -> bool:
    return not value.strip() if isinstance(value, str) else value == []
