"""Slices: the rows of blocks that make each shard, the rejects of blocks that make each file of rejects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_prep.core.data.carried import FILE
from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.shards.borders import Border
from beam_prep.core.shards.domains import folders
from beam_prep.core.shards.receipts import Receipts

REJECTS_PER_FILE = 100_000


class Slice(NamedTuple):
    """Rows [start, stop) of one domain of a spooled block.

    With provenance it has its place in the input, see `placed`; the block in the spool does not.
    """

    name: str
    domain: int
    start: int
    stop: int
    file: int = 0
    first_byte: int = 0


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its rows in order.

    Attributes:
        domain, folder: its domain and that domain's folder.
        shard, shards: its number, and how many its domain has.
        slices: its rows.
        last: no other shard reads the blocks that this one uses completely.
        cut: rows of the plan lost tokens to `Layout.fit`.
    """

    domain: str
    folder: str
    shard: int
    shards: int
    slices: tuple[Slice, ...]
    last: bool = False
    cut: bool = False

    @property
    def rows(self) -> int:
        """The rows of all slices."""
        return sum(piece.stop - piece.start for piece in self.slices)


class RejectSlice(NamedTuple):
    """Rejects [start, stop) of a block, and what makes their file, offset and line absolute."""

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


class Shards(OnDemand[ShardPlan]):
    """The shards of a plan, in order of flush, then of domain. Those of 10 TB have millions of slices.

    Attributes:
        shards_of: domain -> how many shards it has.
        folders: domain -> folder.
    """

    def __init__(self, receipts: Receipts, borders: Sequence[Border]) -> None:
        flush, domain, *slices = _slices(receipts, borders)
        # The n-th slice belongs to the shard of this flush and domain.
        shard = flush * max(1, len(receipts.domains)) + domain
        order = np.argsort(shard, kind="stable")
        found, lengths = np.unique(shard, return_counts=True)
        self._names, self._domains = receipts.names, receipts.domains
        self._places = places_of(receipts)
        self._first = offsets_of(lengths)
        self._slices = [column[order].astype(np.int32) for column in slices]
        self._domain = found % max(1, len(receipts.domains))
        self._number = np.zeros(len(found), np.int64)
        self.shards_of: dict[str, int] = {}
        for code, name in enumerate(receipts.domains):
            here = np.flatnonzero(self._domain == code)
            self._number[here] = np.arange(len(here))
            if len(here):
                self.shards_of[name] = len(here)
        self.folders = folders(self.shards_of)

    def __len__(self) -> int:
        return len(self._domain)

    def _at(self, index: int) -> ShardPlan:
        domain = self._domains[self._domain[index]]
        block, *rest = (column[self._first[index] : self._first[index + 1]] for column in self._slices)
        names = self._names.take(pa.array(block)).to_pylist()
        rest += [column[block] for column in self._places]
        slices = tuple(map(Slice, names, *(column.tolist() for column in rest)))
        return ShardPlan(domain, self.folders[domain], int(self._number[index]), self.shards_of[domain], slices)


def places_of(receipts: Receipts) -> tuple[Array, ...]:
    """int64 [blocks] each: the file, and the first byte there; of rows without provenance neither."""
    provenance = any(column.role == FILE.role for column in receipts.columns)
    return (receipts.file, receipts.first_byte) if provenance else ()


def _slices(receipts: Receipts, borders: Sequence[Border]) -> tuple[Array, ...]:
    """int64 [slices] each: flush, domain, block, place of the domain in the block, start, stop; in input order."""
    inner = borders if borders[-1].rows >= 0 else borders[:-1]
    cuts = Ragged.from_lists([border.cut for border in inner], np.int64)
    # A block in which n flushes end is cut into n + 1 pieces, of each of its domains.
    domains = receipts.entry_domain.lengths
    ending = np.bincount(np.array([border.block for border in inner], np.int64), minlength=len(receipts))
    pieces = np.repeat(ending + 1, domains)
    first = np.repeat(np.cumsum(ending) - ending, domains)  # the flush to which the first of them belongs
    entry = np.repeat(np.arange(len(pieces)), pieces)
    piece = np.arange(len(entry)) - offsets_of(pieces)[entry]
    flush = first[entry] + piece
    block = np.repeat(np.arange(len(receipts)), domains)[entry]
    place = entry - receipts.entry_domain.offsets[block]
    start, stop = np.zeros(len(entry), np.int64), receipts.entry_rows.flat[entry]
    cut = np.flatnonzero(piece > 0)
    start[cut] = cuts.flat[cuts.offsets[flush[cut] - 1] + place[cut]]
    cut = np.flatnonzero(piece + 1 < pieces[entry])
    stop[cut] = cuts.flat[cuts.offsets[flush[cut]] + place[cut]]
    kept = (start < stop) & (flush < len(borders))
    columns = (flush, receipts.entry_domain.flat[entry], block, place, start, stop)
    return tuple(column[kept] for column in columns)


def first_lines(receipts: Receipts) -> Array:
    """int64 [blocks]: how many lines of its file are before each block."""
    before = offsets_of(receipts.lines)[:-1]
    new_file = np.diff(receipts.file, prepend=-1) != 0
    found: Array = before - np.maximum.accumulate(np.where(new_file, before, 0))
    return found


class Rejects(OnDemand[RejectsPlan]):
    """The files of rejects of a plan, each of at most REJECTS_PER_FILE, in input order."""

    def __init__(self, receipts: Receipts, rejected: Array) -> None:
        self._receipts, self._offsets, self._most = receipts, offsets_of(rejected), REJECTS_PER_FILE
        self._first_line = first_lines(receipts)

    def __len__(self) -> int:
        return -(-int(self._offsets[-1]) // self._most)

    def _at(self, index: int) -> RejectsPlan:
        first = index * self._most
        last = min(first + self._most, int(self._offsets[-1]))
        begin, end = np.searchsorted(self._offsets, [first, last - 1], "right") - 1
        return RejectsPlan(index, self.of(np.arange(begin, end + 1), first, last))

    def of(self, blocks: Array, first: int = 0, last: int | None = None) -> tuple[RejectSlice, ...]:
        """The rejects of blocks: those from number `first` of the plan to before number `last`."""
        starts, stops = self._offsets[blocks], self._offsets[blocks + 1]
        used = starts < stops
        blocks, starts, stops = blocks[used], starts[used], stops[used]
        columns = (
            self._receipts.names.take(pa.array(blocks)).to_pylist(),
            (np.maximum(starts, first) - starts).tolist(),
            (np.minimum(stops, self._offsets[-1] if last is None else last) - starts).tolist(),
            map(self._receipts.path, blocks),
            self._receipts.first_byte[blocks].tolist(),
            self._first_line[blocks].tolist(),
        )
        return tuple(map(RejectSlice, *columns))
