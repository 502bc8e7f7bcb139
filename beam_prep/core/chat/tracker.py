"""What one rendering reports while it runs, and the regions of its messages."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from beam_prep.core.chat.fences import FENCES

_NO_MESSAGE = -1


@dataclass(slots=True)
class Tracker:
    """What one rendering reports while it runs.

    Attributes:
        places: id of a message -> its index.
        fenced: generation blocks are put between fences, since their text is captured before it is written.
        written: characters written so far.
        blind: a loop whose text is captured came to a message: what is written for which is not known.
        marks: (characters written, message) whenever a loop comes to a message, or ends (then `_NO_MESSAGE`, or the
            message of the loop around it).
        outer: the messages of the loops around the present one.
        generations: (first character, one past the last) of each generation block.
    """

    places: dict[int, int]
    fenced: bool = False
    written: int = 0
    blind: bool = False
    marks: list[tuple[int, int]] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    generations: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.marks[-1][1] if self.marks else _NO_MESSAGE

    def mark(self, item: Any, captured: bool) -> None:
        place = self.places.get(id(item))
        if place is not None:
            self.marks.append((self.written, place))
            self.blind |= captured

    def enter(self) -> None:
        self.outer.append(self.place)

    def leave(self) -> None:
        place = self.outer.pop()
        if place != self.place:
            self.marks.append((self.written, place))

    def generation(self, caller: Any) -> str:
        text = str(caller())
        self.generations.append((self.written, self.written + len(text)))
        return FENCES[0] + text + FENCES[1] if self.fenced else text


def ignore(*_: Any) -> None:
    """A loop begins, ends, or comes to an item, and nobody asks."""


def pass_on(caller: Any) -> Any:
    return caller()


def regions_of(
    marks: list[tuple[int, int]], messages: int, text: str, tokens: Collection[str]
) -> list[tuple[int, int] | None]:
    """What was written from one mark to the next belongs to the message of the first. Text in two places: unknown."""
    regions: list[tuple[int, int] | None] = [None] * messages
    twice = set()
    stops = [start for start, _ in marks[1:]] + [len(text)]
    for (start, place), stop in zip(marks, stops, strict=False):
        if start == stop or place == _NO_MESSAGE:
            continue
        before = regions[place]
        if before is not None and before[1] == start:
            start = before[0]
        elif before is not None:
            twice.add(place)
        regions[place] = (start, stop)
    if marks and text[marks[-1][0] :].strip() in ("", *tokens):  # an EOS after the loop ends the last message
        regions = [(r[0], len(text)) if r is not None and r[1] == marks[-1][0] else r for r in regions]
    return [None if place in twice else region for place, region in enumerate(regions)]


def guess_first_region(regions: list[tuple[int, int] | None], end: int) -> tuple[int, int] | None:
    """What was written before all messages may be the first one's: a system message often is, before the loop."""
    first = min((region[0] for region in regions if region is not None), default=end if len(regions) == 1 else 0)
    return (0, first) if regions and regions[0] is None and first > 0 else None
