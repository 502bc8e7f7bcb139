"""The options of a job: one list, from which the command line is made; old names are errors that say the new ones."""

import argparse
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import beam_prep as bp
from beam_prep import cli, hints, options
from beam_prep.errors import ConfigError
from beam_prep.options import OPTIONS, Option, RunOptions
from beam_prep.pipeline import Pipeline
from beam_prep.reading.records import MAX_LINE_BYTES
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE
from beam_prep.storage.claims import LEASE
from beam_prep.storage.inputs import BLOCK_BYTES
from beam_prep.tokens.backends import Backend
from beam_prep.tokens.batch import Check
from tests.conftest import ROOT, Command, Patch, run_job, text_config, write_lines

JOB = ["--inputs=a.jsonl", "--output_dir=out", "--config=c.json", "--tokenizer_path=t"]
FORM = [option for option in OPTIONS if option.in_form]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    options.add_arguments(parser)
    given = parser.parse_args(options.normalise_flags(words))
    assert options.complete(given) is None
    return given


def test_the_options_are_the_arguments_of_a_pipeline() -> None:
    arguments = inspect.signature(Pipeline).parameters.keys() - {"beam_options", "options"} | {*RunOptions.model_fields}
    assert arguments == {option.name for option in OPTIONS if option.of_pipeline}


def test_the_defaults_are_those_of_the_steps() -> None:
    assert RunOptions().block_bytes == BLOCK_BYTES
    assert RunOptions().max_line_bytes == MAX_LINE_BYTES
    assert RunOptions().lease == LEASE
    assert (RunOptions().max_reject_rate, RunOptions().max_no_loss_rate) == (MAX_REJECT_RATE, MAX_NO_LOSS_RATE)
    assert get_args(RunOptions.model_fields["tokenizer_backend"].annotation) == get_args(Backend)
    assert get_args(RunOptions.model_fields["check"].annotation) == get_args(Check)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"spool": "x"}, "unknown option 'spool'; it is --cache_dir now"),
        ({"render": "fast"}, "unknown option 'render'; it is gone, because there is only one way to render"),
        ({"overwirte": True}, "unknown option 'overwirte'; did you mean 'overwrite'? known: overwrite, "),
        ({"overwrite": "yes"}, "overwrite is 'yes', wanted true or false"),
        ({"block_bytes": True}, "block_bytes is True, wanted a valid integer"),
        ({"max_reject_rate": 1.5}, "max_reject_rate is 1.5, wanted less than or equal to 1"),
        ({"check": "all"}, "check is 'all', wanted 'sample' or 'full'"),
    ],
)
def test_a_wrong_argument_of_a_pipeline_says_what_to_give(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}"):
        Pipeline("c.json", None, "out", "t", **given)


@pytest.mark.parametrize(
    ("words", "overwrite", "files"),
    [
        (["--overwrite", "b.jsonl"], True, ["b.jsonl", "a.jsonl"]),
        (["--overwrite", "true", "b.jsonl"], True, ["b.jsonl", "a.jsonl"]),
        (["--overwrite", "--verbose"], True, ["a.jsonl"]),
        (["--overwrite=false"], False, ["a.jsonl"]),
        (["--overwrite="], False, ["a.jsonl"]),
    ],
)
def test_a_flag_stands_alone_or_says_true_or_false(words: list[str], overwrite: bool, files: list[str]) -> None:
    given = parsed(*words, *JOB)
    assert given.overwrite is overwrite
    assert given.inputs == files


def test_an_empty_value_is_none_at_all() -> None:
    empty = [option for option in OPTIONS if not option.required and option.name not in ("inputs", "config")]
    assert vars(parsed(*JOB, *(f"--{option.name}=" for option in empty))) == vars(parsed(*JOB))
    words = [word for option in empty if option.kind != "boolean" for word in (f"--{option.name}", "")]
    assert vars(parsed(*JOB, *words)) == vars(parsed(*JOB))


def test_inputs_in_one_text_are_taken_apart() -> None:
    assert parsed(*JOB, "--inputs= a.jsonl ,\n b/*.jsonl\n").inputs == ["a.jsonl", "b/*.jsonl"]
    assert parsed("my file, 1.jsonl", *JOB[1:]).inputs == ["my file, 1.jsonl"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*JOB[:2], JOB[3]], "no config: give -c FILE, or --config_json"),
        ([*JOB, "--config_json={}"], "found --config and --config_json, wanted one of them"),
        ([JOB[0], *JOB[2:]], "the following arguments are required: -o/--output_dir"),
        ([JOB[0], *JOB[2:], "--output_dir="], "the following arguments are required: -o/--output_dir"),
        ([*JOB, "-o", ""], "argument -o/--output_dir: is empty, and the job needs it"),
        ([*JOB, "--overwrite=maybe"], "argument --overwrite: found 'maybe', wanted true or false"),
        ([*JOB, "--overwrite", "maybe"], "argument --overwrite: found 'maybe', wanted true or false"),
        ([*JOB, "--max_reject_chars=-1"], "argument --max_reject_chars: found '-1', wanted greater than or equal to 0"),
    ],
)
def test_a_wrong_call_says_what_to_give(words: list[str], problem: str, command: Command) -> None:
    assert command("run", *words, code=2) == f"beam-prep run: {problem} (beam-prep run --help says more)\n"


