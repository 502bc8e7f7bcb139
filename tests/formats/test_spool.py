"""Rows that come back from the spool: all of a block, or a slice."""

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from beam_prep.core.data.ragged import Ragged
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.settle import store_as
from beam_prep.core.tokens.shift import to_labels
from beam_prep.formats.spool import ROWS, encode_block, read_rows
from tests.core.tokens.batches import made_of, masked_rows


def through_the_spool(batch: Batch) -> tuple[dict[str, list[Any]], str]:
    """The rows of a batch as they come back, and the Arrow type of its last column."""
    batch = store_as(batch, {})
    receipt, files = encode_block(batch, batch.tokens, 100, "a block")
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
        files = encode_block(store_as(batch, {}), batch.tokens, 100, "a block")[1]
        found, are_all = read_rows(pa.BufferReader(b"".join(files[ROWS])), "a block", 0, start, stop)
        assert {name: part.to_lists() for name, part in found.items()} == {
            name: column.to_lists()[start:stop] for name, column in batch.columns.items()
        }
        assert are_all == (stop - start == len(batch))
