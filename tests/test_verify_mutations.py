"""`beam-prep verify` finds what is wrong in an output whose digests all match: one change each, listed again.

Every config of `configs/`, in every format. A change of rows is written by the format's own writer, and the manifest
gets the new sizes, digests, and counts, so that only the rows themselves can tell.
"""

import functools
import itertools
import json
import operator
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import count_tokens, output_columns, receipts_of, sum_shards
from beam_prep.pipeline import Pipeline
from beam_prep.verify.files import LocalFiles
from beam_prep.verify.output import problems
from beam_prep.verify.shard import parts_of
from tests.conftest import ROOT
from tests.test_configs import CONFIGS, sample
from tests.test_verify import list_again, listed, manifest_of, write

pytestmark = pytest.mark.long

LINES = 30
TOKENIZER = ROOT / "examples" / "tokenizer"
Rows = dict[str, Ragged]


@dataclass(frozen=True, slots=True)
class Case:
    """An output that is sound."""

    name: str
    folder: Path
    columns: tuple[Column, ...]

    def of(self, *roles: str) -> list[Column]:
        return [column for column in self.columns if column.role in roles]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, kind = request.param
    folder = tmp_path_factory.mktemp(f"{name}-{kind}")
    config = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    config["output"] = config.get("output", {}) | {"storage_format": kind}
    template = config["input"].get("chat_template")
    if template is not None:
        config["input"]["chat_template"] = (ROOT / "configs" / template).read_text()
    lines = sample(name).read_bytes().splitlines(keepends=True)[:LINES]
    (folder / "in.jsonl").write_bytes(b"".join(lines[:2]) + b"{\n[]\n" + b"".join(lines[2:]))
    job = Pipeline(
        PipelineConfig.from_dict(config),
        str(folder / "in.jsonl"),
        output_dir=folder / "out",
        tokenizer_path=TOKENIZER,
        max_reject_rate=0.9,
        max_no_loss_rate=0.9,
    )
    job.run(["--runner=FnApiRunner"])
    return Case(name, folder / "out", output_columns(manifest_of(folder / "out")))


def found_in(output: Path) -> list[str]:
    try:
        return list(problems(LocalFiles(output), manifest_of(output)))
    except FormatError as error:
        return [str(error)]


def rows_of(output: Path, kind: str, columns: tuple[Column, ...]) -> Rows:
    """The rows of the only shard, as copies."""
    reader = FORMATS[kind].read(output / "__default__", columns, 0, 1)
    (part,) = parts_of(reader, columns)
    return {name: rows.with_flat(np.array(rows.flat)) for name, rows in part.items()}


def rewrite(output: Path, columns: tuple[Column, ...], rows: Rows) -> None:
    """Puts other rows into the only shard, in every format, and makes the manifest fit."""
    manifest = manifest_of(output)
    for kind in manifest["formats"]:

        def opened(name: str) -> Any:
            return (output / "__default__" / name).open("wb")

        writer = FORMATS[kind].writer(opened, columns, 0, 1)
        writer.write(rows)
        writer.close()
    shard = manifest["shards"][0]
    shard.update(rows=len(next(iter(rows.values()))), **count_tokens(columns, rows))
    if shard["packing"] is not None:
        shard["packing"].update(packs=shard["rows"], tokens=next(iter(shard["tokens"].values())))
    manifest["totals"] = json.loads(json.dumps(sum_shards(receipts_of(manifest))))
    write(output, manifest)
    list_again(output)


def cut(rows: Ragged, row: int = 0) -> Ragged:
    """Without the last value of a row."""
    end = int((rows.values.offsets[rows.offsets] if isinstance(rows.values, Ragged) else rows.offsets)[row + 1])
    flat = np.delete(rows.flat, end - 1)
    if not isinstance(rows.values, Ragged):
        return Ragged(flat, rows.offsets - (np.arange(len(rows.offsets)) > row))
    inner = rows.values.lengths.copy()
    inner[int(rows.offsets[row + 1]) - 1] -= 1
    return Ragged(Ragged.from_lengths(flat, inner), rows.offsets)


