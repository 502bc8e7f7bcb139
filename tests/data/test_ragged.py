"""`Ragged` against plain lists: whatever is done to one is done to the other."""

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.ragged import Ragged, narrow, offsets_of
from beam_prep.errors import RunError

numbers = st.integers(-(2**31), 2**31 - 1)
flat_rows = st.lists(st.lists(numbers, max_size=5), max_size=8)
nested_rows = st.lists(st.lists(st.lists(numbers, max_size=4), max_size=4), max_size=6)
either = st.one_of(flat_rows.map(lambda rows: (rows, 1)), nested_rows.map(lambda rows: (rows, 2)))
lengths = st.integers(0, 6)


def ragged(case: tuple[list[Any], int]) -> Ragged:
    rows, depth = case
    return Ragged.from_lists(rows, np.int64, depth)


def flatten(row: list[Any], depth: int) -> list[int]:
    return row if depth == 1 else [value for inner in row for value in inner]


@given(either)
def test_lists_come_back_as_they_were(case: tuple[list[Any], int]) -> None:
    rows, depth = case
    made = ragged(case)
    assert made.to_lists() == rows
    assert len(made) == len(rows)
    assert made.depth == depth
    assert made.flat.tolist() == [value for row in rows for value in flatten(row, depth)]
    assert made.lengths.tolist() == [len(row) for row in rows]
    assert made.flat_lengths.tolist() == [len(flatten(row, depth)) for row in rows]


@given(either)
def test_rows_by_index_and_in_a_loop(case: tuple[list[Any], int]) -> None:
    rows, _ = case
    made = ragged(case)
    for found in (list(made), [made[index] for index in range(len(rows))]):
        assert [row.to_lists() if isinstance(row, Ragged) else row.tolist() for row in found] == rows
    for index in range(1, len(rows) + 1):
        last = made[-index]
        assert (last.to_lists() if isinstance(last, Ragged) else last.tolist()) == rows[-index]
    for index in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=f"of {len(rows)}"):
            made[index]


@given(either, st.slices(8), lengths, st.data())
def test_a_slice_is_as_good_as_rows_made_anew(case: Any, cut: slice, length: int, data: st.DataObject) -> None:
    """Slices are views: nothing that is done to one may reach beyond its borders."""
    rows, depth = case
    part, wanted = ragged(case)[cut], rows[cut]
    assert part.to_lists() == wanted
    keep = data.draw(st.lists(st.booleans(), min_size=len(wanted), max_size=len(wanted)))
    kept = np.minimum(part.lengths, length)
    assert part.cut(0, kept).to_lists() == [row[:length] for row in wanted]
    assert part.cut(part.lengths - kept, kept).to_lists() == [row[max(0, len(row) - length) :] for row in wanted]
    assert part.take(np.array(keep, bool)).to_lists() == [row for row, kept in zip(wanted, keep, strict=True) if kept]
    index = data.draw(st.lists(st.integers(-len(wanted), len(wanted) - 1), max_size=10)) if wanted else []
    assert part.take(np.array(index, np.int64)).to_lists() == [wanted[place] for place in index]
    assert part.sums().tolist() == [sum(flatten(row, depth)) for row in wanted]
    assert part.with_flat(-part.flat).flat.tolist() == [-value for row in wanted for value in flatten(row, depth)]


@given(either, st.data())
def test_sums_of_marks_beside_values(case: tuple[list[Any], int], data: st.DataObject) -> None:
    """Of narrow ones, too."""
    depth, made = case[1], ragged(case)
    marks = data.draw(st.lists(st.booleans(), min_size=len(made.flat), max_size=len(made.flat)))
    counts = made.sums(np.array(marks, bool))
    assert counts.dtype == np.int64
    assert counts.tolist() == [sum(flatten(row, depth)) for row in made.with_flat(np.array(marks, bool)).to_lists()]
    assert Ragged.from_lists([[1] * 300, [], [1]], np.uint8).sums().tolist() == [300, 0, 1]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_take_keeps_values_of_any_dtype_and_shape(dtype: str) -> None:
    flat = (np.arange(60) % 7).astype(dtype)
    for values in (flat, flat.reshape(-1, 3)[::2], flat[::-1], np.frombuffer(flat.tobytes(), dtype)):
        rows = Ragged.from_lengths(values, [2, 0, len(values) - 2])
        taken = rows.take(np.array([2, 1, 0, 2]))
        assert taken.flat.dtype == values.dtype
        wanted = [rows.flat[first:stop] for first, stop in ((2, len(values)), (0, 0), (0, 2), (2, len(values)))]
        np.testing.assert_array_equal(taken.flat, np.concatenate(wanted))


parts_of = st.one_of(
    st.tuples(st.lists(flat_rows, min_size=1, max_size=4), st.just(1)),
    st.tuples(st.lists(nested_rows, min_size=1, max_size=4), st.just(2)),
)


@given(parts_of)
def test_concat(case: tuple[list[list[Any]], int]) -> None:
    parts, depth = case
    joined = Ragged.concat([ragged((part, depth)) for part in parts])
    assert joined.to_lists() == [row for part in parts for row in part]
    assert joined.depth == depth


def test_offsets_count_beyond_32_bits() -> None:
    assert offsets_of(np.array([2**31 - 1] * 3, np.int32)).tolist() == [0, 2**31 - 1, 2**32 - 2, 3 * 2**31 - 3]


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=6), st.integers(0, 8), st.sampled_from([np.int64, np.uint64]))
def test_only_offsets_that_rise_from_0_to_the_end_are_taken(borders: list[int], size: int, dtype: Any) -> None:
    """Others would give rows of values that belong to no row, or to two."""
    if dtype is np.uint64:
        borders = [abs(border) for border in borders]  # whose differences are never below 0
    values, offsets = np.arange(size), np.array(borders, dtype)
    if borders == sorted(borders) and (borders[0], borders[-1]) == (0, size):
        assert Ragged(values, offsets).to_lists() == [
            list(range(start, stop)) for start, stop in itertools.pairwise(borders)
        ]
        return
    with pytest.raises(ValueError, match="offsets must"):
        Ragged(values, offsets)


def test_borders_beyond_int32_are_refused_before_they_wrap() -> None:
    assert narrow(np.array([0, 2**31 - 1])).tolist() == [0, 2**31 - 1]
    with pytest.raises(RunError, match=r"2147483648 values in one column of a block, .+ give a smaller --block_bytes"):
        narrow(np.array([0, 2**31]))
