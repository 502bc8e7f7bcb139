"""Block statistics: what the plan knows of the blocks in the token cache. It reads nothing else of most blocks.

Workers send them to the plan as Arrow blobs, and the plan joins them to one table. Row indexes (lengths, domains and
outcomes of a block's rows) are read for a few blocks, in which a shard or the input ends.
"""

import copy
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.data.block import Origin, OutcomeKind
from beam_prep.data.hashing import Node, tree_digest
from beam_prep.data.ragged import Aligned, Array, Ragged, changes, no_numbers
from beam_prep.data.schema import Column
from beam_prep.errors import EngineError
from beam_prep.reading.records import Drop, shown
from beam_prep.reading.sources import source_of
from beam_prep.tokens.batch import CUT_TOKENS, Batch, RoleCounts

Histogram = tuple[int, ...]
"""Number of lengths in each class of `BORDERS`, without empty classes at the end."""

_NAME = pa.dictionary(pa.int32(), pa.string())
_PATH = pa.dictionary(pa.int32(), pa.binary())  # names of files need not be UTF-8

_DOMAIN = pa.struct(
    [
        ("domain", _NAME),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
    ]
)
_COUNT = pa.struct([("what", _NAME), ("count", pa.int64())])
_NODE = pa.struct(
    [
        ("index", pa.int64()),
        ("level", pa.uint8()),
        ("digest", pa.binary(32)),
    ]
)

STATISTICS = pa.schema(
    [
        ("lines", pa.int64()),
        ("domains", pa.list_(_DOMAIN)),
        ("counts", pa.list_(_COUNT)),
        ("columns", _NAME),
        ("kept", pa.list_(pa.uint32())),
        ("uncut", pa.list_(pa.uint32())),
        ("name", pa.string()),
        ("reused", pa.bool_()),
        ("file", pa.int32()),
        ("start", pa.int64()),
        ("first_byte", pa.int64()),
        ("size", pa.int64()),
        ("nodes", pa.list_(_NODE)),
        ("path", _PATH),
        ("path_size", pa.int64()),
        ("plain", pa.bool_()),
        ("copies", _PATH),
    ]
)
"""The columns up to `uncut` are kept with a block: a function of its content and the config, without paths and times.

* `lines`: number of lines of the block, with blank ones.
* `domains`: in order of first appearance.
* `counts`: see `BlockReceipt.counts`. Its `made` describes the run that made the block: no byte of an output depends on
  it.
* `columns`: the columns of each row, see `BlockReceipt.columns`.
* `kept`, `uncut`: histograms of the lengths of kept rows, see `Batch.lengths`; after and before truncation.

Each run adds the other columns (`shards.receipts.placed`); they are null before.

* `name`: name of its file in the token cache, without ending. `reused`: the file existed already: from an earlier run,
  or because the input has the same bytes twice.
* `file`, `start`, `first_byte`, `size`, `nodes`: see `Origin`.
* `path`, `path_size`: of the input file. `plain`: the blocks of that file end at its size.
* `copies`: the file that lists its rows that are copies of earlier records, which are not counted here; "": none. See
  `shards.compose`.
"""


