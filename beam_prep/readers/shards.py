"""The open shards of a process, limited by the number of files that the process may map.

Linux allows a process 65,530 maps (`vm.max_map_count`), and every column of an open shard can be a map. So the shard
that was opened first is closed first, over all outputs of the process. Rows that were read are copies, and stay.
"""

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column, metadata_value
from beam_prep.formats import Row, ShardReader


class OpenShard:
    """An open shard. Its rows are copies in native byte order, and belong to the caller.

    Args:
        reader: the shard's reader.
        start: the number of its first row in the entire output.
        schema: its columns.
    """

    __slots__ = ("__weakref__", "_flat", "_metadata", "_names", "reader", "start")

    def __init__(self, reader: ShardReader, start: int, schema: Sequence[Column]) -> None:
        names = [column.name for column in schema]
        self.reader, self.start, self._names = reader, start, names
        self._metadata = [column for column in schema if column.metadata]
        self._flat: list[tuple[str, Array, memoryview]] | None = None
        columns = _columns_of(reader)
        if columns is not None and all(_is_flat(columns[name]) for name in names):
            self._flat = [(name, columns[name].flat, _borders(columns[name])) for name in names]

    def row(self, number: int) -> Row:
        """A row, by its number in the entire output."""
        at = number - self.start
        row: Row = {}
        if self._flat is not None:  # takes a third of the time; a comprehension would add a call
            for name, values, borders in self._flat:
                row[name] = values[borders[at] : borders[at + 1]].copy()
        else:
            for name, value in self.reader.row(at).items():
                row[name] = value.with_flat(_native(value.flat)) if isinstance(value, Ragged) else _native(value)
        for column in self._metadata:
            row[column.name] = metadata_value(column, row[column.name])
        return row

    def views(self, number: int) -> list[Array | Ragged]:
        """The columns of a row, which may be views of the file."""
        at = number - self.start
        if self._flat is not None:
            return [values[borders[at] : borders[at + 1]] for _, values, borders in self._flat]
        row = self.reader.row(at)
        return [row[name] for name in self._names]

    def lengths(self, name: str) -> Array:
        """int64 [rows]: the length of each row of a column."""
        if (columns := _columns_of(self.reader)) is not None:
            return columns[name].lengths
        if (known := getattr(self.reader, "lengths", None)) is not None:
            return np.asarray(known(name))
        return np.array([len(self.reader.row(at)[name]) for at in range(len(self.reader))], np.int64)


def _columns_of(reader: ShardReader) -> Mapping[str, Ragged] | None:
    """The columns over mapped files, if the reader has them. (In a user's format, `columns` may be anything.)"""
    columns = getattr(reader, "columns", None)
    return columns if isinstance(columns, Mapping) else None


def _is_flat(rows: Ragged) -> bool:
    return isinstance(rows.values, np.ndarray) and rows.values.dtype.isnative


def _borders(rows: Ragged) -> memoryview:
    """The offsets of rows. A memory view gives Python integers; to slice with numpy integers takes twice the time."""
    return np.require(rows.offsets, np.int64, ("C", "A")).data  # a view of unaligned integers has no `data`


def _native(values: Array) -> Array:
    # A copy, because a write to a tensor over a read-only map would crash the process.
    return np.array(values, dtype=values.dtype.newbyteorder("="))


def _most() -> int:
    """Half of the maps that a process may have. The other half is for everything else."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text()) // 2
    except (OSError, ValueError):  # not Linux
        return 65_530 // 2


class OpenShards(dict[int, OpenShard]):
    """The open shards of one output, by number."""

    def keep(self, number: int, opened: OpenShard, maps: int) -> OpenShard:
        """Keeps a shard open, and closes others if there are too many.

        Returns:
            The shard, or the same shard from another thread that was faster.
        """
        found = self.setdefault(number, opened)
        if found is opened:
            MAPS.extend([(weakref.ref(self), number)] * maps)
            while len(MAPS) > MOST:
                close_oldest()
        return found


# A deque needs no lock for its methods. A lock could be held by another thread while this process forks.
MAPS: deque[tuple[weakref.ref[OpenShards], int]] = deque()
"""The maps of all shards of this process that are or were open, oldest first."""

MOST = _most()
"""How many maps open shards may have."""


def close_oldest() -> bool:
    """Closes the shard of this process that was opened first; False if none is open."""
    try:
        shards, number = MAPS.popleft()
    except IndexError:
        return False
    if (opened := shards()) is not None:
        opened.pop(number, None)
    return True
