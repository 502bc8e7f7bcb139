"""Messages say what was found and what to type. Each row of these tables is a situation that a user was in."""

import csv
import gzip
import io
import json
import lzma
import pickle
import re
import shlex
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import cli
from beam_prep.config import PipelineConfig
from beam_prep.config.strict import model_in
from beam_prep.errors import ConfigError
from beam_prep.hints import IN_CONFIG, OTHER_NAMES
from beam_prep.options import OPTIONS
from beam_prep.reading.foreign import guess, refusal
from beam_prep.runners import without_effect
from beam_prep.storage.files import list_inputs
from beam_prep.storage.splits import first_records
from tests.conftest import ROOT

CONFIG, TOKENIZER = str(ROOT / "configs/sft_conversation.json"), str(ROOT / "examples/tokenizer")
LINES = (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines(keepends=True)[:40]
CHATS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
TEXT = "".join(LINES)
PAIRS = [{"prompt": f"What is {n}\n+ 1, please?", "completion": f"It is {n + 1}; sure."} for n in range(40)]
TEXTS = [(row["prompt"], row["completion"]) for row in PAIRS]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*words: str) -> int:
    """The exit code of the command line, as it is started by a user."""
    try:
        return cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)


def run(*inputs: str, config: str = CONFIG, more: tuple[str, ...] = ()) -> int:
    given = ["run", *inputs, "-o", "out", "-c", config, "--tokenizer_path", TOKENIZER, "--runner=FnApiRunner"]
    return started(*given, *more)


# Formats


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


def parquet() -> bytes:
    made = io.BytesIO()
    pa.parquet.write_table(table(CHATS), made)
    return made.getvalue()


def feather() -> bytes:
    made = io.BytesIO()
    pa.feather.write_feather(table(CHATS), made)
    return made.getvalue()


def arrow_stream() -> bytes:
    made, rows = io.BytesIO(), table(CHATS)
    with pa.ipc.new_stream(made, rows.schema) as stream:
        stream.write_table(rows)
    return made.getvalue()


def sqlite() -> bytes:
    base = sqlite3.connect("made.db")
    base.execute("CREATE TABLE pairs (prompt TEXT, completion TEXT)")
    base.executemany("INSERT INTO pairs VALUES (:prompt, :completion)", PAIRS)
    base.commit()
    base.close()
    return Path("made.db").read_bytes()


