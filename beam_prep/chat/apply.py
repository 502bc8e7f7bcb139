"""`apply_template`: renders records as pieces of text."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from beam_prep.chat.chat_format import ChatFormat, chat_format_of
from beam_prep.chat.checks import check_messages, checked, list_of, text_of
from beam_prep.chat.conversation import DIFFERENT, Conversations
from beam_prep.data.block import Reject, sample, step, without_collector
from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Ragged
from beam_prep.data.rendered import (
    BY_ROLE,
    MASK,
    TRAIN,
    WHOLE,
    Codes,
    Piece,
    Pieces,
    Rendered,
    Segment,
    pieces_of,
    weight_code,
)
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.errors import RunError
from beam_prep.reading.adapters import message_list, record_domain, record_weight, template_kwargs
from beam_prep.reading.not_text import DROPPED, text_only
from beam_prep.reading.prompts import sides_of, with_prompt
from beam_prep.reading.records import Record, Records, check_values, describe, lines_beyond_json
from beam_prep.reading.rollouts import exact_double
from beam_prep.tokens.tokenizer import Tokenizer

ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE, "$last": TRAIN}


class _Collector:
    """Collects the rows of one output.

    Args:
        output: the output.
        chat_format: renders it.
        roles: codes of the roles of the block; new ones are added.

    Attributes:
        rows: the kept rows.
        listed: True if the last row was a list.
        conversations: renders the rows, if the sections are a conversation.
    """

    def __init__(self, output: Output, chat_format: ChatFormat, roles: Codes[str]) -> None:
        self.output, self.chat_format, self.roles, self.listed = output, chat_format, roles, output.kind == "list"
        self.rows: list[Any] = []
        self._weights: Codes[float] = {0.0: 0, 1.0: 1}
        self.conversations = None
        if output.conversation:
            self.conversations = Conversations(output, chat_format, roles, self._weights)

    def rows_of(self, record: Record) -> Sequence[Any]:
        """The rows of a record, each as its sequences or numbers. Only a conversation may give several rows, or none.

        Raises:
            Reject: the record cannot be used.
        """
        if self.output.kind == "value":
            return [self._numbers(record)]
        if self.output.kind == "list":
            return [[*self._list_row(record)]]
        if self.conversations is not None:
            return [[[piece]] for piece in self.conversations.pieces(record)] or [[[]]]
        return [[self._joint(record) if self.output.joint else [*self._sections(record)]]]

    def build(self) -> Pieces | Ragged:
        """The pieces, or the numbers, of all rows."""
        if self.output.kind == "value":
            return Ragged.from_lists(self.rows, np.float64)
        bos = self.output.kind == "ids" and self.output.has_template and self.conversations is None
        reasons = () if self.conversations is None else tuple(self.conversations.reasons)
        return pieces_of(self.rows, tuple(self.roles), bos, np.array(list(self._weights)), reasons)

    def _numbers(self, record: Record) -> list[float]:
        field = self.output.sections[0].field
        value = record.get(field)
        self.listed = isinstance(value, list)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return [exact_double(number, f"{field}[{place}]") for place, number in enumerate(values)]

    def _list_row(self, record: Record) -> Iterator[list[Piece]]:
        for section in self.output.sections:
            for place, element in enumerate(list_of(record, section.field)):
                where = f"{section.field}[{place}]"
                if section.template is not None:
                    if not isinstance(element, list | None):
                        found = f"field {section.field!r} holds {describe(element)} at [{place}]"
                        raise Reject("wrong_type", f"{found}, wanted lists of messages (texts want template: false)")
                    yield [*self._messages(record, section, element, where)]
                else:
                    text = self.chat_format.guard(text_of(element, where), where)
                    yield [_piece(text, bool(section.add_special_tokens), section.action)] if text else []

    def _sections(self, record: Record) -> Iterator[Piece]:
        """A piece for the text of each section, and for each message."""
        blank = self.chat_format.rules.eos != "never" and self.output.trains
        texts = [
            None
            if section.template
            else self.chat_format.guard(text_of(record.get(section.field), section.field, blank), section.field)
            for section in self.output.sections
        ]
        parts = self._finish(texts)
        first = True
        for section, text in zip(self.output.sections, texts, strict=True):
            if section.template is not None:
                pieces = [*self._messages(record, section, record.get(section.field), section.field)]
                yield from pieces
                first = first and not pieces
            elif text:
                special = first if section.add_special_tokens is None else section.add_special_tokens
                yield _piece(text, special, section.action, parts=parts)
                first = False

    def _finish(self, texts: list[str | None]) -> Parts | None:
        """Reorders the document for fill-in-the-middle, and appends EOS, by the rules.

        EOS is appended to the last text section, even to a blank one, but not to a missing one, nor to a prompt alone.

        Returns:
            the parts of the last text section; None if it is not reordered.

        Raises:
            Reject: the document holds a sentinel.
        """
        rules, eos, parts = self.chat_format.rules, self.chat_format.eos, None
        text = texts[-1]
        if self.chat_format.fim is not None and text:
            own = eos if eos and text.endswith(eos) else ""
            if (parts := self.chat_format.reordered(text.removesuffix(own))) is not None:
                parts = parts._replace(texts=(*parts.texts, own))
                text = "".join(parts.texts)
        texts[-1] = text
        if rules.eos == "never" or self.output.has_template or not self.output.trains or text is None:
            return parts
        if rules.eos == "always" or not text.endswith(eos):
            texts[-1] = text + eos
            parts = None if parts is None else parts._replace(texts=(*parts.texts, eos))
        return parts

    def _joint(self, record: Record) -> list[Piece]:
        """One piece of all sections, for joint encoding; the leading `mask` sections are the prompt."""
        sections = self.output.sections
        texts = [
            self.chat_format.guard(text_of(record.get(section.field), section.field, blank=True), section.field)
            for section in sections
        ]
        if self.chat_format.rules.eos == "never" and not any(text and text.strip() for text in texts):
            return []
        self.chat_format.guard.check_joined(texts, " + ".join(section.field for section in sections))
        parts = self._finish(texts)
        joined = "".join(text or "" for text in texts)
        masked = next((place for place, section in enumerate(sections) if section.action != "mask"), len(sections))
        prompt = "".join(text or "" for text in texts[:masked]) if masked else None
        return [_piece(joined, sections[0].add_special_tokens is not False, "train", prompt, parts)] if joined else []

    def _messages(self, record: Record, section: Section, value: Any, where: str) -> Iterator[Piece]:
        """A piece for each message, rendered alone, without the tools of the record: each piece would repeat them."""
        template, guard = self.chat_format.template, self.chat_format.guard
        assert template is not None
        own = {name: guard(each, name) for name, each in template_kwargs(record).items()}
        variables = {**(self.chat_format.rules.template_variables or {}), **own}
        messages = check_messages(value, where, self.output.weights_name is not None)
        for turn, message in enumerate(guard.messages(messages, where)):
            try:
                text = template.text([message], **variables)
                if guard.rule != "keep":
                    guard.check_seams(text, template.said([message], **variables), f"{where}[{turn}]")
            except Reject as reject:
                lacks = " has no content" if message.get("content") is None else ""
                raise Reject(reject.reason, f"'{where}[{turn}]'{lacks}: {reject.message}") from None
            code = self.roles.setdefault(message["role"], len(self.roles))
            segment = Segment(*WHOLE, ACTIONS[section.action], code, turn, weight_code(self._weights, message))
            yield Piece(checked(text), False, (segment,), roles=(code,))


def _piece(text: str, special: bool, action: str, prompt: str | None = None, parts: Parts | None = None) -> Piece:
    return Piece(checked(text), special, (Segment(*WHOLE, ACTIONS[action]),), prompt, parts=parts)


_READ = ("tools", "chat_template_kwargs")
"""Fields that a chat template reads, apart from the fields of the sections."""

_MORE = 16
"""Characters of text that each byte of a block may always give."""

COMPARED = 8
"""Conversations of a block that are compared with transformers' own rendering."""


