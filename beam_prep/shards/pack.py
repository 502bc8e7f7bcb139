"""Packing: several short rows become one row of at most `capacity` tokens.

Best-fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", MIT 1973): rows are placed longest first,
each into the pack with the least room that still holds it. It needs at most 11/9 of the fewest possible packs, plus a
constant. For training data with long documents cut into pieces first, see Ding et al., "Fewer Truncations Improve
Language Modeling", ICML 2024. Among packs with equal room, the first that reached this room is taken, as in TRL's
`pack_dataset`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from beam_prep.data.ragged import Array, Ragged, join_pieces, offsets_of
from beam_prep.data.schema import Strategy

Positions = Literal["none", "doc_reset", "continuous"]

SEQ_LENS = "seq_lens"
POSITION_IDS = "position_ids"


class Stats:
    """The base class of dataclasses of counts. Counts of parts of a shard can be added."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        mine, theirs = astuple(self), astuple(other)  # type: ignore[call-overload]
        return type(self)(*(a + b for a, b in zip(mine, theirs, strict=True)))


@dataclass(frozen=True, slots=True)
class PackStats(Stats):
    """Statistics of packing.

    Attributes:
        rows: rows that came in.
        rows_empty: rows without a token; they are in no pack.
        rows_cut: rows that lost tokens.
        rows_split: rows in several packs.
        packs: packed rows that went out.
        packs_untrained: packs without a trained token; 0 in the statistics of a plan, which does not know masks.
        tokens: tokens in packs.
        tokens_cut: tokens in no pack.
    """

    rows: int = 0
    rows_empty: int = 0
    rows_cut: int = 0
    rows_split: int = 0
    packs: int = 0
    packs_untrained: int = 0
    tokens: int = 0
    tokens_cut: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """Which tokens of which rows go into which pack. A piece is tokens [start, stop) of a row, and never empty.

    Attributes:
        lengths: int64 [rows], tokens of each row as it came.
        cut: int64 [rows], tokens that were cut from each row before the plan, because no pack can hold them.
        piece_row, piece_start, piece_stop: int64 [pieces], in output order.
        packs: int64 [packs + 1], offsets of the packs, in pieces.
    """

    lengths: Array
    cut: Array
    piece_row: Array
    piece_start: Array
    piece_stop: Array
    packs: Array

    def __len__(self) -> int:
        """The number of packs."""
        return len(self.packs) - 1

    @property
    def piece_lengths(self) -> Array:
        """int64 [pieces], tokens; never 0."""
        return np.asarray(self.piece_stop - self.piece_start)

    @property
    def stats(self) -> PackStats:
        rows = len(self.lengths)
        kept = np.zeros(rows, np.int64)
        np.add.at(kept, self.piece_row, self.piece_lengths)
        tokens, original = int(kept.sum()), self.lengths + self.cut
        return PackStats(
            rows=rows,
            rows_empty=int(np.count_nonzero(self.lengths == 0)),
            rows_cut=int(np.count_nonzero(kept < original)),
            rows_split=int(np.count_nonzero(np.bincount(self.piece_row, minlength=rows) > 1)),
            packs=len(self),
            tokens=tokens,
            tokens_cut=int(original.sum()) - tokens,
        )


def plan_packs(lengths: Array, strategy: Strategy, capacity: int, cut: Array | None = None) -> PackPlan:
    """Plans the packs of one group of consecutive rows. Rows without tokens are in no pack.

    Packs are in the order in which they were opened, pieces in the order in which they were added.

    Args:
        lengths: integers [rows], tokens of each row.
        strategy: a key of `STRATEGIES`.
        capacity: tokens that a pack may hold.
        cut: integers [rows], tokens that were cut from each row before, because no pack can hold them; None: none.

    It takes O(n log n) time for n pieces, for any capacity; it has no loop over tokens.

    Raises:
        ValueError: the capacity is not from 1 to 2**31 - 1, or the strategy is unknown.
    """
    if not 1 <= capacity < 2**31:
        raise ValueError(f"capacity is {capacity}, wanted 1 to {2**31 - 1} tokens")
    lengths = lengths.astype(np.int64)
    cut = np.zeros_like(lengths) if cut is None else cut.astype(np.int64)
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, wanted one of {', '.join(STRATEGIES)}")
    pieces, packs = STRATEGIES[strategy].place(lengths, cut, capacity)
    return PackPlan(lengths, cut, *pieces, packs)


