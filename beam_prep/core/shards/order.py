"""The order of the rows of an output: a 64-bit key of each, and equal ranges of keys as shards.

A shuffle gives each row a key that mixes the seed with the row's identity: the number of its file in the list of
inputs, and its line there. So the order depends on no block, worker or runner, and an appended file changes no key.
Rows are written by rising key; rows with the same key, one pair in 10^9 rows of 10^10, by their identity, then by copy.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

import numpy as np

from beam_prep.core.data.ragged import Array

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SAMPLE = 0xD1B54A32D192ED03


def mixed(values: Array) -> Array:
    """uint64 [n]: a permutation of all 64-bit numbers in which no bit of the result shows a pattern of the values."""
    found = values.astype(np.uint64) + np.uint64(_STEP)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(_FIRST)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(_SECOND)
    mixed_values: Array = found ^ (found >> np.uint64(31))
    return mixed_values


def mixed_number(*values: int) -> int:
    """A 64-bit number that mixes several."""
    found = 0
    for value in values:
        found = int(mixed(np.array([(found ^ value) & _MASK], np.uint64))[0])
    return found


def shuffle_keys(seed: int, file: int, lines: Array, copy: int = 0) -> Array:
    """uint64 [rows]: the keys of the rows of a file, in a shuffle.

    Args:
        seed: of the shuffle.
        file: the number of the file in the list of inputs.
        lines: int64 [rows], the line of each in the file, from 0.
        copy: of a row that is repeated, which of its copies.
    """
    first, second = (np.uint64(mixed_number(seed, file, copy, part)) for part in (1, 2))
    return mixed(mixed(lines.astype(np.uint64) + first) ^ second)


def sample_keys(keys: Array) -> Array:
    """uint64 [rows]: the order in which rows are drawn for a mix, from 1; it follows from that of the shuffle."""
    found: Array = np.maximum(mixed(keys ^ np.uint64(_SAMPLE)), np.uint64(1))
    return found


def scaled(keys: Array, ranges: int) -> Array:
    """int64 [rows]: the range of each key, of so many equal ones of all keys: floor(key * ranges / 2^64), exactly.

    Args:
        keys: uint64 [rows].
        ranges: less than 2^32.
    """
    count = np.uint64(ranges)
    high, low = keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)
    found: Array = ((high * count + ((low * count) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
    return found
