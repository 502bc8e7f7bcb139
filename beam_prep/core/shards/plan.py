"""The plan: which rows of which spooled blocks make which shard. Decided as a sequential program would decide it.

Records are taken in input order. When the tokens of all domains since the last flush reach `max_tokens`, every domain
that has rows since then gets a shard. `max_items` ends the input behind that many kept records.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.core.data.block import BlockReceipt, InputFile, Origin, count_outcomes
from beam_prep.core.data.hashing import Node, tree_digest
from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Column
from beam_prep.core.reading.lost import LOST, Lost
from beam_prep.core.shards.domains import folders
from beam_prep.errors import RunError

REJECTS_PER_FILE = 100_000
ROLE_COUNTS = ("messages", "tokens", "trained")
"""What is counted of each role, in the order of `BlockReceipt.roles`."""
_AT_A_TIME = 10_000
_PREFETCH = 512
_PREFETCH_ROWS = 8_000_000
"""Rows and lines of the sidecars that are held at a time: some 250 MB."""
MIN_BORDERS_TO_EXTRAPOLATE = 32
"""Borders that must be known before the next ones are extrapolated from them."""


@dataclass(frozen=True, slots=True)
class SpoolReceipt:
    """A block that lies in the spool, and where it comes from.

    Attributes:
        origin: its place in the input.
        name: its file in the spool, without ending.
        reused: it was there already: from an earlier run, or because the input has the same bytes twice.
        block: what it holds.
        made: how many of its records were made in which way, in whichever run: see `Block`.
    """

    origin: Origin
    name: str
    reused: bool
    block: BlockReceipt
    made: dict[str, int] = field(default_factory=dict)


class Slice(NamedTuple):
    """Rows [start, stop) of one domain of a spooled block."""

    name: str
    domain: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its rows in order.

    Attributes:
        domain, folder: where it belongs.
        shard, shards: its number, and how many its domain has.
        slices: where its rows lie.
        last: nobody else reads a block that it takes whole.
        cut: rows of the plan lost tokens to `Layout.fit`.
    """

    domain: str
    folder: str
    shard: int
    shards: int
    slices: tuple[Slice, ...]
    last: bool = False
    cut: bool = False


