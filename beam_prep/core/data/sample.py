"""A sample of a block's rows."""

import numpy as np

from beam_prep.core.data.ragged import Array


def sample(digest: str, count: int, limit: int) -> Array:
    """Indexes of at most `limit` of `count` rows, by a hash of the block and the index: the same on every worker."""
    seed = np.uint64(int(digest[:16], 16))
    hashed = (np.arange(count, dtype=np.uint64) ^ seed) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(hashed ^ (hashed >> np.uint64(29)), kind="stable")[:limit]
