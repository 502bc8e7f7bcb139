"""The token cache: the folder that keeps tokenised blocks until shards are written, and from one run to the next."""

import glob
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from beam_prep.data.block import Origin
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.receipts import BlockReceipt
from beam_prep.errors import ConfigError, FormatError, TokenCacheError
from beam_prep.formats.cached_block import (
    REJECTS,
    ROW_INDEX,
    ROWS,
    check_whole,
    encode_block,
    pick_rows,
    read_receipt,
    read_rejects,
    read_row_index,
    read_rows,
)
from beam_prep.shards.row_index import RowIndex
from beam_prep.storage.files import DAMAGED_SUFFIX, delete, exists, join, listed, read_file, set_aside, write_file
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import StoreOptions, is_local
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.check import CachePolicy

AT_ONCE = 32
"""Number of files that are read at the same time."""


_USED = ".used"


@dataclass(frozen=True, slots=True)
class TokenCache:
    """A folder of blocks. A block's name is the digest of everything that it depends on.

    Attributes:
        folder: the folder.
        recipe: digest of what a block depends on besides its bytes: config, tokenizer, versions.
        options: the store options that workers activate.
        single_use: for this run alone, on a local disk: a block is removed as soon as all of its rows are in a shard.
            Then less of the disk is in use at a time, and pages that are not yet on the disk are never written to it.
        trust: which blocks of earlier runs are reused.
        kept: it stays after the run, and later runs use its blocks.
        groups: of a job with groups of inputs, for each a digest of what its blocks depend on besides.
    """

    folder: str
    recipe: str
    options: StoreOptions = field(default_factory=StoreOptions.current)
    single_use: bool = False
    trust: CachePolicy = field(default_factory=CachePolicy)
    kept: bool = False
    groups: tuple[str, ...] = ()

    def digest(self, origin: Origin) -> str:
        """What stands for a block in its name: the digest of its bytes; of a group of inputs, with that of the group.

        So the same bytes in two groups, whose fields may differ, are two blocks.
        """
        group = origin.source.group
        if group is None:
            return origin.digest
        of = self.groups[group] if self.groups else group
        return hashlib.sha256(f"{of} {origin.digest}".encode()).hexdigest()

    def name(self, digest: str) -> str:
        """The name of a block from its `digest`. The first two digits are the name of a folder."""
        return f"{digest[:2]}/{digest[2:32]}-{self.recipe[:16]}"

    def find(self, digest: str) -> BlockReceipt | None:
        """The receipt of a block that is already there, or None. The checksums of all of its bytes are compared.

        Raises:
            TokenCacheError: the block is there and damaged.
        """
        name = self.name(digest)
        if is_local(self.folder) and not exists(self._path(name, ROWS)):
            return None
        try:
            rows = read_file(self._path(name, ROWS))
        except FileNotFoundError:
            return None
        try:
            receipt = read_receipt(check_whole(rows, name, ROWS), name)
            for ending in (ROW_INDEX, REJECTS) if receipt.counts("rejected") else (ROW_INDEX,):
                check_whole(read_file(self._path(name, ending)), name, ending)
        except (FormatError, OSError) as error:
            raise TokenCacheError(str(error)) from None
        return receipt

    def has_other(self, digest: str) -> bool:
        """True if a block of these bytes was made with another recipe."""
        start = self._path(self.name(digest), "").rpartition("-")[0]
        return bool(glob.glob(f"{glob.escape(start)}-*") if is_local(start) else objects.listed(f"{start}-"))

    def write(self, batch: Batch, tokens: Array, text_limit: int) -> BlockReceipt:
        """Writes a block's files, its rows last. For the arguments see `encode_block`."""
        name = self.name(self.digest(batch.origin))
        receipt, files = encode_block(batch, tokens, text_limit, name)
        for ending, parts in files.items():
            write_file(self._path(name, ending), *parts)
        return receipt

    def used(self, name: str) -> None:
        """Notes that a block was used again: `gc` removes those that were not used for a time."""
        if self.kept and is_local(self.folder):
            with suppress(OSError):  # another user's; or it is gone, as whoever reads it will find
                os.utime(self._path(name, ROWS))
        elif self.kept:  # the time of an object changes only when it is written: one without bytes stands for it
            objects.put(self._path(name, _USED), b"")

    def rows(self, name: str, domain: int, start: int, stop: int, last: bool = False) -> dict[str, Ragged]:
        """A slice of a block's rows. If it is the `last` use of the block, and all of its rows, the block is removed.

        Raises:
            TokenCacheError: see `_expected_block`.
        """
        path = self._path(name, ROWS)
        with self._expected_block(name):
            rows, are_all = read_rows(read_file(path), name, domain, start, stop)
        if last and are_all:
            os.unlink(path)  # the rows are mapped, and stay readable as long as they are in use
        return rows

    def pick(self, name: str, domain: int, rows: Array) -> dict[str, Ragged]:
        """Some rows of a block's domain, in the order in which they are given; see `pick_rows`.

        Raises:
            TokenCacheError: see `_expected_block`.
        """
        with self._expected_block(name):
            return pick_rows(read_file(self._path(name, ROWS)), name, domain, rows)

    def counter(self, counter: str, name: str, domain: int, start: int, stop: int) -> Array | None:
        """int64 [rows]: the values of a counter for a slice of a block's rows; None if the block does not have it."""
        row_index = self._row_index(name)
        counts = row_index.counters.get(counter)
        return None if counts is None else counts[row_index.domain == domain][start:stop]

    def receipt(self, name: str) -> BlockReceipt:
        """A block's receipt.

        Raises:
            TokenCacheError: see `_expected_block`.
        """
        with self._expected_block(name):
            return read_receipt(read_file(self._path(name, ROWS)), name)

    def rejects(self, names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """The rejects of several blocks, in order. A few blocks are read at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(names), AT_ONCE):
                yield from pool.map(self._rejects, names[first : first + AT_ONCE])

    def _rejects(self, name: str) -> list[dict[str, Any]]:
        with self._expected_block(name):
            return read_rejects(read_file(self._path(name, REJECTS)), name)

    def row_indexes(self, names: Sequence[str]) -> list[RowIndex]:
        """The row indexes of several blocks, which are read at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._row_index, names))

    def _row_index(self, name: str) -> RowIndex:
        with self._expected_block(name):
            return read_row_index(read_file(self._path(name, ROW_INDEX)), name)

    @contextmanager
    def _expected_block(self, name: str) -> Iterator[None]:
        """Reads a block that the plan needs.

        Raises:
            TokenCacheError: it is gone, or damaged and then renamed. The next run makes it again.
        """
        advice = f"in {self.folder}: run again: this block alone is made again"
        try:
            yield
        except FormatError as error:
            for ending in (ROWS, ROW_INDEX, REJECTS):  # without its rows it is not found
                set_aside(self._path(name, ending))
            raise TokenCacheError(f"{error}; it is set aside (*{DAMAGED_SUFFIX}) {advice}") from None
        except FileNotFoundError:
            raise TokenCacheError(f"the token cache file {name} is gone, or was set aside, {advice}") from None

    def _path(self, name: str, ending: str) -> str:
        return join(self.folder, name + ending)


