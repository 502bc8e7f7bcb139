"""The plan: which rows of which spooled blocks make which shard. Decided as a sequential program would decide it.

Records are taken in input order. When the tokens of all domains since the last flush reach `max_tokens`, every domain
that has rows since then gets a shard. `max_items` ends the input behind that many kept records.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.core.block import BlockReceipt, InputFile, Origin, count_outcomes
from beam_prep.core.domains import folders
from beam_prep.core.hashing import Node, tree_digest
from beam_prep.core.ragged import Array, offsets_of
from beam_prep.core.schema import Column
from beam_prep.errors import RunError

REJECTS_PER_FILE = 100_000
_PREFETCH = 32


@dataclass(frozen=True, slots=True)
class SpoolReceipt:
    """A block that lies in the spool, and where it comes from.

    Attributes:
        origin: its place in the input.
        name: its file in the spool, without ending.
        reused: it was there already: from an earlier run, or because the input has the same bytes twice.
        block: what it holds.
        made: how many of its records were made in which way, in this run: see `Block`.
    """

    origin: Origin
    name: str
    reused: bool
    block: BlockReceipt
    made: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, stop) of one domain of a spooled block."""

    name: str
    domain: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its rows in order. `shards` is how many its domain has."""

    domain: str
    folder: str
    shard: int
    shards: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class RejectSlice:
    """Rejects [start, stop) of a block, and what makes their file, offset and line absolute."""

    name: str
    start: int
    stop: int
    path: str
    first_byte: int
    first_line: int


@dataclass(frozen=True, slots=True)
class RejectsPlan:
    """One file of rejects."""

    index: int
    slices: tuple[RejectSlice, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What became of every line of the input: `lines = blank + kept + dropped + rejected + not_read`."""

    lines: int = 0
    blank: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    not_read: int = 0

    @property
    def read(self) -> int:
        """Records looked at: kept, dropped or rejected."""
        return self.kept + sum(self.dropped.values()) + sum(self.rejected.values())

    @property
    def reject_rate(self) -> float:
        """Rejected records as a share of the records read."""
        return sum(self.rejected.values()) / self.read if self.read else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "blank": self.blank,
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "rejected": dict(sorted(self.rejected.items())),
            "not_read": self.not_read,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All of the second phase, decided.

    Attributes:
        shards, rejects: the work to do.
        ledger: exact counts.
        counters: other counts over kept rows.
        inputs: per file: path, size and digest.
        columns: what each row has.
        domains: domain -> folder.
        blocks, reused: how many blocks there are, and how many of them were in the spool already.
        made: how many records this run made in which way.
    """

    shards: list[ShardPlan]
    rejects: list[RejectsPlan]
    ledger: Ledger
    counters: dict[str, int]
    inputs: list[dict[str, Any]]
    columns: tuple[Column, ...]
    domains: dict[str, str]
    blocks: int
    reused: int
    made: dict[str, int]


@dataclass(frozen=True, slots=True)
class Border:
    """A place between two records: behind the first `rows` kept rows of block `block`.

    `cut` says how many of these are of each domain of the block.
    """

    block: int
    rows: int
    cut: tuple[int, ...]


def pack_receipts(receipts: Sequence[SpoolReceipt]) -> bytes:
    """Receipts as one Arrow blob; 1.2 million of them must fit a worker, which objects would not."""
    columns: dict[str, list[Any]] = {
        "file": [r.origin.file for r in receipts],
        "start": [r.origin.start for r in receipts],
        "first_byte": [r.origin.first_line for r in receipts],
        "size": [r.origin.size for r in receipts],
        "nodes": [[node.digest for node in r.origin.nodes] for r in receipts],
        "levels": [[(node.index << 8) | node.level for node in r.origin.nodes] for r in receipts],
        "source": [_source(r.origin.source) for r in receipts],
        "name": [r.name for r in receipts],
        "reused": [r.reused for r in receipts],
        "made": [list(r.made.items()) for r in receipts],
        "lines": [r.block.lines for r in receipts],
        "counts": [json.dumps([r.block.counts, r.block.counters]) for r in receipts],
        "domains": [[name for name, _, _ in r.block.domains] for r in receipts],
        "rows": [[rows for _, rows, _ in r.block.domains] for r in receipts],
        "tokens": [[tokens for _, _, tokens in r.block.domains] for r in receipts],
        "columns": [json.dumps([astuple(column) for column in r.block.columns]) for r in receipts],
    }
    table = pa.table(columns, schema=_RECEIPTS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _RECEIPTS, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


def _source(file: InputFile) -> str:
    return json.dumps([file.path, file.size, file.compression is None])


_RECEIPTS = pa.schema(
    [
        ("file", pa.int32()),
        ("start", pa.int64()),
        ("first_byte", pa.int64()),
        ("size", pa.int64()),
        ("nodes", pa.list_(pa.binary(32))),
        ("levels", pa.list_(pa.int64())),
        ("source", pa.string()),
        ("name", pa.string()),
        ("reused", pa.bool_()),
        ("made", pa.map_(pa.string(), pa.int64())),
        ("lines", pa.int64()),
        ("counts", pa.string()),
        ("domains", pa.list_(pa.string())),
        ("rows", pa.list_(pa.int64())),
        ("tokens", pa.list_(pa.int64())),
        ("columns", pa.string()),
    ]
)


class Receipts:
    """All receipts of a job, in input order.

    Raises:
        RunError: a block is missing or there twice: a defect of the runner. (That the last blocks of a compressed
            file, or all of the last file's, are missing cannot be seen here.)
    """

    def __init__(self, blobs: Sequence[bytes]) -> None:
        tables = [pa.ipc.open_stream(blob).read_all() for blob in blobs]
        table = pa.concat_tables(tables) if tables else _RECEIPTS.empty_table()
        self.table = table.sort_by([("file", "ascending"), ("start", "ascending")]).combine_chunks()
        self.file = self._numpy("file")
        self.start = self._numpy("start")
        self.size = self._numpy("size")
        self.lines = self._numpy("lines")
        self.first_byte = self._numpy("first_byte")
        self.names: list[str] = self.table["name"].to_pylist()
        # Entries: one a block and domain.
        domains = self._list("domains")
        self.entry_block = np.repeat(np.arange(len(self)), domains.value_lengths().to_numpy())
        self.entry_first = offsets_of(domains.value_lengths().to_numpy())
        encoded = domains.flatten().dictionary_encode()
        self.domains: list[str] = encoded.dictionary.to_pylist()
        self.entry_domain = encoded.indices.to_numpy().astype(np.int64)
        self.entry_rows = self._list("rows").flatten().to_numpy()
        self.entry_tokens = self._list("tokens").flatten().to_numpy()
        self.rows = np.bincount(self.entry_block, self.entry_rows, len(self)).astype(np.int64)
        self.tokens = np.bincount(self.entry_block, self.entry_tokens, len(self)).astype(np.int64)
        self._check()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def made(self) -> dict[str, int]:
        """How many records this run made in which way."""
        column = self.table["made"].combine_chunks()
        entries = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
        if len(entries) == 0:
            return {}
        pairs = pa.table({"way": entries.keys, "records": entries.items})
        sums = pairs.group_by("way").aggregate([("records", "sum")])
        return dict(sorted(zip(sums["way"].to_pylist(), sums["records_sum"].to_pylist(), strict=True)))

    def _numpy(self, name: str) -> Array:
        values: Array = self.table[name].to_numpy()
        return values

    def _list(self, name: str) -> pa.ListArray:
        column = self.table[name]
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _check(self) -> None:
        """The blocks of each file join, from its first byte to its last."""
        stops = self.start + self.size
        same_file = self.file[1:] == self.file[:-1]
        apart = same_file & ((self.start[1:] != stops[:-1]) | (self.start[1:] == self.start[:-1]))
        for block in np.flatnonzero(apart)[:1]:
            raise _lost(
                f"behind byte {stops[block]} of {self.path(block)} comes a block from {self.start[block + 1]} on"
            )
        for number, (first, stop) in enumerate(self._files()):
            path, size, plain = self._source(first)
            if self.file[first] != number:
                raise _lost(f"all blocks of input file {number + 1} are missing")
            if self.start[first] != 0:
                raise _lost(f"the first block of {path} is missing")
            if plain and stops[stop - 1] < size:
                raise _lost(f"the blocks behind byte {stops[stop - 1]} of {path} are missing")

    def _files(self) -> Iterator[tuple[int, int]]:
        """The blocks [first, stop) of each file."""
        return itertools.pairwise([*np.flatnonzero(np.diff(self.file, prepend=-1)).tolist(), len(self)])

    def columns(self) -> tuple[Column, ...]:
        """What each row has; the same in every block."""
        found = self.table["columns"].unique().to_pylist()
        if len(found) > 1:
            raise ValueError(f"blocks differ in their columns: {found[0]} and {found[1]}")
        return tuple(Column(*entry) for entry in json.loads(found[0])) if found else ()

    def inputs(self) -> list[dict[str, Any]]:
        """Per file: path, size in the store, digest of its content."""
        result = []
        nodes, levels = self._list("nodes"), self._list("levels")
        for first, stop in self._files():
            path, size, _ = self._source(first)
            digests = [d for row in nodes[first:stop].to_pylist() for d in row]
            places = [p for row in levels[first:stop].to_pylist() for p in row]
            tree = (Node(place >> 8, place & 255, digest) for place, digest in zip(places, digests, strict=True))
            result.append({"path": path, "size": size, "digest": tree_digest(tree)})
        return result

    def path(self, block: int) -> str:
        """The file of a block, as given."""
        return self._source(block)[0]

    def _source(self, block: int) -> tuple[str, int, bool]:
        """(path, size, not compressed) of a block's file."""
        path, size, plain = json.loads(self.table["source"][block].as_py())
        return path, size, plain

    def domains_of(self, block: int) -> int:
        """How many domains a block has."""
        return int(self.entry_first[block + 1] - self.entry_first[block])

    def counts(self, blocks: Array) -> list[tuple[dict[str, Any], dict[str, int]]]:
        """(outcome counts, counters) of each of these blocks."""
        return [tuple(json.loads(text)) for text in self.table["counts"].take(blocks).to_pylist()]


def _lost(what: str) -> RunError:
    return RunError(f"{what}: the runner lost or doubled a block, run again")


class _Sidecars:
    """Sidecars by block, fetched ahead of the borders that will need them."""

    def __init__(self, fetch: Callable[[list[str]], list[Any]], names: list[str]) -> None:
        self._fetch, self._names, self._found = fetch, names, dict[int, Any]()

    def get(self, block: int, ahead: Sequence[int] = ()) -> Any:
        if block not in self._found:
            wanted = list(dict.fromkeys([block, *ahead]))
            self._found = dict(zip(wanted, self._fetch([self._names[b] for b in wanted]), strict=True))
        return self._found[block]


def make_plan(
    receipts: Receipts,
    fetch: Callable[[list[str]], list[Any]],
    max_tokens: int,
    max_items: int | None = None,
) -> Plan:
    """Decides everything that depends on more than one block.

    Args:
        receipts: all blocks.
        fetch: names of spooled blocks -> their sidecars (`formats.spool.Rows`), in that order.
        max_tokens: a shard is flushed when the tokens since the last flush reach this.
        max_items: kept records, at most.
    """
    sidecars = _Sidecars(fetch, receipts.names)
    end = _end(receipts, sidecars, max_items)
    shards = _shards(receipts, _shard_borders(receipts, sidecars, max_tokens, end))
    folder = folders(shard.domain for shard in shards)
    count = Counter(shard.domain for shard in shards)
    ledger, counters = _ledger(receipts, sidecars, end)
    return Plan(
        shards=[replace(shard, folder=folder[shard.domain], shards=count[shard.domain]) for shard in shards],
        rejects=_rejects(receipts, sidecars, end),
        ledger=ledger,
        counters=counters,
        inputs=receipts.inputs(),
        columns=receipts.columns(),
        domains=folder,
        blocks=len(receipts),
        reused=int(np.count_nonzero(receipts.table["reused"].to_numpy())),
        made=receipts.made(),
    )


def _border(sidecar: Any, block: int, rows: int, domains: int) -> Border:
    cut = np.bincount(sidecar.domain[:rows], minlength=domains)
    return Border(block, rows, tuple(cut.tolist()))


def _end(receipts: Receipts, sidecars: _Sidecars, max_items: int | None) -> Border:
    """The end of what is kept: where `max_items` is reached, else the end of the input."""
    kept = np.cumsum(receipts.rows)
    if max_items is None or not len(kept) or kept[-1] < max_items:
        block = len(receipts) - 1
        return Border(block, -1, ())
    block = int(np.searchsorted(kept, max_items))
    rows = max_items - int(kept[block] - receipts.rows[block])
    return _border(sidecars.get(block), block, rows, receipts.domains_of(block))


def _shard_borders(receipts: Receipts, sidecars: _Sidecars, max_tokens: int, end: Border) -> list[Border]:
    """Every flush, the last one included."""
    ends = np.cumsum(receipts.tokens[: end.block + 1])
    borders: list[Border] = []
    flushed = 0
    while True:
        goal = flushed + max_tokens
        block = int(np.searchsorted(ends, goal))
        if block > end.block:
            break
        later = np.searchsorted(ends, goal + max_tokens * np.arange(1, _PREFETCH))
        sidecar = sidecars.get(block, [int(b) for b in later if b <= end.block])
        until = ends[block] - receipts.tokens[block] + np.cumsum(sidecar.tokens)
        rows = int(np.searchsorted(until, goal)) + 1
        if block == end.block and 0 <= end.rows < rows:
            break
        borders.append(_border(sidecar, block, rows, receipts.domains_of(block)))
        flushed = int(until[rows - 1])
    return [*borders, end]


def _shards(receipts: Receipts, borders: list[Border]) -> list[ShardPlan]:
    """Shards in order of flush, then of domain; folders and counts are filled in later."""
    first = receipts.entry_first.tolist()
    domain, rows = receipts.entry_domain.tolist(), receipts.entry_rows.tolist()
    next_shard: Counter[int] = Counter()
    shards: list[ShardPlan] = []
    here = Border(0, 0, ())
    for border in borders:
        slices: dict[int, list[Slice]] = {}
        for block in range(here.block, border.block + 1):
            starts = here.cut if block == here.block else ()
            stops = border.cut if block == border.block else ()
            for place, entry in enumerate(range(first[block], first[block + 1])):
                start = starts[place] if starts else 0
                stop = stops[place] if stops else rows[entry]
                if start < stop:
                    slices.setdefault(domain[entry], []).append(Slice(receipts.names[block], place, start, stop))
        for code in sorted(slices, key=receipts.domains.__getitem__):
            shards.append(ShardPlan(receipts.domains[code], "", next_shard[code], 0, tuple(slices[code])))
            next_shard[code] += 1
        here = border
    return shards


def _cut_line(sidecar: Any, rows: int) -> int:
    """The first line behind the last kept row."""
    return int(sidecar.line[rows - 1]) + 1


def _ledger(receipts: Receipts, sidecars: _Sidecars, end: Border) -> tuple[Ledger, dict[str, int]]:
    whole = end.block + 1 if end.rows < 0 else end.block
    counts = receipts.counts(np.arange(whole))
    kept, lines = int(receipts.rows[:whole].sum()), int(receipts.lines.sum())
    not_read = int(receipts.lines[whole:].sum())
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        cut = _cut_line(sidecar, end.rows)
        counters = {name: int(per_row[: end.rows].sum()) for name, per_row in sidecar.counters.items()}
        counts.append((count_outcomes(sidecar.status[:cut], sidecar.outcomes), counters))
        kept, not_read = kept + end.rows, not_read - cut
    blank = sum(found["blank"] for found, _ in counts)
    dropped: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for found, counters in counts:
        dropped.update(found["dropped"])
        rejected.update(found["rejected"])
        other.update(counters)
    ledger = Ledger(lines, blank, kept, dict(dropped), dict(rejected), not_read)
    return ledger, {name: count for name, count in sorted(other.items()) if count}


def _rejects(receipts: Receipts, sidecars: _Sidecars, end: Border) -> list[RejectsPlan]:
    """Files of at most REJECTS_PER_FILE rejects, in input order."""
    lines_before = np.cumsum(receipts.lines) - receipts.lines
    new_file = np.diff(receipts.file, prepend=-1) != 0
    lines_before -= np.maximum.accumulate(np.where(new_file, lines_before, 0))
    files: list[list[RejectSlice]] = []
    room = 0
    blocks = range(len(receipts) if end.rows < 0 else end.block + 1)
    for block, (found, _) in zip(blocks, receipts.counts(np.arange(len(blocks))), strict=True):
        count = sum(found["rejected"].values())
        if end.rows >= 0 and block == end.block and count:
            sidecar = sidecars.get(block)
            seen = count_outcomes(sidecar.status[: _cut_line(sidecar, end.rows)], sidecar.outcomes)
            count = sum(seen["rejected"].values())
        start = 0
        while start < count:
            if room == 0:
                files.append([])
                room = REJECTS_PER_FILE
            stop = min(count, start + room)
            files[-1].append(
                RejectSlice(
                    receipts.names[block],
                    start,
                    stop,
                    receipts.path(block),
                    int(receipts.first_byte[block]),
                    int(lines_before[block]),
                )
            )
            room -= stop - start
            start = stop
    return [RejectsPlan(index, tuple(slices)) for index, slices in enumerate(files)]
