"""The command line: `beam-prep run | replay | inspect ...`. Large modules are imported when needed."""

import argparse
import importlib
import inspect
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ByteSize, TypeAdapter

import beam_prep
from beam_prep import options
from beam_prep.errors import BeamPrepError, of_the_system
from beam_prep.hints import VISIBLE, counted, instead, nearest, place_of
from beam_prep.process import quiet_beam, received_signal, stop_on_signals

if TYPE_CHECKING:
    from beam_prep.pipeline import Result

log = logging.getLogger("beam_prep")


class _UsageError(Exception):
    """The command line cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that each is printed as one line."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


PARSER = _Parser(prog="beam-prep", description=beam_prep.__doc__, allow_abbrev=False)
PARSER.add_argument("--version", action="version", version=f"beam-prep {beam_prep.__version__}")
_SUBPARSERS = PARSER.add_subparsers(dest="command", required=True, metavar="COMMAND")
COMMANDS: Mapping[str, argparse.ArgumentParser] = _SUBPARSERS.choices
"""The parser of each command."""

_Run = Callable[[argparse.Namespace], int]
_Add = Callable[[argparse.ArgumentParser], object]


def _command(*arguments: _Add, beams: bool = False) -> Callable[[_Run], _Run]:
    """Decorates the function `_NAME` of a command, which returns the exit code. Its docstring is the command's help.

    Args:
        arguments: functions that each add an argument to the command's parser.
        beams: options of Beam may follow; the function gets them as `given.beam_options`.
    """

    def add(run: _Run) -> _Run:
        help, _, epilog = str(inspect.getdoc(run)).partition("\n\n")
        keep_lines = argparse.RawDescriptionHelpFormatter
        parser = _SUBPARSERS.add_parser(
            run.__name__.strip("_"), help=help, epilog=epilog, allow_abbrev=False, formatter_class=keep_lines
        )
        parser.set_defaults(run=run, beams=beams)
        for argument in arguments:
            argument(parser)
        return run

    return add


def _argument(*names: str, **settings: Any) -> _Add:
    """A function that calls `ArgumentParser.add_argument`."""
    return methodcaller("add_argument", *names, **settings)


_INPUTS = "JSONL files or quoted globs, as for a run"
_JSON = _argument("--json", action="store_true", help="print the result as one line of JSON")
_NO_PAGER = _argument("--no_pager", action="store_true", help="in a terminal, print without $PAGER or less")
_SPLIT = _argument(
    "--split", type=lambda name: None if name == "all" else name, help="only records of this split (default: all)"
)
_OUTPUT = _argument("output", help="an output directory, local or on gs:// or s3://")


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?[smhd]", text):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a time such as 90s, 30m, 12h or 7d")
    unit = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}[text[-1]]
    return float(text[:-1]) * unit


def _bytes(text: str) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a size such as 500MB, 2.5GB or 1TB") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit code: 0 success, 1 problems found, or else `exit_code` of the error.

    Args:
        arguments: the command's arguments; None means those of this process.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # for JSON and marks of trained text, whatever the locale
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words else ""
    try:
        given = _parsed(words)
        _set_up_log(getattr(given, "verbose", False))
        if arguments is None:
            stop_on_signals()
        if command in ("run", "replay"):
            # The imports and a tokenizer take seconds, and longer on a cold disk.
            tokenizer = "" if given.tokenizer_path is None else f" {given.tokenizer_path}"
            log.info("beam-prep %s: loading Beam and the tokenizer%s", command, tokenizer)
        if problem := unknown_beam_options(given.beam_options, given.command):
            raise _UsageError(problem)
        code = int(given.run(given))
        sys.stdout.flush()
        return code
    except _UsageError as error:
        name = f"beam-prep {command}" if command in COMMANDS else "beam-prep"
        print(f"{name}: {error} ({name} --help says more)", file=sys.stderr)
        return 2
    except BaseException as error:
        if (number := received_signal()) is not None:
            _end(command, number)
        if isinstance(error, BrokenPipeError):  # `beam-prep cat ... | head`
            # Python flushes stdout when it exits, and would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        found = of_the_system(error) if isinstance(error, OSError) else error
        if not isinstance(found, BeamPrepError):
            raise
        print(f"beam-prep: {str(found).translate(VISIBLE)}", file=sys.stderr)  # names may come from records
        return found.exit_code


def _say(lines: Iterable[str]) -> None:
    """Prints lines. For a terminal, they are wrapped between words, except commands and long paths, to be copied."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        is_long = max(map(len, line.split(" "))) > console.width
        as_it_is = not console.is_terminal or line.startswith("  beam-prep ") or is_long
        console.print(line.translate(VISIBLE), soft_wrap=as_it_is)  # texts of records must not control the terminal


