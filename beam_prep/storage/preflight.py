"""Whether the disks have room for a run, from its first blocks: a run that cannot end stops early, with the numbers.

What is estimated is the least that the run needs. While little of the input is done, a run is stopped only if it lacks
much, because the blocks to come may differ from the first ones. Where a number is not known, nothing is counted for it:
the size of a compressed input is that of the file, and of a token cache that has blocks of this job, all others may be
there.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from beam_prep.errors import StorageError
from beam_prep.formats import FORMATS
from beam_prep.progress import Counts
from beam_prep.shards.layout import Layout
from beam_prep.tokens.batch import Batch

FIRST_SHARE = 0.01
"""Share of the input that is done before the first estimate, and at least `FIRST_BLOCKS`."""
FIRST_BLOCKS = 2
_SURE_AT_FIRST = 0.7
"""Share of the first estimate that must be missing room for."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a run still needs, at least.

    Attributes:
        token_cache, output: bytes.
        runs: bytes of a shuffle's sorted runs.
        reclaimed: bytes of the token cache that are removed while the shards are written.
    """

    token_cache: float
    output: float
    reclaimed: float = 0.0
    runs: float = 0.0

    @property
    def on_one_disk(self) -> float:
        """The most that is needed at a time where all of it is on the same disk."""
        return max(self.token_cache, self.token_cache + self.output + self.runs - self.reclaimed)


@dataclass(frozen=True, slots=True)
class Preflight:
    """The room that a run needs on local disks.

    Attributes:
        input_bytes: of all input files, as they are stored.
        token_cache: the token cache's folder; None: it is in a store.
        outputs: the folders in which an output is built and put in place; none of a store.
        cache_is_new: the token cache has no blocks of this job.
        linked: bytes of shards that may be linked from the earlier output.
        limited: the output may have fewer rows than the token cache: by `max_items`, a mix or deduplication.
        single_use: blocks are removed as their rows are written.
        shuffled: there are sorted runs, about as large as the token cache.
        scratch: the folder of a shuffle's sorted runs; None: it is in a store.
    """

    input_bytes: int
    token_cache: str | None
    outputs: tuple[str, ...]
    cache_is_new: bool
    linked: int
    limited: bool
    single_use: bool
    shuffled: bool = False
    scratch: str | None = None

    def need(self, done: Counts) -> Need | None:
        """What the rest of a run needs; None: too little is done to say it.

        Args:
            done: what all workers have done.
        """
        if done.blocks_made < FIRST_BLOCKS or done.bytes < FIRST_SHARE * self.input_bytes:
            return None
        total = max(self.input_bytes, done.bytes)
        cached = done.cached / done.bytes_made
        # Of the rest, as large a share is made as of what is done; where that can be known.
        made = (total - done.bytes) * (done.bytes_made / done.bytes) if self.cache_is_new else 0.0
        output = 0.0 if self.limited else max(0.0, done.output_ratio * cached * total - self.linked)
        more = cached * made
        runs = cached * total if self.shuffled and not self.limited else 0.0
        return Need(more, output, done.cached + more if self.single_use else 0.0, runs)

    def check(self, done: Counts) -> bool:
        """Stops a run that lacks room. False if too little is done to say it.

        Raises:
            StorageError: the message has the numbers.
        """
        need = self.need(done)
        if need is None:
            return False
        sure = _SURE_AT_FIRST + (1 - _SURE_AT_FIRST) * min(1.0, done.bytes / max(1, self.input_bytes))
        wanted: dict[int, list[tuple[str, str, float]]] = {}
        folders = [(self.token_cache, "the token cache", need.token_cache)] if self.token_cache is not None else []
        folders += [(self.scratch, "the sorted runs", need.runs)] if self.scratch is not None and need.runs else []
        # Of an output that is built on another disk than it is put in place, a copy is made.
        folders += [(folder, "the output", need.output) for folder in self.outputs]
        for folder, what, size in folders:
            there = wanted.setdefault(_disk(folder), [])
            if what not in [known for _, known, _ in there]:
                there.append((folder, what, size))
        for parts in wanted.values():
            # Less than the sum where blocks are removed as their rows are written.
            size = min(need.on_one_disk, sum(each for _, _, each in parts)) if len(parts) > 1 else parts[0][2]
            free = free_bytes(parts[0][0])
            if size * sure > free:
                listed = " and ".join(f"{what} in {folder}" for folder, what, _ in parts)
                raise StorageError(
                    f"{listed}: about {size / 1e9:.2f} GB more are needed, {free / 1e9:.2f} GB are free (estimated "
                    f"when {done.bytes / 1e6:,.0f} of {self.input_bytes / 1e6:,.0f} MB of input were done): make room, "
                    "or give folders on other disks (--cache_dir, --staging, -o); blocks that are done are kept"
                )
        return True


def output_ratio(batch: Batch, cached: int, formats: Sequence[str], layout: Layout) -> float:
    """The bytes that a block's rows take in an output, as a multiple of those that it takes in the token cache."""
    columns = layout.columns(tuple(batch.schema.values()))
    file = _Counted()
    writers = [FORMATS[name].writer(lambda _: file, columns, 0, 1) for name in formats]  # type: ignore[arg-type,return-value]
    for rows, _ in layout.rows([({name: batch[name] for name in batch.schema}, None)], columns):
        for writer in writers:
            writer.write(rows)
    for writer in writers:
        writer.close()
    return file.bytes / max(1, cached)


class _Counted:
    """A file that counts what is written to it, and keeps nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def close(self) -> None:
        """Does nothing."""


def _existing(folder: str) -> str:
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def _disk(folder: str) -> int:
    return os.stat(_existing(folder)).st_dev


def free_bytes(folder: str) -> int:
    """The room on the disk of a folder, which need not be there yet."""
    return shutil.disk_usage(_existing(folder)).free
