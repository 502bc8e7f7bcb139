"""Files of one run between the token cache and the shards, sealed as those of the token cache are (`formats.sealed`).

`copies`: which records of a block are copies of earlier ones. `run`: the rows of several blocks, sorted, for a merge.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.formats.cached_block import decode_rows, encode_rows, joined
from beam_prep.formats.sealed import Data, Sealed, seal_batches
from beam_prep.shards.row_index import Copies


def encode_copies(copies: Copies, name: str) -> tuple[Data, bytes]:
    """The content and the seal of a file of copies."""
    batch = pa.record_batch({each.name: pa.array(getattr(copies, each.name)) for each in fields(Copies)})
    return seal_batches([batch], batch.schema, {}, name)


def read_copies(source: pa.NativeFile, name: str) -> Copies:
    """What `encode_copies` wrote.

    Raises:
        FormatError: the file is cut or damaged, or it is another.
    """
    batch = Sealed(source, name).batch(0)
    return Copies(**{each: batch.column(each).to_numpy() for each in batch.schema.names})


@dataclass(frozen=True, slots=True)
class RunRows:
    """Rows of one part and one range of keys, by rising key.

    Attributes:
        rows: their columns.
        key, sample: uint64 [rows], see `Arranged`.
        cut: int64 [rows]: tokens that each lost, see `Layout.fit`.
    """

    rows: dict[str, Ragged]
    key: Array
    sample: Array
    cut: Array

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def none(cls) -> "RunRows":
        """No rows of no columns."""
        nothing = np.zeros(0, np.uint64)
        return cls({}, nothing, nothing, nothing.astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence["RunRows"], order: Array) -> "RunRows":
        """The rows of all parts, one after the other, in another order; there is at least one part."""
        beside = zip(*(part.beside.values() for part in parts), strict=True)
        rows = joined([part.rows for part in parts], order)
        return cls(rows, *(np.concatenate(column)[order] for column in beside))

    def take(self, places: Array) -> "RunRows":
        """The rows at these places, in that order."""
        return RunRows.joined([self], places)

    @property
    def beside(self) -> dict[str, Array]:
        """All but the columns."""
        return dict(zip(_BESIDE, (self.key, self.sample, self.cut), strict=True))


_BESIDE = (" key", " sample", " cut")
"""Names of no column: those have no blanks."""


def encode_run(found: RunRows, batches: Sequence[tuple[int, int, int]], name: str) -> tuple[Data, bytes]:
    """The content and the seal of a run.

    Args:
        found: its rows, batch by batch.
        batches: (part, range of keys, rows), each once.
        name: under which it is read.
    """
    borders = offsets_of([rows for _, _, rows in batches]).tolist()
    slices = itertools.starmap(slice, itertools.pairwise(borders))
    return encode_rows(found.rows, slices, {"batches": batches}, name, found.beside)


class RunReader:
    """A run that stays open while several of its batches are read.

    Args:
        source: an open file, not mapped into memory: of a run each byte is used once.
        name: with which it was sealed.

    Raises:
        FormatError: the file is cut or damaged, or it is another.
    """

    def __init__(self, source: pa.NativeFile, name: str) -> None:
        self._sealed = Sealed(source, name)
        listed = self._sealed.fact("batches")
        self._batches = {(part, keys): number for number, (part, keys, _) in enumerate(listed)}

    def rows(self, part: int, keys: int) -> RunRows | None:
        """The rows of a part and a range of keys; None: there are none.

        Raises:
            FormatError: they are damaged.
        """
        number = self._batches.get((part, keys))
        if number is None:
            return None
        batch = self._sealed.batch(number)
        return RunRows(decode_rows(batch, _BESIDE), *(batch.column(key).to_numpy() for key in _BESIDE))
