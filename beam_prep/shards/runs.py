"""Runs: the plan of a shuffle. The rows may be too many for the memory of one machine.

Workers sort groups of consecutive blocks by part and key, each group into a *run*. Then each shard merges its range of
keys from all runs, bin by bin. A *bin* is a range of keys that can be sorted in memory; all bins are equally wide. If a
run had too many bins, it is cut into wider ranges, and a second level merges a wide range of several runs into a file
of bins. This is an external merge sort (Knuth, The Art of Computer Programming, volume 3, 5.4), with equal ranges of a
uniform key in place of samples.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, changes
from beam_prep.errors import RunError
from beam_prep.shards.compose import ALL, MOST_EPOCHS, Arranged, Compose, Mix, Place, Taken, domain_of, rest, split_of
from beam_prep.shards.receipts import Receipts
from beam_prep.shards.slices import Merge, ShardPlan, first_lines, numbered

HISTOGRAM = 16
"""How many leading bits of a sample key select its bin in a histogram, at most."""
_ALL_BINS = 20
"""The histograms of all parts together have at most two to this power bins: 8 MB."""


def budgets(mix: Mix, there: Mapping[str, int]) -> dict[str, int]:
    """Domain -> tokens to write, for the domains of a mix.

    Domains that the mix does not name are written once, completely. A share is a share of the whole output. Domains
    with tokens or epochs, and domains not named, fill the rest that the shares leave. If every domain has a share, the
    output is as large as the scarcest domain without `repeat` allows.

    Args:
        mix: the mix.
        there: domain -> tokens that it has.

    Raises:
        RunError: a domain has no rows, or too few tokens without `repeat`, or would be repeated more than
            `MOST_EPOCHS` times; or the shares add up to 1 beside other domains, or to less than 1 without any.
    """
    wanted = dict(mix)
    for domain in wanted:
        if not there.get(domain):
            known = ", ".join(repr(name) for name in sorted(there) if there[name])
            raise RunError(f"output.mix: there are no rows of domain {domain!r}; wanted one of {known}")
    found: dict[str, int] = {}
    for domain, each in wanted.items():
        if each.tokens is not None:
            found[domain] = int(_exact(each.tokens))
        elif each.epochs is not None:
            found[domain] = int(_exact(each.epochs) * there[domain])
    unnamed = sum(tokens for domain, tokens in there.items() if domain not in wanted)
    fixed = sum(found.values()) + unnamed
    shares = {domain: _exact(each.share) for domain, each in wanted.items() if each.share is not None}
    left = rest(shares.values())
    if shares and (left > 0) != (fixed > 0):
        raise RunError(
            f"output.mix: the shares add up to {float(1 - left):g}, and the other domains have {fixed:,} tokens: "
            "make them add up to 1 if all domains have a share, else to less"
        )
    if shares:
        limits = {domain: there[domain] / share for domain, share in shares.items()}
        scarce = [limit for domain, limit in limits.items() if not wanted[domain].repeat]
        if left:
            total = fixed / left
        elif scarce:
            total = min(scarce)
        else:
            total = max(limits.values())
        found |= {domain: int(share * total) for domain, share in shares.items()}
    for domain, tokens in found.items():
        most = MOST_EPOCHS if wanted[domain].repeat or wanted[domain].epochs is not None else 1
        if tokens > most * there[domain]:
            raise RunError(
                f"output.mix: {tokens:,} tokens of domain {domain!r} are wanted, {there[domain]:,} are there, each to "
                f'be written at most {most:,} times: lower them, or repeat records: "repeat": true'
            )
    return {domain: found[domain] for domain in wanted}


def _exact(number: float | None) -> Fraction:
    return Fraction(str(number))


def cutoff(keys: Array, tokens: Array, wanted: int) -> int | None:
    """The sample key of the last row that is written. Rows are drawn by rising key until they have the wanted tokens.

    Args:
        keys, tokens: uint64 and int64 [rows], the sample key and the tokens of each row.
        wanted: tokens; for 0 the result is None.
    """
    if wanted <= 0 or not len(keys):
        return None
    order = np.argsort(keys, kind="stable")
    drawn = np.cumsum(tokens[order])
    place = min(int(np.searchsorted(drawn, wanted)), len(order) - 1)
    return int(keys[order[place]])


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a job in a shuffle: their sizes, and how much of each is written.

    Attributes:
        ranges: int64 [parts], into how many ranges of keys each part is cut; the same for all parts of a split.
        rows, tokens: int64 [parts], that each part has.
        wanted: part -> tokens that the mix wants of it. Other parts are written once, completely.
    """

    ranges: Array
    rows: Array
    tokens: Array
    wanted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, receipts: Receipts, compose: Compose, max_tokens: int) -> "Parts":
        """The parts of all rows.

        Raises:
            RunError: see `budgets`.
        """
        names = receipts.domains
        rows, tokens = np.zeros((2, len(names)), np.int64)
        np.add.at(rows, receipts.entry_domain.flat, receipts.entry_rows.flat)
        np.add.at(tokens, receipts.entry_domain.flat, receipts.entry_tokens.flat)
        split = np.array([split_of(name, compose.splits) for name in names], np.int64)
        wanted: dict[int, int] = {}
        if compose.mix:
            mixed = {domain_of(names[code], compose.splits): code for code in np.flatnonzero(split == 0).tolist()}
            there = {domain: int(tokens[code]) for domain, code in mixed.items()}
            for domain, count in budgets(compose.mix, there).items():
                wanted[mixed[domain]] = count
        written = tokens.copy()
        for code, count in wanted.items():
            written[code] = count
        by_split = np.bincount(split, written, compose.split_count).astype(np.int64)
        ranges = np.maximum(1, -(-by_split // max_tokens))
        return cls(ranges[split], rows, tokens, wanted)

    def taken(self, limits: "Limits" = MappingProxyType({})) -> dict[int, Taken]:
        """Part -> which rows are written. The cutoff of one more copy is known only by its limit: all rows up to the
        limit, or all without one, count as drawn."""
        found = {}
        for code, wanted in self.wanted.items():
            copies, more = divmod(wanted, int(self.tokens[code]))
            most = limits[code].last if code in limits else ALL
            found[code] = Taken(copies, most if more else None)
        return found

    @property
    def copies(self) -> Array:
        """int64 [parts]: how often a row of each part is written at most."""
        found = np.ones(len(self.rows), np.int64)
        for code, taken in self.taken().items():
            found[code] = taken.copies + (taken.most is not None)
        return found

    @property
    def histogram_bits(self) -> int:
        """How many leading bits of a sample key select its bin in a histogram: fewer with many parts."""
        return min(HISTOGRAM, _ALL_BINS - len(self.wanted).bit_length())

    def more(self, part: int) -> int:
        """The tokens that a part needs beyond its complete copies."""
        return self.wanted[part] % int(self.tokens[part])


@dataclass(frozen=True, slots=True)
class Runs:
    """What every worker knows of the shuffle.

    Attributes:
        compose: how the rows become an output.
        names: the names of the parts.
        parts: see `Parts`.
        bins: int64 [parts], bins of each part: a multiple of its shards.
        width: int64 [parts], how many bins a record batch of a run holds; above 1 there are two levels.
        runs: how many runs there are.
        together: how many runs the second level merges at a time.
        facts: a digest of everything that decides which rows there are.
    """

    compose: Compose
    names: tuple[str, ...]
    parts: Parts
    bins: Array
    width: Array
    runs: int
    together: int
    facts: str

    @property
    def merges_twice(self) -> bool:
        """True if there is a second level."""
        return bool((self.width > 1).any())

    @property
    def merged(self) -> int:
        """How many groups of runs the second level merges."""
        return -(-self.runs // self.together)

    def tasks(self) -> Iterator[tuple[int, int]]:
        """The tasks of the second level: (group of runs, wide range of keys)."""
        wide = int((-(-self.bins // self.width)).max(initial=0))
        for group in range(self.merged if self.merges_twice else 0):
            yield from ((group, each) for each in range(wide))

    def merge(self, part: int, number: int, most: int) -> Merge:
        """The merge that makes a shard; `number`: its range of keys. For `most` see `Merge`."""
        every = int(self.bins[part])
        bins = every // int(self.parts.ranges[part])
        files, width = self.runs, 0
        if self.merges_twice:
            files, width = self.merged, int(self.width[part])
        return Merge(self.facts, files, width, part, number * bins, (number + 1) * bins, every, most)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The blocks of a run.

    Attributes:
        index: the number of the run.
        places: the blocks.
        runs: see `Runs`.
    """

    index: int
    places: tuple[Place, ...]
    runs: Runs


def plan_runs(receipts: Receipts, compose: Compose, parts: Parts, facts: str) -> tuple[Runs, Iterator[RunGroup]]:
    """The runs of a job, and their blocks."""
    sizes, copies = compose.sizes, parts.copies
    weights = receipts.entry_tokens.flat * copies[receipts.entry_domain.flat]
    tokens = receipts.entry_tokens.sums(weights)
    used = np.flatnonzero(receipts.rows > 0)
    before = np.cumsum(tokens[used]) - tokens[used]
    total = int(tokens[used].sum())
    # Runs are larger if that saves a level, or if there would be more runs than two levels can merge.
    saves_a_level = min(total // sizes.runs, 2 * sizes.run)
    size = max(sizes.run, saves_a_level, total // sizes.runs**2)
    _, group = np.unique(before // size, return_inverse=True)
    count = int(group[-1]) + 1 if len(group) else 0
    written = np.maximum(1, parts.tokens * copies)
    shards = parts.ranges
    of_range = -(-written // shards)
    bins = shards * np.maximum(1, -(-of_range // sizes.bin))
    most = max(1, sizes.batches // max(1, len(bins)))
    width = np.ones(len(bins), np.int64)
    if (bins > most).any() or count > sizes.runs:
        # With this many wide ranges both levels read pieces of about the same size.
        wide_ranges = min(most, int(np.sqrt(bins.max())) + 1)
        width = -(-bins // wide_ranges)
    wide = int((-(-bins // width)).max(initial=1))
    together = min(max(2, wide), sizes.runs)  # a task of the second level then has about the tokens of a run
    names = tuple(receipts.domains)
    runs = Runs(compose, names, parts, bins, width, count, together, facts)
    places = _places(receipts, used)
    blocks = np.bincount(group, minlength=count).tolist()
    groups = (RunGroup(index, tuple(itertools.islice(places, many)), runs) for index, many in enumerate(blocks))
    return runs, groups


def _places(receipts: Receipts, used: Array) -> Iterator[Place]:
    """The places of blocks, made some at a time: Python's numbers take much memory."""
    columns = (receipts.file, receipts.first_byte, first_lines(receipts))
    for first in range(0, len(used), 10_000):
        blocks = used[first : first + 10_000]
        names = receipts.names_of(blocks)
        copies = map(receipts.copies.__getitem__, blocks)
        parts = map(tuple, receipts.entry_domain.take(blocks).to_lists())
        where = (column[blocks].tolist() for column in columns)
        rows = receipts.rows[blocks].tolist()
        yield from map(Place, names, copies, *where, parts, rows)


class Limit(NamedTuple):
    """The bin of a histogram in which the cutoff of a part lies.

    Attributes:
        first, last: the first and the last key of the bin.
        before: tokens of the bins before it.
    """

    first: int
    last: int
    before: int


Limits = Mapping[int, Limit]
"""Part -> where its cutoff lies."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of the rows in runs. They can be added.

    Attributes:
        runs: how many runs are counted.
        samples: part -> tokens by the first `Parts.histogram_bits` of the sample key, int64, for parts of which a mix
            draws rows. They are counted first, and decide the limits of the runs.
        rows: part -> int64 [shards], rows that are written in any case.
        tokens: part -> int64 [2], tokens of those rows, and how many of those rows were drawn for a mix.
        border: part -> uint64 [rows, 3], sample key, tokens and shard of the rows in the bin of the cutoff.
    """

    runs: int = 0
    samples: Mapping[int, Array] = field(default_factory=dict)
    rows: Mapping[int, Array] = field(default_factory=dict)
    tokens: Mapping[int, Array] = field(default_factory=dict)
    border: Mapping[int, Array] = field(default_factory=dict)

    def __add__(self, other: "RunCounts") -> "RunCounts":
        return RunCounts(
            self.runs + other.runs,
            _merged(self.samples, other.samples),
            _merged(self.rows, other.rows),
            _merged(self.tokens, other.tokens),
            _merged(self.border, other.border, lambda *both: np.concatenate(both)),
        )

    @classmethod
    def sampled(cls, made: Arranged, tokens: Array, parts: Parts) -> "RunCounts":
        """Only the samples, from arranged rows; `tokens`: the tokens of each row."""
        found, bits = {}, parts.histogram_bits
        for code, taken in parts.taken().items():
            if taken.most is not None:
                here = (made.part == code) & (made.sample > 0)
                first = made.sample[here] >> np.uint64(64 - bits)
                counts = np.bincount(first.astype(np.int64), tokens[here], 1 << bits)
                found[code] = counts.astype(np.int64)
        return cls(samples=found)

    def limits(self, parts: Parts) -> dict[int, Limit]:
        """Part -> the bin of the histogram in which its cutoff lies."""
        found = {}
        for code, counts in self.samples.items():
            until = np.cumsum(counts)
            place = int(np.searchsorted(until, parts.more(code)))
            place = min(place, len(until) - 1)
            first = place << (64 - parts.histogram_bits)
            last = first + (1 << (64 - parts.histogram_bits)) - 1
            found[code] = Limit(first, last, int(until[place] - counts[place]))
        return found

    @classmethod
    def of(cls, made: Arranged, number: Array, tokens: Array, parts: Parts, limits: Limits) -> "RunCounts":
        """Counts of one run; `number`: the shard of each row."""
        rows, sums, border = {}, {}, {}
        for code in np.unique(made.part).tolist():
            here = made.part == code
            limit = limits.get(code)
            sure = here
            if limit is not None:
                is_open = here & (made.sample >= np.uint64(max(1, limit.first)))
                sure = here & ~is_open
                found = [each[is_open].astype(np.uint64) for each in (made.sample, tokens, number)]
                border[code] = np.stack(found, axis=1)
            rows[code] = np.bincount(number[sure], minlength=int(parts.ranges[code]))
            drawn = np.count_nonzero(made.sample[sure])
            sums[code] = np.array([tokens[sure].sum(), drawn], np.int64)
        return cls(1, {}, rows, sums, border)


def _merged(
    mine: Mapping[int, Array], theirs: Mapping[int, Array], join: Callable[[Array, Array], Array] = np.add
) -> dict[int, Array]:
    """Part -> the arrays of both."""
    both = {code: join(mine[code], theirs[code]) for code in mine.keys() & theirs.keys()}
    return {**mine, **theirs, **both}


@dataclass(frozen=True, slots=True)
class MergedShards:
    """The shards of a shuffle: the ranges of keys that have rows, in the order of writing.

    Attributes:
        runs: see `Runs`.
        part, number, rows: int64 [shards], part, range of keys, and number of rows.
        most: part -> the largest sample key that is written.
        written: part -> (rows, tokens, rows drawn for one more copy).
    """

    runs: Runs
    part: Array
    number: Array
    rows: Array
    most: Mapping[int, int]
    written: Mapping[int, tuple[int, int, int]]

    @classmethod
    def of(cls, runs: Runs, counts: RunCounts, limits: Limits) -> "MergedShards":
        """From the counts of all runs."""
        most, written = {}, {}
        found = [np.zeros((3, 0), np.int64)]
        for code in sorted({*counts.rows, *counts.border}):
            rows = counts.rows[code].copy()
            tokens, drawn = counts.tokens[code].tolist()
            border = counts.border.get(code)
            if border is not None:
                samples = border[:, 0]
                sizes, number = border[:, 1:].astype(np.int64).T
                missing = runs.parts.more(code) - limits[code].before
                most[code] = cutoff(samples, sizes, missing) or 0
                taken = samples <= np.uint64(most[code])
                rows += np.bincount(number[taken], minlength=len(rows))
                tokens += int(sizes[taken].sum())
                drawn += int(np.count_nonzero(taken))
            written[code] = int(rows.sum()), tokens, drawn
            numbers = np.flatnonzero(rows)
            codes = np.full_like(numbers, code)
            found.append(np.stack([codes, numbers, rows[numbers]]))
        part, number, count = np.concatenate(found, axis=1)
        names = (runs.names[code] for code in part.tolist())
        split = np.array([split_of(name, runs.compose.splits) for name in names], np.int64)
        order = np.lexsort((part, number, split))
        return cls(runs, part[order], number[order], count[order], most, written)

    @property
    def parts(self) -> list[str]:
        """The part of each shard."""
        return [self.runs.names[code] for code in self.part.tolist()]

    def mixed(self) -> tuple[dict[str, dict[str, int]], int]:
        """(domain -> its entry in the manifest, how many records are left out), of the domains of a mix.

        `records` are written at least once. A record that is written n times counts n times in `rows`.
        """
        found, left_out, parts = {}, 0, self.runs.parts
        for code, taken in parts.taken().items():
            rows, tokens, drawn = self.written.get(code, (0, 0, 0))
            there = int(parts.rows[code])
            records = there if taken.copies else drawn
            domain = domain_of(self.runs.names[code], self.runs.compose.splits)
            found[domain] = {
                "wanted_tokens": parts.wanted[code],
                "tokens": tokens,
                "records": records,
                "rows": rows,
            }
            left_out += there - records
        return found, left_out

    def plans(self) -> Iterator[ShardPlan]:
        """The shards with their merges. The shards of one range of keys follow each other, as the shards of a flush do
        in input order."""
        plans = numbered(self.parts, self.runs.compose.splits)
        columns = (self.part.tolist(), self.number.tolist(), self.rows.tolist())
        for plan, code, number, rows in zip(plans, *columns, strict=True):
            merge = self.runs.merge(code, number, self.most.get(code, ALL))
            yield replace(plan, merge=merge, count=rows)


def batches_of(part: Array, keys: Array) -> list[tuple[int, int, int]]:
    """(part, range of keys, number of rows) of each batch; rows are sorted by part and range."""
    first = changes(part, keys)
    rows = np.diff(np.append(first, len(part)))
    return list(zip(part[first].tolist(), keys[first].tolist(), rows.tolist(), strict=True))
