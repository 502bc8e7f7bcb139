"""Sidecars: what the plan reads of single blocks, fetched ahead of its need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from beam_prep.core.data.block import OutcomeKind
from beam_prep.core.data.ragged import Array
from beam_prep.core.reading.drops import Drop
from beam_prep.core.shards.receipts import Receipts
from beam_prep.core.tokens.roles import RoleCounts

PREFETCH_ROWS = 8_000_000
"""Rows and lines of the sidecars that are held at a time: about 250 MB."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The rows and lines of one block, which the plan needs where a shard, or the input, ends in the block.

    Attributes:
        line: int32 [rows], the line of each kept row, ascending.
        domain: int32 [rows], index into the receipt's domains.
        tokens: int64 [rows], tokens of each row in a shard, see `Layout.tokens`.
        status: uint8 [lines], see `Ledger`.
        outcomes: what the codes of `status` mean.
        counters: name -> int64 [rows].
        roles: messages and tokens by role.
        drops: the first records that were dropped, of each reason.
        marks: the first records that are kept and marked.
        length: int64 [rows], see `Batch.lengths`.
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


FetchSidecars = Callable[[list[str]], list[Sidecar]]
"""Names of spooled blocks -> their sidecars, in that order."""


class Sidecars:
    """Sidecars by block, fetched ahead of the borders that will need them."""

    def __init__(self, fetch: FetchSidecars, receipts: Receipts) -> None:
        self._fetch, self._receipts, self._found = fetch, receipts, dict[int, Sidecar]()

    def __contains__(self, block: int) -> bool:
        return block in self._found

    def get(self, block: int, ahead: Sequence[int] = ()) -> Sidecar:
        """A block's sidecar. When it has to be fetched, so are those of the blocks `ahead`, as far as memory allows."""
        if block not in self._found:
            wanted = list(dict.fromkeys([block, *ahead]))
            sizes = np.cumsum(self._receipts.rows[wanted] + self._receipts.lines[wanted])
            wanted = wanted[: max(1, int(np.searchsorted(sizes, PREFETCH_ROWS)))]
            new = [each for each in wanted if each not in self._found]
            found = self._fetch(self._receipts.names.take(pa.array(new)).to_pylist())
            self._found = {each: self._found[each] for each in wanted if each in self._found}
            self._found.update(zip(new, found, strict=True))
        return self._found[block]
