"""Removes the blocks of a token cache by age, and then by size.

Every run touches the blocks that it uses: those go that were not used for a time, and then the oldest ones until the
token cache is as small as wanted. A block that goes is made again by the next run that needs it. A run that has found
one already fails with a `TokenCacheError`, so `older_than` should be longer than a job takes.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from beam_prep.errors import ConfigError
from beam_prep.formats.cached_block import REJECTS, ROW_INDEX, ROWS
from beam_prep.storage.files import DAMAGED_SUFFIX, join
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import is_local

_BLOCK = re.compile(r"([0-9a-f]{2}/[0-9a-f]{30}-[0-9a-f]{16})(\..*)")
_ENDINGS = (ROWS, ROW_INDEX, REJECTS)  # in the order in which they are removed: without its rows a block is not found


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
            _remove(token_cache, [name + ending for name in removed if ending in found[name].endings])
        _remove(token_cache, old)
    removed_bytes = size - kept_bytes + sum(leftovers[path][0] for path in old)
    return Collected(token_cache, len(found) - len(removed), kept_bytes, len(removed), removed_bytes)


def _found(token_cache: str) -> tuple[dict[str, _Files], dict[str, tuple[int, float]]]:
    """The blocks of a token cache by name; and what killed writers, and damage, left: path -> (bytes, when)."""
    blocks: dict[str, _Files] = {}
    leftovers: dict[str, tuple[int, float]] = {}
    for path, size, changed in _listed(token_cache):
        match = _BLOCK.fullmatch(path)
        if match is None:
            continue
        name, ending = match[1], match[2]
        if ending in _ENDINGS:
            files = blocks.setdefault(name, _Files())
            files.bytes, files.used = files.bytes + size, max(files.used, changed)
            files.endings = (*files.endings, ending)
        elif ending.endswith(DAMAGED_SUFFIX) or re.fullmatch(r".*\.[0-9a-f]{32}", ending):
            leftovers[path] = (size, changed)
    return blocks, leftovers


def _listed(token_cache: str) -> Iterator[tuple[str, int, float]]:
    """(path below the token cache, bytes, time of the last change) of all files."""
    if not is_local(token_cache):
        for found in objects.listed(f"{token_cache}/"):
            yield found.path[len(token_cache) + 1 :], found.size, found.updated
        return
    for folder in sorted(Path(token_cache).glob("[0-9a-f][0-9a-f]")):
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # renamed or removed meanwhile
                yield f"{folder.name}/{entry.name}", stat.st_size, stat.st_mtime


def _remove(token_cache: str, names: list[str]) -> None:
    if is_local(token_cache):
        for name in names:
            Path(token_cache, name).unlink(missing_ok=True)
    else:
        objects.delete(join(token_cache, name) for name in names)
