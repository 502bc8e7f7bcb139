"""The config: one JSON file that says what is read, masked, cut and written.

    config = PipelineConfig.from_json("configs/dpo.json")
    config.columns()  # {'chosen': 'int32', 'chosen_mask': 'int32', 'rejected': 'int32', 'rejected_mask': 'int32'}

Which columns exist is decided here, by the config alone, never by the data. Whatever is wrong with a config comes as
one `ConfigError` that lists all problems.
"""

import contextlib
import difflib
import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date as Date
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from beam_prep.core.data.schema import RESERVED, Output, Section, name_problems
from beam_prep.core.reading.adapters import Adapter, adapter
from beam_prep.errors import ConfigError

Kind = Literal["ids", "list", "value"]
Integer = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DType = Literal["bool", Integer, "float16", "float32", "float64"]

FORMATS = ("bin", "tfrecord", "arrow", "h5")
LARGEST = {name: 2 ** (int(name.lstrip("uint")) - (name[0] == "i")) - 1 for name in get_args(Integer)}
ALLOWED_DTYPES = {
    "token ids": tuple(LARGEST),
    "masks": ("bool", *LARGEST),
    "labels": tuple(name for name in LARGEST if name[0] == "i"),  # -100 where nothing is trained
    "values": tuple(name for name in get_args(DType) if name != "bool"),
}

Location = tuple[str | int, ...]
Problem = tuple[Location, str]
Model = TypeVar("Model", bound=BaseModel)


class _ProblemsError(ValueError):
    """Several problems at once, each with its place in the object that was checked (`rooted`: in the whole config)."""

    def __init__(self, problems: list[Problem], rooted: bool = False) -> None:
        super().__init__(problems, rooted)
        self.problems = problems
        self.rooted = rooted


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="after")
    def _check(self) -> "_Strict":
        if problems := list(self._problems()):
            raise _ProblemsError(problems)
        return self

    def _problems(self) -> Iterable[Problem]:
        """What the types cannot say; runs when every key is right by itself."""
        return ()


def _only(*allowed: object) -> BeforeValidator:
    def check(value: object) -> object:
        if not any(type(value) is type(item) and value == item for item in allowed):  # 1 == True == 1.0
            raise ValueError(f"found {_found(value)}; allowed: {', '.join(map(_found, allowed))}")
        return value

    return BeforeValidator(check)


def _as_formats(value: object) -> tuple[str, ...]:
    """Formats in one order, whatever the order in the config: it changes nothing in the output."""
    names: Any = [value] if isinstance(value, str) else value
    known = isinstance(names, list | tuple) and len(names) > 0 and all(name in FORMATS for name in names)
    if not known or any(names.count(name) > 1 for name in names):
        raise ValueError(
            f"found {_found(value)}; allowed: {', '.join(map(repr, FORMATS))}, or a list of them, each once"
        )
    return tuple(name for name in FORMATS if name in names)


def _as_date(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}", value):
        with contextlib.suppress(ValueError):
            return Date.fromisoformat(value).isoformat()
    raise ValueError(f"found {_found(value)}; must be a date such as '2026-11-22'")


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
_ONE = {"enum": list(FORMATS)}
_SOME = {"type": "array", "items": _ONE, "minItems": 1, "uniqueItems": True}
Formats = Annotated[tuple[str, ...], BeforeValidator(_as_formats), WithJsonSchema({"anyOf": [_ONE, _SOME]})]


class SectionConfig(_Strict):
    """One field of the record, and what becomes of it."""

    field: Text = Field(description="Key of the record that is read.")
    action: Literal["train", "mask", "$role", "$last", "value"] = Field(
        description="train or mask; $role: as each message's role says; $last: only what follows the prompt, the "
        "prompt being all messages but the last; value: numbers, which are not tokenized."
    )
    template: Annotated[
        Literal[False, "message", "conversation"],
        BeforeValidator(lambda value: "message" if value is True else value),
        _only(False, True, "message", "conversation"),  # runs first: pydantic goes backwards here
        WithJsonSchema({"enum": [False, True, "message", "conversation"]}),
    ] = Field(
        default=False,
        description="true or 'message': the chat template renders each message of a list alone; 'conversation': all "
        "messages at once.",
    )
    add_special_tokens: bool | None = Field(
        default=None, description="Add the tokenizer's special tokens; null: if this is the first to yield anything."
    )

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


