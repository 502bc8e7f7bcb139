"""Reuses unchanged shards of the output that is replaced: it links them (in a store the server copies them).

A shard's *key* is the digest of everything that its bytes depend on. The keys of an output are in `.slices.json` beside
its manifest. Two shards with the same key have the same bytes. A linked file is compared with the sha256 in the old
manifest, so a damaged file is never reused.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep._version import __version__
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, FilesOfShard
from beam_prep.formats.manifest import (
    MANIFEST,
    SLICES,
    ShardReceipt,
    WrittenFile,
    dump,
    folder_of_shard,
    load,
    receipts_of,
)
from beam_prep.shards.compose import Compose
from beam_prep.shards.layout import Layout
from beam_prep.shards.slices import ShardPlan
from beam_prep.storage.files import join
from beam_prep.storage.stores.objects import read_bytes
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.versions import Versions

log = logging.getLogger("beam_prep")

SHARD_VERSION = 1
"""Raise this with every change of the bytes for the same rows: then older shards are not linked."""

_WRITING_LIBRARIES = ("numpy", "pyarrow")


def earlier_path(root: str, keep_versions: int | None) -> str | None:
    """The path of the output whose shards are linked: the output that is replaced, or the latest version."""
    if keep_versions is None:
        return root
    latest = Versions(root).latest()
    return None if latest is None else Versions(root).path(latest)


@dataclass(frozen=True, slots=True)
class EarlierShard:
    """A shard of the earlier output that has the key of a new shard.

    Attributes:
        folder: the earlier output.
        receipt: the receipt of the new shard.
        files: (file of the earlier output, path in the new output).
        described: path in the new output -> content of files that depend on the number of shards, to be written.
    """

    folder: str
    receipt: ShardReceipt
    files: tuple[tuple[WrittenFile, str], ...]
    described: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class KeyedShard:
    """A shard to write, the columns of its rows, its key, and the earlier shard with this key."""

    plan: ShardPlan
    columns: tuple[Column, ...]
    key: str
    earlier: EarlierShard | None = None


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that was written or linked.

    Attributes:
        receipt: its entry in the manifest.
        key: its key.
        how: `linked`, `written`; `damaged`: written, because the earlier shard differs from its manifest.
        seconds: how long it took.
    """

    receipt: ShardReceipt
    key: str
    how: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """Makes the keys of an output's shards from its token cache, formats, layout and columns.

    The cache policy (`trust`) is part of a key: a run that needs blocks that were compared with the reference in full
    does not link shards of other blocks.
    """

    token_cache: TokenCache
    formats: tuple[str, ...]
    layout: Layout
    columns: tuple[Column, ...]
    compose: Compose = dataclasses.field(default_factory=Compose)

    def of(self, plan: ShardPlan) -> str:
        """The key of a shard. It includes the names of its blocks, which are digests of their bytes and the recipe."""
        known = [FORMATS[name] for name in self.formats if name in FORMATS]  # a later version may have written others
        libraries = [*_WRITING_LIBRARIES, *(name for each in known for name in each.libraries)]
        facts = {
            "version": SHARD_VERSION,
            "libraries": {name: library_version(name) for name in libraries},
            "beam_prep": __version__,
            "python": platform.python_version_tuple()[:2],
            "recipe": self.token_cache.recipe,
            "trust": dataclasses.asdict(self.token_cache.trust),
            "formats": self.formats,
            "layout": dataclasses.asdict(self.layout),
            "columns": [dataclasses.asdict(column) for column in self.columns],
            "cut": plan.cut,
            "slices": plan.slices,
        }
        if (splits := self.compose.splits) is not None:
            facts["splits"] = dataclasses.asdict(splits)
        if (merge := plan.merge) is not None:
            facts["merge"] = (merge.facts, merge.part, merge.first, merge.stop, merge.bins, merge.most)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


library_version = functools.cache(importlib.metadata.version)
"""The version of an installed library. It is cached, because each lookup reads and parses a file."""


def slices_text(shards: Sequence[WrittenShard], manifest: bytes) -> bytes:
    """The content of `.slices.json`.

    Args:
        shards: all shards, in the order of the manifest.
        manifest: the text of the manifest.
    """
    return dump({"manifest": hashlib.sha256(manifest).hexdigest(), "keys": [shard.key for shard in shards]})


class EarlierOutput:
    """The shards of the output that is replaced, by key. There are none without a `.slices.json` of its manifest.

    Args:
        path: the path of that output; None: there is no such output.
    """

    def __init__(self, path: str | None) -> None:
        self._folder = path or ""
        self.manifest: dict[str, Any] | None = None
        self._by_key: dict[str, ShardReceipt] = {}
        self._shards: Counter[str] = Counter()
        if path is None:
            return
        try:
            text = read_bytes(join(path, MANIFEST))
            self.manifest = load(text, join(path, MANIFEST))
            found = json.loads(read_bytes(join(path, SLICES)))
            receipts = receipts_of(self.manifest)
            if found["manifest"] == hashlib.sha256(text).hexdigest() and len(found["keys"]) == len(receipts):
                self._by_key = dict(zip(found["keys"], receipts, strict=True))
                self._shards = Counter(receipt.part for receipt in receipts)
        except (OSError, FormatError, ValueError, KeyError, TypeError):
            return

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def shard(self, key: str, plan: ShardPlan, keys: ShardKeys) -> EarlierShard | None:
        """The shard with this key, or None.

        Args:
            key: the key of the new shard.
            plan: the new shard.
            keys: makes the keys of the new output.
        """
        receipt, formats, columns = self._by_key.get(key), keys.formats, keys.columns
        if receipt is None or self.manifest is None:
            return None
        before = files_named(formats, columns, receipt.shard, self._shards[receipt.part])
        after = files_named(formats, columns, plan.shard, plan.shards)
        if before is None or after is None:
            return None
        folder = folder_of_shard(self.manifest, receipt.domain, receipt.split)
        written = {file.path: file for file in receipt.files}
        old = [written.get(f"{folder}/{name}") for name, content in before.items() if content is None]
        new = [f"{plan.folder}/{name}" for name, content in after.items() if content is None]
        if len(old) != len(new) or None in old:
            return None
        described = {f"{plan.folder}/{name}": content for name, content in after.items() if content is not None}
        files = tuple((file, name) for file, name in zip(old, new, strict=True) if file is not None)
        here = [WrittenFile(name, file.bytes, file.sha256) for file, name in files]
        here = sorted(here + written_files(described), key=lambda file: file.path)
        receipt = dataclasses.replace(
            receipt, domain=plan.domain, shard=plan.shard, split=plan.split, files=tuple(here)
        )
        return EarlierShard(self._folder, receipt, files, described)


def files_named(formats: Sequence[str], columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard | None:
    """The files of a shard in all formats; None if a format does not name its files."""
    found: FilesOfShard = {}
    for name in formats:
        files = FORMATS[name].files(columns, shard, shards)
        if files is None:
            return None
        found |= files
    return found


def written_files(contents: Mapping[str, bytes]) -> list[WrittenFile]:
    """The entries of files in a manifest; `contents`: path -> content."""
    return [WrittenFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()]


class Damaged(Exception):
    """A file of the earlier output is not what its manifest says."""


def numbers(shards: Sequence[WrittenShard]) -> dict[str, Any]:
    """The counts of shards in `run.json`."""
    hows = Counter(shard.how for shard in shards)
    damaged = {"shards_damaged": hows["damaged"]} if hows["damaged"] else {}
    return {"shards_linked": hows["linked"], "shards_written": hows["written"] + hows["damaged"], **damaged}