def render_records(
    records: Records,
    outputs: tuple[Output, ...],
    tokenizer: Tokenizer,
    domain_key: str | None,
    rules: TextRules,
    compared: int | None = COMPARED,
) -> Rendered:
    """Renders the records of a block. For arguments see `apply_template`."""
    return apply_template(records, outputs, chat_format_of(outputs, tokenizer, rules), domain_key, compared)


@step
def apply_template(
    records: Records,
    outputs: Sequence[Output],
    chat_format: ChatFormat,
    domain_key: str | None = None,
    compared: int | None = 0,
) -> Rendered:
    """Renders every record as pieces of text, by the sections of each output.

    A prompt is written once: parts of the prompt that a side repeats are removed first (`reading.prompts.with_prompt`).

    A record that gives no text is dropped (`empty`). It is rejected if it gives only some of its outputs
    (`missing_source`), or if its lists and values differ in length (`count_mismatch`).

    Args:
        records: the block.
        outputs: the outputs of each record.
        chat_format: renders them.
        domain_key: the field of a record that names its domain.
        compared: number of conversations of the block that are compared with transformers: the text with its
            rendering, the spans with renderings of prefixes. If one differs, the whole block is rendered again, see
            `ChatTemplate.render_plainly`. None: compare all.

    Raises:
        RunError: all are compared and one differs, or the texts are much larger than the block.
    """
    with without_collector():
        rendered = _BlockRenderer(records, outputs, chat_format, domain_key, compared).rendered()
        if rendered.made.get(DIFFERENT):
            made = rendered.made
            rendered = _BlockRenderer(records, outputs, replace(chat_format, plain=True), domain_key, 0).rendered()
            rendered.made = {**made, "blocks_rendered_plainly": 1}
    return rendered


