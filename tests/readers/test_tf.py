"""`ds.tf()`: the same rows, with the signature that their columns have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from tests.readers.conftest import IDS, MASK, documents


def test_rows_and_signature(output: Callable[..., Path]) -> None:
    tf = pytest.importorskip("tensorflow")  # not at the top: its import takes seconds, in each process of the tests
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
