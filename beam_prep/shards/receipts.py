"""The block statistics of a job: workers send them to the plan as Arrow blobs, and the plan joins them to one table."""

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.data.block import Origin
from beam_prep.data.hashing import Node, tree_digest
from beam_prep.data.ragged import Array, Ragged, changes
from beam_prep.data.receipts import STATISTICS, BlockReceipt, Histogram, add, columns_of, count_of, counts_list
from beam_prep.errors import EngineError
from beam_prep.reading.sources import source_of


def placed(
    receipt: BlockReceipt, origin: Origin, name: str, reused: bool, made: Mapping[str, int] | None = None
) -> BlockReceipt:
    """The statistics of a block in this run.

    Args:
        receipt: the statistics of the block's content.
        origin: the block's place in the input.
        name, reused: see `STATISTICS`.
        made: way -> records of the block that were made in this way; None: as the receipt says.
    """
    source = origin.source
    counts = receipt["counts"]
    if made is not None:
        counts = [each for each in counts if count_of(each["what"])[0] != "made"] + counts_list({"made": made})
    return receipt.updated(
        counts=counts,
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
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, STATISTICS) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _unpacked(blob: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.CompressedInputStream(pa.BufferReader(blob), "zstd")).read_all()


class Receipts:
    """The block statistics of a job, in input order.

    Args:
        blobs: see `pack_receipts`.
        lengths_by_block: keep the histograms of row lengths of each block, which `until` needs. They take 700 MB for
            1.2 million blocks.

    Attributes:
        names: Arrow strings [blocks], files in the token cache.
        file, start, size, first_byte, lines: int64 [blocks], see `STATISTICS`.
        reused: how many blocks were already in the token cache.
        columns: the columns of each row; the same in every block.
        domains: names by code, sorted.
        entry_domain: codes, one row a block: the domains of the block, in the block's order.
        entry_rows, entry_tokens: int64, aligned with `entry_domain`.
        rows, tokens: int64 [blocks], over all domains.
        lengths: `kept` and `uncut` over all blocks, see `STATISTICS`.

    Raises:
        EngineError: a block is missing, or is there twice: a defect of the runner. (Missing last blocks
            of a compressed file, and a last file without any block, cannot be seen here.)
        ValueError: blocks differ in their columns.
    """

    def __init__(self, blobs: Iterable[bytes], lengths_by_block: bool = True) -> None:
        sums: dict[str, Histogram] = {"kept": (), "uncut": ()}
        tables = [STATISTICS.empty_table()]
        for blob in blobs:
            table = _unpacked(blob)
            if not lengths_by_block:
                for name in sums:
                    sums[name] = add(sums[name], _sum(_ragged(_values(table[name]))))
                # Columns of a blob share one buffer, so only a copy without them takes less memory.
                table = table.drop_columns([*sums]).take(np.arange(len(table)))
            tables.append(table)
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        tables.clear()
        table = table.take(pc.sort_indices(table, [("file", "ascending"), ("start", "ascending")])).combine_chunks()
        self._read(table, None if lengths_by_block else (sums["kept"], sums["uncut"]))
        self._check()

    def _read(self, table: pa.Table, lengths: tuple[Histogram, Histogram] | None = None) -> None:
        self._table = table
        found = {name: _values(table[name]) for name in STATISTICS.names}
        self.names: pa.StringArray = found["name"]
        self.file, self.start, self.size, self.first_byte, self.lines = (
            found[name].to_numpy().astype(np.int64, copy=False)
            for name in ("file", "start", "size", "first_byte", "lines")
        )
        self.reused = found["reused"].true_count
        self._paths, self._copies = (_texts(found[name]) for name in ("path", "copies"))
        self._path_size, self._plain, self._nodes = found["path_size"], found["plain"], found["nodes"]
        if len(texts := found["columns"].unique().to_pylist()) > 1:
            raise ValueError(f"blocks differ in their columns: {texts[0]} and {texts[1]}")
        self.columns = columns_of(texts[0]) if texts else ()
        domains = _ragged(found["domains"], "domain")
        names = found["domains"].values.field("domain").dictionary
        order = pc.sort_indices(names).to_numpy()
        self.domains: list[str] = names.take(order).to_pylist()
        self.entry_domain = domains.with_flat(np.argsort(order)[domains.flat])
        self.entry_rows, self.entry_tokens = (_ragged(found["domains"], name) for name in ("rows", "tokens"))
        self.rows, self.tokens = self.entry_rows.sums(), self.entry_tokens.sums()
        self._counted, self._counts = (_ragged(found["counts"], name) for name in ("what", "count"))
        self._keys = [count_of(what) for what in found["counts"].values.field("what").dictionary.to_pylist()]
        self.lengths = lengths or (_sum(_ragged(found["kept"])), _sum(_ragged(found["uncut"])))

    def block(self, block: int) -> BlockReceipt:
        """The statistics of one block."""
        return BlockReceipt(self._table.slice(block, 1).to_pylist()[0])

    def until(self, block: int, last: BlockReceipt) -> "Receipts":
        """The statistics of an input that ends within `block`; `last`: the statistics of its lines that are read."""
        found = copy.copy(self)
        ends = pa.Table.from_pylist([last.values], schema=STATISTICS)
        found._read(pa.concat_tables([self._table.slice(0, block), ends]).combine_chunks())
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
        plain, sizes = (column.to_numpy(zero_copy_only=False) for column in (self._plain, self._path_size))
        cut_off = np.append(files, 1)[1:].astype(bool) & plain & (ends < sizes)
        for block in np.flatnonzero((self.start != wanted) | twice | (files > 1) | cut_off)[:1]:
            raise EngineError(
                f"the blocks of {self.path(block)}, or of the file before, do not follow each other to the end, at the "
                f"bytes from {self.start[block]} to {ends[block]}: the runner lost or doubled a block, run again"
            )

    def _files(self) -> Iterator[tuple[int, int]]:
        """The blocks [first, stop) of each file."""
        return itertools.pairwise([*changes(self.file).tolist(), len(self)])

    def inputs(self) -> list[dict[str, Any]]:
        """Path, size in the store and digest of the content of each file."""
        result = []
        for first, stop in self._files():
            nodes = self._nodes.slice(first, stop - first).flatten().flatten()
            digest = tree_digest(itertools.starmap(Node, zip(*(each.to_pylist() for each in nodes), strict=True)))
            result.append({"path": self.path(first), "size": self._path_size[first].as_py(), "digest": digest})
        return result

    def path(self, block: int) -> str:
        """The file of a block, as given."""
        return self._paths[block]

    def copies(self, block: int) -> str:
        """The file of a block's copies, see `STATISTICS`."""
        return self._copies[block]

    def of_parts(self, wanted: Array) -> "Receipts":
        """The same blocks with only the domains in `wanted`, bool [domains]."""
        found = copy.copy(self)
        here = wanted[self.entry_domain.flat]
        lengths = self.entry_domain.sums(here)
        for name in ("entry_domain", "entry_rows", "entry_tokens"):
            setattr(found, name, Ragged.from_lengths(getattr(self, name).flat[here], lengths))
        found.rows, found.tokens = found.entry_rows.sums(), found.entry_tokens.sums()
        return found

    def counts(self, kind: str) -> dict[str, int]:
        """Sums of one kind, by name: `blank`, `dropped`, `rejected`, `counter`, `made` ..."""
        sums = np.bincount(self._counted.flat, self._counts.flat, len(self._keys))
        return {what: int(count) for (of, what), count in zip(self._keys, sums, strict=True) if of == kind and count}

    def counted(self, kind: str, of: Sequence[str] | None = None) -> Array:
        """int64 [blocks]: the count of a kind in each block; `of`: only these names."""
        wanted = np.array([found == kind and (of is None or what in of) for found, what in self._keys], bool)
        return self._counts.sums(np.where(wanted[self._counted.flat], self._counts.flat, 0))


def _sum(histograms: Ragged) -> Histogram:
    classes = np.arange(len(histograms.flat)) - np.repeat(histograms.offsets[:-1], histograms.lengths)
    return tuple(np.bincount(classes, histograms.flat).astype(np.int64).tolist())


def _texts(paths: pa.DictionaryArray) -> list[str]:
    """The paths. Equal paths are the same object, so a pickle holds each once."""
    names = [os.fsdecode(path) for path in paths.dictionary.to_pylist()]
    return [names[code] for code in paths.indices.to_pylist()]


def _values(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _ragged(rows: pa.ListArray, field: str = "") -> Ragged:
    """Lists of numbers as `Ragged`; with `field`, that field of lists of structs. A dictionary becomes its codes."""
    flat = rows.flatten()
    values = flat.field(field) if field else flat
    if pa.types.is_dictionary(values.type):
        values = values.indices
    return Ragged.from_lengths(values.to_numpy(), rows.value_lengths().to_numpy())
