"""Reads the rows of a shard, counts them, and checks whether a run could have written them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.formats import ShardReader
from beam_prep.formats.contract import Row, joined
from beam_prep.formats.flat import FlatReader
from beam_prep.formats.manifest import MANIFEST, ShardReceipt, count_tokens

VALUES_AT_ONCE = 1 << 20
"""Values, over all columns, that are read at a time; a larger row is read alone."""

_ALIGNED = ("mask", "labels", "weights", "token_value", "attention", "position")
"""Roles of columns with a value for each id."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the rows of an output. None: not known, for instance for a chain written by hand.

    Attributes:
        max_id: the largest id of the tokenizer.
        tokens: most tokens of a sequence, or of a document in a packed row.
        packed: most tokens of a packed row.
    """

    max_id: int | None
    tokens: int | None
    packed: int | None


def limits_of(manifest: Mapping[str, Any], max_id: int | None) -> Limits:
    """The limits of rows by the config in a manifest; `max_id`: the largest id of the tokenizer."""
    if "config" not in manifest:
        return Limits(max_id, None, None)
    rules = manifest["config"]["preprocessing"]
    longest, packing = rules["max_seq_len"], rules["packing_strategy"]
    return Limits(max_id, longest, None if packing == "none" else rules["max_packed_len"] or longest)


class Wrong(NamedTuple):
    """Rows with the same problem.

    Attributes:
        rows: int64 [wrong], the numbers of the rows, ascending.
        text: the problem; `{}` stands for a value of the row.
        shown: an array [wrong] of values for each `{}`.
    """

    rows: Array
    text: str
    shown: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a shard.

    Attributes:
        part: column -> these rows.
        columns: the columns.
        limits: the limits of rows.
    """

    part: Mapping[str, Ragged]
    columns: Sequence[Column]
    limits: Limits

    def of(self, *roles: str) -> Iterator[tuple[Column, Ragged]]:
        """(column, its rows) of the columns with these roles."""
        return ((column, self.part[column.name]) for column in self.columns if column.role in roles)

    def ids_of(self, column: Column) -> str | None:
        """The name of the column of ids that a column belongs to; None if there is none."""
        return column.of or next((each.name for each, _ in self.of("ids")), None)

    def documents(self, ids: str) -> tuple[Array, Array]:
        """int64 [documents] each: length and row of every sequence in a column of ids. Sequences are the lists of
        lists of lists, the documents of packed rows, or the rows without padding.
        """
        rows = self.part[ids]
        numbers = np.arange(len(rows))
        if isinstance(rows.values, Ragged):
            return rows.values.lengths, np.repeat(numbers, rows.lengths)
        for column, lengths in self.of("lengths"):
            if self.ids_of(column) == ids:
                return lengths.flat.astype(np.int64), np.repeat(numbers, lengths.lengths)
        for column, attention in self.of("attention"):
            if self.ids_of(column) == ids and np.array_equal(attention.offsets, rows.offsets):
                return attention.sums(_bytes(attention.flat)), numbers
        return rows.lengths, numbers


def ids_in_vocabulary(rows: Rows) -> Iterator[Wrong]:
    """Ids are from 0 to the largest id of the tokenizer; a label may also be -100."""
    most = rows.limits.max_id
    for column, values in rows.of("ids", "labels"):
        found = values.flat
        wrong = (found < 0) | (False if most is None else found > most)
        if column.role == "labels":
            wrong &= found != IGNORE_INDEX
        also = f"{IGNORE_INDEX} or " if column.role == "labels" else ""
        wanted = f"{also}ids from 0 to {'any' if most is None else most}"
        yield _values(values, wrong, f"of {column.name!r} holds {{}}, wanted {wanted}")


def masks_are_bits(rows: Rows) -> Iterator[Wrong]:
    """Masks are 0 or 1."""
    for column, values in rows.of("mask", "attention"):
        found = values.with_flat(_bytes(values.flat))
        yield _values(found, (found.flat != 0) & (found.flat != 1), f"of {column.name!r} holds {{}}, wanted 0 or 1")


