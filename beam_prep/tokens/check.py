"""Compares a block with the reference: how much is compared, and which cached blocks may be used again."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

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
    lines = zip_longest(_lines(batch, metadata), _lines(reference, metadata), fillvalue={"outcome": "no line"})
    for line, (mine, theirs) in enumerate(lines):
        for what in dict.fromkeys([*mine, *theirs]):
            one, other = mine.get(what, "nothing"), theirs.get(what, "nothing")
            if one != other:
                pairs = enumerate(zip_longest(one, other))
                at = max(0, next(place for place, (a, b) in pairs if a != b) - _BEFORE)
                return line, f"{what}: found {one[at : at + _SHOWN]!r}, wanted {other[at : at + _SHOWN]!r}"
    return None


_BEFORE, _SHOWN = 20, 80  # characters


def _lines(batch: Batch, metadata: bool) -> list[dict[str, str]]:
    """For each line: its outcome, and the values of its rows, by name."""
    ledger = batch.ledger
    rows = np.bincount(batch.line, minlength=len(ledger.status)).tolist()
    words = [f"{kind} ({reason})" for kind, reason in ledger.outcomes]
    codes = zip(ledger.status.tolist(), rows, strict=True)
    found = [{"outcome": words[code - 1] if code else f"rows: {count}"} for code, count in codes]
    for line, message in ledger.messages.items():
        found[line]["outcome"] += f": {message}"
    kept = ledger.metadata.values if metadata and ledger.metadata is not None else {}
    for row, line in enumerate(batch.line.tolist()):
        of = "" if batch.row is None else f"row {batch.row[row]}, "
        found[line][f"{of}domain"] = batch.domain[row]
        found[line] |= {f"{of}counter {name!r}": str(each[row]) for name, each in batch.counters.items() if each[row]}
        found[line] |= {f"{of}metadata {name!r}": _shown(values, line) for name, values in kept.items()}
        found[line] |= {f"{of}column {name!r}": _shown(values, row) for name, values in batch.columns.items()}
    return found


def _shown(rows: Ragged, row: int) -> str:
    return f"{rows.flat.dtype} {rows[row : row + 1].to_lists()[0]}"
