"""Borders of shards: after which record of which block a shard is flushed, and where the input ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.shards.receipts import Receipts
from beam_prep.core.shards.sidecars import Sidecar, Sidecars

_PREFETCH = 512
"""Borders whose blocks are fetched at a time."""
MIN_BORDERS_TO_EXTRAPOLATE = 32
"""Borders that must be known before the next ones are extrapolated from them."""


@dataclass(frozen=True, slots=True)
class Border:
    """A place between two records: after the first `rows` kept rows of block `block`; -1: after all of them.

    `cut` is the number of these rows in each domain of the block.
    """

    block: int
    rows: int
    cut: tuple[int, ...]


def _border(sidecar: Sidecar, block: int, rows: int, domains: int) -> Border:
    cut = np.bincount(sidecar.domain[:rows], minlength=domains)
    return Border(block, rows, tuple(cut.tolist()))


def input_end(receipts: Receipts, sidecars: Sidecars, max_items: int | None) -> Border:
    """The end of what is kept: where `max_items` is reached, else the end of the input."""
    kept = np.cumsum(receipts.rows)
    if max_items is None or not len(kept) or kept[-1] < max_items:
        block = len(receipts) - 1
        return Border(block, -1, ())
    block = int(np.searchsorted(kept, max_items))
    rows = max_items - int(kept[block] - receipts.rows[block])
    return _border(sidecars.get(block), block, rows, len(receipts.entry_domain[block]))


def shard_borders(receipts: Receipts, sidecars: Sidecars, max_tokens: int, end: Border) -> list[Border]:
    """Every flush, the last one included."""
    ends = np.cumsum(receipts.tokens[: end.block + 1])
    borders: list[Border] = []
    over: list[int] = []
    flushed = 0
    while True:
        goal = flushed + max_tokens
        block = int(np.searchsorted(ends, goal))
        if block > end.block:
            break
        ahead = () if block in sidecars else _later(receipts, ends, goal, max_tokens, over)
        sidecar = sidecars.get(block, ahead)
        until = ends[block] - receipts.tokens[block] + np.cumsum(sidecar.tokens)
        rows = int(np.searchsorted(until, goal)) + 1
        if block == end.block and 0 <= end.rows < rows:
            break
        borders.append(_border(sidecar, block, rows, len(receipts.entry_domain[block])))
        flushed = int(until[rows - 1])
        over.append(flushed - goal)
    return [*borders, end]


def _later(receipts: Receipts, ends: Array, goal: int, max_tokens: int, over: Sequence[int]) -> list[int]:
    """Blocks that probably hold the next borders.

    The place of a border depends on all before it: each flush takes a few tokens more than it must, up to the end of a
    record. After k of them that is k times the mean, give or take.
    """
    if len(over) < MIN_BORDERS_TO_EXTRAPOLATE:
        mean = spread = float(ends[-1]) / max(1, int(receipts.rows[: len(ends)].sum()))
    else:
        mean, spread = float(np.mean(over)), float(np.std(over))
    later = np.arange(_PREFETCH)
    places = goal + later * (max_tokens + mean)
    margin = 2 * spread * np.sqrt(later)
    blocks = np.searchsorted(ends, np.stack([places - margin, places, places + margin]))
    found: list[int] = np.unique(blocks[blocks < len(ends)]).tolist()
    return found
