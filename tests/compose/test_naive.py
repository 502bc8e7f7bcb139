"""Shuffle, splits, mix and deduplication are what a sequential program makes, however the input lies in blocks.

What was damaged between the token cache and the shards is refused.
"""

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, given

from beam_prep.errors import TokenCacheError
from beam_prep.shards import compose, runs
from beam_prep.shards.compose import RunSizes, Splits, sample_keys, scaled, shuffle_keys
from beam_prep.shards.runs import Parts, RunCounts, cutoff
from tests.compose import naive
from tests.compose.jobs import Blocks, made
from tests.compose.naive import NO_KEY, Cannot, Job, Naive, Row

DOMAINS = ["d", "web", "train", "a/b", "数学", "__default__"]
SPLITS = [{"train": 1.0}, {"train": 0.5, "test": 0.5}, {"train": 0.7, "validation": 0.2, "test": 0.1}]


@st.composite
def inputs(draw: st.DrawFn) -> list[list[Row | None]]:
    """The files of an input: equal files, equal blocks, empty ones, lines without a row, copies."""
    domains = draw(st.lists(st.sampled_from(DOMAINS), min_size=1, max_size=3, unique=True))
    counts = draw(st.lists(st.sampled_from([0, 1, 6, 30, 80]), min_size=1, max_size=3))
    source, most = random.Random(draw(st.integers(0, 2**32))), draw(st.sampled_from([3, 40, 10**6]))

    def row() -> Row | None:
        if source.random() < 0.1:
            return None
        digest = NO_KEY if source.random() < 0.1 else source.randrange(2**64 - 1) % most
        return Row(source.randint(1, 99), source.choice(domains), source.randint(1, 9), digest, source.randint(0, most))

    files = [[row() for _ in range(count)] for count in counts]
    if draw(st.booleans()):
        files.append(draw(st.sampled_from(files)))
    return files


AMOUNT = st.one_of(
    st.fixed_dictionaries({"tokens": st.integers(1, 120), "repeat": st.booleans()}),
    st.fixed_dictionaries({"share": st.sampled_from([0.2, 0.25, 0.5]), "repeat": st.booleans()}),
    st.fixed_dictionaries({"epochs": st.sampled_from([0.3, 1, 1.5, 3])}),
)
CUTS = st.lists(st.lists(st.integers(1, 9), max_size=8), max_size=4)
SIZES = st.builds(
    RunSizes,
    run=st.sampled_from([1, 20, 10**6]),
    bin=st.sampled_from([1, 5, 40, 10**6]),
    runs=st.sampled_from([2, 3, 256]),
    batches=st.sampled_from([1, 4, 64, 4096]),
)


@st.composite
def jobs(draw: st.DrawFn, shuffled: bool = True) -> Job:
    splits = draw(st.none() | st.sampled_from(SPLITS))
    return Job(
        max_tokens=draw(st.sampled_from([1, 7, 30, 100, 10**6])),
        shuffle=draw(st.integers(0, 3) | st.just(2**64 - 1)) if shuffled else None,
        splits=splits,
        split_seed=draw(st.sampled_from([0, 1, 2**64 - 1])),
        split_missing=None if splits is None else draw(st.none() | st.sampled_from([*splits])),
        mix=draw(st.dictionaries(st.sampled_from(DOMAINS), AMOUNT, max_size=3))
        if shuffled and draw(st.booleans())
        else {},
        deduplicate=draw(st.booleans()),
        max_items=draw(st.none() | st.integers(1, 40)),
    )


def check(files: Any, job: Job, cuts: Any, sizes: RunSizes, buckets: int, bits: int = 16) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "HISTOGRAM", bits)
        blocks = Blocks(files, Path(folder), cuts)
        try:
            wanted = Naive(files, job)
        except Cannot:
            event("no such mix")
            assert str(made(blocks, job, sizes, buckets).plan.problem).startswith("output.mix: ")
            return
        found = made(blocks, job, sizes, buckets)
        assert found.ids() == wanted.shards
        rows = sum(len(part) for part in wanted.parts.values())
        plan = found.plan
        drawn = {place for part in wanted.parts.values() for place, _ in part}
        left_out = plan.ledger.dropped.get("not_sampled", 0)
        assert plan.ledger.kept + left_out == rows == len(drawn)
        assert plan.ledger.dropped.get("duplicate", 0) <= len(wanted.copies)
        assert plan.ledger.lines == sum(map(len, files)) == plan.ledger.read + plan.ledger.blank + plan.ledger.not_read
        written = sum(len(shard) for part in wanted.shards.values() for shard in part)
        assert plan.ledger.kept + plan.repeated == written
        assert {domain: each["wanted_tokens"] for domain, each in plan.mix.items()} == wanted.wanted
        if found.runs is not None:
            each = found.runs
            event(f"{1 + each.merges_twice} levels, {min(each.runs, 3)} runs, {min(each.merged, 2)} groups")


