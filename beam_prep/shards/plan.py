"""The plan: which rows of which cached blocks go into which shard. A sequential program would decide the same.

Records are taken in input order. When all domains together have `max_tokens` tokens since the last flush, each domain
with new rows gets a shard. `max_items` ends the input after that many kept records.
"""

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.block import drawn
from beam_prep.data.ragged import Array
from beam_prep.data.schema import Column
from beam_prep.errors import RunError
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import CONTAMINATED, REJECTS_SHOWN, SHOWN, Drop
from beam_prep.reading.sources import place_at, source_of
from beam_prep.shards.compose import NOT_SAMPLED, Compose, Splits, domain_of, split_name, view
from beam_prep.shards.layout import CUT
from beam_prep.shards.receipts import (
    Copies,
    FetchRowIndexes,
    Histogram,
    Receipts,
    RowIndex,
    RowIndexes,
)
from beam_prep.shards.runs import MergedShards, Parts, RunGroup, Runs, plan_runs
from beam_prep.shards.slices import (
    RejectsPlan,
    ShardPlan,
    Shards,
    Slice,
    domain_folders,
    first_items,
    first_lines,
    places_of,
    rejects,
    shard_borders,
)
from beam_prep.tokens.batch import ROLE_COUNTS

REASONS_SHOWN = 32
"""For how many reasons, the most frequent, a report quotes records. A user's function may give thousands."""
SAMPLES = 6
"""How many rows a report shows."""


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
        """How many records were read: kept, dropped or rejected."""
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
    """A record that a report quotes: its file, its offset in bytes, its line from 1 (0: not known), and the drop.

    `same_as` is the place of the earlier, equal record: file, offset and line. `file` is the number of the file in the
    input.
    """

    path: str
    offset: int
    line: int
    found: Drop
    same_as: tuple[str, int, int] | None = None
    file: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the job has to write, and the counts for its report. Workers write the shards of the plan.

    Attributes:
        shards, rejects: the files to write.
        ledger: counts of the lines of the input.
        counters: other counts, over kept rows.
        inputs: path, size and digest of each input file.
        columns: the columns of each row.
        domains: domain -> folder.
        shards_of: part -> how many shards it has; a part is a domain, or its rows in a split (`part_of`).
        blocks, reused: how many blocks there are, and how many were already in the token cache.
        made: way (which encoder, which renderer ...) -> records made in this way, in reused blocks, too.
        roles: role -> counts of `ROLE_COUNTS`, over all records that were rendered.
        shown: the first records that were dropped, rejected, or kept and marked (`contaminated`), of each reason.
        lengths: histograms of the lengths of kept rows (see `Batch.lengths`), after and before they were cut.
        drawn: (domain, slice) of a few rows for the report.
        samples: these rows.
        splits: names of the splits; () without splits.
        mix: the entry of a mix in the manifest, see `with_merged`.
        repeated: rows that a mix writes beyond one for each record.
        of_files: int64 [files, 2], records read and records kept of each file; no rows if not known.
        runs, groups: of a shuffle, the runs to sort before its shards are known; None: the shards are known.
        problem: why the mix cannot be made; the run fails, and says so if no other problem explains it.
    """

    shards: Iterable[ShardPlan]
    rejects: Iterable[RejectsPlan]
    ledger: LedgerTotals
    counters: dict[str, int]
    inputs: list[dict[str, Any]]
    columns: tuple[Column, ...] = ()
    domains: dict[str, str] = field(default_factory=dict)
    shards_of: dict[str, int] = field(default_factory=dict)
    blocks: int = 0
    reused: int = 0
    made: dict[str, int] = field(default_factory=dict)
    roles: dict[str, dict[str, int]] = field(default_factory=dict)
    shown: tuple[Dropped, ...] = ()
    lengths: tuple[Histogram, Histogram] = ((), ())
    drawn: tuple[tuple[str, Slice], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()
    splits: tuple[str, ...] = ()
    mix: dict[str, Any] = field(default_factory=dict)
    repeated: int = 0
    of_files: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    runs: Runs | None = None
    groups: Iterable[RunGroup] = ()
    problem: str | None = None

    @property
    def cut(self) -> bool:
        """True if rows lost tokens to `Layout.fit`."""
        return CUT in self.counters

    def shown_as(self, kind: str) -> list[Dropped]:
        """Of `shown`, those of a kind: `dropped`, `rejected` or `marked`."""
        return [each for each in self.shown if each.found.kind == kind]


def make_plan(
    receipts: Receipts,
    fetch: FetchRowIndexes,
    max_tokens: int,
    max_items: int | None,
    compose: Compose,
    copies: Callable[[str], Copies],
) -> Plan:
    """Decides everything that depends on more than one block.

    Args:
        receipts: the block statistics of all blocks.
        fetch: reads row indexes.
        max_tokens: shards are flushed when the tokens since the last flush reach this.
        max_items: most kept records, before a mix.
        compose: how the rows become an output.
        copies: reads a file of copies, see `STATISTICS`.
    """

    def see(row_index: RowIndex, name: str) -> RowIndex:
        return view(row_index, copies(name), compose.splits) if compose.composes else row_index

    row_indexes = RowIndexes(fetch, receipts, see)
    seen = first_items(receipts, row_indexes, max_items)
    blank, dropped, rejected = (seen.counts(kind) for kind in ("blank", "dropped", "rejected"))
    lines, read = int(receipts.lines.sum()), int(seen.lines.sum())
    ledger = LedgerTotals(lines, blank.get("", 0), int(seen.rows.sum()), dropped, rejected, lines - read)
    splits, runs, problem = compose.splits, None, None
    groups: Iterable[RunGroup] = ()
    shards: list[Shards] = []
    if compose.shuffle is None:
        shards = _in_input_order(seen, row_indexes, max_tokens, splits)
    else:
        try:
            parts = Parts.of(seen, compose, max_tokens)
            runs, groups = plan_runs(seen, compose, parts, _facts(receipts, compose, max_items))
        except RunError as error:
            problem = str(error)
    shards_of = Counter(part for each in shards for part in each.parts)
    return Plan(
        shards=itertools.chain.from_iterable(shards),
        rejects=rejects(seen),
        ledger=ledger,
        counters=dict(sorted(seen.counts("counter").items())),
        inputs=receipts.inputs(),
        columns=receipts.columns,
        domains=domain_folders(shards_of, splits),
        shards_of=shards_of,
        blocks=len(receipts),
        reused=receipts.reused,
        made=dict(sorted(receipts.counts("made").items())),
        roles=_roles(seen),
        shown=_shown(seen, row_indexes, ledger),
        lengths=seen.lengths,
        drawn=_drawn(seen, splits),
        splits=() if splits is None else splits.names,
        of_files=_of_files(seen, len(receipts.file) and int(receipts.file[-1]) + 1),
        runs=runs,
        groups=groups,
        problem=problem,
    )


def _in_input_order(
    receipts: Receipts, row_indexes: RowIndexes, max_tokens: int, splits: Splits | None
) -> list[Shards]:
    """The shards of rows in input order, by split. The shard borders of a split depend only on its own rows."""
    names: Sequence[str | None] = [None] if splits is None else splits.names
    found = []
    for split, name in enumerate(names):
        mine = receipts.of_parts(np.array([split_name(part, splits) == name for part in receipts.domains], bool))
        borders = shard_borders(mine, row_indexes, max_tokens, split, len(names))
        found.append(Shards(mine, borders, splits, split))
    return found


def _facts(receipts: Receipts, compose: Compose, max_items: int | None) -> str:
    """A digest of everything that decides which rows a job has and how they are composed."""
    what = (compose.shuffle, compose.splits, compose.mix, compose.deduplicate, max_items)
    digest = hashlib.sha256(repr(what).encode())
    for block, (file, name) in enumerate(zip(receipts.file, receipts.names, strict=True)):
        digest.update(f"{file} {name} {receipts.copies[block]}\n".encode())
    return digest.hexdigest()


def with_merged(plan: Plan, merged: MergedShards) -> Plan:
    """The plan of a shuffle with its shards and the result of its mix.

    Records that the mix leaves out count as dropped (`not_sampled`).
    """
    parts, splits = merged.parts, merged.runs.compose.splits
    mix, left_out = merged.mixed()
    dropped = {**plan.ledger.dropped, **({NOT_SAMPLED: left_out} if left_out else {})}
    return dataclasses.replace(
        plan,
        ledger=dataclasses.replace(plan.ledger, kept=plan.ledger.kept - left_out, dropped=dropped),
        mix=dict(sorted(mix.items())),
        repeated=sum(each["rows"] - each["records"] for each in mix.values()),
        shards_of=Counter(parts),
        domains=domain_folders(parts, splits),
        runs=None,
    )


def _of_files(receipts: Receipts, files: int) -> Array:
    """`Plan.of_files`."""
    found = np.zeros((files, 2), np.int64)
    records = receipts.lines - receipts.counted("blank")
    np.add.at(found, receipts.file, np.stack([records, receipts.rows], axis=1))
    return found


def _roles(receipts: Receipts) -> dict[str, dict[str, int]]:
    found = {what: receipts.counts(what) for what in ROLE_COUNTS}
    return {role: {what: found[what].get(role, 0) for what in ROLE_COUNTS} for role in sorted(found["messages"])}


def _drawn(receipts: Receipts, splits: Splits | None) -> tuple[tuple[str, Slice], ...]:
    """`Plan.drawn`: rows drawn from all kept rows; each run draws the same rows."""
    counts, offsets = receipts.entry_rows.flat, receipts.entry_rows.offsets
    until, places = np.cumsum(counts), places_of(receipts)
    found = []
    for row in drawn(int(until[-1]) if len(until) else 0, SAMPLES).tolist():
        entry = int(np.searchsorted(until, row, side="right"))
        block = int(np.searchsorted(offsets, entry, side="right")) - 1
        start = row - int(until[entry] - counts[entry])
        domain = receipts.domains[receipts.entry_domain.flat[entry]]
        file, first_byte = (int(column[block]) for column in places)
        name, place = receipts.names[block].as_py(), entry - int(offsets[block])
        piece = Slice(name, place, start, start + 1, file, first_byte, receipts.copies[block])
        found.append((domain_of(domain, splits), piece))
    return tuple(found)


def _shown(receipts: Receipts, row_indexes: RowIndexes, ledger: LedgerTotals) -> tuple[Dropped, ...]:
    """`Plan.shown`, in input order. It reads at most `SHOWN` blocks a reason."""
    counts = {"dropped": ledger.dropped, "rejected": ledger.rejected, "marked": {CONTAMINATED: 0}}
    left, first = {}, [np.zeros(0, np.int64)]
    for kind, of_kind in counts.items():
        for reason in sorted(of_kind, key=lambda reason: (-of_kind[reason], reason))[:REASONS_SHOWN]:
            left[kind, reason] = most = REJECTS_SHOWN if kind == "rejected" else SHOWN
            counted = receipts.counted("counter" if kind == "marked" else kind, [reason])
            first.append(np.flatnonzero(counted)[:most])
    blocks = np.unique(np.concatenate(first)).tolist()
    before, found = first_lines(receipts), []
    for place, block in enumerate(blocks):
        for drop in row_indexes.view(block, blocks[place:]).shown:
            which = drop.kind, drop.reason
            if drop.line < receipts.lines[block] and left.get(which):
                left[which] -= 1
                offset, kept = int(receipts.first_byte[block]) + drop.offset, None
                if which == ("dropped", DUPLICATE):
                    kept = _same_as(drop, row_indexes.view(block).copies, receipts, before)
                if kept is not None:
                    drop = dataclasses.replace(drop, note=_equal_to(*kept))
                line, file = int(before[block]) + drop.line + 1, int(receipts.file[block])
                found.append(Dropped(receipts.paths[block], offset, line, drop, kept, file))
    return tuple(found)


def _same_as(drop: Drop, copies: Copies, receipts: Receipts, before: Array) -> tuple[str, int, int] | None:
    """The place of the record that a copy is equal to; None if a step, not deduplication, dropped the record."""
    place = int(np.searchsorted(copies.line, drop.line))
    if place == len(copies) or copies.line[place] != drop.line:
        return None
    is_its = (receipts.file == copies.file[place]) & (receipts.start == copies.start[place])
    block = int(np.flatnonzero(is_its)[0])
    line = int(before[block] + copies.kept_line[place]) + 1
    offset = int(receipts.first_byte[block] + copies.offset[place])
    return receipts.paths[block], offset, line


def _equal_to(path: str, offset: int, line: int) -> str:
    kind = source_of(path)
    return f"equal to {kind.place(line)} of {path if kind.by_row else place_at(path, offset)}"
