"""What becomes of finished rows: cut to a length, turned into labels, stored in their dtypes."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Column, Output, Section
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import RoleMask, build_mask
from beam_prep.core.tokens.settle import store_as
from beam_prep.core.tokens.shift import to_labels
from beam_prep.core.tokens.truncate import truncate
from beam_prep.errors import RunError
from beam_prep.formats.spool import ROWS, encode_block, read_rows
from tests.core.chars import batch_of, chat, messages, outcomes, row, text, texts

SEQUENCE = Output("sequence", "ids", (Section("text", "train"),), "loss_mask")


def made_of(ids: list[list[int]], mask: list[list[int]] | None = None, output: Output = SEQUENCE) -> Batch:
    """A batch with these very ids and masks."""
    batch = batch_of([{"text": "x"} for _ in ids] or [b"{"], row(text("text", special=False)))
    batch.outputs, batch.segments = (output,), {}
    batch.columns = {"sequence": Ragged.from_lists(ids)}
    batch.schema = {"sequence": Column("sequence", "int32", 1, "ids")}
    if mask is None:
        return batch
    return batch.assign(Column("loss_mask", "int32", 1, "mask", of="sequence"), Ragged.from_lists(mask, np.uint8))


@st.composite
def masked_rows(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    ids = draw(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=6))
    return ids, [draw(st.lists(st.integers(0, 1), min_size=len(row), max_size=len(row))) for row in ids]


# Truncate


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


def test_rows_that_fit_are_left_alone() -> None:
    batch = made_of([[1, 2], []], [[1, 0], []])
    assert truncate(batch, 2) is batch


def test_bos_counts() -> None:
    assert texts(truncate(batch_of([{"messages": chat("u hi")}], row(messages())), 4)) == ["^u:h"]


def test_too_long_records_can_be_dropped() -> None:
    batch = truncate(made_of([[1, 2, 3], [4]], [[1, 1, 1], [1]]), 2, "drop")
    assert batch["sequence"].to_lists() == [[4]]
    assert outcomes(batch) == ["too_long", ""]
    assert not batch.counters


def test_too_long_records_can_fail_the_run_with_their_place() -> None:
    with pytest.raises(RunError, match=r"2 tokens longer than max_seq_len 1 \(test.jsonl \(byte offset 14\)\)"):
        truncate(made_of([[1], [2, 3, 4]]), 1, "error")


def test_a_mode_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="mode is 'middle', wanted one of keep_start, keep_end, drop, error"):
        truncate(made_of([[1]]), 1, "middle")  # type: ignore[arg-type]


def test_list_elements_are_cut_one_by_one_and_values_never() -> None:
    outputs = (
        row(text("r"), name="r", kind="list", mask="m"),
        row(Section("v", "value"), name="v", kind="value", mask=None),
    )
    batch = batch_of([{"r": ["abcd", "", "ab"], "v": [1, 2, 3]}, {"r": ["xyz"], "v": [4]}], *outputs)
    batch = truncate(build_mask(batch, RoleMask({})), 2)
    assert texts(batch, "r") == [["ab", "", "ab"], ["xy"]]
    assert batch["m"].to_lists() == [[[1, 1], [], [1, 1]], [[1, 1]]]
    assert batch["v"].to_lists() == [[1, 2, 3], [4]]
    assert batch.counters["truncated_tokens"].tolist() == [2, 1]
    assert batch.counters["truncated_rows"].tolist() == [1, 1]


def test_outputs_are_cut_each_by_itself_and_their_losses_added() -> None:
    sides = row(text("x", special=False), name="x", mask=None), row(text("y", special=False), name="y", mask=None)
    batch = truncate(batch_of([{"x": "abcd", "y": "ab"}, {"x": "abc", "y": "abcd"}], *sides), 3)
    assert (texts(batch, "x"), texts(batch, "y")) == (["abc", "abc"], ["ab", "abc"])
    assert batch.counters["truncated_tokens"].tolist() == [1, 1]


def test_cutting_one_batch_twice_counts_each_time_anew() -> None:
    batch = made_of([[1, 2, 3]])
    assert [truncate(batch, length).counters["truncated_tokens"].tolist() for length in (2, 1)] == [[1], [2]]


# Labels, shifted or not


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


def test_without_a_mask_every_label_is_its_token() -> None:
    ids = [[5, 6, 7], [8, 9]]
    assert to_labels(made_of(ids), shift=False)["labels"].to_lists() == ids
    shifted = to_labels(made_of(ids), shift=True)
    assert shifted["input_ids"].to_lists() == [[5, 6], [8]]
    assert shifted["labels"].to_lists() == [[6, 7], [9]]


def test_two_tokens_make_one_pair() -> None:
    batch = to_labels(made_of([[7, 8]], [[1, 0]]), shift=True)
    assert (batch["input_ids"].to_lists(), batch["labels"].to_lists()) == ([[7]], [[-100]])


def test_labels_of_several_outputs_are_refused() -> None:
    sides = row(text("x"), name="x", mask=None), row(text("y"), name="y", mask=None)
    with pytest.raises(ValueError, match="labels are made of one sequence and its mask, the batch has x, y"):
        to_labels(batch_of([{"x": "a", "y": "b"}], *sides), shift=True)


# Stored dtypes


def stored(values: list[list[float]], dtype: str, role: Any = "value") -> Batch:
    batch = made_of([[1]] * len(values))
    column = Column("v", "float32", 1, role)
    return store_as(batch.assign(column, Ragged.from_lists(values, np.float64)), {"v": dtype})


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("int8", [-128, 127, 0], [-129, 128, 0.5]),
        ("uint8", [0, 255], [-1, 256, 1e-9]),
        ("int16", [-32768, 32767], [-32769, 32768]),
        ("uint16", [0, 65535], [-1, 65536]),
        ("int32", [-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31, 1.5]),
        ("uint32", [0, 2**32 - 1], [-1, 2**32]),
        ("int64", [-(2**63), 2**63 - 1024], [2**63, -(2**63) - 2048, 1e300]),
        ("uint64", [0, 2**64 - 2048], [-1, 2**64]),
        ("float16", [65504, 0.5, -1], [65520, -1e5]),
        ("float32", [3.4e38, 0.1, 16777217], [3.5e38, -1e300]),
        ("float64", [1.7e308, 0.1], []),
    ],
)
def test_numbers_are_stored_as_they_are_or_their_record_is_rejected(
    dtype: str, good: list[float], bad: list[float]
) -> None:
    batch = stored([[number] for number in good + bad], dtype)
    assert outcomes(batch) == [""] * len(good) + ["bad_number"] * len(bad)
    assert batch["v"].flat.dtype == dtype
    assert batch["v"].flat.tolist() == np.array(good).astype(dtype).tolist()
    assert batch.schema["v"].dtype == dtype


def test_one_bad_number_takes_its_whole_record() -> None:
    batch = stored([[1, 2], [3, 300], [], [4]], "uint8")
    assert outcomes(batch) == ["", "bad_number", "", ""]
    assert batch["v"].to_lists() == [[1, 2], [], [4]]
    assert len(batch["sequence"]) == 3


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3), max_size=5))
def test_a_stored_integer_is_the_number_that_was_given(values: list[list[float]]) -> None:
    for dtype in ("int8", "int64", "uint64"):
        limits = np.iinfo(dtype)
        fits = [all(v == int(v) and limits.min <= int(v) <= limits.max for v in row) for row in values]
        batch = stored(values, dtype)
        assert batch["v"].to_lists() == [[int(v) for v in row] for row, fit in zip(values, fits, strict=True) if fit]


def test_columns_take_the_dtype_of_the_config_or_their_own() -> None:
    batch = store_as(made_of([[1, 300]], [[1, 0]]), {"sequence": "uint16"})
    assert {name: (rows.flat.dtype.name, batch.schema[name].dtype) for name, rows in batch.columns.items()} == {
        "sequence": ("uint16", "uint16"),
        "loss_mask": ("int32", "int32"),
    }
    assert batch["sequence"].to_lists() == [[1, 300]]


def test_bool_masks_are_bytes_of_zero_and_one() -> None:
    batch = store_as(made_of([[1, 2]], [[1, 0]]), {"loss_mask": "bool"})
    assert batch["loss_mask"].flat.tobytes() == b"\x01\x00"
    assert batch.schema["loss_mask"].dtype == "bool"


@pytest.mark.parametrize(("dtype", "ids"), [("int16", [5, 32768]), ("uint8", [256]), ("int8", [128, 1])])
def test_ids_beyond_their_dtype_end_the_run_with_the_id(dtype: str, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"column 'sequence' holds {max(ids)}, which does not fit {dtype}: use int32"):
        store_as(made_of([ids]), {"sequence": dtype})


def test_labels_keep_minus_100_in_narrow_integers() -> None:
    batch = store_as(to_labels(made_of([[5, 6]], [[0, 1]]), shift=False), {"labels": "int8"})
    assert batch["labels"].to_lists() == [[-100, 6]]


def test_labels_that_a_dtype_cannot_hold_are_named_by_value() -> None:
    with pytest.raises(ValueError, match="column 'labels' holds -100, which does not fit uint16"):
        store_as(to_labels(made_of([[5, 6]], [[0, 1]]), shift=False), {"labels": "uint16"})


def test_lists_of_lists_are_stored_with_their_borders() -> None:
    outputs = row(text("r"), name="r", kind="list", mask="m")
    batch = store_as(build_mask(batch_of([{"r": ["ab", "", "c"]}], outputs), RoleMask({})), {"r": "int16", "m": "bool"})
    assert batch["r"].to_lists() == [[[97, 98], [], [99]]]
    assert batch["r"].flat.dtype == np.int16
    assert batch["m"].to_lists() == [[[1, 1], [], [1]]]


def test_a_block_without_rows_is_stored_with_its_dtypes() -> None:
    batch = store_as(stored([], "float16"), {"v": "int8", "sequence": "int64"})
    assert {name: rows.flat.dtype.name for name, rows in batch.columns.items()} == {"sequence": "int64", "v": "int8"}


# The spool


def through_the_spool(batch: Batch) -> tuple[dict[str, list[Any]], str]:
    """The rows of a batch as they come back, and the Arrow type of its last column."""
    batch = store_as(batch, {})
    receipt, files = encode_block(batch, 100, "a block")
    data = pa.BufferReader(b"".join(files[ROWS]))
    rows, _ = read_rows(data, "a block", 0, 0, len(batch)) if receipt.domains else ({}, True)
    return {name: found.to_lists() for name, found in rows.items()}, str(
        pa.ipc.open_file(pa.py_buffer(files[ROWS][0])).schema.types[-1]
    )


@given(masked_rows(), st.booleans())
def test_labels_come_back_from_the_spool(rows: tuple[list[list[int]], list[list[int]]], shift: bool) -> None:
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift)
    if len(batch):
        found, kind = through_the_spool(batch)
        assert found == {name: column.to_lists() for name, column in batch.columns.items()}
        assert ("bool" in kind) == (not shift)  # a bit a token


def test_labels_that_are_neither_ids_nor_ignored_come_back_too() -> None:
    batch = to_labels(made_of([[5, 6, 7]], [[1, 0, 1]]), shift=False)
    batch.columns["labels"] = Ragged.from_lists([[5, -100, 8]])
    found, kind = through_the_spool(batch)
    assert found == {"input_ids": [[5, 6, 7]], "labels": [[5, -100, 8]]}
    assert "int32" in kind


@given(masked_rows(), st.data())
def test_a_slice_of_a_blocks_rows_is_whole_only_from_its_first_to_its_last(
    rows: tuple[list[list[int]], list[list[int]]], data: st.DataObject
) -> None:
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift=False)
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    if len(batch):
        files = encode_block(store_as(batch, {}), 100, "a block")[1]
        found, are_all = read_rows(pa.BufferReader(b"".join(files[ROWS])), "a block", 0, start, stop)
        assert {name: part.to_lists() for name, part in found.items()} == {
            name: column.to_lists()[start:stop] for name, column in batch.columns.items()
        }
        assert are_all == (stop - start == len(batch))
