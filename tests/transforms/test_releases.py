"""What a step was given is given up when nobody else reads it, and only then."""

import json
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

import beam_prep as bp
from beam_prep.reading.records import Records
from beam_prep.recipe import chain
from beam_prep.transforms.block_step import timed
from beam_prep.transforms.records import ByGroup
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CONFIG = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
CHAT = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes."}]}


def said(records: Records) -> list[str]:
    return [message["content"] for row in records.rows for message in row["messages"]]


@pytest.mark.parametrize("releases", [False, True])
def test_a_step_gives_up_what_it_was_given(releases: bool) -> None:
    block = bp.testing.records([CHAT])
    for step in chain(CONFIG, TOKENIZER):
        step.releases = releases
        made = timed(step)(block)
        if made is not block:
            own = "rows" if isinstance(block, Records) else "domain"
            assert hasattr(block, own) == (not releases)
            assert len(block) == 1
        block = made
    assert len(bp.testing.to_rows(block)) == 1


def test_records_that_another_transform_reads_stay() -> None:
    """Prepare gives up what its own steps made alone. Both orders: which transform comes first is Beam's choice."""
    with TestPipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | bp.testing.create([CHAT, CHAT])
        before = records | "Before" >> beam.FlatMap(said)
        rows = records | bp.Prepare(CONFIG, TOKENIZER) | bp.testing.rows() | beam.Map(lambda _: 1)
        after = records | "After" >> beam.FlatMap(said)
        assert_that(before, equal_to(["Hello", "Yes."] * 2), label="before")
        assert_that(rows, equal_to([1, 1]), label="rows")
        assert_that(after, equal_to(["Hello", "Yes."] * 2), label="after")


@pytest.mark.parametrize("releases", [False, True])
def test_so_does_the_step_of_all_groups(releases: bool) -> None:
    block = bp.testing.records([CHAT])
    block.origin = replace(block.origin, source=replace(block.origin.source, group=0))
    step = ByGroup([chain(CONFIG, TOKENIZER)])
    step.releases = releases
    made = step.step()(block)
    assert hasattr(block, "rows") == (not releases)
    assert len(bp.testing.to_rows(made)) == 1


TEXT = "Hello, all of you. " * 5
UNCHANGED = {
    "decontaminate": {"against": ["eval.jsonl"], "field": "text", "ngram": 8},
    "min_chars": 1,
}


@pytest.mark.parametrize("rule", UNCHANGED)
def test_a_step_that_changes_nothing_leaves_others_their_records(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the block that it was given, which the next step gives up."""
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
