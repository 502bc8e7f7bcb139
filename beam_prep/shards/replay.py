"""A block in which kept rows are those of an earlier run, and only the other records are made again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from beam_prep.data.block import ALIVE, sample
from beam_prep.data.ragged import Array, Ragged
from beam_prep.shards.row_index import RowIndex
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.check import first_difference
from beam_prep.tokens.segments import RoleCounts, Roles

SHARE = 16
"""Of the bytes of a large block's kept records, one in so many is made again and compared."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a block as an earlier run kept them.

    Attributes:
        rows: the rows; its ledger has no lines, and the notes of those that are marked.
        roles: messages and tokens by role, of all lines of the block.
        digests: of the rows, see `Ledger.digests`.
    """

    rows: Batch
    roles: RoleCounts
    digests: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowsToRecheck:
    """The kept rows that a change of the config may change, by what their row index says: each of them is compared.

    Attributes:
        roles: names of roles whose rule in `mask` changed.
        others: the rule of all roles that `known` does not have changed.
        known: names of the roles that the old and the new `mask` have.
        cut: limits changed that only rows see which were cut.
        words: what the old and the new chat template ask for, if they differ: their strings, and names of keys. Rows
            are of the same kind if their lines have the same of these.
        new_words: those that one of the templates does not have. Rows with one of these may change.
    """

    roles: frozenset[str] = frozenset()
    others: bool = False
    known: frozenset[str] = frozenset()
    cut: bool = False
    words: tuple[str, ...] = ()
    new_words: frozenset[str] = frozenset()

    def rows(self, row_index: RowIndex, having: Mapping[str, Array]) -> Array:
        """bool [rows]; `having`: word -> bool [rows]."""
        found = np.zeros(len(row_index.line), bool)
        if self.cut and (counts := row_index.counters.get("truncated_rows")) is not None:
            found |= counts > 0
        names = [name in self.roles or (self.others and name not in self.known) for name in row_index.roles.names]
        changed = np.array(names, bool)[row_index.roles.role]
        found |= np.isin(row_index.line, row_index.roles.line[changed])
        for word in self.new_words:
            found |= having[word]
        return found


def rows_with(word: str, lines: Sequence[bytes]) -> Array:
    """bool [lines]: those of JSON that have a word in a string, escaped or not."""
    forms = {json.dumps(word, ensure_ascii=ascii)[1:-1].encode("utf-8", "surrogatepass") for ascii in (True, False)}
    return np.array([any(form in line for form in forms) for line in lines], bool)


def line_sizes(data: bytes) -> Array:
    """int64 [lines]: bytes of each line of a block, with its line end."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
    if len(data) and data[-1] != 10:
        ends = np.append(ends, len(data))
    return np.diff(ends, prepend=0)


def without_lines(data: bytes, lines: Array) -> bytes:
    """A block in which these lines (bool [lines]) are blank. All others stay where they are."""
    blank = bytearray(data)
    view = np.frombuffer(blank, np.uint8)
    view[np.repeat(lines, line_sizes(data)) & (view != 10)] = 32
    return bytes(blank)


