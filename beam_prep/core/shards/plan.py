"""The plan: which rows of which spooled blocks make which shard, as a sequential program would decide it.

Records are taken in input order. When the tokens of all domains since the last flush reach `max_tokens`, every domain
that has rows since then gets a shard. `max_items` ends the input after that many kept records.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_prep.core.data.block import count_outcomes
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.schema import Column
from beam_prep.core.reading.lost import LOST, Lost
from beam_prep.core.shards.borders import Border, input_end, shard_borders
from beam_prep.core.shards.receipts import ROLE_COUNTS, Receipts
from beam_prep.core.shards.sidecars import FetchSidecars, Sidecar, Sidecars
from beam_prep.core.shards.slices import Rejects, RejectsPlan, ShardPlan, Shards


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
        lost: (file, its offset in bytes, record): the first records that were dropped with nothing to train on.
        first_reject: the first reject, as in the files of rejects.
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
    lost: tuple[tuple[str, int, Lost], ...] = ()
    first_reject: dict[str, Any] | None = None


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
    return Plan(
        shards=shards,
        rejects=Rejects(receipts, _rejected(receipts, sidecars, end)),
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


def first_lost(receipts: Receipts, fetch: FetchSidecars) -> tuple[tuple[str, int, Lost], ...]:
    """`Plan.lost`: the first records that were dropped with nothing to train on, of the first block that has any."""
    blocks = np.flatnonzero(receipts.counted("dropped", LOST))[:1].tolist()
    return tuple(
        (receipts.path(block), int(receipts.first_byte[block]) + record.offset, record)
        for block, sidecar in zip(blocks, fetch([receipts.names[block].as_py() for block in blocks]), strict=True)
        for record in sidecar.lost
    )


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
