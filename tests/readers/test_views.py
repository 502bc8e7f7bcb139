"""`ds.packed`: the rows that packing would write. `bp.mixture`: exact shares, every row before any comes again.

Resume of both is exact for any number of ranks.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import BeamPrepError, ConfigError
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.views import shuffled
from beam_prep.shards.pack import pack_columns, plan_packs
from tests.conftest import Folders
from tests.readers.conftest import IDS, LABELS, MASK, Make, documents, write

STRATEGIES = ["bfd", "bfd_split", "wrapped", "simple"]
LENGTHS = np.random.default_rng(5).integers(0, 40, 160).tolist()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: Folders) -> Dataset:
    """160 documents in four shards of two domains."""
    rows = documents(LENGTHS)
    shards = {"a": [rows[:40], rows[40:80]], "b": [rows[80:81], rows[81:]]}
    return bp.open(write(tmp_path_factory.mktemp("packed") / "out", [IDS, MASK, LABELS], shards))


def lists(rows: Any) -> list[dict[str, list[Any]]]:
    return [{name: values.tolist() for name, values in row.items()} for row in rows]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_those_that_packing_writes(strategy: Any, dataset: Dataset) -> None:
    columns = {c.name: Ragged.from_lists([row[c.name].tolist() for row in dataset], c.dtype) for c in dataset.schema}
    plan = plan_packs(columns["input_ids"].lengths, strategy, 64)
    wanted = pack_columns(columns, plan, "doc_reset")
    found = dataset.packed(64, None, strategy)
    assert found.columns == ("input_ids", "loss_mask", "labels", "position_ids", "seq_lens")
    for name in found.columns:
        assert [row[name].tolist() for row in found] == wanted[name].to_lists()
        assert {row[name].dtype for row in found} == {wanted[name].flat.dtype}
    assert found.fill_rate == pytest.approx(plan.stats["tokens"] / (plan.stats["packs"] * 64))


@pytest.mark.parametrize("kind", ["packed", "mixture"])
def test_seed_and_epoch_give_the_order(dataset: Dataset, kind: str) -> None:
    def order(**options: Any) -> list[tuple[int, ...]]:
        view = dataset.packed(64, **options) if kind == "packed" else dataset.mixture({"a": 1, "b": 1}, **options)
        found, again = (
            [tuple(row["input_ids"].tolist()) for row in each] for each in (view, pickle.loads(pickle.dumps(view)))
        )
        assert found == again
        return found

    assert order(seed=1) == order(seed=1)
    assert order(seed=1) != order(seed=1, epoch=1)
    assert order(seed=1) != order(seed=2)
    if kind == "packed":
        assert sorted(order(seed=1)) == sorted(order(seed=1, epoch=1))
        assert sorted(order(seed=1)) != sorted(order(seed=2))


# Resume


def ranks(make: Callable[..., Any], count: int, state: dict[str, int] | None, **options: Any) -> list[Any]:
    views = [make(rank=rank, world_size=count, **options) for rank in range(count)]
    for view in views:
        if state is not None:
            view.load_state_dict(state)
    return views


def taken(view: Any, count: int) -> list[tuple[int, ...]]:
    return [tuple(row["input_ids"].tolist()) for row in view.__getitems__(range(min(count, len(view))))]


def check_any_stop(make: Callable[..., Any], stops: Sequence[tuple[int, int]]) -> None:
    """Goes through an epoch with other numbers of ranks after each stop: (ranks, samples that each of them takes)."""
    wanted = [tuple(row["input_ids"].tolist()) for row in make(rank=0, world_size=1)]
    seen: list[tuple[int, ...]] = []
    state = None
    for count, steps in [*stops, (2, len(wanted))]:
        views = ranks(make, count, state)
        assert sum(map(len, views)) == len(wanted) - len(seen)
        for view in views:
            seen += taken(view, steps)
        state = views[0].state_dict(min(steps, len(views[0])))
        assert sorted(seen) == sorted(wanted[: len(seen)])  # all ranks together: the first part of the order
    assert Counter(seen) == Counter(wanted)
    assert state is not None
    assert state["position"] == len(wanted)


STOPS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=6)


@pytest.mark.parametrize("kind", ["packed", "mixture"])
@given(STOPS, st.integers(0, 3), st.integers(0, 2), st.sampled_from(STRATEGIES))
def test_no_sample_is_seen_twice_and_none_is_lost(
    dataset: Dataset, domains: Dataset, kind: str, stops: Any, seed: int, epoch: int, strategy: Any
) -> None:
    def make(**ranks: Any) -> Any:
        if kind == "packed":
            return dataset.packed(64, seed, strategy, epoch=epoch, **ranks)
        return domains.mixture({"a": 0.3, "b": 0.5, "c": 0.2}, seed, 90, epoch=epoch, **ranks)

    check_any_stop(make, stops)


@given(STOPS, st.integers(2, 9))
def test_tail_drop_gives_all_ranks_equally_many(dataset: Dataset, stops: list[tuple[int, int]], last: int) -> None:
    seen: list[tuple[int, ...]] = []
    state = None
    for count, steps in [*stops, (last, 10**6)]:
        views = ranks(lambda **given: dataset.packed(64, tail="drop", **given), count, state)
        assert len({len(view) for view in views}) == 1
        for view in views:
            seen += taken(view, steps)
        before = state
        state = views[0].state_dict(min(steps, len(views[0])))
        if state["position"] == views[0].samples and before is not None and before["position"] == state["position"]:
            break
    assert max(Counter(seen).values(), default=1) == 1
    most = max([last, *(count for count, _ in stops)])
    assert len(seen) > dataset.packed(64).samples - most


def test_the_state_is_a_few_integers_of_the_epoch(dataset: Dataset) -> None:
    packed = dataset.packed(64, epoch=3)
    state = packed.state_dict(7)
    assert state.keys() == {"epoch", "position", "samples", "key"}
    assert {type(value) for value in state.values()} == {int}
    resumed = dataset.packed(64)
    resumed.load_state_dict(state)
    assert lists(resumed) == lists(packed)[7:]
    resumed.set_epoch(4)
    assert lists(resumed) == lists(dataset.packed(64, epoch=4))


@pytest.mark.parametrize("other", [{"length": 65}, {"seed": 1}, {"strategy": "wrapped"}])
def test_the_state_of_another_view_is_refused(dataset: Dataset, other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"state is that of another view .* with the same seed and the same settings"):
        dataset.packed(**{"length": 64, **other}).load_state_dict(dataset.packed(64).state_dict())
    with pytest.raises(ConfigError, match="another view"):
        dataset[1:].packed(64).load_state_dict(dataset.packed(64).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length is 0, wanted a whole number from 1 to 2147483647"),
        ({"length": "512"}, "length is '512', wanted a whole number"),
        ({"length": 1.5}, r"length is 1\.5, wanted a whole number"),
        ({"seed": 0.5}, r"seed is 0\.5, wanted a whole number"),
        ({"world_size": True}, "world_size is true, wanted a whole number"),
        ({"strategy": "ffd"}, "strategy is 'ffd', wanted one of simple, bfd, bfd_split, wrapped"),
        ({"rank": 2, "world_size": 2}, "rank is 2, wanted a whole number from 0 to 1"),
        ({"epoch": -1}, "epoch is -1, wanted a whole number from 0"),
        ({"tail": "repeat"}, "tail is 'repeat', wanted one of keep, drop"),
    ],
)
def test_wrong_arguments(dataset: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset.packed(**{"length": 64, **options})
    with pytest.raises(ConfigError, match="taken is 10000, wanted a whole number from 0 to "):
        dataset.packed(64).state_dict(10_000)


def test_a_view_gives_rows_of_slices_and_of_lists(dataset: Dataset) -> None:
    for view in (dataset.packed(64, rank=1, world_size=3), dataset.mixture({"a": 1, "b": 2}, rank=1, world_size=3)):
        rows = lists(view)
        assert lists(view[2:5]) == rows[2:5]
        assert lists(view[::-7]) == rows[::-7]
        assert lists(view[[3, -1]]) == lists(view[np.array([3, -1])]) == [rows[3], rows[-1]]
        assert lists([view[np.int64(4)], view[-1]]) == [rows[4], rows[-1]]
        assert view[5:5] == view[[]] == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("labels", r"found \['labels'\], wanted the number of a row, a slice or .*rows\[0\]\['labels'\]"),
        (1.5, r"found \[1\.5\], wanted the number of a row, a slice or a list of numbers$"),
        (None, r"found \[None\], wanted the number of a row"),
        ([True, False], r"found \[True, False\], wanted .*; of a mask give np\.flatnonzero"),
        ([0.5], "or a list of numbers"),
        ([[1, 2]], r"found \[\[1, 2\]\], wanted"),
        ([1, 10_000], "row 10000 of "),
        (10_000, "row 10000 of "),
    ],
)
def test_what_is_no_number_of_a_row_is_told(dataset: Dataset, index: Any, message: str) -> None:
    for rows in (dataset, dataset.packed(64), dataset.mixture({"a": 1})):
        with pytest.raises(IndexError, match=message):
            rows[index]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([Column("chosen", "int32", 1, "ids"), Column("rejected", "int32", 1, "ids")], "here are chosen, rejected"),
        ([Column("responses", "int32", 2, "ids")], "column 'responses' has no value for each token"),
        (
            [IDS, Column("seq_lens", "int32", 1, "lengths", "input_ids")],
            "'seq_lens' is what a packed view makes: make the output without packing",
        ),
        ([IDS, Column("attention_mask", "int32", 1, "attention")], "are padded"),
        ([IDS, Column("position_ids", "int32", 1, "position")], "'position_ids' is what a packed view makes"),
    ],
)
def test_rows_that_cannot_be_packed_are_refused(columns: Any, message: str, output: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        bp.open(output(columns, {"a": []})).packed(64)


# The order


def test_shuffled_is_the_same_for_ever() -> None:
    """Else states that were saved with an earlier version would go on elsewhere."""
    assert shuffled(10, 0).tolist() == [6, 8, 0, 9, 3, 1, 4, 2, 7, 5]
    assert shuffled(10, 1, 2).tolist() == [2, 4, 5, 9, 1, 8, 7, 6, 3, 0]


# Mixtures

SIZES = {"a": 30, "b": 70, "c": 5}


@pytest.fixture(scope="module")
def domains(tmp_path_factory: Folders) -> Dataset:
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
def test_shares_are_exact_and_rows_of_their_part(domains: Dataset, weights: dict[str, float], samples: int) -> None:
    mixed = domains.mixture(weights, samples=samples)
    assert len(mixed) == sum(mixed.quotas.values()) == samples
    for name, quota in mixed.quotas.items():
        assert abs(quota - samples * weights[name] / sum(weights.values())) < 1
        assert mixed.epochs[name] == quota / SIZES[name]
    found = [mixed.source(index) for index in range(samples)]
    assert Counter(name for name, _ in found) == Counter(mixed.quotas)
    assert firsts(mixed) == [int(domains.domain(name)[row]["input_ids"][0]) for name, row in found]


@given(st.integers(0, 5), st.integers(1, 40))
def test_all_rows_of_a_part_come_before_any_comes_again(domains: Dataset, seed: int, samples: int) -> None:
    """Over epochs of the mixture, too: a part goes on where it was."""
    mixed = domains.mixture({"a": 1, "c": 2}, seed, samples)
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


def test_outputs_and_packed_views_are_mixed(domains: Dataset, output: Any) -> None:
    other = bp.open(output([IDS, MASK], {"d": [documents([4] * 20, first=10_000)]}))
    mixed = bp.mixture({"one": domains, "other": other}, {"one": 1, "other": 3}, samples=40)
    assert sum(first >= 10_000 for first in firsts(mixed)) == 30
    packed = bp.mixture(
        {"one": domains.packed(16), "other": other.packed(16)}, {"one": 1, "other": 1}, samples=10, world_size=2
    )
    assert packed.columns == ("input_ids", "loss_mask", "position_ids", "seq_lens")
    assert [len(row["input_ids"]) for row in packed] == [sum(row["seq_lens"]) for row in packed]
    assert bp.collate(packed)(list(packed))["input_ids"].shape[0] == 1


def test_the_state_of_other_rows_is_refused(domains: Dataset) -> None:
    state = bp.mixture({"a": domains[:50]}, {"a": 1}).state_dict()
    bp.mixture({"a": domains[:50]}, {"a": 1}, world_size=3).load_state_dict(state)
    for other in (domains[1:51], domains[49::-1]):
        with pytest.raises(ConfigError, match="state is that of another view"):
            bp.mixture({"a": other}, {"a": 1}).load_state_dict(state)


def test_what_cannot_be_mixed_is_refused(domains: Dataset, output: Any) -> None:
    other = bp.open(output([IDS, LABELS], {"d": [documents([4])]}))
    empty = bp.open(output([IDS, MASK], {"d": [[]]}))
    for parts, weights, message in [
        ({}, {}, "found parts {}, wanted names with datasets"),
        ([domains], {"a": 1}, r"found parts \[Dataset.*wanted names with datasets"),
        ({"a": "out/a"}, {"a": 1}, r"found parts {'a': 'out/a'}, wanted names with datasets"),
        ({"a": domains}, [1], r"found weights \[1\], wanted a number for each of a"),
        ({"a": domains}, {"a": "1"}, "weight of 'a' is '1', wanted a number above 0"),
        ({"a": domains}, {"b": 1}, "found weights {'b': 1}, wanted a number for each of a"),
        ({"a": domains}, {"a": 0}, "weight of 'a' is 0, wanted a number above 0"),
        ({"a": domains}, {"a": float("nan")}, "weight of 'a' is nan"),
        ({"a": domains, "b": other}, {"a": 1, "b": 1}, r"'b' has the columns .*labels \(int32, labels\); 'a' has"),
        ({"a": domains.packed(9, rank=1, world_size=2)}, {"a": 1}, "give rank and world_size to the mixture"),
        ({"a": empty}, {"a": 1}, "'a' has no rows"),
    ]:
        with pytest.raises(ConfigError, match=message):
            bp.mixture(parts, weights)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="samples is 0, wanted a whole number from 1"):
        domains.mixture({"a": 1}, samples=0)
    with pytest.raises(ConfigError, match=r"samples is 1\.5, wanted a whole number"):
        domains.mixture({"a": 1}, samples=1.5)  # type: ignore[arg-type]
    with pytest.raises(BeamPrepError, match="unknown domain 'z'"):
        domains.mixture({"z": 1})
