"""What is made of the rows of all blocks: which are written, in which split, how often, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from beam_prep.core.data.ragged import Array
from beam_prep.core.shards.mix import Mix, Taken
from beam_prep.core.shards.order import sample_keys, scaled, shuffle_keys
from beam_prep.core.shards.sidecars import View
from beam_prep.core.shards.splits import Splits

Method = Literal["auto", "gather", "runs"]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """How large the parts of a shuffle by sorted runs are. The bytes of an output do not depend on it.

    Attributes:
        run: tokens of a run, about, with labels 40 MB, which a worker holds three times while it sorts them. More in
            a large job: twice as many, and of 10 TB 50 million.
        bin: tokens of a bin, which are sorted in memory.
        batches: record batches of a run, at most: smaller ones cost more to find than to read.
        runs: that are merged at a time: as many files are open.
    """

    run: int = 8_000_000
    bin: int = 4_000_000
    batches: int = 4096
    runs: int = 256


@dataclass(frozen=True, slots=True)
class Compose:
    """How the rows of all blocks become an output. By default: all of them, in the order of the input.

    >>> compose = bp.Compose(shuffle=17, splits=bp.Splits.of({"train": 0.9, "test": 0.1}))
    >>> compose.splits.names
    ('train', 'test')

    Attributes:
        shuffle: the seed of a permutation of all rows, over all shards; None: input order.
        splits: which rows are in which split; None: there are none.
        mix: how much of each domain is written, of the first split; needs `shuffle`.
        deduplicate: of records with the same digest the first is kept. `KeyRecords` makes the digests.
        method: how shuffled rows come to their shards: `gather` picks them out of all blocks, `runs` sorts groups of
            blocks and merges these; `auto`: by size. The bytes are the same.
        buckets: into which digests are grouped to find equal ones; each should have about a million.
        sizes: of what `runs` sorts and merges at a time. The bytes are the same.

    Raises:
        ValueError: `method` is not one of those allowed, or there is a mix without a shuffle.
    """

    shuffle: int | None = None
    splits: Splits | None = None
    mix: Mix = ()
    deduplicate: bool = False
    method: Method = "auto"
    buckets: int = 256
    sizes: RunSizes = field(default_factory=RunSizes)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method is {self.method!r}, wanted one of {', '.join(get_args(Method))}")
        if self.mix and self.shuffle is None:
            raise ValueError("there is a mix without a shuffle, which draws its rows: give shuffle, too")

    @property
    def views(self) -> bool:
        """True if the plan sees blocks otherwise than the spool has them, see `core.shards.views`."""
        return self.splits is not None or self.deduplicate

    @property
    def composes(self) -> bool:
        """True if an output is more than all rows in the order of the input."""
        return self.views or self.shuffle is not None

    @property
    def split_count(self) -> int:
        """The number of splits; 1 where there are none."""
        return 1 if self.splits is None else len(self.splits.names)


class Place(NamedTuple):
    """A block, as those who arrange its rows need it.

    Attributes:
        name: in the spool.
        copies: the file of its copies, see `SpoolReceipt`.
        file, first_byte, first_line: of its first line in the input.
        parts: the code of each of its parts in the plan.
        rows: of its rows the first so many; -1: all.
    """

    name: str
    copies: str
    file: int
    first_byte: int
    first_line: int
    parts: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows of a block in a shuffle, in the order of its lines; those that are written several times as often.

    Attributes:
        part: int32, the code of each row's part.
        key: uint64, its place in the order.
        sample: uint64, where the row is drawn for a mix, its sample key; 0: it is taken whatever the mix decides.
        row: int64, the row's number in the view.
    """

    part: Array
    key: Array
    sample: Array
    row: Array

    @classmethod
    def concat(cls, parts: Sequence["Arranged"]) -> "Arranged":
        """All rows, in order; there is at least one part."""
        columns = zip(*((each.part, each.key, each.sample, each.row) for each in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def take(self, places: Array) -> "Arranged":
        """The rows at these places, in that order."""
        return Arranged(self.part[places], self.key[places], self.sample[places], self.row[places])


def arranged(view: View, place: Place, seed: int, taken: Mapping[int, Taken]) -> Arranged:
    """The rows of a block with their keys.

    Args:
        view, place: the block.
        seed: of the shuffle.
        taken: part to what is taken of its rows; of others all are taken, once.
    """
    count = len(view.row) if place.rows < 0 else place.rows
    line = view.sidecar.line[:count].astype(np.int64) + place.first_line
    local = view.sidecar.domain[:count]
    part = np.array(place.parts, np.int32)[local]
    of_parts = [taken.get(code, Taken()) for code in place.parts]
    copies = np.array([each.copies for each in of_parts], np.int64)[local]
    most = np.array([each.most or 0 for each in of_parts], np.uint64)[local]
    found = []
    for copy in range(int(copies.max(initial=0)) + 1):
        rows = np.flatnonzero(copies > copy)
        found.append(Arranged(part[rows], shuffle_keys(seed, place.file, line[rows], copy), _nothing(rows), rows))
        rows = np.flatnonzero((copies == copy) & (most > 0))
        keys = shuffle_keys(seed, place.file, line[rows], copy)
        samples = sample_keys(keys)
        drawn = samples <= most[rows]
        rows = rows[drawn]
        found.append(Arranged(part[rows], keys[drawn], samples[drawn], rows))
    made = Arranged.concat(found)
    # Rows with the same key stay in this order, which no border of a block may change: by line, then by copy.
    return made.take(np.argsort(made.row, kind="stable"))


def _nothing(rows: Array) -> Array:
    return np.zeros(len(rows), np.uint64)


def ranges_of(keys: Array, part: Array, counts: Array) -> Array:
    """int64 [rows]: the number of each row's range of keys.

    Args:
        keys, part: of each row.
        counts: int64 [parts], into how many equal ranges all keys are cut.
    """
    found = np.zeros(len(keys), np.int64)
    of_rows = counts[part]
    for count in np.unique(of_rows).tolist():
        here = of_rows == count
        found[here] = scaled(keys[here], count)
    return found
