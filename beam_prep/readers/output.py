"""An open output: the manifest and the open shards, which all its views share."""

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, Format, Row
from beam_prep.formats.contract import joined
from beam_prep.formats.manifest import MANIFEST, RUN, TOKENIZER, folder_of_shard, is_outside, output_columns
from beam_prep.readers.lease import ReaderLease
from beam_prep.readers.shards import OpenShard, OpenShards
from beam_prep.readers.stored import Stored, hold
from beam_prep.shards.domains import part_of

if TYPE_CHECKING:
    from beam_prep.tokens.tokenizer import Tokenizer


_AT_ONCE = 4096
"""Rows that are gathered at a time."""

_REJECT = {"file", "offset", "line", "reason", "message", "text"}


Part = tuple[str | None, str]
"""(split or None, domain)."""


def _part(shard: Mapping[str, Any]) -> Part:
    return shard.get("split"), shard["domain"]


class OpenOutput:
    """The manifest and the open shards of an output. Row numbers are numbers in the entire output."""

    def __init__(
        self,
        files: Path | Stored,
        manifest: dict[str, Any],
        lease: ReaderLease | None = None,
        domains: tuple[str, ...] | None = None,
        split: str | None = None,
    ) -> None:
        """`split`, `domains`: only the rows of these; None: of all."""
        self._lease, self._files, self._domains, self._split = lease, files, domains, split
        self.path = files.url if isinstance(files, Stored) else files
        self.manifest = manifest
        self.schema = output_columns(manifest)
        self.listed = [
            shard
            for shard in manifest["shards"]
            if (domains is None or shard["domain"] in domains) and split in (None, shard.get("split"))
        ]
        self._numbers = [shard["shard"] for shard in self.listed]
        self.starts = [0, *itertools.accumulate(shard["rows"] for shard in self.listed)]
        self.rows_of: dict[Part, range] = {}
        self._shards_of: dict[Part, int] = {}
        self._folders: dict[Part, str] = {}
        stop = 0
        for part, shards in itertools.groupby(self.listed, _part):  # there are many shards, but few parts
            first, stop = stop, stop + sum(1 for _ in shards)
            before = self.rows_of.get(part)
            self.rows_of[part] = range(self.starts[first] if before is None else before.start, self.starts[stop])
            self._shards_of[part] = self._shards_of.get(part, 0) + stop - first
            self._folders[part] = folder_of_shard(manifest, part[1], part[0])
        self._format = _format_of(self.path, manifest)
        self._open = OpenShards()

    def __reduce__(self) -> tuple[type["OpenOutput"], tuple[Any, ...]]:
        # Another process opens the shards itself.
        return OpenOutput, (self._files, self.manifest, None, self._domains, self._split)

    def shard_of(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def opened(self, index: int, keep: bool = True) -> OpenShard:
        """Opens a shard. With `keep` it stays open, until the process needs its maps.

        Raises:
            FormatError: the shard is missing or damaged.
        """
        found = self._open.get(index)
        if found is not None:
            return found
        if self._lease is not None:
            self._lease.renew()
        opened = self._read(index)
        return self._open.add(index, opened, len(self.schema)) if keep else opened

    def part(self, index: int) -> Part:
        """The part of a shard."""
        return _part(self.listed[index])

    def _read(self, index: int) -> OpenShard:
        number, rows = self._numbers[index], self.starts[index + 1] - self.starts[index]
        folder = self._folder_of(index)
        try:
            reader = self._format.read(folder, self.schema, number, self._shards_of[self.part(index)])
        except FormatError:
            if folder.exists() or not isinstance(self._files, Stored):
                raise
            return self._read(index)  # another process removed it to make room in the cache
        if len(reader) != rows:
            raise FormatError(
                f"{folder}: shard {number} ({self._format.name}) holds {len(reader)} rows, {MANIFEST} says {rows}: "
                "make the output again"
            )
        opened = OpenShard(reader, self.starts[index], self.schema)
        if isinstance(self._files, Stored):
            hold(folder, opened)
        return opened

    def _folder_of(self, index: int) -> Path:
        """The folder of a shard's domain, on this machine."""
        part, number = self.part(index), self._numbers[index]
        inside = self._folders[part]
        if not isinstance(self._files, Stored):
            return self._files / inside
        files = self.listed[index]["files"]
        named = getattr(self._format, "files", None)
        if named is not None:  # files of other formats are not copied
            mine = {f"{inside}/{name}" for name in named(self.schema, number, self._shards_of[part])}
            files = [file for file in files if file["path"] in mine]
        if not files:
            raise FormatError(
                f"{self.path}: {MANIFEST} lists no file of shard {number} of {part_of(*part)!r}: it is damaged"
            )
        return self._files.fetched(files, inside)

    def rejects(self) -> Iterator[dict[str, Any]]:
        """See `Dataset.rejects`."""
        for file in self.manifest["rejects"]:
            if is_outside(file["path"]):
                raise FormatError(f"{self.path}: {MANIFEST} lists {file['path']!r}, which leads out of the output")
            if isinstance(self._files, Stored):
                folder, name = file["path"].rpartition("/")[::2]
                path = self._files.fetched([file], folder) / name
            else:
                path = self._files / file["path"]
            try:
                with path.open(encoding="utf-8", errors="surrogatepass", newline="\n") as lines:
                    for number, line in enumerate(lines, start=1):
                        found = json.loads(line)
                        if not isinstance(found, dict) or not found.keys() >= _REJECT:
                            raise FormatError(f"{path}: line {number} is no rejected record: it is damaged")
                        yield found
            except FileNotFoundError:
                raise FormatError(f"{path} is missing, though {MANIFEST} lists it: make the output again") from None
            except ValueError as error:
                raise FormatError(f"{path} is damaged ({error}): make the output again") from None

    def run(self) -> dict[str, Any]:
        """See `Dataset.run`."""
        try:
            text = self._files.bytes_of(RUN) if isinstance(self._files, Stored) else (self._files / RUN).read_bytes()
            found: dict[str, Any] = json.loads(text)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise FormatError(f"{self.path}/{RUN} is damaged ({error})") from None
        return found

    def row(self, number: int) -> Row:
        """A copy of a row."""
        shard = bisect_right(self.starts, number) - 1
        return (self._open.get(shard) or self.opened(shard)).row(number)

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Copies of rows."""
        starts, known, found = self.starts, self._open.get, []
        for number in numbers:
            shard = bisect_right(starts, number) - 1
            found.append((known(shard) or self.opened(shard)).row(number))
        return found

    def gather(self, rows: Array, cuts: tuple[Array, Array] | None = None) -> dict[str, Ragged]:
        """Rows of any shards, in this order: column name -> values, copied once, in native byte order.

        Args:
            rows: int64, numbers of rows of the entire output.
            cuts: int64 [rows] each, start and stop of the wanted values of each row; None: all values. Metadata columns
                are not cut.
        """
        if len(rows) > _AT_ONCE:  # the views below keep all their shards mapped
            parts = []
            for start in range(0, len(rows), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                parts.append(self.gather(rows[part], cuts and (cuts[0][part], cuts[1][part])))
            return {name: Ragged.concat([each[name] for each in parts]) for name in parts[0]}
        views: list[list[Any]] = [[None] * len(rows) for _ in self.schema]
        order = np.argsort(rows)  # each shard is opened once
        first = stop = -1
        for place, number in zip(order.tolist(), rows[order].tolist(), strict=True):
            if not first <= number < stop:
                shard = self.shard_of(number)
                first, stop, opened = self.starts[shard], self.starts[shard + 1], self.opened(shard)
            for column, view in zip(views, opened.views(number), strict=True):
                column[place] = view
        if cuts is not None:
            borders = list(zip(cuts[0].tolist(), cuts[1].tolist(), strict=True))
            views = [
                found if column.metadata else [view[a:b] for view, (a, b) in zip(found, borders, strict=True)]
                for column, found in zip(self.schema, views, strict=True)
            ]
        return {
            column.name: joined(found, column.dtype, column.levels)
            for column, found in zip(self.schema, views, strict=True)
        }

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        files = [file for file in self.manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
        if not files:
            return None
        from beam_prep.tokens.tokenizer import Tokenizer

        folder = self._files.fetched(files, TOKENIZER) if isinstance(self._files, Stored) else self._files / TOKENIZER
        if not folder.is_dir():
            raise FormatError(f"{folder}: no such directory, though {MANIFEST} lists it")
        found = Tokenizer.load(folder)
        wanted = self.manifest.get("tokenizer", {}).get("fingerprint", found.fingerprint)
        if found.fingerprint != wanted:
            raise FormatError(f"{folder} is not the tokenizer that made the output: its fingerprint differs")
        return found


def _format_of(path: Path | str, manifest: Mapping[str, Any]) -> Format:
    known = [name for name in manifest["formats"] if name in FORMATS]
    if not known:
        raise FormatError(
            f"{path} is in {', '.join(manifest['formats'])}, which this version cannot read: "
            "pip install --upgrade beam-prep"
        )
    return FORMATS[known[0]]
