"""What README and docs say is so: code runs, configs load, fields have these defaults, links lead somewhere.

The docs as a site: every page is in it, its links are those of the site, and what is wrong with a site is found.
`make docs` builds the site itself; that needs mkdocs, which is not needed here.
"""

import argparse
import ast
import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions

import beam_prep
import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from tests.conftest import ROOT, Folders, Patch, checkout, config_of, run_job
from tools import site
from tools.config_page import PAGES as TABLES
from tools.config_page import with_tables
from tools.words import prose

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Their code runs from top to bottom: here, and (it needs torch) in tests/trainers/test_pages.py.
IN_ONE_PIECE = ("README.md", "docs/quickstart.md", "docs/readers.md", "docs/training.md")
OTHERS = [name for name in PAGES if name not in IN_ONE_PIECE]
# In front of a block: <!-- needs: torch out/chat --> names modules, and what it finds in the folder in which it runs;
# <!-- not run: why --> says that it does not run. It is checked as far as that is possible.
FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>needs|not run): (?P<said>.*?) -->\n)?"
    r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
MODULES = ("datasets", "duckdb", "grain", "h5py", "megatron", "streaming", "tensorflow", "torch")


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    needs: tuple[str, ...]
    not_run: str


@functools.cache
def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(name: str) -> Iterator[Block]:
    text = page(name)
    for match in FENCE.finditer(text):
        said = {match["mark"]: match["said"]}
        yield Block(
            name,
            text.count("\n", 0, match.start("text")),
            match["kind"],
            textwrap.dedent(match["text"]),
            tuple(said.get("needs", "").split()),
            said.get("not run", ""),
        )


def blocks(kind: str, *pages: str, run: bool = True) -> list[Any]:
    """The blocks of a kind as parameters of a test: those that run, or those that do not."""
    found = [block for name in pages for block in blocks_of(name) if block.kind == kind and run != bool(block.not_run)]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


def texts(kind: str, name: str) -> list[str]:
    return [block.values[0].text for block in blocks(kind, name)]


# README.


def test_the_code_of_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    code = "\n\n".join(texts("python", "README.md")).replace('if __name__ == "__main__":\n    main()', "main()")
    (checkout(tmp_path) / "readme.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "<|im_start|>" in done.stdout
    manifest = json.loads((tmp_path / "out/python/manifest.json").read_text())
    assert [column["name"] for column in manifest["columns"]] == ["input_ids", "labels", "seq_lens"]


def test_the_docs_are_short() -> None:
    assert len(page("README.md").splitlines()) < 250
    words = sum(len(prose(page(name)).split()) for name in PAGES if name.startswith(("README", "docs/")))
    assert words <= 32_000, "python -m tools.words"


# Tables that tools/config_page.py makes.


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_are_made_from_the_code_are_up_to_date(name: str) -> None:
    assert with_tables(page(f"docs/{name}")) == page(f"docs/{name}"), "type: python -m tools.config_page"


def test_each_format_has_a_section() -> None:
    assert {*FORMAT_NAMES} <= {*re.findall(r"^## (\w+)$", page("docs/formats.md"), re.M)}


# All pages.


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: Folders, output: Callable[[str], Any]) -> Path:
    """The outputs that code in the docs reads."""
    folder = tmp_path_factory.mktemp("docs")
    names = {"chat": "sft_conversation", "grpo": "grpo", "rollouts": "grpo_tokens", "rlvr": "rlvr"}
    for name, config in names.items():
        (folder / name).symlink_to(output(config).path)
    all_formats = config_of("sft_chat", output={"storage_format": list(FORMAT_NAMES)})
    run_job(all_formats, ROOT / "examples" / "data" / "chat.jsonl", folder / "all")
    return folder


@pytest.mark.parametrize("block", blocks("json", *PAGES))
def test_json_is_json_and_configs_load(block: Block) -> None:
    if "input" in json.loads(block.text):
        assert PipelineConfig.from_text(block.text, f"{block.page}:{block.line}").warnings == []


@pytest.mark.parametrize("block", blocks("python", *OTHERS))
def test_code_in_the_docs_runs(block: Block, tmp_path: Path, outputs: Path, monkeypatch: Patch) -> None:
    for name in block.needs:
        if name in MODULES:
            pytest.importorskip(name)
            continue
        source = outputs / name.removeprefix("out/") if name.startswith("out/") else ROOT / name
        assert source.exists(), f"<!-- needs: {name} -->"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(source, target_is_directory=True)
    for module in MODULES:
        if f"import {module}" in block.text or f"from {module}" in block.text:
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    # As many newlines in front as the block has in its page: tracebacks then show the page's lines.
    exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


