"""Rows by number, and views that reorder them. A view has an order of samples for each epoch.

All ranks share one order: rank r of W takes the samples r, r + W, r + 2 W ... from the start of the view. So the
samples that all ranks together have taken are always the beginning of the order. The state is their number, and any
number of ranks can continue from it.
"""

import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np

from beam_prep.data.hashing import GOLDEN, mixed
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.hints import shown

Tail = Literal["keep", "drop"]


class Rows(ABC):
    """The base class of datasets and views.

    Attributes:
        schema: the columns, in order.
    """

    schema: tuple[Column, ...]

    @property
    @abstractmethod
    def key(self) -> int:
        """A checksum of the rows and their order. States of views hold it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Row]: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.schema)

    def torch(self) -> "TorchRows":
        """The rows as tensors of torch: a map-style dataset for `DataLoader` and torchdata's `StatefulDataLoader`.

        Integers are int64; a list of lists is a list of tensors. Metadata columns stay `str`, `int` and `float`.
        `bp.collate(..., arrays="torch")` makes tensors of batches, and is faster.
        """
        return TorchRows(self)

    def tf(self) -> Any:
        """The rows as a `tf.data.Dataset`, in order. A row is a dict of tensors [length]; a list of lists is a
        `RaggedTensor`. A metadata column is a scalar (in packed rows [documents]); strings are `tf.string`.
        """
        import tensorflow as tf

        def elements() -> Iterator[dict[str, Any]]:
            for row in self:
                yield {name: _ragged(tf, each) if isinstance(each, Ragged) else each for name, each in row.items()}

        made = tf.data.Dataset.from_generator(elements, output_signature=_signature(tf, self.schema))
        return made.apply(tf.data.experimental.assert_cardinality(len(self)))


def _signature(tf: Any, schema: Sequence[Column]) -> dict[str, Any]:
    return {
        column.name: tf.TensorSpec([None] * column.depth, tf.string if column.role == "string" else column.dtype)
        if column.depth <= 1
        else tf.RaggedTensorSpec([None, None], column.dtype, ragged_rank=1)
        for column in schema
    }


def _ragged(tf: Any, rows: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(np.asarray(rows.values), rows.offsets, validate=False)


class TorchRows:
    """See `Rows.torch`, which makes it."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self.__getitems__([index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {name: _tensors(values) for name, values in row.items()} for row in self._rows.__getitems__(list(indices))
        ]


def _tensors(values: Any) -> Any:
    if not isinstance(values, np.ndarray | Ragged):  # metadata: strings and numbers
        return values
    if isinstance(values, Ragged):
        return [_tensors(each) for each in values]
    import torch

    # Embeddings and losses take int64, and torch has few operations for unsigned integers.
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iu" else values)


class View(Rows):
    """A view of samples in a new order. It is a map-style dataset, and a data source for grain.

    Args:
        samples: the number of samples of an epoch, over all ranks.
        key: a checksum of everything that the order depends on. A state with another key is refused.
        rank, world_size: the number of this rank, whose samples this view has, and the number of ranks.
        epoch: the number of the epoch, from 0.
        tail: what happens to the last samples of an epoch that cannot be shared equally: `keep`: some ranks have one
            sample more; `drop`: no rank has them.
    """

    def __init__(self, samples: int, key: int, rank: int, world_size: int, epoch: int, tail: Tail) -> None:
        check("world_size", world_size, range(1, sys.maxsize))
        check("rank", rank, range(world_size))
        check("tail", tail, get_args(Tail))
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
        check("epoch", epoch, range(sys.maxsize))
        self.epoch, self._start = epoch, 0
        self._ordered(epoch)

    def __len__(self) -> int:
        """How many samples this rank has in the rest of the epoch."""
        left = self.samples - self._start
        return left // self.world_size if self._tail == "drop" else -(-max(0, left - self.rank) // self.world_size)

    def __getitem__(self, index: Any) -> Any:
        """A sample of this rank, counted from the start of the view (a negative index counts from the end); or a list
        of the samples of a slice or a list of numbers.

        Raises:
            IndexError: there is no such sample.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        return self.__getitems__(index) if np.ndim(index) else self.__getitems__([index])[0]

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
        check("taken", taken, range(len(self) + 1))
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


def shuffled(count: int, *key: int) -> Array:
    """int64 [count]: the numbers below `count` in a random order with the seed `key`, the same on every machine.

    numpy's shuffle may change between versions, so it is not used.
    """
    start = np.uint64(0)
    for number in key:
        added = np.array([number % (1 << 64)], np.uint64)
        start = mixed(start + added * np.uint64(GOLDEN) + np.uint64(GOLDEN))[0]
    numbers = np.arange(count, dtype=np.uint64)
    low = np.uint64((1 << max(0, count - 1).bit_length()) - 1)
    # A random key with the number itself in its low bits: to sort it takes half the time of an argsort.
    keys = mixed(numbers * np.uint64(GOLDEN) + start) & ~low | numbers
    keys.sort()
    return (keys & low).astype(np.int64)


def checked(indices: Sequence[int] | Array, count: int) -> Array:
    """int64: non-negative indices of rows; negative indices count from the end.

    Raises:
        IndexError: an index is not among the `count` rows, or the indices are not integers.
    """
    found = np.asarray(indices)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        hints = {"b": "; of a mask give np.flatnonzero(mask)", "U": "; for a column take it of rows: rows[0]['labels']"}
        wanted = f"wanted the number of a row, a slice or a list of numbers{hints.get(found.dtype.kind, '')}"
        raise IndexError(f"found {shown(found.tolist())}, {wanted}")
    wrong = (found < -count) | (found >= count)
    if wrong.any():
        raise IndexError(f"row {found[wrong][0]} of {count}")
    found = found.astype(np.int64)
    return np.where(found < 0, found + count, found)


WHOLE = range(-sys.maxsize, 1 << 64)


def check(name: str, value: object, allowed: Collection[object]) -> None:
    """Checks an argument: a whole number in a range, or one of several strings.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(allowed, range):
        wanted = f"a whole number from {allowed[0]} to {allowed[-1]}"
        known = isinstance(value, SupportsIndex) and not isinstance(value, bool) and value.__index__() in allowed
    else:
        wanted, known = f"one of {', '.join(map(str, allowed))}", value in allowed
    if not known:
        raise ConfigError(f"{name} is {shown(value)}, wanted {wanted}")


