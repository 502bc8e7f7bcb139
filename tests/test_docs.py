"""What README and docs say is so: code runs, configs load, fields have these defaults, links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import beam_prep
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.formats.example import decode_example
from beam_prep.options import OPTIONS
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ("docs/config.md", "docs/formats.md", "docs/extending.md", "docs/rollouts.md")
# <!-- needs: out/demo examples --> in front of a block: what it finds in the folder in which it runs.
FENCE = re.compile(r"(?:^<!-- needs: (?P<needs>.*?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    page: str
    line: int
    text: str
    needs: tuple[str, ...]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(kind: str, *pages: str) -> list[Any]:
    found = []
    for name in pages:
        text = page(name)
        for match in FENCE.finditer(text):
            if match["kind"] == kind:
                line = text.count("\n", 0, match.start("text"))
                block = Block(name, line, match["text"], tuple((match["needs"] or "").split()))
                found.append(pytest.param(block, id=f"{name}:{line}"))
    return found


def texts(kind: str, name: str) -> list[str]:
    return [block.values[0].text for block in blocks(kind, name)]


def table_rows(name: str, first: str) -> Iterator[list[str]]:
    """Rows of the page's tables whose first column is called `first`."""
    header = ""
    for line in page(name).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        header = "" if not line.startswith("|") else header or cells[0]
        if cells and header == first != cells[0]:
            yield cells


