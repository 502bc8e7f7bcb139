"""Compares a block with the reference: how much is compared, and which cached blocks may be used again."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from beam_prep.data.ragged import Ragged
from beam_prep.tokens.batch import Batch

Check = Literal["sample", "full"]

IN_FULL = "blocks_checked_in_full"
"""The entry in `Block.made` of a block that was compared completely with the reference."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Which cached blocks a run may use, by how they were made.

    Attributes:
        backend: `transformers`: not those that another backend encoded, unless they were checked in full.
        check: `full`: only those that were checked in full.
    """

    backend: str = "auto"
    check: Check = "sample"

    def holds(self, made: Mapping[str, int]) -> bool:
        """True if a block may be used.

        Args:
            made: see `Block`.
        """
        fast = self.backend == "transformers" and "encoded_by_gigatoken" in made
        return IN_FULL in made or (self.check == "sample" and not fast)


def first_difference(batch: Batch, reference: Batch) -> tuple[int, str] | None:
    """(line, difference) of the first line on which two batches of a block differ; None if they are equal.

    Compares the outcome of each line, messages of rejects, domains, counters, metadata, and every value of every column
    with its type. Neither batch may have segments left.
    """
    if len(batch) and len(reference) and batch.schema != reference.schema:
        return int(batch.line[0]), f"found the columns {batch.schema}, wanted {reference.schema}"
    metadata = batch.ledger.metadata is not None and reference.ledger.metadata is not None
    lines = zip_longest(_lines(batch, metadata), _lines(reference, metadata), fillvalue={"": "no line"})
    for line, (mine, theirs) in enumerate(lines):
        for what in dict.fromkeys([*mine, *theirs]):
            if how := _how(mine.get(what), theirs.get(what)):
                return line, f"{what}: {how}" if what else how
    return None


def _lines(batch: Batch, metadata: bool) -> list[dict[str, Any]]:
    """For each line: its outcome, under the name ""; and the values of its rows, by name."""
    ledger = batch.ledger
    rows = np.bincount(batch.line, minlength=len(ledger.status)).tolist()
    words = [f"{kind} ({reason})" for kind, reason in ledger.outcomes]
    found: list[dict[str, Any]] = [
        {"": words[code - 1] if code else {0: "no row", 1: "a row"}.get(count, f"{count} rows")}
        for code, count in zip(ledger.status.tolist(), rows, strict=True)
    ]
    for line, message in ledger.messages.items():
        found[line][""] += f": {message}"
    kept = ledger.metadata.values if metadata and ledger.metadata is not None else {}
    for row, line in enumerate(batch.line.tolist()):
        of = "" if batch.row is None else f"row {batch.row[row]}, "
        found[line][f"{of}domain"] = batch.domain[row]
        found[line] |= {f"{of}counter {name!r}": int(counts[row]) for name, counts in batch.counters.items()}
        found[line] |= {f"{of}metadata {name!r}": values[line : line + 1] for name, values in kept.items()}
        found[line] |= {f"{of}column {name!r}": values[row : row + 1] for name, values in batch.columns.items()}
    return found


def _how(one: Any, other: Any) -> str | None:
    """How two values differ; None if they are equal. Ids are shown from the first difference on."""
    if not isinstance(one, Ragged) or not isinstance(other, Ragged):
        mine, theirs = one or 0, other or 0  # a missing counter is 0
        return None if mine == theirs else f"found {mine!r}, wanted {theirs!r}"
    ids, wanted = one.flat, other.flat
    if ids.dtype != wanted.dtype:
        return f"found {ids.dtype}, wanted {wanted.dtype}"
    if ids.tobytes() == wanted.tobytes():  # a NaN equals itself
        sizes = [row.values.lengths.tolist() if isinstance(row.values, Ragged) else [] for row in (one, other)]
        return None if sizes[0] == sizes[1] else f"found lists of {sizes[0]}, wanted {sizes[1]}"
    size = min(len(ids), len(wanted))
    at = int(np.append(np.flatnonzero(ids[:size] != wanted[:size]), size)[0])
    near = slice(at, at + 5)
    return (
        f"found {ids[near].tolist()} from token {at} on, wanted {wanted[near].tolist()} "
        f"({len(ids)} and {len(wanted)} in all)"
    )
