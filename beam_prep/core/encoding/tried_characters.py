"""Characters that two encoders may treat in another way: their tables may be those of another Unicode."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.data.search import places_of
from beam_prep.core.data.texts import utf8

_SAME, _OTHER = 1, 2
_FEW = 32
"""Of so many bytes one: then it takes longer to look at its kind than at the character."""
_LOW = 6
"""Bits of a character that are in the last byte of its UTF-8."""


class TriedCharacters:
    """Tries each character that occurs in texts once.

    Args:
        ways: texts with `{0}`, for which the character is put in.
        agree: says of each of some texts whether both encoders give the same ids.
        trusted: true for characters that both treat alike, which are not tried. ASCII is among them.
        doubtful: true for other characters that are not tried either, as what they do depends on what is beside them.
    """

    def __init__(
        self,
        ways: Sequence[str],
        agree: Callable[[list[str]], Sequence[bool]],
        trusted: Callable[[str], bool],
        doubtful: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._ways, self._agree, self._trusted, self._doubtful = ways, agree, trusted, doubtful
        self._tried = np.zeros(0x110000, np.uint8)

    def _differ(self, points: Array) -> Array:
        """bool: which of these characters, uint32 code points, the two treat in another way."""
        found = self._tried[points]
        if len(new := np.unique(points[found == 0])):
            known = (self._known(chr(point)) for point in new.tolist())
            self._tried[new] = np.fromiter(known, np.uint8, len(new))
            if len(new := new[self._tried[new] == 0]):
                texts = [way.format(chr(point)) for point in new.tolist() for way in self._ways]
                same = np.reshape(np.asarray(self._agree(texts), bool), (len(new), len(self._ways))).all(axis=1)
                self._tried[new] = np.where(same, _SAME, _OTHER)
            found = self._tried[points]
        differ: Array = found == _OTHER
        return differ

    def _known(self, character: str) -> int:
        if self._trusted(character):
            return _SAME
        return _OTHER if self._doubtful(character) else 0

    def texts_with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with a character that the two treat in another way."""
        data, borders = utf8(texts)
        places = self._places(data)
        places = places[self._differ(_points(data, places))]
        found: Array = np.unique(np.searchsorted(borders, places, side="right") - 1)
        return found

    def _places(self, data: Array) -> Array:
        """int64: where the characters begin that may not be trusted; uint8 [bytes], UTF-8."""
        first, trusted, pairs = self._looked_at

        def may_begin_one(part: Array) -> Array:
            marked: Array = part >= first
            if np.count_nonzero(marked) * _FEW > len(part):
                for lead, more in trusted:
                    marked &= part - lead > more
            return marked

        places = places_of(data, may_begin_one)
        found: Array = places[pairs[data[places].astype(np.uint16) << 8 | data[places + 1]]]
        return found

    @functools.cached_property
    def _looked_at(self) -> tuple[np.uint8, list[tuple[np.uint8, np.uint8]], Array]:
        """Where characters may not be trusted, by the bytes that they begin with in UTF-8.

        So most characters of a text, which stand together in Unicode, are not even decoded.

        Returns:
            the lowest first byte; ranges of higher ones whose characters are all trusted (the lowest, and how many
            follow it); for both first bytes, bool [65,536].
        """
        trusted = np.fromiter(map(self._trusted, map(chr, range(1 << 16))), bool, 1 << 16)
        entirely: Any = trusted.reshape(-1, 1 << _LOW).all(axis=1)
        pairs: Array = np.ones((256, 256), bool)
        pairs[:0xC0] = False
        pairs[0xC0:0xE0] = ~entirely[:32, None]
        pairs[0xE0:0xF0, 0x80:0xC0] = ~entirely.reshape(16, 64)
        pairs[0xE0:0xF0, :0x80] = pairs[0xE0:0xF0, 0xC0:] = False
        leads = np.flatnonzero(pairs.any(axis=1))
        more = np.diff(leads) - 2
        ranges = [(np.uint8(lead + 1), np.uint8(size)) for lead, size in zip(leads, more, strict=False) if size > 0]
        return np.uint8(leads[0]), ranges, pairs.ravel()


def _points(data: Array, places: Array) -> Array:
    """uint32: the characters of two bytes or more that begin at these places."""
    first = data[places].astype(np.uint32)
    found: Array = (first & 0x1F) << 6 | data[places + 1] & 0x3F
    for lead, bits in ((0xE0, 0xF), (0xF0, 0x7)):
        longer = np.flatnonzero(first >= lead)
        mine = places[longer]
        point = first[longer] & bits
        for step in range(1, 3 if lead == 0xE0 else 4):
            point = point << _LOW | data[np.minimum(mine + step, len(data) - 1)] & 0x3F
        found[longer] = point
    return found