class RejectSlice(NamedTuple):
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
class LedgerTotals:
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
        shards_of: domain -> how many shards it has.
        blocks, reused: how many blocks there are, and how many of them were in the spool already.
        made: how many records were made in which way, those of reused blocks too.
        roles: role -> counts of `ROLE_COUNTS`, over all records that were rendered.
        lost: (file, its offset in bytes, record): the first records that were dropped with nothing to train on.
        first_reject: the first reject, as it stands in the rejects.
    """

    shards: Sequence[ShardPlan]
    rejects: Sequence[RejectsPlan]
    ledger: LedgerTotals
    counters: dict[str, int]
    inputs: list[dict[str, Any]]
    columns: tuple[Column, ...]
    domains: dict[str, str]
    shards_of: dict[str, int]
    blocks: int
    reused: int
    made: dict[str, int]
    roles: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: tuple[tuple[str, int, Lost], ...] = ()
    first_reject: dict[str, Any] | None = None


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
        "first_byte": [r.origin.first_byte for r in receipts],
        "size": [r.origin.size for r in receipts],
        "nodes": [[node.digest for node in r.origin.nodes] for r in receipts],
        "levels": [[(node.index << 8) | node.level for node in r.origin.nodes] for r in receipts],
        "source": [_source_text(r.origin.source) for r in receipts],
        "name": [r.name for r in receipts],
        "reused": [r.reused for r in receipts],
        "lines": [r.block.lines for r in receipts],
        "domains": [[name for name, _, _ in r.block.domains] for r in receipts],
        "rows": [[rows for _, rows, _ in r.block.domains] for r in receipts],
        "tokens": [[tokens for _, _, tokens in r.block.domains] for r in receipts],
        "counted": [[_key(kind, what) for kind, what, _ in _counts(r)] for r in receipts],
        "counts": [[count for _, _, count in _counts(r)] for r in receipts],
        "columns": [_columns_text(r.block.columns) for r in receipts],
    }
    return _blob(pa.table(columns, schema=_RECEIPTS))


def _blob(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # As a whole: a blob of few receipts is more schema than data.
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, _RECEIPTS) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


def _tables(blobs: Iterable[bytes]) -> Iterator[pa.Table]:
    """Some of the receipts at a time; at last none, so that there always is a table."""
    found: list[pa.Table] = []
    rows = 0
    for blob in blobs:
        found.append(pa.ipc.open_stream(pa.CompressedInputStream(pa.BufferReader(blob), "zstd")).read_all())
        rows += found[-1].num_rows
        if rows >= _AT_A_TIME:
            yield pa.concat_tables(found).combine_chunks()
            found, rows = [], 0
    yield pa.concat_tables([*found, _RECEIPTS.empty_table()]).combine_chunks()


def _counts(receipt: SpoolReceipt) -> Iterator[tuple[str, str, int]]:
    """All that is counted of a block: (kind, what, count)."""
    found = receipt.block.counts
    yield "blank", "", found["blank"]
    for kind, counts in (
        ("dropped", found["dropped"]),
        ("rejected", found["rejected"]),
        ("counter", receipt.block.counters),
        ("made", receipt.made),
        *((what, _of_roles(receipt.block.roles, place)) for place, what in enumerate(ROLE_COUNTS)),
    ):
        for what, count in counts.items():
            yield kind, what, count


def _of_roles(roles: dict[str, tuple[int, int, int]], place: int) -> dict[str, int]:
    return {role: counts[place] for role, counts in roles.items() if counts[place]}


# The same few in every block; and as JSON, since a reason that a user's function gives may be no UTF-8.


@lru_cache
def _key(kind: str, what: str) -> str:
    return json.dumps([kind, what])


@lru_cache
def _source_text(file: InputFile) -> str:
    return json.dumps([file.path, file.size, file.compression is None])


@lru_cache
def _columns_text(columns: tuple[Column, ...]) -> str:
    return json.dumps([astuple(column) for column in columns])


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
        ("lines", pa.int64()),
        ("domains", pa.list_(pa.string())),
        ("rows", pa.list_(pa.int64())),
        ("tokens", pa.list_(pa.int64())),
        ("counted", pa.list_(pa.string())),
        ("counts", pa.list_(pa.int64())),
        ("columns", pa.string()),
    ]
)


class _Codes:
    """Strings -> numbers, the same in all blobs."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, strings: pa.StringArray) -> Array:
        """int32 [strings]."""
        encoded = strings.dictionary_encode()
        codes = [self._known.setdefault(string, len(self._known)) for string in encoded.dictionary.to_pylist()]
        found: Array = np.array(codes, np.int32)[encoded.indices.to_numpy()]
        return found

    @property
    def strings(self) -> list[str]:
        return list(self._known)


