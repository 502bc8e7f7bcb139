"""Packing: several short rows become one row of at most `capacity` tokens.

Best-fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", MIT 1973): rows are placed longest first,
each into the pack with the least room that still holds it. It needs at most 11/9 of the fewest possible packs, plus a
constant. For training data with long documents cut into pieces first, see Ding et al., "Fewer Truncations Improve
Language Modeling", ICML 2024. Among packs with equal room, the first that reached this room is taken, as in TRL's
`pack_dataset`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, Ragged, join_pieces, offsets_of

Strategy = Literal["simple", "bfd", "bfd_split", "wrapped"]
"""Packing strategies: the keys of `STRATEGIES`."""

Packing = Literal["none", Strategy]
"""The packing of a config; `none`: one document in each row."""

Positions = Literal["none", "doc_reset", "continuous"]

SEQ_LENS = "seq_lens"
POSITION_IDS = "position_ids"


class Pieces(NamedTuple):
    """Pieces of rows: tokens [start, stop) of a row. A piece is never empty. int64 [pieces] each."""

    row: Array
    start: Array
    stop: Array

    @property
    def lengths(self) -> Array:
        """int64 [pieces]: tokens."""
        return np.asarray(self.stop - self.start)

    def take(self, order: Array) -> "Pieces":
        """The pieces at these places, in that order."""
        return Pieces(*(column[order] for column in self))

    def of(self, columns: Mapping[str, Ragged], beside: Collection[str]) -> dict[str, Ragged]:
        """The pieces as rows, one for each.

        Args:
            columns: name -> rows.
            beside: the columns with values of an entire row, which each of its pieces repeats.
        """
        found = {}
        for name, rows in columns.items():
            if name in beside:
                found[name] = rows.take(self.row)
            else:
                values = join_pieces(rows.flat, rows.offsets[:-1][self.row] + self.start, self.lengths)
                found[name] = Ragged.from_lengths(values, self.lengths)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """Which tokens of which rows go into which pack.

    Attributes:
        lengths: int64 [rows], tokens of each row as it came.
        cut: int64 [rows], tokens that were cut from each row before the plan, because no pack can hold them.
        pieces: the pieces in output order.
        packs: int64 [packs + 1], offsets of the packs, in pieces.
    """

    lengths: Array
    cut: Array
    pieces: Pieces
    packs: Array

    def __len__(self) -> int:
        """The number of packs."""
        return len(self.packs) - 1

    @property
    def stats(self) -> dict[str, int]:
        """Counts, which can be added.

        `rows` that came in; `rows_empty`: without a token, they are in no pack; `rows_cut`: that lost tokens;
        `rows_split`: in several packs; `packs`: packed rows that go out; `packs_untrained`: without a trained token, 0
        here, as a plan does not know masks; `tokens` in packs; `tokens_cut`: in no pack.
        """
        rows = len(self.lengths)
        kept = np.zeros(rows, np.int64)
        np.add.at(kept, self.pieces.row, self.pieces.lengths)
        tokens, original = int(kept.sum()), self.lengths + self.cut
        return {
            "rows": rows,
            "rows_empty": int(np.count_nonzero(self.lengths == 0)),
            "rows_cut": int(np.count_nonzero(kept < original)),
            "rows_split": int(np.count_nonzero(np.bincount(self.pieces.row, minlength=rows) > 1)),
            "packs": len(self),
            "packs_untrained": 0,
            "tokens": tokens,
            "tokens_cut": int(original.sum()) - tokens,
        }


def plan_packs(lengths: Array, strategy: Strategy, capacity: int, cut: Array | None = None) -> PackPlan:
    """Plans the packs of one group of consecutive rows. Rows without tokens are in no pack.

    Packs are in the order in which they were opened, pieces in the order in which they were added.

    Args:
        lengths: integers [rows], tokens of each row.
        strategy: a key of `STRATEGIES`.
        capacity: tokens that a pack may hold, at least 1.
        cut: integers [rows], tokens that were cut from each row before, because no pack can hold them; None: none.

    It takes O(n log n) time for n pieces, for any capacity; it has no loop over tokens.
    """
    lengths = lengths.astype(np.int64)
    cut = np.zeros_like(lengths) if cut is None else cut.astype(np.int64)
    pieces, pack = STRATEGIES[strategy](lengths, cut, capacity)
    return PackPlan(lengths, cut, pieces.take(np.argsort(pack, kind="stable")), offsets_of(np.bincount(pack)))


def _heads(lengths: Array, capacity: int) -> Pieces:
    """The first `capacity` tokens of each row that has tokens."""
    row = np.flatnonzero(lengths)
    return Pieces(row, np.zeros_like(row), np.minimum(lengths[row], capacity))


def _splits(begin: Array, lengths: Array, capacity: int) -> tuple[Pieces, Array]:
    """(pieces, int64 [pieces] the number of the window that holds each).

    Windows have `capacity` tokens each, one after the other.

    Args:
        begin: int64 [rows], the position of each row's first token, counted from the first window.
        lengths: int64 [rows].
        capacity: tokens.
    """
    end = begin + lengths
    cut = begin // capacity
    first = offsets_of(np.where(lengths > 0, -(-end // capacity) - cut, 0))
    row = np.repeat(np.arange(len(lengths)), np.diff(first))
    cut = np.arange(first[-1]) - first[row] + cut[row]
    start = np.maximum(cut * capacity, begin[row])
    stop = np.minimum((cut + 1) * capacity, end[row])
    return Pieces(row, start - begin[row], stop - begin[row]), cut


def _best_fit_decreasing(pieces: Pieces, key: Array, capacity: int) -> tuple[Pieces, Array]:
    """The pieces in the order in which they are placed, and the pack of each, in order of opening.

    Sizes never rise, so a pack that fits the next piece fits every later one until it is filled. A pack that begins to
    fit later has less room than the packs that already fit. So a stack keeps packs sorted by room, without a search.

    Args:
        pieces: none longer than `capacity`.
        key: int64 [pieces], the sort key; the greatest is placed first. A greater key never has a shorter piece.
        capacity: tokens that a pack may hold.
    """
    pieces = pieces.take(np.argsort(-key, kind="stable"))
    pack_of = np.empty(len(key), np.int64)
    fitting: list[tuple[int, int]] = []  # (room, pack) that can hold the next piece, least room on top
    waiting: dict[int, list[int]] = {}  # room -> packs with too little room, in order of arrival
    rooms: list[int] = []  # heap of the rooms of `waiting`, negated: most room on top
    packs = 0
    for place, size in enumerate(pieces.lengths.tolist()):
        while rooms and -rooms[0] >= size:
            room = -heappop(rooms)
            fitting += [(room, pack) for pack in reversed(waiting.pop(room))]
        if fitting:
            room, pack = fitting.pop()
        else:
            room, pack = capacity, packs
            packs += 1
        pack_of[place] = pack
        left = room - size
        if left >= size:
            fitting.append((left, pack))
        elif left in waiting:
            waiting[left].append(pack)
        elif left:
            waiting[left] = [pack]
            heappush(rooms, -left)
    return pieces, pack_of


def _simple(lengths: Array, cut: Array, capacity: int) -> tuple[Pieces, Array]:
    """Every row is its own pack, cut to its first `capacity` tokens."""
    pieces = _heads(lengths, capacity)
    return pieces, np.arange(len(pieces.row))


def _bfd(lengths: Array, cut: Array, capacity: int) -> tuple[Pieces, Array]:
    """Rows are cut to their first `capacity` tokens. The longest row is placed first, by its length before any cut;
    equal rows in input order. Without `cut`, and with rows that were cut to `capacity` before, the order is the same as
    in TRL."""
    pieces = _heads(lengths, capacity)
    return _best_fit_decreasing(pieces, (lengths + cut)[pieces.row], capacity)


def _bfd_split(lengths: Array, cut: Array, capacity: int) -> tuple[Pieces, Array]:
    """Cuts rows into pieces of `capacity` tokens, the last may be shorter; `bfd` packs them. No token is lost."""
    pieces, _ = _splits(np.zeros_like(lengths), lengths, capacity)
    return _best_fit_decreasing(pieces, pieces.lengths, capacity)


def _wrapped(lengths: Array, cut: Array, capacity: int) -> tuple[Pieces, Array]:
    """Joins all rows and cuts at every multiple of `capacity`; the last pack may be shorter. No token is lost, but any
    row may be split."""
    return _splits(offsets_of(lengths)[:-1], lengths, capacity)


STRATEGIES: dict[str, Callable[[Array, Array, int], tuple[Pieces, Array]]] = {
    "simple": _simple,
    "bfd": _bfd,
    "bfd_split": _bfd_split,
    "wrapped": _wrapped,
}
"""Strategy -> a function of (lengths, cut, capacity), see `plan_packs`: the pieces in the order in which they are
added, and int64 [pieces], the pack of each. It sees the rows of a shard in groups of `packing_group`."""

CUTTING = ("simple", "bfd")
"""The strategies for which each row is cut to `capacity` before the plan (`Layout.fit`), so cached blocks depend on the
capacity. The others keep every token."""


def cuts_rows(packing: str | None) -> bool:
    """True if the strategy cuts each row to one packed row. False for `none` and unknown names."""
    return packing in CUTTING


def longest_row(preprocessing: Mapping[str, Any]) -> int | None:
    """Tokens to which rows are cut before they are cached; None: no row is cut.

    Args:
        preprocessing: this section of a config.
    """
    if preprocessing["truncation_mode"] == "chunk":
        return None
    longest: int = preprocessing["max_seq_len"]
    packed = preprocessing["max_packed_len"] if cuts_rows(preprocessing["packing_strategy"]) else None
    return min(longest, packed or longest)


def pack_columns(
    columns: Mapping[str, Ragged], plan: PackPlan, position_ids: Positions = "none", metadata: Collection[str] = ()
) -> dict[str, Ragged]:
    """The packed rows of every column, with the lengths of the documents in them.

    Adds `seq_lens` (int32: the lengths of the pieces of each pack, never 0) and, unless `none`, `position_ids` (int32):
    `doc_reset` begins at 0 at every entry of `seq_lens`, `continuous` at every pack. All columns are cut and moved
    in the same way, so a mask or labels stay with their ids; nothing is shifted.

    Args:
        columns: name -> one list of values a row, each as long as `plan.lengths` says; any dtype, which is kept.
        plan: of these rows.
        position_ids: see above.
        metadata: metadata columns. A pack has a list of their values, one for each piece.

    Raises:
        ValueError: see `check_aligned`.
    """
    check_aligned({name: rows for name, rows in columns.items() if name not in metadata}, plan.lengths)
    lengths, packed = plan.pieces.lengths, {}
    for name, rows in plan.pieces.of(columns, metadata).items():
        if name in metadata:
            packed[name] = Ragged(rows if rows.flat.dtype == np.uint8 else rows.flat, plan.packs)  # a string is bytes
        else:
            packed[name] = Ragged(rows.flat, rows.offsets[plan.packs])
    packed[SEQ_LENS] = Ragged(lengths.astype(np.int32), plan.packs)
    if position_ids != "none":
        offsets = offsets_of(lengths)[plan.packs]
        packed[POSITION_IDS] = Ragged(positions(lengths if position_ids == "doc_reset" else np.diff(offsets)), offsets)
    return packed


def positions(lengths: Array) -> Array:
    """int32 [tokens]: 0, 1, 2 ... for each length."""
    found: Array = np.arange(lengths.sum()) - np.repeat(offsets_of(lengths)[:-1], lengths)
    return found.astype(np.int32)


def check_aligned(columns: Mapping[str, Ragged], lengths: Array) -> None:
    """Checks that columns have one value for each token; `lengths`: tokens of each row.

    Raises:
        ValueError: a column has other lengths, or is a list of lists.
    """
    for name, rows in columns.items():
        if rows.depth != 1 or not np.array_equal(rows.lengths, lengths):
            raise ValueError(f"column {name!r} does not have one value a token: rows of it are not packed or cut apart")
