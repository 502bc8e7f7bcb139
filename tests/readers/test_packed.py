"""`ds.packed`: the rows that packing would write, and resume that is exact for any number of ranks."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.views import shuffled
from beam_prep.shards.pack import pack_columns, plan_packs
from tests.readers.conftest import IDS, LABELS, MASK, documents, write

STRATEGIES = ["bfd", "bfd_split", "wrapped", "simple"]
LENGTHS = np.random.default_rng(5).integers(0, 40, 300).tolist()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """300 documents in four shards of two domains."""
    rows = documents(LENGTHS)
    shards = {"a": [rows[:70], rows[70:150]], "b": [rows[150:151], rows[151:]]}
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


def test_seed_and_epoch_give_the_order(dataset: Dataset) -> None:
    def order(**options: Any) -> list[tuple[int, ...]]:
        return [tuple(row["input_ids"].tolist()) for row in dataset.packed(64, **options)]

    assert order(seed=1) == order(seed=1)
    assert order(seed=1) != order(seed=1, epoch=1)
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


@given(STOPS, st.integers(0, 3), st.integers(0, 2), st.sampled_from(STRATEGIES))
def test_no_sample_is_seen_twice_and_none_is_lost(
    dataset: Dataset, stops: list[tuple[int, int]], seed: int, epoch: int, strategy: Any
) -> None:
    check_any_stop(lambda **given: dataset.packed(64, seed, strategy, epoch=epoch, **given), stops)


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


@pytest.mark.parametrize(
    "other",
    [{"length": 65}, {"seed": 1}, {"strategy": "wrapped"}],
)
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
def test_rows_that_cannot_be_packed_are_refused(columns: Any, message: str, output: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=message):
        bp.open(output(columns, {"a": []})).packed(64)


# The order


def test_shuffled_is_the_same_for_ever() -> None:
    """Else states that were saved with an earlier version would go on elsewhere."""
    assert shuffled(10, 0).tolist() == [6, 8, 0, 9, 3, 1, 4, 2, 7, 5]
    assert shuffled(10, 1, 2).tolist() == [2, 4, 5, 9, 1, 8, 7, 6, 3, 0]
