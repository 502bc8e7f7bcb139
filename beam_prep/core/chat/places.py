"""Places and spans in a rendering that is given in pieces."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Place(NamedTuple):
    """A place in the text: so many characters after the beginning of a piece."""

    piece: int
    characters: int


class Span(NamedTuple):
    """The span of a message, between two places."""

    message: int
    start: Place
    stop: Place


class DependsOnContent(Exception):
    """The answer depends on what the messages say, which is not known here."""


class Characters:
    """Places of a conversation whose pieces are known, in characters."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._borders = [0, *accumulate(map(len, texts))]

    def of(self, place: Place) -> int:
        """The character at a place."""
        return self._borders[place.piece] + place.characters

    def place(self, character: int) -> Place:
        """The place of a character: where the first piece begins that begins there, or within a piece."""
        piece = bisect_left(self._borders, character)
        piece -= self._borders[piece] != character
        return Place(piece, character - self._borders[piece])
