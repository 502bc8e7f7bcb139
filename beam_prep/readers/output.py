"""What all views of an output share: its manifest and its open shards."""

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, Format, ShardReader
from beam_prep.formats.generation import ReaderLease
from beam_prep.formats.manifest import MANIFEST, TOKENIZER, output_columns

if TYPE_CHECKING:
    from beam_prep.core.encoding.tokenizer import Tokenizer


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
        self._open: dict[int, ShardReader] = {}

    def __reduce__(self) -> tuple[type["OpenOutput"], tuple[Path, dict[str, Any]]]:
        # The other process opens the shards itself.
        return OpenOutput, (self.folder, self.manifest)

    def shard_of(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def reader(self, index: int, keep: bool) -> ShardReader:
        """The shard's reader. With `keep` it stays open."""
        if index in self._open:
            return self._open[index]
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
        if keep:
            self._open[index] = reader
        return reader

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


def _format_of(folder: Path, manifest: Mapping[str, Any]) -> Format:
    known = [name for name in manifest["formats"] if name in FORMATS]
    if not known:
        raise FormatError(
            f"{folder} is in {', '.join(manifest['formats'])}, which this version cannot read: "
            "pip install --upgrade beam-prep"
        )
    return FORMATS["bin" if "bin" in known else known[0]]