def test_a_call_without_inputs_says_what_to_give(command: Command) -> None:
    said = command("run", "--inputs= , ", f"--config={ROOT}/configs/pretrain.json", *JOB[1:2], *JOB[3:], code=2)
    assert "no input: give files or quoted globs, or name them in the config" in said


@pytest.mark.parametrize("option", FORM, ids=lambda option: option.name)
def test_an_example_is_a_value_that_the_form_and_the_command_line_take(option: Option) -> None:
    assert option.example
    if option.pattern:
        assert re.search(option.pattern, option.example)
        assert not re.search(option.pattern, "local file")
    value: Any = option.parse(option.example)
    assert value is not None
    assert value != option.default
    if option.default is not None and option.pattern:
        assert re.search(option.pattern, str(option.default))


def test_a_pipeline_gets_what_every_option_says(monkeypatch: Patch) -> None:
    class Recorded(Exception):
        pass

    def record(**arguments: Any) -> None:
        raise Recorded(arguments)

    monkeypatch.setattr("beam_prep.pipeline.Pipeline", record)
    words = [f"--{option.name}={option.example}" for option in OPTIONS if option.of_pipeline]
    with pytest.raises(Recorded) as recorded:
        cli.main(["run", *words])
    arguments = recorded.value.args[0]
    wanted = {option.name: option.parse(option.example) for option in OPTIONS if option.of_pipeline}
    wanted |= {"inputs": wanted["inputs"].split(", "), "beam_options": []}
    assert arguments == wanted


@pytest.mark.parametrize("given", ["--runner=FlinkRunner", {"runner": "FlinkRunner"}])
def test_options_of_beam_that_are_no_list_are_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"beam_options is .*, wanted a list such as \['--runner="):
        Pipeline(ROOT / "configs/pretrain.json", "a.jsonl", tmp_path / "out", "t", beam_options=given)


# Old names


RENAMED = {old: f"it is --{new} now" for old, new in hints.RENAMED_OPTIONS.items()}


@pytest.mark.parametrize(("old", "what_to_do"), (RENAMED | hints.GONE_OPTIONS).items())
def test_an_old_option_says_what_to_do(old: str, what_to_do: str, command: Command) -> None:
    said = command("run", *JOB, f"--{old}", "3", code=2)
    assert f"'--{old}'" in said
    assert what_to_do in said


@pytest.mark.parametrize(("old", "new"), hints.RENAMED_KEYS.items())
def test_an_old_key_of_the_config_names_the_new_one(old: str, new: str) -> None:
    part, _, key = old.partition(".")
    config = text_config(**{part: {key: "drop"}})
    with pytest.raises(ConfigError, match=re.escape(f"it is {new} now")):
        bp.PipelineConfig.from_dict(config)


@pytest.mark.parametrize(("old", "new"), hints.RENAMED_NAMES.items())
def test_an_old_public_name_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=f"bp.{new}"):
        getattr(bp, old)
    assert getattr(bp, new)


def test_an_output_of_an_earlier_version_is_sound_and_up_to_date(tmp_path: Path, command: Command) -> None:
    out, config = tmp_path / "out", text_config(output={"keep_fields": ["id"]}, preprocessing={"min_chars": 1})
    source = write_lines(tmp_path / "in.jsonl", [{"text": "one two three four", "id": "a"}])
    run_job(config, source, out)
    written = (out / "manifest.json").read_text()
    for old, new in (*hints.RENAMED_KEYS.items(), ("options.reject_text", "options.max_reject_chars")):
        names = [f'"{name.partition(".")[2]}": ' for name in (new, old)]
        assert names[0] in written
        written = written.replace(names[0], names[1])
    (out / "manifest.json").write_text(written)
    (out / ".slices.json").unlink()  # it has the digest of the manifest as it was
    command("verify", out)
    run_job(config, source, out)  # without overwrite
    assert (out / "manifest.json").read_text() == written


def test_the_docs_list_every_name() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/renamed.md").read_text("utf-8"), re.MULTILINE)
    wanted = {f"--{old}": f"`--{new}`" for old, new in hints.RENAMED_OPTIONS.items()}
    wanted |= {old: f"`{new}`" for old, new in hints.RENAMED_KEYS.items()}
    wanted |= {f"bp.{old}": f"`bp.{new}`" for old, new in hints.RENAMED_NAMES.items()}
    wanted |= {f"--{old}": what for old, what in hints.GONE_OPTIONS.items()}
    assert dict(rows) == wanted


@pytest.mark.parametrize("name", ["run", "replay", "audit"])
def test_the_help_of_a_command_fits_the_terminal(name: str, command: Command, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = command(name, "--help").splitlines()
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 80 and "  beam-prep " not in line] == []
