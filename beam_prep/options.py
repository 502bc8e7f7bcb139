"""The options of a job in one table: command line, arguments of `Pipeline`, and form of the Dataflow template.

The Dataflow console sends all values as strings: `--flag=value`, flags as "true" or "false", and "" for an empty field,
which means the same as no value.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from beam_prep.errors import ConfigError
from beam_prep.hints import GONE_VALUES, instead, unknown_name

OptionKind = Literal["text", "boolean", "integer", "number", "choice", "input_file", "input_folder", "output_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: as in `--name=value`, and the name of the template's parameter.
        label: its title in the form.
        group: the heading of its group, in the help and in the form.
        kind: the kind of its value. Files and folders differ from texts in the form only.
        help: what it does.
        example: a value that `pattern` accepts.
        default: its default value, or None.
        required: True if the job needs it.
        choices: the values of a `choice`, each with its meaning.
        wanted: which values there are, for messages; "": any of its kind.
        short: as in `-o value`.
        metavar: the placeholder of the value in the help.
        pattern: a regular expression for values in the form. The command line takes local paths, too.
        not_in_template: the reason why the form lacks the option; "" if the form has it.
        of_pipeline: True for arguments of `Pipeline`; False for options that only the command line handles.
    """

    name: str
    label: str
    group: str
    kind: OptionKind
    help: str
    example: str
    default: Any
    required: bool
    choices: tuple[tuple[str, str], ...]
    wanted: str = ""
    short: str | None = None
    metavar: str | None = None
    pattern: str = ""
    not_in_template: str = ""
    of_pipeline: bool = True

    def parse(self, text: str) -> Any:
        """Parses a value. "" is the default.

        Raises:
            argparse.ArgumentTypeError: the value is not one of this option.
        """
        if text == "" and self.required:
            raise argparse.ArgumentTypeError("is empty, and the job needs it")
        if text == "":
            return self.default
        try:
            value = _PARSERS.get(self.kind, str)(text)
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"found {text!r}, wanted {_TYPES[self.kind]}") from None
        if self.choices and value not in dict(self.choices):
            raise argparse.ArgumentTypeError(f"found {text!r}, {self.instead_of(text)}")
        return value

    def instead_of(self, value: object) -> str:
        """What to give instead of a wrong value."""
        return GONE_VALUES.get(str(value), f"wanted {self.wanted}")


_PARSERS: dict[OptionKind, Callable[[str], Any]] = {
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "integer": int,
    "number": float,
}
_TYPES: dict[OptionKind, str] = {"boolean": "true or false", "integer": "a whole number", "number": "a number"}
_KINDS: dict[Any, OptionKind] = {bool: "boolean", int: "integer", int | None: "integer", float: "number"}


def _option(group: str, default: Any, label: str, help: str, example: str = "", **more: Any) -> Any:
    """A field of a table below. Its type decides its kind; `more`: see `Option`, and bounds of its value."""
    bounds = {name: more.pop(name) for name in ("ge", "le", "lt") if name in more}
    extra = {"group": group, **more}
    return Field(default, title=label, description=help, examples=[example], json_schema_extra=extra, **bounds)


_job, _output, _files, _speed, _launch = (
    partial(_option, group) for group in ("Job", "Output", "Working files", "Speed", "Launch")
)
_FOLDER = {"kind": "output_folder", "metavar": "DIR", "pattern": r"^gs://[^/\s]+/\S+$"}
_SHARE = {
    "metavar": "SHARE",
    "pattern": r"^(0(\.\d+)?|1(\.0+)?)$",
    "wanted": "a share between 0 and 1",
    "ge": 0,
    "le": 1,
}
_SECONDS = {"metavar": "SECONDS", "pattern": r"^\d+(\.\d+)?$"}
_COUNT = {"metavar": "N", "pattern": r"^[1-9]\d*$"}


_READABLE = "JSONL or Parquet files (.gz, .bz2 and .zst are read too)"


