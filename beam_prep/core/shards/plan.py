"""The plan: which rows of which spooled blocks make which shard, as a sequential program would decide it.

Records are taken in input order. When the tokens of all domains since the last flush reach `max_tokens`, every domain
that has rows since then gets a shard. `max_items` ends the input after that many kept records.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from beam_prep.core.data.block import Block, count_outcomes
from beam_prep.core.data.drawn import drawn
from beam_prep.core.data.lengths import Histogram, add, histogram
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.schema import Column
from beam_prep.core.reading.drops import CONTAMINATED, SHOWN, Drop, drops
from beam_prep.core.shards.borders import Border, input_end, shard_borders
from beam_prep.core.shards.receipts import ROLE_COUNTS, Receipts
from beam_prep.core.shards.sidecars import FetchSidecars, Sidecar, Sidecars
from beam_prep.core.shards.slices import (
    Rejects,
    RejectSlice,
    RejectsPlan,
    ShardPlan,
    Shards,
    Slice,
    first_lines,
    places_of,
)
from beam_prep.core.tokens.batch import CUT_TOKENS

REASONS_SHOWN = 32
"""The reasons of which a report quotes records: the most frequent. A user's function may give thousands."""
SAMPLES = 6
"""Rows that a report shows."""
REJECTS_SHOWN = 3
"""The rejects of each reason that a report quotes: the first ones."""


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """What became of every line of the input: `lines = blank + kept + dropped + rejected + not_read`."""

    lines: int = 0
    blank: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    not_read: int = 0

    @property
    def read(self) -> int:
        """Records looked at: kept, dropped or rejected."""
        return self.kept + sum(self.dropped.values()) + sum(self.rejected.values())

    @property
    def reject_rate(self) -> float:
        """Rejected records as a share of the records read."""
        return sum(self.rejected.values()) / self.read if self.read else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "blank": self.blank,
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "rejected": dict(sorted(self.rejected.items())),
            "not_read": self.not_read,
        }


class Dropped(NamedTuple):
    """A record that was dropped: its file, its offset there in bytes, its line from 1, and what was found."""

    path: str
    offset: int
    line: int
    found: Drop


