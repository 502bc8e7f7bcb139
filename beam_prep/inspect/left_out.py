"""Records that became no row: dropped or rejected, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from beam_prep.inspect.screen import VISIBLE

TEXT = 200
"""Characters of a record that are shown in a terminal."""


@dataclass(frozen=True)
class LeftOut:
    """A record that becomes no row.

    Attributes:
        place: the file, and the line.
        kind: `dropped` or `rejected`.
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
        place = f"{reject['file']}, line {reject['line']:,}"
        message, text = str(reject["message"] or ""), reject["text"]
        if text is None or text == "":
            text = "(its text is not kept: --reject_text 0)"
        return cls(place, "rejected", str(reject["reason"]), message, str(text))


def left_out_text(record: LeftOut) -> Text:
    """A record for a terminal."""
    text = Text().append(f"━━ {record.place} · {record.kind}: {record.reason}".translate(VISIBLE), "bold red")
    text.append(f"\n{record.message}".translate(VISIBLE) if record.message else "")
    short = record.text if len(record.text) <= TEXT else f"{record.text[:TEXT]} ..."
    return text.append(f"\n── {short}".translate(VISIBLE), "dim")
