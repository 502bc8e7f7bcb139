"""Each transform alone, in a pipeline of its own."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

import beam_prep as bp
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.segments import Segments
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
OUTPUT = bp.Output("sequence", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}
TEXT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
IDS = TOKENIZER.encode([TEXT], False).flat.tolist()
ANSWER = TOKENIZER.encode(["Yes.<|im_end|>"], False).flat.tolist()
TRAINED = [0] * (len(IDS) - len(ANSWER) - 1) + [1] * len(ANSWER) + [0]


def check(*steps: Any, gives: list[Any], records: list[Any] | None = None) -> None:
    """A chain of transforms gives these rows for some records."""
    with TestPipeline(runner="FnApiRunner") as pipeline:
        blocks = pipeline | bp.testing.create(records or [CHAT])
        for number, step in enumerate(steps):
            blocks |= f"Step{number}" >> step
        assert_that(blocks | bp.testing.rows(), equal_to(gives))


def encoded() -> tuple[Any, ...]:
    return bp.ApplyTemplate([OUTPUT], TOKENIZER), bp.Tokenize(TOKENIZER)


def masked() -> tuple[Any, ...]:
    return *encoded(), bp.BuildMask({"assistant": "train"})


def is_long(record: dict[str, Any]) -> bool | str:
    return "no text" if "text" not in record else len(record["text"]) > 2


def shouted(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].upper()}


def first_message(segments: Segments) -> np.ndarray:
    return segments.turn == 0


def test_filter_by_chars() -> None:
    records: list[Any] = [{"text": "a"}, {"text": "b" * 80}, CHAT]
    with TestPipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | bp.testing.create(records) | bp.FilterByChars(min_chars=50) | bp.testing.rows()
        assert_that(rows, equal_to([{"text": "b" * 80}, CHAT]))


def test_filter_records() -> None:
    check(bp.FilterRecords(is_long), records=[{"text": "a"}, {"text": "bcd"}, {"x": 1}], gives=[{"text": "bcd"}])


def test_map_records() -> None:
    check(bp.MapRecords(shouted), records=[{"text": "a"}], gives=[{"text": "A"}])


def test_apply_template() -> None:
    check(bp.ApplyTemplate([OUTPUT], TOKENIZER), gives=[{"sequence": [TEXT]}])


def test_apply_template_takes_the_input_of_a_config() -> None:
    config = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
    check(bp.ApplyTemplate(config.input, TOKENIZER), gives=[{"sequence": [TEXT]}])


def test_tokenize() -> None:
    check(*encoded(), gives=[{"sequence": IDS}])


def test_build_mask() -> None:
    check(*masked(), gives=[{"sequence": IDS, "loss_mask": TRAINED}])


def test_build_mask_with_a_policy_of_ones_own() -> None:
    header, said = (len(TOKENIZER.encode([text], False).flat) for text in ("<|im_start|>user\n", "Hi<|im_end|>"))
    mask = [0] * header + [1] * said + [0] * (len(IDS) - header - said)
    check(*encoded(), bp.BuildMask(first_message), gives=[{"sequence": IDS, "loss_mask": mask}])


def test_truncate() -> None:
    check(*masked(), bp.Truncate(4), gives=[{"sequence": IDS[:4], "loss_mask": TRAINED[:4]}])


def test_labels_and_shift() -> None:
    labels = [token if mask else -100 for token, mask in zip(IDS, TRAINED, strict=True)]
    check(*masked(), bp.Labels(), gives=[{"input_ids": IDS, "labels": labels}])
    check(*masked(), bp.Shift(), gives=[{"input_ids": IDS[:-1], "labels": labels[1:]}])


def test_pad() -> None:
    fill = 32 - len(IDS)
    row = {
        "sequence": IDS + [3] * fill,
        "loss_mask": TRAINED + [0] * fill,
        "attention_mask": [1] * len(IDS) + [0] * fill,
    }
    check(*masked(), bp.Pad(32, 3), gives=[row])


def test_prepare_stands_for_the_steps_of_a_config() -> None:
    config = bp.PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
    labels = [token if mask else -100 for token, mask in zip(IDS, TRAINED, strict=True)]
    check(bp.Prepare(config, TOKENIZER), gives=[{"input_ids": IDS, "labels": labels}])


def test_shard(tmp_path: Path) -> None:
    with TestPipeline(runner="FnApiRunner") as pipeline:
        blocks = pipeline | bp.testing.create([CHAT, CHAT])
        for number, step in enumerate(masked()):
            blocks |= f"Step{number}" >> step
        blocks | bp.Shard(str(tmp_path / "out"), formats=["bin", "tfrecord"], tokenizer=TOKENIZER)
    dataset = bp.open(tmp_path / "out")
    assert [row["sequence"].tolist() for row in dataset] == [IDS, IDS]
    assert [row["loss_mask"].tolist() for row in dataset] == [TRAINED, TRAINED]
    assert dataset.decode(0) == TEXT


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bp.Truncate(0),
        lambda: bp.FilterByChars(5, 4),
        lambda: bp.FilterRecords("no function"),
        lambda: bp.BuildMask({"user": "maybe"}),
        lambda: bp.Shard("out", formats=["zarr"]),
        lambda: bp.Shard("out", max_tokens=0),
        lambda: bp.ReadJSONL([str(ROOT / "examples/data/chat.jsonl")], block_bytes=5),
        lambda: bp.Pad(0, 1),
    ],
)
def test_bad_options_fail_when_the_transform_is_made(wrong: Any) -> None:
    with pytest.raises(ValueError):
        wrong()


def test_a_chain_without_blocks_ends_in_a_clear_error(tmp_path: Path) -> None:
    pipeline = TestPipeline(runner="FnApiRunner")
    nothing = pipeline | bp.testing.create([CHAT]) | beam.Filter(lambda block: False).with_output_types(Batch)
    nothing | bp.Shard(str(tmp_path / "out"))
    with pytest.raises(Exception, match="the input has no record"):
        pipeline.run()
    assert not (tmp_path / "out").exists()