@pytest.mark.parametrize("block", blocks("python", *PAGES, run=False) + blocks("yaml", *PAGES))
def test_code_that_does_not_run_is_code(block: Block) -> None:
    assert all(yaml.safe_load_all(block.text)) if block.kind == "yaml" else ast.parse(block.text)


# Commands.


@functools.cache
def options_of_beam() -> set[str]:
    importlib.import_module("beam_prep.runners")  # Flink's
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    return {name for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("block", blocks("sh", *PAGES) + blocks("sh", *PAGES, run=False))
def test_commands_in_the_docs_have_these_options(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    text = block.text.replace("\\\n", " ")
    for command, words in re.findall(r"^beam-prep (\w+)(.*?)(?:[|;&>#]|$)", text, re.M):
        known = {name for action in cli.COMMANDS[command]._actions for name in action.option_strings}
        assert set(re.findall(r" (--\w+)", words)) <= known | options_of_beam(), words


def printed_by(name: str, folder: Path, modules: tuple[str, ...] = MODULES) -> str:
    """What the commands of a page print, run in a folder that looks like the checkout."""
    checkout(folder)
    (folder / "bin").mkdir()
    programs = {"beam-prep": "-m beam_prep.cli", "python": "", "torchrun": "-m torch.distributed.run"}
    for program, arguments in programs.items():
        (folder / "bin" / program).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        (folder / "bin" / program).chmod(0o755)
    there = [each for each in modules if importlib.util.find_spec(each)]
    commands = [param.values[0] for param in blocks("sh", name)]
    script = "\n".join(block.text for block in commands if {*block.needs} <= {*there})
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(["bash", "-e"], input=script, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.replace(f"{folder}/", "")


WITH_COMMANDS = [name for name in PAGES if name != "docs/training.md" and blocks("sh", name)]


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    """Without those that need torch: see `IN_ONE_PIECE`."""
    printed = printed_by(name, tmp_path, modules=())
    if name == "docs/quickstart.md":
        for shown in texts("text", name):
            assert shown in printed


# Messages.


@functools.cache
def strings_of_the_code() -> list[str]:
    """Every text of the package, … for what is put into it."""
    found = []
    for path in (ROOT / "beam_prep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(str(part) for part in parts))
    return found


MESSAGES = re.findall(r"^\*\*(`+)(.*?)\1\*\*$", page("docs/troubleshooting.md"), re.M)


@pytest.mark.parametrize("message", [message.strip() for _, message in MESSAGES])
def test_messages_in_the_docs_are_in_the_code(message: str) -> None:
    parts = [part.strip() for part in message.split("…")]
    assert sum(map(len, parts)) >= 10, "too short to be found"
    pattern = re.compile(".*".join(map(re.escape, parts)), re.S)
    assert any(pattern.search(text) for text in strings_of_the_code())


# All pages.


@pytest.mark.parametrize("name", PAGES)
def test_lines_have_at_most_120_characters(name: str) -> None:
    """Without targets of links; tables, code, and what a benchmark wrote may be wider."""
    written = re.sub(r"^<!-- (\w+): begin -->.*?^<!-- \1: end -->|^ *```.*?^ *```", "", page(name), flags=re.M | re.S)
    lines = [re.sub(r"\]\([^)]*\)", "]", line) for line in written.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]*)\)", page(name)):
        path, _, heading = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert heading in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], target


def test_every_counter_and_key_of_a_manifest_is_in_the_docs(outputs: Path) -> None:
    told = set(re.findall(r"`(\w+)`", page("docs/formats.md")))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "beam_prep").rglob("*.py"))
    counters = set(re.findall(r"\.count\(\"(\w+)\"", code))
    assert counters >= {"truncated_rows", "double_bos"}
    assert told >= counters | beam_prep.open(outputs / "all").manifest.keys()


# The site.


def names_in(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(parts, str)
    return {name for part in parts for name in names_in(part)}  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!python\S* ", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings = yaml.safe_load(text)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert names_in(settings["nav"]) == pages
    assert settings["theme"]["font"] is False


def test_every_public_name_is_in_the_reference_once() -> None:
    told = re.findall(r"^::: beam_prep\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    told = ["open" if name == "readers.dataset.open_dataset" else name for name in told]
    assert sorted(told) == sorted([*bp.__all__, "inspect.picture.picture", "errors"])


def test_what_is_wrong_with_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"><a href="c.html"><a href="b.html#here">')
    (tmp_path / "b.html").write_text('<p id="there"><script src="https://x.y/z.js">')
    assert [each.text for each in site.problems(tmp_path)] == [
        "c.html leads nowhere",
        "b.html#here: the page has no such place",
        "loads https://x.y/z.js from another host",
    ]
