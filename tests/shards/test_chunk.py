"""Chunks: every token of every row is there, in order, and is trained once."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.shards.layout import ROW_LENGTHS, Chunking, Layout, split_rows

IDS = Column("input_ids", "int32", 1, "ids")
MASK = Column("loss_mask", "int32", 1, "mask", "input_ids")
LABELS = Column("labels", "int32", 1, "labels", "input_ids")
WEIGHTS = Column("loss_weights", "float32", 1, "weights", "input_ids")
SCHEMA = {column.name: column for column in (IDS, MASK, LABELS, WEIGHTS)}


def rows_of(masks: list[list[int]]) -> dict[str, bp.Ragged]:
    """Rows of these masks, with ids that are all different."""
    mask = bp.Ragged.from_lists(masks)
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
    written = [part for part, _ in layout.rows([(rows, None)], columns)]
    chunks, _ = chunking.rows(rows, SCHEMA)
    tokens = [token for part in written for row in part["input_ids"].to_lists() for token in row]
    assert sorted(tokens) == sorted(chunks["input_ids"].flat)
    labels = [token for part in written for row in part["labels"].to_lists() for token in row]
    assert sorted(labels) == sorted(chunks["labels"].flat)


def test_without_masks_what_is_repeated_is_trained_again() -> None:
    chunks, stats = Chunking(4, 2).rows({"input_ids": bp.Ragged.from_lists([[1, 2, 3, 4, 5]])}, {"input_ids": IDS})
    assert chunks["input_ids"].to_lists() == [[1, 2, 3, 4], [3, 4, 5]]
    assert Counter(stats) == Counter(rows=1, rows_split=1, chunks=2, tokens_repeated=2)


def test_what_was_cut_from_a_record_counts_for_its_first_row() -> None:
    given = {ROW_LENGTHS.name: [[2, 1], [3]], "input_ids": [[1, 2, 3], [4, 5, 6]]}
    rows, cut = split_rows(
        {name: bp.Ragged.from_lists(lists) for name, lists in given.items()}, SCHEMA, np.array([5, 7])
    )
    assert (rows["input_ids"].to_lists(), np.asarray(cut).tolist()) == ([[1, 2], [3], [4, 5, 6]], [5, 0, 7])


@pytest.mark.parametrize(("size", "stride"), [(0, 0), (4, 4), (4, -1)])
def test_sizes_that_make_no_sense_are_refused(size: int, stride: int) -> None:
    with pytest.raises(ValueError, match="wanted"):
        Chunking(size, stride)
