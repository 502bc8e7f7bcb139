"""Token cache files: one tokenised block <-> bytes. They are Arrow IPC, so a slice of rows is read without a copy.

A block has up to three files. `<name>.arrow` holds the rows, one record batch a domain, and the block statistics in its
schema. `<name>.rows.arrow` (small) holds the row index: the outcome of each line, domain and tokens of each row. Only
blocks in which a shard ends need it. `<name>.rejects.arrow` holds the rejected lines, if there are any. The file of
rows is written last: if it exists, the others exist, too.

Each file is sealed with its name (`formats.sealed`): a reader checks the checksum of every part that it uses, and that
the file belongs to this block. Reading a slice of rows checks all rows of its domain.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.block import of_this_run
from beam_prep.data.ragged import Array, Ragged, narrow, offsets_of
from beam_prep.data.receipts import BlockReceipt
from beam_prep.errors import FormatError
from beam_prep.formats.batches import array_of, rows_of
from beam_prep.formats.sealed import Data, Sealed, seal_batches
from beam_prep.reading.keys import DUPLICATE, SPLIT
from beam_prep.reading.records import Drop, drops, marks
from beam_prep.shards.row_index import RowIndex
from beam_prep.tokens.batch import Batch, RoleCounts

CACHE_VERSION = 16
"""Raise this with every change of the content of a token cache file: then older blocks are not used again."""

ROWS, ROW_INDEX, REJECTS = ".arrow", ".rows.arrow", ".rejects.arrow"


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
    ledger, roles = batch.ledger, batch.roles.count(batch.line)
    row_index = RowIndex(
        batch.line, domain, tokens, ledger.status, ledger.outcomes, batch.counters, roles, length=batch.lengths
    )
    made = {name: count for name, count in batch.made.items() if not of_this_run(name)}
    receipt = BlockReceipt.of(row_index.statistics(names, made), tuple(batch.schema.values()))
    files: dict[str, tuple[Data, bytes]] = {}
    if receipt.counts("rejected"):
        files[REJECTS] = _rejects(batch, text_limit, name)
    files[ROW_INDEX] = _row_index(batch, domain, tokens, roles, text_limit, name)
    files[ROWS] = _rows(batch, domain, receipt, name)
    return receipt, files


def _rows(batch: Batch, domain: Array, receipt: BlockReceipt, block: str) -> tuple[Data, bytes]:
    rows = {name: batch[name] for name in batch.schema}
    count = domain.max(initial=-1) + 1
    if count > 1:
        rows = joined([rows], np.argsort(domain, kind="stable"))
    borders = offsets_of(np.bincount(domain, minlength=count))
    parts = [slice(first, last) for first, last in itertools.pairwise(borders.tolist())]
    return encode_rows(rows, parts, {"receipt": receipt.as_dict()}, block + ROWS)


def encode_rows(
    found: Mapping[str, Ragged],
    parts: Iterable[slice],
    facts: Mapping[str, object],
    name: str,
    beside: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Data, bytes]:
    """The content of a file of rows, one record batch a part, and its seal.

    Args:
        found: the rows, by column.
        parts: which rows are in each batch.
        facts, name: see `seal_batches`.
        beside: more columns, with one number a row.
    """

    def batch(part: slice) -> pa.RecordBatch:
        columns = {key: _arrow(rows[part]) for key, rows in found.items()}
        return pa.record_batch(columns | {key: pa.array(values[part]) for key, values in beside.items()})

    return seal_batches(map(batch, parts), batch(slice(0)).schema, facts, name)


def joined(parts: Sequence[dict[str, Ragged]], order: Array) -> dict[str, Ragged]:
    """Joins the rows of all parts and reorders them. It empties the parts, which saves memory.

    Args:
        parts: at least one part.
        order: int64 [rows], the new order.
    """
    return {name: Ragged.concat([part.pop(name) for part in parts]).take(order) for name in [*parts[0]]}


def _arrow(rows: Ragged) -> pa.ListArray:
    values = _arrow(rows.values) if isinstance(rows.values, Ragged) else _arrow_values(rows.values)
    return pa.ListArray.from_arrays(pa.array(narrow(rows.offsets)), values)


def _arrow_values(values: Array) -> pa.Array:
    return array_of(values, pa.bool_()) if values.dtype == bool else pa.array(values)


def _row_index(
    batch: Batch, domain: Array, tokens: Array, roles: RoleCounts, text_limit: int, block: str
) -> tuple[Data, bytes]:
    columns = {"line": batch.line, "domain": domain, "tokens": tokens, "status": batch.ledger.status}
    columns |= {f"counter:{name}": counts for name, counts in sorted(batch.counters.items())}
    by_role = [np.diff(roles.line, prepend=0), roles.role, *roles.counts]
    if not np.array_equal(batch.lengths, tokens):
        columns["length"] = _narrow(batch.lengths)
    columns |= {f"role:{place}": _narrow(counts) for place, counts in enumerate(by_role)}
    digests = batch.ledger.digests
    if SPLIT in digests:
        columns[SPLIT] = digests[SPLIT][batch.line]
    if DUPLICATE in digests:
        columns |= {f"{DUPLICATE}:{half}": digests[DUPLICATE][batch.line, half] for half in (0, 1)}
        columns["offset"] = _narrow(batch.ledger.offsets(batch.line))
    # The columns have different lengths, so each is stored as one list, in a single row.
    written = pa.record_batch({name: pa.array([values]) for name, values in columns.items()})
    facts = {
        "outcomes": batch.ledger.outcomes,
        "roles": roles.names,
        "drops": [record.as_dict() for record in drops(batch.ledger, text_limit)],
        "marks": [record.as_dict() for record in marks(batch.ledger, text_limit)],
    }
    return seal_batches([written], written.schema, facts, block + ROW_INDEX, "zstd")


def _narrow(counts: Array) -> Array:
    """Non-negative numbers in the smallest dtype that holds them."""
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))


def _rejects(batch: Batch, text_limit: int, block: str) -> tuple[Data, bytes]:
    ledger = batch.ledger
    lines = sorted(ledger.messages)
    reasons = [ledger.outcomes[ledger.status[line] - 1][1] for line in lines]
    columns = {
        "line": pa.array(lines, pa.int32()),
        "offset": pa.array(ledger.offsets(lines), pa.int64()),
        "reason": pa.array(reasons, pa.string()),
        "message": pa.array([ledger.messages[line] if text_limit else None for line in lines], pa.string()),
        "text": pa.array([ledger.text(line, text_limit) if text_limit else None for line in lines], pa.string()),
    }
    written = pa.record_batch(columns)
    return seal_batches([written], written.schema, {}, block + REJECTS, "zstd")


def check_whole(source: pa.NativeFile, name: str, ending: str) -> pa.NativeFile:
    """Reads a block's file and checks the checksums of all bytes. Returns the file in memory, or mapped into it.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    whole = pa.BufferReader(source.read_buffer())
    Sealed(whole, name + ending).check_all()
    return whole


