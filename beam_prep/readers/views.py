"""Views that reorder rows: packed views and mixtures. A view has an order of samples for each epoch.

All ranks share one order: rank r of W takes the samples r, r + W, r + 2 W ... from the start of the view. So the
samples that all ranks together have taken are always the beginning of the order. The state is their number, and any
number of ranks can continue from it.
"""

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex

import numpy as np

from beam_prep.data.metadata import metadata_values
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.readers.rows import Rows
from beam_prep.shards.pack import POSITION_IDS, SEQ_LENS, STRATEGIES, Strategy, plan_packs

Tail = Literal["keep", "drop"]


class Ranks(NamedTuple):
    """The part of a view that one rank sees.

    Attributes:
        rank, world_size: the number of this rank, and the number of ranks.
        epoch: the number of the epoch, from 0.
        tail: what happens to the last samples of an epoch that cannot be shared equally: `keep`: some ranks have one
            sample more; `drop`: no rank has them.
    """

    rank: int
    world_size: int
    epoch: int
    tail: Tail


class Packable(Protocol):
    """A dataset: rows that can be packed."""

    @property
    def path(self) -> Any: ...
    @property
    def schema(self) -> tuple[Column, ...]: ...
    def lengths(self, column: str) -> Array: ...
    def gather(self, indices: Array, cuts: tuple[Array, Array] | None = None) -> dict[str, Ragged]: ...


class View(Rows):
    """A view of samples in a new order. It is a map-style dataset, and a data source for grain.

    Args:
        samples: the number of samples of an epoch, over all ranks.
        key: a checksum of everything that the order depends on. A state with another key is refused.
        ranks: the rank whose samples this view has.
    """

    def __init__(self, samples: int, key: int, ranks: Ranks) -> None:
        rank, world_size, epoch, tail = ranks
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank is {rank} of world_size {world_size}, wanted 0 to world_size - 1")
        if tail not in ("keep", "drop"):
            raise ConfigError(f"tail is {tail!r}, wanted keep or drop")
        self.samples, self.rank, self.world_size = samples, rank, world_size
        self._key, self._tail = key, tail
        self.set_epoch(epoch)

    @property
    def key(self) -> int:
        """A checksum of the samples and their order. States hold it."""
        return self._key

    @abstractmethod
    def _ordered(self, epoch: int) -> None:
        """Makes the order of an epoch."""

    @abstractmethod
    def _read(self, places: Array) -> list[Row]:
        """The samples at these positions of the epoch's order."""

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}, wanted 0 or more")
        self.epoch, self._start = epoch, 0
        self._ordered(epoch)

    def __len__(self) -> int:
        """How many samples this rank has in the rest of the epoch."""
        left = self.samples - self._start
        return left // self.world_size if self._tail == "drop" else -(-max(0, left - self.rank) // self.world_size)

    def __getitem__(self, index: SupportsIndex) -> Row:
        """A sample of this rank, counted from the start of the view; a negative index counts from the end.

        Raises:
            IndexError: there is no such sample.
        """
        return self.__getitems__([index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]:
        """Several samples. torch's `DataLoader` calls it for each batch. They share one array a column."""
        return self._read(self._places(indices))

    def _places(self, indices: Sequence[int] | Array) -> Array:
        return self._start + self.rank + self.world_size * checked(indices, len(self))

    def __iter__(self) -> Iterator[Row]:
        """The samples of this rank in the rest of the epoch."""
        for first in range(0, len(self), _AHEAD):
            yield from self.__getitems__(range(first, min(first + _AHEAD, len(self))))

    def state_dict(self, taken: int = 0) -> dict[str, int]:
        """The state from which to continue, a few integers. It is the same on all ranks: save it on rank 0.

        Args:
            taken: how many samples this rank has taken since the view was made, an epoch was set or a state was loaded.
                For a loader: the number of batches times their size, at most `len`. The view cannot count them, because
                loaders read ahead of the trainer, and in other processes.
        """
        if not 0 <= taken <= len(self):
            raise ConfigError(f"taken is {taken}, wanted 0 to {len(self)}, the samples that this rank has here")
        position = min(self.samples, self._start + taken * self.world_size)
        if self._tail == "drop" and self.samples - position < self.world_size:
            position = self.samples
        return {"epoch": self.epoch, "position": position, "samples": self.samples, "key": self.key}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of any number of ranks. The view then has the rest of the state's epoch.

        Raises:
            ConfigError: the state belongs to another view.
        """
        if (state.get("samples"), state.get("key")) != (self.samples, self.key):
            raise ConfigError(
                f"the state is that of another view ({state.get('samples')} samples, here are {self.samples}): make "
                "the view from the same output with the same seed and the same settings as before"
            )
        self.set_epoch(int(state["epoch"]))
        self._start = int(state["position"])


_AHEAD = 32
"""Samples that a loop over a view reads at a time."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)."""


def shuffled(count: int, *key: int) -> Array:
    """int64 [count]: the numbers below `count` in a random order with the seed `key`, the same on every machine.

    numpy's shuffle may change between versions, so it is not used.
    """
    start = np.uint64(0)
    for number in key:
        start = _mixed(start + np.array([number % (1 << 64)], np.uint64) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN))[0]
    numbers = np.arange(count, dtype=np.uint64)
    low = np.uint64((1 << max(0, count - 1).bit_length()) - 1)
    # A random key with the number itself in its low bits: to sort it takes half the time of an argsort.
    keys = _mixed(numbers * np.uint64(_GOLDEN) + start) & ~low | numbers
    keys.sort()
    return (keys & low).astype(np.int64)


