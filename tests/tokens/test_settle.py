"""Rows that are stored in their dtypes."""

from typing import Any

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.shards.layout import finalize_columns, store_as
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import to_labels
from tests.chars import outcomes
from tests.tokens.batches import made_of


def stored(values: list[list[float]], dtype: str, role: Any = "value") -> Batch:
    batch = made_of([[1]] * len(values))
    column = Column("v", "float32", 1, role)
    return store_as(batch.assign(column, Ragged.from_lists(values, np.float64)), {"v": dtype})


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("int8", [-128, 127, 0], [-129, 128, 0.5]),
        ("uint16", [0, 65535], [-1, 65536]),
        ("int64", [-(2**63), 2**63 - 1024], [2**63, -(2**63) - 2048, 1e300]),
        ("uint64", [0, 2**64 - 2048], [-1, 2**64]),
        ("float16", [65504, 0.5, -1], [65520, -1e5]),
        ("float32", [3.4e38, 0.1, 16777217], [3.5e38, -1e300]),
    ],
)
def test_numbers_are_stored_as_they_are_or_rejected(dtype: str, good: list[float], bad: list[float]) -> None:
    batch = stored([[number] for number in good + bad], dtype)
    assert outcomes(batch) == [""] * len(good) + ["bad_number"] * len(bad)
    assert batch["v"].flat.dtype == dtype
    assert batch["v"].flat.tolist() == np.array(good).astype(dtype).tolist()
    assert batch.schema["v"].dtype == dtype


@pytest.mark.parametrize(("dtype", "ids"), [("int16", [5, 32768]), ("int8", [128, 1])])
def test_ids_beyond_their_dtype_end_the_run_with_the_id(dtype: str, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"column 'sequence' holds {max(ids)}, which does not fit {dtype}: use int32"):
        store_as(made_of([ids]), {"sequence": dtype})


def test_labels_that_a_dtype_cannot_hold_are_named_by_value() -> None:
    with pytest.raises(ValueError, match="column 'labels' holds -100, which does not fit uint16"):
        store_as(to_labels(made_of([[5, 6]], [[0, 1]]), shift=False), {"labels": "uint16"})
    with pytest.raises(ValueError, match=r"column 'v' holds nan, which does not fit float32$"):
        stored([[np.nan]], "float32", "weights")


@pytest.mark.parametrize(
    ("ids", "mask", "first"),
    [
        ([[1, 2], [3]], [[1, 1], [1, 1]], r", the first at test\.jsonl \(byte offset \d+\)"),
        ([[[1, 2], [3]]], [[[1], [1, 1]]], ""),
    ],
)
def test_a_users_mask_of_other_lengths_than_the_ids_ends_the_run(ids: Any, mask: Any, first: str) -> None:
    depth = 2 if isinstance(ids[0][0], list) else 1
    batch = made_of([[1]] * len(ids))
    batch = batch.assign(Column("sequence", "int32", depth, "ids"), Ragged.from_lists(ids, "int32", depth))
    batch = batch.assign(Column("m", "int32", depth, "mask", "sequence"), Ragged.from_lists(mask, "uint8", depth))
    with pytest.raises(ValueError, match=f"rows of 'm' are not as long as those of 'sequence'{first}$"):
        finalize_columns(batch, "keep", {})
