"""Decides which rows of all blocks are written, in which split, how often (a mix), in which order and folder."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.hashing import GOLDEN, mixed
from beam_prep.data.ragged import Aligned, Array
from beam_prep.errors import ConfigError
from beam_prep.hints import check_settings
from beam_prep.reading.keys import DUPLICATE, NO_KEY, SPLIT
from beam_prep.reading.records import SHOWN, Drop
from beam_prep.shards.domains import part_of
from beam_prep.shards.receipts import DIGEST, BlockReceipt, Copies, RowIndex


def rest(shares: Iterable[float | Fraction]) -> Fraction:
    """What shares leave of 1; 0 within 1e-9, since three floats of a third do not add up to 1."""
    left = 1 - sum((Fraction(str(share)) for share in shares), Fraction(0))
    return left if abs(left) > Fraction(1, 10**9) else Fraction(0)


@dataclass(frozen=True, slots=True)
class Splits:
    """Assigns records to splits. A record keeps its split when other records are added or removed, on every runner.

    >>> splits = bp.Splits.of({"train": 0.9, "test": 0.1}, seed=0)
    >>> splits.names
    ('train', 'test')

    Attributes:
        names: the names of the splits.
        shares: the share of each split; they add up to 1.
        seed: another seed puts other records into each split.
        missing: the split of records without a key.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    seed: int = 0
    missing: str | None = None

    @classmethod
    def of(cls, shares: Mapping[str, float], seed: int = 0, missing: str | None = None) -> "Splits":
        """Splits from a mapping of name to share, in order."""
        if rest(shares.values()) or min(shares.values()) <= 0:
            raise ValueError(f"shares are {dict(shares)}, wanted numbers above 0 that add up to 1")
        return cls(tuple(shares), tuple(shares.values()), seed, missing)

    def codes(self, digests: Array) -> Array:
        """int64 [rows]: the number of each row's split.

        Args:
            digests: uint64 [rows], see `Ledger.digests`.
        """
        hashes = hashed(digests ^ np.uint64(mixed_number(self.seed)))
        # Exact borders: a float near 2^64 is off by thousands.
        until = itertools.accumulate(Fraction(str(share)) for share in self.shares[:-1])
        most = (1 << 64) - 1
        borders = np.array([min(int(share * (most + 1)), most) for share in until], np.uint64)
        found = np.searchsorted(borders, hashes, side="right")
        if self.missing is not None:
            found = np.where(digests == NO_KEY, self.names.index(self.missing), found)
        return found.astype(np.int64)


@dataclass(frozen=True, slots=True)
class DomainMix:
    """How much of a domain is written. Give one of tokens, share and epochs.

    >>> mix = {"math": bp.DomainMix(tokens=2e9), "web": bp.DomainMix(share=0.3), "code": bp.DomainMix(epochs=2)}
    >>> compose = bp.Compose(shuffle=17, mix=tuple(mix.items()))

    Attributes:
        tokens: how many tokens are written.
        share: share of all tokens of the output.
        epochs: how often each record is written.
        repeat: with tokens or share: repeats records if the domain has too few.
    """

    tokens: float | None = None
    share: float | None = None
    epochs: float | None = None
    repeat: bool = False


MOST_EPOCHS = 1000
"""Most times that a record is written. A budget that needs more probably has a zero too many."""
Mix = tuple[tuple[str, DomainMix], ...]
"""(domain, how much of it is written)."""


ALL = 2**64 - 1
"""The largest sample key."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Which rows of a domain are written: each row `copies` times, and some rows once more.

    Attributes:
        copies: how often every row is written.
        most: rows with a sample key up to this are written once more; None: no row.
    """

    copies: int = 1
    most: int | None = None


def split_of(part: str, splits: Splits | None) -> int:
    """The number of the split in a part's name; 0 without splits."""
    return 0 if splits is None else splits.names.index(part.partition("/")[0])


def split_name(part: str, splits: Splits | None) -> str | None:
    """The split in a part's name; None without splits."""
    return None if splits is None else part.partition("/")[0]


def domain_of(part: str, splits: Splits | None) -> str:
    """The domain in a part's name."""
    return part if splits is None else part.partition("/")[2]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """The sizes of what a shuffle sorts and merges. The bytes of an output do not depend on them.

    Attributes:
        run: tokens of a run, about: with labels 40 MB, of which a worker holds three copies while it sorts. A large
            job has larger runs: twice as many tokens, at 10 TB 50 million.
        bin: tokens of a bin. A bin is sorted in memory.
        batches: most record batches of a run. Smaller batches cost more to find than to read.
        runs: most runs that are merged at a time. Each is an open file.
    """

    run: int = 8_000_000
    bin: int = 4_000_000
    batches: int = 4096
    runs: int = 256


