"""The options of a job in one table: command line, arguments of `Pipeline`, and form of the Dataflow template.

The Dataflow console sends all values as strings: `--flag=value`, flags as "true" or "false", and "" for an empty field,
which means the same as no value.
"""

import argparse
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from beam_prep.errors import ConfigError
from beam_prep.hints import instead, unknown_name

OptionKind = Literal["text", "boolean", "integer", "number", "choice", "input_file", "input_folder", "output_folder"]

_KINDS: dict[Any, OptionKind] = {bool: "boolean", int: "integer", int | None: "integer", float: "number"}
_PATTERNS: dict[OptionKind, str] = {
    "integer": r"^\d+$",
    "number": r"^\d+(\.\d+)?$",
    "output_folder": r"^gs://[^/\s]+/\S+$",
}


def _option(group: str, label: str, example: str, default: Any = None, **more: Any) -> Any:
    """A field of a table below: its docstring is the help, and its type decides its kind.

    Args:
        group: the heading of its group, in the help and in the form.
        label: its title in the form.
        example: a value that its pattern accepts.
        default: its default value; `...`: the job needs one.
        more: `kind`, `short` and `pattern` of `Option`, if they are not those of the type, and bounds.
    """
    bounds = {name: more.pop(name) for name in ("ge", "le", "lt") if name in more}
    return Field(default, title=label, examples=[example], json_schema_extra={"group": group, **more}, **bounds)


_job, _output, _files, _speed, _launch = (
    partial(_option, group) for group in ("Job", "Output", "Working files", "Speed", "Launch")
)


class JobOptions(BaseModel, use_attribute_docstrings=True):
    """Inputs, output, config and tokenizer: the first arguments of `Pipeline`."""

    inputs: str | None = _job(
        "Input files",
        "gs://bucket/chats/*.jsonl.gz, gs://bucket/more.jsonl",
        pattern=r"^\s*@?gs://[^\s,]+([\s,]+@?gs://[^\s,]+)*\s*$",
    )
    """JSONL or Parquet files (.gz, .bz2 and .zst are read too), as paths or globs separated by commas or white space,
    or @LIST, a file that names one a line. Without it, the config names the files: input.groups"""
    output_dir: str = _job("Output folder", "gs://bucket/prepared/chats", ..., short="-o", kind="output_folder")
    """the directory to make"""
    config: str | None = _job(
        "Config file",
        "gs://bucket/configs/sft_chat.json",
        kind="input_file",
        short="-c",
        pattern=r"^gs://[^/\s]+/\S+\.json$",
    )
    """the config, a JSON file; give either this or config_json"""
    config_json: str | None = _job(
        "Config, as JSON",
        '{"input": {"sections": [{"field": "text", "action": "train"}]}}',
        pattern=r"^\s*\{[\s\S]*\}\s*$",
    )
    """the config as JSON; give either this or config"""
    tokenizer_path: str = _job(
        "Tokenizer folder",
        "gs://bucket/tokenizers/qwen3",
        ...,
        kind="input_folder",
        # Dataflow's image is offline: no Hugging Face names. But it may contain tokenizers.
        pattern=r"^(gs://[^/\s]+|/template/tokenizers)/\S+$",
    )
    """a tokenizer's folder; on the command line also its Hugging Face name"""


