"""Rows that are given as columns, and that no template renders: texts and numbers."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from beam_prep.core.data.columns import Columns, Texts, array_of, end_with, lists_of, rows_without, sizes
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.pieces.builder import BulkPieces
from beam_prep.core.pieces.collector import ACTIONS, TextCollector
from beam_prep.core.pieces.rendered import WHOLE, Segment
from beam_prep.core.pieces.values import ValueCollector
from beam_prep.core.reading.rollouts import LARGEST_EXACT


def doubtful(texts: TextCollector, columns: Columns) -> Array:
    """bool [rows]: a text may hold a control token."""
    guard = texts.guard
    if guard.rule == "keep" or not guard.controls:
        return np.zeros(len(columns), bool)
    return columns.rows_with(re.compile(b"|".join([re.escape(text.encode()) for text in guard.controls])))


_NO_ROLES = np.zeros(0, np.int64)


class Sections:
    """Texts that no template renders, one of each section: a piece each, unless it is empty.

    Args:
        columns: an entry a section.
        texts: collects them.
    """

    counts: Array | None = None

    def __init__(self, columns: Sequence[Columns], texts: TextCollector) -> None:
        self._columns, self._texts = columns, texts

    def takes(self, rows: Array) -> Array:
        eos, some = self._texts.voice.rules.eos, np.zeros(len(rows), bool)
        for each in self._columns:
            rows = rows & each.plain & ~doubtful(self._texts, each)
            filled = sizes(each.text) > 0
            some |= filled
            if eos == "never":
                begins, _ = each.ends()
                rows &= begins | ~filled  # else it may be blank, which counts as empty
        return rows & some if eos == "never" else rows

    def add(self, rows: Array) -> int:
        sections, voice = self._texts.output.sections, self._texts.voice
        columns = self._columns
        if len(rows) < len(columns[0]):
            columns = [each.take(rows) for each in columns]
        texts = [each.text for each in columns]
        if voice.rules.eos != "never":
            texts[-1] = end_with(texts[-1], voice.eos, voice.rules.eos == "always")
        filled = np.column_stack([sizes(each) > 0 for each in texts])
        special = filled & (np.cumsum(filled, axis=1) == 1)  # of the first that yields anything
        for place, section in enumerate(sections):
            if section.add_special_tokens is not None:
                special[:, place] = section.add_special_tokens
        segments = np.array([Segment(*WHOLE, ACTIONS[section.action]) for section in sections], np.int64)
        text, whole = texts[0], len(texts) == 1 and filled.all()
        if not whole:
            numbers = np.arange(len(rows))[:, None] + len(rows) * np.arange(len(texts))
            text = Texts(pa.concat_arrays([each.array for each in texts]).take(pa.array(numbers[filled])))
        self._texts.add_in_bulk(
            BulkPieces(
                text,
                special[filled],
                Ragged(_NO_ROLES, np.zeros(len(text) + 1, np.int64)),
                segments=segments[np.nonzero(filled)[1]],
                sequences=None if whole else filled.sum(axis=1),
            )
        )
        return 0  # they do not grow


class Lists:
    """Lists of texts that no template renders: a sequence and a piece each."""

    def __init__(self, columns: Columns, texts: TextCollector) -> None:
        self._columns, self._texts = columns, texts
        self.counts: Array | None = np.diff(columns.offsets)

    def takes(self, rows: Array) -> Array:
        columns = self._columns
        begins, _ = columns.ends()  # else a text may be blank, which is a sequence of nothing
        rows = rows & columns.plain & ~doubtful(self._texts, columns) & (np.diff(columns.offsets) > 0)
        found: Array = rows & rows_without(~begins, columns.offsets)
        return found

    def add(self, rows: Array) -> int:
        (section,) = self._texts.output.sections
        columns = self._columns
        if len(rows) < len(columns):
            columns = columns.take(rows)
        count = len(columns.text)
        self._texts.add_in_bulk(
            BulkPieces(
                columns.text,
                np.full(count, bool(section.add_special_tokens)),
                Ragged(_NO_ROLES, np.zeros(count + 1, np.int64)),
                segments=np.tile(np.array(Segment(*WHOLE, ACTIONS[section.action]), np.int64), (count, 1)),
                rows=np.diff(columns.offsets),
            )
        )
        return 0


def values_of(columns: Columns, values: ValueCollector) -> "Values | None":
    name = values.field
    if name not in columns.table.column_names:
        return None
    array = array_of(columns.table[name])
    if array.type == pa.float64():
        return Values(array, np.arange(len(array) + 1), None, values)
    if array.type == pa.list_(pa.float64()):
        borders = lists_of(array)
        return Values(array.flatten(), borders, np.diff(borders), values)
    return None


class Values:
    """Numbers.

    Args:
        numbers: float64.
        borders: int64 [rows + 1], of rows.
        counts: see `Part`.
        values: collects them.
    """

    def __init__(self, numbers: pa.DoubleArray, borders: Array, counts: Array | None, values: ValueCollector) -> None:
        self._borders, self.counts, self._values = borders, counts, values
        self._null = np.asarray(numbers.is_null())
        self._numbers = numbers.to_numpy(zero_copy_only=False)

    def takes(self, rows: Array) -> Array:
        # An integer may be none of these doubles, and -0 is 0 as one.
        unclear = self._null | (np.abs(self._numbers) >= LARGEST_EXACT)
        unclear |= (self._numbers == 0) & np.signbit(self._numbers)
        return rows & rows_without(unclear, self._borders) & (np.diff(self._borders) > 0)

    def add(self, rows: Array) -> int:
        self._values.add_in_bulk(Ragged(self._numbers, self._borders).take(rows))
        return 0