def read_receipt(source: pa.NativeFile, name: str) -> BlockReceipt:
    """The block statistics, from the file of rows.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    return BlockReceipt.from_dict(Sealed(source, name + ROWS).fact("receipt"))


def read_rows(source: pa.NativeFile, name: str, domain: int, start: int, stop: int) -> tuple[dict[str, Ragged], bool]:
    """Rows [start, stop) of a domain, and True if the block has no other rows.

    The rows are views of mapped memory if the source is mapped, except for bits.

    Raises:
        FormatError: the rows of this domain are cut or damaged, or there are fewer.
    """
    sealed, rows_of_domain = _batch(source, name, domain, stop)
    batch = rows_of_domain.slice(start, stop - start)
    return rows_of(batch), len(batch) == len(rows_of_domain) and sealed.batches == 1


def _batch(source: pa.NativeFile, name: str, domain: int, rows: int) -> tuple[Sealed, pa.RecordBatch]:
    """The sealed file, and all rows of a domain. Raises FormatError if there are fewer than `rows`."""
    sealed = Sealed(source, name + ROWS)
    if domain >= sealed.batches or rows > len(batch := sealed.batch(domain)):
        raise FormatError(f"the token cache file {name} does not have the rows that its receipt names")
    return sealed, batch


def pick_rows(source: pa.NativeFile, name: str, domain: int, rows: Array) -> dict[str, Ragged]:
    """Some rows of a domain, in the given order.

    Args:
        source: an open file or a memory map.
        name: the block's name.
        domain: the number of the record batch.
        rows: int64, numbers of rows in the domain.

    Raises:
        FormatError: the rows of this domain are cut or damaged, or there are fewer.
    """
    _, batch = _batch(source, name, domain, int(rows.max(initial=-1)) + 1)
    return {key: column.take(rows) for key, column in rows_of(batch).items()}


def read_row_index(source: pa.NativeFile, name: str) -> RowIndex:
    """The row index of a block.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    sealed = Sealed(source, name + ROW_INDEX)
    batch = sealed.batch(0)
    found = {column: batch.column(column).values.to_numpy() for column in batch.schema.names}
    outcomes = [(kind, reason) for kind, reason in sealed.fact("outcomes")]
    counters = {column[len("counter:") :]: found.pop(column) for column in list(found) if column.startswith("counter:")}
    steps, role, *counts = (found.pop(f"role:{place}").astype(np.int64) for place in range(5))
    roles = RoleCounts(tuple(sealed.fact("roles")), np.cumsum(steps), role, np.stack(counts))
    dropped, marked = (tuple(Drop(**record) for record in sealed.fact(key)) for key in ("drops", "marks"))
    length = found.pop("length", found["tokens"]).astype(np.int64)
    digests = {}
    if SPLIT in found:
        digests[SPLIT] = found.pop(SPLIT)
    if f"{DUPLICATE}:0" in found:
        digests[DUPLICATE] = np.stack([found.pop(f"{DUPLICATE}:{half}") for half in (0, 1)], axis=1)
        found["offset"] = found["offset"].astype(np.int64)
    return RowIndex(
        **found,
        length=length,
        outcomes=outcomes,
        counters=counters,
        roles=roles,
        drops=dropped,
        digests=digests,
        marks=marked,
    )


def read_rejects(source: pa.NativeFile, name: str) -> list[dict[str, Any]]:
    """The rejected lines of a block, in order: line and offset (counted from the block's start), reason, message, text.

    Raises:
        FormatError: the file is cut or damaged, or belongs to another block.
    """
    rows: list[dict[str, Any]] = Sealed(source, name + REJECTS).batch(0).to_pylist()
    return rows