def dropped_in(block: Block, text_limit: int) -> list[Dropped]:
    """The first drops of a block, of each reason; lines are counted from its first. For `text_limit` see `drops`."""
    path, first = block.origin.source.path, block.origin.first_byte
    return [Dropped(path, first + drop.offset, drop.line + 1, drop) for drop in drops(block.ledger, text_limit)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the second phase does.

    Attributes:
        shards, rejects: the work to do.
        ledger: exact counts.
        counters: other counts over kept rows.
        inputs: per file: path, size and digest.
        columns: what each row has.
        domains: domain -> folder.
        shards_of: domain -> how many shards it has.
        blocks, reused: how many blocks there are, and how many of them were in the spool already.
        made: how many records were made in which way, those of reused blocks too.
        roles: role -> counts of `ROLE_COUNTS`, over all records that were rendered.
        drops: the first records that were dropped, of each reason.
        marks: the first records that are kept and marked (`contaminated`).
        lengths: of kept rows, see `Batch.lengths`; and what they were before they were cut.
        first_rejected: the rejects of the blocks in which the first of each reason are.
        first_rejects: the first rejects of each reason, as in the files of rejects.
        drawn: (domain, where it is) of some rows, for the report.
        samples: these rows.
    """

    shards: Sequence[ShardPlan]
    rejects: Sequence[RejectsPlan]
    ledger: LedgerTotals
    counters: dict[str, int]
    inputs: list[dict[str, Any]]
    columns: tuple[Column, ...]
    domains: dict[str, str]
    shards_of: dict[str, int]
    blocks: int
    reused: int
    made: dict[str, int]
    roles: dict[str, dict[str, int]] = field(default_factory=dict)
    drops: tuple[Dropped, ...] = ()
    marks: tuple[Dropped, ...] = ()
    lengths: tuple[Histogram, Histogram] = ((), ())
    first_rejected: tuple[RejectSlice, ...] = ()
    first_rejects: tuple[dict[str, Any], ...] = ()
    drawn: tuple[tuple[str, Slice], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()


def make_plan(
    receipts: Receipts,
    fetch: FetchSidecars,
    max_tokens: int,
    max_items: int | None = None,
) -> Plan:
    """Decides everything that depends on more than one block.

    Args:
        receipts: all blocks.
        fetch: reads sidecars.
        max_tokens: a shard is flushed when the tokens since the last flush reach this.
        max_items: kept records, at most.
    """
    sidecars = Sidecars(fetch, receipts)
    end = input_end(receipts, sidecars, max_items)
    shards = Shards(receipts, shard_borders(receipts, sidecars, max_tokens, end))
    ledger, counters = _ledger(receipts, sidecars, end)
    rejects = Rejects(receipts, _rejected(receipts, sidecars, end))
    return Plan(
        shards=shards,
        rejects=rejects,
        ledger=ledger,
        counters=counters,
        inputs=receipts.inputs(),
        columns=receipts.columns,
        domains=shards.folders,
        shards_of=shards.shards_of,
        blocks=len(receipts),
        reused=receipts.reused,
        made=dict(sorted(receipts.counts("made", len(receipts)).items())),
        roles=_roles(receipts, sidecars, end),
        drops=_listed(receipts, sidecars, "dropped", ledger.dropped, end),
        marks=_listed(receipts, sidecars, "counter", {name: counters[name] for name in _MARKS & counters.keys()}, end),
        first_rejected=rejects.of(_first_blocks(receipts, "rejected", ledger.rejected, REJECTS_SHOWN)),
        lengths=_lengths(receipts, sidecars, end),
        drawn=_drawn(receipts, end),
    )


def _cut_line(sidecar: Sidecar, rows: int) -> int:
    """The line after the last kept row."""
    return int(sidecar.line[rows - 1]) + 1


def _ledger(receipts: Receipts, sidecars: Sidecars, end: Border) -> tuple[LedgerTotals, dict[str, int]]:
    complete = end.block + 1 if end.rows < 0 else end.block
    counts = {kind: Counter(receipts.counts(kind, complete)) for kind in ("blank", "dropped", "rejected", "counter")}
    kept, lines = int(receipts.rows[:complete].sum()), int(receipts.lines.sum())
    not_read = int(receipts.lines[complete:].sum())
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        cut = _cut_line(sidecar, end.rows)
        seen = count_outcomes(sidecar.status[:cut], sidecar.outcomes)
        counts["blank"][""] += seen["blank"]
        counts["dropped"].update(seen["dropped"])
        counts["rejected"].update(seen["rejected"])
        counts["counter"].update({name: int(per_row[: end.rows].sum()) for name, per_row in sidecar.counters.items()})
        kept, not_read = kept + end.rows, not_read - cut
    ledger = LedgerTotals(lines, counts["blank"][""], kept, dict(counts["dropped"]), dict(counts["rejected"]), not_read)
    return ledger, {name: count for name, count in sorted(counts["counter"].items()) if count}


def _roles(receipts: Receipts, sidecars: Sidecars, end: Border) -> dict[str, dict[str, int]]:
    complete = end.block + 1 if end.rows < 0 else end.block
    found = {what: Counter(receipts.counts(what, complete)) for what in ROLE_COUNTS}
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        for role, counts in sidecar.roles.sums(_cut_line(sidecar, end.rows)).items():
            for what, count in zip(ROLE_COUNTS, counts, strict=True):
                found[what][role] += count
    return {role: {what: found[what][role] for what in ROLE_COUNTS} for role in sorted(found["messages"])}


def _lengths(receipts: Receipts, sidecars: Sidecars, end: Border) -> tuple[Histogram, Histogram]:
    complete = end.block + 1 if end.rows < 0 else end.block
    kept, uncut = receipts.lengths(complete)
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        lengths = sidecar.length[: end.rows]
        lost = sidecar.counters.get(CUT_TOKENS, np.zeros(len(sidecar.length), np.int64))[: end.rows]
        kept, uncut = add(kept, histogram(lengths)), add(uncut, histogram(lengths + lost))
    return kept, uncut


def _drawn(receipts: Receipts, end: Border) -> tuple[tuple[str, Slice], ...]:
    """`Plan.drawn`: rows drawn from all that are kept, the same ones each time."""
    counts = receipts.entry_rows.flat.copy()
    offsets = receipts.entry_rows.offsets
    if end.rows >= 0:
        counts[offsets[end.block] : offsets[end.block + 1]] = end.cut
        counts[offsets[end.block + 1] :] = 0
    until = np.cumsum(counts)
    found = []
    for row in drawn(int(until[-1]) if len(until) else 0, SAMPLES).tolist():
        entry = int(np.searchsorted(until, row, side="right"))
        block = int(np.searchsorted(offsets, entry, side="right")) - 1
        start = row - int(until[entry] - counts[entry])
        domain = receipts.domains[receipts.entry_domain.flat[entry]]
        place = (int(column[block]) for column in places_of(receipts))
        name = receipts.names[block].as_py()
        found.append((domain, Slice(name, entry - int(offsets[block]), start, start + 1, *place)))
    return tuple(found)


_MARKS = {CONTAMINATED}


def _listed(
    receipts: Receipts, sidecars: Sidecars, kind: str, counts: Mapping[str, int], end: Border
) -> tuple[Dropped, ...]:
    """`Plan.drops`, or `Plan.marks` (`counter`): of each reason the first `SHOWN`, in input order.

    At most as many blocks are read.
    """
    blocks = _first_blocks(receipts, kind, counts, SHOWN).tolist()
    before, found = first_lines(receipts), []
    left = dict.fromkeys(reasons_shown(counts), SHOWN)
    for place, block in enumerate(blocks):
        if block > end.block:
            break
        sidecar = sidecars.get(block, blocks[place:])
        cut = _cut_line(sidecar, end.rows) if block == end.block and end.rows >= 0 else len(sidecar.status)
        for drop in sidecar.drops if kind == "dropped" else sidecar.marks:
            if drop.line < cut and left.get(drop.reason):
                left[drop.reason] -= 1
                offset = int(receipts.first_byte[block]) + drop.offset
                found.append(Dropped(receipts.path(block), offset, int(before[block]) + drop.line + 1, drop))
    return tuple(found)


def reasons_shown(counts: Mapping[str, int]) -> list[str]:
    """The reasons of which records are quoted: the most frequent, at most `REASONS_SHOWN`."""
    return sorted(counts, key=lambda reason: (-counts[reason], reason))[:REASONS_SHOWN]


def _first_blocks(receipts: Receipts, kind: str, counts: Mapping[str, int], count: int) -> Array:
    """The first blocks that have each of the most frequent reasons, int64, ascending."""
    reasons = reasons_shown(counts)
    found = [np.flatnonzero(receipts.counted(kind, [reason]))[:count] for reason in reasons]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


def _rejected(receipts: Receipts, sidecars: Sidecars, end: Border) -> Array:
    """int64 [blocks]: rejects of each that lie before the end."""
    rejected = receipts.counted("rejected")
    if end.rows >= 0:
        rejected[end.block + 1 :] = 0
        if rejected[end.block]:
            sidecar = sidecars.get(end.block)
            seen = count_outcomes(sidecar.status[: _cut_line(sidecar, end.rows)], sidecar.outcomes)
            rejected[end.block] = sum(seen["rejected"].values())
    return rejected
