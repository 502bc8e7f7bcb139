"""`Ragged`: rows of different lengths in two arrays. All tokens are in this form."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, Union, overload

import numpy as np
import numpy.typing as npt

from beam_prep.errors import RunError

Array = npt.NDArray[Any]


def no_numbers() -> Array:
    return np.zeros(0, np.int64)


def offsets_of(lengths: npt.ArrayLike) -> Array:
    """Row lengths [n] -> row borders int64 [n + 1], from 0 on."""
    lengths = np.asarray(lengths, dtype=np.int64)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(sizes: Array, most: int, rows: int = 1 << 62) -> Iterator[slice]:
    """Consecutive rows of at most `most` in size, and at most `rows` of them; a larger row is alone.

    Args:
        sizes: int64 [n], the size of each row.
        most, rows: see above.
    """
    ends, start = offsets_of(sizes), 0
    while start < len(sizes):
        fitting = int(np.searchsorted(ends, ends[start] + most, "right")) - 1
        stop = min(max(fitting, start + 1), start + rows)
        yield slice(start, stop)
        start = stop


def changes(*columns: Array) -> Array:
    """int64 [groups]: the first row of each group of neighbours that are equal in all columns.

    Args:
        columns: arrays [rows], whose values are at least 0.
    """
    differs = [np.diff(column, prepend=-1) != 0 for column in columns]
    return np.flatnonzero(np.logical_or.reduce(differs))


MAX_NARROW = 2**31 - 1
"""The largest border that int32 holds, and so an Arrow list or string can have."""


def narrow(offsets: Array) -> Array:
    """Borders as int32. Arrow itself does not always notice that they do not fit.

    Raises:
        RunError: there are too many values for int32.
    """
    if offsets[-1] > MAX_NARROW:
        raise RunError(
            f"{offsets[-1]} values in one column of a block, wanted up to {MAX_NARROW}: "
            "give a smaller --block_bytes, or leave out the longest record"
        )
    return offsets.astype(np.int32)


def take_rows(values: Array, offsets: Array, rows: Array) -> Array:
    """The values of some rows, one row after the other.

    Args:
        values, offsets: see `Ragged`.
        rows: int64, in the order of the result.
    """
    if not len(rows) or not values.size:
        return values[:0]
    import pyarrow as pa  # a reader that only reads arrays does not need it

    # Arrow copies row by row. An index of numpy would take eight bytes a value, and ten times as long.
    values = np.ascontiguousarray(values)
    size = values.nbytes // len(values)  # bytes of a value, which may be an array
    wanted = int((offsets[1:][rows] - offsets[:-1][rows]).sum())
    rows = np.where(rows < 0, rows + len(offsets) - 1, rows)
    small = max(int(offsets[-1]), wanted) * size <= MAX_NARROW
    kind, borders = (pa.binary(), np.int32) if small else (pa.large_binary(), np.int64)
    buffers = [None, pa.py_buffer((offsets * size).astype(borders)), pa.py_buffer(values)]
    found = pa.Array.from_buffers(kind, len(offsets) - 1, buffers).take(pa.array(rows))
    data = found.buffers()[2]
    if data is None:
        return values[:0]
    return np.frombuffer(data, values.dtype, wanted * size // values.itemsize).reshape(-1, *values.shape[1:])


def join_pieces(values: Array, starts: Array, lengths: Array) -> Array:
    """Joins the slices `values[start:start + length]`.

    Copies piece by piece: an index of all tokens would take several times the memory of the tokens, and more time for
    pieces of about 100 tokens and more.
    """
    stops, order = starts + lengths, np.argsort(starts, kind="stable")
    borders = np.column_stack([starts[order], stops[order]]).ravel()
    if (borders[1:] >= borders[:-1]).all():  # the pieces, and the gaps between them, are rows
        rows = np.empty_like(order)
        rows[order] = np.arange(0, len(borders), 2)
        return take_rows(values, borders, rows)
    pieces = [values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.concatenate([values[:0], *pieces])


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """n rows over one flat array: row i is `values[offsets[i]:offsets[i + 1]]`.

    >>> rows = bp.Ragged.from_lists([[5, 6, 7], [], [8]])
    >>> rows.flat.tolist(), rows.offsets.tolist()
    ([5, 6, 7, 8], [0, 3, 3, 4])
    >>> rows.take(rows.lengths > 0).to_lists()
    [[5, 6, 7], [8]]

    Attributes:
        values: the rows joined: an array of any dtype, or a `Ragged` (rows of lists, as in rollouts).
        offsets: int64 [n + 1], ascending from 0 to `len(values)`.

    Raises:
        ValueError: the offsets are not.
    """

    values: Union[Array, "Ragged"]
    offsets: Array

    def __post_init__(self) -> None:
        offsets = self.offsets
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(self.values):
            raise ValueError(
                f"offsets must run from 0 to {len(self.values)} (values), got {offsets[:1]}..{offsets[-1:]}"
            )
        if not (offsets[1:] >= offsets[:-1]).all():
            row = int(np.argmin(offsets[1:] >= offsets[:-1]))
            raise ValueError(f"offsets must not fall, those of row {row} are {offsets[row]} and {offsets[row + 1]}")

    @classmethod
    def from_lengths(cls, values: Union[Array, "Ragged"], lengths: npt.ArrayLike) -> "Ragged":
        """Cuts `values` into rows of the given lengths."""
        return cls(values, offsets_of(lengths))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[Any]], dtype: npt.DTypeLike = np.int32, depth: int = 1) -> "Ragged":
        """Makes it from rows as lists (`depth` 2: as lists of lists)."""
        lengths = [len(row) for row in rows]
        items = itertools.chain.from_iterable(rows)
        values = np.fromiter(items, dtype, sum(lengths)) if depth == 1 else cls.from_lists([*items], dtype, depth - 1)
        return cls.from_lengths(values, lengths)

    @classmethod
    def concat(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The rows of all parts, in order. `parts` must not be empty."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        if isinstance(parts[0].values, Ragged):
            nested = [part.values for part in parts if isinstance(part.values, Ragged)]
            return cls.from_lengths(cls.concat(nested), lengths)
        return cls.from_lengths(np.concatenate([part.values for part in parts]), lengths)

    @property
    def lengths(self) -> Array:
        """int64 [n]: the length of each row."""
        return np.diff(self.offsets)

    @property
    def flat(self) -> Array:
        """The innermost values, as one array."""
        return self.values.flat if isinstance(self.values, Ragged) else self.values

    @property
    def depth(self) -> int:
        """1 for rows of values, 2 for rows of lists."""
        return 1 + self.values.depth if isinstance(self.values, Ragged) else 1

    @property
    def flat_offsets(self) -> Array:
        """int64 [n + 1]: the borders of rows in the innermost values."""
        return self.values.flat_offsets[self.offsets] if isinstance(self.values, Ragged) else self.offsets

    @property
    def flat_lengths(self) -> Array:
        """int64 [n]: number of innermost values of each row."""
        return np.diff(self.flat_offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Union[Array, "Ragged"]: ...
    @overload
    def __getitem__(self, index: slice) -> "Ragged": ...
    def __getitem__(self, index: int | slice) -> Union[Array, "Ragged"]:
        """A row (a view), or consecutive rows (a `Ragged` over a view)."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            stop = max(start, stop)
            first = self.offsets[start]
            values = self.values[int(first) : int(self.offsets[stop])]
            return Ragged(values, self.offsets[start : stop + 1] - first)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def __iter__(self) -> Iterator[Union[Array, "Ragged"]]:
        for index in range(len(self)):
            yield self[index]

    def take(self, rows: Array) -> "Ragged":
        """The rows of a bool mask [n] or of an index array, in that order."""
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        lengths = self.lengths[rows]
        if isinstance(self.values, Ragged):
            return self._gather(self.offsets[:-1][rows], lengths)
        return Ragged(take_rows(self.values, self.offsets, rows), offsets_of(lengths))

    def cut(self, begin: Array | int, lengths: Array) -> "Ragged":
        """`lengths` values of every row, from its `begin`-th on."""
        starts = self.offsets[:-1] + begin
        if isinstance(self.values, Ragged):
            return self._gather(starts, lengths)
        return Ragged(join_pieces(self.values, starts, lengths), offsets_of(lengths))

    def _gather(self, starts: Array, lengths: Array) -> "Ragged":
        """For rows of lists: the lists of each row from each start on."""
        offsets = offsets_of(lengths)
        index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        assert isinstance(self.values, Ragged)
        return Ragged(self.values.take(index), offsets)

    def with_flat(self, flat: Array) -> "Ragged":
        """The same rows over other innermost values (as many)."""
        if isinstance(self.values, Ragged):
            return Ragged(self.values.with_flat(flat), self.offsets)
        return Ragged(flat, self.offsets)

    def sums(self, flat: Array | None = None) -> Array:
        """int64 [n]: the sum of each row's innermost values (or of `flat`, aligned with them); 0 for an empty row."""
        flat = self.flat if flat is None else flat
        borders = self.flat_offsets
        filled = borders[1:] > borders[:-1]
        totals = np.zeros(len(self), np.int64)
        if filled.any():
            # `reduceat` sums from each border to the next, so empty rows are skipped.
            totals[filled] = np.add.reduceat(flat, borders[:-1][filled], dtype=np.int64)
        return totals

    def common(self, other: "Ragged") -> Array:
        """int64 [n]: length of the longest common prefix of each row of values with that of `other`."""
        lengths = np.minimum(self.lengths, other.lengths)
        borders = offsets_of(lengths)
        differs = np.flatnonzero(self.cut(0, lengths).flat != other.cut(0, lengths).flat)
        firsts = np.append(differs, borders[-1])[np.searchsorted(differs, borders[:-1])]
        return np.asarray(np.minimum(firsts - borders[:-1], lengths))

    def to_lists(self) -> list[Any]:
        """Rows as lists of Python numbers."""
        values = self.values.to_lists() if isinstance(self.values, Ragged) else self.values.tolist()
        return [values[begin:end] for begin, end in itertools.pairwise(self.offsets.tolist())]


class Aligned:
    """The base of dataclasses whose fields are arrays of equal length."""

    __slots__ = ()

    @property
    def arrays(self) -> dict[str, Array]:
        """All fields, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def concat(cls, parts: Iterable[Self]) -> Self:
        """All rows, in order. There must be at least one part."""
        return cls(*map(np.concatenate, zip(*(part.arrays.values() for part in parts), strict=True)))

    def take(self, places: Array) -> Self:
        """The rows at these places, in that order."""
        return type(self)(*(column[places] for column in self.arrays.values()))

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


def characters(texts: Sequence[str]) -> Array:
    """int64: numbers of characters of texts."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def take(texts: Sequence[str], places: Array) -> list[str]:
    """The texts at these places, in that order."""
    return [texts[place] for place in places.tolist()]