def _mixed(values: Array) -> Array:
    """The last step of SplitMix64. Different values stay different."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(_FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(_SECOND)
    mixed: Array = values ^ values >> np.uint64(31)
    return mixed


def checked(indices: Sequence[int] | Array, count: int) -> Array:
    """int64: non-negative indices of rows; negative indices count from the end.

    Raises:
        IndexError: an index is not among the `count` rows, or the indices are not integers.
    """
    found = np.asarray(indices)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        hint = "; of a mask give np.flatnonzero(mask)" if found.dtype == bool else ""
        raise IndexError(f"found {found.ndim} dimensions of {found.dtype}, wanted a list of integers{hint}")
    wrong = (found < -count) | (found >= count)
    if wrong.any():
        raise IndexError(f"row {found[wrong][0]} of {count}")
    found = found.astype(np.int64)
    return np.where(found < 0, found + count, found)


class Packed(View):
    """A view of packed rows, see `Dataset.packed`.

    Attributes:
        samples: packed rows of an epoch, over all ranks.
        fill_rate: tokens as a share of the capacity of the packed rows, 0 to 1.
    """

    def __init__(self, dataset: Packable, length: int, seed: int | None, strategy: Strategy, ranks: Ranks) -> None:
        ids = ids_of(dataset)
        if strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {strategy!r}, wanted one of {', '.join(STRATEGIES)}")
        if not 1 <= length < 2**31:
            raise ConfigError(f"length is {length}, wanted 1 to {2**31 - 1} tokens")
        self._dataset, self._seed = dataset, seed
        lengths = dataset.lengths(ids)
        narrow = np.int32 if len(lengths) < 2**31 else np.int64
        order = None if seed is None else shuffled(len(lengths), seed).astype(narrow)
        plan = plan_packs(lengths if order is None else lengths[order], strategy, length)
        row = plan.pieces.row.astype(narrow)
        self._row = row if order is None else order[row]
        self._start_of = plan.pieces.start.astype(np.int32) if plan.pieces.start.any() else None
        self._length_of = plan.pieces.lengths.astype(np.int32)
        self._packs = plan.packs
        self.fill_rate = float(self._length_of.sum(dtype=np.int64) / max(1, len(plan) * length))
        key = zlib.crc32(lengths.tobytes(), zlib.crc32(f"{length} {seed} {strategy}".encode()))
        super().__init__(len(plan), key, ranks)

    def __repr__(self) -> str:
        return f"Packed({self._dataset!r}, samples={len(self)} of {self.samples}, fill_rate={self.fill_rate:.4f})"

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns of the dataset, then `position_ids` and `seq_lens`. Metadata columns have a value a document."""
        (ids,) = (column.name for column in self._dataset.schema if column.role == "ids")
        added = Column(POSITION_IDS, "int32", 1, "position", ids), Column(SEQ_LENS, "int32", 1, "lengths", ids)
        schema = (replace(column, depth=1) if column.metadata else column for column in self._dataset.schema)
        return (*schema, *added)

    def _ordered(self, epoch: int) -> None:
        self._order = None if self._seed is None else shuffled(self.samples, self._seed, epoch)

    def _read(self, places: Array) -> list[Row]:
        packs = places if self._order is None else self._order[places]
        first, stop = self._packs[packs], self._packs[packs + 1]
        counts = stop - first
        pieces = np.arange(counts.sum()) + np.repeat(first - offsets_of(counts)[:-1], counts)
        lengths = self._length_of[pieces]
        starts = np.zeros_like(lengths) if self._start_of is None else self._start_of[pieces]
        columns = self._dataset.gather(self._row[pieces].astype(np.int64), (starts, starts + lengths))
        tokens = offsets_of(lengths)
        positions = (np.arange(tokens[-1]) - np.repeat(tokens[:-1], lengths)).astype(np.int32)
        documents = offsets_of(counts)
        beside = {c.name: metadata_values(c, columns.pop(c.name)) for c in self._dataset.schema if c.metadata}
        values = {name: rows.flat for name, rows in columns.items()} | {POSITION_IDS: positions}
        rows = []
        for pack in range(len(packs)):
            a, b = documents[pack], documents[pack + 1]
            row: Row = {name: flat[tokens[a] : tokens[b]] for name, flat in values.items()}
            rows.append(row | {name: found[a:b] for name, found in beside.items()} | {SEQ_LENS: lengths[a:b]})
        return rows


