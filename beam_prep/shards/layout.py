"""The layout of a shard: chunks, turns apart, packing, padding, position ids, names of columns.

Chunks: a document longer than the row limit becomes several rows. With a stride, each later chunk begins with the last
tokens of the previous chunk, as context. `stride` means the same as in Hugging Face's tokenizers: tokens that overlap.

Turns apart: the token cache holds a record of several rows as one row, with the row lengths beside it. So the plan,
splits, deduplication, mixes and the shuffle keep the rows of a record together. They become rows again when a shard is
written.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import (
    FILE,
    MISSING,
    NO_LOSS,
    OFFSET,
    Column,
    name_problems,
    one_each,
)
from beam_prep.errors import ConfigError
from beam_prep.hints import check_least, check_settings
from beam_prep.reading.records import CONTAMINATED
from beam_prep.shards import pack
from beam_prep.tokens.batch import CUT_TOKENS, Batch, is_role_column
from beam_prep.tokens.rows import (
    ATTENTION_MASK,
    Padding,
    RowsWithoutLoss,
    TruncationMode,
    check_masked,
    drop_rows_without_loss,
    reject_equal_sides,
    trained_tokens,
    truncate,
)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Cuts rows into chunks of `size` tokens. The last chunk of a row may be shorter.

    >>> chunking = bp.Chunking(size=4, stride=1)
    >>> ids, mask = bp.Column("sequence", "int32", 1, "ids"), bp.Column("loss_mask", "int32", 1, "mask", "sequence")
    >>> rows = {"sequence": bp.Ragged.from_lists([[1, 2, 3, 4, 5, 6]])}
    >>> rows["loss_mask"] = bp.Ragged.from_lists([[0, 1, 1, 1, 1, 1]])
    >>> chunks, stats = chunking.rows(rows, {"sequence": ids, "loss_mask": mask})
    >>> chunks["sequence"].to_lists(), chunks["loss_mask"].to_lists()
    ([[1, 2, 3, 4], [4, 5, 6]], [[0, 1, 1, 1], [0, 1, 1]])

    Attributes:
        size: tokens of a chunk.
        stride: tokens that a chunk repeats from the previous chunk. They are not trained again if the output has a
            mask or labels.
        keep_rows_without_loss: write chunks without a trained token.

    Raises:
        ValueError: `size` is less than 1, or `stride` is not from 0 to less than `size`.
    """

    size: int
    stride: int = 0
    keep_rows_without_loss: bool = False

    def __post_init__(self) -> None:
        check_least(1, size=self.size)
        if not 0 <= self.stride < self.size:
            raise ValueError(f"stride is {self.stride}, wanted 0 to {self.size - 1}, less than a chunk")

    def lengths(self, lengths: Array) -> tuple[Array, Array]:
        """(tokens of each chunk, the row it is cut from), int64 [chunks] each; `lengths`: tokens of each row."""
        pieces = self._pieces(lengths)
        return pieces.lengths, pieces.row

    def _pieces(self, lengths: Array) -> pack.Pieces:
        first = offsets_of(1 - (-np.maximum(lengths - self.size, 0) // (self.size - self.stride)))
        row = np.repeat(np.arange(len(lengths)), np.diff(first))
        start = (np.arange(first[-1]) - first[row]) * (self.size - self.stride)
        return pack.Pieces(row, start, np.minimum(start + self.size, lengths[row]))

    def rows(
        self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]
    ) -> tuple[dict[str, Ragged], dict[str, int]]:
        """The chunks of all rows, in order, and counts, which can be added.

        `rows` that came in; `rows_split`: that became several chunks; `chunks` that were made; `chunks_untrained`:
        without a trained token, they are not written; `tokens_repeated`: tokens that a written chunk repeats from the
        previous chunk; `tokens_left_out`: tokens of chunks that are not written, repeated tokens not counted.

        Args:
            columns: name -> one list of values a row, of equal lengths in all columns; not empty. Metadata columns
                are repeated in every chunk of their row.
            schema: name -> column.

        Raises:
            ValueError: see `check_aligned`.
        """
        lengths, beside = next(iter(columns.values())).lengths, [name for name in columns if schema[name].metadata]
        pack.check_aligned({name: rows for name, rows in columns.items() if name not in beside}, lengths)
        row, start, stop = pieces = self._pieces(lengths)
        sizes, trained = stop - start, np.zeros(len(row), bool)
        repeated = np.where(start > 0, self.stride, 0)
        borders = offsets_of(sizes)
        again = np.arange(borders[-1]) < np.repeat(borders[:-1] + repeated, sizes)
        chunks = pieces.of(columns, beside)
        for name, chunk in chunks.items():
            if (nothing := NO_LOSS.get(schema[name].role)) is not None:
                chunks[name] = chunk.with_flat(np.where(again, chunk.flat.dtype.type(nothing), chunk.flat))
                if schema[name].role != "weights":  # a token with weight 0 still counts as trained
                    trained |= chunks[name].sums(chunks[name].flat != nothing) > 0
        if self.keep_rows_without_loss or not any(column.role in NO_LOSS for column in schema.values()):
            trained[:] = True
        counts = {
            "rows": len(lengths),
            "rows_split": int(np.count_nonzero(np.bincount(row) > 1)),
            "chunks": len(row),
            "chunks_untrained": int(np.count_nonzero(~trained)),
            "tokens_repeated": int(repeated[trained].sum()),
            "tokens_left_out": int((sizes - repeated)[~trained].sum()),
        }
        if trained.all():
            return chunks, counts
        return {name: chunk.take(trained) for name, chunk in chunks.items()}, counts


# Turns apart

ROW_LENGTHS = Column("row_lengths", "int32", 1, "rows")
"""The column of the token cache that holds the length of each row of a record, in tokens."""


def join_rows(batch: Batch) -> Batch:
    """Joins the rows of each record into one row, and adds `ROW_LENGTHS`. Counters are added up.

    Raises:
        ValueError: see `check_aligned`.
    """
    lengths = batch.tokens
    pack.check_aligned(batch.columns, lengths)
    line, first = np.unique(batch.line, return_index=True)
    borders = np.append(first, len(batch))
    columns = {name: Ragged(rows.flat, rows.offsets[borders]) for name, rows in batch.columns.items()}
    columns[ROW_LENGTHS.name] = Ragged(lengths.astype(np.int32), borders)
    return batch._with(
        line=line.astype(np.int32),
        domain=[batch.domain[row] for row in first.tolist()],
        columns=columns,
        schema={**batch.schema, ROW_LENGTHS.name: ROW_LENGTHS},
        counters={name: np.diff(offsets_of(counts)[borders]) for name, counts in batch.counters.items()},
        roles=batch.roles.mapped(lambda rows: Ragged(rows.flat, rows.offsets[borders])),
        row=None,
    )


def lengths_of(columns: Mapping[str, Ragged], tokens: Array) -> tuple[Array, Array]:
    """(tokens of each row to write, its row in the token cache), int64 [rows] each.

    Args:
        columns: rows of the token cache, by column.
        tokens: int64, the tokens of each of these rows.
    """
    rows = columns.get(ROW_LENGTHS.name)
    if rows is None:
        return tokens, np.arange(len(tokens))
    return rows.flat.astype(np.int64), np.repeat(np.arange(len(rows)), rows.lengths)


def split_rows(columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> dict[str, Ragged]:
    """Splits records into their rows. Tokens that were cut from a record (`LOST`) count for its first row.

    Args:
        columns: rows of the token cache, with `ROW_LENGTHS`.
        schema: name -> column, without `ROW_LENGTHS`.
    """
    lengths, record = lengths_of(columns, np.zeros(0, np.int64))
    offsets, first = offsets_of(lengths), np.diff(record, prepend=-1)
    rows = {}
    for name, found in columns.items():
        if name == LOST:
            rows[name] = one_each(np.where(first > 0, found.flat[record], 0))
        elif name != ROW_LENGTHS.name:
            rows[name] = found.take(record) if schema[name].metadata else Ragged(found.flat, offsets)
    return rows


@step
def add_metadata(batch: Batch, provenance: bool = False) -> Batch:
    """Adds a metadata column for each field of `keep_fields`; none without `keep_fields`.

    Rows with a value that cannot be carried are rejected (`keep_fields`).

    Args:
        batch: the rows.
        provenance: also adds `FILE` and `OFFSET`, counted from the block's first line.
    """
    metadata = batch.ledger.metadata
    if metadata is not None:
        lines = enumerate(batch.line.tolist())
        wrong = {row: ("keep_fields", why) for row, line in lines if (why := metadata.problems.get(line))}
        batch = batch.reject_each(wrong)
        columns = {column.name: metadata.values[column.name].take(batch.line) for column in metadata.columns}
        schema = {column.name: column for column in metadata.columns}
        batch = batch._with(columns={**batch.columns, **columns}, schema={**batch.schema, **schema})
        batch.count(MISSING, metadata.missing[batch.line])
    if provenance:
        offsets = one_each(batch.ledger.offsets(batch.line))
        batch = batch.assign(FILE, one_each(np.zeros(len(batch), np.int32))).assign(OFFSET, offsets)
    return batch


@step
def finalize_columns(batch: Batch, rows_without_loss: RowsWithoutLoss, dtypes: Mapping[str, str]) -> Batch:
    """The last step before rows are stored: drops pairs with equal sides and rows without loss, then casts the columns.

    It counts the rows that the ledger marks.

    Raises:
        ValueError: a mask, labels or weights (of a step of the user's) do not have a value for each token; or see
            `check_masked`.
    """
    check_masked(batch)
    for name, column in batch.schema.items():
        rows, ids = batch[name], batch.columns.get(column.of or "")
        if ids is not None and not _aligned(rows, ids):
            wrong = np.flatnonzero(rows.lengths != ids.lengths)[:1].tolist()
            first = f", the first at {batch.where(wrong[0])}" if wrong else ""
            raise ValueError(f"rows of {name!r} are not as long as those of {column.of!r}{first}")
    stored = store_as(drop_rows_without_loss(reject_equal_sides(batch), rows_without_loss), dtypes)
    if notes := stored.ledger.notes:
        stored.count(CONTAMINATED, np.isin(stored.line, list(notes)), once=True)
    return stored


def _aligned(rows: Any, ids: Any) -> bool:
    """Whether rows have a value for each token."""
    if not isinstance(rows, Ragged) or not isinstance(ids, Ragged):
        return type(rows) is type(ids)
    return np.array_equal(rows.offsets, ids.offsets) and _aligned(rows.values, ids.values)


def store_as(batch: Batch, dtypes: Mapping[str, str]) -> Batch:
    """Casts every column to its dtype in `dtypes`, else to the dtype of its schema.

    Rows with a number that its dtype cannot hold are rejected (`bad_number`), and fractions in integer columns, too.

    Raises:
        ValueError: a token id (or a label) does not fit its dtype.
    """
    columns, schema = {}, {}
    for name, column in batch.schema.items():
        dtype = dtypes.get(name, column.dtype)
        rows = batch[name]
        flat, fits = _cast(rows.flat, dtype)
        if not fits.all():
            if column.role not in ("value", "token_value"):
                advice = "" if dtype.startswith("float") else ": use int32"
                raise ValueError(f"column {name!r} holds {rows.flat[~fits][0]}, which does not fit {dtype}{advice}")
            message = f"a number does not fit the dtype of its column: {name} ({dtype})"
            return store_as(batch.reject(rows.sums(~fits) > 0, "bad_number", message), dtypes)
        columns[name], schema[name] = rows.with_flat(flat), replace(column, dtype=dtype)
    return batch._with(columns=columns, schema=schema)


def _cast(values: Array, dtype: str) -> tuple[Array, Array]:
    """(values in `dtype`, bool: which values fit). A bool column is stored as uint8, as Arrow would pack bits."""
    target = np.dtype(np.uint8 if dtype == "bool" else dtype)
    if values.dtype == target:
        return values, np.ones(1, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(target)
    return cast, np.isfinite(cast) if target.kind == "f" else np.asarray(cast == values)


Rows = Mapping[str, Ragged]
Stats = MutableMapping[str, Counter[str]]
"""Kind (`turns`, `chunks`, `packing`) -> counts, which can be added."""

CUT = "truncated_to_pack"
"""The counter of tokens that were cut because their row is longer than a packed row."""

LOST = " cut"
"""The column with that counter, beside the columns of a shard's rows. No column of an output begins with a blank."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a shard are packed, padded and named before they are written.

    >>> layout = bp.Layout("bfd", capacity=8, position_ids="doc_reset")
    >>> columns = layout.columns([bp.Column("sequence", "int32", 1, "ids")])
    >>> rows = {"sequence": bp.Ragged.from_lists([[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11]])}
    >>> packed, stats = next(layout.rows([rows], columns))
    >>> packed["sequence"].to_lists(), packed["seq_lens"].to_lists()
    ([[1, 2, 3, 4, 5, 10, 11], [6, 7, 8, 9]], [[5, 2], [4]])
    >>> packed["position_ids"].to_lists()
    [[0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3]]

    Attributes:
        packing: see `plan_packs`; `none`: one document a row.
        capacity: tokens of a packed row.
        group: how many consecutive rows of the shard are packed together. Rows are grouped in input order, so the
            result depends on neither workers nor blocks.
        position_ids: see `pack_columns`.
        dtype: column -> dtype, if not the default.
        names: column -> the name under which it is written, if it differs.
        truncation_mode: what `simple` and `bfd` do with a row of more than `capacity` tokens: see `truncate`.
        padding: pads each row, and adds an `attention_mask`; None: no padding. Not with packing.
        chunking: cuts rows into chunks before they are packed or padded; then `fit` cuts no row. None: no chunks.
        provenance: adds columns with file and offset of each row's line, see `add_metadata`.

    Raises:
        ValueError: a value is not one of those allowed, or there is both packing and padding.
    """

    packing: pack.Packing = "none"
    capacity: int = 2048
    group: int = 5000
    position_ids: pack.Positions = "none"
    dtype: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    truncation_mode: TruncationMode = "keep_start"
    padding: Padding | None = None
    chunking: Chunking | None = None
    provenance: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        check_least(1, capacity=self.capacity, group=self.group)
        if self.padding is not None and self.packing != "none":
            raise ValueError(f"padding is {self.padding} beside packing {self.packing!r}, wanted one of them")

    @property
    def cuts(self) -> bool:
        """True if `fit` cuts or drops rows."""
        return pack.cuts_rows(self.packing) and self.chunking is None

    def fit(self, batch: Batch, eos_id: int | None = None) -> Batch:
        """Cuts rows to the length of a packed row. It runs before the plan, which depends on the lengths of rows.

        It counts what `truncate` counts, and `truncated_to_pack`: the tokens that it cut.

        Raises:
            RunError: a row is longer than `capacity`, and the mode is `error`.
        """
        if not self.cuts:
            return batch
        before = batch.counters.get(CUT_TOKENS, np.zeros(len(batch), np.int64))
        fitting = truncate(batch, self.capacity, self.truncation_mode, eos_id, "max_packed_len")
        if fitting is not batch and self.truncation_mode in ("keep_start", "keep_end"):
            fitting.count(CUT, fitting.counters[CUT_TOKENS] - before)
        return fitting

    def cached(self, batch: Batch, eos_id: int | None, rows_without_loss: RowsWithoutLoss) -> Batch:
        """The rows that the token cache holds: cut to the length of a packed row (`fit`), then finalized.

        Metadata columns are added last (see `add_metadata`).
        """
        rows = finalize_columns(self.fit(batch, eos_id), rows_without_loss, self.dtype)
        return add_metadata(rows if rows.row is None else join_rows(rows), self.provenance)

    def tokens(self, batch: Batch) -> Array:
        """int64 [rows]: the tokens of each row in a shard, with padding and with the tokens that chunks repeat."""
        lengths, row = lengths_of(batch.columns, batch.tokens)
        if self.chunking is not None:
            lengths, of = self.chunking.lengths(lengths)
            row = row[of]
        padded = lengths if self.padding is None else self.padding.lengths(lengths)
        return np.bincount(row, padded, len(batch)).astype(np.int64)

    def columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns that are written, with the names under which they are written.

        Raises:
            ValueError: rows are lists of lists: they cannot be packed, padded or given position ids.
            ConfigError: `names` or `dtype` has a column that is not written, or `names` a name that is not allowed.
        """
        added, packed = [], self.packing != "none"
        metadata = [replace(column, depth=int(packed)) for column in columns if column.metadata]
        columns = [column for column in columns if not column.metadata and column.name != ROW_LENGTHS.name]
        if self.padding is not None:
            self.padding.check({column.name: column for column in columns})
            added.append(Column(ATTENTION_MASK, self.dtype.get(ATTENTION_MASK, "int32"), 1, "attention"))
        of = next((column.name for column in columns if column.role == "ids"), None)
        if self.position_ids != "none":
            added.append(Column(pack.POSITION_IDS, self.dtype.get(pack.POSITION_IDS, "int32"), 1, "position", of))
        if packed:
            added.append(Column(pack.SEQ_LENS, self.dtype.get(pack.SEQ_LENS, "int32"), 1, "lengths", of))
        if (added or self.chunking is not None) and not all(column.of_tokens for column in columns):
            raise ValueError("rows of lists or values cannot be packed or cut into chunks, nor have position ids")
        if taken := {column.name for column in columns} & {column.name for column in added}:
            raise ValueError(f"columns named {', '.join(sorted(taken))} are added: rename yours")
        written = (*columns, *added, *metadata)
        names = [column.name for column in written if not is_role_column(column)]  # these have no file
        self.check_names(names)
        if unknown := [name for name in self.dtype if name not in names]:
            raise ConfigError(f"dtype: found {unknown[0]!r}, which is not written; columns here: {', '.join(names)}")
        return tuple(
            replace(column, name=self._name(column.name), of=column.of and self._name(column.of)) for column in written
        )

    def check_names(self, columns: Sequence[str]) -> None:
        """Raises ConfigError if `names` has a column that is not in `columns`, or a column has no name for a file."""
        names = {column: column for column in columns} | dict(self.names)
        if problems := list(name_problems(names, columns)):
            raise ConfigError("\n".join(f"names: {column}: {text}" for column, text in problems))

    def _name(self, column: str) -> str:
        return self.names.get(column, column)

    def rows(self, parts: Iterable[Rows], columns: Sequence[Column]) -> Iterator[tuple[Rows, Stats]]:
        """The rows to write, and statistics of `turns`, `chunks` and `packing`, group by group.

        Args:
            parts: the shard's rows in order, with `LOST` if `fit` cut any.
            columns: the columns to write, see `columns`.
        """
        schema = {column.name: column for column in columns}
        stats: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for found in self._filled(self._cut(parts, schema, stats), schema, stats):
            rows = {self._name(name): values for name, values in found.items()}
            if self.packing != "none":
                stats["packing"]["packs_untrained"] += _untrained(columns, rows)
            yield rows, dict(stats)
            stats.clear()

    def _cut(self, parts: Iterable[Rows], schema: Mapping[str, Column], stats: Stats) -> Iterator[Rows]:
        """Splits records into their rows (turns apart), and rows into chunks. Columns get their new names."""
        for part in parts:
            rows: Rows = {self._name(name): values for name, values in part.items() if name != LOST or self.cuts}
            if ROW_LENGTHS.name in rows:
                records = len(rows[ROW_LENGTHS.name])
                rows = split_rows(rows, schema)
                stats["turns"].update(rows=records, turns=_count(rows))
            if self.chunking is not None:
                rows, counts = self.chunking.rows(rows, schema)
                stats["chunks"].update(counts)
            yield rows

    def _filled(self, parts: Iterable[Rows], schema: Mapping[str, Column], stats: Stats) -> Iterator[Rows]:
        """Packs or pads rows. Columns that are added have the names before renaming."""
        if self.packing != "none":
            for rows in _groups(parts, self.group):
                lost = rows.pop(LOST, None)
                lengths, cut = next(iter(rows.values())).lengths, None if lost is None else lost.flat
                plan = pack.plan_packs(lengths, self.packing, self.capacity, cut)
                stats["packing"].update(plan.stats)
                yield pack.pack_columns(rows, plan, self.position_ids, [name for name in rows if schema[name].metadata])
            return
        for part in parts:
            padded = [part] if self.padding is None else self.padding.in_parts(part, schema)
            yield from padded if self.position_ids == "none" else map(_with_positions, padded)


def _count(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _untrained(columns: Sequence[Column], rows: Rows) -> int:
    """The number of rows without a trained token. Without masks or labels, all tokens are trained."""
    trained = [counts > 0 for counts in trained_tokens(columns, rows).values()]
    return int(np.count_nonzero(~np.all(trained, axis=0))) if trained else 0


def _with_positions(part: Rows) -> Rows:
    rows = next(iter(part.values()))
    return {**part, pack.POSITION_IDS: rows.with_flat(pack.positions(rows.lengths))}


def _groups(parts: Iterable[Rows], size: int) -> Iterator[dict[str, Ragged]]:
    """Regroups rows into groups of `size` rows. The last group may be smaller."""
    held: list[Rows] = []
    count = 0
    for part in parts:
        rows, start = _count(part), 0
        while start < rows:
            stop = min(rows, start + size - count)
            held.append({name: values[start:stop] for name, values in part.items()})
            count, start = count + stop - start, stop
            if count == size:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: Sequence[Rows]) -> dict[str, Ragged]:
    return {name: Ragged.concat([part[name] for part in parts]) for name in parts[0]}
