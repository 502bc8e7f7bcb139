"""Messages say what was found and what to type. Each row of these tables is a situation that a user was in."""

import csv
import gzip
import io
import json
import lzma
import pickle
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

from beam_prep import cli
from beam_prep.core.reading.foreign import guess, refusal
from tests.conftest import ROOT

CONFIG, TOKENIZER = str(ROOT / "configs/sft_conversation.json"), str(ROOT / "examples/tokenizer")
LINES = (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines(keepends=True)[:40]
CHATS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
TEXT = "".join(LINES)
PAIRS = [{"prompt": f"What is {n}\n+ 1, please?", "completion": f"It is {n + 1}; sure."} for n in range(40)]

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
        with tarfile.open(fileobj=made, mode="w") as file:  # type: ignore[assignment]
            file.add("chat.jsonl")  # type: ignore[attr-defined]
    return made.getvalue()


def excel() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("[Content_Types].xml", "<Types/>")
    return made.getvalue()


ALIKE, RENAMED = "wanted JSONL: type: python -c", "which is read from a .json file: type: mv"
# Name of the file -> (its content, what it is said to be, what follows, the input after the command; None: no command).
FORMATS: dict[str, tuple[Callable[[], bytes], str, str, str | None]] = {
    "x.parquet": (parquet, "is a Parquet file", ALIKE, "x.jsonl"),
    "parquet.jsonl": (parquet, "is a Parquet file", ALIKE, "parquet.converted.jsonl"),
    "it's.parquet": (parquet, "is a Parquet file", ALIKE, "it's.jsonl"),
    "x.parquet.gz": (
        lambda: gzip.compress(parquet()),
        "holds a Parquet file",
        "wanted JSONL: type: gzip -dk x.parquet.gz && python -c",
        "x.jsonl",
    ),
    "x.feather": (feather, "is an Arrow file (Feather)", ALIKE, "x.jsonl"),
    "data-00000-of-00001.arrow": (arrow_stream, "is an Arrow stream", ALIKE, "data-00000-of-00001.jsonl"),
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
    "x.yaml": (lambda: b"- prompt: hi\n  completion: ho\n" * 9, "is a YAML file", ALIKE, "x.jsonl"),
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
    if made is not None:
        command = said[max(said.rfind(word) for word in (": python", ": gzip", ": iconv", ": mv", ": tar", ": xz")) + 2 :]
        command = command.replace("python -c", f"{shlex.quote(sys.executable)} -c").replace(" TABLE ", " pairs ")
        subprocess.run(["bash", "-c", command], check=True)
        assert run(made, config=config) == 0, capsys.readouterr().err


def test_a_format_is_named_by_a_preview_too(capsys: Capture) -> None:
    Path("x.csv").write_bytes(rows_of_csv(","))
    Path("x.parquet").write_bytes(parquet())
    assert started("inspect", "x.csv", "-c", CONFIG, "--tokenizer_path", TOKENIZER) == 0
    assert "'x.csv' is a table (CSV)" in " ".join(capsys.readouterr().out.split())
    assert started("inspect", "x.parquet", "-c", CONFIG, "--tokenizer_path", TOKENIZER) == 3
    assert "'x.parquet' is a Parquet file" in capsys.readouterr().err


@pytest.mark.parametrize("line", [*LINES[:3], '{"text": "a,b"}\n', '{"PAR1": 1}\n', "\ufeff{}\n", "null\n", ""])
def test_jsonl_is_taken_for_nothing_else(line: str) -> None:
    assert refusal((line * 9).encode(), "x.jsonl") is None
    assert guess((line * 9).encode(), "x.jsonl", ["messages", "text"]) is None


def test_a_file_in_a_store_is_copied_first() -> None:
    said = refusal(b"PAR1", "gs://bucket/a b/x y.parquet")
    assert said is not None
    assert "copy it to this disk, and type: python -c" in said
    assert said.endswith("'x y.parquet' > 'x y.jsonl'")
