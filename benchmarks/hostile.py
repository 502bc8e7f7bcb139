"""Hostile input: runs `beam-prep run` on each case, and compares its peak memory with a plain run.

    python benchmarks/hostile.py --markdown docs/hostile.md     # all cases: half an hour
    python benchmarks/hostile.py --only gzip zstd --scale 0.1   # some cases, with a tenth of the bytes

Linux only: memory is read from /proc. A case is good if the run ends well, or is refused if the case says so, without a
traceback, and with at most `LIMIT` times the memory of the plain run.
"""

import argparse
import bz2
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from _measure import ROOT, Watch, say
from _page import machine, table, write_markdown

MARKER = "hostile"
LIMIT = 1.5
CHAT = ROOT / "examples" / "data" / "chat.jsonl"
TEXT = {"input": {"sections": [{"field": "text", "action": "train"}]}, "preprocessing": {"min_chars": 1}}
TOKENIZER = ROOT / "examples" / "tokenizer"


@dataclass
class Case:
    """A run.

    Attributes:
        inputs: the input files.
        config: the config as JSON; None: configs/sft_chat.json.
        options: further options.
        refused: the run must be refused.
    """

    inputs: list[Any]
    config: Any = None
    options: list[str] = field(default_factory=list)
    refused: bool = False


def write(path: Path, parts: Iterable[bytes], opened: Callable[..., Any] = open) -> Path:
    with opened(path, "wb") as file:
        for part in parts:
            file.write(part)
    return path


def zstd(path: Path, _: str) -> Any:
    return pa.CompressedOutputStream(str(path), "zstd")


