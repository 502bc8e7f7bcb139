"""Token cache files: one tokenised block <-> bytes. Arrow IPC, so that a slice of rows is read without copying it.

A block takes up to three files. `<name>.arrow` holds the rows, one record batch a domain, and the block's receipt in
its footer; labels that are the ids or -100 take one bit a token. `<name>.rows.arrow` (small) holds what only shard
borders need: each line's outcome, each row's domain and tokens. `<name>.rejects.arrow` holds rejected lines, where
there are any. The first is written last: where it is there, the others are too.

Each is sealed (`formats.sealed`), with its name: no byte of it is used unproven, nor as another block's, and a slice of
rows proves only what it covers.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.block import BlockReceipt, count_outcomes, of_this_run
from beam_prep.data.lengths import histogram
from beam_prep.data.ragged import MAX_NARROW, Array, Ragged, narrow, offsets_of, take_rows
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.errors import FormatError
from beam_prep.formats.batches import array_of, unpacked
from beam_prep.formats.sealed import Data, Proven, Sealed, seal
from beam_prep.reading.keys import DUPLICATE, SPLIT
from beam_prep.reading.records import Drop, drops, marks
from beam_prep.shards.row_index import RowIndex
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.segments import RoleCounts

CACHE_VERSION = 11
"""Rises with every change of the contents of a token cache file; older blocks are then not used again."""

ROWS, ROW_INDEX, REJECTS = ".arrow", ".rows.arrow", ".rejects.arrow"


def encode_block(
    batch: Batch, tokens: Array, text_limit: int, name: str
) -> tuple[BlockReceipt, dict[str, tuple[Data, bytes]]]:
    """A batch -> its receipt, and the files of its block by ending, in the order in which they are written.

    A file is its content, then its seal.

    Args:
        batch: rows with their final dtypes; masks may be uint8 where bool is stored.
        tokens: int64 [rows], tokens of each row in a shard.
        text_limit: characters kept of a rejected record; 0 keeps texts out.
        name: of the block; it is read under no other.
    """
    names = list(dict.fromkeys(batch.domain))
    code = {name: index for index, name in enumerate(names)}
    domain = np.array([code[name] for name in batch.domain], np.int32)
    rows_of = np.bincount(domain, minlength=len(names))
    tokens_of = np.bincount(domain, tokens, len(names)).astype(np.int64)
    roles = batch.roles.count(batch.line, len(batch.ledger.status))
    receipt = BlockReceipt(
        lines=len(batch.ledger.status),
        counts=count_outcomes(batch.ledger.status, batch.ledger.outcomes),
        domains=[*zip(names, rows_of.tolist(), tokens_of.tolist(), strict=True)],
        counters={name: int(counts.sum()) for name, counts in sorted(batch.counters.items())},
        columns=tuple(batch.schema.values()),
        made={name: count for name, count in batch.made.items() if not of_this_run(name)},
        roles=roles.sums(),
        lengths=(histogram(batch.lengths), histogram(batch.uncut)),
    )
    files: dict[str, tuple[Data, bytes]] = {}
    if receipt.counts["rejected"]:
        files[REJECTS] = _rejects(batch, text_limit, name)
    files[ROW_INDEX] = _row_index(batch, domain, tokens, roles, text_limit, name)
    files[ROWS] = _rows(batch, domain, receipt, name)
    return receipt, files


_OF = b"of"
"""In the metadata of a column of bits: the column of ids that its labels are of."""


def _rows(batch: Batch, domain: Array, receipt: BlockReceipt, block: str) -> tuple[Data, bytes]:
    rows = _with_bits(CachedRows({name: batch[name] for name in batch.schema}), batch.schema.values())
    if len(receipt.domains) > 1:
        order = np.argsort(domain, kind="stable")  # a mask a domain would look at all values for each of them
        rows = CachedRows.joined([rows], order)
    borders = offsets_of(np.bincount(domain, minlength=len(receipt.domains)))
    parts = [slice(first, last) for first, last in itertools.pairwise(borders.tolist())]
    footer = {"receipt": json.dumps(_as_dict(receipt), ensure_ascii=False)}
    return encode_rows(rows, batch.schema.values(), parts, footer, block + ROWS)


def _as_dict(receipt: BlockReceipt) -> dict[str, Any]:
    """`asdict`, which would copy every number of every domain one by one."""
    found = {each.name: getattr(receipt, each.name) for each in fields(receipt)}
    return found | {"columns": [asdict(column) for column in receipt.columns]}


def encode_rows(
    found: "CachedRows",
    schema: Iterable[Column],
    parts: Iterable[slice],
    footer: Mapping[str, str],
    name: str,
    beside: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Data, bytes]:
    """The content of a file of rows, one record batch a part, and its seal. Labels become bits where they can.

    Args:
        found, schema: the rows.
        parts: the rows of each batch.
        footer: the file's metadata.
        name: of the file.
        beside: name -> one number a row.
    """
    schema = [*schema]
    found = _with_bits(found, schema)
    columns = [found.rows[column.name] for column in schema]
    types = {column.name: _arrow(rows[:0]).type for column, rows in zip(schema, columns, strict=True)}
    types |= {key: pa.array(values[:0]).type for key, values in beside.items()}
    bits = {name: {_OF: of.encode()} for name, of in found.bits.items()}
    written = pa.schema([pa.field(key, kind, metadata=bits.get(key)) for key, kind in types.items()])
    sink = pa.BufferOutputStream()
    messages = []
    with pa.ipc.new_file(sink, written, metadata=dict(footer)) as writer:
        for part in parts:
            first = sink.tell()
            taken = [*(_arrow(rows[part]) for rows in columns), *(pa.array(values[part]) for values in beside.values())]
            writer.write_batch(pa.record_batch(taken, schema=written))
            messages.append((first, sink.tell()))
    content = sink.getvalue()
    return content, seal(content, name, [(_body(content, first), last) for first, last in messages])


def _body(content: pa.Buffer, message: int) -> int:
    """Where the body of a record batch begins: after a mark and the size of the metadata (4 bytes each), and these."""
    return message + 8 + int.from_bytes(content[message + 4 : message + 8], "little")


def _with_bits(found: "CachedRows", schema: Iterable[Column]) -> "CachedRows":
    """The rows, with bits for labels that can be bits."""
    rows, bits = dict(found.rows), dict(found.bits)
    for column in schema:
        if column.of is None or column.name in bits:
            continue
        if (trained := _trained(rows[column.name], rows[column.of], column)) is not None:
            rows[column.name] = rows[column.name].with_flat(trained)
            bits[column.name] = column.of
    return CachedRows(rows, bits)


def _trained(labels: Ragged, ids: Ragged, column: Column) -> Array | None:
    """bool [values]: where labels are the ids; None where they are something else than that or -100."""
    if column.role != "labels" or column.shifted or labels.flat.dtype != ids.flat.dtype:
        return None
    if len(labels.flat) != len(ids.flat):
        return None
    trained: Array = labels.flat != IGNORE_INDEX
    return None if (trained & (labels.flat != ids.flat)).any() else trained


def _labels(trained: Array, ids: Array) -> Array:
    return np.where(trained, ids, ids.dtype.type(IGNORE_INDEX))


def _arrow(rows: Ragged) -> pa.ListArray:
    values = _arrow(rows.values) if isinstance(rows.values, Ragged) else _arrow_values(rows.values)
    return pa.ListArray.from_arrays(pa.array(narrow(rows.offsets)), values)


def _arrow_values(values: Array) -> pa.Array:
    return array_of(values, pa.bool_()) if values.dtype == bool else pa.array(values)


def _values(array: pa.Array) -> Array:
    """The values of an array without nulls: a view of its memory, except for bits."""
    if not pa.types.is_boolean(array.type):
        return np.asarray(array.to_numpy())
    bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    return unpacked(bits, array.offset, array.offset + len(array))


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
    table = pa.table({name: pa.array([values]) for name, values in columns.items()})
    footer = {
        "outcomes": json.dumps(batch.ledger.outcomes),
        "roles": json.dumps(roles.names),
        "drops": json.dumps([record.as_dict() for record in drops(batch.ledger, text_limit)]),
    }
    if marked := marks(batch.ledger, text_limit):
        footer["marks"] = json.dumps([record.as_dict() for record in marked])
    return _write(table, footer, block + ROW_INDEX)


def _narrow(counts: Array) -> Array:
    """Numbers from 0 on in the smallest dtype."""
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))


def _rejects(batch: Batch, text_limit: int, block: str) -> tuple[Data, bytes]:
    ledger = batch.ledger
    lines = sorted(ledger.messages)
    reasons = [ledger.outcomes[ledger.status[line] - 1][1] for line in lines]
    table = pa.table(
        {
            "line": pa.array(lines, pa.int32()),
            "offset": pa.array(ledger.offsets(lines), pa.int64()),
            "reason": reasons,
            "message": [ledger.messages[line] if text_limit else None for line in lines],
            "text": [ledger.text(line, text_limit) if text_limit else None for line in lines],
        },
        schema=pa.schema(
            [
                ("line", pa.int32()),
                ("offset", pa.int64()),
                ("reason", pa.string()),
                ("message", pa.string()),
                ("text", pa.string()),
            ]
        ),
    )
    return _write(table, {}, block + REJECTS)


def _write(table: pa.Table, footer: Mapping[str, str], name: str) -> tuple[Data, bytes]:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options, metadata=dict(footer)) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    return content, seal(content, name)


def check_whole(source: pa.NativeFile, name: str, ending: str) -> None:
    """Proves every byte of a block's file.

    Raises:
        FormatError: the file is cut or damaged, or it is another's.
    """
    Sealed(source, name + ending).check_all()


def read_receipt(source: pa.NativeFile, name: str, entire: bool = False) -> BlockReceipt:
    """The receipt in the footer of a block's rows.

    Args:
        source: an open file or a memory map.
        name: of the block.
        entire: prove the rows, too.

    Raises:
        FormatError: the file is cut or damaged, or it is another block's.
    """
    sealed = Sealed(source, name + ROWS)
    if entire:
        sealed.check_all()
    found = json.loads(sealed.open().metadata[b"receipt"])
    found["domains"] = [tuple(entry) for entry in found["domains"]]
    found["columns"] = tuple(Column(**column) for column in found["columns"])
    found["lengths"] = tuple(map(tuple, found["lengths"]))
    found["roles"] = {role: tuple(counts) for role, counts in found["roles"].items()}
    return BlockReceipt(**found)


def read_rows(
    source: pa.NativeFile, name: str, domain: int, start: int, stop: int, proven: Proven = None
) -> tuple[dict[str, Ragged], bool]:
    """Rows [start, stop) of a domain, and True if the block has no others.

    They are views of the source's memory where it is mapped, except for bits. For `proven` see `Sealed`.

    Raises:
        FormatError: the file is cut or damaged, as far as these rows go; or it does not have them.
    """
    sealed = Sealed(source, name + ROWS, proven)
    reader = sealed.open()
    if domain >= reader.num_record_batches or stop > len(rows_of_domain := reader.get_batch(domain)):
        raise FormatError(f"the token cache file {name} does not have the rows that its receipt names")
    batch = rows_of_domain.slice(start, stop - start)
    are_all = len(batch) == len(rows_of_domain) and reader.num_record_batches == 1
    rows = {column: _ragged(batch.column(column), sealed) for column in batch.schema.names}
    return CachedRows(rows, _bits(batch.schema)).decoded(), are_all


def _bits(schema: pa.Schema) -> dict[str, str]:
    marked = (field for field in schema if field.metadata is not None and _OF in field.metadata)
    return {field.name: field.metadata[_OF].decode() for field in marked}


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Rows as files of the token cache have them. To arrange them takes less memory than to arrange what they mean.

    Attributes:
        rows: column -> values; labels may be bits, true where they are the ids.
        bits: column of such labels -> its column of ids.
    """

    rows: dict[str, Ragged]
    bits: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()), ()))

    def decoded(self) -> dict[str, Ragged]:
        """The rows as they were before they were written: labels are ids or -100."""
        labels = {
            name: self.rows[name].with_flat(_labels(self.rows[name].flat, self.rows[of].flat))
            for name, of in self.bits.items()
        }
        return {**self.rows, **labels}

    @classmethod
    def joined(cls, parts: Sequence["CachedRows"], order: Array) -> "CachedRows":
        """The rows of all parts, one after the other, in another order. The parts lose theirs, which saves memory.

        Args:
            parts: at least one.
            order: int64 [rows].
        """
        bits = parts[0].bits
        if any(part.bits != bits for part in parts):  # of some blocks the labels are something else
            parts, bits = [cls(part.decoded()) for part in parts], {}
        rows = {name: Ragged.concat([part.rows.pop(name) for part in parts]).take(order) for name in [*parts[0].rows]}
        return cls(rows, bits)


