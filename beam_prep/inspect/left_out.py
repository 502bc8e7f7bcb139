"""Records that became no row (dropped, rejected), and records that were marked, with their reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from beam_prep.inspect.sequences import VISIBLE
from beam_prep.readers.source import InputLines
from beam_prep.reading.sources import place_in

TEXT = 200
"""Most characters of a record that are shown in a terminal."""


@dataclass(frozen=True)
class LeftOut:
    """A record that became no row, or that was marked.

    Attributes:
        place: the file, and the line (in a list the record).
        kind: `dropped` or `rejected`; `marked`: it was kept.
        reason, message: why.
        text: the beginning of its line.
        first: for a copy, the place and the line of the earlier, equal record; ("", "") for other records.
    """

    place: str
    kind: str
    reason: str
    message: str
    text: str
    first: tuple[str, str] = ("", "")

    def lines(self, characters: int) -> list[str]:
        """The text of the record, and for a copy of the earlier record; at most `characters` of each."""
        where, other = self.first
        found = [text if len(text) <= characters else f"{text[:characters]} ..." for text in (self.text, other)]
        return [found[0], f"{where}: {found[1]}"] if where else found[:1]

    @classmethod
    def of_reject(cls, reject: Mapping[str, Any]) -> "LeftOut":
        """From a line of an output's rejects."""
        return cls._of(reject, "rejected", str(reject["message"] or ""))

    @classmethod
    def of_drop(cls, drop: Mapping[str, Any], inputs: InputLines | None = None) -> "LeftOut":
        """From the drops of an output, see `Dataset.drops`. With `inputs`, the lines of copies are read from them."""
        found = cls._of(drop, "dropped", str(drop.get("note", "")))
        same_as = drop.get("same_as")
        if same_as is None:
            return found
        if inputs is None:
            return replace(found, text="(--reason duplicate shows both lines)")
        place = f"{same_as['file']}, {place_in(same_as['file'], same_as['line'])}"
        return replace(found, text=inputs.at(drop), first=(place, inputs.at(same_as)))

    @classmethod
    def of_mark(cls, mark: Mapping[str, Any]) -> "LeftOut":
        """From the marked records of an output: see `Dataset.marked`."""
        return cls._of(mark, "marked", str(mark.get("note", "")))

    @classmethod
    def _of(cls, record: Mapping[str, Any], kind: str, message: str) -> "LeftOut":
        place = f"{record['file']}, {place_in(record['file'], record['line'])}"
        text = record["text"] or "(its text is not kept: --max_reject_chars 0)"
        return cls(place, kind, str(record["reason"]), message, str(text))


def left_out_text(record: LeftOut) -> Text:
    """A record for a terminal."""
    text = Text().append(f"━━ {record.place} · {record.kind}: {record.reason}".translate(VISIBLE), "bold red")
    text.append(f"\n{record.message}".translate(VISIBLE) if record.message else "")
    for line in record.lines(TEXT):
        text.append(f"\n── {line}".translate(VISIBLE), "dim")
    return text
