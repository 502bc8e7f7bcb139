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
from tests.compose import real
from tests.conftest import ROOT
from tests.engines.build import built
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


def prism() -> list[str]:
    return ["--runner=PrismRunner", f"--prism_location={built('prism') / 'prism'}"]


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


def test_prism_gives_the_same_bytes(source: Path, here: dict[str, str], tmp_path: Path) -> None:
    run(composed(), source, tmp_path / "out", prism())
    assert digests(tmp_path / "out") == here


def test_flink_gives_the_same_bytes(
    flink: Flink, external: list[str], source: Path, here: dict[str, str], tmp_path: Path
) -> None:
    run(composed(), source, tmp_path / "out", [*flink.options, *external])
    assert digests(tmp_path / "out") == here


def test_worker_processes_give_the_same_bytes(source: Path, here: dict[str, str], tmp_path: Path) -> None:
    options = [*HERE, "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    run(composed(), source, tmp_path / "out", options)
    assert digests(tmp_path / "out") == here


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[int]]:
    """200,000 rows of real text, and what a set leaves of them."""
    return real.write(tmp_path_factory.mktemp("rows"))


def deduplicated(rows: tuple[list[Path], list[int]], output: Path, options: Sequence[str]) -> None:
    """Runs that job, and compares."""
    files, left = rows
    job = Pipeline(
        PipelineConfig.from_dict(real.CONFIG),
        files,
        output,
        ROOT / "examples" / "tokenizer",
        block_bytes=16 * BLOCK_BYTES,
        beam_options=[*options],
    )
    manifest = job.run().manifest
    assert manifest is not None
    real.check(output, manifest, left)


def test_prism_keeps_of_200_000_rows_those_that_a_set_keeps(rows: Any, tmp_path: Path) -> None:
    deduplicated(rows, tmp_path / "out", prism())


def test_flink_keeps_of_200_000_rows_those_that_a_set_keeps(
    flink: Flink, external: list[str], rows: Any, tmp_path: Path
) -> None:
    deduplicated(rows, tmp_path / "out", [*flink.options, *external])
