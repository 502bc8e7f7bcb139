"""Histograms of lengths in tokens: so small that every receipt has one. They add up."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from beam_prep.data.ragged import Array

BORDERS: tuple[int, ...] = (0, 1, *sorted(size << bits for size in (2, 3) for bits in range(30)))
"""The least length of each class: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... Twice as many classes as powers of two."""

Histogram = tuple[int, ...]
"""How many lengths are in each class, without the empty classes at the end."""


def histogram(lengths: Array) -> Histogram:
    """Counts lengths by class.

    >>> histogram(np.array([0, 1, 5, 4]))
    (1, 1, 0, 0, 2)

    Args:
        lengths: int64, in tokens.
    """
    return tuple(np.bincount(np.searchsorted(BORDERS, lengths, side="right") - 1).tolist())


def add(one: Sequence[int], other: Sequence[int]) -> Histogram:
    """The histogram of the lengths of both."""
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def quantile(found: Sequence[int], share: float) -> int:
    """A length which at least this share of the lengths does not exceed: the largest of its class; 0 without lengths.

    >>> quantile((0, 0, 0, 0, 90, 9, 1), 0.5)
    5
    """
    total = sum(found)
    if not total:
        return 0
    place = int(np.searchsorted(np.cumsum(found), share * total))
    return BORDERS[place + 1] - 1
