"""The layout of a shard: packing, padding, position ids, names of columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.metadata import FILE, MISSING, OFFSET, one_each
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import IGNORE_INDEX, Column, Packing, name_problems
from beam_prep.errors import ConfigError
from beam_prep.reading.records import CONTAMINATED
from beam_prep.shards.chunk import ROW_LENGTHS, Chunking, join_rows, lengths_of, split_rows
from beam_prep.shards.pack import (
    POSITION_IDS,
    SEQ_LENS,
    PackStats,
    Positions,
    Stats,
    cuts_rows,
    pack_columns,
    plan_packs,
)
from beam_prep.tokens.batch import CUT_TOKENS, Batch
from beam_prep.tokens.mask import RowsWithoutLoss, drop_rows_without_loss, reject_equal_sides
from beam_prep.tokens.rows import ATTENTION_MASK, Padding, TruncationMode, truncate


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
    """
    stored = store_as(drop_rows_without_loss(reject_equal_sides(batch), rows_without_loss), dtypes)
    if notes := stored.ledger.notes:
        stored.count(CONTAMINATED, np.isin(stored.line, list(notes)), once=True)
    return stored


def store_as(batch: Batch, dtypes: Mapping[str, str]) -> Batch:
    """Casts every column to its dtype in `dtypes`, else to the dtype of its schema.

    Rows with a number that its dtype cannot hold are rejected (`bad_number`), and fractions in integer columns, too.

    Raises:
        ValueError: a token id (or a label) does not fit its dtype.
    """
    lost = np.zeros(len(batch), bool)
    columns, schema = {}, {}
    for name, column in batch.schema.items():
        dtype = dtypes.get(name, column.dtype)
        rows = batch[name]
        flat, fits = _cast(rows.flat, dtype)
        if not fits.all():
            if column.role not in ("value", "token_value"):
                raise ValueError(f"column {name!r} holds {rows.flat[~fits][0]}, which does not fit {dtype}: use int32")
            lost |= rows.sums(~fits) > 0
        columns[name], schema[name] = rows.with_flat(flat), replace(column, dtype=dtype)
    stored = batch._with(columns=columns, schema=schema)
    return stored.reject(lost, "bad_number", "a number does not fit the dtype of its column") if lost.any() else stored


