"""Records -> `Rendered`: pieces of text to encode, each with its role and action."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_prep.core.block import Block, Reject
from beam_prep.core.chat_template import ChatTemplate
from beam_prep.core.ragged import Array, Ragged
from beam_prep.core.records import Record, Records, _describe
from beam_prep.core.schema import Output, Section

DEFAULT_DOMAIN = "__default__"

MASK, TRAIN, BY_ROLE = 0, 1, 2
"""Codes of a piece's action: never trained, trained, by its role."""

UNSET = -1

_ACTIONS = {"mask": MASK, "train": TRAIN, "$role": BY_ROLE}


@dataclass(slots=True)
class Pieces:
    """The texts of one output, in order, and what is known about each.

    Attributes:
        texts: one text a piece; each is encoded alone.
        special: bool [pieces]: encoded with the tokenizer's own special tokens.
        action: int8 [pieces]: MASK, TRAIN or BY_ROLE.
        role: int32 [pieces]: index into `roles`; UNSET for text sections.
        turn: int32 [pieces]: index of the message in its list; UNSET for text sections.
        own: int8 [pieces]: the message's own `train` key, 1 or 0; UNSET without.
        roles: the names of the roles of this block.
        sequences: int64 [sequences + 1]: borders of sequences, in pieces.
        rows: int64 [rows + 1]: borders of rows, in sequences (one each, but for lists).
        bos: bool [sequences]: begins with the BOS token, unless the first rendering brings it.
    """

    texts: list[str]
    special: Array
    action: Array
    role: Array
    turn: Array
    own: Array
    roles: tuple[str, ...]
    sequences: Array
    rows: Array
    bos: Array


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


class _Texts:
    """Collects the pieces of one output; `undo` takes the last row back."""

    def __init__(self, output: Output, template: ChatTemplate | None, roles: dict[str, int]) -> None:
        self.output = output
        self.template = template
        self.roles = roles
        self.columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self.sequences = [0]
        self.rows = [0]

    def _piece(self, text: str, special: bool, action: int, role: int, turn: int, own: int) -> None:
        for column, value in zip(self.columns, (text, special, action, role, turn, own), strict=True):
            column.append(value)

    def _end_sequence(self) -> None:
        self.sequences.append(len(self.columns[0]))

    def add(self, record: Record) -> bool:
        """Adds a row; says whether it yielded anything."""
        before = len(self.columns[0])
        if self.output.kind == "list":
            for section in self.output.sections:
                for place, element in enumerate(_list(record, section.field)):
                    where = f"{section.field}[{place}]"
                    if section.template is not None:
                        self._messages(section, element, where)
                    else:
                        self._text(section, element, where, special=bool(section.add_special_tokens))
                    self._end_sequence()
        else:
            first = True
            for section in self.output.sections:
                value = record.get(section.field)
                if section.template is not None:
                    yielded = self._messages(section, value, section.field)
                else:
                    special = first if section.add_special_tokens is None else section.add_special_tokens
                    yielded = self._text(section, value, section.field, special)
                first = first and not yielded
            self._end_sequence()
        self.rows.append(len(self.sequences) - 1)
        return len(self.columns[0]) > before

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        del self.rows[rows + 1 :]
        del self.sequences[self.rows[-1] + 1 :]
        for column in self.columns:
            del column[self.sequences[-1] :]

    def _text(self, section: Section, value: Any, where: str, special: bool) -> bool:
        if value is None:
            return False
        if not isinstance(value, str):
            raise Reject("wrong_type", f"field {where!r} is {_describe(value)}, wanted a string")
        if not value.strip():
            return False
        self._piece(value, special, _ACTIONS[section.action], UNSET, UNSET, UNSET)
        return True

    def _messages(self, section: Section, value: Any, where: str) -> bool:
        if value is None:
            return False
        if not isinstance(value, list):
            raise Reject("wrong_type", f"field {where!r} is {_describe(value)}, wanted a list of messages")
        assert self.template is not None
        for turn, message in enumerate(value):
            role = check_message(message, f"{where}[{turn}]")
            text = self.template.render([message])
            own = message.get("train")
            self._piece(
                text,
                False,
                _ACTIONS[section.action],
                self.roles.setdefault(role, len(self.roles)),
                turn,
                UNSET if own is None else int(own),
            )
        return bool(value)

    def build(self) -> Pieces:
        texts, special, action, role, turn, own = self.columns
        sequences = np.asarray(self.sequences, np.int64)
        bos = self.output.kind == "ids" and self.output.has_template
        return Pieces(
            texts,
            np.asarray(special, bool),
            np.asarray(action, np.int8),
            np.asarray(role, np.int32),
            np.asarray(turn, np.int32),
            np.asarray(own, np.int8),
            tuple(self.roles),
            sequences,
            np.asarray(self.rows, np.int64),
            np.full(len(sequences) - 1, bos),
        )


class _Values:
    """Collects the numbers of one output."""

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
                self.numbers.append(float(number))
            except OverflowError:
                raise Reject("bad_number", f"field '{self.field}[{place}]' is beyond a double") from None
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
        found = "has no role" if role is None else f"has a role that is {_describe(role)}, wanted a string"
        raise Reject("bad_message", f"{where!r} {found}")
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
    records: Records, outputs: Sequence[Output], template: ChatTemplate | None, domain_key: str | None = None
) -> Rendered:
    """Turns every record into pieces of text, by the sections of each output.

    A record that yields nothing is dropped (`empty`); one that yields only some of its outputs is rejected
    (`missing_source`), as is one whose lists and values differ in length (`count_mismatch`).
    """
    roles: dict[str, int] = {}
    collectors: list[_Texts | _Values] = [
        _Values(output) if output.kind == "value" else _Texts(output, template, roles) for output in outputs
    ]
    kept: list[int] = []
    domain: list[str] = []
    ledger = records.ledger
    for line, record in zip(records.line.tolist(), records.rows, strict=True):
        try:
            yielded = [collector.add(record) for collector in collectors]
            if all(yielded):
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
                name = record.get(domain_key) if domain_key is not None else None
                domain.append(name if isinstance(name, str) else DEFAULT_DOMAIN)
                continue
            ledger.drop(line, "empty")
        for collector in collectors:
            collector.undo(len(kept))
    rendered = Rendered(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, tuple(outputs), domain)
    for output, collector in zip(outputs, collectors, strict=True):
        if isinstance(collector, _Texts):
            rendered.pieces[output.name] = collector.build()
        else:
            rendered.values[output.name] = collector.build()
    return rendered


def _check_counts(outputs: Sequence[Output], collectors: list[Any]) -> None:
    counts = {
        output.name: collector.rows[-1] - collector.rows[-2]
        for output, collector in zip(outputs, collectors, strict=True)
        if output.kind == "list" or (output.kind == "value" and collector.listed)
    }
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
