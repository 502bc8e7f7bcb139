"""Rows that are given as columns: most are rendered all at once."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.core.data.columns import Columns, RecordKind, chained, have_none
from beam_prep.core.data.ragged import Array, offsets_of
from beam_prep.core.pieces.bulk_chats import Conversations, Messages
from beam_prep.core.pieces.bulk_plain import Lists, Sections, values_of
from beam_prep.core.pieces.checks import check_size
from beam_prep.core.pieces.collector import TextCollector
from beam_prep.core.pieces.implicit_prompt import prompt_field, sides_of, with_prompt
from beam_prep.core.pieces.rendered import DEFAULT_DOMAIN
from beam_prep.core.pieces.values import ValueCollector
from beam_prep.core.reading.records import MostLines, Record, Records


class Part(Protocol):
    """The rows of one output."""

    counts: Array | None
    """int64 [rows]: the elements of each; None: an output that has no lists."""

    def takes(self, rows: Array) -> Array:
        """bool [rows]: those of a bool mask that are taken all at once."""
        ...

    def add(self, rows: Array) -> int:
        """Adds some of these, by number, ascending; gives the characters of their texts."""
        ...


class Bulk:
    """Rows that are given as columns: most are taken all at once, the others one by one.

    Args:
        records: the rows.
        columns: the same as columns.
        parts: an entry an output.
    """

    def __init__(self, records: Records, columns: Columns, parts: Sequence[Part]) -> None:
        self._records, self._columns, self._parts = records, columns, parts
        self._rows: Array = np.zeros(0, np.int64)

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that are collected one by one, in order; `add` adds the rest after them."""
        taken = np.ones(len(self._columns), bool)
        for part in self._parts:
            taken &= part.takes(taken)
        counts = [part.counts for part in self._parts if part.counts is not None]
        for each in counts[1:]:
            taken &= each == counts[0]  # else it is rejected
        self._rows = np.flatnonzero(taken)
        for row in np.flatnonzero(~taken).tolist():
            yield int(self._records.line[row]), self._records.rows[row]

    def add(self) -> list[int]:
        """Adds the rest; gives their lines."""
        if len(self._rows):
            check_size(sum(part.add(self._rows) for part in self._parts), self._records)
        lines: list[int] = self._records.line[self._rows].tolist()
        return lines

    def domains(self, key: str | None) -> list[str]:
        """The domains of the rows that `add` added."""
        found = None if key is None else self._columns.strings(key)
        if found is None:
            return [DEFAULT_DOMAIN] * len(self._rows)
        return [DEFAULT_DOMAIN if (name := found[row]) is None else name for row in self._rows.tolist()]


def bulk_of(records: Records, collectors: Sequence[TextCollector | ValueCollector]) -> Bulk | None:
    """What takes rows of columns all at once; None where each record has to be parsed."""
    columns = records.rows.columns if isinstance(records.rows, MostLines) else records.columns
    if columns is None:
        return None
    of_texts = [collector for collector in collectors if isinstance(collector, TextCollector)]
    parts: list[Part | None]
    if of_texts and of_texts[0].voice.rules.implicit_prompt:
        parts = [*_sides(records, columns, of_texts)]
    else:
        of = functools.cache(columns.of)  # both sides of a pair have the same prompt
        parts = [_part_of(records, of, texts) for texts in of_texts]
    parts += [values_of(columns, each) for each in collectors if not isinstance(each, TextCollector)]
    known = [part for part in parts if part is not None]
    return Bulk(records, columns, known) if len(known) == len(collectors) else None


def _is_special(texts: TextCollector) -> bool:
    """True if the rules of an output want each record by itself."""
    voice = texts.voice
    return voice.fim is not None or voice.rules.mask_options is not None or texts.output.weights_name is not None


def _part_of(records: Records, of: Callable[[RecordKind, str], Columns | None], texts: TextCollector) -> Part | None:
    output = texts.output
    if _is_special(texts):
        return None
    if output.conversation:
        fields = [of("chats", section.field) for section in output.sections]
        chats = [each for each in fields if each is not None]
        return None if len(chats) < len(fields) else Conversations(records, texts, *chained(chats))
    if output.has_template:
        alone = of("chats", output.sections[0].field)
        plain = output.kind == "ids" and len(output.sections) == 1 and alone is not None
        return Messages(records, texts, alone) if plain and alone is not None else None
    kind: RecordKind = "lists" if output.kind == "list" else "texts"
    found = [each for section in output.sections if (each := of(kind, section.field)) is not None]
    if len(found) < len(output.sections):
        return None
    if len(found) == 1 and kind == "lists":
        return Lists(found[0], texts)
    return None if output.kind != "ids" or (output.joint and len(found) > 1) else Sections(found, texts)


def _sides(records: Records, columns: Columns, of_texts: Sequence[TextCollector]) -> list[Part]:
    """The conversations of both sides of preference pairs, whose prompt is what both begin with; []: one by one."""
    outputs = [texts.output for texts in of_texts]
    # Another output of texts would read what the pair leaves of the record.
    if len(outputs) != 2 or any(_is_special(texts) or not texts.output.conversation for texts in of_texts):
        return []
    prompt = prompt_field(outputs)
    one, other = (columns.of("chats", name) for name in sides_of(outputs))
    if one is None or other is None:
        return []
    if columns.strings(prompt) is None and not have_none(columns.table, [prompt]).all():
        return []  # the prompt is given
    shared, differ = _shared(one, other)
    change = functools.partial(with_prompt, outputs=outputs)
    parts: list[Part] = []
    for texts, side in zip(of_texts, (one, other), strict=True):
        counts = np.column_stack([shared, np.diff(side.offsets) - shared])
        parts.append(Conversations(records, texts, side, counts, ~differ, change))
    return parts


def _shared(one: Columns, other: Columns) -> tuple[Array, Array]:
    """(int64 [rows], messages that both begin with, as `with_prompt` counts them; bool [rows], the sides differ)."""
    lengths = [np.diff(each.offsets) for each in (one, other)]
    both = np.minimum(*lengths)
    borders = offsets_of(both)
    inside = np.arange(borders[-1]) - np.repeat(borders[:-1], both)
    mine, theirs = (inside + np.repeat(each.offsets[:-1], both) for each in (one, other))
    equal = np.ones(len(inside), bool)
    for left, right in ((one.role_array, other.role_array), (one.text.array, other.text.array)):
        same = pc.equal(left.take(pa.array(mine)), right.take(pa.array(theirs)))
        equal &= np.asarray(pc.fill_null(same, False))
    differs = np.append(np.flatnonzero(~equal), borders[-1])
    first = differs[np.searchsorted(differs, borders[:-1])] - borders[:-1]
    differ = (first < both) | (lengths[0] != lengths[1])
    return np.maximum(np.minimum(first, both - 1), 0), differ
