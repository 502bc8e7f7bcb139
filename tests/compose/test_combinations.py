"""A shuffle with everything else that a config can say: the same bytes in blocks of any size, and no row lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.config import FORMAT_NAMES
from tests.compose.test_jobs import SPLITS, config, records, run, small, write
from tests.conftest import tree

__all__ = ["small"]
Record = dict[str, Any]
COMPOSED: Record = {
    "shuffle": {"seed": 3},
    "splits": SPLITS,
    "max_tokens_per_shard": 700,
}


def of_tokens(preprocessing: Record, output: Record | None = None) -> Record:
    return config({**COMPOSED, "keep_fields": {}, **(output or {})}, preprocessing)


CASES: dict[str, Record] = {
    "packed by bfd": of_tokens(
        {"packing_strategy": "bfd", "max_packed_len": 10, "packing_group": 7},
        {"keep_fields": {"id": "int64"}, "provenance": True},
    ),
    "chunks, wrapped": of_tokens(
        {"max_seq_len": 5, "truncation_mode": "chunk", "packing_strategy": "wrapped", "packing_group": 9}
    ),
    "padded, without copies, 300 domains, every format": of_tokens(
        {"max_seq_len": 8, "padding": 4, "deduplicate": {"by": ["text"]}},
        {"storage_format": [each for each in FORMAT_NAMES if each != "megatron"], "domain_key": "many"},
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == "packed by bfd" else pytest.mark.long) for each in CASES]
)
def test_a_shuffle_loses_no_row_and_knows_no_blocks(name: str, tmp_path: Path, small: None) -> None:
    given = CASES[name]
    rows = records(500, filler=300)
    for row in rows:
        row["many"] = f"d{row['id'] * 7 % 300}"
    files = [write(tmp_path / "1.jsonl", rows[:300]), write(tmp_path / "2.jsonl", rows[300:])]
    plain = json.loads(json.dumps(given))
    for field in COMPOSED:
        plain["output"].pop(field)
    base = run(plain, files, tmp_path / "plain")
    manifest = run(given, files, tmp_path / "one")
    assert run(given, files, tmp_path / "many", block_bytes=65536) == manifest
    assert tree(tmp_path / "many") == tree(tmp_path / "one")
    assert (manifest["ledger"], manifest["counters"]) == (base["ledger"], base["counters"])
    if manifest["totals"].get("packing") is None:
        assert manifest["totals"] == base["totals"]
        assert contents(tmp_path / "one") == contents(tmp_path / "plain")


def contents(output: Path) -> Counter[str]:
    """The rows of an output, in any order."""
    return Counter(
        repr({name: np.asarray(values).tolist() for name, values in row.items()})
        for row in bp.open(str(output), split="all" if (output / "train").exists() else None)
    )
