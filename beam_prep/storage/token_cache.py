"""The token cache: a folder that keeps tokenised blocks until shards are written, and for later runs."""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich import filesize

from beam_prep.data.block import Origin
from beam_prep.data.ragged import Array, Ragged
from beam_prep.errors import ConfigError, FormatError, TokenCacheError
from beam_prep.formats import cached_block
from beam_prep.formats.cached_block import ROW_INDEX, ROWS
from beam_prep.hints import counted
from beam_prep.shards.receipts import BlockReceipt, RowIndex
from beam_prep.storage import stores
from beam_prep.storage.files import DAMAGED_SUFFIX, delete, join, listed, read_file, set_aside, write_file
from beam_prep.storage.stores import CONNECTIONS, ObjectInfo, StoreOptions, is_local
from beam_prep.tokens.batch import Batch, CachePolicy

AT_ONCE = CONNECTIONS
"""How many files are read at the same time."""


_USED = ".used"


@dataclass(frozen=True, slots=True)
class TokenCache:
    """A folder of blocks. A block's name is a digest of everything that the block depends on.

    Attributes:
        folder: the folder.
        recipe: digest of config, tokenizer and versions: everything besides its bytes that a block depends on.
        options: see `StoreOptions`.
        single_use: only this run uses the folder, on a local disk. A block is removed as soon as all its rows are in a
            shard. Then the job needs less disk, and pages that are still in memory are never written to the disk.
        trust: which blocks of earlier runs are reused.
        kept: the folder stays after the run, and later runs use its blocks.
        groups: for groups of inputs, a digest of each group's settings.
    """

    folder: str
    recipe: str
    options: StoreOptions = field(default_factory=StoreOptions.current)
    single_use: bool = False
    trust: CachePolicy = field(default_factory=CachePolicy)
    kept: bool = False
    groups: tuple[str, ...] = ()

    def digest(self, origin: Origin) -> str:
        """The digest in a block's name: the digest of its bytes, and of its group's settings if inputs have groups.

        So the same bytes in two groups, which may read other fields, are two blocks.
        """
        group = origin.source.group
        if group is None:
            return origin.digest
        of = self.groups[group] if self.groups else group
        return hashlib.sha256(f"{of} {origin.digest}".encode()).hexdigest()

    def name(self, digest: str) -> str:
        """The name of a block from its `digest`. The first two digits are a folder."""
        return f"{digest[:2]}/{digest[2:32]}-{self.recipe[:16]}"

    def find(self, digest: str) -> BlockReceipt | None:
        """The block statistics of a block in the cache, or None. It checks the checksums of all bytes of the block.

        Raises:
            TokenCacheError: the block is damaged.
        """
        name = self.name(digest)
        try:
            rows = read_file(self._path(name, ROWS))
        except FileNotFoundError:
            return None
        try:
            receipt = BlockReceipt(cached_block.whole(rows, name + ROWS).fact("receipt"))
            cached_block.whole(read_file(self._path(name, ROW_INDEX)), name + ROW_INDEX)
        except (FormatError, OSError) as error:
            raise TokenCacheError(str(error)) from None
        return receipt

    def write(self, batch: Batch, tokens: Array, text_limit: int) -> BlockReceipt:
        """Writes a block's files, its rows last. For the arguments see `encode_block`."""
        name = self.name(self.digest(batch.origin))
        receipt, files = cached_block.encode_block(batch, tokens, text_limit, name)
        for ending, parts in files.items():
            write_file(self._path(name, ending), *parts)
        return receipt

    def used(self, name: str) -> None:
        """Notes that a block was used: `gc` removes blocks that were not used for some time."""
        if self.kept and is_local(self.folder):
            with suppress(OSError):  # the file of another user; or it is gone, then the next read fails
                os.utime(self._path(name, ROWS))
        elif self.kept:  # an object's time changes only by a write, so an empty object marks the use
            stores.put(self._path(name, _USED), b"")

    def rows(self, name: str, domain: int, rows: slice | Array, last: bool = False) -> dict[str, Ragged]:
        """Some rows of a block's domain; see `read_rows`. A slice that is the whole block is removed at its `last` use.

        Raises:
            TokenCacheError: see `_expected_block`.
        """
        path = self._path(name, ROWS)
        with self._expected_block(name):
            found, are_all = cached_block.read_rows(read_file(path), name, domain, rows)
        if last and are_all:
            os.unlink(path)  # the rows are mapped into memory, and stay readable while they are in use
        return found

    def rejects(self, names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """The rejects of several blocks, in order. Some blocks are read at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(names), AT_ONCE):
                yield from pool.map(self._rejects, names[first : first + AT_ONCE])

    def _rejects(self, name: str) -> list[dict[str, Any]]:
        with self._expected_block(name):
            return cached_block.read_rejects(read_file(self._path(name, ROW_INDEX)), name)

    def row_indexes(self, names: Sequence[str]) -> list[RowIndex]:
        """The row indexes of several blocks, which are read at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._row_index, names))

    def _row_index(self, name: str) -> RowIndex:
        with self._expected_block(name):
            return cached_block.read_row_index(read_file(self._path(name, ROW_INDEX)), name)

    @contextmanager
    def _expected_block(self, name: str) -> Iterator[None]:
        """Wraps the reading of a block that the plan needs.

        Raises:
            TokenCacheError: the block is gone or damaged. A damaged block is renamed. The next run makes it again.
        """
        advice = f"in {self.folder}: run again: this block alone is made again"
        try:
            yield
        except FormatError as error:
            for ending in (ROWS, ROW_INDEX):  # rows first: without its rows a block is not found
                set_aside(self._path(name, ending))
            raise TokenCacheError(f"{error}; it is set aside (*{DAMAGED_SUFFIX}) {advice}") from None
        except FileNotFoundError:
            raise TokenCacheError(f"the token cache file {name} is gone, or was set aside, {advice}") from None

    def _path(self, name: str, ending: str) -> str:
        return join(self.folder, name + ending)