def text(value: str = "a good line", **more: Any) -> bytes:
    return json.dumps({"text": value, **more}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


GOOD = [text(f"good {number}") for number in range(200)]


def filled(size: int, byte: bytes) -> Iterator[bytes]:
    """Good lines, `size` bytes, and good lines again."""
    yield from GOOD
    for start in range(0, size, 1 << 20):
        yield byte * min(1 << 20, size - start)
    yield b"\n"
    yield from GOOD


# Renderings.

BOMBS = {
    "two loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "'%3000000000s'": "{{ '%3000000000s' % 'a' }}",
    "'a' * 10**10": "{{ 'a' * 10**10 }}",
    "10**5000 as text": "{{ (10**5000) | string }}",
    "[0] * 10**9": "{{ [0] * 10**9 }}",
    "center(10**9)": "{{ 'x'.center(10**9) }}",
    "format of 10**9": "{{ '{:1000000000}'.format(1) }}",
    "~ doubled": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "replace doubled": "{% set n = namespace(x='a') %}{% for i in range(60) %}"
    "{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}{{ n.x }}",
    "nested lists as JSON": "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x | tojson }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "texts that are kept": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set n.l = n.l + ['x' * 100000] %}{% endfor %}",
    "indent(10**9)": "{{ 'a' | indent(10**9, true) }}",
    "batch(10**9, 'x')": "{{ 'a' | batch(10**9, 'x') | list }}",
    "truncate(2)": "{{ 'abcdef' | truncate(2) }}",
}


def rendering(bomb: str) -> Callable[[Path, float], Case]:
    def make(folder: Path, _: float) -> Case:
        chats = [{"role": "user", "content": "bomb"}, {"role": "assistant", "content": "yes"}]
        lines = [json.dumps({"messages": chats}).encode() + b"\n"]
        source = write(folder / "chats.jsonl", [CHAT.read_bytes(), *lines])
        config = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())
        config["input"]["chat_template"] = (
            "{% if messages[0].content == 'bomb' %}" + bomb + "{% endif %}{% for m in messages %}"
            "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        )
        return Case([source], config, ["--max_reject_rate=1", "--max_no_loss_rate=1"])

    return make


# Files and lines.


def packed(ending: str, opened: Callable[..., Any], byte: bytes) -> Callable[[Path, float], Case]:
    def make(folder: Path, scale: float) -> Case:
        source = write(folder / f"bomb.jsonl{ending}", filled(int(scale * 1.5e9), byte), opened)
        return Case([source], TEXT, ["--max_reject_rate=1"])

    return make


def long_line(folder: Path, scale: float) -> Case:
    size = int(scale * 3e8)
    parts = [*GOOD, b'{"text": "', *([b"long " * 200_000] * (size // 1_000_000)), b'"}\n', *GOOD]
    return Case([write(folder / "long.jsonl", parts)], TEXT, ["--max_reject_rate=1"])


def line_below(folder: Path, _: float) -> Case:
    parts = [*GOOD, b'{"text": 1, "x": "', *([b"long " * 200_000] * 60), b'"}\n', *GOOD]
    return Case([write(folder / "long.jsonl", parts)], TEXT, ["--max_reject_rate=1"])


def keys(folder: Path, scale: float) -> Case:
    many = b", ".join(b'"key%d": %d' % (number, number) for number in range(int(scale * 1e6)))
    return Case([write(folder / "keys.jsonl", [*GOOD, b'{"text": "a", ' + many + b"}\n"])], TEXT)


def brackets(folder: Path, scale: float) -> Case:
    depth = int(scale * 1e6)
    deep = [b'{"text": ' + b"[" * depth + b"]" * depth + b"}\n", b"[" * depth + b"\n", b'{"a":' * depth + b"\n"]
    return Case([write(folder / "deep.jsonl", [*GOOD, *deep])], TEXT, ["--max_reject_rate=1"])


def utf16(folder: Path, _: float) -> Case:
    lines = b"".join(GOOD).decode().encode("utf-16")
    return Case([write(folder / "utf16.jsonl", [lines]), write(folder / "a.jsonl", GOOD)], TEXT, refused=True)


def empty_files(folder: Path, scale: float) -> Case:
    for number in range(int(scale * 100_000)):
        (folder / f"{number:06}.jsonl").touch()
    write(folder / "z.jsonl", GOOD)
    return Case([folder / "*.jsonl"], TEXT)


def fifo(folder: Path, _: float) -> Case:
    os.mkfifo(folder / "pipe.jsonl")
    return Case([folder / "pipe.jsonl"], TEXT, refused=True)


def device(*_: Any) -> Case:
    return Case(["/dev/zero"], TEXT, refused=True)


def directory(folder: Path, _: float) -> Case:
    (folder / "a.jsonl").mkdir()
    return Case([folder / "*.jsonl"], TEXT, refused=True)


NAMES = [
    b"line\nfeed.jsonl",
    b"quotes'\".jsonl",
    b"-o.jsonl",
    b"..jsonl",
    b"x" * 244 + b".jsonl",
    unicodedata.normalize("NFD", "\u00e9.jsonl").encode(),
    "\u00e9.jsonl".encode(),
    b"\xff\xfe.jsonl",
    b"latest.jsonl",
    b"{{ a }}.jsonl",
]


def file_names(folder: Path, _: float) -> Case:
    for name in NAMES:
        write(folder / os.fsdecode(name), GOOD)
    return Case([folder / "*.jsonl"], TEXT)


DOMAINS = [
    *(
        "latest",
        ".beam_prep",
        "..",
        "../../etc",
        "a/b",
        "a\\b",
        "",
        " ",
        "\n",
        "x" * 250,
        "x" * 100_000,
        "NUL",
        "A",
        "a",
    ),
    *("\u00e9", unicodedata.normalize("NFD", "\u00e9"), "manifest.json", "rejects", "'\"", "\0", "\u202e", "{{ a }}"),
]


def domains(folder: Path, _: float) -> Case:
    lines = [text("good", domain=name) for name in DOMAINS]
    lines += [b'{"text": "a", "domain": "\\ud800"}\n', b'{"text": "a", "domain": ["b"]}\n']
    config = {**TEXT, "output": {"domain_key": "domain"}}
    return Case([write(folder / "domains.jsonl", lines)], config, ["--max_reject_rate=1"])


def of_config(config: Any) -> Callable[[Path, float], Case]:
    return lambda folder, _: Case([write(folder / "a.jsonl", GOOD)], config, refused=True)


def template(given: str) -> Any:
    sections = [{"field": "messages", "action": "$role", "template": True}]
    return of_config({"input": {"sections": sections, "chat_template": given}, "mask": {"assistant": "train"}})


CASES: dict[str, Callable[[Path, float], Case]] = {
    **{f"a template with {name}": rendering(bomb) for name, bomb in BOMBS.items()},
    "1.5 GB of blanks, gzip": packed(".gz", gzip.open, b" "),
    "1.5 GB of blanks, zstd": packed(".zst", zstd, b" "),
    "1.5 GB of blanks, bzip2": packed(".bz2", bz2.open, b" "),
    "1.5 GB of line feeds": packed("", open, b"\n"),
    "1.5 GB of line feeds, gzip": packed(".gz", gzip.open, b"\n"),
    "1.5 GB of line feeds, zstd": packed(".zst", zstd, b"\n"),
    "1.5 GB of line feeds, bzip2": packed(".bz2", bz2.open, b"\n"),
    "1.5 GB of zeros, gzip": packed(".gz", gzip.open, b"\0"),
    "a line of 300 MB": long_line,
    "a line of 60 MB": line_below,
    "an object of 10^6 keys": keys,
    "10^6 brackets": brackets,
    "UTF-16": utf16,
    "100,000 empty files": empty_files,
    "a FIFO": fifo,
    "/dev/zero": device,
    "a directory": directory,
    "nasty names of files": file_names,
    "nasty names of domains": domains,
    "an adapter that is a list": of_config({"input": {"adapter": ["sharegpt"], "sections": [{"field": "a"}]}}),
    "a NUL in chat_template": template("{{ a }}\0"),
    "{% break %}": template("{% break %}{{ a }}"),
    "chat_template /etc/passwd": template("/etc/passwd"),
    "padding to 10^9": of_config({**TEXT, "preprocessing": {"padding": 10**9}}),
}


def plain(folder: Path, _: float) -> Case:
    lines = CHAT.read_bytes()
    return Case([write(folder / "plain.jsonl", [lines] * (40_000_000 // len(lines)))])


@dataclass
class Found:
    code: int
    pss: int
    seconds: float
    said: str
    rejected: dict[str, int]
    traceback: bool


def run(make: Callable[[Path, float], Case], scale: float) -> Found:
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=os.environ.get("HOSTILE_DIR")) as name:
        work = Path(name)
        folder = work / "in"
        folder.mkdir()
        case = make(folder, scale)
        config = ["-c", str(ROOT / "configs" / "sft_chat.json")]
        if case.config is not None:
            config = ["--config_json", json.dumps(case.config)]
        command = [sys.executable, "-m", "beam_prep.cli", "run", "-o", str(work / "out"), *config]
        command += [f"--tokenizer_path={TOKENIZER}", *case.options, "--", *map(str, case.inputs)]
        environment = {**os.environ, "BEAM_PREP_CACHE": str(work / "cache"), "PYTHONPATH": str(ROOT)}
        started = time.perf_counter()
        with open(work / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=work, env=environment)
            with Watch(psutil.Process(process.pid)) as watch:
                code = process.wait(3600)
        seconds = time.perf_counter() - started
        lines = (work / "log").read_text("utf-8", "replace").splitlines()
        manifest = work / "out" / "manifest.json"
        ledger = json.loads(manifest.read_bytes())["ledger"] if manifest.exists() else {}
        rejected = ledger.get("rejected", {})
        problem = lines[-1] if lines else ""
        shutil.rmtree(folder)
        return Found(code, watch.pss, seconds, problem, rejected, any("Traceback" in line for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only cases whose name has a WORD")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for bytes, files and keys")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the table into this page")
    given = parser.parse_args()
    base = run(plain, 1)
    say(f"plain: exit {base.code}, {base.pss / 1e6:.0f} MB, {base.seconds:.0f} s, {base.said}")
    rows, bad = [["40 MB of chats, plain", "done", "", f"{base.pss / 1e6:.0f}", "1.00"]], []
    for name, make in CASES.items():
        if given.only and not any(word in name for word in given.only):
            continue
        found = run(make, given.scale)
        ratio = found.pss / base.pss
        with tempfile.TemporaryDirectory() as folder:
            refused = make(Path(folder), 0).refused
        good = found.code in ((1, 2, 3) if refused else (0,)) and not found.traceback and ratio <= LIMIT
        rejects = ", ".join(f"{count} `{reason}`" for reason, count in found.rejected.items())
        done = "done" if found.code == 0 else "refused in a line" if good and refused else f"exit code {found.code}"
        rows.append([name, done, rejects, f"{found.pss / 1e6:.0f}", f"{ratio:.2f}"])
        if not good:
            bad.append(name)
        say(f"{'good' if good else 'BAD '} {name}: {rows[-1][1:]} {found.seconds:.0f} s; {found.said[:300]}")
    report = f"{machine()}\n\n" + table(["input", "run", "rejects", "MB", "of plain"], rows, left=(0, 1, 2))
    print(report)
    if given.markdown is not None:
        write_markdown(given.markdown, MARKER, report)
    if bad:
        say(f"bad: {', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
