"""Reads the rows of shards: slices from the token cache, or merges of sorted runs. Sorts blocks into runs."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Ragged, offsets_of
from beam_prep.data.schema import one_each, placed
from beam_prep.errors import FormatError, TokenCacheError
from beam_prep.formats.arrow import rows_of
from beam_prep.formats.cached_block import Sealed, encode_rows, joined, seal_batches
from beam_prep.shards.compose import Arranged, Compose, Place, arranged, scaled, view
from beam_prep.shards.layout import CUT, LOST, Rows
from beam_prep.shards.receipts import Copies, RowIndex
from beam_prep.shards.runs import Limits, RunCounts, RunGroup, Runs, batches_of
from beam_prep.shards.slices import Merge, ShardPlan, Slice, merged_name, run_name
from beam_prep.storage.files import join, read_file, write_file
from beam_prep.storage.stores import is_local
from beam_prep.storage.token_cache import TokenCache

RunRows = dict[str, Ragged]
"""Rows of one part and one range of keys, by rising key: column -> rows. `KEY`, `SAMPLE` and `LOST` are columns of one
number a row: uint64 keys, see `Arranged`, and the tokens cut from each row."""

KEY, SAMPLE = (" key", " sample")


class RunReader:
    """Reads batches of a run, from one open file.

    Args:
        source: an open file, not mapped into memory: each byte of a run is read only once.
        name: the name with which the run was sealed.

    Raises:
        FormatError: the file is cut or damaged, or is another file.
    """

    def __init__(self, source: pa.NativeFile, name: str) -> None:
        self._sealed, self._name = Sealed(source, name), name
        listed = self._sealed.fact("batches")
        self._batches = {(part, keys): number for number, (part, keys, _) in enumerate(listed)}

    def rows(self, part: int, keys: int) -> RunRows | None:
        """The rows of a part and a range of keys; None if there are none.

        Raises:
            TokenCacheError: the rows are damaged.
        """
        number = self._batches.get((part, keys))
        if number is None:
            return None
        with expected(self._name):
            return rows_of(self._sealed.batch(number))


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder of intermediate files of one launch, sealed like token cache files. The end of the launch removes them.

    `copies/`: which records of a block are copies of earlier records. `runs/`, `merged/`: sorted rows of blocks.

    Attributes:
        folder: the folder.
    """

    folder: str

    def write_copies(self, copies: Copies) -> str:
        """Writes which records of a block are copies. Returns the file's name, a digest; "" without copies."""
        if not len(copies):
            return ""
        batch = pa.record_batch(copies.arrays)
        content, _ = seal_batches([batch], batch.schema, {}, "")
        name = f"copies/{hashlib.sha256(content).hexdigest()[:40]}"
        write_file(self._path(name), *seal_batches([batch], batch.schema, {}, name))
        return name

    def copies(self, name: str) -> Copies:
        """Reads a file of `write_copies`.

        Raises:
            TokenCacheError: the file is gone or damaged.
        """
        if not name:
            return Copies()
        with expected(name):
            batch = Sealed(read_file(self._path(name)), name).batch(0)
            return Copies(**{each: batch.column(each).to_numpy() for each in batch.schema.names})

    def write_run(self, name: str, found: RunRows, batches: Sequence[tuple[int, int, int]]) -> None:
        """Writes a run, batch by batch; `batches`: (part, range of keys, number of rows), each pair once."""
        borders = offsets_of([rows for _, _, rows in batches]).tolist()
        slices = itertools.starmap(slice, itertools.pairwise(borders))
        write_file(self._path(name), *encode_rows(found, slices, {"batches": batches}, name))

    def open_run(self, name: str) -> RunReader:
        """Opens a run.

        Raises:
            TokenCacheError: the file is gone or damaged.
        """
        with expected(name):
            path = self._path(name)
            return RunReader(pa.OSFile(path) if is_local(path) else read_file(path), name)

    def _path(self, name: str) -> str:
        return join(self.folder, name + ".arrow")


@contextmanager
def expected(name: str) -> Iterator[None]:
    """Wraps the reading of a file of this run.

    Raises:
        TokenCacheError: the file is gone or damaged.
    """
    try:
        yield
    except FormatError as error:
        raise TokenCacheError(f"{error}: run again; blocks that are done are kept") from None
    except FileNotFoundError:
        raise TokenCacheError(
            f"the file {name} of this run is gone: run again; blocks that are done are kept"
        ) from None