# Changes of rows: (case, rows) -> (what was changed, the rows that are to be written).


def row_changes(case: Case, rows: Rows) -> Iterator[tuple[str, Rows]]:
    def put(name: str, place: int, value: Any) -> Rows:
        flat = rows[name].flat.copy()
        flat[place] = value
        return {**rows, name: rows[name].with_flat(flat)}

    for column in case.of("ids"):
        yield f"an id beyond the vocabulary in {column.name}", put(column.name, 3, 4096)
        yield f"an id below 0 in {column.name}", put(column.name, -1, -1)
    for column in case.of("mask", "attention"):
        if column.dtype != "bool":
            yield f"a 2 in {column.name}", put(column.name, 5, 2)
            yield f"a -1 in {column.name}", put(column.name, 5, -1)
    for column in case.of("mask", "labels", "attention", "position", "token_value"):
        yield f"a shorter row of {column.name}", {**rows, column.name: cut(rows[column.name])}
    for column in case.of("mask", "labels"):
        nothing = 0 if column.role == "mask" else IGNORE_INDEX
        if np.any(rows[column.name].flat != nothing):
            flat = rows[column.name].flat.copy()
            first = rows[column.name][0]
            flat[: len(first.flat if isinstance(first, Ragged) else first)] = nothing
            yield f"nothing trained of row 0 in {column.name}", {**rows, column.name: rows[column.name].with_flat(flat)}
    for column in case.of("labels"):
        labels = rows[column.name].flat
        trained = int(np.flatnonzero(labels != IGNORE_INDEX)[0])
        yield "another label", put(column.name, trained, labels[trained] % 4000 + 1)
        yield "a label that is none and no id", put(column.name, trained, -7)
        yield "a label beyond the vocabulary", put(column.name, trained, 4096)
    for column in case.of("lengths"):
        flat, lengths = rows[column.name].flat, rows[column.name].lengths
        yield "a document too long", put(column.name, 0, flat[0] + 1)
        yield (
            "a border at another place",
            {
                **rows,
                column.name: rows[column.name].with_flat(np.concatenate([flat[:1] + 1, flat[1:2] - 1, flat[2:]])),
            },
        )
        lengths[0] += 1
        yield (
            "a document of no tokens",
            {
                **rows,
                column.name: Ragged.from_lengths(np.concatenate([np.zeros(1, flat.dtype), flat]), lengths),
            },
        )
    for column in case.of("position"):
        yield "a position at the wrong place", put(column.name, 7, 5)
        yield "positions that are all 0", {**rows, column.name: rows[column.name].with_flat(rows[column.name].flat * 0)}
    for column in case.of("attention"):
        (ids,) = case.of("ids")
        real = int(rows[column.name][0].sum())  # type: ignore[union-attr]
        yield "attention to a hole", put(column.name, real // 2, 0)
        yield "another id as padding", put(ids.name, real, 5)
        yield "loss at padding", put("labels", real, rows[ids.name].flat[real])
        yield "a row that is not padded", {name: cut(values) for name, values in rows.items()}
    lists = [column for column in case.of("ids", "mask") if column.depth == 2]
    if lists:
        less = {column.name: Ragged(rows[column.name].values, rows[column.name].offsets) for column in lists}
        for name, values in less.items():
            offsets = values.offsets.copy()
            offsets[1] -= 1  # the last list of row 0 goes to row 1
            less[name] = Ragged(values.values, offsets)
        yield "a list in the row after its own", {**rows, **less}
        yield "lists with other borders than their ids", {**rows, lists[1].name: less[lists[1].name]}
    for column in case.of("value", "token_value"):
        if column.dtype.startswith("float"):
            yield f"a value that is no number in {column.name}", put(column.name, 1, np.nan)
    for column in case.of("text"):
        yield f"bytes that are no text in {column.name}", put(column.name, 0, 0xFF)
    yield "a row less", {name: values[1:] for name, values in rows.items()}


def cases(names: Iterable[str], kinds: Iterable[str]) -> pytest.MarkDecorator:
    """Runs a test with each config in each format."""
    pairs = list(itertools.product(names, kinds))
    return pytest.mark.parametrize("case", pairs, indirect=True, ids="-".join, scope="module")


@cases(CONFIGS, FORMAT_NAMES)
def test_an_impossible_row_is_found(case: Case, tmp_path: Path) -> None:
    assert found_in(case.folder) == []
    manifest = manifest_of(case.folder)
    rows = rows_of(case.folder, manifest["formats"][0], case.columns)
    missed = []
    for number, (what, changed) in enumerate(row_changes(case, rows)):
        output = tmp_path / str(number)
        shutil.copytree(case.folder, output)
        rewrite(output, case.columns, changed)
        if not found_in(output):
            missed.append(what)
        shutil.rmtree(output)
    assert missed == []
    output = tmp_path / "same"
    shutil.copytree(case.folder, output)
    rewrite(output, case.columns, rows)  # so that a change, and not the writing, is what is found
    assert found_in(output) == []


# Changes of the manifest, and of the files that describe.


def at(*place: Any) -> Callable[[dict[str, Any]], Any]:
    """Puts the last of the arguments at the place that the others name."""
    *above, key, value = place
    return lambda manifest: functools.reduce(operator.getitem, above, manifest).__setitem__(key, value)


def manifest_changes(manifest: dict[str, Any]) -> Iterator[tuple[str, Callable[[dict[str, Any]], Any]]]:
    kept = manifest["ledger"]["kept"]
    for key in ("lines", "blank", "read", "kept", "not_read"):
        yield f"ledger: {key}", at("ledger", key, manifest["ledger"][key] + 1)
    yield "a reject less", lambda m: m["ledger"]["rejected"].update(bad_json=0)
    yield "a drop that was none", lambda m: m["ledger"]["dropped"].update(empty=-1, too_long=1)
    yield "totals: rows", lambda m: m["totals"].update(rows=kept + 1)
    for kind in ("tokens", "trained"):
        for column in manifest["totals"][kind]:
            yield f"totals: {kind}", at("totals", kind, column, 1)
            yield f"shard: {kind}", at("shards", 0, kind, column, 1)
    yield "totals of something else", lambda m: m["totals"].update(characters=1)
    yield "more cut rows than kept ones", lambda m: m["counters"].update(truncated_rows=kept + 1, truncated_tokens=999)
    yield "more cut rows than long ones", lambda m: m["counters"].update(truncated_rows=kept, truncated_tokens=999)
    yield "cut rows without cut tokens", lambda m: m["counters"].update(truncated_rows=1, truncated_tokens=0)
    yield "an EOS cut from no row", lambda m: m["counters"].update(truncated_eos=3, truncated_rows=0)
    yield "tokens cut to no pack", lambda m: m["counters"].update(truncated_to_pack=3, truncated_tokens=3)
    yield "a counter below 0", lambda m: m["counters"].update(double_bos=-1)
    for role in [role for role, counts in manifest.get("roles", {}).items() if counts["trained"]]:
        yield f"more trained than tokens of {role}", at("roles", role, "tokens", 0)
        yield f"too many tokens of {role}", at("roles", role, "tokens", 10**9)
    for count in manifest["shards"][0]["packing"] or ():

        def packed(m: dict[str, Any], count: str = count) -> None:
            m["shards"][0]["packing"][count] += 1
            m["totals"] = json.loads(json.dumps(sum_shards(receipts_of(m))))

        yield f"packing: {count}", packed
    yield "another fingerprint", lambda m: m["tokenizer"].update(fingerprint="0" * 64)
    yield "another special token", lambda m: m["tokenizer"]["special_tokens"].update(eos_token="<|im_start|>")
    yield "a special token less", lambda m: m["tokenizer"]["special_tokens"].popitem()
    yield "input: size", lambda m: m["inputs"][0].update(size=-1)
    yield "input: size of another type", lambda m: m["inputs"][0].update(size="7")
    yield "input: an empty file with another digest", lambda m: m["inputs"][0].update(size=0)
    yield "input: digest", lambda m: m["inputs"][0].update(digest="00")
    yield "input: twice", lambda m: m["inputs"].append(m["inputs"][0])
    yield "input: another file than that of the rejects", lambda m: m["inputs"][0].update(path="other.jsonl")
    yield "a file twice", lambda m: m["files"].append(m["files"][0])
    yield "another dtype", lambda m: m["config"]["output"]["dtype"].update({"sequence": "int64"})
    yield "another name of a column", lambda m: m["columns"][0].update(name="other")
    yield "another order of columns", lambda m: m["columns"].reverse() if len(m["columns"]) > 1 else m.clear()
    yield "another format", lambda m: m["config"]["output"].update(storage_format=["bin", "h5"])
    yield "another limit", lambda m: m["config"]["preprocessing"].update(max_items=1)
    yield "a shorter limit of rows", lambda m: m["config"]["preprocessing"].update(max_seq_len=3, max_packed_len=3)
    yield "a text of a reject too long", lambda m: m["options"].update(max_reject_chars=0)
    yield "another folder", lambda m: m["domains"].update(__default__="elsewhere")
    yield "a domain without shards", lambda m: m["domains"].update(more="more")
    if any(column["role"] == "labels" for column in manifest["columns"]):
        yield (
            "labels shifted or not",
            lambda m: m["config"]["preprocessing"].update(shift=not m["columns"][1]["shifted"]),
        )
        yield "labels that are shifted, or not", shift_all
    if manifest["config"]["preprocessing"]["packing_strategy"] != "none":
        yield "another capacity", lambda m: m["config"]["preprocessing"].update(max_packed_len=1024)
        yield "another mode of positions", lambda m: m["config"]["output"].update(position_ids_mode="continuous")
        yield "another strategy", lambda m: m["config"]["preprocessing"].update(packing_strategy="wrapped")
    if manifest["config"]["preprocessing"]["padding"] != "none":
        yield "another padding", lambda m: m["config"]["preprocessing"].update(padding=999)


def shift_all(manifest: dict[str, Any]) -> None:
    shifted = not manifest["config"]["preprocessing"]["shift"]
    manifest["config"]["preprocessing"]["shift"] = shifted
    for column in manifest["columns"]:
        column["shifted"] = shifted and column["role"] == "labels"


KNOWN_TO_BE_MISSED = {("sft_packed", "another strategy")}
"""Rows of `wrapped` may look like those of `bfd`."""


@cases(CONFIGS, ["bin"])
def test_a_manifest_that_says_something_else_is_found(case: Case, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(case.folder, output)
    text = (output / "manifest.json").read_bytes()
    missed = []
    for what, change in manifest_changes(json.loads(text)):
        manifest = json.loads(text)
        change(manifest)
        write(output, manifest)
        if manifest != json.loads(text) and not found_in(output):
            missed.append(what)
    assert [what for what in missed if (case.name, what) not in KNOWN_TO_BE_MISSED] == []


def file_changes(output: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    tokenizer = output / "tokenizer"

    def edit(path: Path, old: str, new: str) -> Callable[[], Any]:
        assert old in path.read_text(), path
        return lambda: path.write_text(path.read_text().replace(old, new, 1))

    yield "another template", edit(tokenizer / "chat_template.jinja", "content", "Content")
    yield "no template", (tokenizer / "chat_template.jinja").unlink
    yield "another token", edit(tokenizer / "tokenizer.json", '"id": 0,', '"id": 1,')
    yield (
        "another special token for transformers",
        edit(tokenizer / "tokenizer_config.json", "<|im_end|>", "<|im_start|>"),
    )
    yield "another largest id", edit(tokenizer / "beam_prep.json", '"max_id": ', '"max_id": 1')
    yield (
        "another fingerprint in the tokenizer",
        edit(tokenizer / "beam_prep.json", '"fingerprint": "', '"fingerprint": "0'),
    )
    yield "no tokenizer", lambda: shutil.rmtree(tokenizer)
    yield "a file more of the tokenizer", lambda: (tokenizer / "special_tokens_map.json").write_text("{}")
    features, state = output / "features.json", output / "__default__" / "state.json"
    if features.exists():
        yield "another type of a feature", edit(features, '"dtype": "int32"', '"dtype": "int64"')
    if state.exists():
        yield (
            "a shard less for datasets",
            lambda: state.write_text(json.dumps(json.loads(state.read_text()) | {"_data_files": []})),
        )
        yield "other features for datasets", edit(state.with_name("dataset_info.json"), "int32", "int64")
        yield "another split", lambda: (output / "dataset_dict.json").write_text('{"splits": ["other"]}')
    rejects = output / "rejects" / "rejects-00000.jsonl"
    lines = rejects.read_text().splitlines(keepends=True)
    yield "rejects in another order", lambda: rejects.write_text("".join(reversed(lines)))
    yield "a reject twice", lambda: rejects.write_text(lines[0] * 2)
    yield "a reject of another file", edit(rejects, "in.jsonl", "on.jsonl")
    yield "a reject below the file", edit(rejects, '"line": ', '"line": -')
    yield "a reject without its place", edit(rejects, '"offset"', '"place"')


def list_what_is_there(output: Path) -> None:
    """Lists files that came, and no more those that went; then signs."""
    manifest = manifest_of(output)
    manifest["files"] = [file for file in manifest["files"] if (output / file["path"]).exists()]
    names = {file["path"] for file in listed(manifest)} | {"manifest.json", "run.json", "report.html"}
    for path in sorted(output.rglob("*")):
        if path.is_file() and (name := path.relative_to(output).as_posix()) not in names:
            manifest["files"].append({"path": name, "bytes": 0, "sha256": ""})
    write(output, manifest)
    list_again(output)


@cases(["sft_chat"], FORMAT_NAMES)
def test_a_file_that_says_something_else_is_found(case: Case, tmp_path: Path) -> None:
    number = 0
    missed = []
    while True:
        output = tmp_path / str(number)
        shutil.copytree(case.folder, output)
        changes = list(file_changes(output))
        if number == len(changes):
            break
        what, change = changes[number]
        change()
        list_what_is_there(output)
        if not found_in(output):
            missed.append(what)
        number += 1
    assert missed == []


# What one format alone cannot tell.


def test_rows_in_another_order_are_found_where_there_is_another_format(tmp_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "grpo.json").read_text())
    config["output"] = {"storage_format": list(FORMAT_NAMES), "dtype": {"rewards": "float64"}}
    output = tmp_path / "out"
    Pipeline(PipelineConfig.from_dict(config), str(sample("grpo")), output, TOKENIZER).run(["--runner=FnApiRunner"])
    assert found_in(output) == []
    columns = output_columns(manifest_of(output))
    for kind in FORMAT_NAMES:
        changed = tmp_path / kind
        shutil.copytree(output, changed)
        rows = rows_of(changed, kind, columns)
        order: Array = np.arange(len(rows["prompts"]))
        order[[3, 4]] = [4, 3]
        for other in FORMAT_NAMES:
            if other == kind:
                manifest = manifest_of(changed)
                write(changed, manifest | {"formats": [kind]})
                rewrite(changed, columns, {name: values.take(order) for name, values in rows.items()})
                write(changed, manifest_of(changed) | {"formats": list(FORMAT_NAMES)})
        found = found_in(changed)
        assert found
        assert all("another order of rows, than in" in problem for problem in found)


def test_a_bool_that_is_neither_0_nor_1_is_found(tmp_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "sft_chat.json").read_text())
    output = tmp_path / "out"
    Pipeline(PipelineConfig.from_dict(config), str(sample("sft_chat")), output, TOKENIZER).run(["--runner=FnApiRunner"])
    path = output / "__default__" / "loss_mask.bin"
    data = bytearray(path.read_bytes())
    data[data.index(1)] = 2
    path.write_bytes(data)
    list_again(output)
    assert found_in(output) == ["__default__: shard 0 (bin): row 0 of 'loss_mask' holds 2, wanted 0 or 1"]
