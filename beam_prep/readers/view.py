"""What views that reorder rows share: an order of samples for each epoch, the part of a rank, and where it stopped.

All ranks go through one order: rank r of W takes the samples r, r + W, r + 2 W ... from where the view begins. So what
all ranks have taken together is always the first part of the order, and its length is the state: any number of ranks
can go on from there.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.data.schema import Column
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.readers.dataset import checked

if TYPE_CHECKING:
    from beam_prep.readers.torch_rows import TorchRows

Tail = Literal["keep", "drop"]


class View(ABC):
    """A view of samples in another order than that of the rows. A map-style dataset, and a source of grain.

    Args:
        samples: of an epoch, of all ranks together.
        key: of what the order depends on: a state of another key is refused.
        rank, world_size: which of how many takes its samples.
        epoch: from 0.
        tail: what becomes of the last samples of an epoch, if the ranks cannot take equally many: `keep`: some ranks
            have one more; `drop`: none has them.
    """

    def __init__(self, samples: int, key: int, rank: int, world_size: int, epoch: int, tail: Tail) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank is {rank} of world_size {world_size}, wanted 0 to world_size - 1")
        if tail not in ("keep", "drop"):
            raise ConfigError(f"tail is {tail!r}, wanted keep or drop")
        self.samples, self.rank, self.world_size = samples, rank, world_size
        self.key, self._tail = key, tail
        self._start = 0
        self.set_epoch(epoch)

    @property
    @abstractmethod
    def schema(self) -> tuple[Column, ...]:
        """The columns, in order."""

    @abstractmethod
    def _ordered(self, epoch: int) -> None:
        """Makes the order of an epoch."""

    @abstractmethod
    def _read(self, places: Array) -> list[Row]:
        """The samples at these places of the epoch's order."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.schema)

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

    def torch(self) -> "TorchRows":
        """See `Dataset.torch`."""
        from beam_prep.readers.torch_rows import TorchRows

        return TorchRows(self)

    def tf(self) -> Any:
        """See `Dataset.tf`."""
        from beam_prep.readers.tf_rows import tf_rows

        return tf_rows(self)

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
