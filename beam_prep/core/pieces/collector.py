"""Collects the pieces of text that the records of a block give to one output."""

from collections import Counter
from typing import Any

from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.pieces.builder import BulkPieces, PiecesBuilder
from beam_prep.core.pieces.checks import guarded_messages, list_of, text_of
from beam_prep.core.pieces.conversations import ConversationCollector
from beam_prep.core.pieces.message_weights import MessageWeights
from beam_prep.core.pieces.rendered import BY_ROLE, MASK, TRAIN, WHOLE, Pieces, Segment
from beam_prep.core.pieces.renderer import Renderer
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record

ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class TextCollector:
    """Collects the pieces of one output; `undo` takes the last row back."""

    def __init__(self, output: Output, voice: Voice, roles: dict[str, int]) -> None:
        self.output = output
        self.voice = voice
        self.guard = voice.guard
        self.roles = roles
        self._of_lists = output.kind == "list"
        self._of_conversations = output.conversation
        self._builder = PiecesBuilder()
        self._weights = MessageWeights()
        self._renderer = None if voice.template is None else Renderer(voice, output)
        self._conversations = (
            None
            if self._renderer is None or not output.conversation
            else ConversationCollector(output, voice, self._renderer, roles, self._builder, self._weights)
        )

    @property
    def rows(self) -> list[int]:
        """Borders of rows, in sequences."""
        return self._builder.rows

    @property
    def by_jinja(self) -> bool:
        """True if anything of the last record was not rendered by a plan."""
        return self._renderer is not None and self._renderer.by_jinja

    @property
    def made(self) -> Counter[str]:
        """Counts for `run.json`."""
        return Counter() if self._conversations is None else self._conversations.made

    @property
    def conversations(self) -> ConversationCollector:
        """Collects the rows of an output whose sections are a conversation."""
        assert self._conversations is not None
        return self._conversations

    def add(self, record: Record) -> bool:
        """Adds a row; gives True if it yielded anything."""
        if self._renderer is not None:
            self._renderer.by_jinja = False
        before = len(self._builder)
        if self._of_lists:
            self._list_row(record)
        else:
            if self._of_conversations:
                self.conversations.add(record)
            elif self.output.joint:
                self._joint(record)
            else:
                self._sections(record)
            self._builder.end_sequence()
        self._builder.end_row()
        return len(self._builder) > before

    def add_in_bulk(self, pieces: BulkPieces) -> None:
        """Adds pieces after all others, once."""
        self._builder.add_in_bulk(pieces)

    @property
    def characters(self) -> int:
        """Of all texts that were added one by one."""
        return self._builder.characters

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        self._builder.undo(rows)

    def build(self, order: Array | None = None) -> Pieces:
        """The pieces of all rows; for `order` see `PiecesBuilder.build`."""
        bos = self.output.kind == "ids" and self.output.has_template and not self.output.conversation
        return self._builder.build(tuple(self.roles), bos, self._weights.values(), order)

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
                    special = bool(section.add_special_tokens)
                    self._builder.add_piece(text, special, Segment(*WHOLE, ACTIONS[section.action]))
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
                self._builder.add_piece(text, special, Segment(*WHOLE, ACTIONS[section.action]))
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
        if masked == 0:
            self._builder.add_piece(joined, special, Segment(*WHOLE, TRAIN))
        else:
            prompt = "".join(text or "" for text in texts[:masked])
            self._builder.add_piece(joined, special, Segment(*WHOLE, TRAIN), prompt=prompt)

    def _messages(self, section: Section, value: Any, where: str) -> bool:
        """Adds each message, rendered alone; gives True if there is any."""
        assert self._renderer is not None
        messages, roles = guarded_messages(self.guard, value, where, self.output.weights_name is not None)
        for turn, (message, role) in enumerate(zip(messages, roles, strict=True)):
            try:
                text = self._renderer.text([message], False, {})
            except Reject as reject:
                lacks = " has no content" if message.get("content") is None else ""
                raise Reject(reject.reason, f"'{where}[{turn}]'{lacks}: {reject.message}") from None
            code = self.roles.setdefault(role, len(self.roles))
            segment = Segment(*WHOLE, ACTIONS[section.action], code, turn, self._weights.code(message))
            self._builder.add_piece(text, False, segment, message_roles=(code,))
        return bool(messages)
