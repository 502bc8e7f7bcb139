"""Token cache files: one tokenised block <-> bytes. They are Arrow IPC, so a slice of rows is read without a copy.

A block has two files. `<name>.arrow` holds the rows, one record batch a domain, and the block statistics in its schema.
`<name>.rows.arrow` (small) holds the row index (the outcome of each line, domain and tokens of each row), and the
rejected lines. Only blocks in which a shard ends, and blocks with rejects, need it. The file of rows is written last:
if it exists, the other exists, too.

Each file is sealed with its name (`Sealed`): a reader checks the checksum of every part that it uses, and that
the file belongs to this block. Reading a slice of rows checks all rows of its domain.
"""

import itertools
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

from beam_prep.data.block import Ledger, of_this_run
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.errors import FormatError
from beam_prep.formats.arrow import array_of, rows_of
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import Drop
from beam_prep.shards.receipts import DIGEST, BlockReceipt, RowIndex
from beam_prep.tokens.batch import Batch, RoleCounts

CACHE_VERSION = 25
"""Raise this with every change of the content of a token cache file: then older blocks are not used again."""

ROWS, ROW_INDEX = ".arrow", ".rows.arrow"

_REJECTS = "rejects"
"""The column of the row index that holds the rejected lines."""
_ROLE, _NARROW = "role:", ("length", "offset")
"""The prefix of columns that hold its `RoleCounts`, and columns of small numbers."""

# Sealed files: content in parts, then a checksum of each part. A reader checks each part before it uses it.
#
#     content | JSON: name of the file, borders of the parts, crc32c of each | size and crc32c of the JSON, magic
#
# The name is there, so that an intact file under the wrong name is refused.
#
# In an Arrow stream the schema is the first part, and each record batch is a part. A part is checked when it is read,
# before it is parsed: a damaged length could make a parser allocate or read any amount.

_TAIL = struct.Struct("<II8s")
_MAGIC = b"BPSEALED"

Data: TypeAlias = bytes | pa.Buffer


def seal_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    facts: Mapping[str, object],
    name: str,
    compression: str | None = None,
) -> tuple[Data, bytes]:
    """An Arrow stream and its seal. `facts` (key -> JSON value) are stored in the schema, see `Sealed.fact`."""
    schema = schema.with_metadata({key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()})
    sink, borders = pa.BufferOutputStream(), [0, schema.serialize().size]
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            borders.append(sink.tell())
    content = sink.getvalue()
    borders[-1] = len(content)
    crcs = [google_crc32c.value(content[start:stop]) for start, stop in itertools.pairwise(borders)]
    seal = json.dumps([name, borders, crcs]).encode()
    return content, seal + _TAIL.pack(len(seal), google_crc32c.value(seal), _MAGIC)