class Receipts:
    """All receipts of a job, in input order, as arrays.

    Attributes:
        names: Arrow strings [blocks], files in the spool.
        file, start, size, first_byte, lines: int64 [blocks], see `Origin` and `BlockReceipt`.
        reused: how many blocks were in the spool already.
        columns: what each row has; the same in every block.
        domains: names by code, sorted.
        entry_domain: codes, one row a block: its domains in their order there.
        entry_rows, entry_tokens: int64, aligned with `entry_domain`.
        rows, tokens: int64 [blocks], over all domains.

    Raises:
        RunError: a block is missing or there twice: a defect of the runner. (That the last blocks of a compressed
            file, or all of the last file's, are missing cannot be seen here.)
    """

    def __init__(self, blobs: Iterable[bytes]) -> None:
        # Some at a time, so that texts which repeat are never all there at once.
        domains, counted, sources, columns = _Codes(), _Codes(), _Codes(), _Codes()
        parts: dict[str, list[Any]] = {}
        self.reused = 0
        for table in _tables(blobs):
            found = {name: _values(table[name]) for name in _RECEIPTS.names}
            self.reused += found["reused"].true_count
            for name in ("file", "start", "first_byte", "size", "lines"):
                parts.setdefault(name, []).append(found[name].to_numpy().astype(np.int64))
            for name, codes in (("source", sources), ("columns", columns)):
                parts.setdefault(name, []).append(codes.of(found[name]))
            for name, codes in (("domains", domains), ("counted", counted)):
                parts.setdefault(name, []).append(_ragged(found[name], codes.of(found[name].flatten())))
            for name in ("rows", "tokens", "counts", "levels"):
                parts.setdefault(name, []).append(_ragged(found[name], found[name].flatten().to_numpy()))
            parts.setdefault("nodes", []).append(_ragged(found["nodes"], _digests(found["nodes"].flatten())))
            parts.setdefault("name", []).append(found["name"])
        file, start = np.concatenate(parts["file"]), np.concatenate(parts["start"])
        order = np.lexsort((start, file))

        def array(name: str) -> Array:
            return np.concatenate(parts.pop(name))[order]

        def ragged(name: str) -> Ragged:
            return Ragged.concat(parts.pop(name)).take(order)

        self.names: pa.StringArray = pa.concat_arrays(parts.pop("name")).take(pa.array(order))
        self.file, self.start, self.size = array("file"), array("start"), array("size")
        self.first_byte, self.lines = array("first_byte"), array("lines")
        self._nodes, self._levels = ragged("nodes"), ragged("levels")
        self._source, self._sources = array("source"), [tuple(json.loads(text)) for text in sources.strings]
        by_name = sorted(range(len(domains.strings)), key=domains.strings.__getitem__)
        self.domains = sorted(domains.strings)
        entries = ragged("domains")
        self.entry_domain = entries.with_flat(np.argsort(np.array(by_name, np.int64))[entries.flat])
        self.entry_rows, self.entry_tokens = ragged("rows"), ragged("tokens")
        self.rows, self.tokens = self.entry_rows.sums(), self.entry_tokens.sums()
        self._counted, self._keys = ragged("counted"), [tuple(json.loads(key)) for key in counted.strings]
        self._counts = ragged("counts")
        self.columns = _one_of(columns.strings)
        self._check()

    @property
    def distinct(self) -> bool:
        """Whether no block occurs twice. Equal bytes are one block of the spool."""
        return bool(pc.count_distinct(self.names).as_py() == len(self))

    def __len__(self) -> int:
        return len(self.file)

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
            path, size, plain = self._sources[self._source[first]]
            if self.file[first] != number:
                raise _lost(f"all blocks of input file {number + 1} are missing")
            if self.start[first] != 0:
                raise _lost(f"the first block of {path} is missing")
            if plain and stops[stop - 1] < size:
                raise _lost(f"the blocks behind byte {stops[stop - 1]} of {path} are missing")

    def _files(self) -> Iterator[tuple[int, int]]:
        """The blocks [first, stop) of each file."""
        return itertools.pairwise([*np.flatnonzero(np.diff(self.file, prepend=-1)).tolist(), len(self)])

    def inputs(self) -> list[dict[str, Any]]:
        """Per file: path, size in the store, digest of its content."""
        result = []
        for first, stop in self._files():
            path, size, _ = self._sources[self._source[first]]
            digests = self._nodes[first:stop].flat.tobytes()
            places = self._levels[first:stop].flat.tolist()
            tree = (Node(place >> 8, place & 255, digests[32 * i : 32 * i + 32]) for i, place in enumerate(places))
            result.append({"path": path, "size": size, "digest": tree_digest(tree)})
        return result

    def path(self, block: int) -> str:
        """The file of a block, as given."""
        path: str = self._sources[self._source[block]][0]
        return path

    def counts(self, kind: str, blocks: int) -> dict[str, int]:
        """What of a kind (`blank`, `dropped`, `rejected`, `counter`, `made`) the first blocks count: what -> sum."""
        stop = self._counts.offsets[blocks]
        sums = np.bincount(self._counted.flat[:stop], self._counts.flat[:stop], len(self._keys))
        return {what: int(count) for (of, what), count in zip(self._keys, sums, strict=True) if of == kind and count}

    def counted(self, kind: str, of: Sequence[str] | None = None) -> Array:
        """int64 [blocks]: what each counts of a kind; `of`: of these alone."""
        wanted = np.array([found == kind and (of is None or what in of) for found, what in self._keys], bool)
        return self._counts.sums(np.where(wanted[self._counted.flat], self._counts.flat, 0))


