"""`PipelineConfig`: all parts of a config together, and how it is made of a text."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from beam_prep.config.combinations import column_dtypes, contents_of, joint_problems
from beam_prep.config.parts import InputConfig, OutputConfig, PreprocessingConfig, outputs_of
from beam_prep.config.presets import with_preset
from beam_prep.config.strict import ALLOWED_DTYPES, LARGEST, Problem, Strict, Text, path_of, problems_of
from beam_prep.data.block import Reject
from beam_prep.data.schema import RESERVED, DefaultRule, MaskOptions, Output, RoleRule
from beam_prep.errors import ConfigError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import is_outside
from beam_prep.reading.records import parse_json
from beam_prep.reading.verdicts import FieldUse

TemplateFiles = Literal["beside", "below", "none"]
"""Which files may hold a chat template: any file, relative to the config's folder; only files below it; none."""


_ALSO_READ = {
    "alpaca": ("input", "system", "history"),
    "sharegpt": ("system",),
    "tokenized": ("labels", "loss_mask", "completion_mask", "assistant_masks", "attention_mask", "loss_weights"),
    "templates": ("chat_template_kwargs",),
    "conversations": ("tools", "functions"),
}
"""Fields that adapters, unless options name others, and chat templates read if a record has them."""


class MaskOptionsConfig(Strict):
    """Which parts of a trained message are trained, for template 'conversation'."""

    reasoning: Literal["train", "mask", "drop_history"] = "train"
    """The reasoning. `drop_history`: removes it from messages before the last question of a row."""
    tool_calls: Literal["train", "mask"] = "train"
    """The calls of tools."""
    generation_prompt: Literal["template", "train", "mask"] = "template"
    """The header of an answer. `template`: trained if the template's generation blocks hold it; `train`: always;
    `mask`: never."""
    eos: Literal["train", "mask"] = "train"
    """The end tokens after a message."""

    def build(self) -> MaskOptions:
        """The options, for `ApplyTemplate` and `BuildMask`."""
        return MaskOptions(self.reasoning, self.tool_calls, self.generation_prompt, self.eos)


ALWAYS_SAID = {
    "input": ["sections", "sources", "adapter", "chat_template", "implicit_prompt"],
    "preprocessing": [
        *("max_seq_len", "min_chars", "max_chars", "max_items", "rows_without_loss", "truncation_mode", "encode"),
        *("eos", "bos", "control_tokens", "padding", "packing_strategy", "max_packed_len", "packing_group", "shift"),
    ],
    "output": ["domain_key", "storage_format", "max_tokens_per_shard", "dtype", "columns", "position_ids_mode"],
}
"""The fields that `canonical` always includes, as the first version did.

Other fields are left out if they have their default. So an output or a token cache that was made before a field existed
has the same canonical config, and stays valid.
"""


