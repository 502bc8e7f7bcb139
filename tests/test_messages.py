"""Messages say what was found and what to type. Each row of these tables is a situation that a user was in."""

import csv
import gzip
import io
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
import pytest

from beam_prep import cli
from beam_prep.config import PipelineConfig
from beam_prep.config.strict import model_in
from beam_prep.errors import ConfigError, TokenizerError
from beam_prep.hints import OTHER_NAMES
from beam_prep.options import OPTIONS
from beam_prep.reading.sources import guess, refusal
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT, Capture, Command, Patch

CONFIG, TOKENIZER = str(ROOT / "configs/sft_conversation.json"), str(ROOT / "examples/tokenizer")
LINES = (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines(keepends=True)[:40]
CHATS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
TEXT = "".join(LINES)
PAIRS = [{"prompt": f"What is {n}\n+ 1, please?", "completion": f"It is {n + 1}; sure."} for n in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(source: str) -> tuple[str, ...]:
    return "run", source, "-o", "out", "-c", CONFIG, "--tokenizer_path", TOKENIZER, "--runner=FnApiRunner"


# Formats


def arrow(write: Callable[[pa.Table, Any], Any]) -> bytes:
    made = io.BytesIO()
    write(pa.Table.from_pylist(CHATS), made)
    return made.getvalue()


def rows_of_csv(delimiter: str) -> bytes:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, ["prompt", "completion"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(PAIRS)
    return made.getvalue().encode()


PARQUET, FEATHER = arrow(pa.parquet.write_table), arrow(lambda rows, made: pa.feather.write_feather(rows, made))


def told(content: bytes, name: str) -> str:
    said = refusal(content, name) or guess(content, name, ["messages", "prompt"])
    assert said is not None
    assert said.isprintable()
    return said


GZIP = gzip.compress(b"", mtime=0)
BINARY = "is a binary file (compressed, an archive, of another program?), wanted JSONL: unpack it, or convert it first"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.parquet.gz", PARQUET, "is a Parquet file, which is read from a .parquet file: decompress it first"),
        ("odd\n\x1b[31m'\\.json", PARQUET, "is a Parquet file, which is read from a .parquet file: rename it"),
        ("x.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", BINARY),
        ("x.zip", b"PK\x03\x04", BINARY),
        ("x.tar", b"\0" * 257 + b"ustar", BINARY),
        ("x.jsonl", b"\xfd7zXZ\0", BINARY),
        ("x.jsonl", GZIP, "is compressed, but its name does not end in .gz: rename it"),
        ("x.tgz", GZIP, "is compressed, but its name does not end in .gz: rename it, or unpack a .tgz"),
        ("x.gz", GZIP, "is compressed twice: decompress it first (gzip -dk)"),
        ("x.pkl", pickle.dumps(CHATS), BINARY),
        ("x.jsonl", TEXT.encode("utf-16-le"), "is text in UTF-16LE, wanted JSONL: type: iconv -f UTF-16LE"),
        ("x.csv", rows_of_csv(",").decode().encode("utf-16"), "is text in UTF-16, wanted JSONL: type: iconv -f UTF-16"),
        ("x.data", "It is a text.\n".encode("utf-16"), "is text in UTF-16, wanted JSONL: type: iconv -f UTF-16 "),
        ("x.csv", "text\nM\u00fche\n".encode("latin-1"), "is no UTF-8 (byte 6), wanted JSONL: mend the line; if no"),
        ("x.jsonl", b"\n<!DOCTYPE html>", "is an HTML page or XML (the error message of a download?), wanted JSONL: d"),
        ("x.jsonl", b"<?xml version", "is an HTML page or XML (the error message of a download?), wanted JSONL: d"),
        ("x.jsonl", json.dumps(CHATS).encode(), "is one JSON list, which is read from a .json file: rename it"),
        ("x.jsonl", b'[{"a": 1}]\n' * 2, "is lines of JSON lists, wanted JSONL: of conversations, type: jq -c '{me"),
        ("x.jsonl", json.dumps(CHATS[0], indent=2).encode(), "is objects that are not one a line, wanted JSONL: ty"),
        ("x.jsonl", TEXT.replace("\n", "").encode(), "is objects that are not one a line, wanted JSONL: type: jq"),
        ("x.jsonl", f"{CHATS[0]}\n".encode() * 9, "is lines of Python dicts, wanted JSONL: write json.dumps"),
        ("gs://bucket/a b/x y.arrow", FEATHER, "is an Arrow file (Feather), wanted JSONL: type in Python: from py"),
        ("x.txt", b"It is a text.\n" * 9, "is plain text, wanted JSONL: write it as lines"),
        ("x.tsv", rows_of_csv("\t"), "is a table (TSV), wanted JSONL: type in Python: import pandas; pandas.read_csv("),
    ],
)  # fmt: skip
def test_a_format_is_named_with_what_to_type(name: str, content: bytes, said: str) -> None:
    assert told(content, name).startswith(f"{name!r} {said}")


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_within_an_object_is_named(name: str, indent: int | None) -> None:
    content = json.dumps({"about": {"a": [1]}, "data": CHATS}, indent=indent).encode()
    said = "with its records in the list 'data', wanted JSONL: type: jq -c '.data[]' FILE > NEW"
    assert told(content, name).endswith(said)


@pytest.mark.parametrize("kind", ["csv", "feather"])
def test_what_a_message_says_to_type_keeps_all_texts_and_digits(kind: str) -> None:
    rows = [{"a": "None"}, {"a": "N/A"}, {"a": ""}, {"a": "007"}]
    table = pa.Table.from_pylist(rows if kind == "csv" else [{**row, "p": 1e-12, "m": [row]} for row in rows])
    if kind == "feather":  # as polars writes texts
        views = pa.list_(pa.struct({"a": pa.string_view()}))
        table = table.append_column("v", pa.array([[row] for row in rows], views))
    write = {"csv": pyarrow.csv.write_csv, "feather": pyarrow.feather.write_feather}
    write[kind](table, f"x.{kind}")
    exec(
        told(Path(f"x.{kind}").read_bytes(), f"x.{kind}").partition("type in Python: ")[2],
        names := {"FILE": f"x.{kind}", "NEW": "NEW"},
    )
    made = pa.ipc.open_stream("NEW.arrow").read_all() if "ipc" in names else pa.json.read_json("NEW")
    assert made.to_pylist() == table.to_pylist()


def test_a_format_is_named_by_a_run_and_a_preview(command: Command) -> None:
    Path("x.csv").write_bytes(rows_of_csv(","))
    Path("x.jsonl").write_bytes('{"messages": [{"role": "user", "content": "café"}]}\n'.encode("cp1252") * 40)
    for name, said in (("x.csv", "'x.csv' is a table (CSV)"), ("x.jsonl", "convert the file: iconv")):
        assert said in command(*run(name), code=3)
    shown = command("inspect", "x.csv", "-c", CONFIG, "--tokenizer_path", TOKENIZER)
    assert "'x.csv' is a table (CSV)" in " ".join(shown.split())


@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_a_stored_file_that_is_not_compressed_is_named_if_it_is_no_data(ending: str, command: Command) -> None:
    for first, said in (("version https://git-lfs", "a Git LFS pointer"), ("<html>", "an HTML page")):
        Path(f"x.jsonl.{ending}").write_text(f"{first}\n")
        assert f"'x.jsonl.{ending}' is {said}" in command(*run(f"x.jsonl.{ending}"), code=3)


@pytest.mark.parametrize("line", [*LINES[:3], '{"text": "a,b"}\n', '{"PAR1": 1}\n', "\ufeff{}\n", "null\n", ""])
def test_jsonl_is_taken_for_nothing_else(line: str) -> None:
    assert refusal((line * 9).encode(), "x.jsonl") is None
    assert guess((line * 9).encode(), "x.jsonl", ["messages", "text"]) is None


@pytest.mark.parametrize(
    "first", ['{"text": "a"},', '{"text": "a"}\0', '{"text": "cut', '{"text": NaN, "n": nil}', '{"a": 1]']
)
def test_a_line_that_is_broken_is_not_taken_for_objects_that_are_not_one_a_line(first: str) -> None:
    assert guess(f"{first}\n{TEXT}".encode(), "x.jsonl") is None


# The command line


# The words -> what is said. Exit code 2, one line.
JOB = run("x.jsonl")[:-1]
CALLS: list[tuple[tuple[str, ...], str]] = [
    ((*JOB[:6], "--tokenizer", TOKENIZER), "unknown option '--tokenizer'; here it is --tokenizer_path"),
    ((*JOB[:2], *JOB[4:], "--output", "out"), "unknown option '--output'; here it is --output_dir"),
    ((*JOB, "-j", "4"), "unknown option '-j'; here it is --direct_num_workers"),
    ((*JOB, "--max_seq_len=512"), "here it is preprocessing.max_seq_len in the config"),
    (("cat", "out", "--max_seq_len=5"), "unknown option '--max_seq_len' (beam-prep cat --help"),  # it has no config
    ((*JOB, "--num_workers=four"), "argument --num_workers: invalid int value: 'four'"),
    (("inspect", "out", "--reccord", "3"), "unknown option '--reccord'; did you mean --record?"),
    ((*JOB, "--seed=1"), "unknown option '--seed' (beam-prep run --help"),  # the dashes alone are those of --lease
    ((*JOB, "y.jsonl"), "unknown argument 'y.jsonl'; name all files in one place, with no option between them"),
    (("audit", "-x.jsonl", *JOB[4:]), "unknown argument '-x.jsonl'; if it is a file, type ./-x.jsonl"),
    (("cat", "out", "--force"), "unknown option '--force' (beam-prep cat --help"),  # it has no --overwrite
    (("template", TOKENIZER, "--html=x.html", "--json"), "--html and --json exclude each other: type one of them"),
    (("gc", "cache_dir", "--older_than=3 days"), "found '3 days', wanted a time such as 90s, 30m, 12h or 7d"),
    (("inspect", "s3://b/out", "--s3_endpoint_url=http://x"), "unknown option '--s3_endpoint_url'"),
    (("rnu", "x.jsonl"), "invalid choice: 'rnu' (choose from 'run', "),
    ((), "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("words", "wanted"), CALLS)
def test_a_misspelt_option_is_one_line_with_the_right_one(words: Any, wanted: str, command: Command) -> None:
    (line,) = command(*words, code=2).splitlines()
    assert line.startswith("beam-prep")
    assert wanted in line


# Settings of other tools in a config


@pytest.mark.parametrize(
    ("part", "key", "wanted"),
    [
        ("preprocessing", "train_on_inputs", "here it is mask_default"),
        ("output", "template", "here it is input.sections"),
        ("output", "tokenizer", "here it is --tokenizer_path"),
        ("preprocessing", "packing_strategie", "did you mean 'packing_strategy'?"),  # of our own, the nearest as before
        ("output", "packing_strategy", "it belongs in 'preprocessing'"),
    ],
)
def test_a_setting_of_another_tool_is_sent_to_its_place(part: str, key: str, wanted: str) -> None:
    given = json.loads(Path(CONFIG).read_text())
    given[part] = {**given.get(part, {}), key: True}
    with pytest.raises(ConfigError) as error:
        PipelineConfig.from_dict(given)
    assert wanted in str(error.value)


def test_every_place_that_is_named_is_there_and_hides_no_name_of_ours() -> None:
    options = {f"--{option.name}" for option in OPTIONS} | {"--direct_num_workers"}
    places = OTHER_NAMES.keys() - options
    for place in places:
        part, _, field = re.split(r"[ :,(]", place)[0].partition(".")
        inner = model_in(PipelineConfig.model_fields[part].annotation)
        assert not field or (inner is not None and field in inner.model_fields), place
    ours = {name for model in _models(PipelineConfig) for name in model.model_fields}
    assert {name for place in places for name in OTHER_NAMES[place].split()} & ours <= {
        *("max_seq_len", "packing_strategy", "storage_format", "max_items"),  # as options
        *("template", "chat_template", "format"),
    }


def _models(model: Any) -> list[Any]:
    inner = [found for field in model.model_fields.values() if (found := model_in(field.annotation)) is not None]
    return [model, *(each for one in inner for each in _models(one))]


# Data, tokenizers, paths: numbers are those of the list of a new user


def test_a_folder_without_a_tokenizer_is_told_what_is_in_it() -> None:  # 8
    Path("model/below").mkdir(parents=True)
    with pytest.raises(TokenizerError, match=r"wanted a folder with tokenizer\.json; found nothing in it$"):
        Tokenizer.load("./model/below")
    Path("model/below/tokenizer.json").touch()
    with pytest.raises(TokenizerError, match=r"wanted a folder with tokenizer\.json; found 'below'$"):
        Tokenizer.load("./model")


def test_public_names_are_imported_without_a_word_and_a_warning_does_not_control_the_terminal() -> None:  # 16
    code = """
import logging
import beam_prep as bp
bp.Pipeline; bp.ReadJSONL
assert not logging.getLogger().filters
logging.warning('mine')
logging.root.handlers.clear()
from beam_prep import cli
cli._set_up_log(False)
logging.getLogger('beam_prep').warning('%s', 'a' + chr(27) + '[31m')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.splitlines() == ["WARNING:root:mine", "a\u241b[31m"]
    assert done.stdout == ""


def test_a_file_that_is_no_jsonl_is_found_before_the_first_is_read(command: Command) -> None:
    """However far down it is in the list: a run would come to it hours later."""
    for number in range(5):
        Path(f"a{number}.jsonl").write_text('{"text": "a"}\n')
    Path("b.jsonl").write_bytes(b"PAR1\x15\x04")
    words = ("-c", ROOT / "configs/pretrain.json", "--cache_dir", "cache_dir")
    assert "'b.jsonl' is a Parquet file" in command(*run("*.jsonl"), *words, code=3)
    assert not Path("cache_dir").exists()


def test_a_path_is_not_broken_in_a_narrow_terminal(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    path = "/data" + "/folder" * 10
    cli._say([f"  its report: {path}", "words " * 10])
    assert path in (said := capsys.readouterr().out)
    assert said.count("\n") == 3


def test_a_template_that_is_not_there_names_what_is(command: Command) -> None:
    said = command("template", TOKENIZER, "--chat_template", "nope", code=2)
    assert "found 'nope', which is no template; this tokenizer's are named nothing" in said


def test_all_splits_are_shown_by_their_name(command: Command) -> None:
    Path("x.jsonl").write_text(LINES[0])
    assert "out: 1 row, " in command(*run("x.jsonl"))
    assert len(command("cat", "out", "--split", "all").splitlines()) == 1
    command("inspect", "out", "--split", "all", "--no_pager")
