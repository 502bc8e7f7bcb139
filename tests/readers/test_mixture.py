"""`bp.mixture`: exact shares, every row before any comes again, and resume that is exact for any number of ranks."""

import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.errors import BeamPrepError, ConfigError
from beam_prep.readers.dataset import Dataset
from tests.readers.conftest import IDS, LABELS, MASK, documents, write
from tests.readers.test_packed import STOPS, check_any_stop

SIZES = {"a": 30, "b": 70, "c": 5}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three domains; no two rows are equal."""
    rows = documents([3] * sum(SIZES.values()))
    shards = {"a": [rows[:10], rows[10:30]], "b": [rows[30:100]], "c": [rows[100:]]}
    return bp.open(write(tmp_path_factory.mktemp("mixture") / "out", [IDS, MASK], shards))


def firsts(rows: Any) -> list[int]:
    """A number for each row."""
    return [int(row["input_ids"][0]) for row in rows]


def of_part(mixed: Any, name: str) -> list[int]:
    """The rows of a part, in the order in which they come."""
    return [row for part, row in (mixed.source(index) for index in range(len(mixed))) if part == name]


@given(st.dictionaries(st.sampled_from(sorted(SIZES)), st.floats(0.01, 9), min_size=1), st.integers(1, 300))
def test_shares_are_exact_and_rows_are_those_of_their_part(
    dataset: Dataset, weights: dict[str, float], samples: int
) -> None:
    mixed = dataset.mixture(weights, samples=samples)
    assert len(mixed) == sum(mixed.quotas.values()) == samples
    for name, quota in mixed.quotas.items():
        assert abs(quota - samples * weights[name] / sum(weights.values())) < 1
        assert mixed.epochs[name] == quota / SIZES[name]
    found = [mixed.source(index) for index in range(samples)]
    assert Counter(name for name, _ in found) == Counter(mixed.quotas)
    assert firsts(mixed) == [int(dataset.domain(name)[row]["input_ids"][0]) for name, row in found]


@given(st.integers(0, 5), st.integers(1, 40))
def test_all_rows_of_a_part_come_before_any_comes_again(dataset: Dataset, seed: int, samples: int) -> None:
    """Over epochs of the mixture, too: a part goes on where it was."""
    mixed = dataset.mixture({"a": 1, "c": 2}, seed, samples)
    for name in ("a", "c"):
        stream: list[int] = []
        for epoch in range(6):
            mixed.set_epoch(epoch)
            stream += of_part(mixed, name)
        turns = [stream[at : at + SIZES[name]] for at in range(0, len(stream), SIZES[name])]
        for turn in turns:
            assert len(set(turn)) == len(turn)
        if len(turns) > 2 and name == "a":
            assert turns[0] != turns[1]


@given(STOPS, st.integers(0, 3), st.integers(0, 2))
def test_no_sample_is_seen_twice_and_none_is_lost(
    dataset: Dataset, stops: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    weights = {"a": 0.3, "b": 0.5, "c": 0.2}
    check_any_stop(lambda **given: dataset.mixture(weights, seed, 90, epoch=epoch, **given), stops)


def test_seed_and_epoch_give_the_order(dataset: Dataset) -> None:
    one = firsts(dataset.mixture({"a": 1, "b": 1}, seed=1))
    assert firsts(dataset.mixture({"a": 1, "b": 1}, seed=1)) == one
    assert firsts(dataset.mixture({"a": 1, "b": 1}, seed=2)) != one
    assert firsts(dataset.mixture({"a": 1, "b": 1}, seed=1, epoch=1)) != one
    assert firsts(pickle.loads(pickle.dumps(dataset.mixture({"a": 1, "b": 1}, seed=1)))) == one


def test_outputs_and_packed_views_are_mixed(dataset: Dataset, output: Any) -> None:
    other = bp.open(output([IDS, MASK], {"d": [documents([4] * 20, first=10_000)]}))
    mixed = bp.mixture({"one": dataset, "other": other}, {"one": 1, "other": 3}, samples=40)
    assert sum(first >= 10_000 for first in firsts(mixed)) == 30
    packed = bp.mixture(
        {"one": dataset.packed(16), "other": other.packed(16)}, {"one": 1, "other": 1}, samples=10, world_size=2
    )
    assert packed.columns == ("input_ids", "loss_mask", "position_ids", "seq_lens")
    assert [len(row["input_ids"]) for row in packed] == [sum(row["seq_lens"]) for row in packed]
    assert bp.collate(packed)(list(packed))["input_ids"].shape[0] == 1


def test_the_state_of_other_rows_is_refused(dataset: Dataset) -> None:
    state = bp.mixture({"a": dataset[:50]}, {"a": 1}).state_dict()
    bp.mixture({"a": dataset[:50]}, {"a": 1}, world_size=3).load_state_dict(state)
    for other in (dataset[1:51], dataset[49::-1]):
        with pytest.raises(ConfigError, match="state is that of another view"):
            bp.mixture({"a": other}, {"a": 1}).load_state_dict(state)


def test_what_cannot_be_mixed_is_refused(dataset: Dataset, output: Any) -> None:
    other = bp.open(output([IDS, LABELS], {"d": [documents([4])]}))
    empty = bp.open(output([IDS, MASK], {"d": [[]]}))
    for parts, weights, message in [
        ({}, {}, "found parts {}, wanted names with datasets"),
        ([dataset], {"a": 1}, r"found parts \[Dataset.*wanted names with datasets"),
        ({"a": "out/a"}, {"a": 1}, r"found parts {'a': 'out/a'}, wanted names with datasets"),
        ({"a": dataset}, [1], r"found weights \[1\], wanted a number for each of a"),
        ({"a": dataset}, {"a": "1"}, "weight of 'a' is '1', wanted a number above 0"),
        ({"a": dataset}, {"b": 1}, "found weights {'b': 1}, wanted a number for each of a"),
        ({"a": dataset}, {"a": 0}, "weight of 'a' is 0, wanted a number above 0"),
        ({"a": dataset}, {"a": float("nan")}, "weight of 'a' is nan"),
        ({"a": dataset, "b": other}, {"a": 1, "b": 1}, r"'b' has the columns .*labels \(int32, labels\); 'a' has"),
        ({"a": dataset.packed(9, rank=1, world_size=2)}, {"a": 1}, "give rank and world_size to the mixture"),
        ({"a": empty}, {"a": 1}, "'a' has no rows"),
    ]:
        with pytest.raises(ConfigError, match=message):
            bp.mixture(parts, weights)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="samples is 0, wanted a whole number from 1"):
        dataset.mixture({"a": 1}, samples=0)
    with pytest.raises(ConfigError, match=r"samples is 1\.5, wanted a whole number"):
        dataset.mixture({"a": 1}, samples=1.5)  # type: ignore[arg-type]
    with pytest.raises(BeamPrepError, match="unknown domain 'z'"):
        dataset.mixture({"z": 1})
