"""Rows that are given as columns: most are rendered all at once."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.data.block import Reject
from beam_prep.core.data.columns import Columns, end_with, join
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.pieces.checks import check_size
from beam_prep.core.pieces.collector import TextCollector
from beam_prep.core.pieces.layout_segments import LayoutSegments
from beam_prep.core.pieces.rendered import DEFAULT_DOMAIN
from beam_prep.core.pieces.values import ValueCollector
from beam_prep.core.reading.records import MostLines, Record, Records

_TRIES = 8
_FEW = 4  # fewer rows than this are faster rendered one by one


def bulk_of(records: Records, collectors: "Sequence[TextCollector | ValueCollector]") -> "BulkTexts | BulkChats | None":
    """The collector that takes rows of columns all at once; None where each record has to be parsed."""
    columns, texts = records.rows.columns if isinstance(records.rows, MostLines) else records.columns, collectors[0]
    if (
        columns is None
        or len(collectors) > 1
        or not isinstance(texts, TextCollector)
        or texts.voice.rules.implicit_prompt
        or texts.voice.fim is not None
        or texts.voice.rules.mask_options is not None
    ):
        return None
    output = texts.output
    if output.weights_name is not None:  # which the columns do not have
        return None
    if output.kind != "ids" or [section.field for section in output.sections] != [columns.field]:
        return None
    if columns.kind == "chats":
        return BulkChats(records, columns, texts) if output.conversation else None
    train = not output.has_template and output.sections[0].action == "train"
    return BulkTexts(records, columns, texts) if train else None


class _Bulk:
    """Rows that are given as columns: most are taken all at once, the others one by one."""

    def __init__(self, records: Records, columns: Columns, texts: TextCollector) -> None:
        self._records, self._columns, self._texts = records, columns, texts
        self._rows: Array = np.zeros(0, np.int64)

    def _each(self, rows: Array) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows of a bool mask."""
        for row in np.flatnonzero(rows).tolist():
            yield int(self._records.line[row]), self._records.rows[row]

    def _doubtful(self) -> Array:
        """bool [rows]: a text may hold a control token."""
        guard = self._texts.guard
        if guard.rule == "keep" or not guard.controls:
            return np.zeros(len(self._columns), bool)
        return self._columns.rows_with(re.compile(b"|".join([re.escape(text.encode()) for text in guard.controls])))

    def _lines(self) -> list[int]:
        lines: list[int] = self._records.line[self._rows].tolist()
        return lines

    def domains(self, key: str | None) -> list[str]:
        """The domains of the rows that `add` added."""
        found = None if key is None else self._columns.strings(key)
        if found is None:
            return [DEFAULT_DOMAIN] * len(self._rows)
        return [DEFAULT_DOMAIN if (name := found[row]) is None else name for row in self._rows.tolist()]


class BulkTexts(_Bulk):
    """Texts, of one section that is trained."""

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that are collected one by one, in order; `add` adds the rest after them."""
        alone = ~self._columns.plain | self._doubtful()
        if self._texts.voice.rules.eos == "never":
            begins, _ = self._columns.ends()  # else it may be blank
            alone |= ~begins
        self._rows = np.flatnonzero(~alone)
        yield from self._each(alone)

    def add(self) -> list[int]:
        """Adds the rest; gives their lines."""
        texts, voice = self._columns.text, self._texts.voice
        if len(self._rows) < len(texts):
            texts = texts.take(self._rows)
        if voice.rules.eos != "never":
            texts = end_with(texts, voice.eos, voice.rules.eos == "always")
        self._texts.add_in_bulk(texts, [])
        return self._lines()


class BulkChats(_Bulk):
    """Chats: those of a known layout are rendered all at once."""

    def __init__(self, records: Records, columns: Columns, texts: TextCollector) -> None:
        super().__init__(records, columns, texts)
        self._groups: list[tuple[PieceLayout, LayoutSegments, Array]] = []

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that are collected one by one, in order; `add` adds the rest after them."""
        chats = self._columns
        alone = ~chats.plain | (np.diff(chats.offsets) == 0) | self._doubtful()
        begins, ends = chats.ends()
        until = np.concatenate([[0], np.cumsum(chats.text.characters)])
        for rows in chats.patterns():
            rows = rows[~alone[rows]]
            found = self._layout(rows) if len(rows) >= _FEW else None
            if found is None:
                alone[rows] = True
                continue
            layout, table = found
            first = chats.offsets[rows][:, None]
            stripped = np.array(sorted(layout.stripped), np.int64)
            clear = begins[first + stripped].all(axis=1) & ends[first + stripped].all(axis=1)
            clear &= until[chats.offsets[rows + 1]] - until[chats.offsets[rows]] <= layout.largest
            alone[rows[~clear]] = True
            self._groups.append((layout, table, rows[clear]))
        yield from self._each(alone)

    def _layout(self, rows: Array) -> "tuple[PieceLayout, LayoutSegments] | None":
        """The layout and the segments that these rows, of one pattern, share; None where these are not known."""
        texts = self._texts
        template = texts.voice.template
        assert template is not None
        for row in rows[:_TRIES].tolist():
            try:
                messages = texts.guard(self._records.rows[row][self._columns.field])
                layout = template.layout_of_pattern(messages, len(rows))
                if layout is None:
                    template.planned(messages)  # which may record a plan, or have jinja confirm it
                    continue
                table = texts.conversations.table_of(layout, messages, (len(messages),))
            except Reject:  # so is each of them, for its own reason
                return None
            if table is not None:
                return layout, table  # else there may be a plan of the next one's prompt
        return None

    def add(self) -> list[int]:
        """Renders the rows of known layouts; gives their lines."""
        chats = self._columns
        constants: dict[str, int] = {}
        groups, places, widths, sizes = [], [], [], []
        characters = chats.text.characters
        for layout, table, rows in self._groups:
            index = np.zeros((len(rows), len(layout.constants)), np.int64)
            lengths = np.zeros_like(index)
            for piece, (text, message) in enumerate(zip(layout.constants, layout.plain_content, strict=True)):
                if text is None:
                    index[:, piece] = chats.offsets[rows] + message
                    lengths[:, piece] = characters[index[:, piece]]
                else:
                    index[:, piece] = len(chats.text) + constants.setdefault(text, len(constants))
                    lengths[:, piece] = len(text)
            groups.append((table, lengths))
            places.append(index.ravel())
            widths += [index.shape[1]] * len(rows)
            sizes.append(lengths.sum(axis=1))
        self._rows = np.concatenate([self._rows, *(rows for _, _, rows in self._groups)])
        if len(self._rows):
            check_size(int(np.concatenate(sizes).sum()), self._records)
            pieces = Ragged.from_lengths(np.concatenate(places), widths)
            self._texts.add_in_bulk(join(chats.text, list(constants), pieces, np.concatenate(sizes)), groups)
        return self._lines()
