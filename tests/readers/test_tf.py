"""`ds.tf()`: the same rows, with the signature that their columns have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.data.schema import Column
from tests.readers.conftest import IDS, MASK, documents

tf = pytest.importorskip("tensorflow")

LISTS = (Column("responses", "int32", 2, "ids"), Column("rewards", "float32", 1, "value"))


def test_rows_and_signature(output: Callable[..., Path]) -> None:
    dataset = bp.open(output([IDS, MASK], {"a": [documents([3, 0, 2]), documents([4])]}))
    every: list[Any] = [dataset, dataset[::-1], dataset.packed(8)]
    for rows in every:
        made = rows.tf()
        assert made.cardinality() == len(rows)
        assert made.element_spec["input_ids"] == tf.TensorSpec([None], tf.int32)
        assert made.element_spec["loss_mask"] == tf.TensorSpec([None], tf.bool)
        for found, wanted in zip(made.as_numpy_iterator(), rows, strict=True):
            for name, values in wanted.items():
                np.testing.assert_array_equal(found[name], values, strict=True)
    batch: Any = next(iter(dataset.tf().padded_batch(4)))
    assert batch["input_ids"].shape == (4, 4)
    assert len(list(dataset.tf().repeat(2))) == 8


def test_lists_of_lists_are_ragged_tensors(output: Callable[..., Path]) -> None:
    rows: list[dict[str, Any]] = [{"responses": [[1, 2], [], [3]], "rewards": [0.5]}, {"responses": [], "rewards": []}]
    made = bp.open(output(LISTS, {"a": [rows]})).tf()
    assert made.element_spec["responses"] == tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
    assert [element["responses"].to_list() for element in made] == [row["responses"] for row in rows]
    batch = next(iter(made.ragged_batch(2)))
    assert batch["responses"].to_list() == [row["responses"] for row in rows]
