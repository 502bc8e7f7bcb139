"""Several transforms read the same blocks: each finds them as they were. Each step alone: tests/test_chains.py."""

import apache_beam as beam
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

import beam_prep as bp
from beam_prep.reading.records import Records
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CONFIG = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
CHAT = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes."}]}


def said(records: Records) -> list[str]:
    return [message["content"] for row in records.rows for message in row["messages"]]


def test_records_that_another_transform_reads_stay() -> None:
    """Both orders: which transform comes first is Beam's choice."""
    with TestPipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | bp.testing.create([CHAT, CHAT])
        before = records | "Before" >> beam.FlatMap(said)
        rows = records | bp.Prepare(CONFIG, TOKENIZER) | bp.testing.rows() | beam.Map(lambda _: 1)
        after = records | "After" >> beam.FlatMap(said)
        assert_that(before, equal_to(["Hello", "Yes."] * 2), label="before")
        assert_that(rows, equal_to([1, 1]), label="rows")
        assert_that(after, equal_to(["Hello", "Yes."] * 2), label="after")