def rows_of_csv(delimiter: str) -> bytes:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, ["prompt", "completion"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(PAIRS)
    return made.getvalue().encode()


def archive(kind: str) -> bytes:
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("chat.jsonl", TEXT)
    else:
        Path("chat.jsonl").write_text(TEXT)
        with tarfile.open(fileobj=made, mode="w") as file:
            file.add("chat.jsonl")
    return made.getvalue()


def excel() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("[Content_Types].xml", "<Types/>")
    return made.getvalue()


ALIKE, RENAMED = "wanted JSONL: type: python -c", "which is read from a .json file: type: mv"
TABLE = "which is read from a .parquet file: type: mv"
# Name of the file -> (its content, what it is said to be, what follows, the input after the command; None: no command).
FORMATS: dict[str, tuple[Callable[[], bytes], str, str, str | None]] = {
    "x.jsonl": (parquet, "is a Parquet file", TABLE, "x.parquet"),
    "x": (parquet, "is a Parquet file", TABLE, "x.parquet"),
    "it's.jsonl": (parquet, "is a Parquet file", TABLE, "it's.parquet"),
    "odd\n\x1b[31m'\\.json": (parquet, "is a Parquet file", TABLE, "odd\n\x1b[31m'\\.parquet"),
    "x.parquet.gz": (
        lambda: gzip.compress(parquet()),
        "holds a Parquet file",
        "which is read from a .parquet file: type: gzip -dk x.parquet.gz",
        "x.parquet",
    ),
    "y.gz": (
        lambda: gzip.compress(parquet()),
        "holds a Parquet file",
        "which is read from a .parquet file: type: gzip -dk y.gz && mv y y.parquet",
        "y.parquet",
    ),
    "x.feather": (feather, "is an Arrow file (Feather)", ALIKE, "x.jsonl"),
    "feather.arrow": (feather, "is an Arrow file (Feather)", ALIKE, "feather.jsonl"),
    "stream.bin": (arrow_stream, "is an Arrow stream", "which is read from a .arrow file: type: mv", "stream.arrow"),
    "x.pkl": (
        lambda: pickle.dumps(CHATS),
        "is a pickled Python object",
        "wanted JSONL: if you trust its source, type: python -c",
        "x.jsonl",
    ),
    "x.db": (sqlite, "is an SQLite database", ALIKE, "x.jsonl"),
    "x.csv": (lambda: rows_of_csv(","), "is a table (CSV)", ALIKE, "x.jsonl"),
    "csv.jsonl": (lambda: rows_of_csv(";"), "is a table (CSV)", ALIKE, "csv.converted.jsonl"),
    "x.tsv": (lambda: rows_of_csv("\t"), "is a table (TSV)", ALIKE, "x.jsonl"),
    "x.xlsx": (excel, "is an Excel file", "type: python -c 'import sys, pandas;", None),
    "x.zip": (lambda: archive("zip"), "is a zip archive", "unpack it, and name the files that were in it", None),
    "x.tar": (lambda: archive("tar"), "is a tar archive", "files that were in it: tar xf x.tar", "chat.jsonl"),
    "x.tgz.gz": (lambda: gzip.compress(archive("tar")), "holds a tar archive", "unpack it", None),
    "xz.jsonl": (lambda: lzma.compress(TEXT.encode()), "is compressed by xz", "type: xz -dc", "xz.converted.jsonl"),
    "gz.jsonl": (
        lambda: gzip.compress(TEXT.encode()),
        "is compressed, but its name does not end in .gz",
        "rename it: mv gz.jsonl gz.jsonl.gz",
        "gz.jsonl.gz",
    ),
    "twice.jsonl.gz": (
        lambda: gzip.compress(gzip.compress(TEXT.encode())),
        "is compressed twice",
        "type gzip -dk twice.jsonl.gz, and name what it makes with .gz",
        None,
    ),
    "utf16.jsonl": (
        lambda: TEXT.encode("utf-16"),
        "is text in UTF-16",
        "wanted JSONL in UTF-8: type: iconv -f UTF-16",
        "utf16.converted.jsonl",
    ),
    "utf16le.jsonl": (
        lambda: TEXT.encode("utf-16-le"),
        "is text in UTF-16LE",
        "wanted JSONL in UTF-8: type: iconv -f UTF-16LE",
        "utf16le.converted.jsonl",
    ),
    "windows.jsonl": (
        lambda: '{"messages": [{"role": "user", "content": "café"}]}\n'.encode("cp1252") * 40,
        "is no UTF-8 (byte",
        "if it is Windows-1252, type: iconv -f WINDOWS-1252",
        None,
    ),
    "page.jsonl": (
        lambda: b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
        "is an HTML page (the error page of a download?)",
        "download it again",
        None,
    ),
    "denied.jsonl": (
        lambda: b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "is an XML document (the error message of a store?)",
        "download it again",
        None,
    ),
    "lfs.jsonl": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "is a Git LFS pointer, not the data",
        "type: git lfs pull",
        None,
    ),
    "data.json": (
        lambda: json.dumps({"version": 1, "data": CHATS}, indent=1).encode(),
        "is one object with its records in the list 'data'",
        ALIKE,
        "data.jsonl",
    ),
    "wrapped.jsonl": (
        lambda: json.dumps({"my 'chats'": CHATS, "of": {"a": [1]}}).encode(),
        "is one object with its records in the list \"my 'chats'\"",
        ALIKE,
        "wrapped.converted.jsonl",
    ),
    "list.jsonl": (lambda: json.dumps(CHATS).encode(), "is one JSON list", RENAMED, "list.json"),
    "list.jsonl.gz": (
        lambda: gzip.compress(json.dumps(CHATS, indent=1).encode()),
        "is one JSON list",
        RENAMED,
        "list.json.gz",
    ),
    "indented.jsonl": (
        lambda: "\n".join(json.dumps(chat, indent=2) for chat in CHATS).encode(),
        "is objects of several lines each",
        RENAMED,
        "indented.json",
    ),
    "python.jsonl": (
        lambda: "".join(f"{chat}\n" for chat in CHATS).encode(),
        "is lines of Python dicts",
        ALIKE,
        "python.converted.jsonl",
    ),
    "x.yaml": (
        lambda: "".join(f"- prompt: {json.dumps(p)}\n  completion: {json.dumps(c)}\n" for p, c in TEXTS).encode(),
        "is a YAML file",
        ALIKE,
        "x.jsonl",
    ),
    "x.txt": (lambda: b"It is a text.\n" * 9, "is plain text", "wanted JSONL with a record a line: type: python", None),
}
OF_PAIRS = ("x.db", "x.csv", "csv.jsonl", "x.tsv", "x.yaml")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_named_with_the_command_that_makes_jsonl_of_it(name: str, capsys: Capture) -> None:
    make, what, then, made = FORMATS[name]
    Path(name).write_bytes(make())
    config = str(ROOT / "configs/sft_prompt_completion.json") if name in OF_PAIRS else CONFIG
    assert run(name, config=config) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{name!r} {what}" in said
    assert then in said
    assert said.isprintable()
    if made is not None:
        command = re.split(r": (?=python |gzip |iconv |mv |tar |xz )", said)[-1]
        command = command.replace("python -c", f"{shlex.quote(sys.executable)} -c").replace(" TABLE ", " pairs ")
        subprocess.run(["bash", "-c", command], check=True)
        records = first_records(list_inputs([made])[0])
        assert records is not None
        assert [*records.rows] == (PAIRS if name in OF_PAIRS else CHATS)


