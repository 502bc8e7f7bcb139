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
from tests.conftest import ROOT, tree

__all__ = ["small"]
Record = dict[str, Any]
COMPOSED: Record = {
    "shuffle": {"seed": 3},
    "splits": SPLITS,
    "max_tokens_per_shard": 700,
}


def configs(name: str) -> Record:
    found: Record = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    return found


def chats(count: int) -> list[Record]:
    """Chats, pairs and rollouts in one record each, with a domain of their own now and then."""
    found = []
    for number in range(count):
        ask = {"role": "user", "content": f"What is {number} and {number % 7}?"}
        good, bad = ({"role": "assistant", "content": f"It is {number + each} " * (number % 5 + 1)} for each in (0, 1))
        found.append(
            {
                "messages": [ask, good],
                "chosen": [ask, good],
                "rejected": [ask, bad],
                **({"prompt": [ask]} if number % 3 else {}),
                "text": f"{ask['content']} {good['content']} " * 2,
                "responses": [each["content"] for each in (good, bad)][: number % 2 + 1],
                "rewards": [1.0, 0.5][: number % 2 + 1],
                "source": f"s{number % 3}",
                "filler": "x" * 300,
            }
        )
    return found


def of_tokens(preprocessing: Record, output: Record | None = None) -> Record:
    return config({**COMPOSED, "keep_fields": {}, **(output or {})}, preprocessing)


CASES: dict[str, Record] = {
    **{
        f"packed by {strategy}": of_tokens(
            {"packing_strategy": strategy, "max_packed_len": 10, "packing_group": 7},
            {"keep_fields": {"id": "int64"}, "provenance": True},
        )
        for strategy in ("simple", "bfd", "bfd_split", "wrapped")
    },
    "chunks": of_tokens({"max_seq_len": 5, "truncation_mode": "chunk", "stride": 2}),
    "chunks, packed": of_tokens(
        {"max_seq_len": 5, "truncation_mode": "chunk", "packing_strategy": "bfd", "packing_group": 9}
    ),
    "padded": of_tokens({"max_seq_len": 8, "padding": 4}),
    "deduplicated, with 300 domains": of_tokens({"deduplicate": {"by": ["text"]}}, {"domain_key": "many"}),
    "every format": of_tokens(
        {},
        {"storage_format": [each for each in FORMAT_NAMES if each not in ("megatron", "mds")], "columns": "loss_mask"},
    ),
    "carried strings": of_tokens(
        {}, {"keep_fields": ["id", "user", "text"], "provenance": True, "storage_format": ["bin", "parquet"]}
    ),
    "dpo_conversation": {},
    "grpo": {},
    "sft_conversation": {},
    "sft_packed": {},
    "pretrain": {},
}
DEFAULT = {"packed by bfd"}


@pytest.mark.parametrize(
    "name", [each if each in DEFAULT else pytest.param(each, marks=pytest.mark.long) for each in CASES]
)
def test_a_shuffle_loses_no_row_and_knows_no_blocks(name: str, tmp_path: Path, small: None) -> None:
    given = json.loads(json.dumps(CASES[name]))
    rows = records(500, filler=300)
    for row in rows:
        row["many"] = f"d{row['id'] * 7 % 300}"
        row["user"] = row["user"] or ""
    if not given:
        given, rows = configs(name), chats(400)
        given["output"] = {"storage_format": ["bin", "arrow"], **given.get("output", {}), **COMPOSED}
    files = [write(tmp_path / "1.jsonl", rows[:300]), write(tmp_path / "2.jsonl", rows[300:])]
    plain = json.loads(json.dumps(given))
    for field in COMPOSED:
        plain["output"].pop(field)
    base = run(plain, files, tmp_path / "plain")
    manifest = run(given, files, tmp_path / "one")
    assert run(given, files, tmp_path / "many", block_bytes=65536) == manifest
    assert tree(tmp_path / "many") == tree(tmp_path / "one")
    assert manifest["ledger"] == base["ledger"]
    assert manifest["counters"] == base["counters"]
    if manifest["totals"].get("packing") is None:
        assert manifest["totals"] == base["totals"]
        del given["output"]["splits"]
        run(given, files, tmp_path / "whole")
        assert contents(tmp_path / "whole") == contents(tmp_path / "plain")


def contents(output: Path) -> Counter[str]:
    """The rows of an output, in any order."""
    return Counter(
        repr({name: np.asarray(values).tolist() for name, values in row.items()}) for row in bp.open(str(output))
    )