def why_not_packed(schema: Sequence[Column]) -> str | None:
    """Why rows of these columns cannot be packed; None: they can."""
    ids = [column.name for column in schema if column.role == "ids"]
    if len(ids) != 1:
        return f"rows with one column of ids can be packed, here are {', '.join(ids) or 'none'}"
    for column in schema:
        if column.role == "attention":
            return "the rows are padded: make the output without padding"
        if not column.of_tokens and not column.metadata:
            return f"column {column.name!r} has no value for each token"
    return None


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
    return Mixture(parts, weights, seed, samples, rank, world_size, epoch, tail)


class Mixture(View):
    """A view that mixes several datasets, see `mixture`.

    Attributes:
        quotas: part -> samples in an epoch.
        epochs: part -> how often an epoch goes through it.
    """

    def __init__(
        self, parts: Mapping[str, Rows], weights: Mapping[str, float], seed: int, samples: int | None, *ranks: Any
    ) -> None:
        self.schema = _check(parts, weights)
        self._names, self._parts, self._seed = list(parts), list(parts.values()), seed
        sizes = [len(part) for part in self._parts]
        total = sum(sizes) if samples is None else samples
        check("samples", total, range(1, sys.maxsize))
        check("seed", seed, WHOLE)
        self._quotas = _apportioned(total, np.array([weights[name] for name in self._names], float))
        self.quotas = dict(zip(self._names, self._quotas.tolist(), strict=True))
        self.epochs = {name: quota / size for (name, quota), size in zip(self.quotas.items(), sizes, strict=True)}
        keys = [part.key for part in self._parts]
        said = [*zip(self._names, self._quotas.tolist(), keys, strict=True), seed]
        super().__init__(total, zlib.crc32(repr(said).encode()), *ranks)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.3g} epochs" for name, share in self.epochs.items())
        return f"Mixture(samples={len(self)} of {self.samples}, {shares})"

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
                start, stop = quota * epoch, quota * (epoch + 1)  # positions in the epochs of the part
                first, last = start // len(part), (stop - 1) // len(part)
                turns = [shuffled(len(part), self._seed, number + 1, turn) for turn in range(first, last + 1)]
                skipped = start - first * len(part)
                self._row[self._part == number] = np.concatenate(turns)[skipped : skipped + quota]

    def _read(self, places: Array) -> list[Row]:
        rows: list[Row] = [{}] * len(places)
        parts = self._part[places]
        for number in np.unique(parts).tolist():
            mine = np.flatnonzero(parts == number)
            read = self._parts[number].__getitems__(self._row[places[mine]])
            for place, row in zip(mine.tolist(), read, strict=True):
                rows[place] = row
        return rows


def _check(parts: Mapping[str, Rows], weights: Mapping[str, float]) -> tuple[Column, ...]:
    """The columns of all parts.

    Raises:
        ConfigError: the parts cannot be mixed like this.
    """
    if not parts or not isinstance(parts, Mapping) or not all(isinstance(part, Rows) for part in parts.values()):
        raise ConfigError(f"found parts {shown(parts)}, wanted names with datasets: {{'a': bp.open('out/a')}}")
    if not isinstance(weights, Mapping) or parts.keys() != weights.keys():
        raise ConfigError(f"found weights {shown(weights)}, wanted a number for each of {', '.join(parts)}")
    first, schema = next((name, part.schema) for name, part in parts.items())
    for name, part in parts.items():
        weight = weights[name]
        if not isinstance(weight, Real) or not 0 < weight < float("inf"):
            raise ConfigError(f"the weight of {name!r} is {shown(weight)}, wanted a number above 0; leave it out for 0")
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
    return schema


def _shown(column: Column) -> str:
    return f"{column.name} ({column.dtype}, {column.role})"


def _apportioned(total: int, weights: Array) -> Array:
    """int64: `total` divided by weight; the rest after rounding goes to the largest remainders."""
    exact = total * weights / weights.sum()
    shares: Array = np.floor(exact).astype(np.int64)
    left = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:left]] += 1
    return shares
