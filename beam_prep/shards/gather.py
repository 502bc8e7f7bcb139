"""Gather: the plan of a shuffle that knows every row, and names for each shard the rows of the token cache it has."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array, changes
from beam_prep.shards.compose import Arranged, Compose, arranged, ranges_of
from beam_prep.shards.layout import CUT
from beam_prep.shards.mix import MixedDomain, cutoff
from beam_prep.shards.receipts import Receipts
from beam_prep.shards.row_index import RowIndexes, View
from beam_prep.shards.shuffle import Parts, ShuffledShards, mixed_domains, places
from beam_prep.shards.slices import Border, OnDemand, ShardPlan, places_of

MOST_ROWS = 8_000_000
"""Rows of a job that are gathered: the plan holds some 40 bytes of each."""
_AHEAD = 16
"""Blocks whose row indexes are fetched at a time: they are on a local disk, and each takes some 200 bytes a row."""


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of a shard, in order.

    Attributes:
        names: blocks of the token cache.
        files, first_bytes: of each block, its place in the input; [] where rows have no provenance.
        block: int32 [rows], index into `names`.
        batch: int32 [rows], the number of the row's domain in its block.
        row: int32 [rows], its number there.
        tokens: int64 [rows].
        cut: int32 [rows], the tokens that each lost, see `Layout.fit`; None: of none any.
    """

    names: list[str]
    files: list[int]
    first_bytes: list[int]
    block: Array
    batch: Array
    row: Array
    tokens: Array
    cut: Array | None = None


class Gathered(OnDemand[ShardPlan]):
    """The shards of a shuffle. `order` names the rows of each.

    Args:
        receipts, row indexes: all blocks.
        compose: what is made of them.
        parts: see there.
        end: where the input ends.

    Attributes:
        shards_of: see `Shards`.
        mixed: what a mix takes.
    """

    def __init__(
        self, receipts: Receipts, row_indexes: RowIndexes, compose: Compose, parts: Parts, end: Border
    ) -> None:
        self._receipts = receipts
        rows = _rows(receipts, row_indexes, compose, parts, end)
        self.mixed: tuple[MixedDomain, ...] = ()
        if parts.wanted:
            rows = _sampled(rows, parts)
            self.mixed = mixed_domains(receipts.domains, compose.splits, parts, _written(rows, parts))
        part, key = rows.pop("part"), rows.pop("key")
        rows.pop("sample", None)
        order = np.lexsort((key, part))
        part = part[order]
        number = ranges_of(key[order], part, parts.ranges).astype(np.int32)
        del key
        self._rows = {name: rows.pop(name)[order] for name in [*rows]}
        first = changes(part, number)
        borders = np.append(first, len(part))
        shards = ShuffledShards.of(receipts.domains, compose.splits, part[first], number[first], np.diff(borders))
        # Where the rows of each begin; they lie by part, then by range.
        self._first = dict(zip(zip(part[first].tolist(), number[first].tolist(), strict=True), first, strict=True))
        self._shards, self._plans = shards, shards.plans()
        self.shards_of = shards.shards_of

    def __len__(self) -> int:
        return len(self._plans)

    def _at(self, index: int) -> ShardPlan:
        return self._plans[index]

    def order(self, index: int) -> Order:
        """The rows of a shard."""
        first = int(self._first[int(self._shards.part[index]), int(self._shards.number[index])])
        rows = {name: values[first : first + self._plans[index].count] for name, values in self._rows.items()}
        blocks, block = np.unique(rows.pop("block"), return_inverse=True)
        names = self._receipts.names.take(pa.array(blocks)).to_pylist()
        files, first_bytes = [], []
        if where := places_of(self._receipts):
            files, first_bytes = (column[blocks].tolist() for column in where)
        cut = rows.pop("cut", None)
        return Order(names, files, first_bytes, block.astype(np.int32), cut=cut, **rows)


def _rows(receipts: Receipts, row_indexes: RowIndexes, compose: Compose, parts: Parts, end: Border) -> dict[str, Array]:
    """All rows in input order, as columns."""
    assert compose.shuffle is not None
    taken, place = parts.taken(), places(receipts, end)
    has_cut = bool(receipts.counts("counter", len(receipts)).get(CUT))
    found: dict[str, list[Array]] = {}
    for block in range(end.block + 1):
        view = row_indexes.view(block, range(block, min(block + _AHEAD, end.block + 1)))
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
    yield "batch", view.row_index.domain[made.row] // np.int32(compose.split_count)
    yield "row", view.row[made.row].astype(np.int32)
    yield "tokens", view.row_index.tokens[made.row].astype(np.int64)
    if has_cut:
        cut = view.row_index.counters.get(CUT)
        yield "cut", np.zeros(len(made.row), np.int32) if cut is None else cut[made.row].astype(np.int32)


def _sampled(rows: dict[str, Array], parts: Parts) -> dict[str, Array]:
    """The rows that a mix takes."""
    kept = np.ones(len(rows["part"]), bool)
    for code in parts.wanted:
        drawn = np.flatnonzero((rows["part"] == code) & (rows["sample"] > 0))
        most = cutoff(rows["sample"][drawn], rows["tokens"][drawn], parts.more(code))
        kept[drawn] = rows["sample"][drawn] <= np.uint64(most or 0)
    return {name: values[kept] for name, values in rows.items()}


def _written(rows: dict[str, Array], parts: Parts) -> dict[int, tuple[int, int, int]]:
    """Part to its (rows, tokens, rows that are drawn of one more copy)."""
    found = {}
    for code in parts.wanted:
        here = rows["part"] == code
        drawn = int(np.count_nonzero(rows["sample"][here]))
        found[code] = int(np.count_nonzero(here)), int(rows["tokens"][here].sum(dtype=np.int64)), drawn
    return found