def pick_rows(source: pa.NativeFile, name: str, domain: int, rows: Array, proven: Proven) -> CachedRows:
    """Some rows of a domain, in the order in which they are given. Of a mapped file no others are read.

    Args:
        source: an open file or a memory map.
        name: of the block.
        domain: the number of the record batch.
        rows: int64, of the domain.
        proven: see `Sealed`.

    Raises:
        FormatError: the file is cut or damaged, as far as these rows go; or it does not have them.
    """
    sealed = Sealed(source, name + ROWS, proven)
    reader = sealed.open()
    if domain >= reader.num_record_batches or (len(rows) and int(rows.max()) >= len(batch := reader.get_batch(domain))):
        raise FormatError(f"the token cache file {name} does not have the rows that its receipt names")
    batch = reader.get_batch(domain)
    found = {column: _picked(batch.column(column), rows, sealed) for column in batch.schema.names}
    return CachedRows(found, _bits(batch.schema))


def _picked(array: pa.ListArray, rows: Array, sealed: Sealed) -> Ragged:
    sealed.check_array(array.offsets)
    borders = array.offsets.to_numpy().astype(np.int64)
    starts, stops = borders[:-1][rows], borders[1:][rows]
    offsets = offsets_of(stops - starts)
    values = array.values
    if pa.types.is_list(values.type):
        return Ragged(_picked(values, _places(starts, offsets), sealed), offsets)
    sealed.check_values(values, starts, stops)
    if not pa.types.is_boolean(values.type):
        return Ragged(take_rows(values.to_numpy(), borders, rows), offsets)
    if len(rows):
        first, last = int(rows.min()), int(rows.max()) + 1
        span = borders[first : last + 1]
        if span[-1] - span[0] <= _DENSE * offsets[-1]:
            unpacked = _values(values.slice(span[0], span[-1] - span[0]))
            return Ragged(take_rows(unpacked, span - span[0], rows - first), offsets)
    # Arrow would make bytes of all bits.
    place = _places(starts + values.offset, offsets)
    packed = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    bits = (packed[place >> 3] >> (place & 7).astype(np.uint8)) & 1
    return Ragged(bits.view(bool), offsets)


