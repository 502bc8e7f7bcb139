"""Sections and sources, and the output that each of them makes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from beam_prep.config.strict import Problem, Strict
from beam_prep.config.values import Name, OutputKind, Text, one_of


class SectionConfig(Strict):
    """One field of the record, and what is done with it."""

    field: Text
    """Key of the record that is read."""
    action: Literal["train", "mask", "$role", "$last", "value"]
    """`train` or `mask`; `$role`: as each message's role says; `$last`: only what follows the prompt, the prompt being
    all messages but the last; `value`: numbers, which are not tokenised. See [actions](#actions)."""
    template: Annotated[
        Literal[False, "message", "conversation"],
        BeforeValidator(lambda value: "message" if value is True else value),
        one_of(False, True, "message", "conversation"),  # runs first: pydantic goes backwards here
        WithJsonSchema({"enum": [False, True, "message", "conversation"]}),
    ] = False
    """`true` or `"message"`: the chat template renders each message of a list alone; `"conversation"`: all messages at
    once. See [templates](#templates)."""
    add_special_tokens: bool | None = None
    """The tokenizer adds its special tokens to this text. Null: yes for the first section that yields anything, no in
    lists and for messages."""

    def _problems(self) -> Iterator[Problem]:
        if self.action == "$role" and not self.template:
            yield ("action",), "found '$role' on text, which has no roles; set template: true, or use 'train' or 'mask'"
        if self.action == "value" and self.template:
            yield ("template",), "found with action 'value', which takes numbers as they are; leave it out"
        if self.action == "value" and self.add_special_tokens is not None:
            yield ("add_special_tokens",), "found with action 'value', which is not tokenized; leave it out"
        if self.action == "$last" and self.template != "conversation":
            yield ("action",), "found '$last'; it needs template: 'conversation'"
        if self.template and self.add_special_tokens is not None:
            yield ("add_special_tokens",), "found with a template, which writes its own; leave it out"


Sections = Annotated[
    tuple[SectionConfig, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
]


class SourceConfig(Strict):
    """One output of several."""

    sections: Sections = Field(min_length=1)
    """What this output is made of, in order."""
    list_field: bool = False
    """The fields hold lists; every element is tokenised alone and keeps its borders."""
    mask_key: Name | None = None
    """The column of its mask; null: `<name>_mask`. Naming one forces a mask where it is needless."""

    def _problems(self) -> Iterator[Problem]:
        actions = [section.action for section in self.sections]
        yield from conversation_problems(self.sections)
        if self.list_field and any(section.template == "conversation" for section in self.sections):
            yield ("list_field",), "found true with template 'conversation'; use template: true for lists"
        if "value" not in actions:
            return
        if len(actions) > 1:
            text = "found 'value'; it must be the only section of its source"
            yield ("sections", actions.index("value"), "action"), text
        if self.list_field:
            yield ("list_field",), "found true with action 'value', which takes lists as they are; leave it out"
        if self.mask_key is not None:
            yield ("mask_key",), f"found {self.mask_key!r} with action 'value', which has no mask; leave it out"


def conversation_problems(sections: tuple[SectionConfig, ...]) -> Iterator[Problem]:
    """Problems of the sections of an output that is one conversation."""
    if not any(section.template == "conversation" for section in sections):
        return
    actions = [section.action for section in sections]
    if not all(section.template == "conversation" for section in sections):
        yield ("sections",), "found template 'conversation' beside others; all sections of an output must have it"
    elif "$last" in actions and len(actions) > 1:
        yield ("sections", actions.index("$last"), "action"), "found '$last'; it must be the only section of its output"
    elif not prompt_first(actions):
        yield ("sections",), "found 'mask' after 'train'; what is masked (the prompt) must come first"


def prompt_first(actions: Sequence[str]) -> bool:
    """True if all `mask` sections are before all `train` sections."""
    ranks = [("mask", "train").index(action) for action in actions if action in ("mask", "train")]
    return ranks == sorted(ranks)


def can_train(sections: tuple[SectionConfig, ...]) -> bool:
    """True if at least one section can train."""
    return any(section.action in ("train", "$role", "$last") for section in sections)


@dataclass(frozen=True)
class OutputSpec:
    """One output: a column of ids, lists of ids or values and, unless it is needless, the column of its mask."""

    name: str
    kind: OutputKind
    sections: tuple[SectionConfig, ...]
    mask_name: str | None
    dtype: str
    mask_dtype: str | None

    @property
    def has_template(self) -> bool:
        """True if the chat template renders any section."""
        return any(section.template for section in self.sections)

    @property
    def plain(self) -> bool:
        """True if every section is text with the action train, so that every token is trained."""
        return not self.has_template and all(section.action == "train" for section in self.sections)

    @property
    def trains(self) -> bool:
        """See `can_train`."""
        return can_train(self.sections)

    @property
    def char_limits(self) -> bool:
        """True if min_chars and max_chars limit the fields."""
        return self.plain and self.kind == "ids"


def spec_of(name: str, mask: str, source: SourceConfig, forced: bool, dtype: Mapping[str, str]) -> OutputSpec:
    """The output of a source. With `forced` it has a mask even if every token is trained."""
    kind: OutputKind = "list" if source.list_field else "value" if source.sections[0].action == "value" else "ids"
    default = "float32" if kind == "value" else "int32"
    spec = OutputSpec(name, kind, source.sections, None, dtype.get(name, default), None)
    if forced or (kind != "value" and spec.trains and not spec.plain):
        return replace(spec, mask_name=mask, mask_dtype=dtype.get(mask, "int32"))
    return spec