class RunOptions(BaseModel):
    """How a job runs: the other arguments of `Pipeline`. docs/config.md explains each.

    >>> from beam_prep.options import RunOptions
    >>> RunOptions.of({"overwrite": True}).max_reject_rate
    0.01
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    overwrite: bool = _output("Overwrite", "true", False)
    """replace the output of another job"""
    keep_versions: int | None = _output("Versions kept", "3", ge=1)
    """make a version, DIR/<time>, to which DIR/latest points at the end, and keep this many"""
    version_name: str | None = _output("Name of the version", "20261122", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """with --keep_versions: the version's name (default: the launch time in UTC); versions are in order of their
    names"""
    max_reject_rate: float = _output("Largest share of rejected records", "0.05", 0.01, ge=0, le=1)
    """fail when a larger share of the records is rejected"""
    max_no_loss_rate: float = _output("Largest share of records with nothing to train on", "0.2", 0.05, ge=0, le=1)
    """fail when a larger share of the records is dropped as empty or without loss"""
    max_reject_chars: int = _output("Characters kept of a rejected record", "0", 1000, ge=0)
    """most characters kept of a rejected record; 0: no text"""
    max_line_bytes: int = _output("Largest length of a line", "1048576", 64 * 1024 * 1024, ge=1, lt=1 << 31)
    """reject a line that is longer than this number of bytes"""
    cache_dir: str | None = _files("Folder of the token cache", "gs://bucket/token_cache", kind="output_folder")
    """keep tokenised blocks here for later runs; by default they are removed when this run succeeds"""
    staging: str | None = _files("Folder for unfinished files", "gs://bucket/unfinished", kind="output_folder")
    """the folder of unfinished files; by default .beam_prep next to the output"""
    lease: float = _files("Seconds until a killed launch is forgotten", "120", 600.0, ge=60)
    """how long a killed launch blocks its output where its lock cannot be seen: from another machine, in a store"""
    block_bytes: int = _speed("Block size", "4194304", 8 * 1024 * 1024)
    """bytes of input in a block, a multiple of 65536; does not change the output"""
    tokenizer_backend: Literal["auto", "transformers", "gigatoken"] = _speed("Encoder", "transformers", "auto")
    """the library that encodes: transformers = the reference; gigatoken = gigatoken (BPE), or an error; auto = above
    2 MB gigatoken, if it gives the same ids as transformers"""
    check: Literal["sample", "full"] = _speed("Check against the reference", "full", "sample")
    """what is compared with transformers: sample = some records of every block (if one differs, the reference makes the
    block); full = everything, from the bytes to the masks (a difference fails the run)"""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The options by name. Missing ones get their defaults.

        Raises:
            ConfigError: a name is unknown or old, or a value is wrong.
        """
        for name in given:
            if name not in cls.model_fields:
                raise ConfigError(unknown_name("option", name, cls.model_fields, instead(name)))
        values = {name: os.fspath(each) if isinstance(each, os.PathLike) else each for name, each in given.items()}
        try:
            made = cls.model_validate(values)
        except ValidationError as error:
            found = error.errors()[0]
            raise ConfigError(f"{found['loc'][0]} is {found['input']!r}, {_wanted(found)}") from None
        if made.version_name is not None and made.keep_versions is None:
            raise ConfigError(f"version_name is {made.version_name!r} without keep_versions: give both")
        return made


class LaunchOptions(BaseModel, use_attribute_docstrings=True):
    """Options that only the command line handles. The template's launcher logs everything, and cannot wait."""

    dry_run: bool = _launch("Dry run", "", False)
    """print what would be done, and do nothing"""
    wait: bool = _launch("Wait", "", True)
    """wait until the job has ended"""
    verbose: bool = _launch("Verbose", "", False)
    """show Beam's own log too"""


def _wanted(problem: Any) -> str:
    """What to give instead of a wrong value, from one of pydantic's errors."""
    if problem["type"].startswith("bool"):
        return "wanted true or false"
    return str(problem["msg"]).replace("Input should be", "wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: as in `--name=value`, and the name of the template's parameter.
        label, group, example: see `_option`.
        kind: the kind of its value. Files and folders differ from texts in the form only.
        help: what it does.
        type: its type, with bounds.
        default: its default value, or None.
        required: True if the job needs it.
        in_form: True if the form of the template has it; False if only the command line handles it.
        short: as in `-o value`.
        pattern: a regular expression for values in the form. The command line takes local paths, too.
    """

    name: str
    label: str
    group: str
    example: str
    kind: OptionKind
    help: str
    type: Any
    default: Any
    required: bool
    in_form: bool
    short: str | None = None
    pattern: str = ""

    @property
    def of_pipeline(self) -> bool:
        """True for arguments of `Pipeline`."""
        return self.in_form and self.name != "config_json"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `choice`."""
        return get_args(get_args(self.type)[0]) if self.kind == "choice" else ()

    def parse(self, text: str) -> Any:
        """Parses a value. "" is the default: `--staging "$UNSET"` must not be the current folder.

        Raises:
            argparse.ArgumentTypeError: the value is not one of this option.
        """
        if text == "":
            if self.required:
                raise argparse.ArgumentTypeError("is empty, and the job needs it")
            return self.default
        try:
            return TypeAdapter(self.type).validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"found {text!r}, {_wanted(error.errors()[0])}") from None