def labels_are_ids(rows: Rows) -> Iterator[Wrong]:
    """A label is -100 or the id at its position; if labels are shifted, the next id within its document."""
    for column, labels in rows.of("labels"):
        ids = rows.part[str(rows.ids_of(column))]
        if not np.array_equal(labels.flat_lengths, ids.flat_lengths):
            continue  # `columns_are_aligned` reports it
        wanted, where = ids.flat, "at its place"
        wrong = labels.flat != IGNORE_INDEX
        if column.shifted:
            wanted, where = np.append(wanted[1:], 0), "after its place"
            lengths, row = rows.documents(str(rows.ids_of(column)))
            ends = np.cumsum(lengths) if lengths.sum() == len(wanted) else ids.offsets[row] + lengths
            wrong[ends[(ends > 0) & (ends <= len(wrong))] - 1] = False  # the next token is in another document
        wrong &= labels.flat != wanted
        yield _values(labels, wrong, f"of {column.name!r} holds {{}}, wanted {IGNORE_INDEX} or the id {where}")


def columns_are_aligned(rows: Rows) -> Iterator[Wrong]:
    """Masks, labels, weights, positions have a value for each id, row by row, list by list."""
    for column, found in rows.of(*_ALIGNED):
        if (ids := rows.ids_of(column)) is None:
            continue
        wanted = rows.part[ids]
        lengths = found.flat_lengths, wanted.flat_lengths
        wrong = np.flatnonzero((lengths[0] != lengths[1]) | (found.lengths != wanted.lengths))
        text = f"has {{}} and {{}} values of {column.name!r} and {ids!r}, wanted as many of each"
        yield Wrong(wrong, text, tuple(each[wrong] for each in lengths))
        if not len(wrong) and isinstance(found.values, Ragged) and isinstance(wanted.values, Ragged):
            lists = np.flatnonzero(found.values.lengths != wanted.values.lengths)
            text = f"has lists of {column.name!r} of other lengths than those of {ids!r}"
            yield Wrong(np.unique(np.searchsorted(found.offsets, lists, "right") - 1), text)


def documents_add_up(rows: Rows) -> Iterator[Wrong]:
    """The lengths of documents are above 0 and add up to their packed row; each document has its metadata."""
    for column, lengths in rows.of("lengths"):
        ids = rows.part[str(rows.ids_of(column))]
        yield _values(lengths, lengths.flat <= 0, f"of {column.name!r} holds {{}}, wanted lengths above 0")
        sums = lengths.sums(lengths.flat)
        wrong = np.flatnonzero(sums != ids.lengths)
        text = f"of {column.name!r} adds up to {{}} tokens, wanted {{}}"
        yield Wrong(wrong, text, (sums[wrong], ids.lengths[wrong]))
        for other, values in rows.of("string", "number", "file", "offset"):
            wrong = np.flatnonzero(values.lengths != lengths.lengths)
            text = f"has {{}} of {other.name!r} for {{}} documents, wanted one each"
            yield Wrong(wrong, text, (values.lengths[wrong], lengths.lengths[wrong]))


def positions_count(rows: Rows) -> Iterator[Wrong]:
    """Positions count from 0, in every document or through the row."""
    for column, positions in rows.of("position"):
        borders = [positions.offsets]
        for _, lengths in rows.of("lengths"):
            if lengths.flat.min(initial=0) >= 0 and np.array_equal(lengths.sums(lengths.flat), positions.lengths):
                borders.append(offsets_of(lengths.flat))
        wrong = [_not_counted(positions.flat, each) for each in borders]
        if all(each.any() for each in wrong):
            text = f"of {column.name!r} holds {{}} at the wrong place, wanted 0, 1, 2 ... in every document or row"
            yield _values(positions, wrong[-1], text)


def lengths_in_limits(rows: Rows) -> Iterator[Wrong]:
    """No sequence has more tokens than `max_seq_len`, no packed row more than `max_packed_len`."""
    most, packed = rows.limits.tokens, rows.limits.packed
    for column, ids in rows.of("ids"):
        if most is not None:
            lengths, row = rows.documents(column.name)
            wrong = np.flatnonzero(lengths > most)
            text = f"of {column.name!r} has a sequence of {{}} tokens, wanted at most {most}"
            yield Wrong(row[wrong], text, (lengths[wrong],))
        if packed is not None:
            wrong = np.flatnonzero(ids.lengths > packed)
            yield Wrong(wrong, f"has {{}} tokens, wanted at most {packed}", (ids.lengths[wrong],))


def _values(rows: Ragged, wrong: Array, text: str) -> Wrong:
    """The rows with wrong values, and the first of each; `wrong`: bool, for each innermost value of `rows`."""
    places = np.flatnonzero(wrong)
    borders = rows.values.offsets[rows.offsets] if isinstance(rows.values, Ragged) else rows.offsets
    numbers, first = np.unique(np.searchsorted(borders, places, "right") - 1, return_index=True)
    return Wrong(numbers, text, (rows.flat[places[first]],))


