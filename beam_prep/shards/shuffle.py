"""A shuffle: how many shards there are, what a mix takes, and what becomes known of it when the rows are sorted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from beam_prep.data.ragged import Array
from beam_prep.shards.compose import Compose, Place, Splits, domain_of, split_of
from beam_prep.shards.mix import ALL, MixedDomain, Taken, budgets, copies_of
from beam_prep.shards.receipts import Receipts
from beam_prep.shards.row_index import RowIndexes
from beam_prep.shards.slices import Border, ShardPlan, first_lines, folders_of


@dataclass(frozen=True, slots=True)
class Parts:
    """What a shuffle makes of the parts of a job.

    Attributes:
        ranges: int64 [parts], into how many ranges of keys the rows of each are cut: those of one split have as many.
        rows, tokens: int64 [parts], that there are.
        wanted: part to the tokens that the mix wants of it; others are written whole, once.
    """

    ranges: Array
    rows: Array
    tokens: Array
    wanted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, receipts: Receipts, row_indexes: RowIndexes, compose: Compose, max_tokens: int, end: Border) -> "Parts":
        """Of the rows before the end.

        Raises:
            RunError: see `budgets`.
        """
        names = receipts.domains
        rows, tokens = _before(receipts, row_indexes, end)
        split = np.array([split_of(name, compose.splits) for name in names], np.int64)
        wanted: dict[int, int] = {}
        if compose.mix:
            mixed = {domain_of(name, compose.splits): code for code, name in enumerate(names) if split[code] == 0}
            there = {domain: int(tokens[code]) for domain, code in mixed.items()}
            wanted = {mixed[domain]: count for domain, count in budgets(compose.mix, there).items()}
        written = tokens.copy()
        for code, count in wanted.items():
            written[code] = count
        by_split = np.bincount(split, written, compose.split_count).astype(np.int64)
        ranges = np.maximum(1, -(-by_split // max_tokens))
        return cls(ranges[split], rows, tokens, wanted)

    def taken(self) -> dict[int, Taken]:
        """Part to what is taken of its rows, where it is not yet known how many of one more copy: all of these."""
        found = {}
        for code, wanted in self.wanted.items():
            copies, more = copies_of(wanted, int(self.tokens[code]))
            found[code] = Taken(copies, ALL if more else None)
        return found

    @property
    def copies(self) -> Array:
        """int64 [parts]: how often a row of each is written, at most."""
        found = np.ones(len(self.rows), np.int64)
        for code, taken in self.taken().items():
            found[code] = taken.copies + (taken.most is not None)
        return found

    def more(self, part: int) -> int:
        """The tokens that are wanted of one more copy of a part."""
        return copies_of(self.wanted[part], int(self.tokens[part]))[1]


def _before(receipts: Receipts, row_indexes: RowIndexes, end: Border) -> tuple[Array, Array]:
    """(rows, tokens) of each part before the end, int64 [parts]."""
    rows, tokens = (each.flat.astype(np.int64) for each in (receipts.entry_rows, receipts.entry_tokens))
    if end.rows >= 0:
        first, last = receipts.entry_tokens.offsets[[end.block, end.block + 1]].tolist()
        row_index = row_indexes.get(end.block)
        domain, entries = row_index.domain[: end.rows].astype(np.int64), last - first
        rows[first:last] = np.bincount(domain, minlength=entries)
        tokens[first:last] = np.bincount(domain, row_index.tokens[: end.rows], entries).astype(np.int64)
        rows[last:], tokens[last:] = 0, 0
    count = len(receipts.domains)
    found = np.zeros((2, count), np.int64)
    for place, values in enumerate((rows, tokens)):
        np.add.at(found[place], receipts.entry_domain.flat, values)
    return found[0], found[1]


def places(receipts: Receipts, end: Border) -> Callable[[int], Place]:
    """Makes the place of a block; it must not lie behind the end."""
    before = first_lines(receipts)

    def place(block: int) -> Place:
        rows = end.rows if block == end.block else -1
        parts = tuple(receipts.entry_domain[block].tolist())  # type: ignore[union-attr]
        name = receipts.names[block].as_py()
        file, first_byte, line = (int(column[block]) for column in (receipts.file, receipts.first_byte, before))
        return Place(name, receipts.copies(block), file, first_byte, line, parts, rows)

    return place


@dataclass(frozen=True, slots=True)
class ShuffledShards:
    """The shards of a shuffle: which ranges of keys have rows.

    Attributes:
        names: of the parts.
        splits: see `Compose`.
        part, number: int64 [shards], the part, and the range of keys.
        rows: int64 [shards].
    """

    names: Sequence[str]
    splits: Splits | None
    part: Array
    number: Array
    rows: Array

    @property
    def shards_of(self) -> dict[str, int]:
        """Part -> how many shards it has."""
        return {self.names[code]: int(np.count_nonzero(self.part == code)) for code in np.unique(self.part).tolist()}

    def plans(self) -> list[ShardPlan]:
        """The shards without their rows: those of a range of keys together, as those of a flush are in input order."""
        shards_of = self.shards_of
        folders = folders_of(shards_of, self.splits)
        seen = dict.fromkeys(shards_of, 0)
        found = []
        for code, rows in zip(self.part.tolist(), self.rows.tolist(), strict=True):
            name = self.names[code]
            split = None if self.splits is None else self.splits.names[split_of(name, self.splits)]
            place = seen[name], shards_of[name]
            found.append(ShardPlan(domain_of(name, self.splits), folders[name], *place, split=split, count=rows))
            seen[name] += 1
        return found

    @classmethod
    def of(
        cls, names: Sequence[str], splits: Splits | None, part: Array, number: Array, rows: Array
    ) -> "ShuffledShards":
        """In the order in which they are written; the arguments in any."""
        split = np.array([split_of(names[code], splits) for code in part.tolist()], np.int64)
        order = np.lexsort((part, number, split))
        return cls(names, splits, part[order], number[order], rows[order])


def mixed_domains(
    names: Sequence[str], splits: Splits | None, parts: Parts, written: Mapping[int, tuple[int, int, int]]
) -> tuple[MixedDomain, ...]:
    """What a mix takes.

    Args:
        names, splits: of the parts.
        parts: see there.
        written: part to its (rows, tokens, rows that are drawn of one more copy).
    """
    found = []
    for code, taken in parts.taken().items():
        rows, tokens, drawn = written.get(code, (0, 0, 0))
        there = int(parts.rows[code])
        records = there if taken.copies else drawn
        found.append(MixedDomain(domain_of(names[code], splits), parts.wanted[code], tokens, there, records, rows))
    return tuple(found)
