"""Rows that are turned into labels, shifted or not."""

import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.schema import Column
from beam_prep.tokens.rows import to_labels
from tests.chars import batch_of, outcomes, row, text
from tests.tokens.batches import made_of, masked_rows


@given(masked_rows())
def test_labels_are_the_ids_where_the_mask_is_set(rows: tuple[list[list[int]], list[list[int]]]) -> None:
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift=False)
    assert list(batch.columns) == ["input_ids", "labels"]
    assert batch["input_ids"].to_lists() == ids
    wanted = [[i if m else -100 for i, m in zip(row, marks, strict=True)] for row, marks in zip(ids, mask, strict=True)]
    assert batch["labels"].to_lists() == wanted
    assert batch["labels"].flat.dtype == np.int32
    assert batch.schema["labels"] == Column("labels", "int32", 1, "labels", of="input_ids", shifted=False)
    assert len(batch) == len(ids)


@given(masked_rows())
def test_shifted_labels_are_those_of_the_next_token(rows: tuple[list[list[int]], list[list[int]]]) -> None:
    """input_ids = ids[:-1], labels = where(mask, ids, -100)[1:], and rows of fewer than two tokens are rejected."""
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift=True)
    kept = [(np.array(row), np.array(marks)) for row, marks in zip(ids, mask, strict=True) if len(row) >= 2]
    assert batch["input_ids"].to_lists() == [row[:-1].tolist() for row, _ in kept]
    assert batch["labels"].to_lists() == [np.where(marks, row, -100)[1:].tolist() for row, marks in kept]
    if ids:
        assert outcomes(batch) == ["" if len(row) >= 2 else "too_short_to_shift" for row in ids]
    assert batch["labels"].lengths.tolist() == batch["input_ids"].lengths.tolist()
    assert batch.schema["labels"].shifted


def test_labels_of_several_outputs_are_refused() -> None:
    sides = row(text("x"), name="x", mask=None), row(text("y"), name="y", mask=None)
    with pytest.raises(ValueError, match="labels are made of one sequence and its mask, the batch has x, y"):
        to_labels(batch_of([{"x": "a", "y": "b"}], *sides), shift=True)