def lines_to_compare(row_index: RowIndex, lines: Sequence[bytes], digest: str, recheck: RowsToRecheck) -> Array:
    """The lines of kept rows that are compared, the same on every worker: those to recheck, and a sample of the block.

    The sample: one row of each kind, the shortest and the longest, and one in `SHARE` of the bytes. Rows are of the
    same kind if they have the same domain, counters, roles and words.

    Args:
        row_index: of the block; it has rows.
        lines: the line of each row.
        digest: of the block.
        recheck: what may have changed.
    """
    sizes = np.array([len(line) for line in lines], np.int64)
    having = {word: rows_with(word, lines) for word in recheck.words}
    order = sample(digest, len(sizes), len(sizes))
    _, first = np.unique(_kinds(row_index, having)[order], return_index=True)
    some = order[np.cumsum(sizes[order]) <= sizes.sum() // SHARE]
    extremes = [int(find(values)) for values in (sizes, row_index.tokens) for find in (np.argmin, np.argmax)]
    doubtful = np.flatnonzero(recheck.rows(row_index, having))
    picked: Array = row_index.line[np.unique(np.concatenate([order[first], some, extremes, doubtful]))]
    return picked


def _kinds(row_index: RowIndex, having: Mapping[str, Array]) -> Array:
    """uint64 [rows]: a number for each kind of row."""
    kinds = _mixed(row_index.domain, 0)
    for place, values in enumerate([*row_index.counters.values(), *having.values()]):
        kinds += _mixed(values > 0, 2 + place)
    roles = row_index.roles
    messages, _, trained = roles.counts
    entries = _mixed((roles.role * 2 + (messages > 1)) * 2 + (trained > 0), 1)
    kept = np.isin(roles.line, row_index.line)
    np.add.at(kinds, np.searchsorted(row_index.line, roles.line[kept]), entries[kept])
    return kinds


def _mixed(values: Array, of: int) -> Array:
    """uint64: a hash of each number; sums of these are different for different numbers."""
    mixed = (values.astype(np.uint64) + np.uint64(1) + np.uint64(of << 40)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    found: Array = mixed ^ (mixed >> np.uint64(32))
    return found


def first_change(batch: Batch, kept: KeptRows, lines: Array) -> tuple[int, str] | None:
    """The first of these lines that a batch does not have as it was kept, and how it would change; None: all are equal.

    Args:
        batch: the block, or a part of it, as it is now made.
        kept: as it was kept.
        lines: lines of kept rows.
    """
    return min(_changes(batch, kept, lines), default=None)


def _changes(batch: Batch, kept: KeptRows, lines: Array) -> Iterator[tuple[int, str]]:
    """The first one of each kind."""
    ledger = batch.ledger
    alive = ledger.status[lines] == ALIVE
    if not alive.all():
        line = int(lines[~alive][0])
        kind, reason = ledger.outcomes[ledger.status[line] - 1]
        yield line, f"it would be {kind} ({reason})" + (f": {text}" if (text := ledger.messages.get(line)) else "")
    lines = lines[alive]
    now = batch.take(np.isin(batch.line, lines))
    before = replace(kept.rows.take(np.isin(kept.rows.line, lines)), ledger=ledger)
    if (found := first_difference(now, before)) is not None:
        yield found
    counted = batch.roles.count(batch.line, len(ledger.status))
    mine, theirs = (_by_name(counts, lines) for counts in (counted, kept.roles))
    if mine != theirs:
        line, name = min(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        found_counts, wanted = (list(each.get((line, name), (0, 0, 0))) for each in (mine, theirs))
        yield line, f"role {name!r}: found {found_counts} messages, tokens and trained tokens, wanted {wanted}"


def _by_name(roles: RoleCounts, lines: Array) -> dict[tuple[int, str], tuple[int, ...]]:
    """(line, role) -> its counts, of these lines."""
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    entries = np.isin(roles.line, lines)
    places = zip(roles.line[entries].tolist(), roles.role[entries].tolist(), roles.counts[:, entries].T, strict=True)
    for line, role, counts in places:
        key = (line, roles.names[role])
        found[key] = tuple((counts + found.get(key, 0)).tolist())
    return found


@dataclass(frozen=True, slots=True)
class CountedRoles(Roles):
    """Roles that are counted already."""

    counts: RoleCounts = field(default_factory=RoleCounts)

    def count(self, kept: Array, lines: int) -> RoleCounts:
        return self.counts


def merged(batch: Batch, kept: KeptRows) -> Batch:
    """The entire block: kept rows as they were, and the other records as they are now made.

    Args:
        batch: the block, made of all records that were not kept, and maybe some others.
        kept: as it was kept; its columns are those of the batch.
    """
    before, ledger = kept.rows, batch.ledger.copy()
    ledger.status[before.line] = ALIVE
    for line in set(before.line.tolist()) & ledger.messages.keys():
        del ledger.messages[line]
    ledger.digests = {name: found.copy() for name, found in ledger.digests.items()}
    for name, found in ledger.digests.items():
        found[before.line] = kept.digests[name]
    ledger.notes |= before.ledger.notes
    now = batch.take(~np.isin(batch.line, before.line))
    order = np.argsort(np.concatenate([before.line, now.line]), kind="stable")
    domains = [*before.domain, *now.domain]
    roles = _merged_roles(kept, batch.roles.count(batch.line, len(ledger.status)))
    return batch._with(
        ledger=ledger,
        line=np.concatenate([before.line, now.line])[order].astype(np.int32),
        domain=[domains[row] for row in order.tolist()],
        columns={name: Ragged.concat([before[name], now[name]]).take(order) for name in batch.schema},
        counters={
            name: np.concatenate([each.counters.get(name, np.zeros(len(each), np.int64)) for each in (before, now)])[
                order
            ]
            for name in sorted({*before.counters, *now.counters})
        },
        roles=CountedRoles(counts=roles),
    )


def _merged_roles(kept: KeptRows, now: RoleCounts) -> RoleCounts:
    """The counts of kept lines from the earlier run, of all others from this one."""
    names = tuple(dict.fromkeys([*kept.roles.names, *now.names]))
    code = {name: place for place, name in enumerate(names)}
    parts = []
    for counts, old in ((kept.roles, True), (now, False)):
        entries = np.isin(counts.line, kept.rows.line) == old
        role = np.array([code[name] for name in counts.names], np.int64)[counts.role[entries]]
        parts.append((counts.line[entries], role, counts.counts[:, entries]))
    line, role, numbers = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    order = np.argsort(line, kind="stable")
    return RoleCounts(names, line[order], role[order], numbers[:, order])
