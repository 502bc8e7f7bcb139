"""What holds of keys, splits and budgets whatever the data: see docs and the design of the shuffle."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from beam_prep.shards.compose import Splits, sample_keys, scaled, shuffle_keys
from beam_prep.shards.mix import cutoff
from tests.compose import naive
from tests.compose.naive import NO_KEY, Job, Row

NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, st.integers(0, 2**31), st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(0, 3))
def test_keys_are_what_they_were(seed: int, file: int, lines: list[int], copy: int) -> None:
    """Another function would change every output, and with it which rows a budget takes."""
    keys = shuffle_keys(seed, file, np.array(lines, np.int64), copy)
    assert keys.tolist() == [naive.shuffle_key(seed, file, line, copy) for line in lines]
    assert sample_keys(keys).tolist() == [naive.sample_key(key) for key in keys.tolist()]


def test_a_key_is_this_number() -> None:
    assert naive.shuffle_key(17, 3, 1000) == shuffle_keys(17, 3, np.array([1000]))[0] == 654176175226823844
    assert naive.shuffle_key(17, 3, 1000, 1) == shuffle_keys(17, 3, np.array([1000]), 1)[0] == 16208228751889965507


@given(st.lists(NUMBERS, min_size=1), st.integers(1, 2**32 - 1))
def test_ranges_of_keys_are_exact(keys: list[int], ranges: int) -> None:
    borders = [(2**64 * number // ranges + each) % 2**64 for number in (1, ranges - 1) for each in (-1, 0, 1)]
    keys += [0, 2**64 - 1, *borders]
    assert scaled(np.array(keys, np.uint64), ranges).tolist() == [key * ranges >> 64 for key in keys]


SHARES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def shares_of(parts: list[int]) -> dict[str, float]:
    """Shares of a hundredth each, which add up to 1."""
    whole = [part * 100 // sum(parts) for part in parts]
    whole[0] += 100 - sum(whole)
    return {f"s{number}": part / 100 for number, part in enumerate(whole)}


@given(SHARES, NUMBERS, st.lists(NUMBERS, min_size=1, max_size=30))
def test_splits_are_what_the_naive_program_says(parts: list[int], seed: int, digests: list[int]) -> None:
    digests += [0, NO_KEY]
    shares = shares_of(parts)
    for missing in (None, "s0"):
        program = naive.Naive([], Job(splits=shares, split_seed=seed, split_missing=missing))
        codes = Splits.of(shares, seed, missing).codes(np.array(digests, np.uint64))
        assert [[*shares][code] for code in codes] == [program.split(Row(0, digest=digest)) for digest in digests]


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 9)), max_size=30), st.integers(-1, 100))
def test_a_cutoff_is_the_naive_one(rows: list[tuple[int, int]], wanted: int) -> None:
    keys, tokens = np.array([key for key, _ in rows], np.uint64), np.array([each for _, each in rows], np.int64)
    drawn = sorted(rows, key=lambda row: row[0])
    for some in (wanted, *np.cumsum([count for _, count in drawn]).tolist()):  # and those that are reached exactly
        left, last = some, None
        for key, count in drawn:
            if left <= 0:
                break
            left, last = left - count, key
        assert cutoff(keys, tokens, some) == last
