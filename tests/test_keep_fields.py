"""`output.keep_fields` and `output.provenance`: ids beside the tokens, and the way back to the line of a row;
`output.domain_key`: texts are domains; numbers and booleans are none, and said; lists and objects are rejects.
"""

import functools
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.config import FORMAT_NAMES
from beam_prep.data.schema import Column
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.inspect.output import inspect, summary
from beam_prep.inspect.row import source_lines
from tests.chars import outcomes
from tests.conftest import Command, Folders, Log, Run, prepared, run_job, text_config, write_lines
from tests.test_configs import DIGESTS, digest

HOLD = tuple(name for name in FORMAT_NAMES if name != "megatron")
ODD = ["", "a\0b", "😀é", "x" * 100_000, '"q"\\', "\u2028", "plain"]
CARRY = {"id": "string", "score": "float64", "turn": "int64"}


def config(formats: Any = "bin", keep_fields: Any = CARRY, provenance: bool = True, **preprocessing: Any) -> Any:
    output = {"columns": "labels", "storage_format": formats, "keep_fields": keep_fields, "provenance": provenance}
    rules = {"max_seq_len": 16, "min_chars": 1, **preprocessing}
    return text_config(preprocessing=rules, output={**output, "max_tokens_per_shard": 400})


def records(count: int = 120, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {"text": "word " * (1 + n % 40), "id": f"{ODD[n % len(ODD)]}{n + shift}", "score": n / 8, "turn": n * 2**40}
        for n in range(count)
    ]


SHAPES: dict[str, dict[str, Any]] = {
    "rows": {},
    "packed": {"packing_strategy": "bfd"},
    "wrapped": {"packing_strategy": "wrapped", "max_packed_len": 24},
    "packed chunks": {"packing_strategy": "bfd", "truncation_mode": "chunk"},
}
FORMATS_OF = {"rows": HOLD, "packed": tuple(name for name in HOLD if name != "mds")}
"""Of the other shapes, one."""
Outputs = Callable[[str], Path]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: Folders) -> Outputs:
    """The output of a shape, of three files of which two are equal; each is made once, and only read."""
    folder = tmp_path_factory.mktemp("outputs")
    files = [write_lines(folder / "a.jsonl", records()), write_lines(folder / "b.jsonl", records(30, 7))]
    files.append(Path(shutil.copy(files[0], folder / "c.jsonl")))

    @functools.cache
    def output(shape: str) -> Path:
        given = config([*FORMATS_OF.get(shape, ["bin"])], **SHAPES[shape])
        return Path(run_job(given, files, folder / shape).output)

    return output


def documents(out: Path) -> list[dict[str, Any]]:
    """The carried values of each document, of rows packed or not."""
    ds = bp.open(out)
    names = [column.name for column in ds.schema if column.metadata]
    found = []
    for row in ds:
        packed = any(column.role == "lengths" for column in ds.schema)
        values = zip(*(row[name] for name in names), strict=True) if packed else [tuple(row[name] for name in names)]
        found += [dict(zip(names, value, strict=True)) for value in values]
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_leads_back_to_its_line(outputs: Outputs, shape: str) -> None:
    out = outputs(shape)
    bp.open(out).verify()
    inputs = [Path(each["path"]).read_bytes() for each in bp.open(out).manifest["inputs"]]
    for each in documents(out):
        record = json.loads(inputs[int(each["file"])][int(each["offset"]) :].partition(b"\n")[0])
        assert {name: each[name] for name in CARRY} == {name: record[name] for name in CARRY}
    found = {(each["file"], each["offset"]) for each in documents(out)}
    assert len(found) == 270  # each record of each file, those of equal blocks too


@pytest.mark.parametrize("shape", FORMATS_OF)
def test_all_formats_hold_the_same_and_the_bytes_are_those_of_earlier_versions(outputs: Outputs, shape: str) -> None:
    out = outputs(shape)
    assert digest(out) == json.loads(DIGESTS.read_text())[f"carried, {shape}"]
    ds, found = bp.open(out), out / "__default__"
    count = len(ds.manifest["shards"])
    assert count > 1
    for name in FORMATS_OF[shape]:
        readers = [FORMATS[name].read(found, ds.schema, number, count) for number in range(count)]
        rows = [reader.row(index) for reader in readers for index in range(len(reader))]
        for row, wanted in zip(rows, ds, strict=True):
            texts = [bytes(np.asarray(each)).decode() for each in (row["id"] if shape == "packed" else [row["id"]])]
            assert texts == (wanted["id"] if shape == "packed" else [wanted["id"]]), name
            assert np.atleast_1d(row["turn"]).tolist() == np.atleast_1d(wanted["turn"]).tolist(), name