class JobOptions(BaseModel):
    """Inputs, output, config and tokenizer: the first arguments of `Pipeline`."""

    inputs: str | None = _job(
        None,
        "Input files",
        f"{_READABLE}, as paths or globs separated by commas or white space, or @LIST, a file that names one a line. "
        "Without it, the config names the files: input.groups",
        "gs://bucket/chats/*.jsonl.gz, gs://bucket/more.jsonl",
        metavar="LIST",
        pattern=r"^\s*@?gs://[^\s,]+([\s,]+@?gs://[^\s,]+)*\s*$",
    )
    output_dir: str = _job(
        ..., "Output folder", "the directory to make", "gs://bucket/prepared/chats", short="-o", **_FOLDER
    )
    config: str | None = _job(
        None,
        "Config file",
        "the config, a JSON file; give either this or config_json",
        "gs://bucket/configs/sft_chat.json",
        kind="input_file",
        short="-c",
        metavar="FILE",
        pattern=r"^gs://[^/\s]+/\S+\.json$",
    )
    config_json: str | None = _job(
        None,
        "Config, as JSON",
        "the config as JSON; give either this or config",
        '{"input": {"sections": [{"field": "text", "action": "train"}]}}',
        metavar="JSON",
        pattern=r"^\s*\{[\s\S]*\}\s*$",
        of_pipeline=False,
    )
    tokenizer_path: str = _job(
        ...,
        "Tokenizer folder",
        "a tokenizer's folder; on the command line also its Hugging Face name",
        "gs://bucket/tokenizers/qwen3",
        kind="input_folder",
        metavar="DIR_OR_NAME",
        # Dataflow's image is offline: no Hugging Face names. But it may contain tokenizers.
        pattern=r"^(gs://[^/\s]+|/template/tokenizers)/\S+$",
    )


class RunOptions(BaseModel):
    """How a job runs: the other arguments of `Pipeline`. docs/config.md explains each.

    >>> from beam_prep.options import RunOptions
    >>> RunOptions.of({"overwrite": True}).max_reject_rate
    0.01
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    overwrite: bool = _output(False, "Overwrite", "replace the output of another job", "true")
    keep_versions: int | None = _output(
        None,
        "Versions kept",
        "make a version, DIR/<time>, to which DIR/latest points at the end, and keep this many",
        "3",
        wanted="how many are kept, 1 or more",
        ge=1,
        **_COUNT,
    )
    version_name: str | None = _output(
        None,
        "Name of the version",
        "with --keep_versions: the version's name (default: the launch time in UTC); versions are in order of "
        "their names",
        "20261122",
        metavar="NAME",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
    )
    max_reject_rate: float = _output(
        0.01,
        "Largest share of rejected records",
        "fail when a larger share of the records is rejected",
        "0.05",
        **_SHARE,
    )
    max_no_loss_rate: float = _output(
        0.05,
        "Largest share of records with nothing to train on",
        "fail when a larger share of the records is dropped as empty or without loss",
        "0.2",
        **_SHARE,
    )
    max_reject_chars: int = _output(
        1000,
        "Characters kept of a rejected record",
        "most characters kept of a rejected record; 0: no text",
        "0",
        wanted="0 or more characters",
        ge=0,
        metavar="N",
        pattern=r"^\d+$",
    )
    max_line_bytes: int = _output(
        64 * 1024 * 1024,
        "Largest length of a line",
        "reject a line that is longer than this number of bytes",
        "1048576",
        wanted="1 or more, below 2 GiB",
        ge=1,
        lt=1 << 31,
        **_COUNT,
    )
    cache_dir: str | None = _files(
        None,
        "Folder of the token cache",
        "keep tokenised blocks here for later runs; by default they are removed when this run succeeds",
        "gs://bucket/token_cache",
        **_FOLDER,
    )
    staging: str | None = _files(
        None,
        "Folder for unfinished files",
        "the folder of unfinished files; by default .beam_prep next to the output",
        "gs://bucket/unfinished",
        **_FOLDER,
    )
    lease: float = _files(
        600.0,
        "Seconds until a killed launch is forgotten",
        "how long a killed launch blocks its output where its lock cannot be seen: from another machine, in a store",
        "120",
        wanted="60 seconds or more",
        ge=60,
        **_SECONDS,
    )
    block_bytes: int = _speed(
        8 * 1024 * 1024,
        "Block size",
        "bytes of input in a block, a multiple of 65536; does not change the output",
        "4194304",
        metavar="N",
        pattern=r"^[1-9]\d{4,}$",
    )
    tokenizer_backend: Literal["auto", "transformers", "gigatoken"] = _speed(
        "auto",
        "Encoder",
        "the library that encodes; gigatoken is compared with the reference, see check",
        "transformers",
        meanings=(
            "above 2 MB gigatoken, if it gives the same ids as transformers",
            "the reference",
            "gigatoken (BPE), or an error",
        ),
    )
    check: Literal["sample", "full"] = _speed(
        "sample",
        "Check against the reference",
        "what is compared with transformers: a sample of each block, or everything",
        "full",
        meanings=(
            "some records of every block (if one differs, the reference makes the block)",
            "everything, from the bytes to the masks (a difference fails the run)",
        ),
    )

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
            name = str(error.errors()[0]["loc"][0])
            value, option = values[name], BY_NAME[name]
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            raise ConfigError(f"{name} is {shown}, {option.instead_of(value)}") from None
        if made.version_name is not None and made.keep_versions is None:
            raise ConfigError(f"version_name is {made.version_name!r} without keep_versions: give both")
        return made


class LaunchOptions(BaseModel):
    """Options that only the command line handles."""

    dry_run: bool = _launch(
        False,
        "Dry run",
        "print what would be done, and do nothing",
        not_in_template="the launcher's log is no place for an answer",
    )
    wait: bool = _launch(
        True,
        "Wait",
        "wait until the job has ended",
        not_in_template="Dataflow creates the job when the launcher has ended",
    )
    verbose: bool = _launch(False, "Verbose", "show Beam's own log too", not_in_template="the launcher logs everything")


def _options(table: type[BaseModel]) -> Iterable[Option]:
    for name, field in table.model_fields.items():
        more: dict[str, Any] = {**field.json_schema_extra}  # type: ignore[dict-item]
        names = get_args(field.annotation) if (meanings := more.pop("meanings", ())) else ()
        more.setdefault("kind", "choice" if names else _KINDS.get(field.annotation, "text"))
        more.setdefault("wanted", f"one of {', '.join(names)}" if names else _TYPES.get(more["kind"], "a text"))
        more.setdefault("of_pipeline", table is not LaunchOptions)
        yield Option(
            name=name,
            label=str(field.title),
            help=str(field.description),
            example=(field.examples or [""])[0],
            default=None if field.is_required() else field.default,
            required=field.is_required(),
            choices=tuple(zip(names, meanings, strict=True)),
            **more,
        )


OPTIONS = tuple(option for table in (JobOptions, RunOptions, LaunchOptions) for option in _options(table))
"""All options of `beam-prep run`."""
BY_NAME = {option.name: option for option in OPTIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `run` to a parser. Call `normalise_flags` before parsing and `complete` after it."""
    inputs_help = (
        f"{_READABLE}, folders of datasets, quoted globs, or @LIST; "
        "or give --inputs; none, if the config has input.groups"
    )
    parser.add_argument("files", nargs="*", metavar="INPUT", help=inputs_help)
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
        names = ([option.short] if option.short else []) + [f"--{option.name}"]
        groups[option.group].add_argument(
            *names,
            type=option.parse,
            default=option.default,
            required=option.required,
            metavar=_metavar(option),
            help=_help(option),
        )


