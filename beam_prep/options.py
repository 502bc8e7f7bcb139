"""The options of a job, in one list, from which the command line and the form of the Dataflow template are made.

The Dataflow console sends all values as strings: `--flag=value`, flags as "true" or "false", and "" for an empty field,
which means the same as no value.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from beam_prep.renamed import GONE_VALUES

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
        default: its default value, or None.
        required: True if the job needs it.
        choices: the values of a `choice`, each with its meaning.
        short: as in `-o value`.
        metavar: the placeholder of the value in the help.
        pattern: the values that the form accepts. The command line takes local paths, too.
        example: a value that `pattern` accepts.
        not_in_template: the reason why the form does not have it; "" if it has.
        of_pipeline: True if it is an argument of `Pipeline`; False if the command line does what it says.
    """

    name: str
    label: str
    group: str
    kind: OptionKind
    help: str
    default: Any = None
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    short: str | None = None
    metavar: str | None = None
    pattern: str = ""
    example: str = ""
    not_in_template: str = ""
    of_pipeline: bool = True

    def parse(self, text: str) -> Any:
        """Parses a value. "" is the default.

        Raises:
            argparse.ArgumentTypeError: the option cannot have this value.
        """
        if text == "" and self.required:
            raise argparse.ArgumentTypeError("is empty, and the job needs it")
        return self.default if text == "" else _PARSERS[self.kind](self, text)