@pytest.mark.parametrize("shape", FORMATS_OF)
def test_readers_of_others_find_strings_and_numbers(outputs: Outputs, shape: str) -> None:
    datasets = pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = outputs(shape)
    wanted = [{name: np.asarray(row[name]).tolist() for name in (*CARRY, "file", "offset")} for row in bp.open(out)]
    found = datasets.load_from_disk(str(out / "__default__")).select_columns([*CARRY, "file", "offset"])
    assert list(found) == wanted
    table = parquet.read_table(sorted((out / "__default__").glob("*.parquet")), columns=list(wanted[0]))
    assert table.to_pylist() == wanted


def test_tensorflow_parses_strings_by_features_json(outputs: Outputs) -> None:
    tf = pytest.importorskip("tensorflow")
    out = outputs("packed")
    spec = {
        key: tf.io.RaggedFeature(tf.as_dtype(each["type"]), value_key=key, row_splits_dtype=tf.int64)
        for key, each in json.loads((out / "features.json").read_text()).items()
    }
    lines = tf.data.TFRecordDataset(sorted(map(str, (out / "__default__").glob("*.tfrecord"))))
    ds = bp.open(out)
    for line, row in zip(lines, ds, strict=True):
        found = tf.io.parse_single_example(line, spec)
        assert [each.decode() for each in found["id"].numpy()] == row["id"]
        assert found["turn"].numpy().tolist() == row["turn"].tolist()
    first = next(iter(ds.tf()))
    assert (first["id"].dtype, first["id"].shape.rank) == (tf.string, 1)


def test_a_value_that_cannot_be_carried_is_a_reject(run: Run) -> None:
    rows = [{"text": "a", "id": "x", "n": 1}, {"text": "d", "id": {}, "n": 1}, {"text": "e", "n": 2}, {"text": "f"}]
    ds = bp.open(run(config(keep_fields={"id": "string", "n": "int32"}), rows, max_reject_rate=1.0).output)
    assert [(row["id"], row["n"]) for row in ds] == [("x", 1), ("", 2)]
    assert [reject["line"] for reject in ds.rejects()] == [2, 4]
    assert ds.manifest["ledger"]["rejected"] == {"keep_fields": 2}
    assert ds.manifest["counters"]["keep_fields_missing"] == 1


TWO_SOURCES = {
    "prompts": {"sections": [{"field": "prompt", "action": "mask"}]},
    "responses": {"sections": [{"field": "responses", "action": "train"}], "list_field": True},
    "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
}


@pytest.mark.parametrize(
    ("given", "record"),
    [
        ({"rollouts": {"rewards": "rewards"}}, {"prompt_ids": [5], "response_ids": [[6, 7], [8]], "rewards": [0.5, 1]}),
        ({"sources": TWO_SOURCES}, {"prompt": "q", "responses": ["a b", "c"], "rewards": [0.5, 1]}),
    ],
    ids=["rollouts", "lists"],
)
def test_every_kind_of_input_carries_its_ids(run: Run, given: Any, record: dict[str, Any]) -> None:
    rows = [{**record, "uid": f"u{n}", "n": n} for n in range(5)]
    output = {"keep_fields": {"uid": "string", "n": "int32"}, "provenance": True, "storage_format": list(HOLD)}
    whole = {"input": given, "preprocessing": {"min_chars": 1, "truncation_mode": "drop"}, "output": output}
    ds = bp.open(run(whole, rows).output)
    ds.verify()
    assert [(row["uid"], row["n"]) for row in ds] == [(f"u{n}", n) for n in range(5)]
    assert [json.loads(source_lines(ds, index)[0].text) for index in range(5)] == rows


def test_batches_have_strings_as_lists(outputs: Outputs) -> None:
    ds = bp.open(outputs("rows"))
    for rows in ([ds[0], ds[5]], ds[[0, 5]]):
        batch = bp.collate(ds, pad_id=0)(rows)
        assert batch["id"] == [ds[0]["id"], ds[5]["id"]]
        assert batch["turn"].tolist() == [0, 5 * 2**40]
    view = ds.packed(32, seed=None)
    assert [column.depth for column in view.schema if column.metadata] == [1] * 5
    assert sorted(each for row in view for each in row["turn"].tolist()) == sorted(row["turn"] for row in ds)
    batch = bp.collate(view)([view[0], view[1]])
    assert batch["id"] == [*view[0]["id"], *view[1]["id"]]
    assert len(batch["turn"]) == len(batch["cu_seq_lens_q"]) - 1


@pytest.mark.parametrize("ending", [".jsonl.gz", ".json"])
def test_the_line_of_a_row_is_printed(run: Run, tmp_path: Path, ending: str, command: Command) -> None:
    rows = records(40)
    path = tmp_path / f"in{ending}"
    if ending == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        data = "".join(json.dumps(row) + "\r\n" for row in rows).encode()
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + data))
    ds = bp.open(run(config(), path).output)
    for index in (0, 1, 39):
        (line,) = source_lines(ds, index)
        assert json.loads(line.text)["id"] == ds[index]["id"] == rows[index]["id"]
    printed = command("inspect", ds.path, "--record", 39, "--source")
    assert f"record 39 · {path} (byte offset {ds[39]['offset']})" in printed
    assert '"turn": 42880953483264' in printed