def ids_of(dataset: Packable) -> str:
    """The column of ids that can be packed.

    Raises:
        ConfigError: there is no such column, or another column does not have a value for each token.
    """
    ids = [column.name for column in dataset.schema if column.role == "ids"]
    if len(ids) != 1:
        raise ConfigError(f"rows with one column of ids can be packed, {dataset.path} has {', '.join(ids) or 'none'}")
    for column in dataset.schema:
        if column.role == "lengths":
            raise ConfigError(f"the rows of {dataset.path} are packed already: make the output without packing")
        if column.role == "attention":
            raise ConfigError(f"the rows of {dataset.path} are padded: make the output without padding")
        if column.role == "position":
            raise ConfigError(f"{dataset.path} has {column.name!r}, which a packed view makes: leave it out there")
        if not column.of_tokens and not column.metadata:
            raise ConfigError(f"column {column.name!r} of {dataset.path} has no value for each token: not to be packed")
    return ids[0]


def mixture(
    parts: Mapping[str, Rows],
    weights: Mapping[str, float],
    seed: int = 0,
    samples: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    epoch: int = 0,
    tail: Tail = "keep",
) -> "Mixture":
    """A view that mixes several datasets (outputs, domains, packed views) by weights.

    An epoch has `samples` samples. Each part gets exactly its share by weight. Seed and epoch give the order. The rows
    of a part come in a random order, which continues from one epoch of the mixture to the next. When all rows of a part
    were seen, it begins again in another order. So a row comes again only after all other rows of its part, and a part
    with a small weight is seen completely over several epochs. `Mixture.epochs` tells how often an epoch goes through
    each part.

    >>> ds = bp.open("out/chat")
    >>> mixed = bp.mixture({"first": ds[:20], "rest": ds[20:]}, {"first": 0.25, "rest": 0.75}, seed=1, samples=160)
    >>> len(mixed), mixed.quotas, mixed.epochs
    (160, {'first': 40, 'rest': 120}, {'first': 2.0, 'rest': 0.5})
    >>> mixed.source(0)
    ('rest', 207)

    Args:
        parts: name -> dataset; all with the same columns.
        weights: name -> weight, more than 0; only their proportions count.
        seed: the seed of all orders.
        samples: samples of an epoch, over all ranks; default: the number of rows of all parts.
        rank, world_size, epoch, tail: see `Dataset.packed`.

    Raises:
        ConfigError: the parts do not fit together, or an argument is wrong.
    """
    return Mixture(parts, weights, seed, samples, Ranks(rank, world_size, epoch, tail))


class Mixture(View):
    """A view that mixes several datasets, see `mixture`.

    Attributes:
        quotas: part -> samples in an epoch.
        epochs: part -> how often an epoch goes through it.
    """

    def __init__(
        self, parts: Mapping[str, Rows], weights: Mapping[str, float], seed: int, samples: int | None, ranks: Ranks
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
        super().__init__(total, zlib.crc32(repr(said).encode()), ranks)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.3g} epochs" for name, share in self.epochs.items())
        return f"Mixture(samples={len(self)} of {self.samples}, {shares})"

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns, in order."""
        return self._parts[0].schema

    def source(self, index: int) -> tuple[str, int]:
        """(part of a sample, row number in the part)."""
        (place,) = self._places([index])
        return self._names[int(self._part[place])], int(self._row[place])

    def _ordered(self, epoch: int) -> None:
        kind = np.uint16 if len(self._parts) < 2**16 else np.int64
        self._part = np.repeat(np.arange(len(self._parts), dtype=kind), self._quotas)
        self._part = self._part[shuffled(self.samples, self._seed, epoch)]
        self._row = np.empty(self.samples, np.int64)
        for number, (part, quota) in enumerate(zip(self._parts, self._quotas.tolist(), strict=True)):
            if quota:
                wanted = np.arange(quota * epoch, quota * (epoch + 1))  # positions in the epochs of the part
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


def _check(parts: Mapping[str, Rows], weights: Mapping[str, float]) -> None:
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
    """int64: `total` divided by weight; the rest after rounding goes to the largest remainders."""
    exact = total * weights / weights.sum()
    shares: Array = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:left]] += 1
    return shares