def test_a_format_is_named_by_a_preview_too(capsys: Capture) -> None:
    Path("x.csv").write_bytes(rows_of_csv(","))
    Path("x.feather").write_bytes(feather())
    assert started("inspect", "x.csv", "-c", CONFIG, "--tokenizer_path", TOKENIZER) == 0
    assert "'x.csv' is a table (CSV)" in " ".join(capsys.readouterr().out.split())
    assert started("inspect", "x.feather", "-c", CONFIG, "--tokenizer_path", TOKENIZER) == 3
    assert "'x.feather' is an Arrow file (Feather)" in capsys.readouterr().err


@pytest.mark.parametrize("line", [*LINES[:3], '{"text": "a,b"}\n', '{"PAR1": 1}\n', "\ufeff{}\n", "null\n", ""])
def test_jsonl_is_taken_for_nothing_else(line: str) -> None:
    assert refusal((line * 9).encode(), "x.jsonl") is None
    assert guess((line * 9).encode(), "x.jsonl", ["messages", "text"]) is None


def test_a_file_in_a_store_is_copied_first() -> None:
    said = refusal(b"ARROW1\0\0", "gs://bucket/a b/x y.feather")
    assert said is not None
    assert "copy it to this disk, and type: python -c" in said
    assert said.endswith("'x y.feather' > 'x y.jsonl'")


# The command line


# The words -> what is said. Exit code 2, one line.
JOB = ("run", "x.jsonl", "-o", "out", "-c", CONFIG, "--tokenizer_path", TOKENIZER)
CALLS: list[tuple[tuple[str, ...], str]] = [
    ((*JOB[:6], "--tokenizer", TOKENIZER), "'--tokenizer', neither ours nor Beam's; did you mean --tokenizer_path?"),
    ((*JOB[:6], "--tokenizer-path", TOKENIZER), "did you mean --tokenizer_path?"),
    ((*JOB[:6], f"--tokeniser_path={TOKENIZER}"), "did you mean --tokenizer_path?"),
    ((*JOB[:2], *JOB[4:], "--output", "out"), "'--output', neither ours nor Beam's; did you mean --output_dir?"),
    ((*JOB, "--workers=4"), "did you mean --direct_num_workers?"),
    ((*JOB, "-j", "4"), "'-j', neither ours nor Beam's; did you mean --direct_num_workers?"),
    ((*JOB, "--force"), "did you mean --overwrite?"),
    ((*JOB, "--direct_num_worker=4"), "did you mean --direct_num_workers?"),
    ((*JOB, "--max_seq_len=512"), "it is set in the config: preprocessing.max_seq_len"),
    ((*JOB, "--packing"), "it is set in the config: preprocessing.packing_strategy"),
    ((*JOB, "--count=3"), "it is an option of inspect and cat"),
    ((*JOB, "--num_workers=four"), "argument --num_workers: invalid int value: 'four'"),
    (("inspect", "out", "--reccord", "3"), "unknown option '--reccord'; did you mean --record?"),
    (("inspect", "x.jsonl", "-c", CONFIG, "--tokenizer", TOKENIZER), "did you mean --tokenizer_path?"),
    (("cat", "out", "--cuont=3"), "unknown option '--cuont'; did you mean --count?"),
    (("cat", "out", "more"), "unknown argument 'more'"),
    (("verify", "out", "--jsno"), "did you mean --json?"),
    (("verify", "out", "--record=3"), "it is an option of inspect"),
    (("gc", "cache_dir", "--older_then=3d"), "did you mean --older_than?"),
    (("gc", "cache_dir", "--older_than=3 days"), "found '3 days', wanted a time such as 90s, 30m, 12h or 7d"),
    (("replay", "out", "--tokenizer", TOKENIZER), "did you mean --tokenizer_path?"),
    (("presets", "--list"), "unknown option '--list'"),
    (("schema", "--jsn"), "unknown option '--jsn'"),
    (("rnu", "x.jsonl"), "unknown command 'rnu'; did you mean 'run'? known: run, "),
    ((), "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("words", "wanted"), CALLS)
def test_a_misspelt_option_is_one_line_with_the_one_that_is_meant(
    words: tuple[str, ...], wanted: str, capsys: Capture
) -> None:
    assert started(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("beam-prep")
    assert wanted in line


def told_by(*words: str) -> list[str]:
    given = PipelineOptions([word for word in words if word != "--wait=false"])
    return without_effect(given, "--wait=false" not in words)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ["--num_workers=4"],
            "--num_workers without effect: for DataflowRunner, and this is DirectRunner; for worker ",
        ),
        (["--num_workers=4"], "processes on this machine, type --direct_num_workers=4"),
        (["--parallelism=3", "--flink_master=x:1"], "--flink_master and --parallelism without effect: for FlinkRunner"),
        (["--parallelism=3"], "type --runner=FlinkRunner to run there"),
        (["--environment_type=LOOPBACK"], "for a runner with a job server, and this is DirectRunner"),
        (["--direct_running_mode=in_memory", "--direct_num_workers=3"], "--direct_num_workers=3 without effect"),
        (["--wait=false"], "--wait=false without effect"),
        (["--runner=FlinkRunner", "--direct_num_workers=2"], "for DirectRunner, and this is FlinkRunner"),
        (["--runner=PrismRunner", "--machine_type=x"], "for DataflowRunner, and this is PrismRunner"),
        (["--runner=DataflowRunner", "--prism_location=x"], "for PrismRunner, and this is DataflowRunner"),
    ],
)
def test_an_option_without_effect_is_said(words: list[str], wanted: str) -> None:
    (said,) = told_by(*words)
    assert wanted in said


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--runner=FnApiRunner", "--project=p", "--s3_endpoint_url=http://localhost"],
        ["--direct_num_workers=2", "--sdk_container_image=x"],
        ["--runner=FlinkRunner", "--parallelism=2", "--environment_type=LOOPBACK", "--wait=false"],
        ["--runner=DataflowRunner", "--num_workers=2", "--region=r", "--wait=false"],
        ["--runner=my.own.Runner", "--num_workers=2"],
    ],
)
def test_options_that_work_are_not_spoken_of(words: list[str]) -> None:
    assert told_by(*words) == []


