"""`input`: what is read from a record, and the outputs that a record becomes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date as Date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr

from beam_prep.config.output import OutputConfig
from beam_prep.config.strict import Name, Problem, Strict, Text, Texts, as_date
from beam_prep.data.schema import LOSS_WEIGHTS, RESERVED, Action, Output, OutputKind, Section
from beam_prep.errors import ConfigError
from beam_prep.hints import shown
from beam_prep.reading.adapters import AdapterName, Alpaca, ShareGPT, adapter, fields_read
from beam_prep.reading.rollouts import RolloutFields


class SectionConfig(Strict):
    """One field of the record, and what is done with it."""

    field: Text
    """Key of the record that is read."""
    action: Action
    """`train` or `mask`; `$role`: the rule of each message's role; `$last`: trains only the last message, all messages
    before it are the prompt; `value`: numbers, which are not tokenised. See [actions](config.md#actions)."""
    template: Annotated[
        Literal[False, True, "message", "conversation"],
        AfterValidator(lambda value: "message" if value is True else value),
    ] = False
    """`true` or `"message"`: the chat template renders each message of a list alone; `"conversation"`: it renders all
    messages together. See [templates](config.md#templates)."""
    add_special_tokens: bool | None = None
    """The tokenizer adds its special tokens to this text. Null: yes for the first section with text, no in lists and
    for messages."""

    def build(self) -> Section:
        """The section, for `Output`."""
        template = None if isinstance(self.template, bool) else self.template
        return Section(self.field, self.action, template, self.add_special_tokens)

    def _problems(self) -> Iterator[Problem]:
        if self.action == "$role" and not self.template:
            yield ("action",), "found '$role' on text, which has no roles; set template: true, or use 'train' or 'mask'"
        if self.action == "value" and self.template:
            yield ("template",), "found with action 'value', which takes numbers as they are; leave it out"
        if self.action == "$last" and self.template != "conversation":
            yield ("action",), "found '$last'; it needs template: 'conversation'"
        if self.add_special_tokens is not None and (self.template or self.action == "value"):
            yield ("add_special_tokens",), "found beside a template or action 'value'; it is for text: leave it out"


Sections = Annotated[tuple[SectionConfig, ...], Field(strict=False)]  # a list becomes a tuple


class SourceConfig(Strict):
    """One of several outputs."""

    sections: Sections = Field(min_length=1)
    """The sections of this output, in order."""
    list_field: bool = False
    """The fields hold lists. Every element is tokenised alone, and a row is a list of lists."""
    mask_key: Name | None = None
    """The column of its mask; null: `<name>_mask`. With a name, the mask is written even if every token is trained."""

    def _problems(self) -> Iterator[Problem]:
        actions = [section.action for section in self.sections]
        yield from conversation_problems(self.sections)
        if self.list_field and ("value" in actions or any(each.template == "conversation" for each in self.sections)):
            yield ("list_field",), "found true; it works only with lists of texts, and with template: true"
        if "value" in actions and len(actions) > 1:
            text = "found 'value'; it must be the only section of its source"
            yield ("sections", actions.index("value"), "action"), text
        if "value" in actions and self.mask_key is not None:
            yield ("mask_key",), f"found {self.mask_key!r} with action 'value', which has no mask; leave it out"


def conversation_problems(sections: tuple[SectionConfig, ...]) -> Iterator[Problem]:
    """Problems of the sections of an output with template 'conversation'."""
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


def _of_source(name: str, mask: str, source: SourceConfig, forced: bool, weights: str | None = None) -> Output:
    """The output of a source; `forced`: it has a mask even if every token is trained."""
    kind: OutputKind = "list" if source.list_field else "value" if source.sections[0].action == "value" else "ids"
    made = Output(name, kind, tuple(section.build() for section in source.sections), weights_name=weights)
    if forced or (kind != "value" and made.trains and not made.plain):
        return replace(made, mask_name=mask)
    return made


class RolloutsConfig(Strict):
    """Rollouts as ids, which are not encoded again. Each setting is the key of the record for a column."""

    prompt_ids: Text = "prompt_ids"
    """Key of the prompt's ids."""
    response_ids: Text | None = "response_ids"
    """Key of the ids of the responses, a list of lists. Null: the records have only prompts."""
    loss_mask: Text | None = None
    """Key of the masks, 0 and 1, one for each id of each response. Null: all tokens are trained."""
    logprobs: Text | None = None
    """Key of the log probabilities, one for each id of each response."""
    rewards: Text | None = None
    """Key of the rewards, one for each response."""
    policy_version: Text | None = None
    """Key of the version of the policy: an integer, or an integer for each response."""
    values: dict[Name, Text] = Field(default={})
    """Column to key, for more numbers: one number for the record, or one for each response."""
    texts: dict[Name, Text] = Field(default={})
    """Column to key, for texts, which are kept as UTF-8 bytes."""
    grouped: bool = True
    """A record has all responses to its prompt, in lists. `false`: a record has one response."""

    @property
    def fields(self) -> RolloutFields:
        """These keys, for `from_rollouts`."""
        return RolloutFields.of(self.model_dump())

    def _problems(self) -> Iterator[Problem]:
        if self.response_ids is None:
            for name in ("loss_mask", "logprobs", "rewards", "policy_version"):
                if getattr(self, name) is not None:
                    yield (name,), f"found {getattr(self, name)!r} with response_ids: null; leave it out"
        taken = {name.lower() for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "rewards")}
        taken |= {"policy_version", *RESERVED}
        for part in ("values", "texts"):
            for name in getattr(self, part):
                if name.lower() in taken:
                    yield (part, name), f"found column {name!r}, which is reserved or there already; choose another"
                taken.add(name.lower())