class PipelineConfig(Strict):
    """A complete config: what is read, masked, cut and written.

    >>> config = bp.PipelineConfig.from_json("configs/sft_conversation.json")
    >>> config.mask
    {'assistant': 'train'}
    >>> config.columns()
    {'input_ids': 'int32', 'labels': 'int32'}

    A wrong config raises one error, which lists all problems:

    >>> bp.PipelineConfig.from_dict({"input": {"sections": [{"field": "text", "action": "trian"}]}})
    Traceback (most recent call last):
    beam_prep.errors.ConfigError: config: 1 problem in the config
      input.sections[0].action: found 'trian'; did you mean 'train'? allowed: 'train', 'mask', '$role', '$last', 'value'
    """

    version: Literal[1] = 1
    """Version of the config format."""
    input: InputConfig
    """What is read: see [input](config.md#input)."""
    mask: dict[Text, RoleRule] = Field(default={})
    """Role to rule, for sections with action `$role`: see [mask](config.md#mask)."""
    mask_default: DefaultRule = "mask"
    """The rule of roles that `mask` does not name."""
    mask_options: MaskOptionsConfig | None = None
    """Which parts of trained messages are trained: see
    [masks.md](masks.md#reasoning-tool-calls-headers-and-end-tokens). Null: all parts, with the end token."""
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    """What is dropped, cut and shifted: see [preprocessing](config.md#preprocessing)."""
    output: OutputConfig = OutputConfig()
    """What is written: see [output](config.md#output)."""

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> "PipelineConfig":
        """Reads a config file. Raises `ConfigError` if it cannot be read or is wrong."""
        name = os.fspath(path)
        try:
            text = Path(name).read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: the config cannot be read: {error}") from error
        return cls.from_text(text, name)

    @classmethod
    def from_text(
        cls,
        text: str,
        name: str = "config",
        read: Callable[[str], bytes] | None = None,
        files: TemplateFiles = "beside",
    ) -> "PipelineConfig":
        """Builds a config from JSON text.

        Args:
            text: the JSON.
            name: the config's name in error messages. The path of a chat template is relative to its folder.
            read: reads the file of a chat template.
            files: `none`: the config must hold the chat template itself; `below`: the template may also be a file below
                the folder of `name`. For configs from other people.
        """
        return cls._validated(with_template(_parsed(text, name), os.path.dirname(name), read, files), name)

    @classmethod
    def from_dict(cls, obj: dict[str, Any], name: str = "config") -> "PipelineConfig":
        """Builds a config from plain dicts and lists; `name` is its name in error messages."""
        return cls._validated(with_template(obj, ""), name)

    @classmethod
    def _validated(cls, obj: object, name: str) -> "PipelineConfig":
        """Builds a config from JSON. Raises one `ConfigError`, which lists all problems, one a line."""
        try:
            return cls.model_validate(obj)
        except ValidationError as error:
            problems = [problem for each in error.errors() for problem in problems_of(cls, each)]
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {path_of(at)}: {text}" for at, text in problems]
        raise ConfigError("\n".join([f"{name}: {count} in the config", *lines]))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of a config file, for editors."""
        schema = cls.model_json_schema()
        schema["description"] = schema["description"].partition("\n")[0]  # without the docstring's example
        link = {"type": "string", "description": "Where the schema is, for editors. Ignored."}
        schema["properties"] = {"$schema": link, **schema["properties"]}
        # pydantic leaves out that names must match their pattern.
        for part in ("InputConfig", "GroupConfig"):
            schema["$defs"][part]["properties"]["sources"]["anyOf"][0]["additionalProperties"] = False
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, obj: object) -> object:
        if isinstance(obj, dict):
            obj = {key: value for key, value in obj.items() if key != "$schema"}
        return with_preset(obj)

    def _problems(self) -> Iterable[Problem]:
        return joint_problems(self.input, self.preprocessing, self.output, self.mask_options)

    @property
    def warnings(self) -> list[str]:
        """Settings that are allowed but probably not meant, one sentence each."""
        found = []
        for number, part in enumerate(self.parts()):
            of = "" if self.input.groups is None else f"input.groups[{number}]: "
            found += [of + text for text in part._warnings_of_fields()]
            rule = self.preprocessing.decontaminate
            if of and rule is not None and rule.fields is not None and not {*rule.fields} & {*part.section_fields}:
                fields = ", ".join(map(repr, part.section_fields))
                found.append(
                    f"{of}preprocessing.decontaminate.fields names no field that this group reads ({fields}): no text "
                    "that it trains on is compared"
                )
        for place, why in self._unused().items():
            holder, name = _holder(self, place)
            if name in holder.model_fields_set and getattr(holder, name) != _default(holder, name):
                found.append(f"{place} is ignored, because {why}")
        for name in self.output.storage_format:
            for text in FORMATS[name].warnings([self.output.columns]):
                found.append(f"output.storage_format {name!r}: {text}")
        return found

    def _unused(self) -> dict[str, str]:
        """Place of a setting -> why it has no effect here."""
        encoded = [part for part in self.parts() if not part.input.tokenized and part.input.rollouts is None]
        outputs = [each for part in encoded for each in part.outputs() if each.kind != "value"]
        sections = [section for each in outputs for section in each.sections]
        texts = [each for each in outputs if each.kind == "ids" and not each.has_template]
        unused: dict[str, str] = {}
        if self.preprocessing.packing_strategy == "none":
            packed = ("preprocessing.max_packed_len", "preprocessing.packing_group")
            unused |= dict.fromkeys(packed, "packing_strategy is 'none'")
        if not any(each.char_limits for each in texts):
            limits = ("preprocessing.min_chars", "preprocessing.max_chars")
            unused |= dict.fromkeys(limits, "no output is plain text that is trained completely")
        if not any(each.trains for each in texts):
            unused["preprocessing.eos"] = "no output is trained text, without a template and in no list"
        if not texts:
            unused["preprocessing.encode"] = "no output is text, without a template and in no list"
        if not encoded:
            ids = ("preprocessing.control_tokens", "input.not_text")
            unused |= dict.fromkeys(ids, "the records hold token ids")
        if not any(section.action == "$role" for section in sections):
            unused |= dict.fromkeys(("mask", "mask_default"), "no section has the action '$role'")
        if not any(section.template for section in sections):
            places = ("date", "template_variables", "not_rendered", "tool_arguments")
            unused |= dict.fromkeys([f"input.{name}" for name in places], "no section has a template")
        if not any(section.template == "conversation" for section in sections):
            unused |= dict.fromkeys(("mask_options", "preprocessing.bos"), "no section is a conversation")
        return unused

    def _warnings_of_fields(self) -> list[str]:
        """Warnings about the fields that are read."""
        found = []
        if self.input.sources and self.input.sections:
            found.append("input.sections is ignored, because input.sources is set")
        by_role = any(section.action == "$role" for each in self.outputs() for section in each.sections)
        if by_role and self.mask_default == "mask" and not {"train", "last"} & {*self.mask.values()}:
            found.append("no role trains: mask gives none 'train' or 'last', and mask_default is 'mask'")
        if self.preprocessing.eos == "never" and not self.input.tokenized:
            for each in self.outputs():
                if each.kind == "ids" and not each.has_template and each.trains and len(each.sections) > 1:
                    fields = " and ".join(repr(section.field) for section in each.sections)
                    found.append(
                        f"{each.name}: nothing separates the texts of {fields}, and no EOS ends them, unless the "
                        "tokenizer does: put a separator into the data, and set preprocessing.eos to 'if_missing', so "
                        "that the end is learned"
                    )
        return found

    @property
    def char_filter_fields(self) -> tuple[str, ...]:
        """The fields that min_chars and max_chars limit: fields of outputs that are completely trained plain text."""
        limited = (each for each in self.outputs() if each.char_limits)
        return tuple(dict.fromkeys(section.field for each in limited for section in each.sections))

    @property
    def decontaminated_fields(self) -> tuple[str, ...]:
        """The fields that are compared with evaluation data: the fields of the rule, else of all sections."""
        rule = self.preprocessing.decontaminate
        return self.section_fields if rule is None or rule.fields is None else rule.fields

    @property
    def section_fields(self) -> tuple[str, ...]:
        """The fields of all sections."""
        return tuple(dict.fromkeys(section.field for each in self.outputs() for section in each.sections))

    @property
    def field_use(self) -> FieldUse:
        """How the config uses the fields of a record. With groups, ask each `part`."""
        output, outputs = self.output, self.outputs()
        sections = [section for each in outputs for section in each.sections]
        kept = {section.field: "writes it as a column" for section in sections if section.action == "value"}
        kept |= dict.fromkeys(output.keep_fields, "keeps it beside the tokens")
        if output.domain_key is not None:
            kept[output.domain_key] = "gives each value a folder (output.domain_key)"
        if output.loss_weights:
            kept["weight"] = "weighs the loss by it (output.loss_weights)"
        trained = {section.field for section in sections if section.action not in ("mask", "value")}
        pairs = {"chosen", "rejected"} <= {*(self.input.sources or ())}
        documents = all(each.char_limits or each.kind == "value" for each in outputs)
        answers = self.input.adapter is not None or (self.input.rollouts is None and not documents)
        # The sections of rollouts name columns.
        read = frozenset((*self.input.fields, *(() if self.input.rollouts else self.section_fields)))
        also = {*_ALSO_READ["templates"]} if any(each.has_template for each in outputs) else set()
        also |= {*_ALSO_READ["conversations"]} if any(each.conversation for each in outputs) else set()
        if (adapter := self.input.adapter) is not None:
            also |= {(adapter.model_extra or {}).get(name, name) for name in _ALSO_READ[adapter.name]}
        return FieldUse(kept, read, frozenset(trained), answers, pairs, frozenset(also))

    def parts(self) -> tuple["PipelineConfig", ...]:
        """The config of each group of inputs, as if it were the only group; without groups: (self,)."""
        return tuple(self._part(given) for given in self.input.parts(self.output)) if self.input.groups else (self,)

    def part(self, group: int | None) -> "PipelineConfig":
        """The config of a group of inputs, by its number; without groups: this config."""
        return self if self.input.groups is None else self.parts()[group or 0]

    def _part(self, given: InputConfig) -> "PipelineConfig":
        """Drops settings that do not affect this group."""
        part = self.model_copy(update={"input": given})
        if given.domain is not None:
            part = part.model_copy(update={"output": self.output.model_copy(update={"domain_key": None})})
        for place in part._unused():
            holder, name = _holder(part, place)
            update: dict[str, Any] = {name: _default(holder, name)}
            if holder is not part:
                update = {place.partition(".")[0]: holder.model_copy(update=update)}
            part = part.model_copy(update=update)
        return part

    def outputs(self) -> tuple[Output, ...]:
        """The outputs that each record becomes, in config order; with groups: the outputs of each group in turn."""
        return outputs_of(self.input, self.output)

    def columns(self) -> dict[str, str]:
        """Column -> dtype, in output order: each output, then its mask. Names are before renaming, see `names`."""
        return column_dtypes(self.input, self.preprocessing, self.output)

    @property
    def names(self) -> dict[str, str]:
        """Column -> the name under which it is written, for renamed columns; in output order."""
        columns = self.columns()
        given = self.output.new_names(columns)
        return {name: given[name] for name in columns if given.get(name, name) != name}

    def written(self) -> dict[str, str]:
        """Written name of each column -> dtype, in output order."""
        return {self.names.get(name, name): dtype for name, dtype in self.columns().items()}

    @property
    def pad_multiple(self) -> int | None:
        """Rows are padded to a multiple of this number; None: they are not padded."""
        padding = self.preprocessing.padding
        return None if padding == "none" else self.preprocessing.max_seq_len if padding == "max_length" else padding

    def check_vocabulary(self, max_id: int) -> None:
        """Raises `ConfigError` if a column of token ids or labels cannot hold `max_id`."""
        holds = contents_of(self.input, self.preprocessing, self.output)
        lines = []
        for name, dtype in self.columns().items():
            if holds.get(name) in ("token ids", "labels") and name not in RESERVED and LARGEST[dtype] < max_id:
                wide = [other for other in ALLOWED_DTYPES[holds[name]] if LARGEST[other] >= max_id]
                lines.append(
                    f"output.dtype.{name} is {dtype}, which holds ids up to {LARGEST[dtype]}; "
                    f"this tokenizer has ids up to {max_id}: use {' or '.join(wide[:2])}"
                )
        if lines:
            raise ConfigError("\n".join(lines))

    def canonical(self) -> dict[str, Any]:
        """The config as JSON data, equal for configs with the same meaning.

        Settings without effect are left out (ignored sections, dtypes of columns that are not written), and so are most
        defaults (see `ALWAYS_SAID`). The order of `input.sources` has an effect, so a digest must keep the order of
        keys: ``json.dumps(config.canonical())``.
        """
        plain = self.model_dump(mode="json")
        _settle(plain["input"], self.input, self.output)
        for group, given in zip(plain["input"]["groups"] or (), self.input.parts(self.output), strict=False):
            _settle(group, given, self.output)
            for field in [field for field, value in group.items() if value is None]:
                del group[field]
        plain["mask"] = dict(sorted(self.mask.items()))
        plain["output"]["dtype"] = self.columns()
        plain["output"]["names"] = self.names
        del plain["output"]["preset"]  # the other fields have all its settings
        if self.mask_options is None:
            del plain["mask_options"]
        for part, said in ALWAYS_SAID.items():
            for field in plain[part].keys() - said:
                if plain[part][field] == type(getattr(self, part)).model_fields[field].default:
                    del plain[part][field]
        return plain


def _holder(config: PipelineConfig, place: str) -> tuple[Strict, str]:
    """The part of a config that has a setting, and the setting's name in it."""
    part, _, name = place.rpartition(".")
    return getattr(config, part) if part else config, name