def _cast(values: Array, dtype: str) -> tuple[Array, Array]:
    """(values in `dtype`, bool: which values fit). A bool column is stored as uint8, as Arrow would pack bits."""
    target = np.dtype(np.uint8 if dtype == "bool" else dtype)
    if values.dtype == target:
        return values, np.ones(1, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(target)
    return cast, np.isfinite(cast) if target.kind == "f" else np.asarray(cast == values)


Rows = Mapping[str, Ragged]

CUT = "truncated_to_pack"
"""The counter of tokens that were cut because their row is longer than a packed row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a shard are packed, padded and named before they are written.

    >>> layout = bp.Layout("bfd", capacity=8, position_ids="doc_reset")
    >>> columns = layout.columns([bp.Column("sequence", "int32", 1, "ids")])
    >>> rows = {"sequence": bp.Ragged.from_lists([[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11]])}
    >>> packed, stats = next(layout.rows([(rows, None)], columns))
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
        dtype: column -> dtype, for columns that are added here; int32 by default.
        names: column -> the name under which it is written, if it differs.
        truncation_mode: what `simple` and `bfd` do with a row of more than `capacity` tokens: see `truncate`.
        padding: pads each row, and adds an `attention_mask`; None: no padding. Not with packing.
        chunking: cuts rows into chunks before they are packed or padded; then `fit` cuts no row. None: no chunks.
        provenance: adds columns with file and offset of each row's line, see `add_metadata`.

    Raises:
        ValueError: a value is not one of those allowed, or there is both packing and padding.
    """

    packing: Packing = "none"
    capacity: int = 2048
    group: int = 5000
    position_ids: Positions = "none"
    dtype: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    truncation_mode: TruncationMode = "keep_start"
    padding: Padding | None = None
    chunking: Chunking | None = None
    provenance: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("packing", Packing), ("position_ids", Positions), ("truncation_mode", TruncationMode)):
            if (value := getattr(self, name)) not in (known := get_args(kind)):
                raise ValueError(f"{name} is {value!r}, wanted one of {', '.join(known)}")
        for name in ("capacity", "group"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}, wanted at least 1")
        if self.padding is not None and self.packing != "none":
            raise ValueError(f"padding is {self.padding} beside packing {self.packing!r}, wanted one of them")

    @property
    def cuts(self) -> bool:
        """True if `fit` cuts or drops rows."""
        return cuts_rows(self.packing) and self.chunking is None

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

    def cached(
        self, batch: Batch, eos_id: int | None, rows_without_loss: RowsWithoutLoss, dtype: Mapping[str, str]
    ) -> Batch:
        """The rows that the token cache holds: cut to the length of a packed row (`fit`), then finalized.

        Metadata columns are added last (see `add_metadata`).
        """
        rows = finalize_columns(self.fit(batch, eos_id), rows_without_loss, dtype)
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
            ConfigError: `names` has a column that is not written, or gives a column a name that is not allowed.
        """
        added, packed = [], self.packing != "none"
        metadata = [replace(column, depth=int(packed)) for column in columns if column.metadata]
        columns = [column for column in columns if not column.metadata and column.name != ROW_LENGTHS.name]
        if self.chunking is not None and not all(column.of_tokens for column in columns):
            raise ValueError("rows of lists or values cannot be cut into chunks")
        if self.padding is not None:
            self.padding.check({column.name: column for column in columns})
            added.append(Column(ATTENTION_MASK, self.dtype.get(ATTENTION_MASK, "int32"), 1, "attention"))
        of = next((column.name for column in columns if column.role == "ids"), None)
        if self.position_ids != "none":
            added.append(Column(POSITION_IDS, self.dtype.get(POSITION_IDS, "int32"), 1, "position", of))
        if packed:
            added.append(Column(SEQ_LENS, self.dtype.get(SEQ_LENS, "int32"), 1, "lengths", of))
        if added and not all(column.of_tokens for column in columns):
            raise ValueError("rows of lists or values cannot be packed, nor have position ids")
        written = (*columns, *added, *metadata)
        self.check_names([column.name for column in written])
        return tuple(
            replace(column, name=self._name(column.name), of=column.of and self._name(column.of)) for column in written
        )

    def check_names(self, columns: Sequence[str]) -> None:
        """Raises ConfigError if `names` has a column that is not in `columns`, or a name that is not allowed."""
        if problems := list(name_problems(self.names, columns)):
            raise ConfigError("\n".join(f"names: {column}: {text}" for column, text in problems))

    def _name(self, column: str) -> str:
        return self.names.get(column, column)

    def rows(
        self, parts: Iterable[tuple[Rows, Array | None]], columns: Sequence[Column]
    ) -> Iterator[tuple[Rows, Sequence[Stats]]]:
        """The rows to write, and statistics of turns, chunks and packing, group by group.

        Args:
            parts: the shard's rows in order, and int64 [rows], the tokens that `fit` cut from each (None: none).
            columns: the columns to write, see `columns`.
        """
        written = {column.name: column for column in columns}
        made: list[Stats] = []
        for own, packed in self._rows(self._chunks(self._turns(parts, written, made), written, made), written):
            rows = {self._name(column): values for column, values in own.items()}
            found = [*made, *([replace(packed, packs_untrained=_untrained(columns, rows))] if packed else [])]
            made.clear()
            yield rows, found

    def _turns(
        self, parts: Iterable[tuple[Rows, Array | None]], written: Mapping[str, Column], found: list[Stats]
    ) -> Iterator[tuple[Rows, Array | None]]:
        """Splits records into their rows (turns apart). Appends statistics to `found`."""
        for part, cut in parts:
            if ROW_LENGTHS.name not in part:
                yield part, cut
                continue
            schema = {name: written[self._name(name)] for name in part if name != ROW_LENGTHS.name}
            rows, cut, stats = split_rows(part, schema, cut)
            found.append(stats)
            yield rows, cut

    def _chunks(
        self, parts: Iterable[tuple[Rows, Array | None]], written: Mapping[str, Column], found: list[Stats]
    ) -> Iterator[tuple[Rows, Array | None]]:
        """Cuts rows into chunks. Appends statistics to `found`."""
        if self.chunking is None:
            yield from parts
            return
        for part, _ in parts:
            chunks, stats = self.chunking.rows(part, {name: written[self._name(name)] for name in part})
            found.append(stats)
            yield chunks, None

    def _rows(
        self, parts: Iterable[tuple[Rows, Array | None]], written: Mapping[str, Column]
    ) -> Iterator[tuple[Rows, PackStats | None]]:
        """Packs or pads rows. Columns have their names before renaming."""
        if self.packing == "none":
            for part, _ in parts:
                for rows in self._padded(part, written):
                    yield (rows if self.position_ids == "none" else _with_positions(rows)), None
            return
        for group, cut in _groups(parts, self.group):
            lengths = next(iter(group.values())).lengths
            plan = plan_packs(lengths, self.packing, self.capacity, cut)
            metadata = [name for name in group if written[self._name(name)].metadata]
            yield pack_columns(group, plan, self.position_ids, metadata), plan.stats

    def _padded(self, part: Rows, written: Mapping[str, Column]) -> Iterable[Rows]:
        if self.padding is None:
            return [part]
        return self.padding.in_parts(part, {name: written[self._name(name)] for name in part})


def _untrained(columns: Sequence[Column], rows: Rows) -> int:
    """The number of rows without a trained token. Without masks or labels, all tokens are trained."""
    nothing = {"mask": 0, "labels": IGNORE_INDEX}
    trained = [rows[c.name].sums(rows[c.name].flat != nothing[c.role]) > 0 for c in columns if c.role in nothing]
    return int(np.count_nonzero(~np.all(trained, axis=0))) if trained else 0


def _with_positions(part: Rows) -> Rows:
    rows = next(iter(part.values()))
    places = np.arange(len(rows.flat)) - np.repeat(rows.offsets[:-1], rows.lengths)
    return {**part, POSITION_IDS: rows.with_flat(places.astype(np.int32))}


def _groups(parts: Iterable[tuple[Rows, Array | None]], size: int) -> Iterator[tuple[Rows, Array]]:
    """Regroups rows, and the tokens cut from each, into groups of `size` rows. The last group may be smaller."""
    held: list[tuple[Rows, Array]] = []
    count = 0
    for part, lost in parts:
        rows = len(next(iter(part.values())))
        cut = np.zeros(rows, np.int64) if lost is None else lost
        start = 0
        while count + rows - start >= size:
            stop = start + size - count
            yield _concat([*held, (_slice(part, start, stop), cut[start:stop])])
            held, count, start = [], 0, stop
        if start < rows:
            held.append((_slice(part, start, rows), cut[start:]))
            count += rows - start
    if held:
        yield _concat(held)


def _slice(part: Rows, start: int, stop: int) -> Rows:
    return {name: rows[start:stop] for name, rows in part.items()}


def _concat(parts: Sequence[tuple[Rows, Array]]) -> tuple[Rows, Array]:
    rows = {name: Ragged.concat([part[name] for part, _ in parts]) for name in parts[0][0]}
    return rows, np.concatenate([cut for _, cut in parts])