def test_the_lines_of_all_documents_of_a_packed_row_are_found(outputs: Outputs) -> None:
    ds = bp.open(outputs("packed"))
    index = max(range(len(ds)), key=lambda number: len(ds[number]["id"]))
    lines = source_lines(ds, index)
    assert len(lines) > 1
    assert [json.loads(line.text)["id"] for line in lines] == ds[index]["id"]


def test_why_a_line_is_not_found(run: Run) -> None:
    ds = bp.open(run(config(), records(10)).output)
    path = Path(ds.manifest["inputs"][0]["path"])
    content = path.read_bytes()
    for other, says in (
        (content.replace(b"word", b"WORD"), "since the output was made: found digest"),
        (content + b"\n", r"since the output was made: found \d+ bytes"),
        (None, r"row 3 is of .*input\.jsonl \(byte offset \d+\): no such input"),
    ):
        path.unlink() if other is None else path.write_bytes(other)
        with pytest.raises(BeamPrepError, match=says):
            source_lines(ds, 3)
    with pytest.raises(BeamPrepError, match="type: --record N --source"):
        inspect(ds.path, source=True)
    with pytest.raises(BeamPrepError, match="put provenance: true into `output`"):
        source_lines(bp.open(run(config(keep_fields={}, provenance=False), records(10), "plain").output), 0)


def test_a_format_refuses_what_it_cannot_hold() -> None:
    strings = [Column("id", "uint8", 0, "string")]
    with pytest.raises(ValueError, match="the format megatron has no strings"):
        FORMATS["megatron"].writer(lambda _: io.BytesIO(), strings, 0, 1)
    with pytest.raises(ValueError, match="the format mds has no lists of strings"):
        FORMATS["mds"].writer(lambda _: io.BytesIO(), [Column("id", "uint8", 1, "string")], 0, 1)


# Domains

TEXTS = text_config(preprocessing={"min_chars": 1})
IDS: dict[str, Any] = {"input": {"adapter": "tokenized"}}
ROLLOUTS: dict[str, Any] = {"input": {"rollouts": {"response_ids": None}}, "preprocessing": {"truncation_mode": "drop"}}
PARTS: dict[str, Any] = {"text": "Good evening.", "input_ids": [5, 6, 7], "prompt_ids": [5, 6]}
VALUES = [2024, 2024.5, 10**30, True, "2024", "2024.5", "", None]
DOMAINS = [*["__default__"] * 4, "2024", "2024.5", "", "__default__"]


@pytest.mark.parametrize("config", [TEXTS, IDS, ROLLOUTS], ids=["texts", "ids", "rollouts"])
def test_a_text_is_a_domain_and_what_is_no_value_a_reject(config: dict[str, Any]) -> None:
    records = [PARTS, *({**PARTS, "d": value} for value in [*VALUES, [2024], {"year": 2024}])]
    batch = prepared({**config, "output": {"domain_key": "d"}}, records)
    assert batch.domain == ["__default__", *DOMAINS]
    assert outcomes(batch)[-2:] == ["wrong_type"] * 2
    assert next(iter(batch.ledger.messages.values())) == (
        "field 'd' is a list, wanted a text: it names the record's domain (output.domain_key)"
    )


def test_what_is_no_domain_is_said(run: Run, caplog: Log) -> None:
    records = [{**PARTS, "d": value} for value in VALUES]
    done = run({**TEXTS, "output": {"domain_key": "d"}}, records)
    assert {shard["domain"]: shard["rows"] for shard in done.manifest["shards"]} == {
        name: DOMAINS.count(name) for name in DOMAINS
    }
    assert "\n  4 domains: , 2024, 2024.5, __default__" in "\n".join(summary(done.output, done.manifest))
    assert "output.domain_key 'd' is a number or a boolean (as 2024) in 4 of 8 records: " in caplog.text


def test_a_key_that_no_record_has_is_said(run: Run, caplog: Log) -> None:
    given = {"domain_key": "meta.d", "keep_fields": ["idd", "id"]}
    run({**TEXTS, "output": given}, [{**PARTS, "id": "a", "meta": {"d": "web", "id": "a"}}] * 2)
    assert "output.domain_key 'meta.d' is in none of 2 records: they are in the domain '__default__'" in caplog.text
    assert "output.keep_fields 'idd' is in none of 2 records: the column is empty" in caplog.text
    assert "keep_fields 'id'" not in caplog.text


def test_the_domain_of_a_group_comes_before_that_of_a_record(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "Good evening.", "d": [1]}])
    group = {"files": [str(path)], "domain": "mine", **TEXTS["input"]}
    done = run({**TEXTS, "input": {"groups": [group]}, "output": {"domain_key": "d"}}, None)
    assert list(done.manifest["domains"]) == ["mine"]