def _default(part: Strict, name: str) -> Any:
    return type(part).model_fields[name].default


def _settle(plain: dict[str, Any], given: InputConfig, output: OutputConfig) -> None:
    """Fills in the masks of sources, and sets to null which of `sections` and `sources` is not read."""
    plain["sections" if given.sources else "sources"] = None
    for each in outputs_of(given, output) if given.sources else ():
        plain["sources"][each.name]["mask_key"] = each.mask_name


def _parsed(text: str, name: str) -> Any:
    """The JSON of a config. Raises `ConfigError` if the text is not JSON, or repeats a key."""
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"))
    except Reject as reject:
        raise ConfigError(f"{name}: not JSON: {reject.message}") from None


def with_template(
    obj: Any, folder: str, read: Callable[[str], bytes] | None = None, files: TemplateFiles = "beside"
) -> Any:
    """Replaces the path of a chat template by the text of the template, on which outputs depend.

    Args:
        obj: the config's JSON.
        folder: the folder of the config.
        read: reads a file.
        files: the files that may be read.

    Raises:
        ConfigError: the file cannot be read, or `files` does not allow it.
    """
    given = obj.get("input") if isinstance(obj, dict) else None
    if not isinstance(given, dict):
        return obj
    source = given.get("chat_template")
    if not isinstance(source, str) or not source or "{{" in source or "{%" in source or re.fullmatch(r"[\w-]+", source):
        return obj  # a template, or the name of a template of the tokenizer
    found = f"input.chat_template: found {source[:200]!r}, which"
    if files == "none":
        raise ConfigError(f"{found} is no template; a config that is no file must have the template itself")
    if files == "below" and (is_outside(source) or "://" in source or "\\" in source):
        raise ConfigError(f"{found} is not below the config's folder; wanted a template, or the path of one below it")
    if source.endswith(".json"):
        raise ConfigError(
            f"{found} is JSON, so each row would hold its braces and keys; wanted the template alone: save the text of "
            "its key 'chat_template' as FILE.jinja, and name that"
        )
    path = f"{folder}/{source}" if files == "below" else os.path.join(folder, source)
    try:
        content = read(path) if read else Path(path).read_bytes()
        text = content.decode("utf-8-sig")  # a BOM would become text of every row
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL
        raise ConfigError(
            f"{found} cannot be read ({error}); wanted a template, the path of one beside the config, or the name of "
            "one of the tokenizer's"
        ) from error
    if not text:
        raise ConfigError(f"{found} is an empty file; wanted a template in it")
    return {**obj, "input": {**given, "chat_template": text}}
