"""Receipts of all cached blocks: packed as Arrow blobs for the way to the plan, there read as arrays."""

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.data.block import BlockReceipt, InputFile, Origin
from beam_prep.data.hashing import Node, tree_digest
from beam_prep.data.lengths import Histogram, add
from beam_prep.data.ragged import Array, Ragged, changes
from beam_prep.data.schema import Column
from beam_prep.errors import EngineError
from beam_prep.reading.sources import source_of

ROLE_COUNTS = ("messages", "tokens", "trained")
"""The counts of each role, in the order of `BlockReceipt.roles`."""
_AT_A_TIME = 10_000


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block in the token cache, and its source.

    Attributes:
        origin: its place in the input.
        name: its file in the token cache, without ending.
        reused: it was there already: from an earlier run, or because the input has the same bytes twice.
        block: its contents.
        made: how many of its records were made in which way, in whichever run: see `Block`.
        copies: the file of its rows that are copies of earlier records, and not in `block`; "": it has none. See
            `shards.compose`.
    """

    origin: Origin
    name: str
    reused: bool
    block: BlockReceipt
    made: dict[str, int] = field(default_factory=dict)
    copies: str = ""


def pack_receipts(receipts: Sequence[CachedBlock]) -> bytes:
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
        "kept": [r.block.lengths[0] for r in receipts],
        "uncut": [r.block.lengths[1] for r in receipts],
        "copies": [r.copies for r in receipts],
    }
    return _blob(pa.table(columns, schema=_RECEIPTS))


def _blob(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # The schema is compressed too: it is most of a blob of few receipts.
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, _RECEIPTS) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


def _tables(blobs: Iterable[bytes]) -> Iterator[pa.Table]:
    """The receipts, `_AT_A_TIME` or more at a time. The last table may be empty, so that there always is one."""
    found: list[pa.Table] = []
    rows = 0
    for blob in blobs:
        found.append(pa.ipc.open_stream(pa.CompressedInputStream(pa.BufferReader(blob), "zstd")).read_all())
        rows += found[-1].num_rows
        if rows >= _AT_A_TIME:
            yield pa.concat_tables(found).combine_chunks()
            found, rows = [], 0
    yield pa.concat_tables([*found, _RECEIPTS.empty_table()]).combine_chunks()


def _counts(receipt: CachedBlock) -> Iterator[tuple[str, str, int]]:
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
    plain = file.compression is None and not source_of(file.path).by_row  # its blocks end at its size
    return json.dumps([file.path, file.size, plain])


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
        ("kept", pa.list_(pa.uint32())),
        ("uncut", pa.list_(pa.uint32())),
        ("copies", pa.string()),
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

    Args:
        blobs: see `pack_receipts`.
        lengths_by_block: keep the lengths of the rows of each block, as `lengths` of some blocks needs them. Those of
            1.2 million blocks take 700 MB.

    Attributes:
        names: Arrow strings [blocks], files in the token cache.
        file, start, size, first_byte, lines: int64 [blocks], see `Origin`, `BlockReceipt` and `CachedBlock`.
        reused: how many blocks were in the token cache already.
        columns: what each row has; the same in every block.
        domains: names by code, sorted.
        entry_domain: codes, one row a block: its domains in their order there.
        entry_rows, entry_tokens: int64, aligned with `entry_domain`.
        rows, tokens: int64 [blocks], over all domains.

    Raises:
        EngineError: a block is missing or there twice: a defect of the runner. (That the last blocks of a compressed
            file, or all of the last file's, are missing cannot be seen here.)
    """

    def __init__(self, blobs: Iterable[bytes], lengths_by_block: bool = True) -> None:
        self._lengths: dict[str, Histogram] = {"kept": (), "uncut": ()}
        self._lengths_of: dict[str, Ragged] = {}
        # A few at a time, so that repeated texts are never all in memory at once.
        domains, counted, sources, columns, copies = _Codes(), _Codes(), _Codes(), _Codes(), _Codes()
        parts: dict[str, list[Any]] = {}
        self.reused = 0
        for table in _tables(blobs):
            found = {name: _values(table[name]) for name in _RECEIPTS.names}
            self.reused += found["reused"].true_count
            for name in ("file", "start", "first_byte", "size", "lines"):
                parts.setdefault(name, []).append(found[name].to_numpy().astype(np.int64))
            for name, codes in (("source", sources), ("columns", columns), ("copies", copies)):
                parts.setdefault(name, []).append(codes.of(found[name]))
            for name, codes in (("domains", domains), ("counted", counted)):
                parts.setdefault(name, []).append(_ragged(found[name], codes.of(found[name].flatten())))
            for name in ("rows", "tokens", "counts", "levels"):
                parts.setdefault(name, []).append(_ragged(found[name], found[name].flatten().to_numpy()))
            for name in ("kept", "uncut"):
                lengths = _ragged(found[name], found[name].flatten().to_numpy())
                if lengths_by_block:
                    parts.setdefault(name, []).append(lengths)
                else:
                    self._lengths[name] = add(self._lengths[name], _sum(lengths))
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
        self._copies, self._copy_files = array("copies"), copies.strings
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
        if lengths_by_block:
            self._lengths_of = {name: ragged(name) for name in ("kept", "uncut")}
        self.columns = _one_of(columns.strings)
        self._check()

    @property
    def distinct(self) -> bool:
        """True if no block occurs twice. Equal bytes are one block of the token cache."""
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
                f"after byte {stops[block]} of {self.path(block)} the next block begins at byte {self.start[block + 1]}"
            )
        for number, (first, stop) in enumerate(self._files()):
            path, size, plain = self._sources[self._source[first]]
            if self.file[first] != number:
                raise _lost(f"all blocks of input file {number + 1} are missing")
            if self.start[first] != 0:
                raise _lost(f"the first block of {path} is missing")
            if plain and stops[stop - 1] < size:
                raise _lost(f"the blocks after byte {stops[stop - 1]} of {path} are missing")

    def _files(self) -> Iterator[tuple[int, int]]:
        """The blocks [first, stop) of each file."""
        return itertools.pairwise([*changes(self.file).tolist(), len(self)])

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

    def copies(self, block: int) -> str:
        """The file of a block's copies, see `CachedBlock`."""
        name: str = self._copy_files[self._copies[block]]
        return name

    def of_parts(self, wanted: Array) -> "Receipts":
        """The same blocks with some of their domains alone; `wanted`: bool [domains]."""
        found = copy.copy(self)
        here = wanted[self.entry_domain.flat]
        lengths = self.entry_domain.sums(here)
        for name in ("entry_domain", "entry_rows", "entry_tokens"):
            setattr(found, name, Ragged.from_lengths(getattr(self, name).flat[here], lengths))
        found.rows, found.tokens = found.entry_rows.sums(), found.entry_tokens.sums()
        return found

    def counts(self, kind: str, blocks: int) -> dict[str, int]:
        """Sums of one kind over the first blocks, by name: `blank`, `dropped`, `rejected`, `counter`, `made` ..."""
        stop = self._counts.offsets[blocks]
        sums = np.bincount(self._counted.flat[:stop], self._counts.flat[:stop], len(self._keys))
        return {what: int(count) for (of, what), count in zip(self._keys, sums, strict=True) if of == kind and count}

    def lengths(self, blocks: int) -> tuple[Histogram, Histogram]:
        """Lengths of the rows of the first blocks, see `BlockReceipt.lengths`."""
        if blocks < len(self) or self._lengths_of:
            kept, uncut = (_sum(self._lengths_of[name][:blocks]) for name in ("kept", "uncut"))
            return kept, uncut
        return self._lengths["kept"], self._lengths["uncut"]

    def counted(self, kind: str, of: Sequence[str] | None = None) -> Array:
        """int64 [blocks]: what each counts of a kind; `of`: of these alone."""
        wanted = np.array([found == kind and (of is None or what in of) for found, what in self._keys], bool)
        return self._counts.sums(np.where(wanted[self._counted.flat], self._counts.flat, 0))


def _sum(histograms: Ragged) -> Histogram:
    classes = np.arange(len(histograms.flat)) - np.repeat(histograms.offsets[:-1], histograms.lengths)
    return tuple(np.bincount(classes, histograms.flat).astype(np.int64).tolist())


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


def _lost(what: str) -> EngineError:
    return EngineError(f"{what}: the runner lost or doubled a block, run again")
