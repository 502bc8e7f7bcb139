"""What messages say about their own training: their keys `train` and `weight`, as codes and as weights of the loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.pieces.rendered import UNSET


class MessageWeights:
    """The codes of the messages of an output: UNSET: it says nothing; 0: not trained; from 1 on: trained.

    A code from 0 on is a place in `values`, where its weight is.
    """

    def __init__(self) -> None:
        self._codes = {0.0: 0, 1.0: 1}

    def code(self, message: Mapping[str, Any]) -> int:
        """The code of a message that `check_message` has passed."""
        own = message.get("weight")
        if own is None:
            own = message.get("train")
        return UNSET if own is None else self._codes.setdefault(float(own), len(self._codes))

    def values(self) -> Array:
        """float64 [codes]."""
        return np.array(list(self._codes))
