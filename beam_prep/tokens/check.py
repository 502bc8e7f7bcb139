"""Comparison of a block with the reference: how much is compared, and which cached blocks are used again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from beam_prep.data.block import Ledger
from beam_prep.data.ragged import Array, Ragged
from beam_prep.tokens.batch import Batch

Check = Literal["sample", "full"]

IN_FULL = "blocks_checked_in_full"
"""The entry in `Block.made` of a block that was compared with the reference completely."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """The blocks of the token cache that a run uses, by how they were made.

    Attributes:
        backend: `transformers`: none that another backend encoded, unless it was checked in full.
        check: `full`: none that was not.
    """

    backend: str = "auto"
    check: Check = "sample"

    def holds(self, made: Mapping[str, int]) -> bool:
        """True if a block may be used.

        Args:
            made: see `Block`.
        """
        if IN_FULL in made:
            return True
        others: set[str] = set()
        if self.backend == "transformers":
            others |= {name for name in made if name.startswith("encoded_by_")} - {"encoded_by_transformers"}
        return self.check == "sample" and not others


def first_difference(batch: Batch, reference: Batch) -> tuple[int, str] | None:
    """The first line on which two batches of a block differ, and how they do; None: they hold the same.

    What becomes of each line is compared, with the messages of rejects; then domains, counters, and every value of
    every column, with its type. Neither may have segments left.
    """
    return min(_differences(batch, reference), default=None)


def _differences(batch: Batch, reference: Batch) -> Iterator[tuple[int, str]]:
    """The first one of each kind."""
    mine, theirs = (np.array(_outcomes(each.ledger), object) for each in (batch, reference))
    if len(mine) != len(theirs):
        yield min(len(mine), len(theirs)), f"found {len(mine)} lines in the block, wanted {len(theirs)}"
        return
    if len(lines := np.flatnonzero(mine != theirs)):
        yield int(lines[0]), f"found {mine[lines[0]]}, wanted {theirs[lines[0]]}"
    places = [each.line.astype(np.int64) << 32 | (0 if each.row is None else each.row) for each in (batch, reference)]
    shared, of_mine, of_theirs = np.intersect1d(places[0], places[1], return_indices=True)
    shared >>= 32  # the lines
    if len(shared) < max(len(batch), len(reference)):
        line = int(np.setxor1d(places[0], places[1])[0]) >> 32
        yield line, f"found {'a row' if line in batch.line else 'no row'}, wanted the other"
    if not len(shared):
        return
    if batch.schema != reference.schema:
        yield int(shared[0]), f"found the columns {batch.schema}, wanted {reference.schema}"
        return
    domains = [(batch.domain[one], reference.domain[other]) for one, other in zip(of_mine, of_theirs, strict=True)]
    for row, (found, wanted) in enumerate(domains):
        if found != wanted:
            yield int(shared[row]), f"found the domain {found!r}, wanted {wanted!r}"
            break
    for name in sorted({*batch.counters, *reference.counters}):
        counts = [
            each.counters.get(name, np.zeros(len(each), np.int64))[rows]
            for each, rows in ((batch, of_mine), (reference, of_theirs))
        ]
        for row in np.flatnonzero(counts[0] != counts[1])[:1].tolist():
            yield int(shared[row]), f"counter {name!r}: found {counts[0][row]}, wanted {counts[1][row]}"
    metadata = batch.ledger.metadata, reference.ledger.metadata
    if metadata[0] is not None and metadata[1] is not None and batch.ledger is not reference.ledger:
        for name, values in metadata[0].values.items():
            pairs = values.take(shared), metadata[1].values[name].take(shared)
            if not _same(*pairs):
                row = next(row for row in range(len(shared)) if not _same(*(each[row : row + 1] for each in pairs)))
                yield int(shared[row]), f"field {name!r}: another value is kept as metadata"
    for name in batch.schema:
        columns = batch[name].take(of_mine), reference[name].take(of_theirs)
        if not _same(*columns):
            row = next(row for row in range(len(shared)) if not _same(*(each[row : row + 1] for each in columns)))
            yield int(shared[row]), f"column {name!r}: {_how(*(each[row : row + 1] for each in columns))}"


def _outcomes(ledger: Ledger) -> list[str]:
    """The outcome of each line as text."""
    words = ["a row", *(f"{kind} ({reason})" for kind, reason in ledger.outcomes)]
    found = [words[code] for code in ledger.status.tolist()]
    for line, message in ledger.messages.items():
        found[line] += f": {message}"
    return found


def _same(one: Ragged, other: Ragged) -> bool:
    if one.depth != other.depth or one.flat.dtype != other.flat.dtype:
        return False
    while isinstance(one.values, Ragged) and isinstance(other.values, Ragged):
        if not np.array_equal(one.offsets, other.offsets):
            return False
        one, other = one.values, other.values
    return np.array_equal(one.offsets, other.offsets) and _equal(one.flat, other.flat)


def _equal(one: Array, other: Array) -> bool:
    return len(one) == len(other) and one.tobytes() == other.tobytes()  # a NaN equals itself


def _how(one: Ragged, other: Ragged) -> str:
    """Describes how a row differs."""
    mine, theirs = one.flat, other.flat
    if mine.dtype != theirs.dtype:
        return f"found {mine.dtype}, wanted {theirs.dtype}"
    size = min(len(mine), len(theirs))
    at = int(np.append(np.flatnonzero(mine[:size] != theirs[:size]), size)[0])
    near = slice(at, at + 5)
    return (
        f"found {mine[near].tolist()} from token {at} on, wanted {theirs[near].tolist()} "
        f"({len(mine)} and {len(theirs)} in all)"
    )
