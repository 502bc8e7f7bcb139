"""Rows that hypothesis draws, for the tests of formats."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column

Slices = list[dict[str, Ragged]]


@st.composite
def rows_of(draw: st.DrawFn, dtypes: list[str]) -> tuple[list[Column], dict[str, Ragged], Slices]:
    """A column of lists and one of lists of lists; their rows; and the same rows in slices."""
    dtype = draw(st.sampled_from(dtypes))
    lengths = draw(st.lists(st.integers(0, 5) | st.sampled_from([255, 256]), max_size=10))
    inner = draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=len(lengths), max_size=len(lengths)))
    random = np.random.default_rng(draw(st.integers(0, 100)))

    def values(size: int) -> Any:
        if dtype == "bool":
            return random.random(size) < 0.5
        return np.frombuffer(random.bytes(size * np.dtype(dtype).itemsize), dtype)

    lists = Ragged.from_lengths(values(sum(map(sum, inner))), [size for row in inner for size in row])
    rows = {
        "sequence": Ragged.from_lengths(values(sum(lengths)), lengths),
        "responses": Ragged.from_lengths(lists, [len(row) for row in inner]),
    }
    columns = [Column("sequence", dtype, 1, "ids"), Column("responses", dtype, 2, "ids")]
    cuts = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    borders = zip([0, *cuts], [*cuts, len(lengths)], strict=True)
    return columns, rows, [{name: each[a:b] for name, each in rows.items()} for a, b in borders]
