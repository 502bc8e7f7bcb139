"""Gather: the plan of a shuffle that knows every row, and names for each shard the rows of the spool that it has."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.ragged import Array
from beam_prep.core.shards.borders import Border
from beam_prep.core.shards.compose import Arranged, Compose, Place, arranged, ranges_of
from beam_prep.core.shards.layout import CUT
from beam_prep.core.shards.mix import Taken, budgets, copies_of, cutoff
from beam_prep.core.shards.receipts import Receipts
from beam_prep.core.shards.sidecars import Sidecars, View
from beam_prep.core.shards.slices import ShardPlan, first_lines, folders_of, places_of
from beam_prep.core.shards.splits import domain_of, split_of

MOST_ROWS = 8_000_000
"""Rows of a job that are gathered: the plan holds some 40 bytes of each."""
_AHEAD = 512
"""Blocks whose sidecars are fetched at a time."""
_ALL = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of a shard, in order.

    Attributes:
        names: blocks of the spool.
        files, first_bytes: of each block, its place in the input; [] where rows have no provenance.
        block: int32 [rows], index into `names`.
        batch: int32 [rows], the number of the row's domain in its block.
        row: int32 [rows], its number there.
        tokens: int64 [rows].
        cut: int64 [rows], the tokens that each lost, see `Layout.fit`; None: of none any.
    """

    names: list[str]
    files: list[int]
    first_bytes: list[int]
    block: Array
    batch: Array
    row: Array
    tokens: Array
    cut: Array | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a shuffle makes of the parts of a job.

    Attributes:
        ranges: int64 [parts], into how many ranges of keys the rows of each are cut: those of one split have as many.
        tokens: int64 [parts], that there are.
        wanted: part to the tokens that the mix wants of it; others are written whole, once.
    """

    ranges: Array
    tokens: Array
    wanted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, receipts: Receipts, sidecars: Sidecars, compose: Compose, max_tokens: int, end: Border) -> "Parts":
        """Of the rows before the end.

        Raises:
            RunError: see `budgets`.
        """
        names = receipts.domains
        tokens = _tokens(receipts, sidecars, end)
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
        return cls(ranges[split] if len(split) else np.zeros(0, np.int64), tokens, wanted)

    def taken(self, most: Mapping[int, int] | None = None) -> dict[int, Taken]:
        """Part to what is taken of its rows. `most`: part to the largest sample key of one more copy; None: all keys."""
        found = {}
        for code, wanted in self.wanted.items():
            copies, more = copies_of(wanted, int(self.tokens[code]))
            limit = (_ALL if most is None else most.get(code)) if more else None
            found[code] = Taken(copies, limit)
        return found

    def more(self, part: int) -> int:
        """The tokens that are wanted of one more copy of a part."""
        return copies_of(self.wanted[part], int(self.tokens[part]))[1]


def _tokens(receipts: Receipts, sidecars: Sidecars, end: Border) -> Array:
    """int64 [parts]: tokens before the end."""
    counts = receipts.entry_tokens.flat.astype(np.int64)
    if end.rows >= 0:
        first, last = receipts.entry_tokens.offsets[[end.block, end.block + 1]].tolist()
        counts = counts[:last].copy()
        sidecar = sidecars.get(end.block)
        counts[first:last] = 0
        np.add.at(counts, first + sidecar.domain[: end.rows].astype(np.int64), sidecar.tokens[: end.rows])
    found = np.zeros(len(receipts.domains), np.int64)
    np.add.at(found, receipts.entry_domain.flat[: len(counts)], counts)
    return found


def places(receipts: Receipts, end: Border) -> Callable[[int], Place]:
    """Makes the place of a block; it must not lie behind the end."""
    before = first_lines(receipts)

    def place(block: int) -> Place:
        rows = end.rows if block == end.block else -1
        parts = tuple(receipts.entry_domain[block].tolist())  # type: ignore[union-attr]
        name = receipts.names[block].as_py()
        numbers = (int(column[block]) for column in (receipts.file, receipts.first_byte, before))
        return Place(name, receipts.copies(block), *numbers, parts, rows)

    return place


class Gathered(OnDemand[ShardPlan]):
    """The shards of a shuffle. `order` names the rows of each.

    Args:
        receipts, sidecars: all blocks.
        compose: what is made of them.
        parts: see there.
        end: where the input ends.

    Attributes:
        shards_of, folders: see `Plan`.
        taken: (part, rows, tokens, records), of the parts of a mix.
    """

    def __init__(self, receipts: Receipts, sidecars: Sidecars, compose: Compose, parts: Parts, end: Border) -> None:
        self._receipts, self._compose = receipts, compose
        self._provenance = bool(places_of(receipts))
        rows = _rows(receipts, sidecars, compose, parts, end)
        if parts.wanted:
            rows, most = _mixed(rows, parts)
            self.taken = _what_is_taken(rows, parts, most)
        part, key = rows.pop("part"), rows.pop("key")
        rows.pop("sample", None)
        order = np.lexsort((key, part))
        part = part[order]
        number = ranges_of(key[order], part, parts.ranges)
        del key
        self._rows = {name: values[order] for name, values in rows.items()}
        first = np.flatnonzero((np.diff(part, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
        self._borders = np.append(first, len(part))
        self._part, self._range = part[first], number[first]
        names = receipts.domains
        self._number = np.zeros(len(first), np.int64)
        self.shards_of: dict[str, int] = {}
        for code in np.unique(self._part).tolist():
            here = np.flatnonzero(self._part == code)
            self._number[here] = np.arange(len(here))
            self.shards_of[names[code]] = len(here)
        self.folders = folders_of(self.shards_of, compose.splits)
        # The shards of a range of keys together, as those of a flush are without a shuffle.
        split = np.array([split_of(names[code], compose.splits) for code in self._part.tolist()], np.int64)
        self._shown = np.lexsort((self._part, self._range, split))

    def __len__(self) -> int:
        return len(self._part)

    def _at(self, index: int) -> ShardPlan:
        place = int(self._shown[index])
        name, splits = self._receipts.domains[self._part[place]], self._compose.splits
        return ShardPlan(
            domain_of(name, splits),
            self.folders[name],
            int(self._number[place]),
            self.shards_of[name],
            split=None if splits is None else splits.names[split_of(name, splits)],
            count=int(self._borders[place + 1] - self._borders[place]),
        )

    def order(self, index: int) -> Order:
        """The rows of a shard."""
        place = int(self._shown[index])
        rows = {name: values[self._borders[place] : self._borders[place + 1]] for name, values in self._rows.items()}
        blocks, block = np.unique(rows.pop("block"), return_inverse=True)
        names = self._receipts.names.take(pa.array(blocks)).to_pylist()
        where = (self._receipts.file, self._receipts.first_byte) if self._provenance else ()
        files, first_bytes = (column[blocks].tolist() for column in where) if where else ([], [])
        cut = rows.pop("cut", None)
        return Order(names, files, first_bytes, block.astype(np.int32), cut=cut, **rows)


def _rows(
    receipts: Receipts, sidecars: Sidecars, compose: Compose, parts: Parts, end: Border
) -> dict[str, Array]:
    """All rows in input order, as columns."""
    assert compose.shuffle is not None
    taken, place = parts.taken(), places(receipts, end)
    has_cut = bool(receipts.counts("counter", len(receipts)).get(CUT))
    found: dict[str, list[Array]] = {}
    for block in range(end.block + 1):
        view = sidecars.view(block, range(block, min(block + _AHEAD, end.block + 1)))
        made = arranged(view, place(block), compose.shuffle, taken)
        for name, values in _columns(view, made, compose, block, bool(taken), has_cut):
            found.setdefault(name, []).append(values)
    empty = {"part": np.int32, "key": np.uint64, "block": np.int32, "batch": np.int32, "row": np.int32}
    none: dict[str, Array] = {name: np.zeros(0, dtype) for name, dtype in {**empty, "tokens": np.int64}.items()}
    return {name: np.concatenate(found.pop(name)) for name in list(found)} or none


def _columns(
    view: View, made: Arranged, compose: Compose, block: int, mixed: bool, has_cut: bool
) -> Iterator[tuple[str, Array]]:
    yield "part", made.part
    yield "key", made.key
    if mixed:
        yield "sample", made.sample
    yield "block", np.full(len(made.row), block, np.int32)
    yield "batch", view.sidecar.domain[made.row] // np.int32(compose.split_count)
    yield "row", view.row[made.row].astype(np.int32)
    yield "tokens", view.sidecar.tokens[made.row]
    if has_cut:
        cut = view.sidecar.counters.get(CUT)
        yield "cut", np.zeros(len(made.row), np.int64) if cut is None else cut[made.row].astype(np.int64)


def _mixed(rows: dict[str, Array], parts: Parts) -> tuple[dict[str, Array], dict[int, int]]:
    """The rows that a mix takes, and the largest sample key of each part of which some are drawn."""
    kept = np.ones(len(rows["part"]), bool)
    found = {}
    for code in parts.wanted:
        drawn = np.flatnonzero((rows["part"] == code) & (rows["sample"] > 0))
        most = cutoff(rows["sample"][drawn], rows["tokens"][drawn], parts.more(code))
        if most is not None:
            found[code] = most
        kept[drawn] = rows["sample"][drawn] <= np.uint64(most or 0)
    return {name: values[kept] for name, values in rows.items()}, found


def _what_is_taken(rows: dict[str, Array], parts: Parts, most: Mapping[int, int]) -> tuple[tuple[int, int, int, int], ...]:
    found = []
    for code, taken in parts.taken(most).items():
        here = rows["part"] == code
        count = int(np.count_nonzero(here))
        drawn = int(np.count_nonzero(rows["sample"][here]))
        records = (count - drawn) // taken.copies if taken.copies else drawn
        found.append((code, count, int(rows["tokens"][here].sum()), records))
    return tuple(found)