def _parsed(words: list[str]) -> argparse.Namespace:
    """The command's arguments, and in `beam_options` those that may be Beam's.

    Raises:
        _UsageError: says what is wrong, and which option may be meant.
    """
    if words[:1] in (["run"], ["replay"]):
        words = options.normalise_flags(words)
    try:
        given, others = PARSER.parse_known_args(words)
    except _UsageError as error:
        command = words[0] if words else ""
        if command in COMMANDS and (problem := _unknown_option(command, words[1:])):
            raise _UsageError(problem) from None  # a misspelt option explains a missing one
        raise error
    given.beam_options = others
    if given.command == "run" and (problem := options.complete(given)):
        raise _UsageError(problem)
    return given


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser: `-o`, `--output_dir` ..."""
    return [name for action in parser._actions for name in action.option_strings]


def _unknown_option(command: str, words: Sequence[str]) -> str | None:
    """What is wrong with the first option that neither the command nor Beam has, or None."""
    known = _options_of(COMMANDS[command])
    names = [word.partition("=")[0] for word in words if re.match(r"--[A-Za-z]|-[A-Za-z]$", word)]
    if not set(names) <= set(known) and COMMANDS[command].get_default("beams"):
        known += _options_of(_parser_of_beam())
    name = next((name for name in names if name not in known), None)
    if name is None:
        return None
    word = name.lstrip("-").replace("-", "_").lower()
    meant, place = instead(word), place_of(word)
    if meant is None and place is not None and (place in known or ("-c" in known and not place.startswith("--"))):
        meant = f"here it is {place}{'' if place in known else ' in the config'}"
    # Without the dashes, which any two options share.
    if meant is None and (near := nearest(word, [each[2:] for each in known if each.startswith("--")])) is not None:
        meant = f"did you mean --{near}?"
    return f"unknown option {name!r}{'' if meant is None else f'; {meant}'}"


def _parser_of_beam() -> argparse.ArgumentParser:
    import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    importlib.import_module("beam_prep.runners")  # adds Flink's options
    known = _Parser(add_help=False, allow_abbrev=False)
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(known)
    return known


def unknown_beam_options(beam_options: Sequence[str], command: str = "run") -> str | None:
    """What is wrong with the options that are not ours, or None. Beam only logs a misspelt option, and ignores it.

    Args:
        beam_options: the options that the command does not have.
        command: the command.
    """
    unknown = list(beam_options)
    if problem := _unknown_option(command, unknown):
        return problem
    if unknown and COMMANDS[command].get_default("beams"):
        try:
            _, unknown = _parser_of_beam().parse_known_args(unknown)
        except _UsageError as error:
            return str(error)
    if not unknown:
        return None
    word, advice = unknown[0], ""
    if word.startswith("-"):
        advice = f"; if it is a file, type {shlex.quote(f'./{word}')}"
    elif any(not action.option_strings and action.nargs in ("*", "+") for action in COMMANDS[command]._actions):
        advice = "; name all files in one place, with no option between them"
    return f"unknown argument {word!r}{advice}"


UNTIL_ENDED = 5.0
"""Seconds that this process waits for threads of an engine, before it ends."""


def _end(command: str, number: int) -> NoReturn:
    """Ends this process with the signal that it received."""
    advice = "; run the command again: finished blocks are not made again" if command in ("run", "replay") else ""
    print(f"beam-prep: stopped by {signal.Signals(number).name}{advice}", file=sys.stderr, flush=True)
    signal.signal(number, signal.SIG_DFL)
    late = threading.Timer(UNTIL_ENDED, os.kill, (os.getpid(), number))
    late.daemon = True
    late.start()
    raise SystemExit(128 + number)


class _Visible(logging.Formatter):
    """Names in messages may come from records, and must not control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(VISIBLE)