class SourceConfig(_Strict):
    """One output of several."""

    sections: Sections = Field(min_length=1, description="What the output is made of, in order.")
    list_field: bool = Field(default=False, description="The fields hold lists; each element is tokenized alone.")
    mask_key: Name | None = Field(default=None, description="Column of its mask; forces one where it is needless.")

    def _problems(self) -> Iterator[Problem]:
        actions = [section.action for section in self.sections]
        yield from _conversation_problems(self.sections)
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


def _conversation_problems(sections: tuple[SectionConfig, ...]) -> Iterator[Problem]:
    """What is wrong with the sections of an output that is one conversation."""
    if not any(section.template == "conversation" for section in sections):
        return
    actions = [section.action for section in sections]
    if not all(section.template == "conversation" for section in sections):
        yield ("sections",), "found template 'conversation' beside others; all sections of an output must have it"
    elif "$last" in actions and len(actions) > 1:
        yield ("sections", actions.index("$last"), "action"), "found '$last'; it must be the only section of its output"
    elif not _prompt_first(actions):
        yield ("sections",), "found 'mask' behind 'train'; what is masked (the prompt) must come first"


def _prompt_first(actions: Sequence[str]) -> bool:
    """Whether `mask` sections stand before `train` ones."""
    ranks = [("mask", "train").index(action) for action in actions if action in ("mask", "train")]
    return ranks == sorted(ranks)


