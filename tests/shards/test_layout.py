"""What becomes of a shard's rows before they are written: cut, dropped, packed. Beside a model in plain lists."""

import itertools
from collections import Counter
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import RunError
from beam_prep.shards.layout import CUT, Layout, finalize_columns
from beam_prep.shards.pack import Strategy, cuts_rows, plan_packs
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import Padding, TruncationMode, pad, to_labels, truncate
from tests.chars import outcomes
from tests.tokens.batches import made_of

STRATEGIES = get_args(Strategy)
MODES = get_args(TruncationMode)

Row = list[tuple[int, int]]
"""(id, trained) of each token."""


@st.composite
def masked(draw: st.DrawFn) -> list[Row]:
    """Rows of ids that stand in no other row; in many nothing, or only the end or the beginning, is trained."""
    rows, first = [], 0
    for length in draw(st.lists(st.integers(0, 25), min_size=1, max_size=25)):
        border, flip = draw(st.integers(0, length)), draw(st.booleans())
        rows.append([(first + place, int((place < border) != flip)) for place in range(length)])
        first += length
    return rows


def batch_from(rows: list[Row]) -> Batch:
    return made_of([[token for token, _ in row] for row in rows], [[train for _, train in row] for row in rows])


def packed_by(layout: Layout, batch: Batch, parts: int) -> tuple[list[Row], list[Row], Counter[str]]:
    """(packed rows, documents in them, what was counted) of the rows of a shard that comes in some parts."""
    borders = np.linspace(0, len(batch), parts + 1).astype(int)
    cut = batch.counters.get(CUT)
    given = [
        ({name: rows[a:b] for name, rows in batch.columns.items()}, None if cut is None else cut[a:b])
        for a, b in itertools.pairwise(borders)
    ]
    packs: list[Row] = []
    documents: list[Row] = []
    total = Counter[str]()
    for found, stats in layout.rows(given, tuple(batch.schema.values())):
        (packed,) = stats.values()
        total.update(packed)
        columns = (found[name].to_lists() for name in ("sequence", "loss_mask", "seq_lens"))
        for ids, mask, lengths in zip(*columns, strict=True):
            packs.append(list(zip(ids, mask, strict=True)))
            documents += [packs[-1][a:b] for a, b in itertools.pairwise(itertools.accumulate(lengths, initial=0))]
    return packs, documents, total


def trains(row: Row) -> bool:
    return any(train for _, train in row)


@given(
    masked(),
    st.sampled_from(STRATEGIES),
    st.sampled_from(MODES),
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(20, 30),
)
def test_what_is_cut_is_cut_before_it_is_settled(
    rows: list[Row], strategy: Any, mode: Any, capacity: int, group: int, parts: int, longest: int
) -> None:
    layout = Layout(strategy, capacity, group, truncation_mode=mode)
    came = truncate(batch_from(rows), longest)
    rows = [row[:longest] for row in rows]
    too_long = [cuts_rows(strategy) and len(row) > capacity for row in rows]
    if mode == "error" and any(too_long):
        with pytest.raises(RunError, match=f"longer than max_packed_len {capacity} .*: raise max_packed_len"):
            layout.fit(came)
        return
    batch = finalize_columns(layout.fit(came), "drop", {})
    wanted: dict[int, Row] = {}
    for place, (row, long) in enumerate(zip(rows, too_long, strict=True)):
        left = row[:capacity] if long and mode == "keep_start" else row[-capacity:] if long else row
        if not (long and mode == "drop") and trains(left):
            wanted[place] = left
    assert outcomes(batch) == [
        "" if place in wanted else "too_long" if too_long[place] and mode == "drop" else "rows_without_loss"
        for place in range(len(rows))
    ]
    packs, documents, stats = packed_by(layout, batch, parts)
    if cuts_rows(strategy):
        assert sorted(documents) == sorted(wanted.values())
        assert all(map(trains, documents))
    else:  # no token is lost
        assert Counter(token for pack in packs for token in pack) == Counter(t for row in wanted.values() for t in row)
    assert stats["packs_untrained"] == sum(not trains(pack) for pack in packs)
    lost = sum(len(rows[place]) - len(left) for place, left in wanted.items())
    assert (stats["rows"], stats["tokens_cut"]) == (len(wanted), lost)
    assert stats["rows_cut"] == sum(len(rows[place]) > len(left) for place, left in wanted.items())
    assert stats["tokens_cut"] == batch.counters.get(CUT, np.zeros(1)).sum()


@given(masked(), st.integers(1, 25), st.integers(1, 12), st.integers(1, 4), st.sampled_from(["keep_start", "keep_end"]))
def test_bfd_sorts_by_the_length_before_the_cut(
    rows: list[Row], capacity: int, group: int, parts: int, mode: Any
) -> None:
    layout = Layout("bfd", capacity, group, truncation_mode=mode)
    batch = layout.fit(batch_from(rows))
    found, _, _ = packed_by(layout, batch, parts)
    wanted = []
    for first in range(0, len(rows), group):
        some = rows[first : first + group]
        plan = plan_packs(np.array([len(row) for row in some]), "bfd", capacity)
        cut = [row[:capacity] if mode == "keep_start" else row[-capacity:] for row in some]
        for a, b in zip(plan.packs[:-1], plan.packs[1:], strict=True):
            wanted.append([token for row in plan.pieces.row[a:b].tolist() for token in cut[row]])
    assert found == wanted


