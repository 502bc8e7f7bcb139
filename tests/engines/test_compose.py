"""Shuffle, splits, deduplication and a mix give the same bytes on every engine; copies are those that a set finds."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline
from beam_prep.shards.compose import RunSizes
from tests.conftest import ROOT
from tests.engines.flink import Flink
from tests.engines.jobs import BLOCK_BYTES, JOBS, digests

Config = dict[str, Any]
CHAT = JOBS["chat, bin + tfrecord"]
HERE = ["--runner=FnApiRunner"]
SIZES = RunSizes(run=20_000, bin=4_000, batches=40)
"""Of which the job has several runs, and two levels."""


def composed() -> Config:
    """A config with all of it."""
    given = json.loads(json.dumps(CHAT.config))
    given["output"] |= {
        "shuffle": {"seed": 17},
        "splits": {"train": 0.8, "validation": 0.1, "test": 0.1},
        "split_seed": 3,
        "mix": {"cooking": {"epochs": 1.5}},
        "max_tokens_per_shard": 20_000,
    }
    given["preprocessing"] = {**given.get("preprocessing", {}), "deduplicate": {"by": ["messages"]}}
    return dict(given)


def run(config: Config, source: Path, output: Path, options: Sequence[str]) -> dict[str, Any]:
    """Runs a job; gives its manifest."""
    job = Pipeline(
        PipelineConfig.from_dict(config),
        [str(source)],
        output,
        ROOT / "examples" / "tokenizer",
        block_bytes=BLOCK_BYTES,
        beam_options=[*options],
    )
    job.compose = replace(job.compose, sizes=SIZES)
    manifest = job.run().manifest
    assert manifest is not None
    return manifest


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats of which each tenth comes once more, with its keys in another order."""
    path = CHAT.write_input(tmp_path_factory.mktemp("input"))
    lines = path.read_text("utf-8").splitlines()
    copies = [json.dumps(dict(reversed(json.loads(line).items()))) for line in lines[::10]]
    path.write_text("".join(f"{line}\n" for line in [*lines, *copies]), "utf-8")
    return path


@pytest.fixture(scope="module")
def here(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """sha256 of every file that this process makes."""
    output = tmp_path_factory.mktemp("here") / "out"
    manifest = run(composed(), source, output, HERE)
    assert manifest["ledger"]["dropped"]["duplicate"] == len(source.read_text("utf-8").splitlines()) // 11
    assert manifest["splits"].keys() == {"train", "validation", "test"}
    return digests(output)


def test_flink_gives_the_same_bytes(
    flink: Flink, external: list[str], source: Path, here: dict[str, str], tmp_path: Path
) -> None:
    run(composed(), source, tmp_path / "out", [*flink.options, *external])
    assert digests(tmp_path / "out") == here
