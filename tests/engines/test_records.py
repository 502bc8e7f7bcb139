"""A collection without order gives the same bytes on every engine."""

import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import beam_prep as bp
from tests.conftest import ROOT
from tests.engines.flink import Flink
from tests.engines.jobs import JOBS, digests

CHAT = JOBS["chat, bin + tfrecord"]


def run(output: Path, elements: list[Any], *options: str, buckets: int = 256) -> dict[str, str]:
    """A chain over a collection; gives sha256 of every file of its output."""
    config = bp.PipelineConfig.from_dict(CHAT.config)
    tokenizer = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
    with beam.Pipeline(options=PipelineOptions([*options])) as pipeline:
        (
            pipeline
            | beam.Create(elements)
            | bp.FromRecords(buckets, 65_536)
            | bp.Prepare(config, tokenizer)
            | bp.Shard(str(output), max_tokens=100_000, formats=["bin", "tfrecord"], tokenizer=tokenizer)
        )
    return digests(output)


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    lines = CHAT.write_input(tmp_path_factory.mktemp("input")).read_text().splitlines()
    return [*map(json.loads, lines), *map(json.loads, lines[:100]), {"messages": b"bytes"}]


@pytest.fixture(scope="module")
def here(elements: list[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """sha256 of every file that this process makes."""
    return run(tmp_path_factory.mktemp("here") / "out", elements, "--runner=FnApiRunner")


def test_flink_gives_the_same_bytes(
    flink: Flink, external: list[str], elements: list[Any], here: dict[str, str], tmp_path: Path
) -> None:
    options = [*flink.options, "--execution_mode_for_batch=BATCH_FORCED", "--parallelism=2", *external]
    assert run(tmp_path / "out", elements[::-1], *options, buckets=16) == here