def _set_up_log(verbose: bool) -> None:
    screen = logging.StreamHandler(sys.stderr)
    screen.setFormatter(_Visible())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[screen])
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    if not verbose:
        # Beam logs a traceback of what is raised anyway, or of a killed worker; its threads outlive a run.
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        # urllib3 logs a traceback of an interrupted response; the request is made again.
        logging.getLogger("urllib3").setLevel(logging.ERROR)


def import_beam() -> None:
    with quiet_beam():
        importlib.import_module("apache_beam")


def _reach_stores(paths: Sequence[str], beam_options: list[str]) -> None:
    """Sets Beam's options, which say where a store is, if a path is in one."""
    if not any("://" in path for path in paths):
        return
    import_beam()
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    FileSystems.set_options(PipelineOptions(beam_options))


@_command(options.add_arguments, beams=True)
def _run(given: argparse.Namespace) -> int:
    """JSONL files -> an output directory

    example:
      beam-prep run 'data/*.jsonl' -o out/ -c configs/sft_chat.json --tokenizer_path path/to/tokenizer

    Any option of Beam may follow (--runner=..., --direct_num_workers=2 ...).
    Without a runner, small inputs run in this process, and large ones in one
    worker process for each core.
    """
    import_beam()
    from beam_prep.pipeline import Pipeline

    job = Pipeline(**_arguments_of(given), beam_options=given.beam_options)
    if given.dry_run:
        from beam_prep.dry_run import dry_run

        _say(dry_run(job))
        return 0
    result = job.run(wait=given.wait)
    _say([f"{result.output} is up to date: nothing to do"] if result.up_to_date else _made(result))
    return 0