class AdapterConfig(Strict):
    """The adapter that reads records of another shape."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: AdapterName
    """The shape of the records; other keys are its options."""

    def build(self) -> ShareGPT | Alpaca:
        """The adapter as a function on records."""
        return adapter(self.name, **(self.model_extra or {}))

    def _problems(self) -> Iterator[Problem]:
        try:
            if self.name != "tokenized":
                self.build()
            elif self.model_extra:
                yield (), f"found {shown(self.model_extra)}; adapter 'tokenized' has no options"
        except ConfigError as error:
            yield (), str(error)


class FieldsConfig(Strict):
    """The fields that are read from a record: `sections` for one output, `sources` for several."""

    sections: Sections | None = None
    """The sections of the only sequence, in order. Columns: `sequence`, `loss_mask`."""
    sources: dict[Name, SourceConfig] | None = None
    """Several outputs by name; the name is the column. Letters, digits and `_`, a letter first."""
    adapter: Annotated[
        AdapterConfig | None,
        BeforeValidator(
            lambda value: {"name": value} if isinstance(value, str) else value,
            json_schema_input_type=str | dict[str, Any] | None,
        ),
    ] = None
    """Records of another shape: `sharegpt`, `alpaca`, or `tokenized`; or an object with its name and options: see
    [adapters](config.md#adapters)."""
    rollouts: RolloutsConfig | None = None
    """Records that hold the ids of prompts and responses, which are not encoded again: see [rollouts](rollouts.md).
    Replaces sections and sources."""

    @property
    def tokenized(self) -> bool:
        """True if the records are already tokenised."""
        return self.rollouts is not None or (self.adapter is not None and self.adapter.name == "tokenized")

    @property
    def one_sequence(self) -> bool:
        """True if a row is one sequence."""
        return not self.sources and self.rollouts is None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that are read."""
        if self.adapter is not None:
            return fields_read(self.adapter.name, **(self.adapter.model_extra or {}))
        if self.rollouts is not None:
            return tuple(dict.fromkeys(self.rollouts.fields.columns.values()))
        return tuple(
            dict.fromkeys(section.field for each in outputs_of(self, OutputConfig()) for section in each.sections)
        )

    def _problems(self) -> Iterator[Problem]:
        if self.tokenized:
            if self.sources or self.sections or (self.rollouts is not None and self.adapter is not None):
                one = "rollouts" if self.rollouts is not None else "adapter"
                yield (one,), "found beside sections, sources or another adapter; it reads token ids: leave these out"
        elif self.sources:
            yield from self._name_problems()
            if all(each.kind == "value" for each in outputs_of(self, OutputConfig())):
                yield ("sources",), "found only values; at least one source must hold text or messages"
        elif not self.sections:
            yield (), "found neither sections nor sources; give sections for one output, sources for several"
        elif "value" in (actions := [section.action for section in self.sections]):
            text = "found 'value'; it needs a source of its own in input.sources"
            yield ("sections", actions.index("value"), "action"), text
        elif not any(each.trains for each in outputs_of(self, OutputConfig())):
            yield ("sections",), "found no section that can train; give one the action 'train' or '$role'"
        else:
            yield from conversation_problems(self.sections)

    def _name_problems(self) -> Iterator[Problem]:
        taken: dict[str, str] = {}
        for output in outputs_of(self, OutputConfig()):
            for column in filter(None, (output.name, output.mask_name)):
                at, why = ("sources", output.name), "columns become file names, so upper and lower case count as equal"
                if column.lower() in RESERVED:
                    yield at, f"found column {column!r}; reserved names: {', '.join(RESERVED)}"
                if (other := taken.get(column.lower())) is not None:
                    yield at, f"found column {column!r}, which source {other!r} has already; {why}"
                taken[column.lower()] = output.name


class GroupConfig(FieldsConfig):
    """A group of files with its own settings of fields."""

    files: Texts
    """The files of the group: paths and globs, from the folder of the run, or in a store."""
    domain: Text | None = None
    """The domain of all records of the group. Null: `output.domain_key` gives the domain."""


class InputConfig(FieldsConfig):
    """The input: `sections` for one output, `sources` for several, `groups` for files with different fields."""

    chat_template: Text | None = None
    """Replaces the tokenizer's chat template: a path beside the config, the template itself, or the name of a template
    of the tokenizer (a word without a dot)."""
    date: Annotated[str | None, BeforeValidator(as_date, json_schema_input_type=Date | None)] = None
    """The day that the chat template gets as today's date (`strftime_now`): midnight, in English. A template that asks
    for the date is refused without this setting."""
    template_variables: dict[str, Any] = Field(default={})
    """Variables for the chat template, for all records: `{"enable_thinking": false}`. A record's
    `chat_template_kwargs` override them. See [templates.md](templates.md#variables)."""
    not_rendered: Literal["reject", "keep"] = "reject"
    """If the chat template does not write a content or a call: reject the record (`not_rendered`), or keep the rest of
    the record. See [templates.md](templates.md#not_rendered)."""
    tool_arguments: Literal["auto", "object", "string", "as_is"] = "auto"
    """The form of the arguments of calls that the chat template gets: the form that the template takes (`auto`), always
    an object, always a string, or unchanged. See [templates.md](templates.md#forms)."""
    not_text: Literal["reject", "drop_parts"] = "reject"
    """If a record has images, audio or video: reject it (`not_text`), or drop these parts and keep its text. See
    [what is no text](config.md#what-is-no-text)."""
    turns: Literal["together", "apart", "auto"] = "together"
    """`together`: a conversation is one row. `apart`: each trained turn of the assistant gets its own row, with the
    conversation before it as at inference; only this turn is trained. `auto`: a new row begins only if the template
    writes earlier turns differently from how they were generated. See [turns apart](masks.md#turns-apart)."""
    implicit_prompt: bool = False
    """For preference pairs whose prompt is absent, null or empty: the longest common beginning of both sides is the
    prompt. (A prompt that both sides repeat [is written once](which_config.md#preference-pairs) without this option.)
    The first two sources must each have a section for the prompt (the same field, action `mask`) and a section for the
    side: see `configs/dpo_conversation.json`."""
    groups: Annotated[tuple[GroupConfig, ...], Field(min_length=1, strict=False)] | None = None
    """Groups of files with different fields: see [groups.md](groups.md). They replace `sections`, `sources`, `adapter`,
    `rollouts`, and inputs on the command line."""

    # In a group: outputs that have a mask because the same output of another group needs one.
    _masked: frozenset[str] = PrivateAttr(default=frozenset())
    _domain: str | None = PrivateAttr(default=None)

    @property
    def domain(self) -> str | None:
        """The domain of all records of a group; None without groups."""
        return self._domain

    def parts(self, output: OutputConfig) -> tuple["InputConfig", ...]:
        """The input of each group as if it were alone, with masks that other groups need; without groups: (self,)."""
        if self.groups is None:
            return (self,)
        made = []
        for group in self.groups:
            fields = {name: getattr(group, name) for name in FieldsConfig.model_fields}
            made.append(self.model_copy(update={**fields, "groups": None}))
            made[-1]._domain = group.domain
        masked = frozenset(each.name for part in made for each in outputs_of(part, output) if each.mask_name)
        for part in made:
            part._masked = masked
        return tuple(made)

    def outputs(self, joint: bool = False, loss_weights: bool = False) -> tuple[Output, ...]:
        """The outputs of each record, for ApplyTemplate: `sequence` and `loss_mask`, or the sources.

        Args:
            joint: text sections are joined before they are encoded.
            loss_weights: with the weights of tokens.
        """
        outputs = outputs_of(self, OutputConfig(loss_weights=loss_weights))
        return tuple(replace(each, joint=joint and each.kind == "ids" and not each.has_template) for each in outputs)

    def _problems(self) -> Iterator[Problem]:
        if self.groups is None:
            yield from super()._problems()
        else:
            for name in FieldsConfig.model_fields:
                if getattr(self, name) is not None:
                    yield (name,), f"found {name} beside groups; give each group its own, and leave it out here"
        for name in ("messages", "tools", "add_generation_prompt"):
            if name in self.template_variables:
                yield ("template_variables", name), f"found {name!r}, which is not for a config to set; take it out"


def outputs_of(given: FieldsConfig, output: OutputConfig) -> tuple[Output, ...]:
    """The outputs that each record becomes, in config order; with groups: the outputs of each group in turn."""
    masked = frozenset[str]()
    if isinstance(given, InputConfig):
        if given.groups is not None:
            return tuple(each for part in given.parts(output) for each in outputs_of(part, output))
        masked = given._masked
    if given.rollouts is not None:
        return given.rollouts.fields.outputs
    if given.sources:
        return tuple(
            _of_source(name, source.mask_key or f"{name}_mask", source, source.mask_key is not None or name in masked)
            for name, source in given.sources.items()
        )
    sections = (SectionConfig(field="input_ids", action="train"),) if given.tokenized else given.sections or ()
    labels, weights = output.columns == "labels", LOSS_WEIGHTS if output.loss_weights else None
    names = ("input_ids", "labels") if labels else ("sequence", "loss_mask")
    forced = given.tokenized or labels or output.loss_weights or "sequence" in masked
    return (_of_source(*names, SourceConfig(sections=sections), forced, weights),)
