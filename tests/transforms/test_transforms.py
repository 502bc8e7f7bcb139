"""Transforms that follow each other, as functions on a block and in a pipeline."""

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints import TypeCheckError

import beam_prep as bp
from beam_prep.reading.records import Records
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CONFIG = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
OUTPUT = bp.Output("sequence", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}
TEXT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
IDS = TOKENIZER.encode([TEXT], False).flat.tolist()
ANSWER = TOKENIZER.encode(["Yes.<|im_end|>"], False).flat.tolist()
TRAINED = [0] * (len(IDS) - len(ANSWER) - 1) + [1] * len(ANSWER) + [0]


def test_a_chat_becomes_padded_ids_and_a_mask() -> None:
    """What each transform gives alone stands in its docstring, which `tests/test_docstring_examples.py` runs."""
    block: Any = bp.testing.records([CHAT])
    mask = bp.BuildMask({"assistant": "train"})
    for step in (bp.ApplyTemplate([OUTPUT], TOKENIZER), bp.Tokenize(TOKENIZER), mask, bp.Pad(32, 3)):
        block = step.step()(block)
    fill = 32 - len(IDS)
    row = {"sequence": IDS + [3] * fill, "loss_mask": TRAINED + [0] * fill}
    assert bp.testing.to_rows(block) == [row | {"attention_mask": [1] * len(IDS) + [0] * fill}]


def said(records: Records) -> list[str]:
    return [message["content"] for row in records.rows for message in row["messages"]]


def test_a_step_in_the_wrong_place_is_refused_before_the_run() -> None:
    records = beam.Pipeline("FnApiRunner") | bp.testing.create([{"text": "a"}])
    with pytest.raises(TypeCheckError, match=r"requires .*Batch.* was applied to .*Records"):
        records | bp.BuildMask({})


def test_records_that_another_transform_reads_stay() -> None:
    """Both orders: which transform comes first is Beam's choice."""
    with TestPipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | bp.testing.create([CHAT, CHAT])
        before = records | "Before" >> beam.FlatMap(said)
        rows = records | bp.Prepare(CONFIG, TOKENIZER) | bp.testing.rows() | beam.Map(lambda _: 1)
        after = records | "After" >> beam.FlatMap(said)
        assert_that(before, equal_to(["Hi", "Yes."] * 2), label="before")
        assert_that(rows, equal_to([1, 1]), label="rows")
        assert_that(after, equal_to(["Hi", "Yes."] * 2), label="after")