# Garbage collection of a kept token cache. Every run notes which blocks it uses. Blocks that were not used for some
# time are removed, then the oldest ones until the cache is small enough. The next run that needs a removed block makes
# it again. A running job that has already found the block fails, so `older_than` should be longer than a job takes.

_FILE = re.compile(
    r"([0-9a-f]{2}/[0-9a-f]{30}-[0-9a-f]{16})(\.arrow|\.rows\.arrow|\.rejects\.arrow|\.used)(\.damaged|\.[0-9a-f]{32})?"
)
"""The block, the ending, and the further ending of a damaged file, or of one that a killed writer left."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of `collect`.

    Attributes:
        token_cache: the folder.
        kept, kept_bytes: blocks that are there afterwards, and their size.
        removed, removed_bytes: blocks that were removed, and the size of these and of leftovers.
    """

    token_cache: str
    kept: int
    kept_bytes: int
    removed: int
    removed_bytes: int

    def line(self, dry_run: bool) -> str:
        """A line of text for the terminal."""
        removed, kept = counted(self.removed, "block"), counted(self.kept, "block")
        return (
            f"{self.token_cache}: {removed}, {filesize.decimal(self.removed_bytes)} "
            f"{'would be ' if dry_run else ''}removed; {kept}, {filesize.decimal(self.kept_bytes)} kept"
        )


def collect(token_cache: str, older_than: float, most_bytes: int | None = None, dry_run: bool = False) -> Collected:
    """Removes blocks that were not used for some time.

    Args:
        token_cache: the folder.
        older_than: removes blocks that were not used for so many seconds.
        most_bytes: while the cache is larger, also removes other blocks, the oldest first.
        dry_run: removes nothing.

    Raises:
        ConfigError: there is no token cache.
    """
    if is_local(token_cache) and not os.path.isdir(token_cache):
        raise ConfigError(f"{token_cache}: there is no such token cache")
    token_cache = os.path.abspath(token_cache) if is_local(token_cache) else token_cache.rstrip("/")
    blocks: dict[str, dict[str, ObjectInfo]] = {}
    leftovers: list[ObjectInfo] = []
    for file in listed(token_cache):
        match = _FILE.fullmatch(file.path[len(token_cache) + 1 :])
        if match is not None and match[3] is None:
            blocks.setdefault(match[1], {})[match[2]] = file
        elif match is not None:
            leftovers.append(file)
    sizes = {name: _size(files.values()) for name, files in blocks.items()}
    used = {name: max(file.updated for file in files.values()) for name, files in blocks.items()}
    now, kept_bytes, removed = time.time(), sum(sizes.values()), list[str]()
    for name in sorted(blocks, key=lambda name: used[name]):
        if now - used[name] > older_than or (most_bytes is not None and kept_bytes > most_bytes):
            removed.append(name)
            kept_bytes -= sizes[name]
    old = [file for file in leftovers if now - file.updated > older_than]
    if not dry_run:
        # Rows go first: without its rows a block is not found.
        delete(blocks[name][ROWS].path for name in removed if ROWS in blocks[name])
        delete(file.path for name in removed for file in blocks[name].values())
        delete(file.path for file in old)
    removed_bytes = sum(sizes[name] for name in removed) + _size(old)
    return Collected(token_cache, len(blocks) - len(removed), kept_bytes, len(removed), removed_bytes)


def _size(files: Iterable[ObjectInfo]) -> int:
    return sum(file.size for file in files)
