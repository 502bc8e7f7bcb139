"""Records -> `Rendered`: pieces of text to encode, each with its role and action."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from beam_prep.core.chat.control import Guard
from beam_prep.core.chat.conversation import Conversation, Said
from beam_prep.core.chat.fixed_spans import place_answer, place_spans
from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.chat.spans import Place, Span
from beam_prep.core.chat.template import ChatTemplate, RenderedChat
from beam_prep.core.data.block import Block, Ledger, Reject, step
from beam_prep.core.data.columns import Columns, Texts, concat, end_with, join, take
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Output, Section, TextRules
from beam_prep.core.reading.adapters import flatten_content, template_kwargs, tools
from beam_prep.core.reading.records import Record, Records, _describe

DEFAULT_DOMAIN = "__default__"

MASK, TRAIN, BY_ROLE = 0, 1, 2
"""Codes of a piece's action: never trained, trained, by its role."""

UNSET = -1

_ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class Segment(NamedTuple):
    """A part of a piece, and what is known about it.

    Attributes:
        start, stop: characters of the piece; (0, -1) = the whole of it.
        action: MASK, TRAIN or BY_ROLE.
        role: index into the block's roles; UNSET for text sections.
        turn: index of the message; UNSET for text sections.
        own: the message's own `train` or `weight` key, 1 or 0; UNSET without.
        proven: 0 where it is not certain that this is what the message says.
    """

    start: int
    stop: int
    action: int
    role: int = UNSET
    turn: int = UNSET
    own: int = UNSET
    proven: int = 1


WHOLE = (0, -1)


@dataclass(slots=True)
class Pieces:
    """The texts of one output, in order, and what is known about each.

    Attributes:
        texts: one text a piece; each is encoded alone.
        special: bool [pieces]: encoded with the tokenizer's own special tokens.
        prompts: piece -> its prompt's text: the piece is trained behind the longest common beginning of both's ids.
        prompt_end: int64 [pieces]: one past the last character of the prompt that a conversation begins with; -1: it
            does not begin with its prompt; -2: it has none.
        segments: int64 [segments, 7]: see `Segment`.
        borders: int64 [pieces + 1]: borders of pieces, in segments.
        roles: the names of the roles of this block.
        sequences: int64 [sequences + 1]: borders of sequences, in pieces.
        rows: int64 [rows + 1]: borders of rows, in sequences (one each, but for lists).
        bos: bool [sequences]: begins with the BOS token, unless the first rendering brings it.
        said: int64, the role of every message, one row a piece.
    """

    texts: Sequence[str]
    special: Array
    prompts: dict[int, str]
    prompt_end: Array
    segments: Array
    borders: Array
    roles: tuple[str, ...]
    sequences: Array
    rows: Array
    bos: Array
    said: Ragged

    def said_by_row(self) -> Ragged:
        """int64, the role of every message of each row."""
        return Ragged(self.said.values, self.said.offsets[self.sequences[self.rows]])

    def equals(self, other: "Pieces") -> bool:
        """Whether both hold the same."""
        if (self.texts, self.roles, self.prompts) != (other.texts, other.roles, other.prompts):
            return False
        names = ("special", "prompt_end", "segments", "borders", "sequences", "rows", "bos")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def take(self, places: Array) -> "Pieces":
        """Some of the pieces, each a row of its own."""
        segments = Ragged(np.arange(len(self.segments)), self.borders).take(places)
        each = np.arange(len(places) + 1)
        return Pieces(
            take(self.texts, places),
            self.special[places],
            {new: self.prompts[old] for new, old in enumerate(places.tolist()) if old in self.prompts},
            self.prompt_end[places],
            self.segments[segments.flat],
            segments.offsets,
            self.roles,
            each,
            each,
            np.zeros(len(places), bool),
            self.said.take(places),
        )


@dataclass(slots=True)
class Rendered(Block):
    """Text of a block, ready to encode.

    Attributes:
        outputs: what each row consists of.
        domain: one name a row.
        pieces: output name -> its texts (kinds `ids` and `list`).
        values: output name -> numbers (kind `value`), float64.
    """

    outputs: tuple[Output, ...] = ()
    domain: list[str] = field(default_factory=list)
    pieces: dict[str, Pieces] = field(default_factory=dict)
    values: dict[str, Ragged] = field(default_factory=dict)

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "domains", len(self.domain)
        yield from ((f"{name!r}", len(pieces.rows) - 1) for name, pieces in self.pieces.items())
        yield from ((f"{name!r}", len(rows)) for name, rows in self.values.items())


