"""The data model of a config: sections of a record, outputs of a row, columns and metadata of a shard."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from beam_prep.data.fim import Fim
from beam_prep.data.ragged import Array, Ragged
from beam_prep.hints import check_settings

IGNORE_INDEX = -100
"""The label of a token without loss (PyTorch's `ignore_index`)."""

LOSS_WEIGHTS = "loss_weights"
"""The column of token weights that a config adds."""

RESERVED = ("domain", "position_ids", "seq_lens", "attention_mask", "offsets", "list_offsets", "inner_offsets", "meta")
"""Names that a user's column cannot have: names of added columns, and names that formats use otherwise."""

NAME = "[A-Za-z][A-Za-z0-9_]*"
"""The pattern of a column's name."""

PROMPT_COMPLETION = ("chosen_ids", "rejected_ids", "prompt_ids")
"""The columns of preference pairs with a separate prompt. The first one measures shards."""

Action = Literal["train", "mask", "$role", "$last", "value"]

RoleRule = Literal["train", "mask", "last"]
"""The values of a config's `mask`, by role; `last`: only the role's last message is trained."""

OutputKind = Literal["ids", "list", "value", "token_value", "text"]
"""The kind of an output, see `Output`."""

DefaultRule = Literal["train", "mask"]
"""The rule of roles that `mask` leaves out."""


@dataclass(frozen=True, slots=True)
class Section:
    """One field of a record, and its use.

    >>> prompt, answer = bp.Section("prompt", "mask"), bp.Section("response", "train")
    >>> prompt.template is None
    True

    Attributes:
        field: the record's key.
        action: `train`, `mask`, `$role` (by the message's role), `$last` (the text behind the prompt), or `value`
            (numbers, not text).
        template: None: plain text; "message": each message is rendered and encoded alone; "conversation": the messages
            of all sections are rendered once, as one conversation.
        add_special_tokens: None: True for the first section that is not empty, if it is text.
    """

    field: str
    action: Action
    template: Literal["message", "conversation"] | None = None
    add_special_tokens: bool | None = None

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Output:
    """One sequence (or list of sequences, or list of values) of every row, and its mask.

    >>> messages = bp.Section("messages", "$role", template="conversation")
    >>> bp.Output("sequence", "ids", (messages,), mask_name="loss_mask").trains
    True

    Attributes:
        name: the column of the ids (or values).
        kind: `ids` (one sequence in a row), `list` (a list of sequences), `value` (a list of numbers); `token_value`
            and `text` are columns of rollouts, which no step makes of an `Output`.
        sections: its parts, in order.
        mask_name: the column of the mask; None if the config needs no mask.
        joint: text sections are joined before they are encoded.
        weights_name: the column of token weights; None: there is none.
    """

    name: str
    kind: OutputKind
    sections: tuple[Section, ...]
    mask_name: str | None = None
    joint: bool = False
    weights_name: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def has_template(self) -> bool:
        """True if the chat template renders any section."""
        return any(section.template is not None for section in self.sections)

    @property
    def plain(self) -> bool:
        """True if every section is text with the action train, so that every token is trained."""
        return not self.has_template and all(section.action == "train" for section in self.sections)

    @property
    def char_limits(self) -> bool:
        """True if min_chars and max_chars limit its fields."""
        return self.plain and self.kind == "ids"

    @property
    def trains(self) -> bool:
        """True if any of its tokens can be trained on."""
        return any(section.action in ("train", "$role", "$last") for section in self.sections)

    @property
    def conversation(self) -> bool:
        """True if its messages are rendered as one conversation."""
        return any(section.template == "conversation" for section in self.sections)


PartKind = Literal["content", "reasoning", "tool_calls", "generation_prompt", "eos"]
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
"""The kinds of text within a message; an index in this tuple is the code in `Segments.kind`."""


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """What is trained within trained messages.

    With it, `Segments` tell the kinds of text apart, also for your own mask policies. The reasoning and the tool calls
    of a message are the text that the template writes for them, with the constants around it.

    >>> options = bp.MaskOptions(reasoning="mask")
    >>> options.tool_calls
    'train'

    Attributes:
        reasoning: `train`; `mask`: it stays in the text, but is not trained; `drop_history`: it is removed from
            messages before the last question, the rest is trained. Reasoning at the beginning of a content, up to
            `</think>`, counts, too.
        tool_calls: `train` or `mask`.
        generation_prompt: `template`: trained if the template's generation blocks hold it; `train`: always; `mask`:
            never.
        eos: `train` or `mask`: the end tokens after a message, with the white space around them.
    """

    reasoning: Literal["train", "mask", "drop_history"] = "train"
    tool_calls: Literal["train", "mask"] = "train"
    generation_prompt: Literal["template", "train", "mask"] = "template"
    eos: Literal["train", "mask"] = "train"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class TurnsApart:
    """The rule that makes several rows of a conversation, see `beam_prep.chat.conversation`.

    Attributes:
        auto: True: a new row only if the template writes earlier turns differently from how they were generated; False:
            a row for each trained turn of the assistant.
        roles, default: which turns are trained, see `RoleMask`.
    """

    auto: bool
    roles: Mapping[str, RoleRule]
    default: DefaultRule = "mask"


@dataclass(frozen=True, slots=True)
class TextRules:
    """The rules that turn text into pieces, apart from the sections.

    >>> bp.TextRules(eos="if_missing", bos="strip").control_tokens
    'keep'

    Attributes:
        eos: whether rows of plain text end with the EOS token's text: `never`, `if_missing`, `always`.
        bos: the BOS at the head of a rendered conversation: `keep` it, `strip` it, or strip it and let the `tokenizer`
            add its special tokens.
        implicit_prompt: (preference) in a record without a prompt, the longest common prefix of both sides is the
            prompt.
        chat_template: replaces the tokenizer's own.
        control_tokens: texts of control tokens in a record's own texts: `keep`, `escape` or `reject`, see
            `chat.control.Guard`.
        date: the day for `strftime_now` in a chat template, such as "2026-11-22".
        fim: reorders documents before they get their EOS; for one section of plain text.
        mask_options: tells the kinds of text within messages apart, for conversations; None: all text is content.
        template_variables: variables of chat templates for all records; a record's `chat_template_kwargs` win.
        not_rendered: if the template does not write a content or a call: `reject` the record, or `keep` the rest.
        tool_arguments: the form of the arguments of calls: `auto`: the form that the template takes; `object` or
            `string`: this form; `as_is`: the record's own.
        turns: makes a row of each trained turn of a conversation; None: one row.
        not_text: images, audio and video: `reject` the record, or `drop_parts`: keep its text.
    """

    eos: Literal["never", "if_missing", "always"] = "never"
    bos: Literal["keep", "strip", "tokenizer"] = "keep"
    implicit_prompt: bool = False
    chat_template: str | None = None
    control_tokens: Literal["keep", "escape", "reject"] = "keep"
    date: str | None = None
    fim: Fim | None = None
    mask_options: MaskOptions | None = None
    template_variables: Mapping[str, Any] | None = None
    not_rendered: Literal["reject", "keep"] = "reject"
    tool_arguments: Literal["auto", "object", "string", "as_is"] = "auto"
    turns: TurnsApart | None = None
    not_text: Literal["reject", "drop_parts"] = "reject"

    def __post_init__(self) -> None:
        check_settings(self)


ColumnRole = Literal[
    "ids", "mask", "labels", "weights", "token_value", "value", "text", "attention", "position", "lengths",
    "string", "number", "file", "offset", "rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a shard.

    >>> bp.Column("loss_mask", "bool", 1, "mask", of="sequence").role
    'mask'

    Attributes:
        name: its key in every format.
        dtype: numpy name of the stored dtype ("int32", "bool", "float32" ...).
        depth: 1: each row is a list of values; 2: a list of lists; 0: a single value, in metadata columns.
        role: `ids` (token ids), `mask` (1 for trained tokens), `labels` (ids, or -100 without loss), `weights` (of the
            loss: 0 for tokens without loss), `token_value` (numbers, one for each id), `value` (numbers of the row),
            `text` (the UTF-8 bytes of a text), `attention` (1 for a token, 0 for padding), `position`, `lengths` (of
            the documents in a packed row). For metadata columns see `METADATA_ROLES`: `string` (dtype uint8: its UTF-8
            bytes), `number`, `file` and `offset`. Only in the token cache: `rows`, see `shards.layout`.
        of: for a mask, labels or weights: the column of its ids.
        shifted: for labels and weights: those at i belong to the token after input i.
    """

    name: str
    dtype: str
    depth: int
    role: ColumnRole
    of: str | None = None
    shifted: bool = False

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def of_tokens(self) -> bool:
        """True if a row is one list, with a value for each token (or for each of its documents)."""
        return self.depth == 1 and self.role not in OF_RECORDS

    @property
    def metadata(self) -> bool:
        """True for metadata columns, see `METADATA_ROLES`."""
        return self.role in METADATA_ROLES

    @property
    def levels(self) -> int:
        """The depth of its `Ragged`: a single number is a list of one value, and a string is a list of bytes."""
        return self.depth + 1 if self.role == "string" else max(self.depth, 1)


METADATA_ROLES = ("string", "number", "file", "offset")
"""Roles of metadata columns: strings and numbers of fields; and, with provenance, the index of the file in the
manifest's `inputs`, and the byte offset of the line in it (of a table: the rows before it). A row has one value
(depth 0), a packed row has a list (depth 1), with a value for each of its documents."""

OF_RECORDS = ("value", "text", "rows", *METADATA_ROLES)
"""Roles of columns with values of a record, not of its tokens: they are neither cut, packed nor padded."""

NO_LOSS = {"mask": 0, "labels": IGNORE_INDEX, "weights": 0}
"""Role -> the value of its columns for tokens without loss."""


def name_problems(names: Mapping[str, str], columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(column, problem) for each wrong new name of a column.

    Args:
        names: column -> its new name; other columns keep their names.
        columns: the columns that are written, by their own names.
    """
    taken = {column.lower(): column for column in columns}
    for column, name in names.items():
        if column not in columns:
            yield column, f"found {column!r}, which is not written; columns here: {', '.join(columns)}"
        elif not re.fullmatch(NAME, name):
            yield column, f"found {name!r}; must be a name of letters, digits and '_' that starts with a letter"
        elif name == column:
            continue
        elif name.lower() in RESERVED:
            yield column, f"found {name!r}; reserved names: {', '.join(RESERVED)}"
        elif (other := taken.setdefault(name.lower(), column)) != column:
            why = "columns become file names, so upper and lower case count as equal"
            yield column, f"found {name!r}, which names column {other!r} already; {why}"


MetadataType = Literal["string", "int32", "int64", "float32", "float64", "bool"]
"""The type of a metadata column."""

FILE, OFFSET = Column("file", "int32", 0, "file"), Column("offset", "int64", 0, "offset")
"""The columns of provenance: the index of the file in the manifest's `inputs`, and the byte offset of the line in it
(of a table: the rows before it). In the token cache, they count from the block, so that equal blocks of several files
are equal: see `placed`."""

MISSING = "keep_fields_missing"
"""The counter of strings that are empty because the record lacks the field."""


def metadata_column(name: str, kind: MetadataType) -> Column:
    """The column of a field."""
    return Column(name, "uint8", 0, "string") if kind == "string" else Column(name, kind, 0, "number")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of a block's records that become metadata columns, by line.

    Attributes:
        columns: the column of each field, in order.
        values: field -> a value for each line of the block; lines that are no record have an empty string, or 0.
        missing: int64 [lines]: number of string fields that the record lacks.
        problems: line -> why one of its values does not fit its column.
    """

    columns: tuple[Column, ...]
    values: Mapping[str, Ragged]
    missing: Array
    problems: Mapping[int, str] = field(default_factory=dict)


def placed(rows: Mapping[str, Ragged], file: int, first_byte: int) -> dict[str, Ragged]:
    """The rows of a block, with provenance in the input.

    Args:
        rows: from the token cache.
        file: index of the block's file.
        first_byte: offset of the block's first line in the file; of a table: its first row.
    """
    first = {FILE.name: file, OFFSET.name: first_byte}
    moved = {name: rows[name].with_flat(rows[name].flat + count) for name, count in first.items()}
    return {**rows, **moved}


def one_each(values: Array) -> Ragged:
    """Numbers as rows of one value each."""
    return Ragged(values, np.arange(len(values) + 1))


def metadata_value(column: Column, value: Array | Ragged) -> Any:
    """The value of a row: a str, int or float; of a packed row, a list of str or an array of numbers."""
    if column.role != "string":
        return value if column.depth or isinstance(value, Ragged) else value[0].item()
    return [_text(each) for each in value] if isinstance(value, Ragged) else _text(value)


def metadata_values(column: Column, rows: Ragged) -> Any:
    """The values of rows: a list of str or an array of numbers; of packed rows, a list with the values of each row."""
    if column.depth:
        return [metadata_value(column, row) for row in rows]
    return [_text(row) for row in rows] if column.role == "string" else rows.flat


def _text(value: Array | Ragged) -> str:
    # The bytes of a damaged file may be no UTF-8; `verify` reports that.
    return np.asarray(value).tobytes().decode(errors="replace")
