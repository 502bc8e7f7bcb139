"""Each transform alone, as a function on a block; two in a pipeline."""

from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints import TypeCheckError

import beam_prep as bp
from beam_prep.reading.records import Records
from beam_prep.tokens.batch import Segments
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CONFIG = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
OUTPUT = bp.Output("sequence", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}
TEXT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
IDS = TOKENIZER.encode([TEXT], False).flat.tolist()
ANSWER = TOKENIZER.encode(["Yes.<|im_end|>"], False).flat.tolist()
TRAINED = [0] * (len(IDS) - len(ANSWER) - 1) + [1] * len(ANSWER) + [0]


def masked() -> tuple[Any, ...]:
    return bp.ApplyTemplate([OUTPUT], TOKENIZER), bp.Tokenize(TOKENIZER), bp.BuildMask({"assistant": "train"})


def is_long(record: dict[str, Any]) -> bool | str:
    return "no text" if "text" not in record else len(record["text"]) > 2


def shouted(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].upper()}


def first_message(segments: Segments) -> np.ndarray:
    return segments.turn == 0


HEADER, SAID = (len(TOKENIZER.encode([text], False).flat) for text in ("<|im_start|>user\n", "Hi<|im_end|>"))
QUESTION = [0] * HEADER + [1] * SAID + [0] * (len(IDS) - HEADER - SAID)
LABELS = [token if mask else -100 for token, mask in zip(IDS, TRAINED, strict=True)]
FILL = 32 - len(IDS)
PADDED = {"sequence": IDS + [3] * FILL, "loss_mask": TRAINED + [0] * FILL}
TEXTS: list[Any] = [{"text": "a"}, {"text": "b" * 80}, CHAT]
CASES: dict[str, tuple[list[Any], tuple[Any, ...], list[Any]]] = {
    "FilterByChars": (TEXTS, (bp.FilterByChars(min_chars=50),), TEXTS[1:]),
    "FilterRecords": (TEXTS, (bp.FilterRecords(is_long),), [TEXTS[1]]),
    "MapRecords": (TEXTS[:1], (bp.MapRecords(shouted),), [{"text": "A"}]),
    "ApplyTemplate": ([CHAT], masked()[:1], [{"sequence": [TEXT]}]),
    "Tokenize, BuildMask": ([CHAT], masked(), [{"sequence": IDS, "loss_mask": TRAINED}]),
    "BuildMask of a user": (
        [CHAT],
        (*masked()[:2], bp.BuildMask(first_message)),
        [{"sequence": IDS, "loss_mask": QUESTION}],
    ),
    "Truncate": ([CHAT], (*masked(), bp.Truncate(4)), [{"sequence": IDS[:4], "loss_mask": TRAINED[:4]}]),
    "Labels": ([CHAT], (*masked(), bp.Labels()), [{"input_ids": IDS, "labels": LABELS}]),
    "Shift": ([CHAT], (*masked(), bp.Shift()), [{"input_ids": IDS[:-1], "labels": LABELS[1:]}]),
    "Pad": ([CHAT], (*masked(), bp.Pad(32, 3)), [PADDED | {"attention_mask": [1] * len(IDS) + [0] * FILL}]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_transform_gives_these_rows(name: str) -> None:
    records, steps, gives = CASES[name]
    block: Any = bp.testing.records(records)
    for step in steps:
        block = step.step()(block)
    assert bp.testing.to_rows(block) == gives


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
