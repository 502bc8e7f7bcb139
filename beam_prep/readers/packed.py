"""`ds.packed(...)`: packed rows of a dataset of documents, by an index. No token is rewritten."""

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from beam_prep.core.data.carried import carried_values
from beam_prep.core.data.ragged import Array, offsets_of
from beam_prep.core.data.schema import Column, Strategy
from beam_prep.core.shards.pack import POSITION_IDS, SEQ_LENS, plan_packs
from beam_prep.errors import ConfigError
from beam_prep.formats import Row
from beam_prep.readers.view import Tail, View, shuffled

if TYPE_CHECKING:
    from beam_prep.readers.dataset import Dataset


class Packed(View):
    """See `Dataset.packed`, which makes it.

    Attributes:
        samples: packed rows of an epoch, of all ranks together.
        fill_rate: tokens over what the packed rows could hold, 0 to 1.
    """

    def __init__(
        self,
        dataset: "Dataset",
        length: int,
        seed: int | None,
        strategy: Strategy,
        rank: int,
        world_size: int,
        epoch: int,
        tail: Tail,
    ) -> None:
        ids = _ids_of(dataset)
        if strategy not in get_args(Strategy):
            raise ConfigError(f"strategy is {strategy!r}, wanted one of {', '.join(get_args(Strategy))}")
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
        super().__init__(len(plan), key, rank, world_size, epoch, tail)

    def __repr__(self) -> str:
        return f"Packed({self._dataset!r}, samples={len(self)} of {self.samples}, fill_rate={self.fill_rate:.4f})"

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns of the dataset, then `position_ids` and `seq_lens`. What is carried along is of each document."""
        (ids,) = (column.name for column in self._dataset.schema if column.role == "ids")
        added = Column(POSITION_IDS, "int32", 1, "position", ids), Column(SEQ_LENS, "int32", 1, "lengths", ids)
        schema = (replace(column, depth=1) if column.carried else column for column in self._dataset.schema)
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
        beside = {c.name: carried_values(c, columns.pop(c.name)) for c in self._dataset.schema if c.carried}
        values = {name: rows.flat for name, rows in columns.items()} | {POSITION_IDS: positions}
        rows = []
        for pack in range(len(packs)):
            a, b = documents[pack], documents[pack + 1]
            row: Row = {name: flat[tokens[a] : tokens[b]] for name, flat in values.items()}
            rows.append(row | {name: found[a:b] for name, found in beside.items()} | {SEQ_LENS: lengths[a:b]})
        return rows


def _ids_of(dataset: "Dataset") -> str:
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
        if not column.of_tokens and not column.carried:
            raise ConfigError(f"column {column.name!r} of {dataset.path} has no value for each token: not to be packed")
    return ids[0]
