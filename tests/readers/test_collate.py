"""`bp.collate`: batches as a loop over rows makes them."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError, FormatError
from tests.readers.conftest import IDS, LABELS, MASK, documents

SCHEMA = (IDS, MASK, LABELS)
LENGTHS = Column("seq_lens", "int32", 1, "lengths", of="input_ids")
POSITIONS = Column("position_ids", "int32", 1, "position", of="input_ids")
SIDES = (
    Column("chosen", "int32", 1, "ids"),
    Column("chosen_mask", "bool", 1, "mask", of="chosen"),
    Column("rejected", "int32", 1, "ids"),
    Column("rejected_mask", "bool", 1, "mask", of="rejected"),
)
ROLLOUTS = (
    Column("responses", "int32", 2, "ids"),
    Column("masks", "bool", 2, "mask", of="responses"),
    Column("rewards", "float32", 1, "value"),
)


def rows_of(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as a dataset gives them."""
    made = {c.name: Ragged.from_lists([row[c.name] for row in rows], c.dtype, c.depth) for c in columns}
    return [{name: values[index] for name, values in made.items()} for index in range(len(rows))]


def filled(row: list[Any], width: int, fill: int, side: str) -> list[Any]:
    rest = [fill] * (width - len(row))
    return row + rest if side == "right" else rest + row


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(SIZES, st.sampled_from(["right", "left"]), st.integers(1, 8))
def test_padded(sizes: list[int], side: Any, multiple: int) -> None:
    documents_ = documents(sizes, first=5)
    batch = bp.collate(SCHEMA, pad_id=3, side=side, pad_to_multiple_of=multiple)(rows_of(SCHEMA, documents_))
    width = -(-max(sizes) // multiple) * multiple
    assert list(batch) == ["input_ids", "loss_mask", "labels", "attention_mask"]
    for name, fill in (("input_ids", 3), ("loss_mask", 0), ("labels", -100)):
        assert batch[name].tolist() == [filled(row[name], width, fill, side) for row in documents_]
    assert batch["attention_mask"].tolist() == [filled([1] * size, width, 0, side) for size in sizes]
    kinds = {name: values.dtype for name, values in batch.items()}
    assert kinds == {"input_ids": np.int64, "loss_mask": np.bool_, "labels": np.int64, "attention_mask": np.int64}


@given(SIZES)
def test_packed(sizes: list[int]) -> None:
    documents_ = documents(sizes, first=5)
    batch = bp.collate(SCHEMA, packed=True)(rows_of(SCHEMA, documents_))
    for name, separator in (("input_ids", None), ("loss_mask", False), ("labels", -100)):
        wanted = [
            value if place or separator is None else separator
            for row in documents_
            for place, value in enumerate(row[name])
        ]
        assert batch[name].tolist() == [wanted]
    assert batch["position_ids"].tolist() == [[place for size in sizes for place in range(size)]]
    borders = np.cumsum([0, *(size for size in sizes if size)]).tolist()
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == borders
    assert batch["cu_seq_lens_q"].dtype == np.int32
    assert batch["max_length_q"] == batch["max_length_k"] == max(sizes)
    assert "attention_mask" not in batch


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4))
def test_packed_rows_give_the_batch_of_their_documents(groups: list[list[int]]) -> None:
    """Rows of several documents, with positions that run through: the same batch as of the documents alone."""
    schema = (IDS, LABELS, POSITIONS, LENGTHS)
    sizes = [size for group in groups for size in group]
    alone = documents(sizes)
    packed, first = [], 0
    for group in groups:
        ids = list(range(first, first + sum(group)))
        packed.append({"input_ids": ids, "labels": ids, "position_ids": list(range(len(ids))), "seq_lens": group})
        first += sum(group)
    batch = bp.collate(schema)(rows_of(schema, packed))
    wanted = bp.collate((IDS, LABELS), packed=True)(rows_of((IDS, LABELS), alone))
    assert batch.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(batch[name], values)


@pytest.mark.parametrize("side", ["right", "left"])
def test_lists_of_lists_are_padded_in_both_directions(side: Any) -> None:
    rows = [
        {"responses": [[1, 2], [3]], "masks": [[0, 1], [1]], "rewards": [0.5, 1.0]},
        {"responses": [[4]], "masks": [[1]], "rewards": [2.0]},
    ]
    batch = bp.collate(ROLLOUTS, pad_id=9, side=side, pad_to_multiple_of=3)(rows_of(ROLLOUTS, rows))
    ids = [[filled(one, 3, 9, side) for one in group] for group in ([[1, 2], [3]], [[4], []])]
    assert batch["responses"].tolist() == ids
    assert batch["attention_mask"].tolist() == [[[int(token != 9) for token in one] for one in group] for group in ids]
    assert batch["masks"].shape == (2, 2, 3)
    assert batch["rewards"].tolist() == [[0.5, 1.0], [2.0, 0.0]]


def test_a_fill_that_the_columns_dtype_cannot_hold() -> None:
    narrow = (Column("input_ids", "uint16", 1, "ids"),)
    batch = bp.collate(narrow, pad_id=70_000)(rows_of(narrow, [{"input_ids": [1, 2]}, {"input_ids": [65_535]}]))
    assert batch["input_ids"].tolist() == [[1, 2], [65_535, 70_000]]


def test_columns_give_the_batch_of_their_rows(output: Any) -> None:
    dataset = bp.open(output([IDS, MASK], {"a": [documents([3, 1]), documents([4])]}))
    for made in (bp.collate(dataset, pad_id=0), bp.collate(dataset, packed=True)):
        make = pickle.loads(pickle.dumps(made))
        one, other = make(dataset[[2, 0]]), make(dataset.__getitems__([2, 0]))
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (SCHEMA, {}, "needs pad_id"),
        ((IDS, LENGTHS), {"packed": False, "pad_id": 0}, "hold several documents each"),
        (SIDES, {"packed": True}, "here are chosen, rejected, or use packed=False"),
        (ROLLOUTS, {"packed": True}, "'responses' has no value for each token"),
        ((IDS, Column("attention_mask", "int32", 1, "attention")), {"packed": True}, "the rows are padded"),
        (SCHEMA, {"packed": True, "pad_to_multiple_of": 8}, "leave out pad_to_multiple_of"),
        (SCHEMA, {"pad_id": 0, "pad_to_multiple_of": 0}, "wanted a whole number from 1"),
        (SCHEMA, {"pad_id": 0, "arrays": "tf"}, "arrays is 'tf', wanted one of numpy, torch, jax"),
        (SCHEMA, {"pad_id": 0, "side": "top"}, "side is 'top', wanted one of right, left"),
    ],
)
def test_what_cannot_be_batched_is_refused(schema: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bp.collate(schema, **options)


def test_lengths_that_do_not_fit_are_an_error() -> None:
    schema = (IDS, LENGTHS)
    with pytest.raises(FormatError, match="documents of 3 tokens in rows of 4"):
        bp.collate(schema)(rows_of(schema, [{"input_ids": [1, 2, 3, 4], "seq_lens": [3]}]))


def test_shifted_labels_stay_and_a_row_is_not_changed_by_its_batch() -> None:
    shifted = (IDS, Column("labels", "int32", 1, "labels", of="input_ids", shifted=True))
    rows = rows_of(shifted, documents([2, 3]))
    assert bp.collate(shifted, packed=True)(rows)["labels"].tolist() == [[0, 1, 2, 3, 4]]
    rows = rows_of(SCHEMA, documents([4], first=2))
    bp.collate(SCHEMA, packed=True)(rows)
    assert rows[0]["labels"].tolist() == [2, 3, 4, 5]
