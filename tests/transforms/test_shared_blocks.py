"""Several transforms read the same blocks: each finds them as they were."""

import json
from pathlib import Path

import apache_beam as beam
import pytest
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


TEXT = "Hello, all of you. " * 5
UNCHANGED = {
    "decontaminate": {"against": ["eval.jsonl"], "field": "text", "ngram": 8},
    "min_chars": 1,
}


@pytest.mark.parametrize("rule", UNCHANGED)
def test_a_step_that_changes_nothing_leaves_others_their_records(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eval.jsonl").write_text(json.dumps({"text": "a text that is in no record, of as many words as it takes"}))
    Path("a.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    sections = [{"field": "text", "action": "train"}]
    config = bp.PipelineConfig.from_dict({"input": {"sections": sections}, "preprocessing": {rule: UNCHANGED[rule]}})
    with TestPipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | bp.ReadJSONL(["a.jsonl"])
        for name in ("first", "second", "third"):
            rows = records | name >> bp.Prepare(config, TOKENIZER) | f"rows {name}" >> bp.testing.rows()
            assert_that(rows | f"ones {name}" >> beam.Map(lambda _: 1), equal_to([1]), label=name)
        texts = records | beam.FlatMap(lambda block: [row["text"] for row in block.rows])
        assert_that(texts, equal_to([TEXT]), label="texts")