@dataclass(frozen=True, slots=True)
class Compose:
    """How the rows of all blocks become an output. By default all rows are written, in input order.

    >>> compose = bp.Compose(shuffle=17, splits=bp.Splits.of({"train": 0.9, "test": 0.1}))
    >>> compose.splits.names
    ('train', 'test')

    Attributes:
        shuffle: the seed of a permutation of all rows, over all shards; None: input order.
        splits: assigns rows to splits; None: no splits.
        mix: how much of each domain is written to the first split; needs `shuffle`.
        deduplicate: keeps only the first record of those with the same digest. `KeyRecords` makes the digests.
        buckets: groups of digests in which equal ones are searched; each should have about a million digests.
        sizes: see `RunSizes`.

    Raises:
        ValueError: there is a mix without a shuffle.
    """

    shuffle: int | None = None
    splits: Splits | None = None
    mix: Mix = ()
    deduplicate: bool = False
    buckets: int = 256
    sizes: RunSizes = field(default_factory=RunSizes)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.mix and self.shuffle is None:
            raise ValueError("there is a mix without a shuffle; the shuffle draws the rows of a mix: give shuffle, too")

    @property
    def views(self) -> bool:
        """True if the plan sees a view of each block: without duplicates, or by split (see `view`)."""
        return self.splits is not None or self.deduplicate

    @property
    def composes(self) -> bool:
        """True if the output is not simply all rows in input order."""
        return self.views or self.shuffle is not None

    @property
    def split_count(self) -> int:
        """The number of splits; 1 without splits."""
        return 1 if self.splits is None else len(self.splits.names)


class Place(NamedTuple):
    """Where a block's rows come from: file, first line, copies.

    Attributes:
        name: the block's name in the token cache.
        copies: the file of its copies, see `STATISTICS`.
        file, first_byte, first_line: the place of its first line in the input.
        parts: the code of each of its parts in the plan.
        rows: how many of its rows are read, from the first.
    """

    name: str
    copies: str
    file: int
    first_byte: int
    first_line: int
    parts: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Arranged(Aligned):
    """Rows of a block in a shuffle, by line. A row that is written n times is here n times.

    Attributes:
        part: int32, the code of each row's part.
        key: uint64, the row's place in the shuffled order.
        sample: uint64, the sample key of a row that may be drawn for a mix; 0: the row is written in any case.
        row: int64, the row's number in the view.
    """

    part: Array
    key: Array
    sample: Array
    row: Array


def arranged(view: RowIndex, place: Place, seed: int, taken: Mapping[int, Taken]) -> Arranged:
    """The rows of a block with their keys.

    Args:
        view, place: the block.
        seed: the seed of the shuffle.
        taken: part -> which of its rows are written, and how often. Other parts are written once, completely.
    """
    count = place.rows
    line = view["line"][:count].astype(np.int64) + place.first_line
    local = view["domain"][:count]
    part = np.array(place.parts, np.int32)[local]
    of_parts = [taken.get(code, Taken()) for code in place.parts]
    copies = np.array([each.copies for each in of_parts], np.int64)[local]
    most = np.array([each.most or 0 for each in of_parts], np.uint64)[local]
    found = []
    for copy in range(int(copies.max(initial=0)) + 1):
        rows = np.flatnonzero((copies > copy) | ((copies == copy) & (most > 0)))
        keys = shuffle_keys(seed, place.file, line[rows], copy)
        samples = np.where(copies[rows] > copy, np.uint64(0), sample_keys(keys))
        found.append(Arranged(part[rows], keys, samples, rows).take(samples <= most[rows]))
    made = Arranged.concat(found)
    # Rows with the same key stay in the order of line, then copy: it does not depend on where blocks end.
    return made.take(np.argsort(made.row, kind="stable"))


# The order of rows

_MASK = (1 << 64) - 1
_SAMPLE = 0xD1B54A32D192ED03


def hashed(values: Array) -> Array:
    """uint64 [n]: hashes of the values. Different values have different hashes."""
    return mixed(values.astype(np.uint64) + np.uint64(GOLDEN))


def mixed_number(*values: int) -> int:
    """A 64-bit hash of several numbers."""
    found = 0
    for value in values:
        found = int(hashed(np.array([(found ^ value) & _MASK], np.uint64))[0])
    return found