@given(inputs(), jobs(), CUTS, SIZES, st.sampled_from([1, 3, 64]), st.sampled_from([1, 3, 16]))
def test_a_shuffle_is_what_a_sequential_program_makes(
    files: Any, job: Job, cuts: Any, sizes: RunSizes, buckets: int, bits: int
) -> None:
    """`bits`: of a histogram of few bins the last one, which a budget cuts, has many rows."""
    check(files, job, cuts, sizes, buckets, bits)


@given(inputs(), jobs(shuffled=False), CUTS, st.sampled_from([1, 3, 64]))
def test_so_are_splits_and_deduplication_in_input_order(files: Any, job: Job, cuts: Any, buckets: int) -> None:
    check(files, job, cuts, RunSizes(), buckets)


@given(inputs(), jobs(), CUTS, SIZES)
def test_rows_with_the_same_key_are_in_the_order_of_the_input(files: Any, job: Job, cuts: Any, sizes: RunSizes) -> None:
    """With keys of 64 bits, that is one pair in 10^9 rows of 10^10: here there are eight keys."""
    mix = {"d": {"epochs": 3}} if any(row and row.domain == "d" for rows in files for row in rows) else {}
    job = replace(job, mix=mix, splits=None, split_missing=None, max_items=None)
    key, keys = naive.shuffle_key, compose.shuffle_keys
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(naive, "shuffle_key", lambda *given: key(*given) >> 61 << 61)
        patch.setattr(compose, "shuffle_keys", lambda *given: keys(*given) >> np.uint64(61) << np.uint64(61))
        check(files, job, cuts, sizes, 3)


# Keys, splits and budgets by themselves

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


@pytest.mark.parametrize(("parts", "bits"), [(1, 16), (15, 16), (16, 15), (400, 11), (5000, 7)])
def test_histograms_of_all_parts_together_stay_small(parts: int, bits: int) -> None:
    nothing = np.zeros(parts, np.int64)
    assert Parts(nothing, nothing, nothing, dict.fromkeys(range(parts), 1)).histogram_bits == bits


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


# Files between the token cache and the shards that are damaged, cut, gone or another's

TWO_LEVELS = RunSizes(run=60, bin=20, batches=12)
JOB = Job(150, 7, {"train": 0.6, "test": 0.4}, deduplicate=True)


def drawn(file: int) -> list[Row | None]:
    source = random.Random(file)

    def row(number: int) -> Row:
        digest = source.randrange(2**60)
        return Row(100 * file + number + 1, "ab"[number % 2], source.randint(1, 9), digest, (file, number % 52))

    return [row(number) for number in range(60)]


CHANGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "flipped": lambda data, other: data[:-300] + bytes([data[-300] ^ 1]) + data[-299:],
    "cut": lambda data, other: data[:-1],
    "longer": lambda data, other: data + b"\0",
    "empty": lambda data, other: b"",
    "another": lambda data, other: other,
}


@pytest.mark.parametrize("change", [*CHANGES, "gone"])
@pytest.mark.parametrize("kind", ["merged", "runs", "copies", "token_cache"])
def test_a_file_that_is_not_as_it_was_written_is_refused(kind: str, change: str, tmp_path: Path) -> None:
    """Shards are read of merged runs, the second level reads runs, views copies, and runs the token cache."""
    found = made(Blocks([drawn(0), drawn(1), drawn(2)], tmp_path, [[20, 20], [50], []]), JOB, TWO_LEVELS)
    made_runs = found.runs
    assert made_runs is not None
    assert made_runs.merges_twice
    files = sorted((tmp_path if kind == "token_cache" else tmp_path / "scratch").glob(f"{kind}/**/*.arrow"))
    files = [file for file in files if not file.name.endswith(".rows.arrow")]
    contents = [file.read_bytes() for file in files]
    assert len(files) > 1
    for file, data, other in zip(files, contents, [*contents[1:], contents[0]], strict=True):
        file.unlink()  # it is mapped
        if change != "gone":
            file.write_bytes(CHANGES[change](data, other))
    steps: list[Callable[[], object]] = [
        partial(found.arranger.write_run, group, RunCounts()) for group in found.groups
    ]
    if kind == "merged":
        steps = [partial(found.rows, shard) for shard in found.shards]
    if kind == "runs":
        steps = [partial(found.arranger.merge_runs, made_runs, *task) for task in made_runs.tasks()]
    with pytest.raises(TokenCacheError, match="run again"):
        _ = [step() for step in steps]
