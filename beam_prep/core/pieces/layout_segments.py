"""The segments that all conversations of a layout share."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_prep.core.chat.places import Place
from beam_prep.core.data.ragged import Array
from beam_prep.core.pieces.rendered import WHOLE, Segment


class NoPlanOfPrompt(Exception):
    """There is no plan of the prompt, or none yet."""


@dataclass(frozen=True, slots=True, eq=False)
class LayoutSegments:
    """The segments of every conversation of a layout.

    Attributes:
        spans: int64 [segments, 4]: piece and characters after its begin, of a segment's begin and end; -1 = all.
        rest: int64 [segments, 5]: the other fields of `Segment`.
        prompt: where the prompt ends, if there is one.
        message_roles: the roles of the messages.
    """

    spans: Array
    rest: Array
    prompt: Place | None
    message_roles: tuple[int, ...]

    def segments(self, lengths: Array, cuts: Array) -> Array:
        """int64 [conversations * segments, 7].

        Args:
            lengths: int64 [conversations, pieces], characters.
            cuts: int64 [conversations], characters cut from the front.
        """
        borders = np.zeros((len(lengths), lengths.shape[1] + 1), np.int64)
        np.cumsum(lengths, axis=1, out=borders[:, 1:])
        places = borders[:, self.spans[:, ::2]] + self.spans[:, 1::2] - cuts[:, None, None]
        places = np.where(self.spans[:, ::2] < 0, WHOLE, np.maximum(places, 0))
        rest = np.broadcast_to(self.rest, (len(lengths), *self.rest.shape))
        return np.concatenate([places, rest], axis=2).reshape(-1, len(Segment._fields))


NOT_MADE: Any = object()
