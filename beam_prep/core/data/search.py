"""Searches for bytes."""

from collections.abc import Callable

import numpy as np

from beam_prep.core.data.ragged import Array

_PART = 1 << 17
"""Bytes that are looked at at once. They stay in the cache of a core, and so does what is made of them: arrays as large
as a block would be cleared by the system, page by page, each time."""


def places_of(data: Array, test: Callable[[Array], Array]) -> Array:
    """int64, ascending: the places of the bytes for which a test is true.

    >>> places_of(np.frombuffer(b"a,b,", np.uint8), lambda part: part == ord(","))
    array([1, 3])

    Args:
        data: uint8 [bytes].
        test: a part of them -> bool, one each.
    """
    found = [np.flatnonzero(test(data[start : start + _PART])) for start in range(0, len(data), _PART)]
    for number, places in enumerate(found):
        places += number * _PART
    return np.concatenate(found) if found else np.zeros(0, np.int64)
