"""Records that became no row: dropped or rejected, and why; and those that are marked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from beam_prep.core.reading.json_list import place_in
from beam_prep.core.reading.keys import DUPLICATE
from beam_prep.inspect.visible import VISIBLE

TEXT = 200
"""Characters of a record that are shown in a terminal."""


@dataclass(frozen=True)
class LeftOut:
    """A record that becomes no row, or one that is marked.

    Attributes:
        place: the file, and the line (of a list: the record).
        kind: `dropped` or `rejected`; `marked`: it was kept.
        reason, message: why.
        text: the beginning of its line.
    """

    place: str
    kind: str
    reason: str
    message: str
    text: str

    @classmethod
    def of_reject(cls, reject: Mapping[str, Any]) -> "LeftOut":
        """From a line of an output's rejects."""
        return cls._of(reject, "rejected", str(reject["message"] or ""))

    @classmethod
    def of_drop(cls, drop: Mapping[str, Any]) -> "LeftOut":
        """From the drops of an output: see `Dataset.drops`."""
        return cls._of(drop, "dropped", str(drop.get("note", "")))

    @classmethod
    def of_mark(cls, mark: Mapping[str, Any]) -> "LeftOut":
        """From the marked records of an output: see `Dataset.marked`."""
        return cls._of(mark, "marked", str(mark.get("note", "")))

    @classmethod
    def _of(cls, record: Mapping[str, Any], kind: str, message: str) -> "LeftOut":
        place = f"{record['file']}, {place_in(record['file'], record['line'])}"
        is_copy = record["reason"] == DUPLICATE
        text = record["text"] or f"(its text is {'that of the other' if is_copy else 'not kept: --reject_text 0'})"
        return cls(place, kind, str(record["reason"]), message, str(text))


def left_out_text(record: LeftOut) -> Text:
    """A record for a terminal."""
    text = Text().append(f"━━ {record.place} · {record.kind}: {record.reason}".translate(VISIBLE), "bold red")
    text.append(f"\n{record.message}".translate(VISIBLE) if record.message else "")
    short = record.text if len(record.text) <= TEXT else f"{record.text[:TEXT]} ..."
    return text.append(f"\n── {short}".translate(VISIBLE), "dim")
