"""What becomes of a shard's rows before they are written: cut, dropped, packed, padded; beside a model in plain lists.

Of rows that are split into chunks every token is there, in order, and is trained once.
"""

import itertools
from collections import Counter
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import IGNORE_INDEX, Column, one_each
from beam_prep.errors import RunError
from beam_prep.shards.layout import CUT, LOST, ROW_LENGTHS, Chunking, Layout, finalize_columns, split_rows
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
    lost = {LOST: one_each(batch.counters[CUT])} if CUT in batch.counters else {}
    columns = batch.columns | lost
    given = [{name: rows[a:b] for name, rows in columns.items()} for a, b in itertools.pairwise(borders)]
    packs: list[Row] = []
    documents: list[Row] = []
    total = Counter[str]()
    for found, stats in layout.rows(given, tuple(batch.schema.values())):
        (packed,) = stats.values()
        total.update(packed)
        lists = (found[name].to_lists() for name in ("sequence", "loss_mask", "seq_lens"))
        for ids, mask, lengths in zip(*lists, strict=True):
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
def test_bfd_sorts_by_lengths_before_cuts(rows: list[Row], capacity: int, group: int, parts: int, mode: Any) -> None:
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
def test_parts_are_padded_as_blocks(rows: list[Row], multiple: int, parts: int, at_once: int, labels: bool) -> None:
    batch = to_labels(batch_from(rows), shift=False) if labels else batch_from(rows)
    wanted = pad(batch, multiple, 7)
    padding = type("Small", (Padding,), {"tokens_at_once": at_once})(multiple, 7)
    layout = Layout(padding=padding, names={"attention_mask": "real"}, position_ids="doc_reset")
    written = layout.columns(tuple(batch.schema.values()))
    borders = np.linspace(0, len(batch), parts + 1).astype(int)
    given = [{name: found[a:b] for name, found in batch.columns.items()} for a, b in itertools.pairwise(borders)]
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
        ({"capacity": 0}, "capacity is 0, wanted a whole number, at least 1"),
        ({"group": 0}, "group is 0, wanted a whole number, at least 1"),
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
        ((_, stats),) = Layout(strategy, 2).rows([columns], schema)
        assert (stats["packing"]["packs"], stats["packing"]["packs_untrained"]) == (3, untrained)


def test_a_column_that_is_added_may_not_be_there() -> None:
    columns = [Column("sequence", "int32", 1, "ids"), Column("seq_lens", "int32", 1, "ids")]
    with pytest.raises(ValueError, match="columns named seq_lens are added: rename yours"):
        Layout("bfd").columns(columns)


# Chunks

IDS = Column("input_ids", "int32", 1, "ids")
MASK = Column("loss_mask", "int32", 1, "mask", "input_ids")
LABELS = Column("labels", "int32", 1, "labels", "input_ids")
WEIGHTS = Column("loss_weights", "float32", 1, "weights", "input_ids")
SCHEMA = {column.name: column for column in (IDS, MASK, LABELS, WEIGHTS)}


def rows_of(masks: list[list[int]]) -> dict[str, Ragged]:
    """Rows of these masks, with ids that are all different."""
    mask = Ragged.from_lists(masks)
    ids = mask.with_flat(np.arange(1, len(mask.flat) + 1, dtype=np.int32))
    labels = mask.with_flat(np.where(mask.flat > 0, ids.flat, IGNORE_INDEX).astype(np.int32))
    weights = mask.with_flat(mask.flat.astype(np.float32) / 4)
    return {"input_ids": ids, "loss_mask": mask, "labels": labels, "loss_weights": weights}


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], Chunking]:
    size = draw(st.integers(1, 9))
    stride = draw(st.integers(0, size - 1))
    masks = draw(st.lists(st.lists(st.integers(0, 1), max_size=40), min_size=1, max_size=6))
    return masks, Chunking(size, stride, keep_rows_without_loss=draw(st.booleans()))


