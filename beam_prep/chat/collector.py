"""Collects the pieces of text, or the numbers, that the records of a block give to one output."""

from typing import Any

import numpy as np

from beam_prep.chat.checks import check_characters, guarded_messages, list_of, text_of
from beam_prep.chat.conversation import ConversationCollector, MessageWeights
from beam_prep.chat.texts import BY_ROLE, MASK, TRAIN, WHOLE, Pieces, PiecesBuilder, Segment
from beam_prep.chat.voice import Voice
from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record
from beam_prep.core.reading.rollouts import exact_double

ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class TextCollector:
    """Collects the pieces of one output; `undo` takes the last row back.

    Args:
        output: the output.
        voice: renders it.
        roles: the roles of the block: name -> code; new ones are added.
        from_table: the records are rows of a table.

    Attributes:
        conversations: collects the rows, if the sections are a conversation.
    """

    def __init__(self, output: Output, voice: Voice, roles: dict[str, int], from_table: bool = False) -> None:
        self.output, self.voice, self.guard, self.roles = output, voice, voice.guard, roles
        self._builder, self._weights = PiecesBuilder(), MessageWeights()
        self.conversations = (
            ConversationCollector(output, voice, roles, self._builder, self._weights, from_table)
            if output.conversation
            else None
        )

    @property
    def rows(self) -> list[int]:
        """Borders of rows, in sequences."""
        return self._builder.rows

    @property
    def characters(self) -> int:
        """Of all texts."""
        return self._builder.characters

    def add(self, record: Record) -> bool:
        """Adds a row; gives True if it yielded anything."""
        before = len(self._builder)
        if self.output.kind == "list":
            self._list_row(record)
        else:
            if self.conversations is not None:
                self.conversations.add(record)
            elif self.output.joint:
                self._joint(record)
            else:
                self._sections(record)
            self._builder.end_sequence()
        self._builder.end_row()
        return len(self._builder) > before

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        self._builder.undo(rows)
        if self.conversations is not None:
            self.conversations.counted.clear()

    def build(self) -> Pieces:
        """The pieces of all rows."""
        bos = self.output.kind == "ids" and self.output.has_template and not self.output.conversation
        return self._builder.build(tuple(self.roles), bos, self._weights.values())

    def _add_text(self, text: str, special: bool, action: int, prompt: str | None = None) -> None:
        if not text.isascii():
            check_characters(text)
        self._builder.add_piece(text, special, (Segment(*WHOLE, action),), prompt)

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
                    self._add_text(text, bool(section.add_special_tokens), ACTIONS[section.action])
                self._builder.end_sequence()

    def _sections(self, record: Record) -> None:
        """Adds the text of each section, and of each message, as a piece of its own."""
        blank = self.voice.rules.eos != "never"
        texts = [
            None if section.template else self.guard(text_of(record.get(section.field), section.field, blank))
            for section in self.output.sections
        ]
        self._finish(texts)
        first = True
        for section, text in zip(self.output.sections, texts, strict=True):
            if section.template is not None:
                yielded = self._messages(section, record.get(section.field), section.field)
            elif text:
                special = first if section.add_special_tokens is None else section.add_special_tokens
                self._add_text(text, special, ACTIONS[section.action])
                yielded = True
            else:
                yielded = False
            first = first and not yielded

    def _finish(self, texts: list[str | None]) -> None:
        """Reorders the document for filling in the middle, and ends it with EOS, by the rules.

        The EOS token's text is appended to the last text section, even to a blank one, but not to a missing one.
        """
        rules, eos, fim = self.voice.rules, self.voice.eos, self.voice.fim
        if fim is not None and (document := texts[-1]):
            end = eos if eos and document.endswith(eos) else ""
            texts[-1] = fim(document.removesuffix(end)) + end
        text = texts[-1]
        if rules.eos == "never" or self.output.has_template or text is None:
            return
        if rules.eos == "always" or not text.endswith(self.voice.eos):
            texts[-1] = text + self.voice.eos

    def _joint(self, record: Record) -> None:
        """All sections, joined before they are encoded; the leading `mask` sections are the prompt."""
        sections = self.output.sections
        texts = [self.guard(text_of(record.get(section.field), section.field, blank=True)) for section in sections]
        if self.voice.rules.eos == "never" and not any(text and text.strip() for text in texts):
            return
        self._finish(texts)
        joined = "".join(text or "" for text in texts)
        if not joined:
            return
        masked = next((place for place, section in enumerate(sections) if section.action != "mask"), len(sections))
        special = sections[0].add_special_tokens is not False
        prompt = "".join(text or "" for text in texts[:masked]) if masked else None
        self._add_text(joined, special, TRAIN, prompt)

    def _messages(self, section: Section, value: Any, where: str) -> bool:
        """Adds each message, rendered alone; gives True if there is any."""
        template = self.voice.template
        assert template is not None
        messages = guarded_messages(self.guard, value, where, self.output.weights_name is not None)
        variables = self.voice.rules.template_variables or {}
        for turn, message in enumerate(messages):
            try:
                text = template.text([message], **variables)
            except Reject as reject:
                lacks = " has no content" if message.get("content") is None else ""
                raise Reject(reject.reason, f"'{where}[{turn}]'{lacks}: {reject.message}") from None
            if not text.isascii():
                check_characters(text)
            code = self.roles.setdefault(message["role"], len(self.roles))
            segment = Segment(*WHOLE, ACTIONS[section.action], code, turn, self._weights.code(message))
            self._builder.add_piece(text, False, (segment,), message_roles=(code,))
        return bool(messages)


class ValueCollector:
    """Collects the numbers of one output."""

    def __init__(self, output: Output) -> None:
        self.field = output.sections[0].field
        self.rows = [0]
        self.listed = False
        self._numbers: list[float] = []

    def add(self, record: Record) -> bool:
        """Adds a row; gives True if it yielded anything."""
        value = record.get(self.field)
        self.listed = isinstance(value, list)
        if value is None:
            value = []
        elif not isinstance(value, list):
            value = [value]
        for place, number in enumerate(value):
            self._numbers.append(exact_double(number, f"{self.field}[{place}]"))
        self.rows.append(len(self._numbers))
        return bool(value)

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        del self.rows[rows + 1 :]
        del self._numbers[self.rows[-1] :]

    def build(self) -> Ragged:
        """The numbers of all rows."""
        return Ragged(np.asarray(self._numbers, np.float64), np.asarray(self.rows, np.int64))
