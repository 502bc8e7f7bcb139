"""Rows that are given as columns, and that a template renders."""

import functools
from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.data.block import Reject
from beam_prep.core.data.columns import Columns, Texts, join, rows_without
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.pieces.builder import BulkPieces
from beam_prep.core.pieces.bulk_plain import doubtful
from beam_prep.core.pieces.collector import ACTIONS, TextCollector
from beam_prep.core.pieces.layout_segments import LayoutSegments
from beam_prep.core.pieces.rendered import WHOLE, Segment
from beam_prep.core.reading.records import Record, Records

_TRIES = 8
_FEW = 4  # fewer rows than this are faster rendered one by one


class _Rendered:
    """Conversations that a template renders: those of a known layout are rendered all at once."""

    def __init__(self, records: Records, texts: TextCollector, chats: Columns) -> None:
        self._records, self._texts, self._chats = records, texts, chats
        self._groups: list[tuple[PieceLayout, LayoutSegments | None, Array]] = []

    def _group(self, rows: Array, layout: PieceLayout, table: LayoutSegments | None) -> Array:
        """Keeps the rows of a layout that fit it; gives them."""
        chats = self._chats
        first = chats.offsets[rows][:, None]
        stripped = np.array(sorted(layout.stripped), np.int64)
        begins, ends = self._ends
        clear = begins[first + stripped].all(axis=1) & ends[first + stripped].all(axis=1)
        clear &= self._until[chats.offsets[rows + 1]] - self._until[chats.offsets[rows]] <= layout.largest
        kept: Array = rows[clear]
        self._groups.append((layout, table, kept))
        return kept

    @functools.cached_property
    def _ends(self) -> tuple[Array, Array]:
        return self._chats.ends()

    @functools.cached_property
    def _until(self) -> Array:
        """int64 [messages + 1]: characters before each."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._chats.text.characters)])

    def _text(self, wanted: Array) -> tuple[Texts, list[tuple[LayoutSegments | None, Array, Array]]]:
        """Renders some rows of those that are in groups.

        Args:
            wanted: int64, ascending: the rows. Another output may have left out the others.

        Returns:
            their texts; and for each group its table, the places of its rows among these texts, and int64 [rows,
            pieces], the lengths of what each text consists of.
        """
        chats, groups = self._chats, []
        for layout, table, members in self._groups:
            places = np.searchsorted(wanted, members)
            places[places == len(wanted)] = 0
            there = wanted[places] == members
            groups.append((layout, table, members[there], places[there]))
        constants: dict[str, int] = {}
        characters = chats.text.characters
        widths, totals = np.zeros((2, len(wanted)), np.int64)
        for layout, _, _, places in groups:
            widths[places] = len(layout.constants)
        borders = offsets_of(widths)
        pieces, found = np.empty(borders[-1], np.int64), []
        for layout, table, rows, places in groups:
            fixed = [None if text is None else constants.setdefault(text, len(constants)) for text in layout.constants]
            said = np.array([number is None for number in fixed])
            index = np.array([0 if number is None else len(chats.text) + number for number in fixed])
            index = np.where(said, chats.offsets[rows][:, None] + layout.plain_content, index)
            lengths = np.tile([len(text or "") for text in layout.constants], (len(rows), 1))
            lengths[:, said] = characters[index[:, said]]
            pieces[borders[places][:, None] + np.arange(index.shape[1])] = index
            totals[places] = lengths.sum(axis=1)
            found.append((table, places, lengths))
        return join(chats.text, list(constants), Ragged(pieces, borders), totals), found


class Conversations(_Rendered):
    """Conversations, a piece each.

    Args:
        records: the rows.
        texts: collects them.
        chats: the messages of all sections.
        counts: int64 [rows, sections]: how many messages each section has.
        alone: bool [rows]: those that are collected one by one in any case.
        change: what a record becomes before its sections are looked at.
    """

    counts: Array | None = None

    def __init__(
        self,
        records: Records,
        texts: TextCollector,
        chats: Columns,
        counts: Array,
        alone: Array | None = None,
        change: Callable[[Record], Record] | None = None,
    ) -> None:
        super().__init__(records, texts, chats)
        self._sections, self._alone, self._change = counts, alone, change

    def takes(self, rows: Array) -> Array:
        chats = self._chats
        rows = rows & chats.plain & ~doubtful(self._texts, chats)
        if self._alone is not None:
            rows &= ~self._alone
        taken = np.zeros(len(rows), bool)
        for some in chats.patterns(rows, self._sections if self._sections.shape[1] > 1 else None):
            found = self._layout(some) if len(some) >= _FEW else None
            if found is not None:
                taken[self._group(some, *found)] = True
        return taken

    def _layout(self, rows: Array) -> tuple[PieceLayout, LayoutSegments] | None:
        """The layout and the segments that these rows, of one pattern, share; None where these are not known."""
        texts = self._texts
        template = texts.voice.template
        assert template is not None
        for row in rows[:_TRIES].tolist():
            try:
                messages = texts.guard(self._messages(row))
                layout = template.layout_of_pattern(messages, len(rows))
                if layout is None:
                    template.planned(messages)  # which may record a plan, or have jinja confirm it
                    continue
                table = texts.conversations.table_of(layout, messages, tuple(self._sections[row].tolist()))
            except Reject:  # so is each of them, for its own reason
                return None
            if table is not None:
                return layout, table  # else there may be a plan of the next one's prompt
        return None

    def _messages(self, row: int) -> list[Message]:
        record = self._records.rows[row]
        if self._change is not None:
            record = self._change(record)
        return [message for section in self._texts.output.sections for message in record.get(section.field) or ()]

    def add(self, rows: Array) -> int:
        voice = self._texts.voice
        text, rendered = self._text(rows)
        characters = int(text.characters.sum())
        cuts = np.zeros(len(rows), np.int64)
        if voice.rules.bos != "keep" and voice.bos:
            begin = pc.starts_with(text.array, voice.bos)
            cuts = np.asarray(begin).astype(np.int64) * len(voice.bos)
            cut = pc.utf8_slice_codeunits(text.array, len(voice.bos))
            text = Texts(pc.if_else(begin, cut, text.array), text.characters - cuts)
        groups = [(table, places, lengths, cuts[places]) for table, places, lengths in rendered if table is not None]
        roles = np.zeros(len(rows), np.int64)
        for table, places, _, _ in groups:
            roles[places] = len(table.message_roles)
        borders = offsets_of(roles)
        codes = np.empty(borders[-1], np.int64)
        for table, places, _, _ in groups:
            codes[borders[places][:, None] + np.arange(len(table.message_roles))] = table.message_roles
        special = np.full(len(rows), voice.rules.bos == "tokenizer")
        self._texts.add_in_bulk(BulkPieces(text, special, Ragged(codes, borders), groups=groups))
        return characters


class Messages(_Rendered):
    """Messages that are rendered one by one, a piece each."""

    counts: Array | None = None

    def __init__(self, records: Records, texts: TextCollector, chats: Columns) -> None:
        super().__init__(records, texts, chats.alone())
        self._all = chats

    def takes(self, rows: Array) -> Array:
        chats, each = self._all, self._chats
        rows = rows & chats.plain & (np.diff(chats.offsets) > 0) & ~doubtful(self._texts, chats)
        wanted = np.repeat(rows, np.diff(chats.offsets))
        taken = np.zeros(len(wanted), bool)
        for some in each.patterns(wanted):
            layout = self._layout(some)
            if layout is not None:
                taken[self._group(some, layout, None)] = True
        found: Array = rows & rows_without(~taken, chats.offsets)
        return found

    def _layout(self, messages: Array) -> PieceLayout | None:
        texts, chats = self._texts, self._all
        template = texts.voice.template
        assert template is not None
        for place in messages[:_TRIES].tolist():
            row = int(np.searchsorted(chats.offsets, place, side="right")) - 1
            message = self._records.rows[row][chats.field][place - int(chats.offsets[row])]
            try:
                given = texts.guard([message])
                layout = template.layout_of_pattern(given, len(messages))
                if layout is None:
                    template.planned(given)
            except Reject:
                return None
            if layout is not None:
                return layout
        return None

    def add(self, rows: Array) -> int:
        chats, texts = self._all, self._texts
        wanted = np.zeros(len(chats), bool)
        wanted[rows] = True
        picked = np.flatnonzero(np.repeat(wanted, np.diff(chats.offsets)))
        text, _ = self._text(picked)
        names = chats.role_names()
        codes = np.zeros(max(names, default=-1) + 1, np.int64)
        lengths = np.diff(chats.offsets)[rows]
        first = offsets_of(lengths)
        roles = chats.role[picked]
        for place in np.sort(np.unique(roles, return_index=True)[1]).tolist():
            name = texts.guard(names[int(roles[place])])
            codes[roles[place]] = texts.roles.setdefault(name, len(texts.roles))
        mine = codes[roles]
        whole = Segment(*WHOLE, ACTIONS[texts.output.sections[0].action])
        segments = np.tile(np.array(whole, np.int64), (len(mine), 1))
        segments[:, Segment._fields.index("role")] = mine
        segments[:, Segment._fields.index("turn")] = np.arange(len(mine)) - np.repeat(first[:-1], lengths)
        message_roles = Ragged(mine, np.arange(len(mine) + 1))
        texts.add_in_bulk(
            BulkPieces(text, np.zeros(len(mine), bool), message_roles, segments=segments, sequences=lengths)
        )
        return int(text.characters.sum())