_DENSE = 4
"""Of so many bits one that is wanted: then all of them are unpacked."""


def _places(starts: Array, offsets: Array) -> Array:
    """The place of each value of rows that begin at `starts`: int32 if that holds them."""
    dtype = np.int32 if not len(starts) or int(starts.max() + offsets[-1]) <= MAX_NARROW else np.int64
    first = np.repeat((starts - offsets[:-1]).astype(dtype), np.diff(offsets))
    return first + np.arange(offsets[-1], dtype=dtype)


def decode_batch(
    sealed: Sealed, reader: pa.ipc.RecordBatchFileReader, batch: int, beside: Sequence[str]
) -> tuple[CachedRows, list[Array]]:
    """A record batch of an open file that `encode_rows` wrote: its rows, and the numbers `beside` them.

    Raises:
        FormatError: it is damaged.
    """
    found = reader.get_batch(batch)
    numbers = [found.column(key) for key in beside]
    for each in numbers:
        sealed.check_array(each)
    rows = {key: _ragged(found.column(key), sealed) for key in found.schema.names if key not in beside}
    return CachedRows(rows, _bits(found.schema)), [each.to_numpy() for each in numbers]


def _ragged(array: pa.ListArray, sealed: Sealed) -> Ragged:
    sealed.check_array(array.offsets)
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    if pa.types.is_list(values.type):
        return Ragged(_ragged(values, sealed), offsets - offsets[0])
    sealed.check_array(values)
    return Ragged(_values(values), offsets - offsets[0])