# What a kept token cache loses. Every run touches the blocks that it uses: those go that were not used for a time, and
# then the oldest ones until the token cache is as small as wanted. A block that goes is made again by the next run that
# needs it; a run that has found it already fails, so `older_than` should be longer than a job takes.

_BLOCK = re.compile(r"([0-9a-f]{2}/[0-9a-f]{30}-[0-9a-f]{16})(\..*)")
_ENDINGS = (ROWS, ROW_INDEX, REJECTS, _USED)
"""In the order in which they are removed: without its rows a block is not found."""


@dataclass(slots=True)
class _Files:
    """The files of a block: their bytes, and when it was used last."""

    bytes: int = 0
    used: float = 0.0
    endings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Collected:
    """What `collect` did, or would do.

    Attributes:
        token_cache: the folder.
        kept, kept_bytes: blocks that are there afterwards.
        removed, removed_bytes: blocks and leftovers that were removed.
    """

    token_cache: str
    kept: int
    kept_bytes: int
    removed: int
    removed_bytes: int

    def line(self, dry_run: bool) -> str:
        """For a person."""
        return (
            f"{self.token_cache}: {self.removed:,} blocks, {self.removed_bytes / 1e9:.2f} GB "
            f"{'would be ' if dry_run else ''}removed; {self.kept:,} blocks, {self.kept_bytes / 1e9:.2f} GB kept"
        )


def collect(token_cache: str, older_than: float, most_bytes: int | None = None, dry_run: bool = False) -> Collected:
    """Removes blocks that were not used for a time.

    Args:
        token_cache: the folder.
        older_than: seconds; blocks that were used since then stay.
        most_bytes: beyond that, blocks go whatever their age, the oldest first.
        dry_run: remove nothing.

    Raises:
        ConfigError: there is no token cache.
    """
    if is_local(token_cache) and not os.path.isdir(token_cache):
        raise ConfigError(f"{token_cache}: there is no such token cache")
    token_cache = os.path.abspath(token_cache) if is_local(token_cache) else token_cache.rstrip("/")
    found, leftovers = _found(token_cache)
    now, removed = time.time(), list[str]()
    size = kept_bytes = sum(files.bytes for files in found.values())
    for name in sorted(found, key=lambda name: found[name].used):
        if now - found[name].used > older_than or (most_bytes is not None and kept_bytes > most_bytes):
            removed.append(name)
            kept_bytes -= found[name].bytes
    old = [path for path, (_, used_at) in leftovers.items() if now - used_at > older_than]
    if not dry_run:
        for ending in _ENDINGS:
            delete(join(token_cache, name + ending) for name in removed if ending in found[name].endings)
        delete(join(token_cache, path) for path in old)
    removed_bytes = size - kept_bytes + sum(leftovers[path][0] for path in old)
    return Collected(token_cache, len(found) - len(removed), kept_bytes, len(removed), removed_bytes)


def _found(token_cache: str) -> tuple[dict[str, _Files], dict[str, tuple[int, float]]]:
    """The blocks of a token cache by name; and what killed writers, and damage, left: path -> (bytes, when)."""
    blocks: dict[str, _Files] = {}
    leftovers: dict[str, tuple[int, float]] = {}
    for file in listed(token_cache):
        path = file.path[len(token_cache) + 1 :]
        match = _BLOCK.fullmatch(path)
        if match is None:
            continue
        name, ending = match[1], match[2]
        if ending in _ENDINGS:
            files = blocks.setdefault(name, _Files())
            files.bytes, files.used = files.bytes + file.size, max(files.used, file.updated)
            files.endings = (*files.endings, ending)
        elif ending.endswith(DAMAGED_SUFFIX) or re.fullmatch(r".*\.[0-9a-f]{32}", ending):
            leftovers[path] = (file.size, file.updated)
    return blocks, leftovers
