"""Collects the pieces of text, or the numbers, that the records of a block give to one output."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from beam_prep.chat.checks import checked, guarded_messages, list_of, text_of
from beam_prep.chat.conversation import Conversations
from beam_prep.chat.pieces import Codes, Piece, Row, pieces_of, weight_code
from beam_prep.chat.voice import Voice
from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.rendered import BY_ROLE, MASK, TRAIN, WHOLE, Pieces, Segment
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record
from beam_prep.core.reading.rollouts import exact_double

ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class TextCollector:
    """Collects the rows of one output.

    Args:
        output: the output.
        voice: renders it.
        roles: codes of the roles of the block; new ones are added.
        from_table: the records are rows of a table.

    Attributes:
        rows: as far as they are kept.
        listed: the last row was a list.
        conversations: renders the rows, if the sections are a conversation.
    """

    def __init__(self, output: Output, voice: Voice, roles: Codes[str], from_table: bool = False) -> None:
        self.output, self.voice, self.roles, self.listed = output, voice, roles, output.kind == "list"
        self.rows: list[Row] = []
        self._weights: Codes[float] = {0.0: 0, 1.0: 1}
        self.conversations = None
        if output.conversation:
            self.conversations = Conversations(output, voice, roles, self._weights, from_table)

    def row(self, record: Record) -> Row:
        """The sequences of a record.

        Raises:
            Reject: it cannot be used.
        """
        if self.output.kind == "list":
            return [*self._list_row(record)]
        if self.conversations is not None:
            return [self.conversations.pieces(record)]
        return [self._joint(record) if self.output.joint else [*self._sections(record)]]

    def build(self) -> Pieces:
        """The pieces of all rows."""
        bos = self.output.kind == "ids" and self.output.has_template and self.conversations is None
        reasons = () if self.conversations is None else tuple(self.conversations.reasons)
        return pieces_of(self.rows, tuple(self.roles), bos, np.array(list(self._weights)), reasons)

    def _list_row(self, record: Record) -> Iterator[list[Piece]]:
        for section in self.output.sections:
            for place, element in enumerate(list_of(record, section.field)):
                where = f"{section.field}[{place}]"
                if section.template is not None:
                    if not isinstance(element, list | None):
                        found = f"field {section.field!r} holds {describe(element)} at [{place}]"
                        raise Reject("wrong_type", f"{found}, wanted lists of messages (texts want template: false)")
                    yield [*self._messages(section, element, where)]
                else:
                    text = self.voice.guard(text_of(element, where))
                    yield [_piece(text, bool(section.add_special_tokens), section.action)] if text else []

    def _sections(self, record: Record) -> Iterator[Piece]:
        """The text of each section, and of each message, as a piece of its own."""
        blank = self.voice.rules.eos != "never"
        texts = [
            None if section.template else self.voice.guard(text_of(record.get(section.field), section.field, blank))
            for section in self.output.sections
        ]
        self._finish(texts)
        first = True
        for section, text in zip(self.output.sections, texts, strict=True):
            if section.template is not None:
                pieces = [*self._messages(section, record.get(section.field), section.field)]
                yield from pieces
                first = first and not pieces
            elif text:
                special = first if section.add_special_tokens is None else section.add_special_tokens
                yield _piece(text, special, section.action)
                first = False

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

    def _joint(self, record: Record) -> list[Piece]:
        """All sections, joined before they are encoded; the leading `mask` sections are the prompt."""
        sections = self.output.sections
        texts = [
            self.voice.guard(text_of(record.get(section.field), section.field, blank=True)) for section in sections
        ]
        if self.voice.rules.eos == "never" and not any(text and text.strip() for text in texts):
            return []
        self._finish(texts)
        joined = "".join(text or "" for text in texts)
        masked = next((place for place, section in enumerate(sections) if section.action != "mask"), len(sections))
        prompt = "".join(text or "" for text in texts[:masked]) if masked else None
        return [_piece(joined, sections[0].add_special_tokens is not False, "train", prompt)] if joined else []

    def _messages(self, section: Section, value: Any, where: str) -> Iterator[Piece]:
        """Each message, rendered alone."""
        template = self.voice.template
        assert template is not None
        variables = self.voice.rules.template_variables or {}
        for turn, message in enumerate(
            guarded_messages(self.voice.guard, value, where, self.output.weights_name is not None)
        ):
            try:
                text = template.text([message], **variables)
            except Reject as reject:
                lacks = " has no content" if message.get("content") is None else ""
                raise Reject(reject.reason, f"'{where}[{turn}]'{lacks}: {reject.message}") from None
            code = self.roles.setdefault(message["role"], len(self.roles))
            segment = Segment(*WHOLE, ACTIONS[section.action], code, turn, weight_code(self._weights, message))
            yield Piece(checked(text), False, (segment,), roles=(code,))


def _piece(text: str, special: bool, action: str, prompt: str | None = None) -> Piece:
    return Piece(checked(text), special, (Segment(*WHOLE, ACTIONS[action]),), prompt)


class ValueCollector:
    """Collects the numbers of one output. For attributes see `TextCollector`."""

    conversations = None

    def __init__(self, output: Output) -> None:
        self.field, self.listed = output.sections[0].field, False
        self.rows: list[list[float]] = []

    def row(self, record: Record) -> list[float]:
        """The numbers of a record."""
        value = record.get(self.field)
        self.listed = isinstance(value, list)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return [exact_double(number, f"{self.field}[{place}]") for place, number in enumerate(values)]

    def build(self) -> Ragged:
        """The numbers of all rows."""
        return Ragged.from_lists(self.rows, np.float64)
