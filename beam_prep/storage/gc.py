"""Removes the blocks of a token cache that no output uses, by age and size.

A block stays if an output that is there was made of it, or if a launch of its recipe has not ended. Of the others,
those go that were not used for a time, and then the oldest ones until the token cache is as small as wanted. If a
launch begins just then, and a block that it has found is removed, it fails with a `TokenCacheError`, and the next run
makes it.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beam_prep.data.ragged import Array
from beam_prep.errors import ConfigError
from beam_prep.formats.cached_block import REJECTS, ROW_INDEX, ROWS
from beam_prep.storage.files import DAMAGED_SUFFIX, join
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import is_local
from beam_prep.storage.uses import Uses, is_among

_BLOCK = re.compile(r"([0-9a-f]{2}/[0-9a-f]{30}-[0-9a-f]{16})(\..*)")
_AT_ONCE = 5_000
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
        outputs: how many outputs use it.
        running: how many launches that have not ended do.
        kept, kept_bytes: blocks that are there afterwards.
        in_use: of these, those that an output or a launch uses.
        removed, removed_bytes: blocks and leftovers that were removed.
    """

    token_cache: str
    outputs: int
    running: int
    kept: int
    kept_bytes: int
    in_use: int
    removed: int
    removed_bytes: int

    def line(self, dry_run: bool) -> str:
        """For a person."""
        return (
            f"{self.token_cache}: {self.removed:,} blocks, {self.removed_bytes / 1e9:.2f} GB "
            f"{'would be ' if dry_run else ''}removed; {self.kept:,} blocks, {self.kept_bytes / 1e9:.2f} GB kept, "
            f"{self.in_use:,} of them in use by {self.outputs:,} outputs and {self.running:,} running jobs"
        )


def collect(token_cache: str, older_than: float, most_bytes: int | None = None, dry_run: bool = False) -> Collected:
    """Removes blocks that nothing uses.

    Args:
        token_cache: the folder.
        older_than: seconds; blocks that were used since then stay.
        most_bytes: beyond that, blocks that nothing uses go whatever their age, the oldest first.
        dry_run: remove nothing.

    Raises:
        ConfigError: there is no token cache.
        TokenCacheError: the note of an output is damaged.
    """
    if is_local(token_cache) and not os.path.isdir(token_cache):
        raise ConfigError(f"{token_cache}: there is no such token cache")
    token_cache = os.path.abspath(token_cache) if is_local(token_cache) else token_cache.rstrip("/")
    uses, now = Uses(token_cache), time.time()
    found, leftovers = _found(token_cache)
    # After the blocks: of a launch that began before this, every block that it has found is in `found`.
    used, running, outputs = _in_use(uses, dry_run)
    in_use = {name for name in found if _is_used(name, used, running)}
    others = sorted((name for name in found if name not in in_use), key=lambda name: found[name].used)
    kept_bytes = sum(files.bytes for files in found.values())
    removed: list[str] = []
    for name in others:
        if now - found[name].used > older_than or (most_bytes is not None and kept_bytes > most_bytes):
            removed.append(name)
            kept_bytes -= found[name].bytes
    old = [path for path, (_, used_at) in leftovers.items() if now - used_at > older_than]
    if not dry_run:
        removed = list(_removed(token_cache, uses, removed, found))
        _remove(token_cache, old)
    size = sum(found[name].bytes for name in removed)
    return Collected(
        token_cache,
        outputs,
        len(running),
        len(found) - len(removed),
        sum(files.bytes for files in found.values()) - size,
        len(in_use),
        len(removed),
        size + sum(leftovers[path][0] for path in old),
    )


def _removed(token_cache: str, uses: Uses, names: list[str], found: dict[str, _Files]) -> Iterator[str]:
    """Removes blocks, but none of a launch that has begun meanwhile. Gives back those that were removed."""
    for first in range(0, len(names), _AT_ONCE):
        running = {launch.recipe for _, launch in uses.launches() if launch.is_alive()}
        part = [name for name in names[first : first + _AT_ONCE] if name.rpartition("-")[2] not in running]
        _remove(token_cache, [name + ending for name in part for ending in _ENDINGS if ending in found[name].endings])
        yield from part


def _in_use(uses: Uses, dry_run: bool) -> tuple[dict[str, Array], set[str], int]:
    """(recipe -> blocks of outputs, recipes of launches that have not ended, number of outputs)."""
    if not dry_run:
        uses.tidy()
    running = {launch.recipe for _, launch in uses.launches() if launch.is_alive()}
    used: dict[str, list[Array]] = {}
    outputs = 0
    for _, output in uses.outputs():
        if output.is_there():
            outputs += 1
            used.setdefault(output.recipe, []).append(output.blocks)
    return {recipe: np.unique(np.concatenate(each)) for recipe, each in used.items()}, running, outputs


def _is_used(name: str, used: dict[str, Array], running: set[str]) -> bool:
    recipe = name.rpartition("-")[2]
    return recipe in running or (recipe in used and is_among(name, used[recipe]))


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