@given(cases())
def test_each_token_is_there_and_is_trained_once(case: tuple[list[list[int]], Chunking]) -> None:
    masks, chunking = case
    rows = rows_of(masks)
    whole = Chunking(chunking.size, chunking.stride, keep_rows_without_loss=True)
    chunks, stats = whole.rows(rows, SCHEMA)
    found = chunks["input_ids"].to_lists()
    places = list(chunking.lengths(rows["input_ids"].lengths)[1])
    for number, ids in enumerate(rows["input_ids"].to_lists()):
        own = [chunk for chunk, row in zip(found, places, strict=True) if row == number]
        assert own[0] + [token for chunk in own[1:] for token in chunk[chunking.stride :]] == ids
        assert all(len(chunk) == chunking.size for chunk in own[:-1])
        assert all(len(chunk) > chunking.stride for chunk in own[1:])  # each has a token of its own
        for one, other in itertools.pairwise(own):
            assert one[len(one) - chunking.stride :] == other[: chunking.stride]
    trained = chunks["input_ids"].flat[chunks["loss_mask"].flat == 1]
    assert sorted(trained) == sorted(rows["input_ids"].flat[rows["loss_mask"].flat == 1])
    assert sorted(chunks["labels"].flat[chunks["labels"].flat != IGNORE_INDEX]) == sorted(trained)
    assert np.array_equal(chunks["loss_weights"].flat, chunks["loss_mask"].flat / 4)
    split = sum(len(mask) > chunking.size for mask in masks)
    repeated = sum(map(len, found)) - len(rows["input_ids"].flat)
    assert list(stats.values()) == [len(masks), split, len(found), 0, repeated, 0]

    kept, less = chunking.rows(rows, SCHEMA)
    bare = [not any(mask) for mask in chunks["loss_mask"].to_lists()]
    if chunking.keep_rows_without_loss:
        assert kept["input_ids"].to_lists() == found
        return
    assert kept["input_ids"].to_lists() == [chunk for chunk, none in zip(found, bare, strict=True) if not none]
    assert less["chunks_untrained"] == sum(bare)
    written = sum(map(len, kept["input_ids"].to_lists()))
    assert written - less["tokens_repeated"] + less["tokens_left_out"] == len(rows["input_ids"].flat)


@given(cases(), st.sampled_from(["none", "simple", "bfd", "bfd_split", "wrapped"]))
def test_with_packing_nothing_is_cut(case: tuple[list[list[int]], Chunking], packing: Any) -> None:
    masks, chunking = case
    layout = Layout(packing, capacity=9, group=3, chunking=chunking)
    rows = {name: rows_of(masks)[name] for name in ("input_ids", "labels")}
    columns = layout.columns([IDS, LABELS])
    written = [part for part, _ in layout.rows([rows], columns)]
    chunks, _ = chunking.rows(rows, SCHEMA)
    tokens = [token for part in written for row in part["input_ids"].to_lists() for token in row]
    assert sorted(tokens) == sorted(chunks["input_ids"].flat)
    labels = [token for part in written for row in part["labels"].to_lists() for token in row]
    assert sorted(labels) == sorted(chunks["labels"].flat)


def test_without_masks_what_is_repeated_is_trained_again() -> None:
    chunks, stats = Chunking(4, 2).rows({"input_ids": Ragged.from_lists([[1, 2, 3, 4, 5]])}, {"input_ids": IDS})
    assert chunks["input_ids"].to_lists() == [[1, 2, 3, 4], [3, 4, 5]]
    assert Counter(stats) == Counter(rows=1, rows_split=1, chunks=2, tokens_repeated=2)


def test_what_was_cut_from_a_record_counts_for_its_first_row() -> None:
    given = {ROW_LENGTHS.name: [[2, 1], [3]], "input_ids": [[1, 2, 3], [4, 5, 6]]}
    columns = {name: Ragged.from_lists(lists) for name, lists in {**given, LOST: [[5], [7]]}.items()}
    rows = split_rows(columns, SCHEMA)
    assert (rows["input_ids"].to_lists(), rows[LOST].flat.tolist()) == ([[1, 2], [3], [4, 5, 6]], [5, 0, 7])


@pytest.mark.parametrize(("size", "stride"), [(0, 0), (4, 4), (4, -1)])
def test_sizes_that_make_no_sense_are_refused(size: int, stride: int) -> None:
    with pytest.raises(ValueError, match="wanted"):
        Chunking(size, stride)