class _BlockRenderer:
    """Renders the records of a block, one after the other. For arguments see `apply_template`."""

    def __init__(
        self,
        records: Records,
        outputs: Sequence[Output],
        chat_format: ChatFormat,
        domain_key: str | None,
        compared: int | None,
    ) -> None:
        self._records, self._outputs, self._chat_format = records, outputs, chat_format
        self._domain_key, self._compares_all = domain_key, compared is None
        roles: Codes[str] = {}
        self._collectors = [_Collector(output, chat_format, roles) for output in outputs]
        self._conversations = [each.conversations for each in self._collectors if each.conversations]
        size = (len(records) if compared is None else compared) if self._conversations else 0
        self._compared = frozenset(sample(records.origin.digest, len(records), size).tolist() if size else ())
        self._weighted = any(output.weights_name is not None for output in outputs)
        self._sides = sides_of(outputs, chat_format.rules.implicit_prompt)
        sections = [section for output in outputs for section in output.sections]
        self._chats = dict.fromkeys(section.field for section in sections if section.template is not None)
        domain_keys = [] if domain_key is None else [domain_key]
        self._read = dict.fromkeys([*(section.field for section in sections), *_READ, *domain_keys])
        self._beyond = lines_beyond_json(records.ledger)
        self._kept: list[tuple[int, int, str, float]] = []  # of each row: line, number in the record, domain, weight
        self._counters: dict[str, dict[int, int]] = {}  # name -> row -> count
        self._characters = 0

    def rendered(self) -> Rendered:
        """The rows of all records. Raises `RunError`: see `apply_template`."""
        records = self._records
        ledger = records.ledger.copy()
        for place, (line, record) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
            try:
                if not self._add(place, line, record):
                    ledger.drop(line, "empty")
            except Reject as reject:
                ledger.reject(line, reject.reason, reject.message)
            except MemoryError:
                found = f"there is not enough memory to render {records.place(line)}"
                raise RunError(f"{found}: leave that record out") from None
        kept: list[Any] = [[row[place] for row in self._kept] for place in range(4)]
        lines, numbers, domains, weights = kept
        line, outputs = np.array(lines, np.int32), tuple(self._outputs)
        rendered = Rendered(records.origin, ledger, line, records.receipt, outputs, domains)
        rendered.made = dict(sum([each.made for each in self._conversations], Counter(records.made)))
        if self._chat_format.rules.turns is not None:
            rendered.row = np.array(numbers, np.int32)
        rendered.weights = np.array(weights) if self._weighted else None
        for name, counts in self._counters.items():
            rendered.counters[name] = np.zeros(len(line), np.int64)
            rendered.counters[name][[*counts]] = [*counts.values()]
        for each in self._collectors:
            target: dict[str, Any] = rendered.values if each.output.kind == "value" else rendered.pieces
            target[each.output.name] = each.build()
        return rendered

    def _add(self, place: int, line: int, record: Record) -> bool:
        """Renders a record, and keeps its rows. False: it gives no text."""
        for name in self._chats:
            if (messages := message_list(record.get(name), name)) is not None:
                record = {**record, name: messages}
        seen, dropped = text_only(record, self._outputs, self._chat_format.rules.not_text)
        if line in self._beyond:
            check_values(seen, self._read)  # the bytes of dropped images do not count
        weight = record_weight(record) if self._weighted else 1.0
        domain = record_domain(record, self._domain_key)
        for each in self._sides:
            seen = with_prompt(seen, each)
        rows = self._rows_of(seen, place, line)
        if not all(_check(self._collectors, row) for row in rows):
            return False
        self._keep(rows)
        counted = [*(each.counted for each in self._conversations), {DROPPED: dropped} if dropped else {}]
        for name, count in chain.from_iterable(map(dict.items, counted)):
            counts = self._counters.setdefault(name, {})
            counts[len(self._kept)] = counts.get(len(self._kept), 0) + count
        self._kept += [(line, number, domain, weight) for number in range(len(rows))]
        return True

    def _rows_of(self, record: Record, place: int, line: int) -> list[Any]:
        """The rows of a record: of each, what it has of every output."""
        for conversation in self._conversations:
            conversation.begin(place in self._compared)
        rows = [*zip(*(each.rows_of(record) for each in self._collectors), strict=True)]
        if self._compares_all and any(conversation.made[DIFFERENT] for conversation in self._conversations):
            raise RunError(
                f"--check full: {self._records.place(line)} is not what transformers gives: the rendering differs from "
                "the template's plain one, or its turns from renderings of prefixes; run without it, and tell us"
            )
        return rows

    def _keep(self, rows: Sequence[Any]) -> None:
        """Keeps the rows of a record, unless the texts of the block are now much larger than the block."""
        for each, made in zip(self._collectors, zip(*rows, strict=True), strict=True):
            each.rows += made
            if each.output.kind != "value":
                self._characters += sum([len(piece.text) for row in made for sequence in row for piece in sequence])
        ledger, path = self._records.ledger, self._records.origin.source.path
        most = max(self._chat_format.most_text, _MORE * len(ledger.raw))
        if self._characters > most:
            raise RunError(
                f"the texts of {len(ledger.starts)} lines of {path!r} have more than {most} "
                "characters: the chat template writes much more than it gets; fix it, or give a smaller --block_bytes"
            )


def _check(collectors: Sequence[_Collector], row: Sequence[Any]) -> bool:
    """True if each output of a record has something, False if none has anything.

    Raises:
        Reject: only some outputs have something, or lists and values differ in length.
    """
    outputs = [each.output for each in collectors]
    yielded = [any(made) if output.kind != "value" else bool(made) for output, made in zip(outputs, row, strict=True)]
    if not any(yielded):
        return False
    if not all(yielded):
        missing = outputs[yielded.index(False)]
        names = ", ".join(repr(section.field) for section in missing.sections)
        raise Reject("missing_source", f"nothing for {missing.name!r}: {names} absent or empty")
    sizes = [(len(made), each.output.name) for each, made in zip(collectors, row, strict=True) if each.listed]
    if len({size for size, _ in sizes}) > 1:
        found = ", ".join(f"{size} {name}" for size, name in sizes)
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
    return True