# README.


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, to write in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_the_code_of_the_readme_runs_from_top_to_bottom(checkout: Path) -> None:
    codes = texts("python", "README.md")
    assert len(codes) >= 4
    code = "\n\n".join(text.replace('if __name__ == "__main__":\n    main()', "main()") for text in codes)
    (checkout / "readme.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "readme.py"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "<|im_start|>" in done.stdout
    assert (checkout / "out/chat/manifest.json").exists()
    manifest = json.loads((checkout / "out/python/manifest.json").read_text())
    assert manifest["totals"]["packing"]["rows"] > 0
    assert [column["name"] for column in manifest["columns"]] == ["input_ids", "labels", "seq_lens"]


def test_the_readme_names_every_config_with_its_columns() -> None:
    told, above = {}, ""
    for _, config, columns in table_rows("README.md", "Your records"):
        above = above if columns == "the same" else columns
        told[config.strip("`")] = above
    for path in sorted((ROOT / "configs").glob("*.json")):
        assert told.pop(path.name) == ", ".join(f"`{name}`" for name in PipelineConfig.from_json(path).written())
    assert told == {}


def test_the_picture_in_the_readme_is_what_inspect_prints(outputs: Path) -> None:
    from beam_prep.inspect import render

    # The page breaks the long line.
    (picture,) = re.findall(r"^```\n(━━.*?)^```$", README, re.M | re.S)
    assert " ".join(picture.split()) == " ".join(
        render(beam_prep.open(outputs / "picture"), 0, marks=True).plain.split()
    )


def test_the_commands_of_the_readme_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# docs/config.md.


def schema_fields() -> dict[str, Any]:
    """Path -> schema of every field of a config, each definition where it is met first."""
    schema = PipelineConfig.json_schema()
    found: dict[str, Any] = {}
    seen: set[str] = set()

    def below(part: dict[str, Any], path: str) -> None:
        for reference in [part, *part.get("anyOf", [])]:
            if (name := reference.get("$ref", "").rpartition("/")[2]) and name not in seen:
                seen.add(name)
                fields(schema["$defs"][name], path)
            if "items" in reference:
                below(reference["items"], f"{path}[]")
            for named in reference.get("patternProperties", {}).values():
                below(named, f"{path}.<name>")

    def fields(part: dict[str, Any], path: str) -> None:
        for name, field in part["properties"].items():
            inner = f"{path}.{name}".removeprefix(".")
            found[inner] = {**field, "required": name in part.get("required", ())}
        for name, field in part["properties"].items():
            below(field, f"{path}.{name}".removeprefix("."))

    fields(schema, "")
    return found


def test_every_config_field_is_in_the_docs_with_its_default() -> None:
    told = {path.strip("`"): default for path, _, default, _ in table_rows("docs/config.md", "path")}
    fields = schema_fields()
    assert told.keys() == fields.keys()
    for path, field in fields.items():
        if field["required"]:
            assert told[path] == "required", path
        elif "$ref" in field:
            assert told[path] == "all its defaults", path
        else:
            wanted = f"`{json.dumps(field['default'])}`" if "default" in field else "none"
            assert told[path] == wanted, path


def test_every_value_of_a_config_field_is_in_the_docs() -> None:
    told = {path.strip("`"): " ".join(rest) for path, *rest in table_rows("docs/config.md", "path")}
    everywhere = page("docs/config.md")
    for path, field in schema_fields().items():
        for part in [field, *field.get("anyOf", [])]:
            for value in part.get("enum", []):
                text = json.dumps(value) if isinstance(value, str) else "boolean"
                assert text in told[path] or f"`{value}`" in everywhere, (path, value)


def test_every_option_of_a_run_is_in_the_docs_with_its_default() -> None:
    rows = {
        name.split("`")[1].strip("-"): default.strip("`") for name, default, _ in table_rows("docs/config.md", "option")
    }
    assert rows.keys() == {option.name for option in OPTIONS}
    for option in OPTIONS:
        if option.required:
            assert rows[option.name] == "required"
        elif option.default is not None:
            assert option.parse(rows[option.name]) == option.default, option.name


def test_the_config_error_in_the_docs_is_a_real_one() -> None:
    typo = '{"input": {"sections": [{"feild": "messages", "action": "$role", "template": true}]}}'
    with pytest.raises(beam_prep.errors.ConfigError) as raised:
        PipelineConfig.from_text(typo, "typo.json")
    told = texts("text", "docs/config.md")[0]
    assert sorted(f"beam-prep: {raised.value}\n".splitlines()) == sorted(told.splitlines())


# All pages.


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Path:
    """The outputs that code in the docs reads."""
    folder = tmp_path_factory.mktemp("docs")
    jobs = {
        "picture": ("sft_conversation", "chat", ["bin"]),
        "all": ("sft_chat", "chat", list(FORMAT_NAMES)),
        "grpo": ("grpo", "rollouts", ["bin"]),
        "rollouts": ("grpo_tokens", "more/rollout_tokens", ["bin"]),
        "rlvr": ("rlvr", "more/rlvr", ["bin"]),
    }
    for name, (config, data, formats) in jobs.items():
        text = json.loads((ROOT / "configs" / f"{config}.json").read_text())
        text.setdefault("output", {})["storage_format"] = formats
        source = str(ROOT / "examples" / "data" / f"{data}.jsonl")
        job = Pipeline(PipelineConfig.from_dict(text), [source], folder / name, tokenizer_path)
        job.run(["--runner=FnApiRunner"])
    return folder


@pytest.mark.parametrize("block", blocks("json", "README.md", *DOCS))
def test_json_is_json_and_configs_load(block: Block) -> None:
    if "input" in json.loads(block.text):
        assert PipelineConfig.from_text(block.text, f"{block.page}:{block.line}").warnings == []


@pytest.mark.parametrize("block", blocks("python", *DOCS))
def test_code_in_the_docs_runs(block: Block, tmp_path: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in block.needs:
        source = outputs / name.removeprefix("out/") if name.startswith("out/") else ROOT / name
        assert source.exists(), f"<!-- needs: {name} -->"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(source, target_is_directory=True)
    for module in ("tensorflow", "datasets", "h5py", "duckdb", "grain", "megatron", "streaming"):
        if f"import {module}" in block.text or f"from {module}" in block.text:
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    # As many newlines in front as the block has in its page: tracebacks then show the page's lines.
    exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()
    _check_what_was_read(block.text, names)


def _check_what_was_read(code: str, names: dict[str, Any]) -> None:
    """Code that reads a file of ours reads what `bp.open` does."""
    if "out/all" in code and "bp.open" not in code:
        row = beam_prep.open("out/all")[0]
        if "parse_example" in code:
            batch = next(iter(names["rows"]))
            assert batch["sequence"][0].numpy().tolist() == row["sequence"].tolist()
            assert batch["loss_mask"][0].numpy().tolist() == row["loss_mask"].tolist()
        elif "memmap" in code:
            assert names["ids"].tolist() == row["sequence"].tolist()
            assert names["mask"].tolist() == row["loss_mask"].tolist()
        elif "load_from_disk" in code:
            assert names["rows"][0]["sequence"] == row["sequence"].tolist()
        elif "ArrayRecordDataSource" in code:
            (column,) = [column for column in beam_prep.open("out/all").schema if column.name == "sequence"]
            assert decode_example(names["record"], [column])["sequence"].tolist() == row["sequence"].tolist()
        elif "read_parquet" in code:
            assert names["frame"]["sequence"][0].tolist() == row["sequence"].tolist()
            assert next(iter(names["rows"]))["sequence"] == row["sequence"].tolist()
            assert names["trained"] == [(sum(row["loss_mask"].sum() for row in beam_prep.open("out/all")),)]
        else:
            assert names["row"].tolist() == row["sequence"].tolist()
    if "out/rollouts" in code:
        rows = list(beam_prep.open("out/rollouts"))
        assert [entry["completion_ids"].tolist() for entry in names["entries"]] == [
            ids.tolist() for row in rows for ids in row["response_ids"]
        ]
    if "out/rlvr" in code:
        assert (
            names["answer"]
            == json.loads((ROOT / "examples" / "data" / "more" / "rlvr.jsonl").read_text().splitlines()[-1])["answer"]
        )
    if "out/grpo" in code:
        rows = beam_prep.open("out/grpo")[0]["responses"]
        assert [each.tolist() for each in names["responses"]] == [each.tolist() for each in rows]


PAGES = [path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_lines_have_at_most_120_characters(name: str) -> None:
    """Without targets of links; tables, code, and what a benchmark wrote may be wider."""
    written = re.sub(r"^<!-- (\w+): begin -->.*?^<!-- \1: end -->|^ *```.*?^ *```", "", page(name), flags=re.M | re.S)
    lines = [re.sub(r"\]\([^)]*\)", "]", line) for line in written.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]*)\)", page(name)):
        path, _, heading = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert heading in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], target


