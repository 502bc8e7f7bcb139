"""Characters that two encoders may treat in another way: their tables may be those of another Unicode."""

from collections.abc import Callable, Sequence

import numpy as np

from beam_prep.core.data.columns import Texts, characters
from beam_prep.core.data.ragged import Array, offsets_of

_SAME, _OTHER = 1, 2


class TriedCharacters:
    """Tries each character that occurs in texts once.

    Args:
        ways: texts with `{0}`, for which the character is put in.
        agree: says of each of some texts whether both encoders give the same ids.
        known: says of characters what needs no trial: 1: both treat them alike, 2: perhaps not, 0: that has to be
            tried. Without it all are tried.
    """

    def __init__(
        self,
        ways: Sequence[str],
        agree: Callable[[list[str]], Sequence[bool]],
        known: Callable[[Array], Array] | None = None,
    ) -> None:
        self._ways, self._agree, self._known = ways, agree, known
        self._tried = np.zeros(0x110000, np.uint8)

    def differ(self, points: Array) -> Array:
        """Those of some characters, uint32 code points, that the two treat in another way."""
        new = np.unique(points[self._tried[points] == 0])
        if len(new) and self._known is not None:
            self._tried[new] = self._known(new)
            new = new[self._tried[new] == 0]
        if len(new):
            texts = [way.format(chr(point)) for point in new.tolist() for way in self._ways]
            same = np.reshape(np.asarray(self._agree(texts), bool), (len(new), len(self._ways))).all(axis=1)
            self._tried[new] = np.where(same, _SAME, _OTHER)
        found: Array = points[self._tried[points] == _OTHER]
        return found

    def texts_with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with such a character."""
        points = _points(texts)
        if not len(self.differ(points)):
            return np.zeros(0, np.int64)
        places = np.flatnonzero(self._tried[points] == _OTHER)
        found: Array = np.unique(np.searchsorted(offsets_of(characters(texts)), places, side="right") - 1)
        return found


def _points(texts: Sequence[str]) -> Array:
    """uint32: the characters of all texts."""
    if isinstance(texts, Texts):
        data, borders = texts.data
        text = data[borders[0] : borders[-1]].tobytes().decode()
    else:
        text = "".join(texts)
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
