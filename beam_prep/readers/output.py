"""What all views of an output share: its manifest and its open shards."""

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, Format, Row
from beam_prep.formats.generation import ReaderLease
from beam_prep.formats.manifest import MANIFEST, TOKENIZER, output_columns
from beam_prep.readers.shards import OpenShard, OpenShards

if TYPE_CHECKING:
    from beam_prep.core.encoding.tokenizer import Tokenizer


_AT_ONCE = 4096
"""Rows that are gathered at once."""


class _ListedShard(NamedTuple):
    """A shard as the manifest lists it."""

    domain: str
    number: int
    rows: int


class OpenOutput:
    """Shared by all views of an output: the manifest and the open shards. Row numbers count in the entire output."""

    def __init__(self, folder: Path, manifest: dict[str, Any], lease: ReaderLease | None = None) -> None:
        self._lease = lease
        self.folder = folder
        self.manifest = manifest
        self.schema = output_columns(manifest)
        self.shards = [_ListedShard(shard["domain"], shard["shard"], shard["rows"]) for shard in manifest["shards"]]
        self.starts = [0, *itertools.accumulate(shard.rows for shard in self.shards)]
        self.shards_of: dict[str, int] = {}
        self.rows_of: dict[str, range] = {}
        for index, shard in enumerate(self.shards):
            self.shards_of[shard.domain] = self.shards_of.get(shard.domain, 0) + 1
            first = self.rows_of[shard.domain].start if shard.domain in self.rows_of else self.starts[index]
            self.rows_of[shard.domain] = range(first, self.starts[index + 1])
        self._folders = {name: folder / manifest["domains"][name] for name in self.shards_of}
        self._format = _format_of(folder, manifest)
        self._open = OpenShards()
        self._firsts = np.array(self.starts[:-1], np.int64)

    def __reduce__(self) -> tuple[type["OpenOutput"], tuple[Path, dict[str, Any]]]:
        # The other process opens the shards itself.
        return OpenOutput, (self.folder, self.manifest)

    def shard_of(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def opened(self, index: int, keep: bool = True) -> OpenShard:
        """A shard. With `keep` it stays open, until others need its place.

        Raises:
            FormatError: it is missing or damaged.
        """
        found = self._open.get(index)
        if found is not None:
            return found
        if self._lease is not None:
            self._lease.renew()
        domain, number, rows = self.shards[index]
        folder = self._folders[domain]
        reader = self._format.read(folder, self.schema, number, self.shards_of[domain])
        if len(reader) != rows:
            raise FormatError(
                f"{folder}: shard {number} ({self._format.name}) holds {len(reader)} rows, {MANIFEST} says {rows}: "
                "make the output again"
            )
        opened = OpenShard(reader, self.starts[index])
        return self._open.add(index, opened, len(self.schema)) if keep else opened

    def row(self, number: int) -> Row:
        """A copy of a row."""
        return self.opened(bisect_right(self.starts, number) - 1).row(number)

    def gather(self, rows: Array) -> dict[str, Ragged]:
        """Rows of any shards, in this order: column name to their values, copied once, in native byte order.

        Args:
            rows: int64, numbers of rows of the entire output.
        """
        if len(rows) > _AT_ONCE:  # the views below keep all of their shards mapped
            parts = [self.gather(rows[start : start + _AT_ONCE]) for start in range(0, len(rows), _AT_ONCE)]
            return {name: Ragged.concat([part[name] for part in parts]) for name in parts[0]}
        views: dict[str, list[Any]] = {column.name: [None] * len(rows) for column in self.schema}
        shards = np.searchsorted(self._firsts, rows, "right") - 1
        order = np.argsort(shards, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1) if len(rows) else ():
            shard = int(shards[places[0]])
            opened = self.opened(shard)
            numbers = rows[places] - opened.start
            if opened.columns is not None:
                for name, column in opened.columns.items():
                    _view(column, numbers, places, views[name])
                continue
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
                for name, values in opened.reader.row(number).items():
                    views[name][place] = values
        return {column.name: joined(views[column.name], column.dtype, column.depth) for column in self.schema}

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        if not any(file["path"].startswith(f"{TOKENIZER}/") for file in self.manifest["files"]):
            return None
        from beam_prep.core.encoding.tokenizer import Tokenizer

        folder = self.folder / TOKENIZER
        if not folder.is_dir():
            raise FormatError(f"{folder}: no such directory, though {MANIFEST} lists it")
        found = Tokenizer.load(folder)
        wanted = self.manifest.get("tokenizer", {}).get("fingerprint", found.fingerprint)
        if found.fingerprint != wanted:
            raise FormatError(f"{folder} is not the tokenizer that made the output: its fingerprint differs")
        return found


def _view(column: Ragged, numbers: Array, places: Array, views: list[Any]) -> None:
    """Puts rows of a column, as views, into their places."""
    values, starts, stops = column.values, column.offsets[numbers].tolist(), column.offsets[numbers + 1].tolist()
    for place, start, stop in zip(places.tolist(), starts, stops, strict=True):
        views[place] = values[start:stop]


def joined(rows: Sequence[Any], dtype: str, depth: int) -> Ragged:
    """Rows as one `Ragged` over a copy of their values."""
    if depth == 1:
        values: Array | Ragged = np.concatenate([np.zeros(0, dtype), *rows], dtype=dtype)
    else:
        values = joined([each for row in rows for each in row], dtype, depth - 1)
    return Ragged.from_lengths(values, [len(row) for row in rows])


def _format_of(folder: Path, manifest: Mapping[str, Any]) -> Format:
    known = [name for name in manifest["formats"] if name in FORMATS]
    if not known:
        raise FormatError(
            f"{folder} is in {', '.join(manifest['formats'])}, which this version cannot read: "
            "pip install --upgrade beam-prep"
        )
    return FORMATS["bin" if "bin" in known else known[0]]