def test_an_option_without_effect_is_said_by_a_run_and_stands_in_run_json(caplog: pytest.LogCaptureFixture) -> None:
    Path("x.jsonl").write_text(TEXT)
    assert run("x.jsonl", more=("--num_workers=4",)) == 0
    said = "--num_workers without effect: for DataflowRunner, and this is DirectRunner"
    assert f"warning: {said}" in caplog.text
    assert json.loads(Path("out/run.json").read_text())["warnings"][0].startswith(said)


# Settings of other tools in a config


@pytest.mark.parametrize(
    ("part", "key", "wanted"),
    [
        ("preprocessing", "packing", "here it is preprocessing.packing_strategy"),  # TRL
        ("preprocessing", "max_length", "did you mean 'max_seq_len'?"),
        ("output", "max_seq_length", "here it is preprocessing.max_seq_len"),
        ("preprocessing", "sequence_len", "did you mean 'max_seq_len'?"),  # axolotl
        ("preprocessing", "sample_packing", "here it is preprocessing.packing_strategy"),
        ("preprocessing", "train_on_inputs", "here it is mask_default"),
        ("preprocessing", "cutoff_len", "here it is preprocessing.max_seq_len"),  # LLaMA-Factory
        ("output", "template", 'here it is input.sections: "template": "conversation"'),
        ("preprocessing", "seq-length", "here it is preprocessing.max_seq_len"),
        ("output", "tokenizer", "it is no part of the config: give --tokenizer_path on the command line"),
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


def test_every_place_that_is_named_is_there() -> None:
    for place in IN_CONFIG.values():
        part, _, field = re.split(r"[ :,(]", place)[0].partition(".")
        inner = model_in(PipelineConfig.model_fields[part].annotation)
        assert not field or (inner is not None and field in inner.model_fields), place
    assert OTHER_NAMES.keys() <= {option.name for option in OPTIONS} | {"direct_num_workers"}


def test_a_name_of_another_tool_hides_no_name_of_ours() -> None:
    ours = {name for model in _models(PipelineConfig) for name in model.model_fields}
    assert {name for name in IN_CONFIG if name in ours} <= {"template", "chat_template", "format"}


def _models(model: Any) -> list[Any]:
    inner = [found for field in model.model_fields.values() if (found := model_in(field.annotation)) is not None]
    return [model, *(each for one in inner for each in _models(one))]


# Data, tokenizers, paths: numbers are those of the list of a new user


def test_a_record_with_another_name_of_the_field_is_told_which(capsys: Capture) -> None:  # 2, 3
    Path("x.jsonl").write_text('{"prompt": "What?", "response": "That."}\n' * 40)
    assert run("x.jsonl", config=str(ROOT / "configs/sft_prompt_completion.json")) == 3
    said = capsys.readouterr().err
    assert "with the fields 'prompt', 'response'; the config asks for 'prompt', 'completion'" in said
    assert "'completion' is not there, did you mean 'response'?" in said


def test_the_message_of_the_first_reject_is_in_the_failure(capsys: Capture) -> None:  # 4
    Path("x.jsonl").write_text('{"messages": "hello"}\n' * 40)
    assert run("x.jsonl") == 3
    said = capsys.readouterr().err
    assert "the first reject is x.jsonl, line 1 (byte offset 0): wrong_type: " in said
    assert "wanted a list of messages" in said


def test_a_tokenizer_without_a_template_is_told_all_ways_to_give_one(tmp_path: Path, capsys: Capture) -> None:  # 7
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path(name).write_bytes(Path(TOKENIZER, name).read_bytes())
    Path("x.jsonl").write_text(TEXT)
    given = ["run", "x.jsonl", "-o", "out", "-c", CONFIG, "--tokenizer_path", str(tmp_path)]
    assert started(*given) == 2
    said = capsys.readouterr().err
    assert "this tokenizer has no chat template" in said
    assert 'input.chat_template: "FILE.jinja"' in said


def test_a_folder_without_a_tokenizer_is_told_what_is_in_it(capsys: Capture) -> None:  # 8
    Path("x.jsonl").write_text(TEXT)
    Path("model/below").mkdir(parents=True)
    given = ["run", "x.jsonl", "-o", "out", "-c", CONFIG, "--tokenizer_path"]
    assert started(*given, "./model/below") == 2
    assert capsys.readouterr().err.endswith("wanted a folder with tokenizer.json; found nothing in it\n")
    Path("model/config.json").write_text("{}")
    assert started(*given, "./model") == 2
    assert capsys.readouterr().err.endswith("tokenizer.json; found 'below', 'config.json'\n")
    Path("model/below/tokenizer.json").touch()
    assert started(*given, "./model") == 2
    assert capsys.readouterr().err.endswith("found one in './model/below': did you mean that?\n")


def test_verify_of_a_missing_folder_says_only_that(capsys: Capture) -> None:  # 12
    assert started("verify", "missing") == 1
    assert (
        capsys.readouterr().err == "missing: no such directory; give the directory that `beam-prep run` made with -o\n"
    )


def test_public_names_are_imported_without_a_word() -> None:  # 16
    names = "import logging; root = logging.getLogger(); import beam_prep as bp; bp.Pipeline; bp.ReadJSONL"
    code = f"{names}; assert not root.filters; logging.warning('mine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.splitlines() == ["WARNING:root:mine"]
    assert done.stdout == ""


def test_a_misspelt_role_of_the_mask_is_a_warning_with_the_role_that_is_meant(caplog: pytest.LogCaptureFixture) -> None:
    Path("x.jsonl").write_text(TEXT)
    given = json.loads(Path(CONFIG).read_text()) | {"mask": {"asistant": "train", "user": "train"}}
    Path("c.json").write_text(json.dumps(given))
    assert run("x.jsonl", config="c.json") == 0
    said = caplog.text
    assert "warning: `mask` names the role 'asistant' (train), which no message has: did you mean 'assistant'?" in said
    assert "with the role 'assistant', which `mask` does not name" in said


def test_a_file_that_is_no_jsonl_is_found_before_the_first_is_read(capsys: Capture) -> None:
    """However far down it is in the list: a run would come to it hours later."""
    for number in range(5):
        Path(f"a{number}.jsonl").write_text('{"text": "a"}\n')
    Path("b.jsonl").write_bytes(b"PAR1\x15\x04")
    words = ["-c", str(ROOT / "configs/pretrain.json"), "--tokenizer_path", TOKENIZER, "--cache_dir", "cache_dir"]
    assert started("run", "*.jsonl", *words, "-o", "out", "--runner=FnApiRunner") == 3
    assert "'b.jsonl' is a Parquet file" in capsys.readouterr().err
    assert not Path("cache_dir").exists()
