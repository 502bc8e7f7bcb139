"""Numbers drawn from a range, the same ones each time."""

import numpy as np

from beam_prep.core.data.ragged import Array


def drawn(of: int, count: int, first: bool = False, seed: int = 0) -> Array:
    """int64, ascending: `count` of the numbers below `of`, always those of the seed; with `first`, 0 is one of them."""
    found = np.random.default_rng(seed).choice(of, min(of, count), replace=False)
    if first and count and 0 not in found:
        found[0] = 0
    return np.sort(found)