def read_row_index(source: pa.NativeFile, name: str) -> RowIndex:
    """The row index of a block.

    Raises:
        FormatError: the file is cut or damaged, or it is another block's.
    """
    reader = Sealed(source, name + ROW_INDEX).open()
    batch = reader.get_batch(0)
    found = {column: batch.column(column).values.to_numpy() for column in batch.schema.names}
    outcomes = [(kind, reason) for kind, reason in json.loads(reader.metadata[b"outcomes"])]
    counters = {column[len("counter:") :]: found.pop(column) for column in list(found) if column.startswith("counter:")}
    steps, role, *counts = (found.pop(f"role:{place}").astype(np.int64) for place in range(5))
    roles = RoleCounts(tuple(json.loads(reader.metadata[b"roles"])), np.cumsum(steps), role, np.stack(counts))
    dropped, marked = (
        tuple(Drop(**record) for record in json.loads(reader.metadata.get(name, b"[]")))
        for name in (b"drops", b"marks")
    )
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
    """Rejected lines of a block, in order: line (in the block), offset (from its first line), reason, message, text.

    Raises:
        FormatError: the file is cut or damaged, or it is another block's.
    """
    rows: list[dict[str, Any]] = Sealed(source, name + REJECTS).open().read_all().to_pylist()
    return rows