@dataclass(frozen=True, slots=True)
class Arranger:
    """Reads the rows of shards.

    Attributes:
        token_cache, scratch: the folders to read from.
        compose: see `Shard`.
        provenance: adds columns with file and offset, see `Layout`.
    """

    token_cache: TokenCache
    scratch: Scratch
    compose: Compose = field(default_factory=Compose)
    provenance: bool = False

    def rows(self, plan: ShardPlan) -> Iterator[Rows]:
        """The rows of a shard in order, part by part, with `LOST` if rows were cut.

        Raises:
            TokenCacheError: a block, or a file of this run, is gone or damaged.
        """
        if plan.merge is not None:
            yield from self._merged(plan.merge)
        else:
            for piece in plan.slices:
                yield self.slice(piece, plan.last, plan.cut)

    def slice(self, piece: Slice, last: bool = False, cut: bool = False) -> Rows:
        """The rows of a slice, with `cut` and `LOST`. For `last` see `TokenCache.rows`."""
        within, views = slice(piece.start, piece.stop), self.compose.splits is not None or bool(piece.copies)
        if views or cut:
            seen = self._view(piece.name, piece.copies)
            here = np.flatnonzero(seen["domain"] == piece.domain)[within]
        domain = piece.domain // self.compose.split_count
        rows = self.token_cache.rows(piece.name, domain, seen["number"][here] if views else within, last)
        rows = self._placed(rows, piece.file, piece.first_byte)
        return rows | {LOST: one_each(seen.counter(CUT)[here])} if cut else rows

    def _placed(self, rows: RunRows, file: int, first_byte: int) -> RunRows:
        return placed(rows, file, first_byte) if self.provenance else rows

    def _view(self, name: str, copies: str) -> RowIndex:
        (row_index,) = self.token_cache.row_indexes([name])
        return view(row_index, self.scratch.copies(copies), self.compose.splits)

    def _merged(self, merge: Merge) -> Iterator[Rows]:
        known: dict[str, RunReader] = {}
        for keys in range(merge.first, merge.stop):
            sources = merge.sources(keys)
            known = {name: known.get(name) or self.scratch.open_run(name) for name in sources}
            found = _bin(known, merge.part, keys)
            if found is not None:
                kept = np.flatnonzero(found[SAMPLE].flat <= np.uint64(merge.most))
                if len(kept) < len(found[KEY]):
                    found = joined([found], kept)
                if len(kept):
                    yield {name: rows for name, rows in found.items() if name not in (KEY, SAMPLE)}

    def survey(self, group: RunGroup) -> RunCounts:
        """Counts the tokens of a mix by sample key, for the blocks of a run. Without a mix nothing is counted."""
        counts = RunCounts()
        for place in group.places if group.runs.parts.wanted else ():
            seen, made = self._arranged(place, group.runs, {})
            counts += RunCounts.sampled(made, seen["tokens"][made.row], group.runs.parts)
        return counts

    def _arranged(self, place: Place, runs: Runs, limits: Limits) -> tuple[RowIndex, Arranged]:
        assert runs.compose.shuffle is not None
        seen = self._view(place.name, place.copies)
        return seen, arranged(seen, place, runs.compose.shuffle, runs.parts.taken(limits))

    def write_run(self, group: RunGroup, samples: RunCounts) -> RunCounts:
        """Writes a run: the rows of a group of blocks, sorted by part and key. Returns their counts.

        `samples`: what `survey` counted in all runs.
        """
        runs, found, tokens = group.runs, [], []
        limits = samples.limits(runs.parts)
        rows: list[RunRows] = []
        for place in group.places:
            seen, made = self._arranged(place, runs, limits)
            found.append(made)
            tokens.append(seen["tokens"][made.row])
            rows.append(self._all_rows(place, seen, made))
        made = Arranged.concat(found)
        order = np.lexsort((made.key, made.part))
        made, sizes = made.take(order), np.concatenate(tokens)[order]
        keys = scaled(made.key, runs.bins[made.part]) // runs.width[made.part]
        whole = joined(rows, order)
        self.scratch.write_run(run_name(group.index), whole, batches_of(made.part, keys))
        number = scaled(made.key, runs.parts.ranges[made.part])
        return RunCounts.of(made, number, sizes, runs.parts, limits)

    def _all_rows(self, place: Place, seen: RowIndex, made: Arranged) -> RunRows:
        batch = seen["domain"][made.row] // self.compose.split_count
        by_batch = np.argsort(batch, kind="stable")
        parts = []
        for code in range(len(place.parts) // self.compose.split_count):
            here = by_batch[batch[by_batch] == code]
            rows = self.token_cache.rows(place.name, code, seen["number"][made.row[here]])
            parts.append(self._placed(rows, place.file, place.first_byte))
        found = joined(parts, np.argsort(by_batch))
        lost = seen.counter(CUT)[made.row]
        return found | {KEY: one_each(made.key), SAMPLE: one_each(made.sample), LOST: one_each(lost)}

    def merge_runs(self, runs: Runs, group: int, wide: int) -> None:
        """The second level: merges a wide range of keys from several runs, and cuts it into bins."""
        first = group * runs.together
        names = [run_name(index) for index in range(first, min(first + runs.together, runs.runs))]
        sources = {name: self.scratch.open_run(name) for name in names}
        found, batches = [], []
        for part in range(len(runs.names)):
            rows = _bin(sources, part, wide)
            if rows is not None:
                keys = rows[KEY].flat
                codes = np.full(len(keys), part, np.int32)
                found.append(rows)
                batches += batches_of(codes, scaled(keys, runs.bins[codes]))
        count = sum(size for _, _, size in batches)
        whole = joined(found, np.arange(count)) if found else RunRows()
        self.scratch.write_run(merged_name(group, wide), whole, batches)


def _bin(sources: Mapping[str, RunReader], part: int, keys: int) -> RunRows | None:
    """The rows of a bin, or of a wider range of keys, in order; None if there are none.

    Raises:
        TokenCacheError: a run is damaged.
    """
    found = [rows for source in sources.values() if (rows := source.rows(part, keys)) is not None]
    if not found:
        return None
    # Rows with the same key are in the order of the sources.
    return joined(found, np.argsort(np.concatenate([each[KEY].flat for each in found]), kind="stable"))
