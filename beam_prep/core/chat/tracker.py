"""Tracks a rendering while it runs: where messages and generation blocks are written."""

from dataclasses import dataclass, field
from typing import Any

from beam_prep.core.chat.fences import FENCES
from beam_prep.core.chat.limits import charge
from beam_prep.core.chat.regions import NO_MESSAGE


@dataclass(slots=True)
class Tracker:
    """Tracks one rendering while it runs.

    Attributes:
        places: id of a message -> its index.
        fenced: generation blocks are put between fences, since their text is captured before it is written.
        written: characters written so far.
        blind: a loop whose text is captured came to a message: which text is whose is not known.
        marks: (characters written, message) whenever a loop comes to a message, or ends (then `NO_MESSAGE`, or the
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
        return self.marks[-1][1] if self.marks else NO_MESSAGE

    def mark(self, item: Any, captured: bool, cost: int) -> None:
        charge(cost)
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
    """Takes the reports of loops in a rendering that is not tracked."""


def pay(_: Any, __: bool, cost: int) -> None:
    """Takes the report of an item in a rendering that is not tracked."""
    charge(cost)


def pass_on(caller: Any) -> Any:
    return caller()