def _arguments_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Pipeline` or `Replay`, with the config of `--config_json`."""
    from beam_prep.config import PipelineConfig

    arguments = options.arguments_of(given)
    if given.config_json is not None:
        arguments["config"] = PipelineConfig.from_text(given.config_json, "--config_json", files="none")
    return arguments


def _made(result: "Result") -> list[str]:
    """The summary of a finished run, or where a launched one will write."""
    from beam_prep.inspect.output import summary

    output = result.output
    if result.manifest is None:
        return [f"launched{f' as {result.job_id}' if result.job_id else ''}: {output}/manifest.json comes last"]
    typed = shlex.quote(output)
    look = [] if "://" in output else [f"  look at it: beam-prep inspect {typed}; its report: {typed}/report.html"]
    return summary(output, result.manifest) + look


@_command(options.add_replay_arguments, beams=True)
def _replay(given: argparse.Namespace) -> int:
    """run the inputs of an output again, after a change of config, template or tokenizer, and list what changed

    example:
      beam-prep replay out/ -c configs/fixed.json -o new/

    The inputs are those of OUT, and must be unchanged. At the end, replay lists
    the records that are no longer rejected, the newly rejected ones, and the kept
    ones that changed (needs output.provenance in both configs). All options of
    `run` may follow. Without -c and --tokenizer_path, those of OUT are used.
    """
    import_beam()
    from beam_prep.replay import Replay

    replay = Replay(given.output, **_arguments_of(given), beam_options=given.beam_options)
    if not replay.rejected:
        print(f"{given.output} has no rejected records: nothing to replay")
        return 0
    if given.dry_run:
        _say(replay.plan())
        return 0
    done = replay.run(wait=given.wait is not False)
    if done.result is not None:
        _say(_made(done.result))
    if done.result is None or done.result.manifest is not None:
        _say(done.lines())
    return 0


@_command(
    _argument("paths", nargs="*", metavar="PATH", help="an output directory; with --config: files, as for a run"),
    _argument("--record", type=int, help="number of the only record to show"),
    _argument("--count", type=int, help="show the first N records (default: a few of different lengths)"),
    _argument("--domain", help="only records of this domain"),
    _SPLIT,
    _argument("--random", type=int, metavar="N", help="show N records, drawn at random"),
    _argument("--seed", type=int, metavar="S", help="seed of --random; another seed draws other records (default: 0)"),
    _argument("--shortest", action="store_true", help="show the shortest records, 10 or --count"),
    _argument("--longest", action="store_true", help="show the longest records, 10 or --count"),
    _argument("--grep", metavar="PATTERN", help="show records whose text matches a regular expression"),
    _argument("--reason", metavar="R", help="show records left out for this reason, or all `rejected` or `dropped`"),
    _argument("--source", action="store_true", help="with --record: print the line (or row) that it was made of"),
    _argument("--ids", action="store_true", help="show each token's id in front of it"),
    _argument("--html", metavar="FILE", help="write a page for a browser to FILE (default: of 1,000 random records)"),
    _NO_PAGER,
    _argument("-c", "--config", metavar="FILE", help="show files as a run with this config would make them"),
    _argument("--tokenizer_path", metavar="DIR_OR_NAME", help="the tokenizer for --config"),
)
def _inspect(given: argparse.Namespace) -> int:
    """show records with trained tokens in colour: of an output, or of files before a run

    examples:
      beam-prep inspect out/
      beam-prep inspect out/ --random 20 --seed 7
      beam-prep inspect out/ --html page.html
      beam-prep inspect out/ --reason bad_json
      beam-prep inspect data/chat.jsonl -c configs/sft_chat.json --tokenizer_path path/to/tokenizer
    """
    names = ("count", "random", "seed", "shortest", "longest", "grep", "reason", "ids", "html")
    chosen = {**{name: getattr(given, name) for name in names}, "pager": not given.no_pager}
    of_outputs = {name: getattr(given, name) for name in ("record", "domain", "split", "source")}
    if given.config is None and given.tokenizer_path is None and len(given.paths) == 1:
        from beam_prep.inspect.output import inspect

        inspect(given.paths[0], **chosen, **of_outputs)
        return 0
    if given.config is None or given.tokenizer_path is None:
        raise _UsageError("wanted one OUTPUT, or before a run FILES --config CONFIG.json --tokenizer_path DIR_OR_NAME")
    for name, value in of_outputs.items():
        if value is not None and value is not False:  # record 0 is one, too
            raise _UsageError(f"--{name} is for outputs; with --config, use --count N")
    import_beam()
    from beam_prep.preview import preview

    preview(given.paths, given.config, given.tokenizer_path, **chosen)
    return 0


@_command(
    _argument("inputs", nargs="*", metavar="FILE", help=_INPUTS),
    _argument("-c", "--config", required=True, metavar="FILE", help="the config of the run"),
    _argument("--tokenizer_path", required=True, metavar="DIR_OR_NAME", help="the tokenizer of the run"),
    _argument("--sample", type=int, default=2000, metavar="N", help="records to check (default: 2000)"),
    _JSON,
)
def _audit(given: argparse.Namespace) -> int:
    """look for problems of data, config and tokenizer on a sample, before a run

    example:
      beam-prep audit 'data/*.jsonl' -c configs/sft_chat.json --tokenizer_path path/to/tokenizer

    Checks a sample of all files, and writes nothing. Exit code 0: no findings; 1:
    findings; 2 and more: a run with these arguments would not start.
    """
    import_beam()
    from beam_prep.audit import as_json, as_lines, audit

    found = audit(given.inputs, given.config, given.tokenizer_path, given.sample)
    if given.json:
        shown = {group: as_json(each) for group, each in found.items()}
        print(json.dumps(shown.get(None, {"groups": shown})))
    else:
        for group, each in found.items():
            _say([*([] if group is None else [f"input.groups[{group}]:"]), *as_lines(each)])
    return int(any(each.findings for each in found.values()))


@_command(
    _argument("inputs", nargs="+", metavar="FILE", help=_INPUTS),
    _argument("-o", "--output", default="config.json", metavar="FILE", help="the config (default: config.json)"),
    _argument("--tokenizer_path", metavar="DIR_OR_NAME", help="the tokenizer, to choose lengths and template"),
    _argument("--overwrite", action="store_true", help="replace an existing config"),
)
def _init(given: argparse.Namespace) -> int:
    """look at files, and write a config that fits them

    example:
      beam-prep init 'data/*.jsonl' --tokenizer_path path/to/tokenizer

    Writes the config, and a .md file beside it that explains each setting. Then
    prints what to type next.
    """
    import_beam()
    from beam_prep.starter import start

    _say(start(given.inputs, given.output, given.tokenizer_path, given.overwrite))
    return 0


@_command(
    _argument("tokenizer_path", metavar="TOKENIZER", help="a tokenizer's folder, or its name on the Hub"),
    _argument(
        "--chat_template", metavar="FILE_OR_NAME", help="a file, or one of the tokenizer's (default: all of them)"
    ),
    _argument("--html", metavar="FILE", help="write a page for a browser to FILE"),
    _JSON,
    _NO_PAGER,
)
def _template(given: argparse.Namespace) -> int:
    """show what a chat template takes, what it leaves out, and what is trained

    examples:
      beam-prep template path/to/tokenizer
      beam-prep template path/to/tokenizer --chat_template fixed.jinja --html page.html

    For each test conversation (system message, tools, parallel calls, reasoning
    ...), shows whether the template takes it, what the template leaves out, and
    what is trained. docs/templates.md explains the words.
    """
    import_beam()
    from beam_prep.preview import template

    if given.html and given.json:
        raise _UsageError("--html and --json exclude each other: type one of them")
    pager = not given.no_pager
    template(given.tokenizer_path, given.chat_template, html=given.html, as_json=given.json, pager=pager)
    return 0


@_command(
    _OUTPUT,
    _argument("--count", type=int, help="rows to print (default: all)"),
    _argument("--domain", help="only rows of this domain"),
    _SPLIT,
)
def _cat(given: argparse.Namespace) -> int:
    """print rows of an output as JSON lines"""
    from beam_prep.inspect.output import cat

    cat(given.output, given.count, given.domain, given.split)
    return 0


@_command(_OUTPUT, _argument("-o", "--to", metavar="FILE", help="the page (default: report.html in a local output)"))
def _report(given: argparse.Namespace) -> int:
    """write the report of an output again"""
    from beam_prep.formats.manifest import REPORT
    from beam_prep.inspect.draw import check_page
    from beam_prep.inspect.output import report_page
    from beam_prep.readers.dataset import ALL, open_dataset
    from beam_prep.storage.files import write_file

    is_stored = "://" in given.output
    if is_stored and given.to is None:
        raise _UsageError(f"{given.output} is in a store; type where the page goes: -o FILE")
    rows = open_dataset(given.output, split=ALL)
    target = given.to or os.path.join(rows.path, REPORT)
    title = os.path.basename(given.output.rstrip("/") if is_stored else os.path.abspath(given.output))
    text = report_page(rows.manifest, rows.run, rows.tokenizer, title)
    if given.to is not None:
        check_page(target, "report", "-o", text[:60])
    write_file(os.path.realpath(target), text)  # replaced whole: no reader sees half a page
    print(f"{target}: open it in a browser")
    return 0


@_command(
    _OUTPUT,
    _JSON,
    _argument("--inputs", action="store_true", help="also read the inputs that still exist, and compare them"),
    beams=True,
)
def _verify(given: argparse.Namespace) -> int:
    """check every file, count and row of an output against its manifest

    Options of Beam may follow.
    """
    found, wrong = _compared(given)
    if given.json:
        print(json.dumps({**found, "problems": wrong}))
    elif wrong:
        if "://" in given.output or os.path.isdir(given.output):  # without an output there is no manifest to compare
            count = counted(len(wrong), "problem")
            wrong.append(f"beam-prep: {given.output} is not what its manifest.json says: {count}")
        print("\n".join(wrong), file=sys.stderr)
    else:
        from beam_prep.inspect.output import size_of

        line = f"{given.output}: {size_of(found, found['shards'])}, all as manifest.json says"
        if given.inputs:
            compared, not_found = found["inputs"]["compared"], found["inputs"]["not_found"]
            line += f"; {counted(compared, 'input')} read again"
            line += f", {len(not_found)} not found (the first: {not_found[0]})" if not_found else ""
        print(line)
    return int(bool(wrong))


def _compared(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """What `verify` found out about an output, and the problems."""
    from beam_prep.formats.manifest import MANIFEST
    from beam_prep.readers.dataset import ALL, open_dataset
    from beam_prep.storage.stores import read_bytes
    from beam_prep.verify import numbers

    found: dict[str, Any] = {"output": given.output}
    try:
        _reach_stores([given.output], given.beam_options)
        rows = open_dataset(given.output, split=ALL)
        wrong = rows.problems()
        found |= numbers(rows.manifest, read_bytes(f"{rows.path}/{MANIFEST}"))
        if given.inputs:
            import_beam()
            from beam_prep.storage.inputs import compare_inputs

            compared, not_found, changed = compare_inputs(rows.manifest["inputs"])
            wrong += changed
            found["inputs"] = {"compared": compared, "not_found": not_found}
    except (BeamPrepError, OSError) as error:
        wrong = [str(of_the_system(error) or error) if isinstance(error, OSError) else str(error)]
    return found, wrong


@_command(
    _argument("caches", nargs="+", metavar="CACHE_DIR", help="a folder given as --cache_dir"),
    _argument(
        "--older_than",
        type=_seconds,
        default="7d",
        metavar="TIME",
        help="remove blocks that were not used for this time: 90s, 12h (default: 7d)",
    ),
    _argument(
        "--max_bytes",
        type=_bytes,
        metavar="SIZE",
        help="then remove the oldest blocks until this size is left: 500MB, 1TB",
    ),
    _argument("--dry_run", action="store_true", help="print what would be removed, and remove nothing"),
    beams=True,
)
def _gc(given: argparse.Namespace) -> int:
    """remove blocks from token caches that no run has used for some days

    Options of Beam may follow.
    """
    _reach_stores(given.caches, given.beam_options)
    from beam_prep.storage.token_cache import collect

    for path in given.caches:
        found = collect(path, given.older_than, given.max_bytes, given.dry_run)
        print(found.line(given.dry_run))
    return 0


@_command()
def _presets(given: argparse.Namespace) -> int:
    """print the presets of configs: the settings of trainers, under one name"""
    from beam_prep.config.presets import PRESETS

    for name, preset in PRESETS.items():
        print(f"{name}\n  for {preset.reads}")
        for place, value in preset.settings.items():
            print(f"  {place}: {json.dumps(value)}")
        for column, new in preset.names.items():
            print(f"  output.names: {column} -> {new}, if it is written")
        for place, (values, why) in preset.only.items():
            print(f"  {place} must be {' or '.join(map(json.dumps, values))}: {why}")
    return 0


@_command()
def _schema(given: argparse.Namespace) -> int:
    """print the JSON Schema of configs, for editors"""
    from beam_prep.config import PipelineConfig

    print(json.dumps(PipelineConfig.json_schema(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