class AdapterConfig(_Strict):
    """How records of another shape are read."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: Literal["sharegpt", "alpaca", "tokenized"] = Field(description="The shape; other keys are its options.")

    def build(self) -> Adapter:
        """The function on records."""
        return adapter(self.name, **(self.model_extra or {}))

    def _problems(self) -> Iterator[Problem]:
        try:
            if self.name != "tokenized":
                self.build()
            elif self.model_extra:
                yield (), f"found {_found(self.model_extra)}; adapter 'tokenized' has no options"
        except ConfigError as error:
            yield (), str(error)


class InputConfig(_Strict):
    """What is read: `sections` for one output, `sources` for several."""

    sections: Sections | None = Field(default=None, description="What the only output is made of, in order.")
    sources: dict[Name, SourceConfig] | None = Field(default=None, description="Several outputs, each with its name.")
    adapter: Annotated[
        AdapterConfig | None,
        BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}),
    ] = Field(
        default=None,
        description="Records of another shape: sharegpt, alpaca, or tokenized (input_ids with labels or a mask); or "
        "an object with its name and options.",
    )
    chat_template: Text | None = Field(
        default=None,
        description="In place of the tokenizer's chat template: the template itself, or a path beside the config.",
    )
    date: Annotated[
        str | None,
        BeforeValidator(_as_date),
        WithJsonSchema({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}),
    ] = Field(
        default=None, description="The day that the chat template is told when it asks for today's date: 2026-11-22."
    )
    implicit_prompt: bool = Field(
        default=False, description="Preference rows without a prompt: the longest common beginning of both sides."
    )

    @property
    def tokenized(self) -> bool:
        """Whether records are tokenised already."""
        return self.adapter is not None and self.adapter.name == "tokenized"

    def outputs(self, joint: bool = False) -> tuple[Output, ...]:
        """What each record becomes, for ApplyTemplate: `sequence` and `loss_mask`, or the sources.

        Args:
            joint: text sections are joined before they are encoded.
        """
        return tuple(
            Output(
                spec.name,
                spec.kind,
                tuple(
                    Section(section.field, section.action, section.template or None, section.add_special_tokens)
                    for section in spec.sections
                ),
                spec.mask_name,
                joint and spec.kind == "ids" and not spec.has_template,
            )
            for spec in _specs(self, OutputConfig())
        )

    def _problems(self) -> Iterator[Problem]:
        if self.tokenized:
            if self.sources or self.sections:
                yield (), "found sections or sources beside adapter 'tokenized', which reads input_ids; leave them out"
        elif self.sources:
            yield from self._name_problems(self.sources)
            yield from self._char_limit_problems()
            yield from self._prompt_problems(self.sources)
            if all(spec.kind == "value" for spec in _specs(self, OutputConfig())):
                yield ("sources",), "found only values; at least one source must hold text or messages"
        elif not self.sections:
            yield (), "found neither sections nor sources; give sections for one output, sources for several"
        elif "value" in (actions := [section.action for section in self.sections]):
            text = "found 'value'; it needs a source of its own in input.sources"
            yield ("sections", actions.index("value"), "action"), text
        elif not _trains(self.sections):
            yield ("sections",), "found no section that can train; give one the action 'train' or '$role'"
        else:
            yield from _conversation_problems(self.sections)
        if self.implicit_prompt and not self.sources:
            yield ("implicit_prompt",), "found true; it works only with input.sources (chosen and rejected)"

    def _prompt_problems(self, sources: dict[str, SourceConfig]) -> Iterator[Problem]:
        if not self.implicit_prompt:
            return
        sides = [source.sections for source in sources.values()][:2]
        prompts = {sections[0].field for sections in sides}
        good = len(sides) == 2 and len(prompts) == 1
        if not good or not all(len(s) == 2 and s[0].action == "mask" and s[1].action != "mask" for s in sides):
            text = "found true; the first two sources must each be a prompt (the same field, action 'mask') and a side"
            yield ("implicit_prompt",), text

    def _name_problems(self, sources: dict[str, SourceConfig]) -> Iterator[Problem]:
        first: dict[str, Location] = {}
        for spec in _specs(self, OutputConfig()):
            at: Location = ("sources", spec.name)
            mask_at = (*at, "mask_key") if sources[spec.name].mask_key else at
            for column, place in [(spec.name, at), (spec.mask_name, mask_at)]:
                if column is None:
                    continue
                if column.lower() in RESERVED:
                    yield place, f"found column {column!r}; reserved names: {', '.join(RESERVED)}"
                if (earlier := first.setdefault(column.lower(), place)) is not place:
                    why = "columns become file names, so upper and lower case count as equal"
                    yield place, f"found column {column!r}, which {_path(('input', *earlier))} has already; {why}"

    def _char_limit_problems(self) -> Iterator[Problem]:
        specs = _specs(self, OutputConfig())
        limited = {section.field: spec.name for spec in specs if spec.char_limits for section in spec.sections}
        for spec in specs:
            for i, section in enumerate(spec.sections):
                if section.field in limited and not spec.char_limits:
                    why = f"limit in source {limited[section.field]!r} (plain text, all trained) but cannot limit here"
                    text = f"found {_found(section.field)}, which min_chars and max_chars {why}; use two fields"
                    yield ("sources", spec.name, "sections", i, "field"), text


class PreprocessingConfig(_Strict):
    """What is dropped, cut and shifted."""

    max_seq_len: int = Field(default=2048, gt=0, description="Longest sequence in tokens; longer ones are cut.")
    min_chars: int = Field(default=50, ge=0, description="Shorter all-trained text fields are left out (code points).")
    max_chars: int = Field(default=2_000_000, ge=1, description="Longer all-trained text fields are left out.")
    max_items: int | None = Field(default=None, gt=0, description="Most records that are kept; null means no limit.")
    untrained: Literal["drop", "keep", "reject"] = Field(default="drop", description="Rows with nothing to train on.")
    truncation_mode: Literal["keep_start", "keep_end", "drop", "error"] = Field(
        default="keep_start",
        description="Sequences longer than max_seq_len: keep their start or end, drop the record, or fail the run.",
    )
    encode: Literal["separate", "joint"] = Field(
        default="separate", description="joint: text sections are joined, then encoded; the masked ones are the prompt."
    )
    eos: Literal["never", "if_missing", "always"] = Field(
        default="never", description="The EOS token's text behind text records; with it a blank text is a record."
    )
    bos: Literal["keep", "strip", "tokenizer"] = Field(
        default="keep",
        description="A conversation's leading BOS: keep; strip; tokenizer: strip, and let the tokenizer add its own.",
    )
    control_tokens: Literal["keep", "escape", "reject"] = Field(
        default="keep",
        description="Texts of special tokens inside contents: keep (as the tokens), escape, or reject the record.",
    )
    padding: Literal["none", "max_length"] | Annotated[int, Field(gt=0)] = Field(
        default="none", description="max_length: every row padded to max_seq_len; a number: to a multiple of it."
    )
    packing_strategy: Literal["none", "simple", "bfd", "bfd_split", "wrapped"] = Field(
        default="none",
        description="Several documents a row. bfd: best fit decreasing, longer ones are cut; bfd_split: cut into "
        "pieces; wrapped: joined and cut anywhere; simple: one document a row.",
    )
    max_packed_len: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="Tokens of a packed row; null means max_seq_len."
    )
    packing_group: int = Field(default=5000, gt=0, description="Consecutive rows of a shard that are packed together.")
    shift: bool = Field(default=False, description="Shift the labels by one, which transformers' models do themselves.")

    # On the field, not in `_problems`: so it is reported together with an unknown key.
    @field_validator("max_chars")
    @classmethod
    def _not_below_min_chars(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min_chars", 0):
            raise ValueError(f"found {value}; must not be less than min_chars, which is {info.data['min_chars']}")
        return value


class OutputConfig(_Strict):
    """What is written."""

    domain_key: Text | None = Field(default=None, description="Key of the record that names its domain (a folder).")
    storage_format: Formats = Field(default=("bin",), description="Format, or list of formats, of the shards.")
    max_tokens_per_shard: int = Field(default=100_000_000, gt=0, description="Tokens after which a shard ends.")
    dtype: dict[str, DType] = Field(default={}, description="Column to dtype; others are int32, values float32.")
    columns: Literal["loss_mask", "labels"] = Field(
        default="loss_mask", description="labels: input_ids and labels (-100 where masked), for input.sections only."
    )
    position_ids_mode: Literal["none", "doc_reset", "continuous"] | None = Field(
        default=None,
        description="position_ids: from 0 in every document, or through the row; null: doc_reset with packing.",
    )
    names: dict[str, Name] = Field(
        default={}, description="Column to the name under which it is written; all other keys use the column's own."
    )

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats to write, each once, in a fixed order."""
        return self.storage_format