def _bytes(values: Array) -> Array:
    """Bools as their bytes: a file may hold other bytes than 0 and 1."""
    return values.view(np.uint8) if values.dtype == bool else values


def _not_counted(values: Array, borders: Array) -> Array:
    """bool: where values do not count 0, 1, 2 ... from each border."""
    starts = np.repeat(borders[:-1], np.diff(borders))
    found: Array = values != np.arange(len(values)) - starts
    return found


@dataclass(slots=True)
class FoundShard:
    """The counts and problems of a shard, from the reader of a format.

    Attributes:
        rows: the number of rows.
        tokens, trained: see `ShardReceipt`.
        untrained: rows that lack a trained token in a column of masks or labels.
        documents: the number of documents in packed rows.
        wrong: problem -> (number of rows, text for the first row).
    """

    rows: int = 0
    untrained: int = 0
    documents: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, rows: Rows, checks: Sequence[Callable[[Rows], Iterator[Wrong]]]) -> None:
        """Counts and checks the next rows."""
        counts = count_tokens(rows.columns, rows.part)
        self.tokens.update(counts["tokens"])
        self.trained.update(counts["trained"])
        nothing = {"mask": 0, "labels": IGNORE_INDEX}
        trained = [values.sums(values.flat != nothing[column.role]) for column, values in rows.of(*nothing)]
        if trained:
            self.untrained += int(np.count_nonzero(np.any([each == 0 for each in trained], axis=0)))
        self.documents += sum(len(lengths.flat) for _, lengths in rows.of("lengths"))
        for check in checks:
            for found in check(rows):
                if len(found.rows):
                    first = f"row {self.rows + found.rows[0]} {found.text.format(*(each[0] for each in found.shown))}"
                    count, text = self.wrong.get(found.text, (0, first))
                    self.wrong[found.text] = count + len(np.unique(found.rows)), text
        self.rows += len(next(iter(rows.part.values())))


def counts_are_listed(found: FoundShard, shard: ShardReceipt) -> Iterator[str]:
    """The numbers of rows, tokens, trained tokens and documents of a shard are as the manifest says."""
    if found.rows != shard.rows:
        yield f"found {found.rows} rows, {MANIFEST} says {shard.rows}"
    for kind, counts, listed in (("tokens", found.tokens, shard.tokens), ("trained", found.trained, shard.trained)):
        for column, count in counts.items():
            if count != listed.get(column):
                yield f"found {kind} {count} of {column!r}, {MANIFEST} says {listed.get(column)}"
    if (packing := shard.packing) is not None:
        if found.untrained != (untrained := packing.get("packs_untrained", found.untrained)):
            yield f"found {found.untrained} packed rows without a trained token, {MANIFEST} says {untrained}"
        filled, split = packing["rows"] - packing["rows_empty"], packing["rows_split"]
        if not filled + split <= found.documents or (not split and found.documents != filled):
            said = f"{MANIFEST} says {filled} rows with tokens, of which {split} are split"
            yield f"found {found.documents} documents in packed rows, {said}"


def rows_are_possible(found: FoundShard, shard: ShardReceipt) -> Iterator[str]:
    """The checks of rows find no problem. Reports the first row of each problem, and the number of rows."""
    for count, text in found.wrong.values():
        yield text if count == 1 else f"{text} ({count} rows)"


def parts_of(reader: ShardReader, columns: Sequence[Column]) -> Iterator[dict[str, Ragged]]:
    """All rows in order, some at a time.

    Raises:
        FormatError: a row is damaged.
    """
    if isinstance(reader, FlatReader):  # its columns are arrays
        ends = offsets_of(reader.sizes())
        start = 0
        while start < len(reader):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + VALUES_AT_ONCE, "right")) - 1)
            yield reader.rows(start, stop)
            start = stop
        return
    held: list[Row] = []
    size, last = 0, len(reader) - 1
    for number in range(len(reader)):
        held.append(reader.row(number))
        size += sum(len(values.flat if isinstance(values, Ragged) else values) for values in held[-1].values())
        if size >= VALUES_AT_ONCE or number == last:
            yield {each.name: joined([row[each.name] for row in held], each.dtype, each.levels) for each in columns}
            held, size = [], 0
