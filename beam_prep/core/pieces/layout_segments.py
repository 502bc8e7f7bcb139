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
        piece: int64 [segments, 2]: the pieces in which a segment starts and stops; -1: it is the entire text.
        character: int64 [segments, 2]: its first character and one past the last, each counted in its piece.
        others: int64 [segments, 5]: the fields of `Segment` after `start` and `stop`.
        prompt: where the prompt ends, if there is one.
        message_roles: the roles of the messages.
    """

    piece: Array
    character: Array
    others: Array
    prompt: Place | None
    message_roles: tuple[int, ...]

    def __len__(self) -> int:
        """Segments of a conversation."""
        return len(self.piece)

    def segments(self, lengths: Array, cuts: Array) -> Array:
        """int64 [conversations * segments, fields of `Segment`].

        Args:
            lengths: int64 [conversations, pieces], characters.
            cuts: int64 [conversations], characters cut from the front.
        """
        borders = np.zeros((len(lengths), lengths.shape[1] + 1), np.int64)
        np.cumsum(lengths, axis=1, out=borders[:, 1:])
        places = borders[:, self.piece] + self.character - cuts[:, None, None]
        places = np.where(self.piece < 0, WHOLE, np.maximum(places, 0))
        others = np.broadcast_to(self.others, (len(lengths), *self.others.shape))
        return np.concatenate([places, others], axis=2).reshape(-1, len(Segment._fields))


NOWHERE = Place(-1, 0)
"""The start and stop of a segment that is the entire text."""
NOT_MADE: Any = object()