@dataclass(frozen=True, slots=True)
class BlockReceipt:
    """The statistics of one block.

    >>> domains = [{"domain": "web", "rows": 2, "tokens": 20}]
    >>> receipt = BlockReceipt.of({"domains": domains, "counts": counts_list({"dropped": {"empty": 1}})}, ())
    >>> receipt.kept, receipt.tokens, receipt.counts("dropped")
    (2, 20, {'empty': 1})

    Attributes:
        values: a row of `STATISTICS`, without the columns that are null.
    """

    values: Mapping[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any], columns: Sequence[Column]) -> "BlockReceipt":
        """The statistics of a block without its place in an input.

        Args:
            values: of the columns of `STATISTICS` up to `uncut`, except `columns`.
            columns: the columns of each row.
        """
        return cls({**values, "columns": json.dumps([astuple(column) for column in columns])})

    def updated(self, **values: Any) -> "BlockReceipt":
        """The statistics with new values in some columns."""
        return BlockReceipt({**self.values, **values})

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    def counts(self, kind: str) -> dict[str, int]:
        """The counts of a kind: `blank`, `dropped` and `rejected` by reason; `counter` of kept rows (`truncated_rows`,
        `double_bos` ...); `made`, see `Block`; `messages`, `tokens` and `trained` tokens by role."""
        found = ((*count_of(each["what"]), each["count"]) for each in self["counts"])
        return {what: count for of, what, count in found if of == kind}

    @property
    def domains(self) -> list[tuple[str, int, int]]:
        """(domain, rows, tokens) of each domain, in order of first appearance."""
        return [(each["domain"], each["rows"], each["tokens"]) for each in self["domains"]]

    @property
    def kept(self) -> int:
        return sum(rows for _, rows, _ in self.domains)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, _, tokens in self.domains)


