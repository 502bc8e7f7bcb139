"""Blocks as the plan sees them: without the copies of earlier records, and by split.

A block in the spool knows neither: its file is the same wherever its bytes occur, whatever the shares of the splits.
In a view the *parts* of a block take the place of its domains: every domain in every split, also those without rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from beam_prep.core.data.lengths import histogram
from beam_prep.core.reading.drops import SHOWN, Drop
from beam_prep.core.reading.keys import DUPLICATE, SPLIT
from beam_prep.core.shards.domains import part_of
from beam_prep.core.shards.receipts import SpoolReceipt
from beam_prep.core.shards.sidecars import Copies, Sidecar, View
from beam_prep.core.shards.splits import Splits
from beam_prep.core.tokens.batch import CUT_TOKENS
from beam_prep.errors import ConfigError


def view(sidecar: Sidecar, copies: Copies, splits: Splits | None) -> View:
    """A sidecar without copies, by split.

    Raises:
        ConfigError: the block has no digests for splits.
    """
    rank = np.empty(len(sidecar.line), np.int64)
    order = np.argsort(sidecar.domain, kind="stable")
    counts = np.bincount(sidecar.domain, minlength=1)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    if len(copies):
        kept = ~np.isin(sidecar.line, copies.line)
        outcomes, status = list(sidecar.outcomes), sidecar.status.astype(np.int16)  # one more than uint8 may hold
        if ("dropped", DUPLICATE) not in outcomes:
            outcomes.append(("dropped", DUPLICATE))
        status[copies.line] = outcomes.index(("dropped", DUPLICATE)) + 1
        drops = [_drop(sidecar, line) for line in copies.line[:SHOWN].tolist()]
        rank = rank[kept]
        sidecar = replace(
            sidecar,
            line=sidecar.line[kept],
            domain=sidecar.domain[kept],
            tokens=sidecar.tokens[kept],
            status=status,
            outcomes=outcomes,
            counters={name: counts[kept] for name, counts in sidecar.counters.items()},
            roles=sidecar.roles.without(copies.line),
            drops=tuple(sorted([*sidecar.drops, *drops], key=lambda drop: drop.line)),
            marks=tuple(mark for mark in sidecar.marks if mark.line not in copies.line),
            length=sidecar.length[kept],
            digests={name: digests[kept] for name, digests in sidecar.digests.items()},
            offset=sidecar.offset[kept],
        )
    if splits is not None:
        if SPLIT not in sidecar.digests:
            raise ConfigError("Shard has splits, and the blocks no digests for them: put KeyRecords(split=True) first")
        part = sidecar.domain * len(splits.names) + splits.codes(sidecar.digests[SPLIT])
        sidecar = replace(sidecar, domain=part.astype(np.int32))
    return View(sidecar, rank, copies)


def _drop(sidecar: Sidecar, line: int) -> Drop:
    return Drop(line, int(sidecar.offset[np.searchsorted(sidecar.line, line)]), DUPLICATE)


def parts_of(domains: Sequence[str], splits: Splits | None) -> list[str]:
    """The names of the parts of a block, in the order of their numbers."""
    names: Sequence[str | None] = [None] if splits is None else splits.names
    return [part_of(split, domain) for domain in domains for split in names]


def view_receipt(
    receipt: SpoolReceipt, sidecar: Sidecar, copies: Copies, file: str, splits: Splits | None
) -> SpoolReceipt:
    """The receipt of a block as the plan sees it; `file`: of its copies."""
    seen, block = view(sidecar, copies, splits).sidecar, receipt.block
    names = parts_of([name for name, _, _ in block.domains], splits)
    rows = np.bincount(seen.domain, minlength=len(names)).tolist()
    tokens = np.zeros(len(names), np.int64)
    np.add.at(tokens, seen.domain, seen.tokens)
    block = replace(block, domains=list(zip(names, rows, tokens.tolist(), strict=True)))
    if len(copies):
        lost = seen.counters.get(CUT_TOKENS, np.zeros(len(seen.length), np.int64))
        dropped = {**block.counts["dropped"], DUPLICATE: len(copies)}
        block = replace(
            block,
            counts={**block.counts, "dropped": dropped},
            counters={name: int(counts.sum()) for name, counts in seen.counters.items()},
            lengths=(histogram(seen.length), histogram(seen.length + lost)),
            roles=seen.roles.sums(),
        )
    return replace(receipt, block=block, copies=file)
