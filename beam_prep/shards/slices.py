"""Slices: which rows of which blocks make each shard, and which rejects make each file of rejects."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, offsets_of
from beam_prep.data.schema import FILE
from beam_prep.shards.compose import Splits, domain_of, split_name
from beam_prep.shards.domains import folder_of, part_of
from beam_prep.shards.receipts import Receipts, RowIndexes


@dataclass(frozen=True, slots=True)
class Border:
    """A place between two records in a block, after the first `cut` rows of each domain of the block."""

    block: int
    cut: tuple[int, ...] = ()


def first_items(receipts: Receipts, row_indexes: RowIndexes, max_items: int | None) -> Receipts:
    """The statistics of the input up to the `max_items`-th kept row; of all blocks if there are fewer rows."""
    kept = np.cumsum(receipts.rows)
    if max_items is None or not len(kept) or kept[-1] < max_items:
        return receipts
    block = int(np.searchsorted(kept, max_items))
    rows, last = max_items - int(kept[block] - receipts.rows[block]), receipts.block(block)
    names = [domain for domain, _, _ in last.domains]
    values = row_indexes.view(block).head(rows).statistics(names, last.counts("made"))
    return receipts.until(block, last.updated(**values))


def shard_borders(
    receipts: Receipts, row_indexes: RowIndexes, max_tokens: int, split: int = 0, splits: int = 1
) -> list[Border]:
    """The borders between flushes, without the end; `receipts` has only the rows of number `split` of `splits`."""
    ends = np.cumsum(receipts.tokens)
    borders: list[Border] = []
    flushed = 0
    while (block := int(np.searchsorted(ends, flushed + max_tokens))) < len(receipts):
        goal = flushed + max_tokens
        size = flushed / len(borders) if borders else max_tokens + ends[-1] / receipts.rows.sum()
        row_index = row_indexes.view(block, _later(ends, goal, size))
        here = row_index["domain"] % splits == split
        until = ends[block] - receipts.tokens[block] + np.cumsum(row_index["tokens"][here])
        rows = int(np.searchsorted(until, goal)) + 1
        domain = row_index["domain"][here][:rows] // splits
        cut = np.bincount(domain, minlength=len(receipts.entry_domain[block]))
        borders.append(Border(block, tuple(cut.tolist())))
        flushed = int(until[rows - 1])
    return borders


def _later(ends: Array, goal: int, size: float) -> list[int]:
    """Blocks that probably hold the next borders.

    The place of a border depends on all earlier borders: a flush ends at the end of a record, a few tokens after
    `max_tokens`.

    Args:
        ends: int64 [blocks], tokens up to the end of each block.
        goal: tokens up to the next border, at least.
        size: tokens of a flush, about.
    """
    goals = goal + np.arange(RowIndexes.borders_ahead) * size
    blocks = np.searchsorted(ends, goals.astype(np.int64))  # for floats, numpy would convert all `ends`
    found: list[int] = np.unique(blocks[blocks < len(ends)]).tolist()
    return found


class Slice(NamedTuple):
    """Rows [start, stop) of one domain of a cached block, or of one part of the block's view.

    With provenance, `file` and `first_byte` are the block's place in the input; the token cache does not hold it.
    `copies` is the file of the block's copies, see `STATISTICS`.
    """

    name: str
    domain: int
    start: int
    stop: int
    file: int = 0
    first_byte: int = 0
    copies: str = ""


def run_name(index: int) -> str:
    """The file name of a run."""
    return f"runs/{index:07d}"


def merged_name(group: int, wide: int) -> str:
    """The file name of a merge of the second level: a wide range of keys from a group of runs."""
    return f"merged/{group:05d}-{wide:05d}"


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows of a shard, as they lie in runs.

    Attributes:
        facts: see `runs.Runs`.
        files: how many files may have rows of a bin.
        width: bins of a file of the second level; 0: the files are runs.
        part, first, stop, bins: the part, and its bins [first, stop) out of `bins`.
        most: the largest sample key that is written. Rows without one are written in any case.
    """

    facts: str
    files: int
    width: int
    part: int
    first: int
    stop: int
    bins: int
    most: int

    def sources(self, keys: int) -> list[str]:
        """The files that may have rows of a bin, in the order of the runs."""
        if not self.width:
            return [run_name(index) for index in range(self.files)]
        return [merged_name(group, keys // self.width) for group in range(self.files)]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its rows in order.

    Attributes:
        domain, folder: its domain, and the folder of the domain.
        shard, shards: its number, and the number of shards of its domain.
        slices: its rows in input order; () in a shuffle.
        last: no other shard reads the blocks that this shard uses completely.
        cut: `Layout.fit` cut rows of the plan.
        split: the name of its split; None without splits.
        merge: the merge that gives its rows, in a shuffle.
        count: how many rows it has, in a shuffle.
    """

    domain: str
    folder: str
    shard: int
    shards: int
    slices: tuple[Slice, ...] = ()
    last: bool = False
    cut: bool = False
    split: str | None = None
    merge: Merge | None = None
    count: int = 0

    @property
    def rows(self) -> int:
        """How many rows the shard has."""
        return sum(piece.stop - piece.start for piece in self.slices) or self.count


class RejectSlice(NamedTuple):
    """Rejects [start, stop) of a block, with the path, first byte and first line of the block in the input."""

    name: str
    start: int
    stop: int
    path: str
    first_byte: int
    first_line: int


@dataclass(frozen=True, slots=True)
class RejectsPlan:
    """One file of rejects."""

    index: int
    slices: tuple[RejectSlice, ...]


class Shards:
    """The shards of a plan, by flush, then by domain. Each is made during iteration: the shards of 10 TB have
    millions of slices.

    Attributes:
        parts: the part of each shard, in order.
    """

    def __init__(
        self, receipts: Receipts, borders: Sequence[Border], splits: Splits | None = None, split: int = 0
    ) -> None:
        self._receipts, self._borders, self._splits, self._split = receipts, borders, splits, split
        self._places = places_of(receipts)
        self.parts = [receipts.domains[code] for flush in self._flushes() for code in sorted(flush)]

    def __iter__(self) -> Iterator[ShardPlan]:
        found = (flush[code] for flush in self._flushes() for code in sorted(flush))
        for plan, pieces in zip(numbered(self.parts, self._splits), found, strict=True):
            yield replace(plan, slices=self._slices(*zip(*pieces, strict=True)))

    def _flushes(self) -> Iterator[dict[int, list[tuple[int, int, int, int]]]]:
        """For each flush: domain -> its rows, as (block, place of the domain in the block, start, stop)."""
        receipts = self._receipts
        for first, last in itertools.pairwise([Border(0), *self._borders, Border(len(receipts))]):
            found = defaultdict(list)
            blocks = slice(first.block, last.block + 1)
            domains, rows = receipts.entry_domain[blocks].to_lists(), receipts.entry_rows[blocks].to_lists()
            for block, (codes, stops) in enumerate(zip(domains, rows, strict=True), first.block):
                starts = first.cut if block == first.block and first.cut else (0,) * len(codes)
                stops = last.cut if block == last.block else stops
                for place, (code, start, stop) in enumerate(zip(codes, starts, stops, strict=True)):
                    if start < stop:
                        found[code].append((block, place, start, stop))
            yield found

    def _slices(
        self, blocks: Sequence[int], places: Sequence[int], starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[Slice, ...]:
        names = self._receipts.names_of(blocks)
        parts = 1 if self._splits is None else len(self._splits.names)
        domains = [place * parts + self._split for place in places]
        files, first_bytes = (column[[*blocks]].tolist() for column in self._places)
        copies = map(self._receipts.copies.__getitem__, blocks)
        return tuple(map(Slice, names, domains, starts, stops, files, first_bytes, copies))


def numbered(parts: Sequence[str], splits: Splits | None) -> Iterator[ShardPlan]:
    """Shards without rows, in the order of writing; `parts`: the part of each."""
    shards, seen = Counter(parts), Counter[str]()
    of_domains = domain_folders(parts, splits)
    for part in parts:
        domain, split = domain_of(part, splits), split_name(part, splits)
        yield ShardPlan(domain, part_of(split, of_domains[domain]), seen[part], shards[part], split=split)
        seen[part] += 1


def domain_folders(parts: Iterable[str], splits: Splits | None) -> dict[str, str]:
    """Domain -> folder (in the folder of a split), of the domains of these parts."""
    domains = sorted({domain_of(part, splits) for part in parts})
    return {domain: folder_of(domain, splits is not None) for domain in domains}


def places_of(receipts: Receipts) -> tuple[Array, Array]:
    """int64 [blocks] each: file and first byte of each block; 0 without provenance."""
    if any(column.role == FILE.role for column in receipts.columns):
        return receipts.file, receipts.first_byte
    return np.zeros_like(receipts.file), np.zeros_like(receipts.first_byte)


def first_lines(receipts: Receipts) -> Array:
    """int64 [blocks]: how many lines of its file are before each block."""
    before = offsets_of(receipts.lines)[:-1]
    new_file = np.diff(receipts.file, prepend=-1) != 0
    found: Array = before - np.maximum.accumulate(np.where(new_file, before, 0))
    return found


REJECTS = 100_000
"""Most rejects of a file."""


def rejects(receipts: Receipts) -> Iterator[RejectsPlan]:
    """The files of rejects of a plan, in input order."""
    offsets, before = offsets_of(receipts.counted("rejected")), first_lines(receipts)
    total = int(offsets[-1])
    for index, first in enumerate(range(0, total, REJECTS)):
        last = min(first + REJECTS, total)
        begin, end = np.searchsorted(offsets, [first, last - 1], "right") - 1
        blocks = np.arange(begin, end + 1)
        blocks = blocks[offsets[blocks] < offsets[blocks + 1]]
        starts, stops = offsets[blocks], offsets[blocks + 1]
        columns = (
            receipts.names_of(blocks),
            (np.maximum(starts, first) - starts).tolist(),
            (np.minimum(stops, last) - starts).tolist(),
            map(receipts.paths.__getitem__, blocks),
            receipts.first_byte[blocks].tolist(),
            before[blocks].tolist(),
        )
        yield RejectsPlan(index, tuple(map(RejectSlice, *columns)))
