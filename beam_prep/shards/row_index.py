"""Row indexes: the lengths, domains and outcomes of a block's rows, which the plan reads for a few blocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.block import OutcomeKind, count_outcomes
from beam_prep.data.ragged import Aligned, Array
from beam_prep.data.receipts import ROLE_COUNTS, counts_list, histogram
from beam_prep.reading.records import Drop
from beam_prep.shards.receipts import Receipts
from beam_prep.tokens.batch import CUT_TOKENS, RoleCounts


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The rows and lines of one block. The plan needs them if a shard, or the input, ends within the block.

    Attributes:
        line: int32 [rows], the line of each kept row, ascending.
        domain: int32 [rows], index into the receipt's domains.
        tokens: int64 [rows], tokens of each row in a shard, see `Layout.tokens`.
        status: uint8 [lines], see `Ledger`; int16 in a view.
        outcomes: the meaning of the codes of `status`.
        counters: name -> int64 [rows].
        roles: messages and tokens by role.
        drops: the first dropped records of each reason.
        marks: the first records that are kept and marked.
        length: int64 [rows], see `Batch.lengths`.
        digests: name -> digest of each row, see `Ledger.digests`.
        offset: int64 [rows], where the line of each row begins, in bytes from the block's first line; only with
            digests of duplicates.
    """

    line: Array
    domain: Array
    tokens: Array
    status: Array
    outcomes: list[tuple[OutcomeKind, str]]
    counters: dict[str, Array]
    roles: RoleCounts = field(default_factory=RoleCounts)
    drops: tuple[Drop, ...] = ()
    marks: tuple[Drop, ...] = ()
    length: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    digests: dict[str, Array] = field(default_factory=dict)
    offset: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def take(self, rows: slice | Array, **values: Any) -> "RowIndex":
        """The row index of some rows; `values`: other values of fields that are not by row."""
        by_row = {name: getattr(self, name)[rows] for name in ("line", "domain", "tokens", "length", "offset")}
        counters = {name: counts[rows] for name, counts in self.counters.items()}
        digests = {name: found[rows] for name, found in self.digests.items()}
        return replace(self, **{**by_row, "counters": counters, "digests": digests, **values})

    def head(self, rows: int) -> "RowIndex":
        """The row index up to the `rows`-th row. The line of that row is the last line that is read."""
        return self.take(slice(rows), status=self.status[: int(self.line[rows - 1]) + 1])

    def statistics(self, domains: Sequence[str], made: Mapping[str, int]) -> dict[str, Any]:
        """The values of `STATISTICS` for these rows and lines, without `columns`.

        Args:
            domains: the name of each code of `domain`.
            made: see `BlockReceipt.counts`.
        """
        outcomes, roles = count_outcomes(self.status, self.outcomes), self.roles.sums(len(self.status))
        counts = {
            **outcomes,
            "blank": {"": outcomes["blank"]},
            "counter": {name: int(per_row.sum()) for name, per_row in sorted(self.counters.items())},
            "made": made,
            **{kind: {role: each[place] for role, each in roles.items()} for place, kind in enumerate(ROLE_COUNTS)},
        }
        rows = np.bincount(self.domain, minlength=len(domains))
        tokens = np.bincount(self.domain, self.tokens, len(domains)).astype(np.int64)
        of_domains = zip(domains, rows.tolist(), tokens.tolist(), strict=True)
        return {
            "lines": len(self.status),
            "domains": [dict(zip(("domain", "rows", "tokens"), each, strict=True)) for each in of_domains],
            "counts": counts_list(counts),
            "kept": histogram(self.length),
            "uncut": histogram(self.length + self.counters.get(CUT_TOKENS, 0)),
        }


FetchRowIndexes = Callable[[list[str]], list[RowIndex]]
"""Names of cached blocks -> their row indexes, in the same order."""


@dataclass(frozen=True, slots=True)
class Copies(Aligned):
    """The rows of a block that are copies of an earlier record, which is kept.

    Attributes:
        line: int32 [copies], the line of the copy in its block, ascending.
        file, start, kept_line, offset: int64 [copies], the place of the record that is kept: its file, the start of its
            block, and its line and first byte, counted from the first line of that block.
    """

    line: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    file: Array = field(default_factory=_none)
    start: Array = field(default_factory=_none)
    kept_line: Array = field(default_factory=_none)
    offset: Array = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class View:
    """A block's row index as the plan sees it.

    Attributes:
        row_index: the rows without copies; `domain` is the number of the part: domain * splits + split.
        row: int64 [rows], the row's number in its domain in the token cache.
        copies: the rows that are left out.
    """

    row_index: RowIndex
    row: Array = field(default_factory=_none)
    copies: Copies = field(default_factory=Copies)


class RowIndexes:
    """Row indexes by block. It fetches several blocks at a time, ahead of need.

    Args:
        fetch: reads row indexes.
        receipts: the statistics of all blocks.
        see: (row index, file of copies) -> the view of a block.

    Attributes:
        borders_ahead: for how many borders of shards blocks are fetched at a time.
        most_rows: most rows and lines of the row indexes in memory at a time; 8 million take about 250 MB.
    """

    borders_ahead = 512
    most_rows = 8_000_000

    def __init__(
        self,
        fetch: FetchRowIndexes,
        receipts: Receipts,
        see: Callable[[RowIndex, str], View] = lambda found, _: View(found),
    ) -> None:
        self._fetch, self._receipts, self._see, self._found = fetch, receipts, see, dict[int, View]()

    def __contains__(self, block: int) -> bool:
        return block in self._found

    def get(self, block: int, ahead: Sequence[int] = ()) -> RowIndex:
        """A block's row index. A fetch also brings the blocks `ahead`, up to `most_rows`."""
        return self.view(block, ahead).row_index

    def view(self, block: int, ahead: Sequence[int] = ()) -> View:
        """The view of a block; for `ahead` see `get`."""
        if block not in self._found:
            wanted = list(dict.fromkeys([block, *ahead]))
            sizes = np.cumsum(self._receipts.rows[wanted] + self._receipts.lines[wanted])
            wanted = wanted[: max(1, int(np.searchsorted(sizes, self.most_rows)))]
            new = [each for each in wanted if each not in self._found]
            found = self._fetch(self._receipts.names.take(pa.array(new)).to_pylist())
            self._found = {each: self._found[each] for each in wanted if each in self._found}
            for each, row_index in zip(new, found, strict=True):
                self._found[each] = self._see(row_index, self._receipts.copies(each))
        return self._found[block]