def _options(table: type[BaseModel]) -> Iterable[Option]:
    for name, field in table.model_fields.items():
        more: dict[str, Any] = {**field.json_schema_extra}  # type: ignore[dict-item]
        of_type = "choice" if get_origin(field.annotation) is Literal else _KINDS.get(field.annotation, "text")
        kind = more.setdefault("kind", of_type)
        more.setdefault("pattern", _PATTERNS.get(kind, ""))
        yield Option(
            name=name,
            label=str(field.title),
            help=" ".join(str(field.description).split()),
            example=(field.examples or [""])[0],
            type=Annotated[field.annotation, "bounds", *field.metadata],
            default=None if field.is_required() else field.default,
            required=field.is_required(),
            in_form=table is not LaunchOptions,
            **more,
        )


OPTIONS = tuple(option for table in (JobOptions, RunOptions, LaunchOptions) for option in _options(table))
"""All options of `beam-prep run`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `run` to a parser. Call `normalise_flags` before parsing and `complete` after it."""
    help = "JSONL or Parquet files, folders of datasets, quoted globs, or @LIST: see --inputs"
    parser.add_argument("files", nargs="*", metavar="INPUT", help=help)
    _add(parser, OPTIONS)


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `replay` to a parser; missing ones are None. Call `normalise_flags` before parsing."""
    parser.add_argument("output", metavar="OUT", help="the output whose inputs are run again")
    _add(parser, (replace(option, required=False, default=None) for option in OPTIONS if option.name != "inputs"))


def _add(parser: argparse.ArgumentParser, wanted: Iterable[Option]) -> None:
    groups: dict[str, Any] = {}
    for option in wanted:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group.lower())
        alone = "alone: true; " if option.kind == "boolean" else ""
        default = "" if option.default is None else f" ({alone}default: {str(option.default).lower()})"
        groups[option.group].add_argument(
            *filter(None, (option.short, f"--{option.name}")),
            type=option.parse,
            default=option.default,
            required=option.required,
            metavar="|".join(option.choices) or option.kind.upper(),
            help=f"{option.help}{default}".replace("%", "%%"),
        )


def normalise_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments with every flag as `--flag=value`, and without empty values.

    A bare `--overwrite` becomes `--overwrite=true`. It takes the next word only if that can be no input: no file has
    this name, and it has only letters.
    """
    flags = {f"--{option.name}" for option in OPTIONS if option.kind == "boolean"}
    words, found = [word for word in arguments if not re.fullmatch(r"--\w+=", word)], []
    while words:
        word = words.pop(0)
        if word in flags:
            has_value = bool(words) and words[0].isalpha() and not os.path.exists(words[0])
            word = f"{word}={words.pop(0) if has_value else 'true'}"
        found.append(word)
    return found


def complete(given: argparse.Namespace) -> str | None:
    """Collects the inputs of both forms in `given.inputs`. Returns what is wrong with the options, or None.

    Inputs may be missing: the config may name them in `input.groups`.
    """
    given.inputs = [*given.files, *filter(None, re.split(r"[\s,]+", given.inputs or ""))]
    if given.config is None and given.config_json is None:
        return "no config: give -c FILE, or --config_json"
    if given.config is not None and given.config_json is not None:
        return "found --config and --config_json, wanted one of them"
    return None


def arguments_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Pipeline` or `Replay` that were given, or have a default, by name."""
    values = vars(given)
    names = (option.name for option in OPTIONS if option.of_pipeline)
    return {name: values[name] for name in names if values.get(name) is not None}
