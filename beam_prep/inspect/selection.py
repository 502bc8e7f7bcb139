"""The options of `beam-prep inspect` that choose rows."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from beam_prep.data.ragged import Array
from beam_prep.errors import BeamPrepError

EXTREMES = 10
"""How many rows `--shortest` and `--longest` show without `--count`."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows to show. By default: the first, the shortest, the longest, and a few that are drawn.

    Attributes:
        record: the number of one row (negative: from the end); with `domain` or `split`, its number there.
        count: most rows; without other options, the first rows.
        domain: only rows of this domain.
        split: only rows of this split.
        random: draws so many rows.
        seed: the seed of `random`; the same seed draws the same rows. Default: 0.
        shortest, longest: the shortest (longest) rows, the shortest (longest) first.
        grep: rows whose text matches this regular expression.
        reason: instead of rows, the records that were left out for this reason; `dropped`, `rejected`: for any reason.

    Raises:
        BeamPrepError: options exclude each other, or a value is wrong; the message says what to type.
    """

    record: int | None = None
    count: int | None = None
    domain: str | None = None
    split: str | None = None
    random: int | None = None
    seed: int | None = None
    shortest: bool = False
    longest: bool = False
    grep: str | None = None
    reason: str | None = None
    pattern: "re.Pattern[str] | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("count", "random", "seed"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise BeamPrepError(f"--{name} is {value}, wanted 0 or more")
        given = [name for name in _NOT_BESIDE if getattr(self, name) is not None and getattr(self, name) is not False]
        for one in given:
            for other in _NOT_BESIDE[one]:
                if other in given:
                    hint = _HINTS.get((one, other), f"leave out one of them: --{one}, or --{other}")
                    raise BeamPrepError(f"--{one} and --{other} exclude each other; {hint}")
        if self.seed is not None and self.random is None:
            raise BeamPrepError(f"--seed without --random; type: --random 10 --seed {self.seed}")
        if self.grep is not None:
            try:
                object.__setattr__(self, "pattern", re.compile(self.grep))
            except re.error as error:
                raise BeamPrepError(
                    f"--grep {self.grep!r} is no regular expression ({error}); to find it as it is, type: "
                    f"--grep {shlex.quote(re.escape(self.grep))}"
                ) from None

    @property
    def where(self) -> str:
        """` of domain 'math' of split 'train'`; empty for all rows."""
        named = {"domain": self.domain, "split": self.split}
        return "".join(f" of {kind} {name!r}" for kind, name in named.items() if name is not None)

    @property
    def narrows(self) -> bool:
        """True if the options choose rows. `domain` and `split` alone do not."""
        return self.record is not None or self.count is not None or self.searches or self.random is not None

    @property
    def searches(self) -> bool:
        """True if all rows are searched."""
        return self.shortest or self.longest or self.grep is not None or self.reason is not None

    def says(self, kind: str, reason: str) -> bool:
        """True if the option `reason` chooses a record that was left out."""
        return self.reason in (kind, reason)


_NOT_BESIDE: Mapping[str, tuple[str, ...]] = {
    "record": ("count", "random", "shortest", "longest", "grep", "reason"),
    "random": ("count", "shortest", "longest", "grep", "reason"),
    "shortest": ("longest", "grep", "reason"),
    "longest": ("grep", "reason"),
    "reason": ("domain", "split"),
    "count": (),
    "grep": (),
    "domain": (),
    "split": (),
}
_HINTS = {
    ("random", "count"): "for N rows that are drawn type: --random N; for the first N: --count N",
    ("shortest", "longest"): "without either you see the shortest row, and the longest",
    ("reason", "domain"): "a record that was left out has no domain; leave out --domain",
    ("reason", "split"): "a record that was left out is in no split; leave out --split",
}


def extremes(parts: Iterable[tuple[Array, Array]], count: int, longest: bool) -> Iterator[tuple[int, int]]:
    """(row, size) of the shortest or the longest rows, in order of size; equal rows in order of their numbers.

    Args:
        parts: int64 [rows] each: numbers of rows, ascending over all parts, and their sizes.
        count: how many rows. Memory holds one part and these rows.
        longest: the longest rows; False: the shortest.
    """
    numbers, sizes = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for more, found in parts:
        numbers, sizes = np.concatenate([numbers, more]), np.concatenate([sizes, found])
        order = np.lexsort((numbers, -sizes if longest else sizes))[:count]
        numbers, sizes = numbers[order], sizes[order]
    yield from zip(numbers.tolist(), sizes.tolist(), strict=True)
