"""What a shuffle, splits, a mix and deduplication write, as a sequential program. Nothing of beam_prep is used.

Keys are made of Python's integers, so that a change of how they are made is noticed: it would change every output.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

ALL = 2**64
NO_KEY = ALL - 1


def mixed(value: int) -> int:
    """The finaliser of SplitMix64."""
    value = (value + 0x9E3779B97F4A7C15) % ALL
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % ALL
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % ALL
    return value ^ (value >> 31)


def mixed_number(*values: int) -> int:
    found = 0
    for value in values:
        found = mixed(found ^ value)
    return found


def shuffle_key(seed: int, file: int, line: int, copy: int = 0) -> int:
    first, second = mixed_number(seed, file, copy, 1), mixed_number(seed, file, copy, 2)
    return mixed(mixed((line + first) % ALL) ^ second)


def sample_key(key: int) -> int:
    return max(1, mixed(key ^ 0xD1B54A32D192ED03))


def split_digest(record: Any) -> int:
    """Of a record."""
    return _digest(json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def key_digest(value: Any) -> int:
    """Of the value of its `split_key`: a text, a number or the like."""
    return _digest(f"text {value}" if isinstance(value, str) else f"json {json.dumps(value)}")


def _digest(text: str) -> int:
    found = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return 0 if found == NO_KEY else found


@dataclass(frozen=True)
class Row:
    """A record that comes through all steps.

    Attributes:
        id: any number.
        domain, tokens: its own.
        digest: that decides its split; `NO_KEY`: it has no key.
        same: records with equal values are copies.
    """

    id: int
    domain: str = "d"
    tokens: int = 1
    digest: int = 0
    same: Any = None


Mix = Mapping[str, Mapping[str, Any]]
"""Domain to `tokens`, `share` or `epochs`, and `repeat`; as in a config."""


@dataclass(frozen=True)
class Job:
    """What is made of the rows; names are those of a config."""

    max_tokens: int = 100
    shuffle: int | None = None
    splits: Mapping[str, float] | None = None
    split_seed: int = 0
    split_missing: str | None = None
    mix: Mix = field(default_factory=dict)
    deduplicate: bool = False
    max_items: int | None = None


Place = tuple[int, int]
"""(file, line)"""
Part = tuple[str | None, str]
"""(split, domain)"""


class Cannot(Exception):
    """The mix cannot be made."""


@dataclass
class Naive:
    """The program.

    Attributes:
        shards: of each part, the ids of the rows of each shard.
        copies: place of a record that is left out -> of the one that it is equal to.
        wanted: of each domain of the mix, tokens.
    """

    files: Sequence[Sequence[Row | None]]
    job: Job

    def __post_init__(self) -> None:
        self.copies: dict[Place, Place] = {}
        self.wanted: dict[str, int] = {}
        rows = self._kept()
        parts: dict[Part, list[tuple[Place, Row]]] = {}
        for place, row in rows:
            parts.setdefault((self.split(row), row.domain), []).append((place, row))
        self.parts = parts
        self.shards = self._in_order(rows) if self.job.shuffle is None else self._shuffled(self.job.shuffle)

    def _kept(self) -> list[tuple[Place, Row]]:
        first: dict[Any, Place] = {}
        found: list[tuple[Place, Row]] = []
        for file, rows in enumerate(self.files):
            for line, row in enumerate(rows):
                if row is None or len(found) == self.job.max_items:
                    continue
                place = file, line
                if self.job.deduplicate and first.setdefault(row.same, place) != place:
                    self.copies[place] = first[row.same]
                else:
                    found.append((place, row))
        return found

    def split(self, row: Row) -> str | None:
        """The split of a row."""
        if self.job.splits is None:
            return None
        if row.digest == NO_KEY and self.job.split_missing is not None:
            return self.job.split_missing
        share, until = Fraction(mixed(row.digest ^ mixed_number(self.job.split_seed)), ALL), Fraction(0)
        *names, last = self.job.splits
        for name in names:
            until += Fraction(str(self.job.splits[name]))
            if share < Fraction(int(until * ALL), ALL):
                return name
        return last

    def _in_order(self, rows: list[tuple[Place, Row]]) -> dict[Part, list[list[int]]]:
        found: dict[Part, list[list[int]]] = {}
        for split in [None] if self.job.splits is None else self.job.splits:
            held: dict[str, list[int]] = {}
            tokens = 0
            mine = [row for _, row in rows if self.split(row) == split]
            for number, row in enumerate(mine, 1):
                held.setdefault(row.domain, []).append(row.id)
                tokens += row.tokens
                if tokens >= self.job.max_tokens or number == len(mine):
                    for domain, ids in held.items():
                        found.setdefault((split, domain), []).append(ids)
                    held, tokens = {}, 0
        return found

    def _shuffled(self, seed: int) -> dict[Part, list[list[int]]]:
        names: Sequence[str | None] = [None] if self.job.splits is None else [*self.job.splits]
        there = {part: sum(row.tokens for _, row in rows) for part, rows in self.parts.items()}
        if self.job.mix:
            first = {part[1]: count for part, count in there.items() if part[0] == names[0]}
            self.wanted = _budgets(self.job.mix, first)
        found: dict[Part, list[list[int]]] = {}
        for split in names:
            mine = {part: rows for part, rows in self.parts.items() if part[0] == split}
            wanted_of = self.wanted if split == names[0] else {}
            tokens = sum(wanted_of.get(part[1], there[part]) for part in mine)
            ranges = max(1, -(-tokens // self.job.max_tokens))
            for part, rows in mine.items():
                keyed = self._taken(seed, rows, there[part], wanted_of.get(part[1]))
                by_range: dict[int, list[int]] = {}
                for key, _, _, id_ in sorted(keyed):
                    by_range.setdefault(key * ranges // ALL, []).append(id_)
                if by_range:
                    found[part] = [by_range[number] for number in sorted(by_range)]
        return found

    @staticmethod
    def _taken(
        seed: int, rows: list[tuple[Place, Row]], there: int, wanted: int | None
    ) -> list[tuple[int, Place, int, int]]:
        """(key, place, copy, id)"""
        copies, more = (1, 0) if wanted is None else divmod(wanted, there)
        found = [
            (shuffle_key(seed, *place, copy), place, copy, row.id) for place, row in rows for copy in range(copies)
        ]
        drawn = [(shuffle_key(seed, *place, copies), place, row) for place, row in rows]
        for key, place, row in sorted(drawn, key=lambda each: (sample_key(each[0]), each[0], each[1])):
            if more <= 0:
                break
            more -= row.tokens
            found.append((key, place, copies, row.id))
        return found


def _budgets(mix: Mix, there: Mapping[str, int]) -> dict[str, int]:
    """Domain to tokens."""
    if any(not there.get(domain) for domain in mix):
        raise Cannot("a domain that is not there")
    wanted = {domain: int(Fraction(str(each["tokens"]))) for domain, each in mix.items() if "tokens" in each}
    wanted |= {
        domain: int(Fraction(str(each["epochs"])) * there[domain]) for domain, each in mix.items() if "epochs" in each
    }
    shares = {domain: Fraction(str(each["share"])) for domain, each in mix.items() if "share" in each}
    others = sum(wanted.values()) + sum(count for domain, count in there.items() if domain not in mix)
    rest = 1 - sum(shares.values())
    if shares and (rest > 0) != (others > 0):
        raise Cannot("shares and the rest")
    if shares:
        if rest:
            total = Fraction(others) / rest
        else:
            limits = {domain: there[domain] / share for domain, share in shares.items()}
            scarce = [limit for domain, limit in limits.items() if not mix[domain].get("repeat")]
            total = min(scarce) if scarce else max(limits.values())
        wanted |= {domain: int(share * total) for domain, share in shares.items()}
    for domain, tokens in wanted.items():
        if tokens > there[domain] and "epochs" not in mix[domain] and not mix[domain].get("repeat"):
            raise Cannot("too few tokens")
    return wanted
