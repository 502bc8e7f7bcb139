"""What views that reorder rows share: an order of samples for each epoch, the part of a rank, and where it stopped.

All ranks go through one order: rank r of W takes the samples r, r + W, r + 2 W ... from where the view begins. So what
all ranks have taken together is always the first part of the order, and its length is the state: any number of ranks
can go on from there.
"""

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex

import numpy as np

from beam_prep.data.metadata import metadata_values
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column, Strategy
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.readers.rows import Rows
from beam_prep.shards.pack import POSITION_IDS, SEQ_LENS, STRATEGIES, plan_packs

Tail = Literal["keep", "drop"]


class Ranks(NamedTuple):
    """The part of a view that one rank sees.

    Attributes:
        rank, world_size: which of how many takes its samples.
        epoch: from 0.
        tail: what becomes of the last samples of an epoch, if the ranks cannot take equally many: `keep`: some ranks
            have one more; `drop`: none has them.
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
    """A view of samples in another order than that of the rows. A map-style dataset, and a source of grain.

    Args:
        samples: of an epoch, of all ranks together.
        key: of what the order depends on: a state of another key is refused.
        ranks: the part that this view is.
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
        """A number of what the samples are, and their order; states say it."""
        return self._key

    @abstractmethod
    def _ordered(self, epoch: int) -> None:
        """Makes the order of an epoch."""

    @abstractmethod
    def _read(self, places: Array) -> list[Row]:
        """The samples at these places of the epoch's order."""

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}, wanted 0 or more")
        self.epoch, self._start = epoch, 0
        self._ordered(epoch)

    def __len__(self) -> int:
        """Samples of this rank in what is left of the epoch."""
        left = self.samples - self._start
        return left // self.world_size if self._tail == "drop" else -(-max(0, left - self.rank) // self.world_size)

    def __getitem__(self, index: SupportsIndex) -> Row:
        """A sample of this rank, counted from where the view begins; negative: from the end.

        Raises:
            IndexError: there is no such sample.
        """
        return self.__getitems__([index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]:
        """The samples of a list, as torch's `DataLoader` asks for a batch. They share one array a column."""
        return self._read(self._places(indices))

    def _places(self, indices: Sequence[int] | Array) -> Array:
        return self._start + self.rank + self.world_size * checked(indices, len(self))

    def __iter__(self) -> Iterator[Row]:
        """The samples of this rank in what is left of the epoch."""
        for first in range(0, len(self), _AHEAD):
            yield from self.__getitems__(range(first, min(first + _AHEAD, len(self))))

    def state_dict(self, taken: int = 0) -> dict[str, int]:
        """Where to go on, as a few integers. The same for all ranks: save it on rank 0.

        Args:
            taken: samples that this rank has taken since the view was made, an epoch was set or a state was loaded: for
                a loader, the number of its batches times their size, and never more than `len`. The view does not
                count them: loaders ask for samples ahead of the trainer, and from other processes.
        """
        if not 0 <= taken <= len(self):
            raise ConfigError(f"taken is {taken}, wanted 0 to {len(self)}, the samples that this rank has here")
        position = min(self.samples, self._start + taken * self.world_size)
        if self._tail == "drop" and self.samples - position < self.world_size:
            position = self.samples
        return {"epoch": self.epoch, "position": position, "samples": self.samples, "key": self.key}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, of any number of ranks: the view now holds what is left of its epoch.

        Raises:
            ConfigError: it is the state of another view.
        """
        if (state.get("samples"), state.get("key")) != (self.samples, self.key):
            raise ConfigError(
                f"the state is that of another view ({state.get('samples')} samples, here are {self.samples}): make "
                "the view from the same output with the same seed and the same settings as before"
            )
        self.set_epoch(int(state["epoch"]))
        self._start = int(state["position"])


_AHEAD = 32
"""Samples that a loop over a view reads at once."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)."""


def shuffled(count: int, *key: int) -> Array:
    """int64 [count]: the numbers below `count`, in an order that these integers give: on every machine, for ever.

    Not numpy's shuffle, which may change from version to version.
    """
    start = np.uint64(0)
    for number in key:
        start = _mixed(start + np.array([number % (1 << 64)], np.uint64) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN))[0]
    numbers = np.arange(count, dtype=np.uint64)
    low = np.uint64((1 << max(0, count - 1).bit_length()) - 1)
    # Sorted by a random number; with the number itself in its low bits, sorting takes half the time of an argsort.
    keys = _mixed(numbers * np.uint64(_GOLDEN) + start) & ~low | numbers
    keys.sort()
    return (keys & low).astype(np.int64)


def _mixed(values: Array) -> Array:
    """The last step of SplitMix64: no two values become one."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(_FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(_SECOND)
    mixed: Array = values ^ values >> np.uint64(31)
    return mixed


def checked(indices: Sequence[int] | Array, count: int) -> Array:
    """int64: indices of rows, counted from the front.

    Raises:
        IndexError: one is not among the `count` rows, or they are no integers.
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
    """See `Dataset.packed`, which makes it.

    Attributes:
        samples: packed rows of an epoch, of all ranks together.
        fill_rate: tokens over what the packed rows could hold, 0 to 1.
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
        row = plan.piece_row.astype(narrow)
        self._row = row if order is None else order[row]
        self._start_of = plan.piece_start.astype(np.int32) if plan.piece_start.any() else None
        self._length_of = plan.piece_lengths.astype(np.int32)
        self._packs = plan.packs
        self.fill_rate = float(self._length_of.sum(dtype=np.int64) / max(1, len(plan) * length))
        key = zlib.crc32(lengths.tobytes(), zlib.crc32(f"{length} {seed} {strategy}".encode()))
        super().__init__(len(plan), key, ranks)

    def __repr__(self) -> str:
        return f"Packed({self._dataset!r}, samples={len(self)} of {self.samples}, fill_rate={self.fill_rate:.4f})"

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns of the dataset, then `position_ids` and `seq_lens`. Metadata is of each document."""
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
        ConfigError: there is none, or a column has no value for each of its tokens.
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
    return Mixture(parts, weights, seed, samples, Ranks(rank, world_size, epoch, tail))


class Mixture(View):
    """See `mixture`, which makes it.

    Attributes:
        quotas: samples of each part in an epoch.
        epochs: how often an epoch goes through each part.
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
    """int64: `total` in parts by weight; what is left by rounding goes to the largest remainders."""
    exact = total * weights / weights.sum()
    shares: Array = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:left]] += 1
    return shares
