"""Collects the pieces of text that the records of a block give to one output."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from beam_prep.core.chat.conversation import Conversation, Said
from beam_prep.core.chat.fixed_spans import place_answer, place_spans
from beam_prep.core.chat.places import Place, Span
from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.chat.template import ChatTemplate, RenderedChat
from beam_prep.core.data.block import Reject
from beam_prep.core.data.columns import Texts, concat
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.pieces.checks import (
    are_plain,
    check_characters,
    check_messages,
    list_of,
    text_of,
    trained_by_own_key,
    variables_of,
)
from beam_prep.core.pieces.layout_segments import NOT_MADE, DependsOnContent, LayoutSegments, NoPlanOfPrompt
from beam_prep.core.pieces.rendered import BY_ROLE, MASK, TRAIN, UNSET, WHOLE, Pieces, Segment
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record

_ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class TextCollector:
    """Collects the pieces of one output; `undo` takes the last row back."""

    def __init__(self, output: Output, voice: Voice, roles: dict[str, int]) -> None:
        self.output = output
        self.voice = voice
        self.guard = voice.guard
        self.roles = roles
        self.texts: list[str] = []
        self.special: list[bool] = []
        self.prompts: dict[int, str] = {}
        self.prompt_end: dict[int, int] = {}
        self.segments: list[Segment] = []
        self.borders = [0]
        self.sequences = [0]
        self.rows = [0]
        self.by_jinja = False  # something of the present record was not rendered by a plan
        self._tables: dict[tuple[PieceLayout, tuple[int, ...]], LayoutSegments | None] = {}
        # piece -> its segments, lengths of what it consists of, characters cut from its front
        self._measured: dict[int, tuple[LayoutSegments, tuple[int, ...], int]] = {}
        self._in_bulk: list[tuple[LayoutSegments, Array, Array, Array]] = []  # the same of many pieces: see `_by_table`
        self._bulk: Texts | None = None  # texts behind all others
        self.said: list[int] = []
        self.said_borders = [0]
        self._said_in_bulk: list[Ragged] = []

    def _piece(
        self, text: str, special: bool, *segments: Segment, prompt: str | None = None, said: Sequence[int] = ()
    ) -> None:
        if not text.isascii():
            check_characters(text)
        if prompt is not None:
            self.prompts[len(self.texts)] = prompt
        self.texts.append(text)
        self.special.append(special)
        self.segments += segments
        self.borders.append(len(self.segments))
        self.said += said
        self.said_borders.append(len(self.said))

    def _end_sequence(self) -> None:
        self.sequences.append(len(self.texts))

    def add(self, record: Record) -> bool:
        """Adds a row; says whether it yielded anything."""
        self.by_jinja = False
        before = len(self.texts)
        if self.output.kind == "list":
            self._list_row(record)
        else:
            if self.output.conversation:
                self._conversation(record)
            elif self.output.joint:
                self._joint(record)
            else:
                self._sections(record)
            self._end_sequence()
        self.rows.append(len(self.sequences) - 1)
        return len(self.texts) > before

    def add_in_bulk(self, texts: Texts, groups: "list[tuple[LayoutSegments, Array]]") -> None:
        """Adds texts, a row each, behind all others.

        Args:
            texts: as a template writes them, or as they are to be encoded.
            groups: for so many of them as its array has rows, in order: (table, lengths of what each consists of).
                Empty: each text is one segment, trained.
        """
        at = first = len(self.texts)
        count = len(texts)
        cuts = np.zeros(count, np.int64)
        special = self.output.sections[0].add_special_tokens is not False
        if self.output.has_template:
            special = self.voice.rules.bos == "tokenizer"
            if self.voice.rules.bos != "keep" and self.voice.bos:
                begin = pc.starts_with(texts.array, self.voice.bos)
                cuts = np.asarray(begin).astype(np.int64) * len(self.voice.bos)
                cut = pc.utf8_slice_codeunits(texts.array, len(self.voice.bos))
                texts = Texts(pc.if_else(begin, cut, texts.array), texts.characters - cuts)
        for table, lengths in groups:
            pieces = np.arange(at, at := at + len(lengths))
            self._in_bulk.append((table, pieces, lengths, cuts[pieces - first]))
            said = np.tile(np.array(table.said, np.int64), len(lengths))
            self._said_in_bulk.append(Ragged.from_lengths(said, np.full(len(lengths), len(table.said))))
        if not groups:
            self._said_in_bulk.append(Ragged(np.zeros(0, np.int64), np.zeros(count + 1, np.int64)))
        self._bulk = texts
        self.special += [special] * count
        segments = [] if groups else [Segment(*WHOLE, TRAIN)] * count
        self.segments += segments
        self.borders += range(self.borders[-1] + 1, len(self.segments) + 1) if segments else [self.borders[-1]] * count
        self.sequences += range(first + 1, first + count + 1)
        self.rows += range(len(self.rows), len(self.rows) + count)

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        del self.rows[rows + 1 :]
        del self.sequences[self.rows[-1] + 1 :]
        pieces = self.sequences[-1]
        for piece in range(pieces, len(self.texts)):
            self.prompts.pop(piece, None)
            self.prompt_end.pop(piece, None)
            self._measured.pop(piece, None)
        del self.texts[pieces:], self.special[pieces:], self.borders[pieces + 1 :]
        del self.segments[self.borders[-1] :]
        del self.said_borders[pieces + 1 :]
        del self.said[self.said_borders[-1] :]

    def _list_row(self, record: Record) -> None:
        for section in self.output.sections:
            for place, element in enumerate(list_of(record, section.field)):
                where = f"{section.field}[{place}]"
                if section.template is not None:
                    if not isinstance(element, list | None):
                        found = f"field {section.field!r} holds {describe(element)} at [{place}]"
                        raise Reject("wrong_type", f"{found}, wanted lists of messages (texts want template: false)")
                    self._messages(section, element, where)
                elif text := self.guard(text_of(element, where)):
                    self._piece(text, bool(section.add_special_tokens), Segment(*WHOLE, _ACTIONS[section.action]))
                self._end_sequence()

    def _sections(self, record: Record) -> None:
        """Each section's text, and each message's, is a piece of its own."""
        blank = self.voice.rules.eos != "never"
        texts = [
            None if section.template else self.guard(text_of(record.get(section.field), section.field, blank))
            for section in self.output.sections
        ]
        self._end_with_eos(texts)
        first = True
        for section, text in zip(self.output.sections, texts, strict=True):
            if section.template is not None:
                yielded = self._messages(section, record.get(section.field), section.field)
            elif text:
                special = first if section.add_special_tokens is None else section.add_special_tokens
                self._piece(text, special, Segment(*WHOLE, _ACTIONS[section.action]))
                yielded = True
            else:
                yielded = False
            first = first and not yielded

    def _end_with_eos(self, texts: list[str | None]) -> None:
        """The EOS token's text behind the last text section. With it a blank text is a record; a missing one is not."""
        rules, text = self.voice.rules, texts[-1]
        if rules.eos == "never" or self.output.has_template or text is None:
            return
        if rules.eos == "always" or not text.endswith(self.voice.eos):
            texts[-1] = text + self.voice.eos

    def _joint(self, record: Record) -> None:
        """All sections joined before they are encoded; what the leading `mask` sections say is the prompt."""
        sections = self.output.sections
        texts = [self.guard(text_of(record.get(section.field), section.field, blank=True)) for section in sections]
        if self.voice.rules.eos == "never" and not any(text and text.strip() for text in texts):
            return
        self._end_with_eos(texts)
        whole = "".join(text or "" for text in texts)
        if not whole:
            return
        masked = next((place for place, section in enumerate(sections) if section.action != "mask"), len(sections))
        special = sections[0].add_special_tokens is not False
        if masked == 0:
            self._piece(whole, special, Segment(*WHOLE, TRAIN))
        else:
            prompt = "".join(text or "" for text in texts[:masked])
            self._piece(whole, special, Segment(*WHOLE, TRAIN), prompt=prompt)

    def _checked(self, value: Any, where: str) -> tuple[list[dict[str, Any]], list[str]]:
        """(messages, their roles)."""
        messages, roles = check_messages(value, where)
        return self.guard(messages), self.guard(roles)

    def _messages(self, section: Section, value: Any, where: str) -> bool:
        """Each message rendered alone."""
        template = self.voice.template
        assert template is not None
        messages, roles = self._checked(value, where)
        for turn, (message, role) in enumerate(zip(messages, roles, strict=True)):
            try:
                text = self._render(template, [message], False, {})
            except Reject as reject:
                lacks = " has no content" if message.get("content") is None else ""
                raise Reject(reject.reason, f"'{where}[{turn}]'{lacks}: {reject.message}") from None
            code = self.roles.setdefault(role, len(self.roles))
            segment = Segment(*WHOLE, _ACTIONS[section.action], code, turn, trained_by_own_key(message))
            self._piece(text, False, segment, said=(code,))
        return bool(messages)

    def _conversation(self, record: Record) -> None:
        """The messages of all sections rendered once."""
        if self._plain_conversation(record):
            return
        messages: list[dict[str, Any]] = []
        actions: list[str] = []
        for section in self.output.sections:
            found, _ = self._checked(record.get(section.field), section.field)
            messages += found
            actions += [section.action] * len(found)
        if not messages:
            return
        template = self.voice.template
        assert template is not None
        variables = self.guard(variables_of(record))
        chat = self._rendered(template, messages, variables)
        conversation = Conversation(template, self.voice.controls, chat, messages, variables)
        text, cut, special = self._cut_bos(chat.text)
        answer = None
        if (masked := self._masked(messages, actions)) is not None:
            prompt = self._render(template, messages[:masked], True, variables)
            answer = conversation.after_prompt(masked, prompt)
            begins = chat.text.startswith(prompt)
            self.prompt_end[len(self.texts)] = max(len(prompt) - cut, 0) if begins else -1
        segments = list(self._segments(conversation.spans, messages, actions, answer))
        if cut:
            segments = [_moved(segment, cut) for segment in segments]
        self._piece(text, special, *segments, said=self._codes(messages))

    def _plain_conversation(self, record: Record) -> bool:
        """The same for messages of a role and a content alone that a plan renders; says whether it did.

        What each message says is then known from the layout: see `core.chat.fixed_spans`.
        """
        template = self.voice.template
        assert template is not None
        if record.get("tools") is not None or record.get("chat_template_kwargs") is not None:
            return False
        lists = [record.get(section.field) or [] for section in self.output.sections]
        if not {list}.issuperset(map(type, lists)):
            return False
        messages = lists[0] if len(lists) == 1 else [message for each in lists for message in each]
        if not messages or (self.guard.rule != "keep" and not are_plain(messages)):
            return False
        messages = self.guard(messages)
        planned = template.planned(messages)
        if planned is None:
            return False
        pieces, layout = planned
        counts = tuple(map(len, lists))
        table = self._table_of(layout, messages, counts)
        if table is None:
            return False
        text, cut, special = self._cut_bos("".join(pieces))
        self._measured[len(self.texts)] = table, tuple(map(len, pieces)), cut
        self._piece(text, special, said=table.said)
        return True

    def _codes(self, messages: list[dict[str, Any]]) -> list[int]:
        """The roles of messages."""
        return [self.roles.setdefault(message["role"], len(self.roles)) for message in messages]

    def _actions(self, counts: Sequence[int]) -> list[str]:
        """Of each message, from the messages of each section."""
        sections = self.output.sections
        return [section.action for section, count in zip(sections, counts, strict=True) for _ in range(count)]

    def _table_of(
        self, layout: PieceLayout, messages: list[dict[str, Any]], counts: tuple[int, ...]
    ) -> "LayoutSegments | None":
        """See `_table`; made once, but for layouts whose prompt has no plan yet."""
        key = layout, counts
        table: LayoutSegments | None = self._tables.get(key, NOT_MADE)
        if table is NOT_MADE:
            try:
                table = self._tables[key] = self._table(layout, messages, counts)
            except NoPlanOfPrompt:
                return None
        return table

    def _table(
        self, layout: PieceLayout, messages: list[dict[str, Any]], counts: Sequence[int]
    ) -> "LayoutSegments | None":
        """The segments of all conversations of a layout; None where they depend on what is said."""
        template = self.voice.template
        assert template is not None
        if not are_plain(messages):  # nor is any other that is rendered so
            return None
        actions = self._actions(counts)
        roles = tuple(message["role"] for message in messages)
        placed: list[Span] = []
        prompt: Place | None = None
        answer: Said | None = None
        if (masked := self._masked(messages, actions)) is not None:
            planned = template.planned(messages[:masked], add_generation_prompt=True)
            if planned is None:
                raise NoPlanOfPrompt
            found = place_answer(layout, roles, template, self.voice.controls, planned.layout, masked)
            if found is None:
                return None
            prompt, span = found
            placed.append(span)
            answer = Said(span.message, 0, 0, True)

        def spans() -> list[Said]:
            found = place_spans(layout, roles, template, self.voice.controls)
            if found is None:
                raise DependsOnContent
            first = len(placed)
            placed.extend(found)
            return [Said(span.message, number, number, True) for number, span in enumerate(found, first)]

        try:
            segments = list(self._segments(spans, messages, actions, answer))
        except DependsOnContent:
            return None
        places = [(*span.start, *span.stop) for span in placed]
        return LayoutSegments(
            np.array(
                [places[segment.start] if segment.stop >= 0 else (-1,) * 4 for segment in segments], np.int64
            ).reshape(-1, 4),
            np.array([segment[2:] for segment in segments], np.int64).reshape(-1, len(Segment._fields) - 2),
            prompt,
            tuple(self._codes(messages)),
        )

    def _render(
        self, template: ChatTemplate, messages: list[dict[str, Any]], add_prompt: bool, variables: dict[str, Any]
    ) -> str:
        planned = template.planned(messages, **variables, add_generation_prompt=add_prompt)
        if planned is not None:
            return "".join(planned.pieces)
        self.by_jinja = True
        # The reference has no plans: none is looked for a second time.
        return (self.voice.reference or template).render(messages, add_prompt, **variables)

    def _rendered(
        self, template: ChatTemplate, messages: list[dict[str, Any]], variables: dict[str, Any]
    ) -> RenderedChat:
        planned = template.planned(messages, **variables)
        if planned is not None and (chat := template.chat_of(planned)) is not None:
            return chat
        self.by_jinja = True
        try:
            return (self.voice.reference or template).render_chat(messages, **variables)
        except Reject as reject:
            fields = ", ".join(repr(section.field) for section in self.output.sections)
            empty = [place for place, message in enumerate(messages) if message.get("content") is None]
            lacks = f" (message {empty[0]} has no content)" if empty else ""
            raise Reject(reject.reason, f"field {fields}{lacks}: {reject.message}") from None

    def _cut_bos(self, text: str) -> tuple[str, int, bool]:
        """(text, characters cut, with the tokenizer's special tokens), by the rule for BOS."""
        rule, bos = self.voice.rules.bos, self.voice.bos
        cut = len(bos) if rule != "keep" and bos and text.startswith(bos) else 0
        return text[cut:], cut, rule == "tokenizer"

    def _masked(self, messages: list[dict[str, Any]], actions: list[str]) -> int | None:
        """How many messages the prompt has; None where what follows it is not trained as such."""
        if "$last" in actions:
            if messages[-1]["role"] != "assistant":
                role = messages[-1]["role"]
                raise Reject("last_not_assistant", f"the last message is of role {role!r}, wanted 'assistant'")
            masked = len(messages) - 1
        elif {"mask", "train"} <= {section.action for section in self.output.sections}:
            masked = actions.count("mask")
        else:
            return None
        if masked == 0:
            raise Reject("no_prompt", "no message stands before the answer, wanted at least one")
        return masked

    def _segments(
        self, spans: Callable[[], list[Said]], messages: list[dict[str, Any]], actions: list[str], answer: Said | None
    ) -> Iterator[Segment]:
        """What of the conversation can be trained: by message, or the whole."""
        own = [trained_by_own_key(message) for message in messages]
        roles = self._codes(messages)
        last = len(messages) - 1
        masked = None if answer is None else self._masked(messages, actions)
        # Not all after the prompt is trained.
        apart = masked is not None and 0 in own[masked:]
        if answer is not None and not apart:
            yield Segment(answer.start, answer.stop, TRAIN, roles[last], last, UNSET, int(answer.proven))
        if all(action == "train" for action in actions) and set(own) <= {UNSET, 1}:
            yield Segment(*WHOLE, TRAIN)
            return
        if "$role" not in actions and set(own) == {UNSET}:
            return
        for said in spans():
            place = said.message
            after = apart and masked is not None and place >= masked
            if (answer is not None and own[place] != 1 and not after) or actions[place] == "mask":
                continue
            action = BY_ROLE if actions[place] == "$role" else TRAIN
            yield Segment(said.start, said.stop, action, roles[place], place, own[place], int(said.proven))

    def build(self) -> Pieces:
        sequences = np.asarray(self.sequences, np.int64)
        bos = self.output.kind == "ids" and self.output.has_template and not self.output.conversation
        by_table = self._by_table()
        segments, borders = self._all_segments(by_table)
        texts: Sequence[str] = self.texts
        if self._bulk is not None:
            texts = concat(texts, self._bulk) if texts else self._bulk
        return Pieces(
            texts,
            np.asarray(self.special, bool),
            self.prompts,
            self._prompt_ends(by_table),
            segments,
            borders,
            tuple(self.roles),
            sequences,
            np.asarray(self.rows, np.int64),
            np.full(len(sequences) - 1, bos),
            Ragged.concat(
                [Ragged(np.asarray(self.said, np.int64), np.asarray(self.said_borders, np.int64)), *self._said_in_bulk]
            ),
        )

    def _by_table(self) -> "list[tuple[LayoutSegments, Array, Array, Array]]":
        """(table, its pieces, lengths of what each consists of, characters cut from the front of each)."""
        by_table: dict[LayoutSegments, list[int]] = {}
        for piece, (table, _, _) in self._measured.items():
            by_table.setdefault(table, []).append(piece)
        return [
            *self._in_bulk,
            *(
                (
                    table,
                    np.array(pieces, np.int64),
                    np.array([self._measured[piece][1] for piece in pieces], np.int64),
                    np.array([self._measured[piece][2] for piece in pieces], np.int64),
                )
                for table, pieces in by_table.items()
            ),
        ]

    def _prompt_ends(self, by_table: "list[tuple[LayoutSegments, Array, Array, Array]]") -> Array:
        """`prompt_end` of `Pieces`."""
        ends = np.full(len(self.special), -2)
        ends[list(self.prompt_end)] = list(self.prompt_end.values())
        for table, pieces, lengths, cuts in by_table:
            if table.prompt is not None:
                end = lengths[:, : table.prompt.piece].sum(axis=1) + table.prompt.characters - cuts
                ends[pieces] = np.maximum(end, 0)
        return ends

    def _all_segments(self, by_table: "list[tuple[LayoutSegments, Array, Array, Array]]") -> tuple[Array, Array]:
        """(segments, their borders), those of plans put between the others."""
        listed = np.asarray(self.segments, np.int64).reshape(-1, len(Segment._fields))
        counts: Array = np.diff(np.asarray(self.borders, np.int64))
        if not by_table:
            return listed, offsets_of(counts)
        for table, pieces, _, _ in by_table:
            counts[pieces] = len(table.spans)
        borders = offsets_of(counts)
        segments = np.empty((borders[-1], len(Segment._fields)), np.int64)
        planned = np.zeros(len(counts), bool)
        for _, pieces, _, _ in by_table:
            planned[pieces] = True
        segments[np.repeat(~planned, counts)] = listed
        for table, pieces, lengths, cuts in by_table:
            rows = (borders[pieces][:, None] + np.arange(len(table.spans))).ravel()
            segments[rows] = table.segments(lengths, cuts)
        return segments, borders


def _moved(segment: Segment, cut: int) -> Segment:
    if segment[:2] == WHOLE:
        return segment
    return segment._replace(start=max(segment.start - cut, 0), stop=max(segment.stop - cut, 0))