def _trains(sections: tuple[SectionConfig, ...]) -> bool:
    return any(section.action in ("train", "$role", "$last") for section in sections)


@dataclass(frozen=True)
class OutputSpec:
    """One output: a column of ids, lists of ids or values and, unless it is needless, the column of its mask."""

    name: str
    kind: Kind
    sections: tuple[SectionConfig, ...]
    mask_name: str | None
    dtype: str
    mask_dtype: str | None

    @property
    def has_template(self) -> bool:
        """Whether any section goes through the chat template."""
        return any(section.template for section in self.sections)

    @property
    def plain(self) -> bool:
        """Whether all is text with action train, so that every token is trained."""
        return not self.has_template and all(section.action == "train" for section in self.sections)

    @property
    def trains(self) -> bool:
        """Whether at least one section can train."""
        return _trains(self.sections)

    @property
    def char_limits(self) -> bool:
        """Whether min_chars and max_chars act on the fields."""
        return self.plain and self.kind == "ids"


def _specs(given: InputConfig, output: OutputConfig) -> tuple[OutputSpec, ...]:
    if given.tokenized:
        only = SourceConfig(sections=(SectionConfig(field="input_ids", action="train"),))
        names = ("input_ids", "labels") if output.columns == "labels" else ("sequence", "loss_mask")
        return (_spec(*names, only, True, output.dtype),)
    if given.sources:
        return tuple(
            _spec(name, source.mask_key or f"{name}_mask", source, source.mask_key is not None, output.dtype)
            for name, source in given.sources.items()
        )
    only = SourceConfig(sections=given.sections or ())
    if output.columns == "labels":
        return (_spec("input_ids", "labels", only, True, output.dtype),)
    return (_spec("sequence", "loss_mask", only, False, output.dtype),)


def _spec(name: str, mask: str, source: SourceConfig, forced: bool, dtype: Mapping[str, str]) -> OutputSpec:
    kind: Kind = "list" if source.list_field else "value" if source.sections[0].action == "value" else "ids"
    default = "float32" if kind == "value" else "int32"
    spec = OutputSpec(name, kind, source.sections, None, dtype.get(name, default), None)
    if forced or (kind != "value" and spec.trains and not spec.plain):
        return replace(spec, mask_name=mask, mask_dtype=dtype.get(mask, "int32"))
    return spec


