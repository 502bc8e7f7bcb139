"""Features that meet: evaluation data, fields that are kept as metadata, places of rows, and every kind of source."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import beam_prep as bp
from beam_prep.errors import BeamPrepError
from beam_prep.inspect.output import inspect
from beam_prep.readers.source import InputLines, source_lines
from tests.conftest import ROOT
from tests.test_sources import write

TOKENIZER = str(ROOT / "examples" / "tokenizer")
LEAK = "the answer that stands in the evaluation, word by word"
ROWS: list[dict[str, Any]] = [
    {
        "text": "word " * (1 + n % 30) + (LEAK if n % 11 == 0 else ""),
        "id": None if n % 5 == 0 else f"é{n}",
        "score": n / 8,
        "turn": n * 2**40,
        "about": {"from": [n, n + 1], "note": None if n % 2 else "x"},
    }
    for n in range(200)
]


def in_lines(folder: Path) -> str:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def compressed(folder: Path) -> str:
    path = folder / "in.jsonl.gz"
    path.write_bytes(gzip.compress(Path(in_lines(folder)).read_bytes()))
    return str(path)


KINDS: dict[str, Callable[[Path], str]] = {
    "jsonl": in_lines,
    "gz": compressed,
    "parquet": lambda folder: write(ROWS, folder / "in", group=70),
    "arrow": lambda folder: write(ROWS, folder / "in", "arrow", 33),
    "folder": lambda folder: write(ROWS, folder / "saved", "folder"),
}


def config(evaluation: Path, mode: str, **preprocessing: Any) -> dict[str, Any]:
    return {
        "input": {"sections": [{"field": "text", "action": "train"}]},
        "preprocessing": {
            "max_seq_len": 16,
            "min_chars": 1,
            "decontaminate": {"against": str(evaluation), "field": "answer", "ngram": 6, "mode": mode},
            **preprocessing,
        },
        "output": {
            "columns": "labels",
            "storage_format": ["bin", "arrow"],
            "keep_fields": {"id": "string", "score": "float64", "turn": "int64"},
            "provenance": True,
            "max_tokens_per_shard": 400,
        },
    }


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    path = tmp_path / "eval.parquet"
    pq.write_table(pa.Table.from_pylist([{"answer": "Another."}, {"answer": LEAK.upper()}]), path)
    return path


def made(given: dict[str, Any], source: str, output: Path, **options: Any) -> bp.Dataset:
    bp.Pipeline(bp.PipelineConfig.from_dict(given), [source], str(output), TOKENIZER, **options).run()
    return bp.open(output)


def values(dataset: bp.Dataset) -> list[dict[str, Any]]:
    """The rows, without what says where they are in their files."""
    names = [column.name for column in dataset.schema if column.role not in ("file", "offset")]
    return [{name: np.asarray(row[name]).tolist() for name in names} for row in dataset]


@pytest.mark.long
def test_every_kind_of_file_gives_the_same_rows_and_the_way_back(tmp_path: Path, evaluation: Path) -> None:
    given = config(evaluation, "drop", packing_strategy="bfd_split")
    wanted, listed = None, [(n + 1, "contaminated") for n in range(0, 200, 11)]
    for kind, write_as in KINDS.items():
        dataset = made(given, write_as(tmp_path), tmp_path / f"out {kind}", block_bytes=65536)
        dataset.verify()
        wanted = wanted or values(dataset)
        assert values(dataset) == wanted, kind
        found = list(dataset.drops())
        assert [each["note"] for each in found] == [
            f"shares 'the answer that stands in the' with {evaluation}, row 2" for _ in listed
        ]
        if kind != "folder":  # each of its files has a line 1
            assert [(each["line"], each["reason"]) for each in found] == listed
        for index in range(0, len(dataset), 9):
            ids = np.atleast_1d(dataset[index]["turn"]).tolist()
            assert [json.loads(line.text)["turn"] for line in source_lines(dataset, index)] == ids, kind


def test_inspect_prints_the_row_of_a_table_that_is_as_it_was(
    tmp_path: Path, evaluation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = made(config(evaluation, "mark"), write(ROWS, tmp_path / "in"), tmp_path / "out")
    inspect(dataset.path, record=99, source=True)
    head, line = capsys.readouterr().out.strip().splitlines()
    assert head.endswith(f"record 99 · {tmp_path / 'in.parquet'} (row 100)")
    assert json.loads(line) == {"text": ROWS[99]["text"], "id": "é99", "score": 99 / 8, "turn": 99 * 2**40} | {
        "about": {"from": [99, 100]}
    }
    write(ROWS[:50], tmp_path / "in")
    with pytest.raises(BeamPrepError, match=r"row 99 is of .*in\.parquet \(row 100\): the file has \d+ bytes"):
        source_lines(dataset, 99)
    place = {"file": str(tmp_path / "in.parquet"), "offset": 99}
    assert InputLines(dataset.manifest["inputs"]).at(place).startswith("(its line cannot be read: the file has ")


def of_records(rows: list[dict[str, Any]], evaluation: Path, output: Path) -> bp.Dataset:
    """A chain by hand over a collection."""
    given = bp.PipelineConfig.from_dict(config(evaluation, "mark"))
    tokenizer = bp.Tokenizer.load(TOKENIZER)
    with beam.Pipeline("FnApiRunner") as pipeline:
        (
            pipeline
            | beam.Create(rows)
            | bp.FromRecords(buckets=16, block_bytes=1000)
            | bp.Prepare(given, tokenizer)
            | bp.Shard(str(output), 400, ["bin"], pack=bp.Layout(provenance=True), tokenizer=tokenizer)
        )
    return bp.open(output)


def test_a_collection_is_marked_and_carried(tmp_path: Path, evaluation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = of_records(ROWS, evaluation, tmp_path / "out")
    dataset.verify()
    found = sorted((row["turn"], row["id"], row["score"]) for row in dataset)
    assert found == [(row["turn"], row["id"] or "", row["score"]) for row in ROWS]
    marked = {each["offset"] for each in dataset.marked()}
    assert {row["turn"] >> 40 for row in dataset if row["offset"] in marked} == set(range(0, 200, 11))
    # Why no record is printed.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").write_text("another file of this name")
    message = r"row 1 is of records \(byte offset \d+\): 'records' is the name of what FromRecords was given"
    with pytest.raises(BeamPrepError, match=message + r".* Carry a field .* \(bp\.KeepFields\)"):
        inspect(dataset.path, record=1, source=True)