def _metavar(option: Option) -> str | None:
    if option.kind == "boolean":
        return "true|false"
    return "|".join(name for name, _ in option.choices) or option.metavar


def _help(option: Option) -> str:
    text = option.help
    if option.choices:
        text += ": " + "; ".join(f"{name} = {meaning}" for name, meaning in option.choices)
    if option.default is not None:
        flag = option.kind == "boolean"
        text += f" (alone: true; default: {str(option.default).lower()})" if flag else f" (default: {option.default})"
    return text.replace("%", "%%")


def normalise_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments with every flag as `--flag=value`.

    A bare `--overwrite` becomes `--overwrite=true`. It takes the next word only if that is true or false, because any
    other word may be an input.
    """
    flags = {f"--{option.name}" for option in OPTIONS if option.kind == "boolean"}
    words, found = list(arguments), []
    while words:
        word = words.pop(0)
        if word in flags:
            has_value = bool(words) and words[0].lower() in ("true", "false")
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


def pipeline_arguments(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Pipeline`, by name."""
    return {option.name: getattr(given, option.name) for option in OPTIONS if option.of_pipeline}


def replay_arguments(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Replay` that were given, by name."""
    names = [option.name for option in OPTIONS if option.of_pipeline and option.name != "inputs"]
    return {name: value for name in names if (value := getattr(given, name)) is not None}


def changed_options(given: argparse.Namespace) -> list[str]:
    """The job's options that differ from their defaults, as `--name=value`, for a runner's console."""
    values = {**vars(given), "inputs": " ".join(given.inputs) or None}
    found = []
    for option in OPTIONS:
        value = values[option.name]
        if not option.not_in_template and value != option.default:
            found.append(f"--{option.name}={str(value).lower() if isinstance(value, bool) else value}")
    return found