def _columns(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Column to dtype, in output order, by their own names."""
    specs = _specs(given, output)
    pairs = [((spec.name, spec.dtype), (spec.mask_name, spec.mask_dtype)) for spec in specs]
    columns = {name: dtype for pair in pairs for name, dtype in pair if name is not None and dtype is not None}
    more = {
        "attention_mask": preprocessing.padding != "none",
        "position_ids": _position_ids_mode(preprocessing, output) != "none",
        "seq_lens": preprocessing.packing_strategy != "none",
    }
    return columns | {name: output.dtype.get(name, "int32") for name, there in more.items() if there}


def _position_ids_mode(
    preprocessing: PreprocessingConfig, output: OutputConfig
) -> Literal["none", "doc_reset", "continuous"]:
    default: Literal["none", "doc_reset"] = "none" if preprocessing.packing_strategy == "none" else "doc_reset"
    return output.position_ids_mode or default


def _holds(given: InputConfig, output: OutputConfig) -> dict[str, str]:
    """What every possible column holds, masks that are left out included: a key of `ALLOWED_DTYPES`."""
    specs = _specs(given, output)
    holds = {spec.name: "values" if spec.kind == "value" else "token ids" for spec in specs}
    holds |= {spec.mask_name: "labels" if output.columns == "labels" else "masks" for spec in specs if spec.mask_name}
    for spec in specs:
        if spec.kind != "value" and spec.mask_name is None:
            holds.setdefault(f"{spec.name}_mask" if given.sources else "loss_mask", "masks")
    if not given.sources:
        holds |= {"attention_mask": "masks", "position_ids": "token ids", "seq_lens": "token ids"}
    return holds


class PipelineConfig(_Strict):
    """A whole config: what is read, masked, cut and written."""

    version: Annotated[Literal[1], _only(1)] = Field(default=1, description="Version of the config format.")
    input: InputConfig = Field(description="What is read: sections for one output, sources for several.")
    mask: dict[Text, Literal["train", "mask", "last"]] = Field(
        default={}, description="Role to action, for $role; last: only the role's last message is trained."
    )
    mask_default: Literal["train", "mask"] = Field(default="mask", description="Action of the roles not in mask.")
    preprocessing: PreprocessingConfig = Field(default=PreprocessingConfig(), description="What is dropped and cut.")
    output: OutputConfig = Field(default=OutputConfig(), description="What is written.")

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> "PipelineConfig":
        """Read a config file; raises `ConfigError` when it cannot be read or is wrong."""
        name = os.fspath(path)
        try:
            with open(name, encoding="utf-8-sig") as file:
                text = file.read()
        except OSError as error:
            raise ConfigError(f"{name}: the config cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name}: the config is not UTF-8: {error.reason} at byte {error.start}") from error
        return cls.from_text(text, name)

    @classmethod
    def from_text(cls, text: str, name: str = "config", read: Callable[[str], bytes] | None = None) -> "PipelineConfig":
        """Build a config from JSON text; `name` is what error messages call it.

        A chat template's file is looked for beside `name`, and read by `read`, where it is given.
        """
        try:
            obj = json.loads(text, object_pairs_hook=_Object)
            duplicates = list(_duplicates(obj))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
            raise ConfigError(f"{name}: not usable as JSON: {error}") from error
        return _build(PipelineConfig, _with_template(obj, os.path.dirname(name), read), name, duplicates)

    @classmethod
    def from_dict(cls, obj: dict[str, Any], name: str = "config") -> "PipelineConfig":
        """Build a config from plain dicts and lists; `name` is what error messages call it."""
        return _build(PipelineConfig, _with_template(obj, ""), name, [])

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of a config file, for editors."""
        schema = cls.model_json_schema()
        link = {"type": "string", "description": "Where this schema is; for editors, ignored here."}
        schema["properties"] = {"$schema": link, **schema["properties"]}
        # What pydantic leaves out: the description of a validated model, and that names must match their pattern.
        schema["properties"]["output"]["description"] = cls.model_fields["output"].description
        schema["$defs"]["InputConfig"]["properties"]["sources"]["anyOf"][0]["additionalProperties"] = False
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    @model_validator(mode="before")
    @classmethod
    def _without_schema_link(cls, obj: object) -> object:
        return {key: value for key, value in obj.items() if key != "$schema"} if isinstance(obj, dict) else obj

    # On the last field, not in `_problems`: so it runs when other parts have problems; those are missing in `data`.
    @field_validator("output")
    @classmethod
    def _check_parts_together(cls, output: OutputConfig, info: ValidationInfo) -> OutputConfig:
        if problems := list(_joint_problems(info.data.get("input"), info.data.get("preprocessing"), output)):
            raise _ProblemsError(problems, rooted=True)
        return output

    @property
    def warnings(self) -> list[str]:
        """What is allowed but probably not meant, one sentence each."""
        found = []
        if self.input.sources and self.input.sections:
            found.append("input.sections is ignored, because input.sources is set")
        by_role = any(section.action == "$role" for spec in self.outputs() for section in spec.sections)
        if by_role and self.mask_default == "mask" and not {"train", "last"} & {*self.mask.values()}:
            found.append("no role trains: mask gives none 'train' or 'last', and mask_default is 'mask'")
        step = self.preprocessing
        if step.packing_strategy == "none" and step.max_packed_len is not None:
            found.append("preprocessing.max_packed_len is ignored, because packing_strategy is 'none'")
        if step.packing_strategy == "none" and "packing_group" in step.model_fields_set:
            found.append("preprocessing.packing_group is ignored, because packing_strategy is 'none'")
        if self.preprocessing.eos == "never" and not self.input.tokenized:
            for spec in self.outputs():
                if spec.kind == "ids" and not spec.has_template and spec.trains and len(spec.sections) > 1:
                    fields = " and ".join(repr(section.field) for section in spec.sections)
                    found.append(
                        f"{spec.name}: nothing stands between the texts of {fields}, and no EOS ends them: let the "
                        "data bring a separator, and set preprocessing.eos to 'if_missing', so that the end is learned"
                    )
        return found

    @property
    def char_filter_fields(self) -> tuple[str, ...]:
        """The fields that min_chars and max_chars act on: those of outputs that are plain text, all trained."""
        limited = (spec for spec in self.outputs() if spec.char_limits)
        return tuple(dict.fromkeys(section.field for spec in limited for section in spec.sections))

    def outputs(self) -> tuple[OutputSpec, ...]:
        """What each record becomes, in config order."""
        return _specs(self.input, self.output)

    def columns(self) -> dict[str, str]:
        """Column to dtype, in output order: each output, then its mask. By their own names: see `names`."""
        return _columns(self.input, self.preprocessing, self.output)

    @property
    def names(self) -> dict[str, str]:
        """Column to the name under which it is written, where that is another one; in output order."""
        given = self.output.names
        return {name: given[name] for name in self.columns() if given.get(name, name) != name}

    def written(self) -> dict[str, str]:
        """Column to dtype, in output order, by the names under which they are written."""
        return {self.names.get(name, name): dtype for name, dtype in self.columns().items()}

    @property
    def position_ids_mode(self) -> Literal["none", "doc_reset", "continuous"]:
        """Which position ids are written: with packing `doc_reset`, unless the config says otherwise."""
        return _position_ids_mode(self.preprocessing, self.output)

    @property
    def pad_multiple(self) -> int | None:
        """Rows are padded to a multiple of this; None: not padded."""
        padding = self.preprocessing.padding
        return None if padding == "none" else self.preprocessing.max_seq_len if padding == "max_length" else padding

    def check_vocabulary(self, max_id: int) -> None:
        """Raise `ConfigError` if a column that holds token ids (labels do too) cannot hold `max_id`."""
        holds = _holds(self.input, self.output)
        lines = []
        for name, dtype in self.columns().items():
            if holds[name] in ("token ids", "labels") and name not in RESERVED and LARGEST[dtype] < max_id:
                wide = [other for other in ALLOWED_DTYPES[holds[name]] if LARGEST[other] >= max_id]
                lines.append(
                    f"output.dtype.{name} is {dtype}, which holds ids up to {LARGEST[dtype]}; "
                    f"this tokenizer has ids up to {max_id}: use {' or '.join(wide[:2])}"
                )
        if lines:
            raise ConfigError("\n".join(lines))

    def canonical(self) -> dict[str, Any]:
        """The config as JSON data with every default filled in; the same for configs that mean the same.

        What has no effect is left out (ignored sections, dtypes of columns that are not written). The order of
        `input.sources` has an effect, so a digest must keep the order of keys: ``json.dumps(config.canonical())``.
        """
        plain = self.model_dump(mode="json")
        plain["input"]["sections" if self.input.sources else "sources"] = None
        if self.input.date is None:  # old outputs and spools keep their names
            del plain["input"]["date"]
        for spec in self.outputs() if self.input.sources else ():
            plain["input"]["sources"][spec.name]["mask_key"] = spec.mask_name
        plain["mask"] = dict(sorted(self.mask.items()))
        plain["output"]["dtype"] = self.columns()
        if names := self.names:
            plain["output"]["names"] = names
        else:
            del plain["output"]["names"]  # so that outputs of earlier versions stay up to date
        return plain


def _joint_problems(
    given: InputConfig | None, preprocessing: PreprocessingConfig | None, output: OutputConfig
) -> Iterator[Problem]:
    if preprocessing is not None and preprocessing.shift and output.columns != "labels":
        yield ("preprocessing", "shift"), "found true; it works only with output.columns: 'labels'"
    if given is None:
        return
    if preprocessing is not None:
        yield from _text_rule_problems(given, preprocessing)
        yield from _layout_problems(given, preprocessing, output)
    if given.sources and output.columns == "labels":
        yield ("output", "columns"), "found 'labels'; it works only with input.sections: use 'loss_mask' with sources"
        return
    holds = _holds(given, output)
    for name, dtype in output.dtype.items():
        if name not in holds:
            yield ("output", "dtype", name), _unknown("column", name, holds)
        elif dtype not in (allowed := ALLOWED_DTYPES[holds[name]]):
            yield ("output", "dtype", name), f"found {dtype!r}; allowed for {holds[name]}: {', '.join(allowed)}"
    if preprocessing is not None:
        for name, problem in name_problems(output.names, tuple(_columns(given, preprocessing, output))):
            yield ("output", "names", name), problem


def _layout_problems(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> Iterator[Problem]:
    """Packing, padding and positions are for rows of one sequence."""
    settings: list[tuple[Location, object]] = [
        (("preprocessing", "padding"), preprocessing.padding),
        (("preprocessing", "packing_strategy"), preprocessing.packing_strategy),
        (("output", "position_ids_mode"), output.position_ids_mode or "none"),
    ]
    for place, value in settings:
        if given.sources and value != "none":
            yield place, f"found {value!r}; it works only with input.sections, whose rows are one sequence"
    if preprocessing.padding != "none" and preprocessing.packing_strategy != "none":
        text = f"found {preprocessing.padding!r} beside packing_strategy; packed rows are padded by the trainer"
        yield ("preprocessing", "padding"), text


def _text_rule_problems(given: InputConfig, preprocessing: PreprocessingConfig) -> Iterator[Problem]:
    if given.date is not None and not any(spec.has_template for spec in _specs(given, OutputConfig())):
        yield ("input", "date"), f"found {given.date!r}; it works only with a template, which may ask for the date"
    specs = [spec for spec in _specs(given, OutputConfig()) if spec.kind == "ids"]
    conversation = any(section.template == "conversation" for spec in specs for section in spec.sections)
    if preprocessing.bos != "keep" and not conversation:
        text = f"found {preprocessing.bos!r}; it works only with template: 'conversation'"
        yield ("preprocessing", "bos"), text
    if preprocessing.encode == "joint":
        for spec in specs:
            if not spec.has_template and not _prompt_first([section.action for section in spec.sections]):
                text = f"found 'joint', and 'mask' behind 'train' in {spec.name!r}; the prompt must come first"
                yield ("preprocessing", "encode"), text


# From here on: reading JSON, and saying what is wrong.


def _with_template(obj: Any, folder: str, read: Callable[[str], bytes] | None = None) -> Any:
    """The config with the chat template itself where it names a file beside it: outputs depend on what it says."""
    given = obj.get("input") if isinstance(obj, dict) else None
    if not isinstance(given, dict):
        return obj
    source = given.get("chat_template")
    if not isinstance(source, str) or not source or "{{" in source or "{%" in source:
        return obj
    path = os.path.join(folder, source)
    try:
        text = (read or _read)(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"input.chat_template: found {source!r}, which cannot be read ({error}); wanted a template, "
            "or the path of one beside the config"
        ) from error
    return {**obj, "input": {**given, "chat_template": text}}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys were given more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _duplicates(value: object, at: Location = ()) -> Iterator[Problem]:
    if isinstance(value, _Object):
        yield from (((*at, key), "duplicate key; give it once") for key in value.repeated)
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _duplicates(inner, (*at, step))


def _build(model: type[Model], obj: object, name: str, problems: list[Problem]) -> Model:
    try:
        config = model.model_validate(obj)
    except ValidationError as error:
        problems = problems + [problem for details in error.errors() for problem in _explain(model, details)]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {_path(at)}: {text}" for at, text in problems]
        raise ConfigError("\n".join([f"{name}: {count} in the config", *lines]))
    return config


WANTED = {
    "int_type": "an integer",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "string_pattern_mismatch": "a name of letters, digits and '_' that starts with a letter",
    "tuple_type": "a list",
    "too_short": "a list that is not empty",
    "dict_type": "an object",
    "model_type": "an object",
}


def _explain(model: type[BaseModel], details: Any) -> list[Problem]:
    """One problem, or several, from one entry of pydantic's `ValidationError.errors()`."""
    at, kind, context = details["loc"], details["type"], details.get("ctx", {})
    found = f"found {_found(details['input'])}; "
    if isinstance(error := context.get("error"), _ProblemsError):
        return [(place if error.rooted else (*at, *place), text) for place, text in error.problems]
    if kind == "too_short" and details["input"]:
        return []  # pydantic counts only the items that are right; the others are reported by themselves
    if kind == "value_error":
        return [(at, str(error))]
    if kind == "extra_forbidden":
        parts = {name: _model_in(field.annotation) for name, field in model.model_fields.items()}
        right = [name for name, part in parts.items() if part and at[-1] in part.model_fields]
        return [
            (
                at,
                _unknown("key", at[-1], _fields(model, at[:-1]))
                + "".join(f"; it belongs in {name!r}" for name in right),
            )
        ]
    if kind == "missing":
        return [(at, f"missing. {_fields(model, at[:-1])[at[-1]].description}")]
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ")
        return [(at, f"{found}{_hint(details['input'], allowed.replace(chr(39), '').split(', '))}allowed: {allowed}")]
    wanted = f"must be {WANTED[kind]}" if kind in WANTED else details["msg"].replace("Input should", "must")
    about = f". {_fields(model, at[:-1])[at[-1]].description}" if kind.startswith("greater_than") else ""
    return [(at, f"{found}{wanted}{about}")]


def _fields(model: type[BaseModel], at: Location) -> Mapping[str, Any]:
    """The fields of the object at this place of a config of type `model`."""
    found: Any = model
    steps = iter(at)
    for step in steps:
        annotation = found.model_fields[step].annotation
        found = _model_in(annotation)
        if found is not annotation:
            next(steps)  # the index of a section, the name of a source
    fields: Mapping[str, Any] = found.model_fields
    return fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def _found(value: object) -> str:
    """A value as in a config, shortened."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _short.repr(list(value) if isinstance(value, tuple) else value)


def _path(at: Location) -> str:
    steps = (step for step in at if step != "[key]")  # pydantic's mark for a problem with the key itself
    texts = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{_found(step)}]" for step in steps)
    return "".join(texts).removeprefix(".") or "config"


def _unknown(what: str, name: object, known: Iterable[str]) -> str:
    return f"unknown {what} {_found(name)}; {_hint(name, known)}known: {', '.join(known)}"


def _hint(name: object, known: Iterable[str]) -> str:
    by_lower = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1) if isinstance(name, str) else []
    return f"did you mean {by_lower[near[0]]!r}? " if near else ""
