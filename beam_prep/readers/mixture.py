"""`bp.mixture(...)`: samples of several datasets, by weights."""

import zlib
from collections.abc import Mapping

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.data.schema import Column
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.view import Tail, View, shuffled

Part = Dataset | View


def mixture(
    parts: Mapping[str, Part],
    weights: Mapping[str, float],
    seed: int = 0,
    samples: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    epoch: int = 0,
    tail: Tail = "keep",
) -> "Mixture":
    """A view of several datasets (outputs, domains, packed views), by weights.

    An epoch has `samples` samples: of each part its share by weight, exactly, in a random order that seed and epoch
    give. A part goes through all of its rows in a random order, from one epoch of the mixture to the next; when it
    ends, it begins anew in another order. So no row comes again before all others of its part were there, and a
    part of a small weight is seen in full over several epochs. `Mixture.epochs` says how often an epoch goes through
    each part.

    >>> ds = bp.open("out/chat")
    >>> mixed = bp.mixture({"first": ds[:20], "rest": ds[20:]}, {"first": 0.25, "rest": 0.75}, seed=1, samples=160)
    >>> len(mixed), mixed.quotas, mixed.epochs
    (160, {'first': 40, 'rest': 120}, {'first': 2.0, 'rest': 0.5})
    >>> mixed.source(0)
    ('rest', 207)

    Args:
        parts: by name; all with the same columns.
        weights: of each part, more than 0; only their proportions count.
        seed: see above.
        samples: of an epoch, of all ranks together; default: as many as all parts have rows.
        rank, world_size, epoch, tail: see `Dataset.packed`.

    Raises:
        ConfigError: the parts do not fit together, or an argument is wrong.
    """
    return Mixture(parts, weights, seed, samples, rank, world_size, epoch, tail)


class Mixture(View):
    """See `mixture`, which makes it.

    Attributes:
        quotas: samples of each part in an epoch.
        epochs: how often an epoch goes through each part.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        weights: Mapping[str, float],
        seed: int,
        samples: int | None,
        rank: int,
        world_size: int,
        epoch: int,
        tail: Tail,
    ) -> None:
        _check(parts, weights)
        self._names, self._parts, self._seed = list(parts), list(parts.values()), seed
        sizes = [len(part) for part in self._parts]
        total = sum(sizes) if samples is None else samples
        if total < 1:
            raise ConfigError(f"samples is {total}, wanted 1 or more")
        self._quotas = _apportioned(total, np.array([weights[name] for name in self._names], float))
        self.quotas = dict(zip(self._names, self._quotas.tolist(), strict=True))
        self.epochs = {name: quota / size for (name, quota), size in zip(self.quotas.items(), sizes, strict=True)}
        said = [*zip(self._names, self._quotas.tolist(), (part.key for part in self._parts), strict=True), seed]
        super().__init__(total, zlib.crc32(repr(said).encode()), rank, world_size, epoch, tail)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.3g} epochs" for name, share in self.epochs.items())
        return f"Mixture(samples={len(self)} of {self.samples}, {shares})"

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns, in order."""
        return self._parts[0].schema

    def source(self, index: int) -> tuple[str, int]:
        """The part of a sample, and its row there."""
        (place,) = self._places([index])
        return self._names[int(self._part[place])], int(self._row[place])

    def _ordered(self, epoch: int) -> None:
        kind = np.uint16 if len(self._parts) < 2**16 else np.int64
        self._part = np.repeat(np.arange(len(self._parts), dtype=kind), self._quotas)
        self._part = self._part[shuffled(self.samples, self._seed, epoch)]
        self._row = np.empty(self.samples, np.int64)
        for number, (part, quota) in enumerate(zip(self._parts, self._quotas.tolist(), strict=True)):
            if quota:
                wanted = np.arange(quota * epoch, quota * (epoch + 1))  # of the part's epochs, one after the other
                found = np.empty(quota, np.int64)
                for turn in range(int(wanted[0]) // len(part), int(wanted[-1]) // len(part) + 1):
                    mine = wanted // len(part) == turn
                    found[mine] = shuffled(len(part), self._seed, number + 1, turn)[wanted[mine] % len(part)]
                self._row[self._part == number] = found

    def _read(self, places: Array) -> list[Row]:
        rows: list[Row] = [{}] * len(places)
        parts = self._part[places]
        for number in np.unique(parts).tolist():
            mine = np.flatnonzero(parts == number)
            read = self._parts[number].__getitems__(self._row[places[mine]])
            for place, row in zip(mine.tolist(), read, strict=True):
                rows[place] = row
        return rows


def _check(parts: Mapping[str, Part], weights: Mapping[str, float]) -> None:
    if not parts:
        raise ConfigError("there are no parts: give a dataset or more")
    if parts.keys() != weights.keys():
        raise ConfigError(f"found weights of {', '.join(weights)}, wanted those of {', '.join(parts)}")
    first, schema = next((name, part.schema) for name, part in parts.items())
    for name, part in parts.items():
        if not 0 < weights[name] < float("inf"):
            raise ConfigError(f"the weight of {name!r} is {weights[name]}, wanted more than 0; leave it out for none")
        if part.schema != schema:
            raise ConfigError(
                f"{name!r} has the columns {', '.join(map(_shown, part.schema))}; {first!r} has "
                f"{', '.join(map(_shown, schema))}: make them with the same config"
            )
        if isinstance(part, View) and (part.world_size > 1 or part.state_dict(0)["position"]):
            raise ConfigError(
                f"{name!r} is the part of a rank, or of an epoch: give rank and world_size to the mixture"
            )
        if len(part) == 0:
            raise ConfigError(f"{name!r} has no rows: leave it out")


def _shown(column: Column) -> str:
    return f"{column.name} ({column.dtype}, {column.role})"


def _apportioned(total: int, weights: Array) -> Array:
    """int64: `total` in parts by weight; what is left by rounding goes to the largest remainders."""
    exact = total * weights / weights.sum()
    shares: Array = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:left]] += 1
    return shares
