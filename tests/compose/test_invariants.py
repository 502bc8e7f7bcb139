"""What holds of keys, splits and budgets whatever the data: see docs and the design of the shuffle."""

from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.shards import runs
from beam_prep.shards.compose import RunSizes, Splits, sample_keys, scaled, shuffle_keys
from beam_prep.shards.mix import cutoff
from tests.compose import naive
from tests.compose.jobs import Blocks, made
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


def rows(count: int, seed: int = 0) -> list[Row | None]:
    source = np.random.default_rng(seed)
    return [Row(n + 1, "ab"[n % 3 % 2], int(source.integers(1, 9)), 0, n % 50) for n in range(count)]


def test_a_larger_budget_holds_the_smaller_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a multiset: also where rows are repeated. And it is the prefix in the order of the sample keys."""
    monkeypatch.setattr(runs, "HISTOGRAM", 2)  # a bin that a budget cuts then has many rows
    files = [rows(90), rows(60, 1)]
    blocks = Blocks(files, tmp_path, [[50, 3], [40]])
    there = sum(row.tokens for each in files for row in each if row and row.domain == "a")
    before: Counter[int] = Counter()
    sizes = RunSizes(run=100, bin=40, batches=40)
    for wanted in (1, 10, 100, there - 1, there, there + 1, 2 * there, 2 * there + 100, 3 * there - 1):
        job = Job(50, 5, mix={"a": {"tokens": wanted, "repeat": True}})
        found = made(blocks, job, sizes)
        assert found.ids() == naive.Naive(files, job).shards
        taken = Counter(id_ for shard in found.ids()[None, "a"] for id_ in shard)
        assert before <= taken
        before = taken
        mix = found.plan.mix["a"]
        assert wanted <= mix["tokens"] < wanted + 9  # at most one row more than wanted
        assert mix["rows"] == taken.total()
        assert mix["records"] <= min(taken.total(), 100)


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


def test_what_is_kept_of_equal_records_does_not_depend_on_buckets(tmp_path: Path) -> None:
    files = [rows(60), rows(60, 1), rows(60)]
    job = Job(10**6, None, deduplicate=True)
    for buckets in (1, 7):
        found = made(Blocks(files, tmp_path / str(buckets), [[7, 20, 11]] * 3), job, buckets=buckets)
        assert found.ids() == naive.Naive(files, job).shards
        (first, *_) = [drop for drop in found.plan.drops if drop.found.reason == "duplicate"]
        assert (first.path, first.line) == ("in/0.jsonl", 51)
        assert first.found.note == "equal to line 1 of in/0.jsonl (byte offset 0)"
