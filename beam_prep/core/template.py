"""Records -> `Rendered`: pieces of text to encode, each with its role and action."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from beam_prep.core.adapters import flatten_content, template_kwargs, tools
from beam_prep.core.block import Block, Ledger, Reject
from beam_prep.core.chat_template import FENCES, ChatTemplate, RenderedChat
from beam_prep.core.columns import Columns, Texts, concat, end_with, join, take
from beam_prep.core.control import Guard
from beam_prep.core.conversation import Said, Speech
from beam_prep.core.ragged import Array, Ragged, offsets_of
from beam_prep.core.records import Record, Records, _describe
from beam_prep.core.render_plan import Layout
from beam_prep.core.schema import Output, Section, TextRules
from beam_prep.core.speech_plan import Place, PlacedSaid, place_prompt, place_speech

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
        own: the message's own `train` key, 1 or 0; UNSET without.
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
        prompt_end: int64 [pieces]: the prompt is the beginning of the piece, so many characters; -1 otherwise.
        tail: int64 [pieces]: index into `tails`: how such a prompt ends; -1 where nothing is known of that.
        tails: (text of a special token, text behind it to the end of the prompt).
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
    tail: Array
    tails: tuple[tuple[str, str], ...]
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

    @property
    def prompted(self) -> Array:
        """int64: the pieces with a prompt, ascending."""
        has = self.prompt_end >= 0
        has[list(self.prompts)] = True
        return np.flatnonzero(has)

    @property
    def cut(self) -> Array:
        """int64 [pieces]: the character at which the tail of the prompt begins; only where it has one."""
        sizes = np.array([len(tail) for _, tail in self.tails] or [0], np.int64)
        return np.asarray(self.prompt_end - sizes[self.tail])

    def prompt(self, piece: int) -> str:
        """The text of a piece's prompt."""
        return self.prompts[piece] if piece in self.prompts else self.texts[piece][: self.prompt_end[piece]]

    def equals(self, other: "Pieces") -> bool:
        """Whether both hold the same."""
        if (self.texts, self.roles) != (other.texts, other.roles):
            return False
        mine, theirs = ({place: each.prompt(place) for place in each.prompted.tolist()} for each in (self, other))
        if mine != theirs:
            return False
        names = ("special", "segments", "borders", "sequences", "rows", "bos")
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
            self.tail[places],
            self.tails,
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
        self.segments: list[Segment] = []
        self.borders = [0]
        self.sequences = [0]
        self.rows = [0]
        self.tails: dict[tuple[str, str], int] = {}
        self.by_jinja = False  # something of the present record was not rendered by a plan
        self._tables: dict[tuple[Layout, tuple[int, ...]], _Table | None] = {}
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
        text, cut, special = self._cut_bos(chat.text)
        prompt = self._prompt(messages, actions, variables)
        speech = functools.partial(Speech(template, self.voice.controls).find, chat, messages, variables)
        segments = list(self._segments(speech, messages, actions, prompt is not None))
        if cut:
            segments = [_moved(segment, cut) for segment in segments]
        self._piece(text, special, *segments, prompt=prompt, said=self._codes(messages))

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
        for place in table.begin:
            if not pieces[place][:1].strip():
                return False
        text = "".join(pieces)
        if not text.isascii() and any(fence in text for fence in FENCES):
            return False
        text, cut, special = self._cut_bos(text)
        prompt = self._prompt(messages, self._actions(counts), {}) if table.asks else None
        self._measured[len(self.texts)] = table, tuple(map(len, pieces)), cut
        self._piece(text, special, prompt=prompt, said=table.said)
        return True

    def _codes(self, messages: list[dict[str, Any]]) -> list[int]:
        """The roles of messages."""
        return [self.roles.setdefault(message["role"], len(self.roles)) for message in messages]

    def _actions(self, counts: Sequence[int]) -> list[str]:
        """Of each message, from the messages of each section."""
        sections = self.output.sections
        return [section.action for section, count in zip(sections, counts, strict=True) for _ in range(count)]

    def _table_of(self, layout: Layout, messages: list[dict[str, Any]], counts: tuple[int, ...]) -> "_Table | None":
        """See `_table`; made once."""
        key = layout, counts
        table: _Table | None = self._tables.get(key, _UNKNOWN)
        if table is _UNKNOWN:
            table = self._tables[key] = self._table(layout, messages, counts)
        return table

    def forget(self, layout: Layout) -> None:
        """Makes the tables of a layout anew when they are asked for."""
        for key in [key for key in self._tables if key[0] is layout]:
            del self._tables[key]

    def _table(self, layout: Layout, messages: list[dict[str, Any]], counts: Sequence[int]) -> "_Table | None":
        """The segments of all conversations of a layout; None where they depend on what is said."""
        template = self.voice.template
        assert template is not None
        if not _are_plain(messages):  # nor is any other that is rendered so
            return None
        actions = self._actions(counts)
        prompted = self._masked(messages, actions) is not None
        placed: list[PlacedSaid] = []

        def speech() -> list[Said]:
            roles = tuple(message["role"] for message in messages)
            found = place_speech(layout, roles, template, self.voice.controls)
            if found is None:
                raise _NoTableError
            placed.extend(found)
            return [Said(said.message, number, number, True) for number, said in enumerate(found)]

        try:
            segments = list(self._segments(speech, messages, actions, prompted))
        except _NoTableError:
            return None
        places = [(*said.start, *said.stop) for said in placed]
        spans = [places[segment.start] if segment.stop >= 0 else (-1,) * 4 for segment in segments]
        # An answer's begin is where the header ends; any other's is where its content begins.
        begin = [said.start.piece for said in placed if layout.plain_content[said.start.piece] == said.message]
        prompt, tail = self._placed_prompt(layout, messages, actions) if prompted else (None, None)
        return _Table(
            np.array(spans, np.int64).reshape(-1, 4),
            np.array([segment[2:] for segment in segments], np.int64).reshape(-1, len(Segment._fields) - 2),
            tuple(begin),
            prompt,
            -1 if tail is None else self.tails.setdefault(tail, len(self.tails)),
            prompted and prompt is None,
            tuple(self._codes(messages)),
        )

    def _placed_prompt(
        self, layout: Layout, messages: list[dict[str, Any]], actions: list[str]
    ) -> tuple[Place | None, tuple[str, str] | None]:
        """Where the prompt ends, in pieces, if it is the beginning of every conversation of a layout; and its tail."""
        template = self.voice.template
        assert template is not None
        masked = self._masked(messages, actions)
        prompt = template.planned(messages[:masked], add_generation_prompt=True)
        return (None, None) if prompt is None else place_prompt(layout, prompt.layout, self.voice.controls)

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

    def _prompt(self, messages: list[dict[str, Any]], actions: list[str], variables: dict[str, Any]) -> str | None:
        """The prompt's text with the generation prompt, where what follows the prompt is trained."""
        masked = self._masked(messages, actions)
        if masked is None:
            return None
        assert self.voice.template is not None
        rendered = self._render(self.voice.template, messages[:masked], True, variables)
        return self._cut_bos(rendered)[0]

    def _segments(
        self, speech: Callable[[], list[Said]], messages: list[dict[str, Any]], actions: list[str], prompted: bool
    ) -> Iterator[Segment]:
        """What of the conversation can be trained: by message, or the whole."""
        own = [_own(message) for message in messages]
        roles = self._codes(messages)
        last = len(messages) - 1
        if prompted and own[last] != 0:
            # The part behind the prompt: where it begins is known when both are encoded.
            yield Segment(*WHOLE, TRAIN, roles[last], last)
        if all(action == "train" for action in actions) and set(own) <= {UNSET, 1}:
            yield Segment(*WHOLE, TRAIN)
            return
        if "$role" not in actions and set(own) == {UNSET}:
            return
        for said in speech():
            place = said.message
            if (prompted and own[place] != 1) or actions[place] == "mask":
                continue
            action = BY_ROLE if actions[place] == "$role" else TRAIN
            yield Segment(said.start, said.stop, action, roles[place], place, own[place], int(said.proven))

    def build(self) -> Pieces:
        sequences = np.asarray(self.sequences, np.int64)
        bos = self.output.kind == "ids" and self.output.has_template and not self.output.conversation
        by_table = self._by_table()
        segments, borders = self._all_segments(by_table)
        prompt_end, tail = self._prompt_ends(by_table)
        texts: Sequence[str] = self.texts
        if self._bulk is not None:
            texts = concat(texts, self._bulk) if texts else self._bulk
        return Pieces(
            texts,
            np.asarray(self.special, bool),
            self.prompts,
            prompt_end,
            tail,
            tuple(self.tails),
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

    def _prompt_ends(self, by_table: "list[tuple[_Table, Array, Array, Array]]") -> tuple[Array, Array]:
        """`prompt_end` and `tail` of `Pieces`."""
        ends, tails = np.full((2, len(self.special)), -1)
        for table, pieces, lengths, cuts in by_table:
            if table.prompt is not None:
                ends[pieces] = lengths[:, : table.prompt.piece].sum(axis=1) + table.prompt.characters - cuts
                tails[pieces] = table.tail
        return ends, tails

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


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The segments of every conversation of a layout.

    Attributes:
        spans: int64 [segments, 4]: piece and characters behind its begin, of a segment's begin and end; -1 = the whole.
        rest: int64 [segments, 5]: the other fields of `Segment`.
        begin: pieces that must not begin with white space, or be empty, for this to hold.
        prompt: where the prompt ends.
        tail: how it ends: see `Pieces`.
        asks: there is a prompt, and it is rendered for each conversation.
        said: the roles of the messages.
    """

    spans: Array
    rest: Array
    begin: tuple[int, ...]
    prompt: Place | None
    tail: int
    asks: bool
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
    return UNSET if own is None else int(own)


def _text(value: Any, where: str, blank: bool = False) -> str | None:
    """A text field; None where it is missing (or blank, unless that counts as text)."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Reject("wrong_type", f"field {where!r} is {_describe(value)}, wanted a string")
    return value if blank or value.strip() else None


def _check_characters(text: str) -> None:
    # No parsed line has any; a step of the user's own may make them, and no tokenizer takes them.
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
        Reject: `wrong_type` or `bad_message`: not an object, no role, content that is no string.
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
    return role


def _list(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Reject("wrong_type", f"field {name!r} is {_describe(value)}, wanted a list (list_field is true)")
    return value


def apply_template(
    records: Records, outputs: Sequence[Output], voice: Voice, domain_key: str | None = None
) -> Rendered:
    """Turns every record into pieces of text, by the sections of each output.

    A record that yields nothing is dropped (`empty`); one that yields only some of its outputs is rejected
    (`missing_source`), as is one whose lists and values differ in length (`count_mismatch`).
    """
    agreed = voice.reference is None or _agree(records, outputs, voice)
    if not agreed:
        voice = replace(voice, template=voice.reference)
    roles: dict[str, int] = {}
    collectors: list[_Texts | _Values] = [
        _Values(output) if output.kind == "value" else _Texts(output, voice, roles) for output in outputs
    ]
    kept: list[int] = []
    domain: list[str] = []
    ledger = records.ledger
    made = Counter[str]()
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
    """The same with its rows, a piece each, in the order of their lines."""
    order = np.argsort(rendered.line)
    if (order[1:] > order[:-1]).all():
        return rendered
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

    def _doubtful(self, *texts: str) -> Array:
        """bool [rows]: a text may hold one of these, or what has to be guarded."""
        guard = self._texts.guard
        wanted = texts if guard.rule == "keep" else (*texts, *guard.controls)
        if not wanted:
            return np.zeros(len(self._columns), bool)
        return self._columns.rows_with(re.compile(b"|".join([re.escape(text.encode()) for text in wanted])))

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
        self._groups: list[tuple[Layout, _Table, Array]] = []

    def others(self) -> Iterator[tuple[int, Record]]:
        """(line, record) of the rows that have to be looked at, in order: then `add` adds the rest."""
        chats = self._columns
        alone = ~chats.whole | (np.diff(chats.offsets) == 0) | self._doubtful(*FENCES)
        begins, ends = chats.ends()
        for rows in chats.patterns():
            rows = rows[~alone[rows]]
            found = self._layout(rows) if len(rows) >= _FEW else None
            if found is None:
                alone[rows] = True
                continue
            layout, table = found
            first = chats.offsets[rows][:, None]
            end = np.array(sorted(layout.stripped), np.int64)
            begin = np.append(end, [layout.plain_content[piece] for piece in table.begin]).astype(np.int64)
            clear = begins[first + begin].all(axis=1) & ends[first + end].all(axis=1)
            alone[rows[~clear]] = True
            self._groups.append((layout, table, rows[clear]))
        yield from self._each(alone)

    def _layout(self, rows: Array) -> "tuple[Layout, _Table] | None":
        """What all of these rows, of one pattern, have in common; None where that is not known."""
        texts = self._texts
        template = texts.voice.template
        assert template is not None
        for row in rows[:_TRIES].tolist():
            try:
                messages = texts.guard(self._records.rows[row][self._columns.field])
                layout = template.settled(messages, len(rows))
                if layout is None:
                    template.planned(messages)  # which may record a plan, or have jinja confirm it
                    continue
                table = texts._table_of(layout, messages, (len(messages),))
            except Reject:  # so is each of them, for its own reason
                return None
            if table is None or not table.asks:
                return None if table is None else (layout, table)
            texts.forget(layout)  # there may be a plan of the next one's prompt
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


def _agree(records: Records, outputs: Sequence[Output], voice: Voice) -> bool:
    """Whether the reference renders a sample of the records in the same way."""
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
    return ledgers[0] == ledgers[1] and all(pieces.equals(theirs.pieces[name]) for name, pieces in mine.pieces.items())


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