def shuffle_keys(seed: int, file: int, lines: Array, copy: int = 0) -> Array:
    """uint64 [rows]: the shuffle keys of rows of one file.

    Args:
        seed: the seed of the shuffle.
        file: the number of the file in the list of inputs.
        lines: int64 [rows], the line of each row in the file, from 0.
        copy: the number of the copy, for a row that is written several times.
    """
    first, second = (np.uint64(mixed_number(seed, file, copy, part)) for part in (1, 2))
    return hashed(hashed(lines.astype(np.uint64) + first) ^ second)


def sample_keys(keys: Array) -> Array:
    """uint64 [rows], from 1: rows are drawn for a mix by rising sample key. It is a hash of the shuffle key."""
    found: Array = np.maximum(hashed(keys ^ np.uint64(_SAMPLE)), np.uint64(1))
    return found


def scaled(keys: Array, ranges: Array | int) -> Array:
    """int64 [rows]: the range of each key: floor(key * ranges / 2^64), exactly.

    Args:
        keys: uint64 [rows].
        ranges: the number of equal ranges of all keys, less than 2^32; the same for all rows, or one for each.
    """
    count, bits = np.asarray(ranges, np.uint64), np.uint64(32)
    high, low = keys >> bits, keys & np.uint64(0xFFFFFFFF)
    carried = (low * count) >> bits
    found: Array = ((high * count + carried) >> bits).astype(np.int64)
    return found


def view(row_index: RowIndex, copies: Copies, splits: Splits | None) -> RowIndex:
    """The view of a block: its row index without copies, its domains cut by split.

    Raises:
        ConfigError: the block has no digests for splits.
    """
    number = np.empty(len(row_index["line"]), np.int64)
    order = np.argsort(row_index["domain"], kind="stable")
    counts = np.bincount(row_index["domain"], minlength=1)
    number[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    row_index = row_index.with_rows(number=number)
    if len(copies):
        outcomes, status = list(row_index.outcomes), row_index.status.astype(np.int16)  # one more than uint8 may hold
        if ("dropped", DUPLICATE) not in outcomes:
            outcomes.append(("dropped", DUPLICATE))
        status[copies.line] = outcomes.index(("dropped", DUPLICATE)) + 1
        first = copies.line[:SHOWN]
        offsets = row_index["offset"][np.searchsorted(row_index["line"], first)]
        drops = map(Drop, first.tolist(), offsets.tolist(), itertools.repeat(DUPLICATE))
        others = (drop for drop in row_index.shown if drop.line not in copies.line)  # without marked copies
        row_index = row_index.take(
            ~np.isin(row_index["line"], copies.line),
            status=status,
            outcomes=outcomes,
            roles=row_index.roles.without(copies.line),
            shown=tuple(sorted([*others, *drops], key=lambda drop: drop.line)),
            copies=copies,
        )
    if splits is None:
        return row_index
    if (digests := row_index.rows.get(DIGEST + SPLIT)) is None:
        raise ConfigError("Shard has splits, but the blocks have no digests: put KeyRecords(split=True) first")
    part = row_index["domain"] * len(splits.names) + splits.codes(digests)
    return row_index.with_rows(domain=part.astype(np.int32))


def parts_of(domains: Sequence[str], splits: Splits | None) -> list[str]:
    """The names of the parts of a block, by number."""
    names: Sequence[str | None] = [None] if splits is None else splits.names
    return [part_of(split, domain) for domain in domains for split in names]


def view_receipt(
    receipt: BlockReceipt, row_index: RowIndex, copies: Copies, file: str, splits: Splits | None
) -> BlockReceipt:
    """The statistics of a block's view; `file`: the file of its copies."""
    seen = view(row_index, copies, splits)
    names = parts_of([domain for domain, _, _ in receipt.domains], splits)
    return receipt.updated(**seen.statistics(names, receipt.counts("made")), copies=os.fsencode(file))


# A mix: how many tokens of each domain are written, and which rows


def mix_lines(manifest: Mapping[str, Any]) -> list[str]:
    """A line for each domain of a mix: tokens wanted and written, from a manifest."""
    return [
        f"mix of {domain!r}: {found['tokens']:,} tokens, {found['wanted_tokens']:,} wanted; "
        f"{found['records']:,} records in {found['rows']:,} rows"
        for domain, found in manifest.get("mix", {}).items()
    ]


NOT_SAMPLED = "not_sampled"
"""The drop reason of records that a mix leaves out."""