def _boolean(option: Option, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted true or false")
    return text.lower() == "true"


def _number(kind: Callable[[str], Any], wanted: str) -> Callable[[Option, str], Any]:
    def parse(option: Option, text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"found {text!r}, wanted {wanted}") from None

    return parse


def _choice(option: Option, text: str) -> str:
    names = [name for name, _ in option.choices]
    if text not in names:
        what_to_do = GONE_VALUES.get(text, f"wanted one of {', '.join(names)}")
        raise argparse.ArgumentTypeError(f"found {text!r}, {what_to_do}")
    return text


def _text(option: Option, text: str) -> str:
    return text


_PARSERS: dict[OptionKind, Callable[[Option, str], Any]] = {
    "text": _text,
    "boolean": _boolean,
    "integer": _number(int, "a whole number"),
    "number": _number(float, "a number"),
    "choice": _choice,
    "input_file": _text,
    "input_folder": _text,
    "output_folder": _text,
}

_FOLDER = r"^gs://[^/\s]+/\S+$"

OPTIONS = (
    Option(
        name="inputs",
        label="Input files",
        group="Job",
        kind="text",
        help="JSONL or Parquet files or globs, separated by commas or white space, or @LIST, a file that names one a "
        "line; .gz, .bz2 and .zst are read too. Without it, the config names the files: input.groups",
        metavar="LIST",
        pattern=r"^\s*@?gs://[^\s,]+([\s,]+@?gs://[^\s,]+)*\s*$",
        example="gs://bucket/chats/*.jsonl.gz, gs://bucket/more.jsonl",
    ),
    Option(
        name="output_dir",
        label="Output folder",
        group="Job",
        kind="output_folder",
        help="the directory to make",
        required=True,
        short="-o",
        metavar="DIR",
        pattern=_FOLDER,
        example="gs://bucket/prepared/chats",
    ),
    Option(
        name="config",
        label="Config file",
        group="Job",
        kind="input_file",
        help="the config, a JSON file; give this or config_json",
        short="-c",
        metavar="FILE",
        pattern=r"^gs://[^/\s]+/\S+\.json$",
        example="gs://bucket/configs/sft_chat.json",
    ),
    Option(
        name="config_json",
        label="Config, as JSON",
        group="Job",
        kind="text",
        help="the config itself; give this or config",
        metavar="JSON",
        pattern=r"^\s*\{[\s\S]*\}\s*$",
        example='{"input": {"sections": [{"field": "text", "action": "train"}]}}',
        of_pipeline=False,
    ),
    Option(
        name="tokenizer_path",
        label="Tokenizer folder",
        group="Job",
        kind="input_folder",
        help="a tokenizer's folder; on the command line also its Hugging Face name",
        required=True,
        metavar="DIR_OR_NAME",
        # Dataflow's image is offline: no Hugging Face names. But it may contain tokenizers.
        pattern=r"^(gs://[^/\s]+|/template/tokenizers)/\S+$",
        example="gs://bucket/tokenizers/qwen3",
    ),
    Option(
        name="overwrite",
        label="Overwrite",
        group="Output",
        kind="boolean",
        help="replace the output of another job",
        default=False,
        example="true",
    ),
    Option(
        name="keep_versions",
        label="Versions kept",
        group="Output",
        kind="integer",
        help="make a version, DIR/<time>, to which DIR/latest points at the end, and keep this many",
        metavar="N",
        pattern=r"^[1-9]\d*$",
        example="3",
    ),
    Option(
        name="version_name",
        label="Name of the version",
        group="Output",
        kind="text",
        help="with --keep_versions: its name, by default the time of the launch in UTC; versions are in order of "
        "their names",
        metavar="NAME",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        example="20261122",
    ),
    Option(
        name="max_reject_rate",
        label="Largest share of rejected records",
        group="Output",
        kind="number",
        help="fail when a larger share of the records is rejected",
        default=0.01,
        metavar="SHARE",
        pattern=r"^(0(\.\d+)?|1(\.0+)?)$",
        example="0.05",
    ),
    Option(
        name="max_no_loss_rate",
        label="Largest share of records with nothing to train on",
        group="Output",
        kind="number",
        help="fail when a larger share of the records is dropped as empty or without loss",
        default=0.05,
        metavar="SHARE",
        pattern=r"^(0(\.\d+)?|1(\.0+)?)$",
        example="0.2",
    ),
    Option(
        name="max_reject_chars",
        label="Characters kept of a rejected record",
        group="Output",
        kind="integer",
        help="characters of a rejected record that are kept; 0 keeps texts out",
        default=1000,
        metavar="N",
        pattern=r"^\d+$",
        example="0",
    ),
    Option(
        name="max_line_bytes",
        label="Largest length of a line",
        group="Output",
        kind="integer",
        help="reject a line that is longer than this number of bytes",
        default=64 * 1024 * 1024,
        metavar="N",
        pattern=r"^[1-9]\d*$",
        example="1048576",
    ),
    Option(
        name="cache_dir",
        label="Folder of the token cache",
        group="Working files",
        kind="output_folder",
        help="keep tokenised blocks here for later runs; without it they are kept until this run succeeds",
        metavar="DIR",
        pattern=_FOLDER,
        example="gs://bucket/token_cache",
    ),
    Option(
        name="staging",
        label="Folder for unfinished files",
        group="Working files",
        kind="output_folder",
        help="the folder of unfinished files; without it .beam_prep next to the output",
        metavar="DIR",
        pattern=_FOLDER,
        example="gs://bucket/unfinished",
    ),
    Option(
        name="staging_ttl",
        label="Seconds that unfinished files are kept",
        group="Working files",
        kind="number",
        help="remove what failed launches left after this time, by default 7 days",
        default=7 * 24 * 3600,
        metavar="SECONDS",
        pattern=r"^\d+(\.\d+)?$",
        example="86400",
    ),
    Option(
        name="lease",
        label="Seconds until a killed launch is forgotten",
        group="Working files",
        kind="number",
        help="a launch that was killed holds the output for this time, if nobody can see that it is gone",
        default=600.0,
        metavar="SECONDS",
        pattern=r"^\d+(\.\d+)?$",
        example="120",
    ),
    Option(
        name="block_bytes",
        label="Block size",
        group="Speed",
        kind="integer",
        help="bytes of input worked on at a time, a multiple of 65536; changes no byte of the output",
        default=8 * 1024 * 1024,
        metavar="N",
        pattern=r"^[1-9]\d{4,}$",
        example="4194304",
    ),
    Option(
        name="tokenizer_backend",
        label="Encoder",
        group="Speed",
        kind="choice",
        help="what encodes; what is not the reference is compared with it, see check",
        default="auto",
        choices=(
            ("auto", "gigatoken where it gives the same ids as transformers; of 2 MB or less, transformers"),
            ("transformers", "the reference"),
            ("gigatoken", "gigatoken (BPE), or an error"),
        ),
        example="transformers",
    ),
    Option(
        name="check",
        label="Check against the reference",
        group="Speed",
        kind="choice",
        help="what is compared with transformers: of each block a sample, or everything",
        default="sample",
        choices=(
            ("sample", "some records of every block; where one differs, the reference makes the block"),
            ("full", "everything, from the bytes to the masks; a difference fails the run"),
        ),
        example="full",
    ),
    Option(
        name="dry_run",
        label="Dry run",
        group="Launch",
        kind="boolean",
        help="say what would be done, and do nothing",
        default=False,
        not_in_template="the launcher's log is no place for an answer",
        of_pipeline=False,
    ),
    Option(
        name="wait",
        label="Wait",
        group="Launch",
        kind="boolean",
        help="wait until the job has ended",
        default=True,
        not_in_template="Dataflow creates the job when the launcher has ended",
        of_pipeline=False,
    ),
    Option(
        name="verbose",
        label="Verbose",
        group="Launch",
        kind="boolean",
        help="show Beam's own log too",
        default=False,
        not_in_template="the launcher logs everything",
        of_pipeline=False,
    ),
)
"""All options of `beam-prep run`."""


OTHER_NAMES = {
    "tokenizer_path": "tokenizer tokeniser tokenizer_name tokenizer_dir tokenizer_name_or_path model model_name "
    "model_path model_name_or_path",
    "output_dir": "out output output_path output_folder out_dir save_path save_to dest",
    "inputs": "in input input_path input_file input_files input_dir data data_path data_files dataset train_file files",
    "config": "cfg conf config_file config_path",
    "overwrite": "force f replace overwrite_output_dir overwrite_cache",
    "verbose": "v debug log_level",
    "cache_dir": "cache token_cache",
    "staging": "tmp temp tmp_dir temp_dir staging_dir",
    "direct_num_workers": "workers jobs j n_jobs nproc num_proc num_processes processes num_cpus cpus threads "
    "preprocessing_num_workers dataset_num_proc",
    "dry_run": "dry n dryrun",
    "max_no_loss_rate": "max_drops drop_rate",
    "max_reject_rate": "max_rejects reject_rate max_error_rate",
}
"""Options -> names that they have in other programs, and short ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `run` to a parser. Call `normalise_flags` before parsing and `complete` after it."""
    inputs_help = (
        "JSONL or Parquet files, quoted globs, or @LIST; .gz, .bz2, .zst and folders of datasets are read too; "
        "or give --inputs; none, if the config has input.groups"
    )
    parser.add_argument("files", nargs="*", metavar="INPUT", help=inputs_help)
    _add(parser, OPTIONS)


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `replay` to a parser; what is not given is None. Call `normalise_flags` before parsing."""
    parser.add_argument("output", metavar="OUT", help="the output whose rejected records are run again")
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
        text += ": " + ", ".join(f"{name} = {meaning}" for name, meaning in option.choices)
    if option.default is not None:
        flag = option.kind == "boolean"
        text += f" (alone: true; default: {str(option.default).lower()})" if flag else f" (default: {option.default})"
    return text.replace("%", "%%")


def normalise_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments with every flag as `--flag=value`.

    A bare `--overwrite` is `--overwrite=true`: it takes the next word only if that is true or false, because any other
    word may be an input.
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
    """Collects the inputs of both kinds in `given.inputs`. Returns what is wrong with the options, or None.

    Whether there must be inputs, the config says: `input.groups` names them itself.
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