@dataclass(frozen=True, slots=True)
class Voice:
    """What renders: a chat template, the special tokens that it may write, and the rules for text.

    Attributes:
        template: None where no section wants one.
        controls: texts of the tokenizer's special tokens.
        bos, eos: texts of these tokens, "" where there are none.
        rules: see `TextRules`.
        reference: the same template without plans. It renders a sample of each block too; where it gives anything
            else, it renders the whole block.
    """

    template: ChatTemplate | None
    controls: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    rules: TextRules = field(default_factory=TextRules)
    reference: ChatTemplate | None = None

    @property
    def guard(self) -> Guard:
        """What becomes of special tokens in what users wrote."""
        return Guard(self.rules.control_tokens, self.controls)


class _Texts:
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
        self._tables: dict[tuple[PieceLayout, tuple[int, ...]], _Table | None] = {}
        self._measured: dict[int, tuple[_Table, tuple[int, ...], int]] = {}  # piece -> lengths of what it consists of
        self._in_bulk: list[tuple[_Table, Array, Array, Array]] = []  # the same of many pieces: see `_by_table`
        self._bulk: Texts | None = None  # texts behind all others
        self.said: list[int] = []
        self.said_borders = [0]
        self._said_in_bulk: list[Ragged] = []

    def _piece(
        self, text: str, special: bool, *segments: Segment, prompt: str | None = None, said: Sequence[int] = ()
    ) -> None:
        if not text.isascii():
            _check_characters(text)
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

    def add_in_bulk(self, texts: Texts, groups: "list[tuple[_Table, Array]]") -> None:
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
            for place, element in enumerate(_list(record, section.field)):
                where = f"{section.field}[{place}]"
                if section.template is not None:
                    if not isinstance(element, list | None):
                        found = f"field {section.field!r} holds {_describe(element)} at [{place}]"
                        raise Reject("wrong_type", f"{found}, wanted lists of messages (texts want template: false)")
                    self._messages(section, element, where)
                elif text := self.guard(_text(element, where)):
                    self._piece(text, bool(section.add_special_tokens), Segment(*WHOLE, _ACTIONS[section.action]))
                self._end_sequence()

    def _sections(self, record: Record) -> None:
        """Each section's text, and each message's, is a piece of its own."""
        blank = self.voice.rules.eos != "never"
        texts = [
            None if section.template else self.guard(_text(record.get(section.field), section.field, blank))
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
        texts = [self.guard(_text(record.get(section.field), section.field, blank=True)) for section in sections]
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
        messages, roles = _check_messages(value, where)
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
            segment = Segment(*WHOLE, _ACTIONS[section.action], code, turn, _own(message))
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
        variables = self.guard(_variables(record))
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

        What each message says is then known from the layout: see `speech_plan`.
        """
        template = self.voice.template
        assert template is not None
        if record.get("tools") is not None or record.get("chat_template_kwargs") is not None:
            return False
        lists = [record.get(section.field) or [] for section in self.output.sections]
        if not {list}.issuperset(map(type, lists)):
            return False
        messages = lists[0] if len(lists) == 1 else [message for each in lists for message in each]
        if not messages or (self.guard.rule != "keep" and not _are_plain(messages)):
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
    ) -> "_Table | None":
        """See `_table`; made once, but for layouts whose prompt has no plan yet."""
        key = layout, counts
        table: _Table | None = self._tables.get(key, _UNKNOWN)
        if table is _UNKNOWN:
            try:
                table = self._tables[key] = self._table(layout, messages, counts)
            except _NoPlanError:
                return None
        return table

    def _table(self, layout: PieceLayout, messages: list[dict[str, Any]], counts: Sequence[int]) -> "_Table | None":
        """The segments of all conversations of a layout; None where they depend on what is said."""
        template = self.voice.template
        assert template is not None
        if not _are_plain(messages):  # nor is any other that is rendered so
            return None
        actions = self._actions(counts)
        roles = tuple(message["role"] for message in messages)
        placed: list[Span] = []
        prompt: Place | None = None
        answer: Said | None = None
        if (masked := self._masked(messages, actions)) is not None:
            planned = template.planned(messages[:masked], add_generation_prompt=True)
            if planned is None:
                raise _NoPlanError
            found = place_answer(layout, roles, template, self.voice.controls, planned.layout, masked)
            if found is None:
                return None
            prompt, span = found
            placed.append(span)
            answer = Said(span.message, 0, 0, True)

        def spans() -> list[Said]:
            found = place_spans(layout, roles, template, self.voice.controls)
            if found is None:
                raise _NoTableError
            first = len(placed)
            placed.extend(found)
            return [Said(span.message, number, number, True) for number, span in enumerate(found, first)]

        try:
            segments = list(self._segments(spans, messages, actions, answer))
        except _NoTableError:
            return None
        places = [(*span.start, *span.stop) for span in placed]
        return _Table(
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
        own = [_own(message) for message in messages]
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

    def _by_table(self) -> "list[tuple[_Table, Array, Array, Array]]":
        """(table, its pieces, lengths of what each consists of, characters cut from the front of each)."""
        by_table: dict[_Table, list[int]] = {}
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

    def _prompt_ends(self, by_table: "list[tuple[_Table, Array, Array, Array]]") -> Array:
        """`prompt_end` of `Pieces`."""
        ends = np.full(len(self.special), -2)
        ends[list(self.prompt_end)] = list(self.prompt_end.values())
        for table, pieces, lengths, cuts in by_table:
            if table.prompt is not None:
                end = lengths[:, : table.prompt.piece].sum(axis=1) + table.prompt.characters - cuts
                ends[pieces] = np.maximum(end, 0)
        return ends

    def _all_segments(self, by_table: "list[tuple[_Table, Array, Array, Array]]") -> tuple[Array, Array]:
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


class _NoTableError(Exception):
    """What messages say depends on more than the layout."""


class _NoPlanError(Exception):
    """There is no plan of the prompt, or none yet."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The segments of every conversation of a layout.

    Attributes:
        spans: int64 [segments, 4]: piece and characters behind its begin, of a segment's begin and end; -1 = the whole.
        rest: int64 [segments, 5]: the other fields of `Segment`.
        prompt: where the prompt ends, if there is one.
        said: the roles of the messages.
    """

    spans: Array
    rest: Array
    prompt: Place | None
    said: tuple[int, ...]

    def segments(self, lengths: Array, cuts: Array) -> Array:
        """int64 [conversations * segments, 7].

        Args:
            lengths: int64 [conversations, pieces], characters.
            cuts: int64 [conversations], characters cut from the front.
        """
        borders = np.zeros((len(lengths), lengths.shape[1] + 1), np.int64)
        np.cumsum(lengths, axis=1, out=borders[:, 1:])
        places = borders[:, self.spans[:, ::2]] + self.spans[:, 1::2] - cuts[:, None, None]
        places = np.where(self.spans[:, ::2] < 0, WHOLE, np.maximum(places, 0))
        rest = np.broadcast_to(self.rest, (len(lengths), *self.rest.shape))
        return np.concatenate([places, rest], axis=2).reshape(-1, len(Segment._fields))


_UNKNOWN: Any = object()


def _are_plain(messages: Any) -> bool:
    """Whether these are messages of a role and a content alone, both text."""
    try:
        texts = [message["role"] for message in messages]
        texts += [message["content"] for message in messages]
    except (TypeError, KeyError):
        return False
    return {str} == set(map(type, texts)) and {dict} == set(map(type, messages)) and {2} == set(map(len, messages))


def _moved(segment: Segment, cut: int) -> Segment:
    if segment[:2] == WHOLE:
        return segment
    return segment._replace(start=max(segment.start - cut, 0), stop=max(segment.stop - cut, 0))


def _own(message: Mapping[str, Any]) -> int:
    own = message.get("train")
    if own is None:
        own = message.get("weight")
    return UNSET if own is None else int(own)


def _text(value: Any, where: str, blank: bool = False) -> str | None:
    """A text field; None where it is missing (or blank, unless that counts as text)."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Reject("wrong_type", f"field {where!r} is {_describe(value)}, wanted a string")
    return value if blank or value.strip() else None


def _check_characters(text: str) -> None:
    # No parsed line has any; a step of the user's own, or JSON in a text (`tools`), may bring them.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Reject("bad_text", f"character {error.start} of a text is half of a surrogate pair") from None


def _check_messages(value: Any, where: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(messages, their roles)."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        raise Reject("wrong_type", f"field {where!r} is {_describe(value)}, wanted a list of messages")
    messages = [flatten_content(message, f"{where}[{turn}]") for turn, message in enumerate(value)]
    return messages, [check_message(message, f"{where}[{turn}]") for turn, message in enumerate(messages)]


def _variables(record: Record) -> dict[str, Any]:
    """What else the template is given: the record's `tools` and `chat_template_kwargs`."""
    schemas = tools(record)
    return ({} if schemas is None else {"tools": schemas}) | template_kwargs(record)


class _Values:
    """Collects the numbers of one output."""

    by_jinja = False

    def __init__(self, output: Output) -> None:
        self.field = output.sections[0].field
        self.numbers: list[float] = []
        self.rows = [0]
        self.listed = False

    def add(self, record: Record) -> bool:
        value = record.get(self.field)
        self.listed = isinstance(value, list)
        if value is None:
            value = []
        elif not isinstance(value, list):
            value = [value]
        for place, number in enumerate(value):
            if type(number) not in (int, float):
                raise Reject("wrong_type", f"field '{self.field}[{place}]' is {_describe(number)}, wanted a number")
            try:
                double = float(number)
            except OverflowError:
                raise Reject("bad_number", f"field '{self.field}[{place}]' is beyond a double") from None
            if double != number:
                wanted = "wanted one that a double holds exactly"
                raise Reject("bad_number", f"field '{self.field}[{place}]' is {_describe(number)}, {wanted}")
            self.numbers.append(double)
        self.rows.append(len(self.numbers))
        return bool(value)

    def undo(self, rows: int) -> None:
        del self.rows[rows + 1 :]
        del self.numbers[self.rows[-1] :]

    def build(self) -> Ragged:
        return Ragged(np.asarray(self.numbers, np.float64), np.asarray(self.rows, np.int64))


def check_message(message: Any, where: str) -> str:
    """The role of a message.

    Raises:
        Reject: `wrong_type`, `bad_message` or `bad_weight`: not an object, no role, content that is no string, a
            weight that is neither 0 nor 1, or not what `train` says.
    """
    if not isinstance(message, dict):
        raise Reject("wrong_type", f"{where!r} is {_describe(message)}, wanted a message (an object)")
    role = message.get("role")
    if not isinstance(role, str):
        found = "no role" if role is None else f"a role that is {_describe(role)}"
        raise Reject("bad_message", f"{where!r} has {found}, wanted a string")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise Reject("wrong_type", f"'{where}.content' is {_describe(content)}, wanted a string")
    if not isinstance(message.get("train"), bool | None):
        raise Reject("wrong_type", f"'{where}.train' is {_describe(message['train'])}, wanted true or false")
    if message.get("weight") is not None:
        _check_weight(message["weight"], message.get("train"), where)
    return role


def _check_weight(weight: Any, train: bool | None, where: str) -> None:
    # SlimOrca has 0.0 and 1.0: a column of numbers, some of them null, is one of floats.
    if type(weight) not in (int, float):
        raise Reject("wrong_type", f"'{where}.weight' is {_describe(weight)}, wanted 0 or 1")
    if weight not in (0, 1):
        raise Reject("bad_weight", f"'{where}.weight' is {_describe(weight)}, wanted 0 or 1: there are no loss weights")
    if train is not None and train != weight:
        found = f"train {'true' if train else 'false'} and weight {weight}"
        raise Reject("bad_weight", f"'{where}' has {found}, wanted one of them, or both alike")


def _list(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Reject("wrong_type", f"field {name!r} is {_describe(value)}, wanted a list (list_field is true)")
    return value


@step
def apply_template(
    records: Records, outputs: Sequence[Output], voice: Voice, domain_key: str | None = None
) -> Rendered:
    """Turns every record into pieces of text, by the sections of each output.

    A record that yields nothing is dropped (`empty`); one that yields only some of its outputs is rejected
    (`missing_source`), as is one whose lists and values differ in length (`count_mismatch`).
    """
    compared, agreed = (0, True) if voice.reference is None else _agree(records, outputs, voice)
    if not agreed:
        voice = replace(voice, template=voice.reference)
    roles: dict[str, int] = {}
    collectors: list[_Texts | _Values] = [
        _Values(output) if output.kind == "value" else _Texts(output, voice, roles) for output in outputs
    ]
    kept: list[int] = []
    domain: list[str] = []
    ledger = records.ledger.copy()
    made = Counter(records.made)
    countable = any(output.kind != "ids" for output in outputs)
    bulk = _bulk_of(records, collectors)
    rows = zip(records.line.tolist(), records.rows, strict=True) if bulk is None else bulk.others()
    for line, record in rows:
        try:
            if voice.rules.implicit_prompt:
                record = _with_prompt(record, outputs)
            yielded = [collector.add(record) for collector in collectors]
            if all(yielded):
                if countable:
                    _check_counts(outputs, collectors)
            elif any(yielded):
                missing = next(output for output, some in zip(outputs, yielded, strict=True) if not some)
                names = ", ".join(repr(section.field) for section in missing.sections)
                raise Reject("missing_source", f"nothing for {missing.name!r}: {names} absent or empty")
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        else:
            if any(yielded):
                kept.append(line)
                if voice.template is not None:
                    made["rendered_by_jinja" if any(c.by_jinja for c in collectors) else "rendered_by_plans"] += 1
                name = record.get(domain_key) if domain_key is not None else None
                domain.append(name if isinstance(name, str) else DEFAULT_DOMAIN)
                continue
            ledger.drop(line, "empty")
        for collector in collectors:
            collector.undo(len(kept))
    if compared:
        made["compared_with_jinja"] = compared
    if not agreed:
        made["blocks_rendered_again"] = 1
    if bulk is not None and (lines := bulk.add()):
        if voice.template is not None:
            made["rendered_as_columns"] += len(lines)
        kept += lines
        domain += bulk.domains(domain_key)
    rendered = Rendered(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, tuple(outputs), domain)
    rendered.made = dict(made)
    for output, collector in zip(outputs, collectors, strict=True):
        if isinstance(collector, _Texts):
            rendered.pieces[output.name] = collector.build()
        else:
            rendered.values[output.name] = collector.build()
    return rendered if bulk is None else _in_order(rendered)


def _in_order(rendered: Rendered) -> Rendered:
    """The same with its rows in the order of their lines.

    Raises:
        ValueError: a row is not one piece, without a BOS of its own, of every output; `Pieces.take` gives no other.
    """
    order = np.argsort(rendered.line)
    if (order[1:] > order[:-1]).all():
        return rendered
    each = np.arange(len(order) + 1)
    for name, found in rendered.pieces.items():
        plain = len(found.texts) == len(order) and not found.bos.any()
        if not (plain and np.array_equal(found.rows, each) and np.array_equal(found.sequences, each)):
            raise ValueError(f"the rows of {name!r} are not a piece each: they cannot be put in order")
    if rendered.values:
        raise ValueError(f"rows with values ({', '.join(rendered.values)}) cannot be put in order")
    pieces = {name: pieces.take(order) for name, pieces in rendered.pieces.items()}
    domain = [rendered.domain[place] for place in order.tolist()]
    return replace(rendered, line=rendered.line[order], domain=domain, pieces=pieces)


_TRIES = 8
_FEW = 4  # rows: as many are sooner rendered one by one


def _bulk_of(records: Records, collectors: "Sequence[_Texts | _Values]") -> "_BulkTexts | _BulkChats | None":
    """What takes rows that are columns all at once; None where all records have to be looked at."""
    columns, texts = records.columns, collectors[0]
    if columns is None or len(collectors) > 1 or not isinstance(texts, _Texts) or texts.voice.rules.implicit_prompt:
        return None
    output = texts.output
    if output.kind != "ids" or [section.field for section in output.sections] != [columns.field]:
        return None
    if columns.kind == "chats":
        return _BulkChats(records, columns, texts) if output.conversation else None
    train = not output.has_template and output.sections[0].action == "train"
    return _BulkTexts(records, columns, texts) if train else None


class _Bulk:
    """Rows that are columns: most are taken all at once, the others one by one."""

    def __init__(self, records: Records, columns: Columns, texts: _Texts) -> None:
        self._records, self._columns, self._texts = records, columns, texts
        self._rows: Array = np.zeros(0, np.int64)

    def _each(self, rows: Array) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows of a bool mask."""
        for row in np.flatnonzero(rows).tolist():
            yield int(self._records.line[row]), self._records.rows[row]

    def _doubtful(self) -> Array:
        """bool [rows]: a text may hold what has to be guarded."""
        guard = self._texts.guard
        if guard.rule == "keep" or not guard.controls:
            return np.zeros(len(self._columns), bool)
        return self._columns.rows_with(re.compile(b"|".join([re.escape(text.encode()) for text in guard.controls])))

    def _lines(self) -> list[int]:
        lines: list[int] = self._records.line[self._rows].tolist()
        return lines

    def domains(self, key: str | None) -> list[str]:
        """Of the rows that `add` added."""
        found = None if key is None else self._columns.strings(key)
        if found is None:
            return [DEFAULT_DOMAIN] * len(self._rows)
        return [DEFAULT_DOMAIN if (name := found[row]) is None else name for row in self._rows.tolist()]


class _BulkTexts(_Bulk):
    """Texts, of one section that is trained."""

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that have to be looked at, in order: then `add` adds the rest."""
        alone = ~self._columns.whole | self._doubtful()
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


class _BulkChats(_Bulk):
    """Chats: those of a known layout are rendered all at once."""

    def __init__(self, records: Records, columns: Columns, texts: _Texts) -> None:
        super().__init__(records, columns, texts)
        self._groups: list[tuple[PieceLayout, _Table, Array]] = []

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that have to be looked at, in order: then `add` adds the rest."""
        chats = self._columns
        alone = ~chats.whole | (np.diff(chats.offsets) == 0) | self._doubtful()
        begins, ends = chats.ends()
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
            alone[rows[~clear]] = True
            self._groups.append((layout, table, rows[clear]))
        yield from self._each(alone)

    def _layout(self, rows: Array) -> "tuple[PieceLayout, _Table] | None":
        """What all of these rows, of one pattern, have in common; None where that is not known."""
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
                table = texts._table_of(layout, messages, (len(messages),))
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
            pieces = Ragged.from_lengths(np.concatenate(places), widths)
            self._texts.add_in_bulk(join(chats.text, list(constants), pieces, np.concatenate(sizes)), groups)
        return self._lines()


_SAMPLED = 16


def sample(digest: str, count: int, limit: int) -> Array:
    """Places of some of a block's rows, by a hash of the block and the place: the same whoever works on it."""
    seed = np.uint64(int(digest[:16], 16))
    hashed = (np.arange(count, dtype=np.uint64) ^ seed) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(hashed ^ (hashed >> np.uint64(29)), kind="stable")[:limit]


def _agree(records: Records, outputs: Sequence[Output], voice: Voice) -> tuple[int, bool]:
    """How many records were drawn, and whether the reference renders them in the same way."""
    places = np.sort(sample(records.origin.digest, len(records), _SAMPLED))
    rows = [records.rows[place] for place in places.tolist()]
    mine, theirs = (
        apply_template(
            replace(
                records,
                rows=rows,
                columns=None,
                line=np.arange(len(rows), dtype=np.int32),
                ledger=Ledger(b"", np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)),
            ),
            outputs,
            replace(voice, template=template, reference=None),
        )
        for template in (voice.template, voice.reference)
    )
    ledgers = [(made.ledger.status.tolist(), made.ledger.messages) for made in (mine, theirs)]
    equal = all(pieces.equals(theirs.pieces[name]) for name, pieces in mine.pieces.items())
    return len(rows), equal and ledgers[0] == ledgers[1]


def _with_prompt(record: Record, outputs: Sequence[Output]) -> Record:
    """The longest common beginning of both sides of a preference row, messages or characters, as its prompt.

    As TRL's extract_prompt: where one side is the beginning of the other, the last shared element stays out of the
    prompt; a prompt of characters steps back over a final space. A prompt that is text beside sides that are messages
    (UltraFeedback has these) only repeats what the sides begin with, and is not read.
    """
    prompt = outputs[0].sections[0].field
    names = [output.sections[-1].field for output in outputs[:2]]
    one, other = (record.get(name) for name in names)
    if not one or not other or not isinstance(one, str | list) or not isinstance(other, str | list):
        return record  # the sections say what is wrong with it
    given = record.get(prompt)
    if given is not None and not (isinstance(given, str) and isinstance(one, list) and isinstance(other, list)):
        return record
    if type(one) is not type(other):
        raise Reject("wrong_type", f"{names[0]!r} is {_describe(one)}, {names[1]!r} is {_describe(other)}")
    if one == other:
        raise Reject("equal_sides", f"{names[0]!r} and {names[1]!r} are equal, wanted a difference")
    size = min(len(one), len(other))
    at = next((place for place in range(size) if one[place] != other[place]), size - 1)
    if isinstance(one, str) and at and one[at - 1] == " ":
        at -= 1
    return {**record, prompt: one[:at], names[0]: one[at:], names[1]: other[at:]}


def _check_counts(outputs: Sequence[Output], collectors: list[Any]) -> None:
    counts = {
        output.name: collector.rows[-1] - collector.rows[-2]
        for output, collector in zip(outputs, collectors, strict=True)
        if output.kind == "list" or (output.kind == "value" and collector.listed)
    }
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
