"""Rows that come back from the token cache: all of a block, or a slice. Damage: tests/test_resume.py."""

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from beam_prep.formats.cached_block import ROWS, encode_block, read_rows
from beam_prep.shards.layout import store_as
from beam_prep.tokens.rows import to_labels
from tests.tokens.batches import made_of, masked_rows


@given(masked_rows(), st.booleans(), st.data())
def test_a_slice_of_a_blocks_rows_is_whole_only_from_its_first_to_its_last(
    rows: tuple[list[list[int]], list[list[int]]], shift: bool, data: st.DataObject
) -> None:
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift)
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    if len(batch):
        files = encode_block(store_as(batch, {}), batch.tokens, 100, "a block")[1]
        found, are_all = read_rows(pa.BufferReader(b"".join(files[ROWS])), "a block", 0, slice(start, stop))
        assert {name: part.to_lists() for name, part in found.items()} == {
            name: column.to_lists()[start:stop] for name, column in batch.columns.items()
        }
        assert are_all == (stop - start == len(batch))
