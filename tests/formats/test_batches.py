"""`arrow` and `parquet` write batches of rows; what they read, they compare with the columns that are wanted."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.formats import arrow
from tests.formats.shards import ALL, cut, files, joined, random_rows, read_as, rows_in, write_as

BOTH = pytest.mark.parametrize("name", ["arrow", "parquet"])


def rows_of_batches(path: Path) -> list[int]:
    if path.suffix == ".arrow":
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            return [batch.num_rows for batch in stream]
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@BOTH
@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    most=st.sampled_from([(3, 1 << 22), (1000, 60), (5, 90), (1000, 1), (1000, 1 << 22)]),
)
def test_batches_are_as_large_as_they_may_be_however_the_rows_came(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    rows: int,
    seed: int,
    cuts: list[int],
    most: tuple[int, int],
) -> None:
    whole = random_rows(rows, seed)
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    limits = {"batch_rows": most[0], "batch_bytes": most[1]}
    path = write_as(name, once, ALL, [whole], **limits)
    write_as(name, many, ALL, cut(whole, [0, *sorted(min(border, rows) for border in cuts), rows]), **limits)
    assert files(once) == files(many)
    sizes = np.cumsum([0, *rows_of_batches(path)])
    row_bytes = np.sum([ragged.flat_lengths * ragged.flat.itemsize for ragged in whole.values()], axis=0)
    for a, b in pairwise(sizes.tolist()):
        assert b - a <= most[0]
        assert b - a == 1 or row_bytes[a:b].sum() <= most[1]
        # No more would have fitted.
        assert b == rows or b - a == most[0] or row_bytes[a : b + 1].sum() > most[1]
    reader = read_as(name, many, ALL)
    assert joined([whole]) == {key: [row[key] for row in rows_in(reader)] for key in whole}
    assert reader.sizes().tolist() == sum((ragged.flat_lengths for ragged in whole.values()), np.zeros(rows)).tolist()


def test_strings_without_borders_are_no_rows() -> None:
    texts = pa.Array.from_buffers(pa.string(), 0, [None, None, pa.py_buffer(b"")])
    assert arrow.rows_of(pa.record_batch({"text": texts}))["text"].to_lists() == []