def counts_list(counts: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Counts by kind -> the form of a row, without counts of 0."""
    # As JSON, because a reason from a user's function may be no UTF-8.
    entries = []
    for kind, found in counts.items():
        for what, count in found.items():
            if count:
                entries.append({"what": json.dumps([kind, what]), "count": count})
    return entries


def count_of(text: str) -> tuple[str, str]:
    """(kind, what) of an entry's text."""
    kind, what = json.loads(text)
    return kind, what


# Histograms of lengths in tokens

BORDERS: tuple[int, ...] = (0, 1, *sorted(size << bits for size in (2, 3) for bits in range(30)))
"""The least length of each class: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... There are two classes for each power of two."""


def histogram(lengths: Array) -> Histogram:
    """Counts lengths by class.

    >>> histogram(np.array([0, 1, 5, 4]))
    (1, 1, 0, 0, 2)

    Args:
        lengths: int64, in tokens.
    """
    classes = np.searchsorted(BORDERS, lengths, side="right") - 1
    return tuple(np.bincount(classes).tolist())


def _sums(rows: pa.ListArray) -> Array:
    """int64 [classes]: the sum of histograms."""
    borders = rows.offsets.to_numpy() - rows.offsets[0].as_py()
    classes = np.arange(borders[-1]) - np.repeat(borders[:-1], np.diff(borders))
    return np.bincount(classes, rows.flatten().to_numpy(), len(BORDERS)).astype(np.int64)


def quantile(found: Sequence[int], share: float) -> int:
    """The largest length of the class that holds this quantile; 0 without lengths.

    >>> quantile((0, 0, 0, 0, 90, 9, 1), 0.5)
    5
    """
    total = sum(found)
    if not total:
        return 0
    place = int(np.searchsorted(np.cumsum(found), share * total))
    return BORDERS[place + 1] - 1


def placed(
    receipt: BlockReceipt,
    origin: Origin,
    name: str,
    reused: bool,
    made: Mapping[str, int] = MappingProxyType({}),
) -> BlockReceipt:
    """The statistics of a block in this run.

    Args:
        receipt: the statistics of the block's content.
        origin: the block's place in the input.
        name, reused: see `STATISTICS`.
        made: more of the counts `made`, of this run.
    """
    source = origin.source
    return receipt.updated(
        counts=[*receipt["counts"], *counts_list({"made": made})],
        name=name,
        reused=reused,
        file=origin.file,
        start=origin.start,
        first_byte=origin.first_byte,
        size=origin.size,
        nodes=[(node.index, node.level, node.digest) for node in origin.nodes],
        path=os.fsencode(source.path),
        path_size=source.size,
        plain=source.compression is None and not source_of(source.path).by_row,
        copies=b"",
    )


def pack_receipts(receipts: Sequence[BlockReceipt]) -> bytes:
    """Statistics as one Arrow blob: a stream of one batch, compressed with zstd."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pylist([receipt.values for receipt in receipts], schema=STATISTICS)
    # The whole stream is compressed: with few receipts most of it is the schema.
    with (
        pa.CompressedOutputStream(sink, "zstd") as packed,
        pa.ipc.new_stream(packed, STATISTICS) as writer,
    ):
        writer.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


_HISTOGRAMS = ["kept", "uncut"]


def _lengths(table: pa.Table) -> Array:
    """int64 [2, classes]: the sums of the histograms of all blocks."""
    return np.array([_sums(_values(table[name])) for name in _HISTOGRAMS])


class Receipts:
    """The block statistics of a job, in input order.

    Args:
        table: rows of `STATISTICS`, with or without the histograms.
        lengths: int64 [2, classes]: the sums of the histograms `kept` and `uncut`.

    Attributes:
        names: Arrow strings [blocks], files in the token cache.
        file, start, size, first_byte, lines: int64 [blocks], see `STATISTICS`.
        reused: how many blocks were already in the token cache.
        columns: the columns of each row; the same in every block.
        domains: names by code, sorted.
        entry_domain: codes, one row a block: the domains of the block, in the block's order.
        entry_rows, entry_tokens: int64, aligned with `entry_domain`.
        rows, tokens: int64 [blocks], over all domains.
        paths, copies: the file of each block, as given, and the file of its copies, see `STATISTICS`.

    Raises:
        ValueError: blocks differ in their columns.
    """

    def __init__(self, table: pa.Table, lengths: Array) -> None:
        self._table = table.combine_chunks()
        found = {name: _values(self._table[name]) for name in self._table.column_names}
        kept, uncut = (np.trim_zeros(each, "b").tolist() for each in lengths)
        self.lengths: tuple[Histogram, Histogram] = tuple(kept), tuple(uncut)
        self.names: pa.StringArray = found["name"]
        self.file, self.start, self.size, self.first_byte, self.lines = (
            found[name].to_numpy().astype(np.int64, copy=False)
            for name in ("file", "start", "size", "first_byte", "lines")
        )
        self.reused = found["reused"].true_count
        self.paths = _texts(found["path"])
        self.copies = _texts(found["copies"])
        self._path_size = found["path_size"]
        self._plain = found["plain"]
        self._nodes = found["nodes"]
        if len(texts := found["columns"].unique().to_pylist()) > 1:
            raise ValueError(f"blocks differ in their columns: {texts[0]} and {texts[1]}")
        self.columns = tuple(Column(*column) for text in texts for column in json.loads(text))
        entries = found["domains"]
        domains = _ragged(entries, "domain")
        names = entries.values.field("domain").dictionary
        order = pc.sort_indices(names).to_numpy()
        self.domains: list[str] = names.take(order).to_pylist()
        self.entry_domain = domains.with_flat(np.argsort(order)[domains.flat])
        self.entry_rows = _ragged(entries, "rows")
        self.entry_tokens = _ragged(entries, "tokens")
        self.rows = self.entry_rows.sums()
        self.tokens = self.entry_tokens.sums()
        counts = found["counts"]
        self._counted = _ragged(counts, "what")
        self._counts = _ragged(counts, "count")
        keys = counts.values.field("what").dictionary
        self._keys = [count_of(what) for what in keys.to_pylist()]

    @classmethod
    def of(cls, blobs: Iterable[bytes], lengths_by_block: bool = True) -> "Receipts":
        """The statistics of all blocks, from `pack_receipts`.

        Args:
            blobs: the blobs.
            lengths_by_block: keep the histograms of each block, which `until` needs. They take 700 MB for 1.2 million
                blocks.

        Raises:
            EngineError: a block is missing, or is there twice: a defect of the runner. (Missing last blocks of a
                compressed file, and a last file without any block, cannot be seen here.)
        """
        tables = [STATISTICS.empty_table()]
        lengths = np.zeros((2, len(BORDERS)), np.int64)
        for blob in blobs:
            unpacked = pa.CompressedInputStream(pa.BufferReader(blob), "zstd")
            table = pa.ipc.open_stream(unpacked).read_all()
            lengths += _lengths(table)
            if not lengths_by_block:  # the columns share a buffer, so only a copy without them takes less memory
                table = table.drop_columns(_HISTOGRAMS).take(np.arange(len(table)))
            tables.append(table)
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        tables.clear()  # of 1.2 million blocks, each copy takes some hundred MB
        table = table.sort_by([("file", "ascending"), ("start", "ascending")])
        found = cls(table, lengths)
        found._check()
        return found

    def block(self, block: int) -> BlockReceipt:
        """The statistics of one block."""
        return BlockReceipt(self._table.slice(block, 1).to_pylist()[0])

    def until(self, block: int, last: BlockReceipt) -> "Receipts":
        """The statistics of an input that ends within `block`; `last`: the statistics of its lines that are read."""
        ends = pa.Table.from_pylist([last.values], schema=STATISTICS)
        table = pa.concat_tables([self._table.slice(0, block), ends]).combine_chunks()
        return Receipts(table, _lengths(table))

    def names_of(self, blocks: Sequence[int] | Array) -> list[str]:
        """The names of some blocks."""
        found: list[str] = self.names.take(pa.array(blocks)).to_pylist()
        return found

    @property
    def distinct(self) -> bool:
        """True if no block occurs twice. Equal bytes are one block of the token cache."""
        return bool(pc.count_distinct(self.names).as_py() == len(self))

    def __len__(self) -> int:
        return len(self.file)

    def _check(self) -> None:
        """Raises EngineError unless the blocks of each file follow each other, from its first byte to its last."""
        ends = self.start + self.size
        files = np.diff(self.file, prepend=-1)  # 0: the same file, 1: the next one
        wanted = np.where(files > 0, 0, np.append(0, ends)[:-1])
        twice = (files == 0) & (np.diff(self.start, prepend=-1) == 0)
        plain = self._plain.to_numpy(zero_copy_only=False)
        sizes = self._path_size.to_numpy(zero_copy_only=False)
        last_of_file = np.append(files, 1)[1:].astype(bool)
        cut_off = last_of_file & plain & (ends < sizes)
        wrong = (self.start != wanted) | twice | (files > 1) | cut_off
        for block in np.flatnonzero(wrong)[:1]:
            raise EngineError(
                f"the blocks of {self.paths[block]}, or of the file before, do not follow each other to the end, at "
                f"the bytes from {self.start[block]} to {ends[block]}: the runner lost or doubled a block, run again"
            )

    def inputs(self) -> list[dict[str, Any]]:
        """Path, size in the store and digest of the content of each file."""
        result = []
        for first, stop in itertools.pairwise([*changes(self.file).tolist(), len(self)]):
            nodes = self._nodes.slice(first, stop - first).flatten().flatten()
            digest = tree_digest(map(Node, *(each.to_pylist() for each in nodes)))
            result.append({"path": self.paths[first], "size": self._path_size[first].as_py(), "digest": digest})
        return result

    def of_parts(self, wanted: Array) -> "Receipts":
        """The same blocks with only the domains in `wanted`, bool [domains]."""
        found = copy.copy(self)
        here = wanted[self.entry_domain.flat]
        lengths = self.entry_domain.sums(here)
        for name in ("entry_domain", "entry_rows", "entry_tokens"):
            entries = getattr(self, name).flat[here]
            setattr(found, name, Ragged.from_lengths(entries, lengths))
        found.rows = found.entry_rows.sums()
        found.tokens = found.entry_tokens.sums()
        return found

    def counts(self, kind: str) -> dict[str, int]:
        """Sums of one kind, by name: `blank`, `dropped`, `rejected`, `counter`, `made` ..."""
        sums = np.bincount(self._counted.flat, self._counts.flat, len(self._keys))
        found = zip(self._keys, sums.tolist(), strict=True)
        return {what: int(count) for (of, what), count in found if of == kind and count}

    def counted(self, kind: str, of: Sequence[str] | None = None) -> Array:
        """int64 [blocks]: the count of a kind in each block; `of`: only these names."""
        wanted = np.array([found == kind and (of is None or what in of) for found, what in self._keys], bool)
        counts = np.where(wanted[self._counted.flat], self._counts.flat, 0)
        return self._counts.sums(counts)


def _texts(paths: pa.DictionaryArray) -> list[str]:
    """The paths. Equal paths are the same object, so a pickle holds each once."""
    names = [os.fsdecode(path) for path in paths.dictionary.to_pylist()]
    return [names[code] for code in paths.indices.to_pylist()]


def _values(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _ragged(rows: pa.ListArray, field: str) -> Ragged:
    """A field of lists of structs as `Ragged`. A dictionary becomes its codes."""
    values = rows.flatten().field(field)
    if pa.types.is_dictionary(values.type):
        values = values.indices
    return Ragged.from_lengths(values.to_numpy(), rows.value_lengths().to_numpy())


@dataclass(frozen=True, slots=True)
class Copies(Aligned):
    """The rows of a block that are copies of an earlier record, which is kept.

    Attributes:
        line: int32 [copies], the line of the copy in its block, ascending.
        file, start, kept_line, offset: int64 [copies], the place of the record that is kept: its file, the start of its
            block, and its line and first byte, counted from the first line of that block.
    """

    line: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    file: Array = field(default_factory=no_numbers)
    start: Array = field(default_factory=no_numbers)
    kept_line: Array = field(default_factory=no_numbers)
    offset: Array = field(default_factory=no_numbers)


COUNTER, DIGEST = "counter:", "digest:"
"""Prefixes of names in `RowIndex.rows`."""


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The rows and lines of one block. The plan needs them if a shard, or the input, ends within the block.

    Attributes:
        rows: name -> a value for each kept row. `line`: int32, ascending. `domain`: int32, index into the receipt's
            domains; in a view the number of the part, domain * splits + split. `tokens`: int64, in a shard, see
            `Layout.tokens`. `length`: int64, see `Batch.lengths`. `offset`: int64, where the row's line begins, in
            bytes from the block's first line. `counter:NAME`: int64. `digest:NAME`: see `Ledger.digests`. Only in a
            view: `number`, int64, the row's number in its domain in the token cache.
        status: uint8 [lines], see `Ledger`; int16 in a view.
        outcomes: the meaning of the codes of `status`.
        roles: messages and tokens by role.
        shown: the records that a report may quote: the first ones that are dropped, rejected or marked, by line.
        copies: the rows that a view leaves out.
    """

    rows: Mapping[str, Array]
    status: Array
    outcomes: list[tuple[OutcomeKind, str]]
    roles: RoleCounts
    shown: tuple[Drop, ...]
    copies: Copies = field(default_factory=Copies)

    @classmethod
    def of(cls, batch: Batch, domain: Array, tokens: Array, text_limit: int) -> "RowIndex":
        """The row index of a block. For `domain` and `tokens` see `rows`, for `text_limit` see `shown`."""
        ledger, line = batch.ledger, batch.line
        rows = {"line": line, "domain": domain, "tokens": tokens, "length": batch.lengths}
        rows |= {"offset": ledger.offsets(line)}
        rows |= {COUNTER + name: counts for name, counts in sorted(batch.counters.items())}
        rows |= {DIGEST + name: found[line] for name, found in ledger.digests.items()}
        return cls(rows, ledger.status, ledger.outcomes, batch.roles.count(line), tuple(shown(ledger, text_limit)))

    def __getitem__(self, name: str) -> Array:
        return self.rows[name]

    def counter(self, name: str) -> Array:
        """int64: a counter of each row."""
        return self.rows.get(COUNTER + name, np.zeros(len(self["line"]), np.int64))

    def with_rows(self, **values: Array) -> "RowIndex":
        """The same rows with other values."""
        return replace(self, rows={**self.rows, **values})

    def take(self, rows: slice | Array, **values: Any) -> "RowIndex":
        """The row index of some rows; `values`: other values of fields that are not by row."""
        return replace(self, rows={name: found[rows] for name, found in self.rows.items()}, **values)

    def head(self, rows: int) -> "RowIndex":
        """The row index up to the `rows`-th row. The line of that row is the last line that is read."""
        last_line = int(self["line"][rows - 1])
        return self.take(slice(rows), status=self.status[: last_line + 1])

    def statistics(self, domains: Sequence[str], made: Mapping[str, int]) -> dict[str, Any]:
        """The values of `STATISTICS` for these rows and lines, without `columns`.

        Args:
            domains: the name of each code of `domain`.
            made: see `BlockReceipt.counts`.
        """
        outcomes: dict[str, dict[str, int]] = {"blank": {}, "dropped": {}, "rejected": {}}
        lines = np.bincount(self.status, minlength=len(self.outcomes) + 1)
        for (kind, reason), count in zip(self.outcomes, lines[1:].tolist(), strict=True):
            outcomes[kind]["" if kind == "blank" else reason] = count
        counts: dict[str, Mapping[str, int]] = {
            **outcomes,
            "counter": {
                name.removeprefix(COUNTER): int(found.sum())
                for name, found in self.rows.items()
                if name.startswith(COUNTER)
            },
            "made": made,
            **self.roles.sums(len(self.status)),
        }
        rows = np.bincount(self["domain"], minlength=len(domains))
        tokens = np.bincount(self["domain"], self["tokens"], len(domains)).astype(np.int64)
        of_domains = zip(domains, rows.tolist(), tokens.tolist(), strict=True)
        return {
            "lines": len(self.status),
            "domains": [dict(zip(("domain", "rows", "tokens"), each, strict=True)) for each in of_domains],
            "counts": counts_list(counts),
            "kept": histogram(self["length"]),
            "uncut": histogram(self["length"] + self.counter(CUT_TOKENS)),
        }


FetchRowIndexes = Callable[[list[str]], list[RowIndex]]
"""Names of cached blocks -> their row indexes, in the same order."""


class RowIndexes:
    """Row indexes by block. It fetches several blocks at a time, ahead of need.

    Args:
        fetch: reads row indexes.
        receipts: the statistics of all blocks.
        see: (row index, file of copies) -> the view of a block: its rows as the plan sees them.

    Attributes:
        borders_ahead: for how many borders of shards blocks are fetched at a time.
        most_rows: most rows and lines of the row indexes in memory at a time; 8 million take about 250 MB.
    """

    borders_ahead = 512
    most_rows = 8_000_000

    def __init__(
        self,
        fetch: FetchRowIndexes,
        receipts: Receipts,
        see: Callable[[RowIndex, str], RowIndex] = lambda found, _: found,
    ) -> None:
        self._fetch = fetch
        self._receipts = receipts
        self._see = see
        self._found: dict[int, RowIndex] = {}

    def view(self, block: int, ahead: Sequence[int] = ()) -> RowIndex:
        """The view of a block. A fetch also brings the blocks `ahead`, up to `most_rows`."""
        if block not in self._found:
            wanted = list(dict.fromkeys([block, *ahead]))
            receipts = self._receipts
            sizes = np.cumsum(receipts.rows[wanted] + receipts.lines[wanted])
            fitting = int(np.searchsorted(sizes, self.most_rows))
            wanted = wanted[: max(1, fitting)]
            new = [each for each in wanted if each not in self._found]
            found = self._fetch(receipts.names_of(new))
            self._found = {each: self._found[each] for each in wanted if each in self._found}
            for each, row_index in zip(new, found, strict=True):
                self._found[each] = self._see(row_index, receipts.copies[each])
        return self._found[block]
