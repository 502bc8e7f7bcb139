"""Batches with given ids and masks."""

import hypothesis.strategies as st
import numpy as np

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column, Output, Section
from beam_prep.tokens.batch import Batch
from tests.chars import batch_of, row, text

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