class Sealed:
    """Reads a sealed file. Each part is checked before it is returned.

    Args:
        file: an open file. If it is in memory, or mapped into memory, parts are views.
        name: the name with which it was sealed.

    Raises:
        FormatError: the file is cut, has no seal or a damaged one, or was sealed under another name.
    """

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        self._file, self._name = file, name
        end = file.size() - _TAIL.size
        size, crc, magic = _TAIL.unpack(self._read(end, end + _TAIL.size)) if end >= 0 else (0, 0, b"")
        if magic != _MAGIC or size > end:
            raise self._damaged("it is cut, or its end is damaged")
        seal = self._read(end - size, end).to_pybytes()
        if google_crc32c.value(seal) != crc:
            raise self._damaged("its end is damaged")
        named, self._borders, self._crcs = json.loads(seal)
        if named != name:
            raise self._damaged(f"it is a copy of {named}")

    @property
    def batches(self) -> int:
        """The number of record batches."""
        return len(self._crcs) - 1

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return pa.ipc.read_schema(self.part(0))

    def fact(self, key: str) -> Any:
        """A value of the `facts` given to `seal_batches`; None if there is no such key."""
        return json.loads(self.schema.metadata.get(key.encode(), b"null"))

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, by number.

        Raises:
            FormatError: its bytes are not what was written.
        """
        return pa.ipc.read_record_batch(self.part(1 + number), self.schema)

    def part(self, number: int) -> pa.Buffer:
        """A part of the content, by number.

        Raises:
            FormatError: its bytes are not what was written.
        """
        start, stop = self._borders[number : number + 2]
        data = self._read(start, stop)
        if google_crc32c.value(data) != self._crcs[number]:
            raise self._damaged(f"its bytes from {start} to {stop} are not what was written")
        return data

    def _read(self, start: int, stop: int) -> pa.Buffer:
        self._file.seek(start)
        return self._file.read_buffer(stop - start)

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"the token cache file {self._name} is damaged: {how}")


# The files of a block


def encode_block(
    batch: Batch, tokens: Array, text_limit: int, name: str
) -> tuple[BlockReceipt, dict[str, tuple[Data, bytes]]]:
    """The block statistics of a batch, and its files by ending, in the order of writing. A file is content, then seal.

    Args:
        batch: rows with their final dtypes; masks may be uint8 where bool is stored.
        tokens: int64 [rows], tokens of each row in a shard.
        text_limit: characters kept of a rejected record; 0: no text is kept.
        name: the block's name. The files can be read only under this name.
    """
    names = list(dict.fromkeys(batch.domain))
    code = {name: index for index, name in enumerate(names)}
    domain = np.array([code[name] for name in batch.domain], np.int32)
    row_index = RowIndex.of(batch, domain, tokens, text_limit)
    made = {name: count for name, count in batch.made.items() if not of_this_run(name)}
    receipt = BlockReceipt.of(row_index.statistics(names, made), tuple(batch.schema.values()))
    index = _row_index(row_index, _rejects(batch.ledger, text_limit), name)
    return receipt, {ROW_INDEX: index, ROWS: _rows(batch, domain, receipt, name)}


def _rows(batch: Batch, domain: Array, receipt: BlockReceipt, block: str) -> tuple[Data, bytes]:
    rows = {name: batch[name] for name in batch.schema}
    count = domain.max(initial=-1) + 1
    if count > 1:
        rows = joined([rows], np.argsort(domain, kind="stable"))
    borders = offsets_of(np.bincount(domain, minlength=count))
    parts = [slice(first, last) for first, last in itertools.pairwise(borders.tolist())]
    return encode_rows(rows, parts, {"receipt": receipt.values}, block + ROWS)


def encode_rows(
    found: Mapping[str, Ragged], parts: Iterable[slice], facts: Mapping[str, object], name: str
) -> tuple[Data, bytes]:
    """The content of a file of rows, one record batch a part, and its seal.

    Args:
        found: the rows, by column.
        parts: which rows are in each batch.
        facts, name: see `seal_batches`.
    """

    def batch(part: slice) -> pa.RecordBatch:
        return pa.record_batch({key: array_of(rows[part]) for key, rows in found.items()})

    return seal_batches(map(batch, parts), batch(slice(0)).schema, facts, name)


def joined(parts: Sequence[dict[str, Ragged]], order: Array) -> dict[str, Ragged]:
    """Joins the rows of all parts and reorders them. It empties the parts, which saves memory.

    Args:
        parts: at least one part.
        order: int64 [rows], the new order.
    """
    found = {}
    for name in [*parts[0]]:
        rows = Ragged.concat([part.pop(name) for part in parts])
        found[name] = rows.take(order)
    return found


def _row_index(row_index: RowIndex, rejects: list[dict[str, Any]], block: str) -> tuple[Data, bytes]:
    roles = row_index.roles
    by_role = enumerate([np.diff(roles.line, prepend=0), roles.role, *roles.counts])
    # The columns have different lengths, so each is stored as one list, in a single row.
    lists: dict[str, Any] = {name: values.ravel() for name, values in row_index.rows.items()}
    lists |= {f"{_ROLE}{place}": _narrow(counts) for place, counts in by_role}
    lists |= {name: _narrow(lists[name]) for name in _NARROW}
    lists |= {"status": row_index.status, _REJECTS: rejects}
    written = pa.record_batch({name: pa.array([values]) for name, values in lists.items()})
    shown = [asdict(record) for record in row_index.shown]
    facts = {"outcomes": row_index.outcomes, "roles": roles.names, "shown": shown}
    return seal_batches([written], written.schema, facts, block + ROW_INDEX, "zstd")


def _narrow(counts: Array) -> Array:
    """Non-negative numbers in the smallest dtype that holds them."""
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))


def _rejects(ledger: Ledger, text_limit: int) -> list[dict[str, Any]]:
    lines = sorted(ledger.messages)
    return [
        {
            "line": line,
            "offset": offset,
            "reason": ledger.outcomes[ledger.status[line] - 1][1],
            "message": ledger.messages[line] if text_limit else None,
            "text": ledger.text(line, text_limit) if text_limit else None,
        }
        for line, offset in zip(lines, ledger.offsets(lines).tolist(), strict=True)
    ]


def whole(source: pa.NativeFile, name: str) -> Sealed:
    """A sealed file in memory, or mapped into it, after the checksums of all its bytes were checked.

    Raises:
        FormatError: the file is cut or damaged, or was sealed under another name.
    """
    sealed = Sealed(pa.BufferReader(source.read_buffer()), name)
    for number in range(1 + sealed.batches):
        sealed.part(number)
    return sealed


def read_rows(source: pa.NativeFile, name: str, domain: int, rows: slice | Array) -> tuple[dict[str, Ragged], bool]:
    """Some rows of a domain, and True if the block has no other rows.

    The rows of a slice are views of mapped memory if the source is mapped, except for bits.

    Args:
        source: an open file or a memory map.
        name: the block's name.
        domain: the number of the record batch.
        rows: a slice with start and stop; or int64, the numbers of rows in the domain, in the wanted order.

    Raises:
        FormatError: the rows of this domain are cut or damaged, or there are fewer.
    """
    sealed = Sealed(source, name + ROWS)
    stop = rows.stop if isinstance(rows, slice) else rows.max(initial=-1) + 1
    if domain >= sealed.batches or stop > len(batch := sealed.batch(domain)):
        raise FormatError(f"the token cache file {name} does not have the rows that its receipt names")
    if isinstance(rows, slice):
        part = batch.slice(rows.start, rows.stop - rows.start)
        return rows_of(part), len(part) == len(batch) and sealed.batches == 1
    return {key: column.take(rows) for key, column in rows_of(batch).items()}, False


def read_row_index(source: pa.NativeFile, name: str) -> RowIndex:
    """The row index of a block.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    sealed = Sealed(source, name + ROW_INDEX)
    batch = sealed.batch(0)
    found = {name: batch.column(name).values.to_numpy() for name in batch.schema.names if name != _REJECTS}
    by_role = [found.pop(name) for name in [*found] if name.startswith(_ROLE)]
    steps, role, *counts = (each.astype(np.int64) for each in by_role)
    found |= {name: found[name].astype(np.int64) for name in _NARROW}
    if (digests := found.get(DIGEST + DUPLICATE)) is not None:
        found[DIGEST + DUPLICATE] = digests.reshape(-1, 2)
    outcomes = [(kind, reason) for kind, reason in sealed.fact("outcomes")]
    roles = RoleCounts(tuple(sealed.fact("roles")), np.cumsum(steps), role, np.stack(counts))
    status, shown = found.pop("status"), tuple(Drop(**each) for each in sealed.fact("shown"))
    return RowIndex(found, status, outcomes, roles, shown)


def read_rejects(source: pa.NativeFile, name: str) -> list[dict[str, Any]]:
    """The rejected lines of a block, in order: line and offset (counted from the block's start), reason, message, text.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    index = Sealed(source, name + ROW_INDEX).batch(0)
    rows: list[dict[str, Any]] = index.column(_REJECTS)[0].as_py()
    return rows