def _values(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _ragged(rows: pa.ListArray, values: Array) -> Ragged:
    return Ragged.from_lengths(values, rows.value_lengths().to_numpy())


def _digests(digests: pa.FixedSizeBinaryArray) -> Array:
    """uint8 [digests, 32]."""
    data = np.frombuffer(digests.buffers()[1] or b"", np.uint8).reshape(-1, 32)
    return data[digests.offset : digests.offset + len(digests)]


def _one_of(texts: Sequence[str]) -> tuple[Column, ...]:
    if len(texts) > 1:
        raise ValueError(f"blocks differ in their columns: {texts[0]} and {texts[1]}")
    return tuple(Column(*entry) for entry in json.loads(texts[0])) if texts else ()


def _lost(what: str) -> RunError:
    return RunError(f"{what}: the runner lost or doubled a block, run again")


class _Sidecars:
    """Sidecars by block, fetched ahead of the borders that will need them."""

    def __init__(self, fetch: Callable[[list[str]], list[Any]], receipts: Receipts) -> None:
        self._fetch, self._receipts, self._found = fetch, receipts, dict[int, Any]()

    def __contains__(self, block: int) -> bool:
        return block in self._found

    def get(self, block: int, ahead: Sequence[int] = ()) -> Any:
        """A block's sidecar. When it has to be fetched, so are those of the blocks `ahead`, as far as memory allows."""
        if block not in self._found:
            wanted = list(dict.fromkeys([block, *ahead]))
            sizes = np.cumsum(self._receipts.rows[wanted] + self._receipts.lines[wanted])
            wanted = wanted[: max(1, int(np.searchsorted(sizes, _PREFETCH_ROWS)))]
            new = [each for each in wanted if each not in self._found]
            found = self._fetch(self._receipts.names.take(pa.array(new)).to_pylist())
            self._found = {each: self._found[each] for each in wanted if each in self._found}
            self._found.update(zip(new, found, strict=True))
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
        fetch: names of spooled blocks -> their sidecars (`formats.spool.Sidecar`), in that order.
        max_tokens: a shard is flushed when the tokens since the last flush reach this.
        max_items: kept records, at most.
    """
    sidecars = _Sidecars(fetch, receipts)
    end = _end(receipts, sidecars, max_items)
    shards = Shards(receipts, _shard_borders(receipts, sidecars, max_tokens, end))
    ledger, counters = _ledger(receipts, sidecars, end)
    return Plan(
        shards=shards,
        rejects=Rejects(receipts, _rejected(receipts, sidecars, end)),
        ledger=ledger,
        counters=counters,
        inputs=receipts.inputs(),
        columns=receipts.columns,
        domains=shards.folders,
        shards_of=shards.shards_of,
        blocks=len(receipts),
        reused=receipts.reused,
        made=dict(sorted(receipts.counts("made", len(receipts)).items())),
        roles=_roles(receipts, sidecars, end),
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
    return _border(sidecars.get(block), block, rows, len(receipts.entry_domain[block]))


def _shard_borders(receipts: Receipts, sidecars: _Sidecars, max_tokens: int, end: Border) -> list[Border]:
    """Every flush, the last one included."""
    ends = np.cumsum(receipts.tokens[: end.block + 1])
    borders: list[Border] = []
    over: list[int] = []
    flushed = 0
    while True:
        goal = flushed + max_tokens
        block = int(np.searchsorted(ends, goal))
        if block > end.block:
            break
        ahead = () if block in sidecars else _later(receipts, ends, goal, max_tokens, over)
        sidecar = sidecars.get(block, ahead)
        until = ends[block] - receipts.tokens[block] + np.cumsum(sidecar.tokens)
        rows = int(np.searchsorted(until, goal)) + 1
        if block == end.block and 0 <= end.rows < rows:
            break
        borders.append(_border(sidecar, block, rows, len(receipts.entry_domain[block])))
        flushed = int(until[rows - 1])
        over.append(flushed - goal)
    return [*borders, end]


def _later(receipts: Receipts, ends: Array, goal: int, max_tokens: int, over: Sequence[int]) -> list[int]:
    """Blocks in which the next borders will probably lie.

    Where a border lies depends on all before it: each flush takes some tokens more than it must, up to the end of a
    record. After k of them that is k times the mean, give or take.
    """
    if len(over) < MIN_BORDERS_TO_EXTRAPOLATE:
        mean = spread = float(ends[-1]) / max(1, int(receipts.rows[: len(ends)].sum()))
    else:
        mean, spread = float(np.mean(over)), float(np.std(over))
    later = np.arange(_PREFETCH)
    places = goal + later * (max_tokens + mean)
    margin = 2 * spread * np.sqrt(later)
    blocks = np.searchsorted(ends, np.stack([places - margin, places, places + margin]))
    found: list[int] = np.unique(blocks[blocks < len(ends)]).tolist()
    return found


class Shards(OnDemand[ShardPlan]):
    """The shards of a plan, in order of flush, then of domain. Those of 10 TB have millions of slices.

    Attributes:
        shards_of: domain -> how many shards it has.
        folders: domain -> folder.
    """

    def __init__(self, receipts: Receipts, borders: Sequence[Border]) -> None:
        flush, domain, *slices = _slices(receipts, borders)
        # The n-th slice belongs to the shard of this flush and domain.
        shard = flush * max(1, len(receipts.domains)) + domain
        order = np.argsort(shard, kind="stable")
        found, lengths = np.unique(shard, return_counts=True)
        self._names, self._domains = receipts.names, receipts.domains
        self._first = offsets_of(lengths)
        self._slices = [column[order].astype(np.int32) for column in slices]
        self._domain = found % max(1, len(receipts.domains))
        self._number = np.zeros(len(found), np.int64)
        self.shards_of: dict[str, int] = {}
        for code, name in enumerate(receipts.domains):
            here = np.flatnonzero(self._domain == code)
            self._number[here] = np.arange(len(here))
            if len(here):
                self.shards_of[name] = len(here)
        self.folders = folders(self.shards_of)

    def __len__(self) -> int:
        return len(self._domain)

    def _at(self, index: int) -> ShardPlan:
        domain = self._domains[self._domain[index]]
        block, *rest = (column[self._first[index] : self._first[index + 1]] for column in self._slices)
        names = self._names.take(pa.array(block)).to_pylist()
        slices = tuple(map(Slice, names, *(column.tolist() for column in rest)))
        return ShardPlan(domain, self.folders[domain], int(self._number[index]), self.shards_of[domain], slices)


def _slices(receipts: Receipts, borders: Sequence[Border]) -> tuple[Array, ...]:
    """int64 [slices] each: flush, domain, block, place of the domain in the block, start, stop; in input order."""
    inner = borders if borders[-1].rows >= 0 else borders[:-1]
    cuts = Ragged.from_lists([border.cut for border in inner], np.int64)
    # A block in which n flushes end is cut into n + 1 pieces, of each of its domains.
    domains = receipts.entry_domain.lengths
    ending = np.bincount(np.array([border.block for border in inner], np.int64), minlength=len(receipts))
    pieces = np.repeat(ending + 1, domains)
    first = np.repeat(np.cumsum(ending) - ending, domains)  # the flush to which the first of them belongs
    entry = np.repeat(np.arange(len(pieces)), pieces)
    piece = np.arange(len(entry)) - offsets_of(pieces)[entry]
    flush = first[entry] + piece
    block = np.repeat(np.arange(len(receipts)), domains)[entry]
    place = entry - receipts.entry_domain.offsets[block]
    start, stop = np.zeros(len(entry), np.int64), receipts.entry_rows.flat[entry]
    cut = np.flatnonzero(piece > 0)
    start[cut] = cuts.flat[cuts.offsets[flush[cut] - 1] + place[cut]]
    cut = np.flatnonzero(piece + 1 < pieces[entry])
    stop[cut] = cuts.flat[cuts.offsets[flush[cut]] + place[cut]]
    kept = (start < stop) & (flush < len(borders))
    columns = (flush, receipts.entry_domain.flat[entry], block, place, start, stop)
    return tuple(column[kept] for column in columns)


def _cut_line(sidecar: Any, rows: int) -> int:
    """The first line behind the last kept row."""
    return int(sidecar.line[rows - 1]) + 1


def _ledger(receipts: Receipts, sidecars: _Sidecars, end: Border) -> tuple[LedgerTotals, dict[str, int]]:
    whole = end.block + 1 if end.rows < 0 else end.block
    counts = {kind: Counter(receipts.counts(kind, whole)) for kind in ("blank", "dropped", "rejected", "counter")}
    kept, lines = int(receipts.rows[:whole].sum()), int(receipts.lines.sum())
    not_read = int(receipts.lines[whole:].sum())
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        cut = _cut_line(sidecar, end.rows)
        seen = count_outcomes(sidecar.status[:cut], sidecar.outcomes)
        counts["blank"][""] += seen["blank"]
        counts["dropped"].update(seen["dropped"])
        counts["rejected"].update(seen["rejected"])
        counts["counter"].update({name: int(per_row[: end.rows].sum()) for name, per_row in sidecar.counters.items()})
        kept, not_read = kept + end.rows, not_read - cut
    ledger = LedgerTotals(lines, counts["blank"][""], kept, dict(counts["dropped"]), dict(counts["rejected"]), not_read)
    return ledger, {name: count for name, count in sorted(counts["counter"].items()) if count}


def _roles(receipts: Receipts, sidecars: _Sidecars, end: Border) -> dict[str, dict[str, int]]:
    whole = end.block + 1 if end.rows < 0 else end.block
    found = {what: Counter(receipts.counts(what, whole)) for what in ROLE_COUNTS}
    if end.rows >= 0:
        sidecar = sidecars.get(end.block)
        for role, counts in sidecar.roles.sums(_cut_line(sidecar, end.rows)).items():
            for what, count in zip(ROLE_COUNTS, counts, strict=True):
                found[what][role] += count
    return {role: {what: found[what][role] for what in ROLE_COUNTS} for role in sorted(found["messages"])}


def first_lost(receipts: Receipts, fetch: Callable[[list[str]], list[Any]]) -> tuple[tuple[str, int, Lost], ...]:
    """The first records that were dropped with nothing to train on, for `Plan.lost`; of the first block with some."""
    some = np.flatnonzero(receipts.counted("dropped", LOST))[:1].tolist()
    return tuple(
        (receipts.path(block), int(receipts.first_byte[block]) + record.offset, record)
        for block, sidecar in zip(some, fetch([receipts.names[block].as_py() for block in some]), strict=True)
        for record in sidecar.lost
    )


def _rejected(receipts: Receipts, sidecars: _Sidecars, end: Border) -> Array:
    """int64 [blocks]: rejects of each that lie before the end."""
    rejected = receipts.counted("rejected")
    if end.rows >= 0:
        rejected[end.block + 1 :] = 0
        if rejected[end.block]:
            sidecar = sidecars.get(end.block)
            seen = count_outcomes(sidecar.status[: _cut_line(sidecar, end.rows)], sidecar.outcomes)
            rejected[end.block] = sum(seen["rejected"].values())
    return rejected


class Rejects(OnDemand[RejectsPlan]):
    """The files of rejects of a plan, each of at most REJECTS_PER_FILE, in input order."""

    def __init__(self, receipts: Receipts, rejected: Array) -> None:
        self._receipts, self._offsets, self._most = receipts, offsets_of(rejected), REJECTS_PER_FILE
        lines_before = offsets_of(receipts.lines)[:-1]
        new_file = np.diff(receipts.file, prepend=-1) != 0
        self._first_line = lines_before - np.maximum.accumulate(np.where(new_file, lines_before, 0))

    def __len__(self) -> int:
        return -(-int(self._offsets[-1]) // self._most)

    def _at(self, index: int) -> RejectsPlan:
        first = index * self._most
        last = min(first + self._most, int(self._offsets[-1]))
        begin, end = np.searchsorted(self._offsets, [first, last - 1], "right") - 1
        blocks = np.arange(begin, end + 1)
        starts, stops = self._offsets[blocks], self._offsets[blocks + 1]
        some = starts < stops
        blocks, starts, stops = blocks[some], starts[some], stops[some]
        columns = (
            self._receipts.names.take(pa.array(blocks)).to_pylist(),
            (np.maximum(starts, first) - starts).tolist(),
            (np.minimum(stops, last) - starts).tolist(),
            map(self._receipts.path, blocks),
            self._receipts.first_byte[blocks].tolist(),
            self._first_line[blocks].tolist(),
        )
        return RejectsPlan(index, tuple(map(RejectSlice, *columns)))
