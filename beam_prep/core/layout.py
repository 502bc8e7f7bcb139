"""How the rows of a shard become the rows that are written: as they are, packed, with position ids, renamed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from beam_prep.core.pack import POSITION_IDS, SEQ_LENS, PackStats, Positions, Strategy, pack_columns, plan_packs
from beam_prep.core.ragged import Ragged
from beam_prep.core.schema import Column, name_problems
from beam_prep.errors import ConfigError

Rows = Mapping[str, Ragged]


@dataclass(frozen=True, slots=True)
class Layout:
    """What becomes of a shard's rows before they are written.

    Attributes:
        packing: see `plan_packs`; `none`: one document a row.
        capacity: tokens of a packed row.
        group: consecutive rows of the shard that are packed together. Over rows in input order, so that the result
            depends on neither workers nor blocks.
        position_ids: see `pack_columns`.
        dtype: of the columns that are added; int32 where it does not say.
        names: column -> the name under which it is written, where that is another one.
    """

    packing: Literal["none"] | Strategy = "none"
    capacity: int = 2048
    group: int = 5000
    position_ids: Positions = "none"
    dtype: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns that are written, by the names under which they are.

        Raises:
            ValueError: rows of lists cannot be packed, nor have positions.
            ConfigError: `names` has a column that is not written, or gives a name that cannot be.
        """
        added = []
        of = next((column.name for column in columns if column.role == "ids"), None)
        if self.position_ids != "none":
            added.append(Column(POSITION_IDS, self.dtype.get(POSITION_IDS, "int32"), 1, "position", of))
        if self.packing != "none":
            added.append(Column(SEQ_LENS, self.dtype.get(SEQ_LENS, "int32"), 1, "lengths", of))
        if added and any(column.depth != 1 or column.role == "value" for column in columns):
            raise ValueError("rows of lists or values cannot be packed, nor have position ids")
        written = (*columns, *added)
        self.check_names([column.name for column in written])
        return tuple(
            replace(column, name=self._name(column.name), of=column.of and self._name(column.of)) for column in written
        )

    def check_names(self, columns: Sequence[str]) -> None:
        """Raises ConfigError if `names` has another column than these, or gives one a name that it cannot have."""
        if problems := list(name_problems(self.names, columns)):
            raise ConfigError("\n".join(f"names: {column}: {text}" for column, text in problems))

    def _name(self, column: str) -> str:
        return self.names.get(column, column)

    def rows(self, parts: Iterable[Rows]) -> Iterator[tuple[Rows, PackStats | None]]:
        """The rows to write, from the shard's rows in order; what packing did with each group."""
        for rows, stats in self._rows(parts):
            yield {self._name(column): values for column, values in rows.items()}, stats

    def _rows(self, parts: Iterable[Rows]) -> Iterator[tuple[Rows, PackStats | None]]:
        """The same, by the columns' own names."""
        if self.packing == "none":
            for part in parts:
                yield (part if self.position_ids == "none" else _with_positions(part)), None
            return
        for group in _groups(parts, self.group):
            lengths = next(iter(group.values())).lengths
            plan = plan_packs(lengths, self.packing, self.capacity)
            yield pack_columns(group, plan, self.position_ids), plan.stats


def _with_positions(part: Rows) -> Rows:
    rows = next(iter(part.values()))
    places = np.arange(len(rows.flat)) - np.repeat(rows.offsets[:-1], rows.lengths)
    return {**part, POSITION_IDS: rows.with_flat(places.astype(np.int32))}


def _groups(parts: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Rows in groups of `size`; the last one may be smaller."""
    held: list[Rows] = []
    count = 0
    for part in parts:
        rows = len(next(iter(part.values())))
        start = 0
        while count + rows - start >= size:
            stop = start + size - count
            yield _concat([*held, _cut(part, start, stop)])
            held, count, start = [], 0, stop
        if start < rows:
            held.append(_cut(part, start, rows))
            count += rows - start
    if held:
        yield _concat(held)


def _cut(part: Rows, start: int, stop: int) -> Rows:
    return {name: rows[start:stop] for name, rows in part.items()}


def _concat(parts: Sequence[Rows]) -> Rows:
    return {name: Ragged.concat([part[name] for part in parts]) for name in parts[0]}
