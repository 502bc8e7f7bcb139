"""Rows that come back from the token cache: all of a block, or a slice."""

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from beam_prep.errors import FormatError
from beam_prep.formats.cached_block import ROWS, check_whole, encode_block, read_rows
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


def test_a_block_that_is_changed_or_cut_anywhere_is_refused() -> None:
    batch = store_as(made_of([[7, 8], [9]], [[1, 0], [1]]), {})
    content = b"".join(encode_block(batch, batch.tokens, 100, "a block")[1][ROWS])
    changed = [content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :] for at in range(len(content))]
    for each in [*changed, *(content[:size] for size in range(len(content)))]:
        with pytest.raises(FormatError, match="damaged"):
            check_whole(pa.BufferReader(each), "a block", ROWS)
