"""Rows that are cut to a length."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from beam_prep.data.schema import Section
from beam_prep.errors import RunError
from beam_prep.tokens.rows import RoleMask, build_mask, truncate
from tests.chars import batch_of, outcomes, row, text, texts
from tests.tokens.batches import made_of, masked_rows


@given(masked_rows(), st.integers(1, 7), st.sampled_from(["keep_start", "keep_end"]))
def test_rows_and_masks_are_cut_alike_and_what_is_lost_is_counted(
    rows: tuple[list[list[int]], list[list[int]]], length: int, mode: Any
) -> None:
    ids, mask = rows
    cut = slice(0, length) if mode == "keep_start" else slice(-length, None)
    batch = truncate(made_of(ids, mask), length, mode)
    assert batch["sequence"].to_lists() == [row[cut] for row in ids]
    assert batch["loss_mask"].to_lists() == [row[cut] for row in mask]
    lost = [max(0, len(row) - length) for row in ids]
    wanted = {"truncated_tokens": lost, "truncated_rows": [int(count > 0) for count in lost]}
    found = {name: counts.tolist() for name, counts in batch.counters.items()}
    assert found == (wanted if any(lost) else {})


def test_rows_that_lose_their_final_eos_are_counted() -> None:
    ids = [[1, 9], [1, 2, 9], [1, 9, 3], [9, 1, 2, 9], [1, 2, 3]]
    batch = made_of(ids, [[1] * len(row) for row in ids])
    assert truncate(batch, 2, "keep_start", eos_id=9).counters["truncated_eos"].tolist() == [0, 1, 0, 1, 0]
    assert "truncated_eos" not in truncate(batch, 2, "keep_end", eos_id=9).counters


def test_too_long_records_can_be_dropped() -> None:
    batch = truncate(made_of([[1, 2, 3], [4]], [[1, 1, 1], [1]]), 2, "drop")
    assert batch["sequence"].to_lists() == [[4]]
    assert outcomes(batch) == ["too_long", ""]
    assert not batch.counters


def test_too_long_records_can_fail_the_run_with_their_place() -> None:
    with pytest.raises(RunError, match=r"2 tokens longer than max_seq_len 1 \(test.jsonl \(byte offset 14\)\)"):
        truncate(made_of([[1], [2, 3, 4]]), 1, "error")


def test_list_elements_are_cut_one_by_one_and_values_never() -> None:
    lists = row(text("r"), name="r", kind="list", mask="m")
    values = row(Section("v", "value"), name="v", kind="value", mask=None)
    batch = batch_of([{"r": ["abcd", "", "ab"], "v": [1, 2, 3]}, {"r": ["xyz"], "v": [4]}], lists, values)
    batch = truncate(build_mask(batch, RoleMask({})), 2)
    assert texts(batch, "r") == [["ab", "", "ab"], ["xy"]]
    assert batch["m"].to_lists() == [[[1, 1], [], [1, 1]], [[1, 1]]]
    assert batch["v"].to_lists() == [[1, 2, 3], [4]]
    assert batch.counters["truncated_tokens"].tolist() == [2, 1]
    assert batch.counters["truncated_rows"].tolist() == [1, 1]
