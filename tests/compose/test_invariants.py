"""What holds of keys, splits and budgets whatever the data: see docs and the design of the shuffle."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.shards import runs
from beam_prep.shards.compose import RunSizes, Splits, sample_keys, scaled, shuffle_keys
from beam_prep.shards.mix import cutoff
from tests.compose import naive
from tests.compose.jobs import Blocks, Made, made
from tests.compose.naive import NO_KEY, Job, Row

NUMBERS = st.integers(0, 2**64 - 1)
ROWS = 200_000


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


def uniform(values: Any, bins: int) -> None:
    """Chi-square: of a million such samples one is as far off as 4.9 standard deviations."""
    expected = len(values) / bins
    found = ((np.bincount(values, minlength=bins) - expected) ** 2 / expected).sum()
    assert abs(found - (bins - 1)) < 4.9 * np.sqrt(2 * (bins - 1))


@pytest.mark.parametrize("seed", [0, 1, 17, 2**64 - 1])
def test_keys_are_uniform_and_forget_the_order_of_the_input(seed: int) -> None:
    lines = np.arange(ROWS)
    keys = shuffle_keys(seed, 0, lines)
    assert len(np.unique(keys)) == ROWS
    for shift in (0, 13, 31, 50, 56):  # all bits
        uniform((keys >> np.uint64(shift) & np.uint64(255)).astype(np.int64), 256)
    order = np.argsort(keys)
    # Neighbours of the input are neighbours of the output about twice, as in a permutation drawn at random.
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 15
    assert abs(np.corrcoef(lines, np.argsort(order))[0, 1]) < 5 / np.sqrt(ROWS)
    for other in (
        shuffle_keys(seed ^ 1, 0, lines),
        shuffle_keys(seed, 1, lines),
        shuffle_keys(seed, 0, lines, 1),
        sample_keys(keys),
    ):
        place = np.empty(ROWS, np.int64)
        place[np.argsort(other)] = np.arange(ROWS)
        assert np.count_nonzero(np.abs(np.diff(place[order])) == 1) < 15
        assert abs(np.corrcoef(np.argsort(order), place)[0, 1]) < 5 / np.sqrt(ROWS)
        uniform((keys >> np.uint64(60)).astype(np.int64) * 16 + (other >> np.uint64(60)).astype(np.int64), 256)


def test_a_split_is_as_large_as_its_share_and_has_nothing_to_do_with_the_order() -> None:
    digests = np.random.default_rng(0).integers(0, 2**64, ROWS, np.uint64)
    codes = Splits.of({"a": 0.5, "b": 0.3, "c": 0.2}).codes(digests)
    counts, expected = np.bincount(codes), np.array([0.5, 0.3, 0.2]) * ROWS
    assert ((counts - expected) ** 2 / expected).sum() < 30
    other = Splits.of({"a": 0.5, "b": 0.3, "c": 0.2}, seed=1).codes(digests)
    assert abs(np.corrcoef(codes, other)[0, 1]) < 5 / np.sqrt(ROWS)


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


@given(st.integers(1, 98), st.integers(1, 98), NUMBERS)
def test_another_share_moves_records_between_neighbours_only_and_no_more_than_it_must(
    one: int, other: int, seed: int
) -> None:
    digests = np.random.default_rng(1).integers(0, 2**64, 20_000, np.uint64)
    before, after = (
        Splits.of({"train": share / 100, "validation": (99 - share) / 100, "test": 0.01}, seed).codes(digests)
        for share in (one, other)
    )
    assert ((before == 2) == (after == 2)).all()  # the border of the last one is where it was
    moved = np.flatnonzero(before != after)
    assert len({(a, b) for a, b in zip(before[moved].tolist(), after[moved].tolist(), strict=True)}) <= 1
    assert abs(len(moved) / len(digests) - abs(one - other) / 100) < 0.02


def rows(count: int, seed: int = 0) -> list[Row | None]:
    source = np.random.default_rng(seed)
    return [
        Row(number + 1, "ab"[number % 3 % 2], int(source.integers(1, 9)), int(source.integers(0, 2**63)), number % 50)
        for number in range(count)
    ]


@pytest.fixture
def job() -> Job:
    return Job(max_tokens=60, shuffle=5, splits={"train": 0.7, "test": 0.3})


def planned(files: Any, job: Job, folder: Path, **more: Any) -> Made:
    return made(Blocks(files, folder, [[7, 20, 11]] * len(files)), job, **more)


def flat(found: dict[Any, list[list[int]]]) -> dict[Any, list[int]]:
    return {part: [id_ for shard in shards for id_ in shard] for part, shards in found.items()}


def test_what_is_appended_or_taken_out_leaves_the_order_of_the_others(job: Job, tmp_path: Path) -> None:
    """An appended file, and appended lines, change no key: the old rows are as they were, with others between them."""
    one, two, three = rows(60), rows(50, 1), [replace(row, id=row.id + 500) for row in rows(40, 2) if row]
    before = flat(planned([one, two], job, tmp_path / "0").ids())
    for number, files in enumerate(([one, two, three], [one, [*two, *three]])):
        after = flat(planned(files, job, tmp_path / f"a{number}").ids())
        assert {part: [id_ for id_ in ids if id_ <= 500] for part, ids in after.items()} == before
        assert sum(map(len, after.values())) == sum(map(len, before.values())) + 40
    gone = [None if row and row.id % 4 == 0 else row for row in one]
    after = flat(planned([gone, two], job, tmp_path / "gone").ids())
    left = Counter(id_ for ids in after.values() for id_ in ids)
    assert left == Counter(row.id for row in [*gone, *two] if row)
    for part, ids in after.items():  # those of the second file, and what is left of the first
        was = iter(before[part])
        assert all(any(each == id_ for each in was) for id_ in ids)


def test_keys_of_a_shard_lie_in_its_range(job: Job, tmp_path: Path) -> None:
    files: list[list[Row | None]] = [rows(80), [replace(row, id=row.id + 500) for row in rows(80, 1) if row]]
    keys = {
        row.id: naive.shuffle_key(5, file, line) for file, of in enumerate(files) for line, row in enumerate(of) if row
    }
    found = planned(files, job, tmp_path)
    tokens = Counter[str | None]()
    for shard in found.shards:
        tokens[shard.split] += sum(len(row["sequence"]) for row in found.rows(shard))
    last: dict[Any, int] = {}
    for shard in found.shards:
        ranges = -(-tokens[shard.split] // job.max_tokens)
        (number,) = {keys[row["sequence"][0]] * ranges >> 64 for row in found.rows(shard)}
        assert last.get((shard.split, shard.domain), -1) < number
        last[shard.split, shard.domain] = number


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
        taken = Counter(flat(found.ids())[None, "a"])
        assert before <= taken
        before = taken
        mix = found.plan.mix["a"]
        assert wanted <= mix["tokens"] < wanted + 9  # at most one row more than wanted
        assert mix["rows"] == taken.total()
        assert mix["records"] <= min(taken.total(), 100)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 9)), max_size=30), st.integers(-1, 100))
def test_a_cutoff_is_the_naive_one(rows: list[tuple[int, int]], wanted: int) -> None:
    keys, tokens = np.array([key for key, _ in rows], np.uint64), np.array([each for _, each in rows], np.int64)
    left, last = wanted, None
    for key, count in sorted(rows, key=lambda row: row[0]):
        if left <= 0:
            break
        left, last = left - count, key
    assert cutoff(keys, tokens, wanted) == last


def test_a_split_key_that_is_the_key_of_duplicates_leaves_no_record_in_two_splits(tmp_path: Path) -> None:
    """Even before anything is dropped: equal records have one digest, and with it one split."""
    files = [[replace(row, digest=naive.split_digest(row.same)) for row in rows(100, seed) if row] for seed in (0, 1)]
    job = Job(80, 1, {"train": 0.5, "validation": 0.25, "test": 0.25})
    same = {(row.id, file): row.same for file, each in enumerate(files) for row in each}
    for deduplicate in (False, True):
        program = naive.Naive(files, replace(job, deduplicate=deduplicate))
        found = planned(files, replace(job, deduplicate=deduplicate), tmp_path / str(deduplicate)).ids()
        assert found == program.shards
        splits: dict[Any, set[Any]] = {}
        for (split, _), kept in program.parts.items():
            for (file, _), row in kept:
                splits.setdefault(same[row.id, file], set()).add(split)
        assert len(splits) == 50
        assert all(len(each) == 1 for each in splits.values())
    assert {split for each in splits.values() for split in each} == {"train", "validation", "test"}


def test_what_is_kept_of_equal_records_does_not_depend_on_buckets(tmp_path: Path) -> None:
    files = [rows(60), rows(60, 1), rows(60)]
    job = Job(10**6, None, deduplicate=True)
    wanted = naive.Naive(files, job).shards
    for buckets in (1, 2, 7, 1000):
        found = planned(files, job, tmp_path / str(buckets), buckets=buckets)
        assert found.ids() == wanted
        (first, *_) = [drop for drop in found.plan.drops if drop.found.reason == "duplicate"]
        assert (first.path, first.line) == ("in/0.jsonl", 51)
        assert first.found.note == "equal to line 1 of in/0.jsonl (byte offset 0)"
