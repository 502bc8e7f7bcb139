"""The blocks of an earlier run of which a replay takes the kept rows."""

import logging
from dataclasses import dataclass, replace

import numpy as np

from beam_prep.core.data.block import COMPARED, NOT_COMPARED, REPLAYED, ROWS_COMPARED, BlockReceipt, Ledger, Origin
from beam_prep.core.data.places import is_table
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.reading.blocks import RawBlock
from beam_prep.core.shards.replay import (
    CountedRoles,
    Doubt,
    KeptRows,
    first_change,
    line_sizes,
    lines_to_compare,
    merged,
    without_lines,
)
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.check import IN_FULL
from beam_prep.errors import ConfigError, SpoolError
from beam_prep.storage.spool import Spool

log = logging.getLogger("beam_prep")

SMALL = 1024 * 1024
"""The kept records of a block, in bytes, up to which all of them are made again and compared."""


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """The blocks that an output was made of.

    A replay makes every record again that they do not hold, and so many kept records as are compared: all of a small
    block; of a large one those in doubt, and a sample. What a kept record gives must be what was kept.

    Attributes:
        spool: where they are; its recipe is that of the earlier run.
        instead: the command that makes everything again, for the error.
        doubt: the kept records that may have changed, and are made again and compared; None: all may.
        small: see `SMALL`.
    """

    spool: Spool
    instead: str
    doubt: Doubt | None = None
    small: int = SMALL

    def part(self, raw: RawBlock, origin: Origin) -> RawBlock | None:
        """The block with the lines blank that need not be made again; None: all lines are made.

        `complete` then adds the rows of these lines.
        """
        if self.doubt is None:
            return None
        receipt = self._find(origin)
        if receipt is None or not receipt.kept or not self.spool.trust.holds(receipt.made):
            return None
        (sidecar,) = self.spool.sidecars([self.spool.name(self.spool.digest(origin))])
        sizes = line_sizes(raw.data)
        if len(sizes) != len(sidecar.status) or sizes[sidecar.line].sum() <= self.small:
            return None
        ends = np.cumsum(sizes)[sidecar.line]
        places = zip((ends - sizes[sidecar.line]).tolist(), ends.tolist(), strict=True)
        lines = [raw.data[start:end] for start, end in places]
        blank = np.zeros(len(sizes), bool)
        blank[sidecar.line] = True
        blank[lines_to_compare(sidecar, lines, origin.digest, self.doubt)] = False
        return replace(raw, data=without_lines(raw.data, blank))

    def complete(self, batch: Batch) -> Batch:
        """The entire block, with its kept rows as they were.

        Args:
            batch: the rows that the spool would hold, of the entire block or of a `part` of it.

        Raises:
            ConfigError: a kept record gives something else now.
            SpoolError: the block is gone meanwhile.
        """
        in_part = REPLAYED in batch.made
        receipt = self._find(batch.origin)
        if receipt is None and in_part:
            name = self.spool.name(self.spool.digest(batch.origin))
            raise SpoolError(f"the spool file {name} is gone from {self.spool.folder}: run again")
        if receipt is None:
            batch.made = {**batch.made, NOT_COMPARED: 1}
            return batch
        if not receipt.kept:
            return batch
        kept = _rows_of(self.spool, receipt, batch.origin)
        lines = kept.rows.line
        if in_part:
            blank = np.array([False, *(kind == "blank" for kind, _ in batch.ledger.outcomes)])
            lines = lines[~blank[batch.ledger.status[lines]]]
        self._check(batch, kept, lines)
        made = {**batch.made, ROWS_COMPARED: len(lines)}
        if not in_part:
            batch.made = {**made, COMPARED: 1}
            return batch
        entire = merged(batch, kept)
        entire.made = dict(made)
        for name, count in receipt.made.items():
            if name != IN_FULL:
                entire.made[name] = entire.made.get(name, 0) + count
        return entire

    def _find(self, origin: Origin) -> BlockReceipt | None:
        try:
            return self.spool.find(self.spool.digest(origin))
        except SpoolError as error:
            log.warning("%s; its records are all made again", error)
            return None

    def check_reused(self, spool: Spool, raw: RawBlock, origin: Origin) -> None:
        """Compares a block that the run's own spool has already, as a replay that was killed leaves it.

        Raises:
            ConfigError: see `complete`.
        """
        earlier, found = self._find(origin), spool.find(spool.digest(origin))
        if earlier is None or found is None or not earlier.kept:
            return
        ends = np.cumsum(line_sizes(raw.data))
        now, kept = _rows_of(spool, found, origin), _rows_of(self.spool, earlier, origin)
        (sidecar,) = spool.sidecars([spool.name(spool.digest(origin))])
        ledger = Ledger(raw.data, np.append(0, ends)[:-1], ends, sidecar.status, sidecar.outcomes)
        ledger.by_row = is_table(origin.source.path)
        block = replace(now.rows, ledger=ledger, roles=CountedRoles(counts=now.roles))
        self._check(block, kept, kept.rows.line)

    def _check(self, batch: Batch, kept: KeptRows, lines: Array) -> None:
        if (found := first_change(batch, kept, lines)) is not None:
            line, how = found
            raise ConfigError(
                f"{batch.place(line)}: this record was kept, and would change: {how}; "
                f"a replay changes no kept record, so make everything again: {self.instead}"
            )


def _rows_of(spool: Spool, receipt: BlockReceipt, origin: Origin) -> KeptRows:
    """The rows of a block that is in a spool."""
    name = spool.name(spool.digest(origin))
    (sidecar,) = spool.sidecars([name])
    parts = [spool.rows(name, domain, 0, rows) for domain, (_, rows, _) in enumerate(receipt.domains)]
    # Rows are stored domain by domain.
    order = np.argsort(np.argsort(sidecar.domain, kind="stable"), kind="stable")
    columns = {
        column.name: Ragged.concat([part[column.name] for part in parts]).take(order)
        for column in (receipt.columns if parts else ())
    }
    nothing = np.zeros(0, np.int64)
    rows = Batch(
        origin,
        Ledger(b"", nothing, nothing, notes={mark.line: mark.note for mark in sidecar.marks}),
        sidecar.line,
        domain=[receipt.domains[code][0] for code in sidecar.domain.tolist()],
        columns=columns,
        schema={column.name: column for column in receipt.columns},
        counters=dict(sidecar.counters),
    )
    return KeptRows(rows, sidecar.roles, sidecar.digests)