class _Pieces(NamedTuple):
    """Pieces of rows: tokens [start, stop) of a row. int64 [pieces] each."""

    row: Array
    start: Array
    stop: Array

    @property
    def lengths(self) -> Array:
        return np.asarray(self.stop - self.start)

    def take(self, order: Array) -> "_Pieces":
        return _Pieces(*(column[order] for column in self))


def _heads(lengths: Array, capacity: int) -> _Pieces:
    """The first `capacity` tokens of each row that has tokens."""
    row = np.flatnonzero(lengths)
    return _Pieces(row, np.zeros_like(row), np.minimum(lengths[row], capacity))


def _splits(begin: Array, lengths: Array, capacity: int) -> tuple[_Pieces, Array]:
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
    return _Pieces(row, start - begin[row], stop - begin[row]), cut


def _best_fit_decreasing(pieces: _Pieces, key: Array, capacity: int) -> tuple[_Pieces, Array]:
    """(pieces in output order, offsets of the packs).

    Args:
        pieces: none longer than `capacity`.
        key: int64 [pieces], the sort key; the greatest is placed first. A greater key never has a shorter piece.
        capacity: tokens that a pack may hold.
    """
    pieces = pieces.take(np.argsort(-key, kind="stable"))
    pack = _best_fit(pieces.lengths, capacity)
    return pieces.take(np.argsort(pack, kind="stable")), offsets_of(np.bincount(pack))