@pytest.mark.parametrize("name", sorted(name for name in PAGES if re.match("docs/(decisions/|adding)", name)))
def test_the_files_that_these_pages_name_are_there(name: str) -> None:
    text = re.sub(r"^```.*?^```$|<!-- house: begin -->.*?<!-- house: end -->", "", page(name), flags=re.M | re.S)
    for path in re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", text):
        places = (ROOT / "beam_prep" / path, ROOT / path, *(ROOT / "beam_prep").rglob(path))
        assert any(place.exists() for place in places) or path == "make_corpus.py", path


def test_every_reject_reason_is_in_the_docs() -> None:
    told = set(re.findall(r"`(\w+)`", page("docs/formats.md")))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "beam_prep").rglob("*.py"))
    code = re.sub(r"^ *>>>.*", "", code, flags=re.M)
    reasons = set(re.findall(r"\bReject\(\s*\"(\w+)\"", code))
    reasons |= set(re.findall(r"\.(?:reject|drop)\([^\"()]*(?:\([^()]*\))?[^\"()]*\"(\w+)\"", code))
    assert reasons >= {"bad_json", "wrong_type", "missing_source", "untrained", "empty", "too_short_to_shift"}
    assert reasons <= told


def test_every_counter_is_in_the_docs() -> None:
    told = set(re.findall(r"`(\w+)`", page("docs/formats.md")))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "beam_prep" / "core").rglob("*.py"))
    counters = set(re.findall(r"\.count\(\"(\w+)\"", code))
    assert counters >= {"truncated_rows", "double_bos"}
    assert counters <= told


def test_every_key_of_a_manifest_is_in_the_docs(outputs: Path) -> None:
    told = {key.strip("`") for key, _ in table_rows("docs/formats.md", "key")}
    assert told == beam_prep.open(outputs / "all").manifest.keys()


def test_the_licence_is_apache_2() -> None:
    text = page("LICENSE")
    assert text.lstrip().startswith("Apache License")
    assert "APPENDIX: How to apply the Apache License to your work." in text
    assert 'license = "Apache-2.0"' in page("pyproject.toml")
