"""FromRecords: the same output for any order, buckets, blocks and workers; what it refuses."""

import json
import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, window

import beam_prep as bp
from beam_prep.errors import BeamPrepError, ConfigError, RunError
from beam_prep.inspect.row import source_lines
from beam_prep.sample import prepare
from tests.conftest import ROOT, tree

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CONFIG = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
CHATS = [json.loads(line) for line in (ROOT / "examples" / "data" / "chat.jsonl").read_text().splitlines()[:60]]
WRONG = [{"messages": b"bytes"}, {"messages": "no list"}, "text", {"n": float("nan")}]
INPUT = [*CHATS, *CHATS[:7], *WRONG, WRONG[0]]


def run(output: Path, elements: list[Any], *options: str, source: Any = None, **prepare: Any) -> dict[str, bytes]:
    """A chain over a collection; gives the files of its output."""
    shard = bp.Shard(
        str(output), 2_500, ["bin", "arrow"], pack=bp.Layout(provenance=True), max_reject_rate=0.1, tokenizer=TOKENIZER
    )
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner", *options])) as pipeline:
        (
            pipeline
            | beam.Create(elements)
            | (source or bp.FromRecords())
            | bp.Prepare(CONFIG, TOKENIZER, **prepare)
            | shard
        )
    return tree(output)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return run(tmp_path_factory.mktemp("wanted") / "out", INPUT)


@pytest.mark.parametrize(("buckets", "block_bytes"), [(1, 1), (65536, 1 << 23)])
def test_order_buckets_and_blocks_change_no_byte(
    buckets: int, block_bytes: int, tmp_path: Path, wanted: dict[str, bytes]
) -> None:
    elements = random.Random(buckets).sample(INPUT, len(INPUT))
    assert run(tmp_path / "out", elements, source=bp.FromRecords(buckets, block_bytes)) == wanted


def test_all_is_accounted_for_and_the_rows_are_those_of_a_file(tmp_path: Path) -> None:
    run(tmp_path / "out", INPUT, check="full")
    dataset = bp.open(tmp_path / "out")
    records = dataset.manifest["ledger"]
    assert records["read"] == len(INPUT)
    assert records["rejected"] == {"not_an_object": 1, "not_json": 3, "wrong_type": 1}
    (source,) = dataset.manifest["inputs"]
    assert source["path"] == "records"
    rejects = list(dataset.rejects())
    assert {reject["file"] for reject in rejects} == {"records"}
    assert len({reject["line"] for reject in rejects}) == 5
    texts = {reject["text"] for reject in rejects if reject["reason"] == "not_json"}
    assert texts == {'{"messages": "<bytes>"}', '{"n": "<float>"}'}
    dataset.verify()
    batch = prepare(bp.testing.records([*CHATS, *CHATS[:7]]), CONFIG, TOKENIZER)
    wanted = zip(batch["input_ids"].to_lists(), batch["labels"].to_lists(), strict=True)
    assert sorted((row["input_ids"].tolist(), row["labels"].tolist()) for row in dataset) == sorted(wanted)


def test_the_line_of_a_row_is_not_looked_for_in_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "out", INPUT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").write_text("another file of this name")
    message = r"row 1 is of records \(byte offset \d+\): .*records of FromRecords are in no file: keep a field"
    with pytest.raises(BeamPrepError, match=message):
        source_lines(bp.open(tmp_path / "out"), 1)


def test_windows_and_timestamps_are_ignored(tmp_path: Path, wanted: dict[str, bytes]) -> None:
    early = trigger.Repeatedly(trigger.AfterCount(1))
    windows = beam.WindowInto(
        window.FixedWindows(10), trigger=early, accumulation_mode=trigger.AccumulationMode.DISCARDING
    )
    stamped = beam.Map(lambda element: window.TimestampedValue(element, len(str(element))))
    source = "Stamp" >> stamped | "Window" >> windows | bp.FromRecords()
    assert run(tmp_path / "out", INPUT, source=source) == wanted


def test_a_stream_is_refused_by_name() -> None:
    pipeline = TestPipeline(runner="FnApiRunner")
    stream = pipeline | TestStream().add_elements([{"text": "a"}]).advance_watermark_to_infinity()
    with pytest.raises(ConfigError, match=r"^FromRecords was given an unbounded collection .+ read a snapshot"):
        stream | bp.FromRecords()


def test_an_empty_collection_ends_in_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the input has no record: "):
        run(tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


def test_rows_of_beam_are_records_nested_ones_too() -> None:
    with TestPipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | beam.Create([beam.Row(id=1, messages=[beam.Row(role="user", content="Hi")])])
        found = rows | bp.FromRecords() | bp.testing.rows()
        assert_that(found, equal_to([{"id": 1, "messages": [{"role": "user", "content": "Hi"}]}]))


@pytest.mark.parametrize("buckets", [0, 3, 131_072, True, "4"])
def test_buckets_are_a_power_of_two(buckets: Any) -> None:
    with pytest.raises(ValueError, match=r"buckets is .+, wanted a power of 2 from 1 to 65536"):
        bp.FromRecords(buckets)


@pytest.mark.parametrize("block_bytes", [0, -1, 1 << 31, 1.5])
def test_block_bytes_are_in_range(block_bytes: Any) -> None:
    with pytest.raises(ValueError, match=r"block_bytes is .+, wanted 1 or more, below 2 GiB"):
        bp.FromRecords(block_bytes=block_bytes)