def _best_fit(sizes: Array, capacity: int) -> Array:
    """int64 [pieces]: the pack of each piece, in order of opening. `sizes` must not rise.

    Sizes never rise, so a pack that fits the next piece fits every later one until it is filled. A pack that begins to
    fit later has less room than the packs that already fit. So a stack keeps packs sorted by room, without a search.
    Pieces of one size fill packs of one room in the same way, so whole ranges of packs are filled at once: the loop is
    over sizes and rooms, not over pieces.
    """
    pack_of = np.empty(len(sizes), np.int64)
    fitting: list[tuple[int, int, int]] = []  # (room, range of packs) that can hold the next piece, least room on top
    waiting: dict[int, list[tuple[int, int]]] = {}  # room -> ranges with too little room, in order of arrival
    rooms: list[int] = []  # heap of the rooms of `waiting`, negated: most room on top
    packs = at = 0
    starts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)] if len(sizes) else [0]
    for end in starts[1:]:
        size = int(sizes[at])
        while rooms and -rooms[0] >= size:
            room = -heappop(rooms)
            fitting += [(room, first, stop) for first, stop in reversed(waiting.pop(room))]
        while at < end:
            if fitting:
                room, first, stop = fitting.pop()
            else:
                room, first = capacity, packs
                stop = packs = first + -(-(end - at) // (capacity // size))
            each = room // size
            full = min(stop - first, (end - at) // each)
            if full:
                if full == 1:  # most sizes have one piece
                    pack_of[at : at + each] = first
                else:
                    pack_of[at : at + full * each] = np.repeat(np.arange(first, first + full), each)
                at += full * each
                if left := room - each * size:
                    if left not in waiting:
                        waiting[left] = []
                        heappush(rooms, -left)
                    waiting[left].append((first, first + full))
                first += full
            if first < stop and at < end:  # the last pieces do not fill one more pack
                last, rest = first, end - at
                pack_of[at:end] = last
                at = end
                fitting += [(room, last + 1, stop), (room - rest * size, last, last + 1)]
            elif first < stop:
                fitting.append((room, first, stop))
    return pack_of


def _simple(lengths: Array, cut: Array, capacity: int) -> tuple[_Pieces, Array]:
    """Every row is its own pack, cut to its first `capacity` tokens."""
    pieces = _heads(lengths, capacity)
    return pieces, np.arange(len(pieces.row) + 1)


def _bfd(lengths: Array, cut: Array, capacity: int) -> tuple[_Pieces, Array]:
    """Rows are cut to their first `capacity` tokens. The longest row is placed first, by its length before any cut;
    equal rows in input order. Without `cut`, and with rows that were cut to `capacity` before, the order is the same as
    in TRL."""
    pieces = _heads(lengths, capacity)
    return _best_fit_decreasing(pieces, (lengths + cut)[pieces.row], capacity)


def _bfd_split(lengths: Array, cut: Array, capacity: int) -> tuple[_Pieces, Array]:
    """Cuts rows into pieces of `capacity` tokens, the last may be shorter; `bfd` packs them. No token is lost."""
    pieces, _ = _splits(np.zeros_like(lengths), lengths, capacity)
    return _best_fit_decreasing(pieces, pieces.lengths, capacity)


def _wrapped(lengths: Array, cut: Array, capacity: int) -> tuple[_Pieces, Array]:
    """Joins all rows and cuts at every multiple of `capacity`; the last pack may be shorter. No token is lost, but any
    row may be split."""
    pieces, pack = _splits(offsets_of(lengths)[:-1], lengths, capacity)
    return pieces, offsets_of(np.bincount(pack))


@dataclass(frozen=True, slots=True)
class PackingStrategy:
    """What differs between strategies. Each sees the rows of a shard in groups of `packing_group`.

    Attributes:
        place: (lengths, cut, capacity), see `plan_packs` -> the pieces in output order, and the offsets of the packs,
            in pieces.
        cuts: each row is cut to `capacity` before the plan (`Layout.fit`), so cached blocks depend on the capacity.
            Otherwise every token is kept.
    """

    place: Callable[[Array, Array, int], tuple[_Pieces, Array]]
    cuts: bool = False


STRATEGIES: dict[str, PackingStrategy] = {
    "simple": PackingStrategy(_simple, cuts=True),
    "bfd": PackingStrategy(_bfd, cuts=True),
    "bfd_split": PackingStrategy(_bfd_split),
    "wrapped": PackingStrategy(_wrapped),
}


def cuts_rows(packing: str | None) -> bool:
    """True if the strategy cuts each row to one packed row. False for `none` and unknown names."""
    return packing in STRATEGIES and STRATEGIES[packing].cuts


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
        ValueError: a column has other lengths, or is a list of lists, or has the name of a column that is added.
    """
    beside = {name: rows for name, rows in columns.items() if name in metadata}
    columns = {name: rows for name, rows in columns.items() if name not in metadata}
    for name, rows in columns.items():
        _check_column(name, rows, plan)
    lengths = plan.piece_lengths
    offsets = offsets_of(lengths)[plan.packs]
    starts = offsets_of(plan.lengths)[plan.piece_row] + plan.piece_start
    packed = {name: Ragged(join_pieces(rows.flat, starts, lengths), offsets) for name, rows in columns.items()}
    packed[SEQ_LENS] = Ragged(lengths.astype(np.int32), plan.packs)
    if position_ids != "none":
        counted = lengths if position_ids == "doc_reset" else np.diff(offsets)
        count = np.arange(counted.max(initial=0), dtype=np.int32)
        packed[POSITION_IDS] = Ragged(join_pieces(count, np.zeros_like(counted), counted), offsets)
    return packed | {name: metadata_lists(rows.take(plan.piece_row), plan.packs) for name, rows in beside.items()}


def metadata_lists(rows: Ragged, packs: Array) -> Ragged:
    """Metadata of each pack, as a list with a value for each piece: strings (uint8), or numbers."""
    return Ragged(rows if rows.flat.dtype == np.uint8 else rows.flat, packs)


def _check_column(name: str, rows: Ragged, plan: PackPlan) -> None:
    if name in (SEQ_LENS, POSITION_IDS):
        raise ValueError(f"column {name!r}: packing adds a column of that name")
    if rows.depth != 1:
        raise ValueError(f"column {name!r}: each row is a list of lists, which cannot be packed")
    if not np.array_equal(rows.lengths, plan.lengths):
        raise ValueError(f"column {name!r}: its rows have other lengths than the plan")