def test_a_row_that_is_cut_twice_is_counted_once() -> None:
    layout = Layout("bfd", 2)
    batch = layout.fit(truncate(made_of([[1, 9, 2, 9], [1, 2, 3], [1]]), 3, eos_id=9), eos_id=9)
    assert batch["sequence"].to_lists() == [[1, 9], [1, 2], [1]]
    found = {name: counts.tolist() for name, counts in batch.counters.items()}
    assert found == {
        "truncated_tokens": [2, 1, 0],
        "truncated_rows": [1, 1, 0],
        "truncated_eos": [1, 0, 0],
        "truncated_to_pack": [1, 1, 0],
    }


@given(masked(), st.integers(1, 30), st.integers(1, 4), st.integers(1, 60), st.booleans())
def test_rows_are_padded_in_parts_as_a_block_is(
    rows: list[Row], multiple: int, parts: int, at_once: int, labels: bool
) -> None:
    batch = to_labels(batch_from(rows), shift=False) if labels else batch_from(rows)
    wanted = pad(batch, multiple, 7)
    padding = type("Small", (Padding,), {"tokens_at_once": at_once})(multiple, 7)
    layout = Layout(padding=padding, names={"attention_mask": "real"}, position_ids="doc_reset")
    written = layout.columns(tuple(batch.schema.values()))
    borders = np.linspace(0, len(batch), parts + 1).astype(int)
    given = [
        ({name: found[a:b] for name, found in batch.columns.items()}, None) for a, b in itertools.pairwise(borders)
    ]
    found = [part for part, _ in layout.rows(given, written)]
    ids, *others = wanted.columns
    assert [column.name for column in written] == [ids, *others[:-1], "real", "position_ids"]
    assert all(len(part[ids].flat) <= at_once or len(part[ids]) == 1 for part in found)
    for name, column in wanted.columns.items():
        joined = Ragged.concat([part[layout.names.get(name, name)] for part in found])
        assert joined.to_lists() == column.to_lists()
    assert layout.tokens(batch).tolist() == wanted.tokens.tolist() == wanted[ids].lengths.tolist()
    positions = [row for part in found for row in part["position_ids"].to_lists()]
    assert positions == [list(range(length)) for length in wanted[ids].lengths]


def test_padding_is_ids_of_its_own_and_never_trained() -> None:
    """Mutant 7: labels of padding were 0, and only whole jobs noticed."""
    batch = made_of([[5, 6, 7], [8], []], [[0, 1, 1], [1], []])
    found = {name: rows.to_lists() for name, rows in pad(to_labels(batch, shift=False), 2, 9).columns.items()}
    assert found == {
        "input_ids": [[5, 6, 7, 9], [8, 9], [9, 9]],
        "labels": [[-100, 6, 7, -100], [8, -100], [-100, -100]],
        "attention_mask": [[1, 1, 1, 0], [1, 0], [0, 0]],
    }
    assert pad(batch, 2, 9)["loss_mask"].to_lists() == [[0, 1, 1, 0], [1, 0], [0, 0]]


def test_a_pad_id_that_its_column_cannot_hold_is_refused() -> None:
    column = Column("sequence", "uint16", 1, "ids")
    with pytest.raises(ValueError, match="the pad id 70000 does not fit uint16: use int32"):
        Layout(padding=Padding(8, 70_000)).columns([column])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packing": "ffd"}, "packing is 'ffd', wanted one of none, simple, bfd, bfd_split, wrapped"),
        ({"capacity": 0}, "capacity is 0, wanted at least 1"),
        ({"group": 0}, "group is 0, wanted at least 1"),
        ({"packing": "bfd", "padding": Padding(8, 0)}, "padding is .+ beside packing 'bfd', wanted one of them"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_when_it_is_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Layout(**wrong)


def test_rows_of_two_lengths_are_not_padded_under_one_attention_mask() -> None:
    columns = {"a": Ragged.from_lists([[1, 2], [3]]), "b": Ragged.from_lists([[1], [2, 3]])}
    schema = {name: Column(name, "int32", 1, "ids") for name in columns}
    with pytest.raises(ValueError, match="column 'b' has other lengths than the first"):
        Padding(4, 0).rows(columns, schema)


@pytest.mark.parametrize("strategy", ["bfd_split", "wrapped"])
def test_packed_rows_without_a_trained_label_are_counted(strategy: Any) -> None:
    """Of masks: see above. Without either every row is trained."""
    labels = Ragged(np.array([-100, -100, -100, -100, 9, 9]), np.array([0, 6]))
    batch = made_of([[5, 6, 7, 8, 9, 9]])
    for columns, untrained in ((batch.columns, 0), ({**batch.columns, "labels": labels}, 2)):
        schema = (*batch.schema.values(), Column("labels", "int32", 1, "labels"))[: len(columns)]
        ((_, stats),) = Layout(strategy, 2).rows([(columns, None)], schema)
        assert (stats["packing"]["packs"], stats["packing"]["packs_untrained"]) == (3, untrained)


def test_a_column_that_is_added_may_not_be_there() -> None:
    columns = [Column("sequence", "int32", 1, "ids"), Column("seq_lens", "int32", 1, "ids")]
    with pytest.raises(ValueError, match="columns named seq_lens are added: rename yours"):
        Layout("bfd").columns(columns)
