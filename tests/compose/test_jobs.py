"""Whole jobs: shuffle, splits, deduplication and mix together, with the same bytes whatever the blocks."""

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_prep import recipe
from beam_prep.shards.compose import RunSizes
from tests.compose.naive import NO_KEY, Job, Naive, Row, key_digest, split_digest
from tests.conftest import Patch, run_job, run_of, tree

Record = dict[str, Any]
SMALL = RunSizes(run=500, bin=150, runs=4, batches=40)
"""Of which the jobs below have several runs, and two levels."""
SPLITS = {"train": 0.7, "validation": 0.2, "test": 0.1}


def records(count: int, seed: int = 0, filler: int = 0) -> list[Record]:
    """Records that are tokenised, with copies; `filler`: characters that make blocks of them."""
    source = random.Random(seed)
    found = []
    for number in range(count):
        text = f"text {source.randint(0, count)}"
        ids = [5 + number % 3000] * source.randint(1, 12)
        labels = [token if source.random() < 0.7 else -100 for token in ids[1:]] + ids[:1]
        user = None if source.random() < 0.1 else f"u{source.randint(0, 60)}"
        domain = source.choice(["web", "web", "train", "数学", "a/b"])
        found.append(
            {"id": number, "text": text, "user": user, "domain": domain, "input_ids": ids, "labels": labels}
            | ({"filler": "x" * filler} if filler else {})
        )
    return found


def write(path: Path, rows: Sequence[Record]) -> Path:
    """Writes records."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return path


def config(output: Record, preprocessing: Record | None = None, **more: Any) -> Record:
    """Of records that are tokenised."""
    base: Record = {"domain_key": "domain", "keep_fields": {"id": "int64"}, "columns": "labels"}
    base |= {"storage_format": ["parquet"], "max_tokens_per_shard": 900}
    step = {"max_seq_len": 64, **(preprocessing or {})}
    return {"input": {"adapter": "tokenized"}, "output": {**base, **output}, "preprocessing": step, **more}


def run(given: Record, files: Sequence[Path], output: Path, **rest: Any) -> Record:
    """Runs a job in this process. Returns its manifest."""
    limits = {"max_reject_rate": 1.0, "max_no_loss_rate": 1.0}
    return dict(run_job(given, [*map(str, files)], output, **limits, **rest).manifest)


@pytest.fixture
def small(monkeypatch: Patch) -> None:
    """Runs and bins are small."""
    made = recipe.compose
    monkeypatch.setattr(recipe, "compose", lambda *given: replace(made(*given), sizes=SMALL))


def ids(output: Path, manifest: Record) -> dict[tuple[str | None, str], list[list[int]]]:
    """Of each part, the ids of the rows of each shard, out of its Parquet files."""
    found: dict[tuple[str | None, str], list[list[int]]] = {}
    for each in manifest["shards"]:
        (file,) = [file["path"] for file in each["files"] if file["path"].endswith(".parquet")]
        part = found.setdefault((each.get("split"), each["domain"]), [])
        assert each["shard"] == len(part)
        part.append(pq.read_table(output / file)["id"].to_pylist())
    return found


def naive_of(given: Record, files: Sequence[Path]) -> Naive:
    """What a sequential program makes of a config and files."""
    output, rules = given["output"], given["preprocessing"]
    by, key, domain = rules.get("deduplicate", {}).get("by", []), output.get("split_key"), output.get("domain_key")
    missing = output.get("split_missing", "reject")

    def row(found: Record) -> Row:
        value = None if key is None else found.get(key)
        digest = split_digest(found) if key is None else NO_KEY if value is None else key_digest(value)
        same = json.dumps([found.get(name) for name in by], sort_keys=True)
        name = "__default__" if domain is None else found[domain]
        return Row(found["id"], name, len(found["input_ids"]), digest, same)

    job = Job(
        output["max_tokens_per_shard"],
        (output.get("shuffle") or {}).get("seed"),
        output.get("splits"),
        output.get("split_seed", 0),
        None if missing == "reject" else missing,
        output.get("mix", {}),
        "deduplicate" in rules,
        rules.get("max_items"),
    )
    return Naive([[row(each) for each in lines_of(path)] for path in files], job)


EVERYTHING = config(
    {
        "shuffle": {"seed": 17},
        "splits": SPLITS,
        "split_key": "user",
        "split_missing": "test",
        "split_seed": 5,
        "mix": {"web": {"tokens": 700}, "train": {"epochs": 2.5}, "数学": {"share": 0.1}},
        "provenance": True,
    },
    {"deduplicate": {"by": ["text"]}, "max_items": 700},
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, one of them compressed, of more than one block each."""
    made = records(900, filler=300)
    parts = {"a.jsonl": made[:310], "b.jsonl.gz": made[310:600], "c.jsonl": made[600:]}
    return [write(tmp_path / name, part) for name, part in parts.items()]


def lines_of(path: Path) -> list[Record]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def test_a_job_writes_what_a_sequential_program_would(files: list[Path], tmp_path: Path, small: None) -> None:
    cache_dir = str(tmp_path / "token_cache")
    manifest = run(EVERYTHING, files, tmp_path / "one", cache_dir=cache_dir)
    naive = naive_of(EVERYTHING, files)
    assert ids(tmp_path / "one", manifest) == naive.shards
    assert run(EVERYTHING, files, tmp_path / "many", block_bytes=65536) == manifest
    assert tree(tmp_path / "many") == tree(tmp_path / "one")
    ledger = manifest["ledger"]
    assert ledger["dropped"]["duplicate"] > 100
    assert ledger["lines"] == ledger["blank"] + ledger["read"] + ledger["not_read"]
    assert {name: each["wanted_tokens"] for name, each in manifest["mix"].items()} == naive.wanted
    for name, each in manifest["mix"].items():
        written = [id_ for shard in naive.shards.get(("train", name), []) for id_ in shard]
        assert (each["rows"], each["records"]) == (len(written), len({*written}))
    assert ledger["kept"] + manifest["repeated"] == manifest["totals"]["rows"]
    # Another seed, share or mix makes no block again.
    other = json.loads(json.dumps(EVERYTHING))
    other["output"] |= {"shuffle": {"seed": 18}, "splits": {"train": 0.5, "test": 0.5}, "split_seed": 6}
    other["output"] |= {"mix": {"web": {"tokens": 300}}, "max_tokens_per_shard": 2000}
    manifest = run(other, files, tmp_path / "one", cache_dir=cache_dir, overwrite=True)
    told = run_of(tmp_path / "one")
    assert (told["blocks"], told["blocks_reused"]) == (3, 3)
    assert ids(tmp_path / "one", manifest) == naive_of(other, files).shards


def test_an_output_that_is_made_again_has_no_shard_of_another_shuffle(tmp_path: Path) -> None:
    """Shards with the same key are linked: it must tell all apart that decides about rows."""
    made = records(200)
    cache_dir, output = str(tmp_path / "token_cache"), tmp_path / "out"
    whole = config({"shuffle": {"seed": 1}, "domain_key": None})
    one, two = write(tmp_path / "1.jsonl", made[:100]), write(tmp_path / "2.jsonl", made[100:])
    told = []
    for files, tokens in (([one, two], 10**6), ([one, two], 500), ([two, one], 500)):
        whole["output"]["max_tokens_per_shard"] = tokens
        manifest = run(whole, files, output, cache_dir=cache_dir, overwrite=True)
        assert ids(output, manifest) == naive_of(whole, files).shards
        told.append(run_of(output)["shards_linked"])
    assert told == [0] * 3
