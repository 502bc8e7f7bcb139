"""Splits: which rows are for training, which for validation, decided by a hash of each record alone."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.reading.keys import NO_KEY
from beam_prep.core.shards.order import mixed, mixed_number


@dataclass(frozen=True, slots=True)
class Splits:
    """A record keeps its split when others are added or go, and on every runner.

    >>> splits = bp.Splits.of({"train": 0.9, "test": 0.1}, seed=0)
    >>> splits.names
    ('train', 'test')

    Attributes:
        names: of the splits.
        shares: of each, as they are given; they add up to 1.
        seed: another one puts other records into each split.
        missing: the split of records without a key.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    seed: int = 0
    missing: str | None = None

    @classmethod
    def of(cls, shares: Mapping[str, float], seed: int = 0, missing: str | None = None) -> "Splits":
        """Name to share, in order."""
        return cls(tuple(shares), tuple(shares.values()), seed, missing)

    def codes(self, digests: Array) -> Array:
        """int64 [rows]: the number of each row's split.

        Args:
            digests: uint64 [rows], see `Ledger.digests`.
        """
        hashes = mixed(digests ^ np.uint64(mixed_number(self.seed)))
        # Exact borders: a float near 2^64 is off by thousands.
        until = itertools.accumulate(Fraction(str(share)) for share in self.shares[:-1])
        borders = np.array([min(int(share * (1 << 64)), (1 << 64) - 1) for share in until], np.uint64)
        found = np.searchsorted(borders, hashes, side="right")
        if self.missing is not None:
            found = np.where(digests == NO_KEY, self.names.index(self.missing), found)
        return found.astype(np.int64)


def split_of(part: str, splits: Splits | None) -> int:
    """The number of the split of a part, by its name; 0 without splits."""
    return 0 if splits is None else splits.names.index(part.partition("/")[0])


def domain_of(part: str, splits: Splits | None) -> str:
    """The domain of a part, by its name."""
    return part if splits is None else part.partition("/")[2]
