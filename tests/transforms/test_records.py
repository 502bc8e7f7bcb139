"""FromRecords: the same output for any order, buckets and blocks, and what it refuses. Transforms that follow on."""

import dataclasses
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
from apache_beam.typehints import TypeCheckError

import beam_prep as bp
from beam_prep.errors import BeamPrepError, ConfigError, RunError
from beam_prep.inspect.row import source_lines
from beam_prep.reading.records import Records
from beam_prep.recipe import prepare
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
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of `INPUT`; tests only read it."""
    folder = tmp_path_factory.mktemp("wanted") / "out"
    run(folder, INPUT)
    return folder


@pytest.mark.parametrize(("buckets", "block_bytes"), [(1, 1), (65536, 1 << 23)])
def test_order_buckets_and_blocks_change_no_byte(buckets: int, block_bytes: int, tmp_path: Path, output: Path) -> None:
    elements = random.Random(buckets).sample(INPUT, len(INPUT))
    assert run(tmp_path / "out", elements, source=bp.FromRecords(buckets, block_bytes)) == tree(output)


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
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").write_text("another file of this name")
    message = r"row 1 is of records \(byte offset \d+\): .*records of FromRecords are in no file: keep a field"
    with pytest.raises(BeamPrepError, match=message):
        source_lines(bp.open(output), 1)


def test_windows_and_timestamps_are_ignored(tmp_path: Path, output: Path) -> None:
    early = trigger.Repeatedly(trigger.AfterCount(1))
    windows = beam.WindowInto(
        window.FixedWindows(10), trigger=early, accumulation_mode=trigger.AccumulationMode.DISCARDING
    )
    stamped = beam.Map(lambda element: window.TimestampedValue(element, len(str(element))))
    source = "Stamp" >> stamped | "Window" >> windows | bp.FromRecords()
    assert run(tmp_path / "out", INPUT, source=source) == tree(output)


def test_a_stream_is_refused_by_name() -> None:
    pipeline = TestPipeline(runner="FnApiRunner")
    stream = pipeline | TestStream().add_elements([{"text": "a"}]).advance_watermark_to_infinity()
    with pytest.raises(ConfigError, match=r"^FromRecords was given an unbounded collection .+ read a snapshot"):
        stream | bp.FromRecords()


def test_an_empty_collection_ends_in_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the input has no record: the collection is empty; "):
        run(tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("buckets", [0, 3, 131_072, True, "4"])
def test_buckets_are_a_power_of_two(buckets: Any) -> None:
    with pytest.raises(ValueError, match=r"buckets is .+, wanted a power of 2 from 1 to 65536"):
        bp.FromRecords(buckets)


@pytest.mark.parametrize("block_bytes", [0, -1, 1 << 31, 1.5])
def test_block_bytes_are_in_range(block_bytes: Any) -> None:
    with pytest.raises(ValueError, match=r"block_bytes is .+, wanted 1 or more, below 2 GiB"):
        bp.FromRecords(block_bytes=block_bytes)


# Transforms that follow each other

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


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            bp.Truncate,
            {"max_seq_len": 8, "mode": "keep_begin"},
            "mode is 'keep_begin', wanted one of keep_start, keep_end, drop, error",
        ),
        (bp.Truncate, {"max_seq_len": 8.5}, "max_seq_len is 8.5, wanted a whole number, at least 1"),
        (bp.Pad, {"multiple": 8, "pad_id": -1}, "pad_id is -1, wanted a whole number, at least 0"),
        (
            bp.SplitPrompt,
            {"rows_without_loss": "skip"},
            "rows_without_loss is 'skip', wanted one of drop, keep, reject",
        ),
        (
            bp.Prepare,
            {"config": CONFIG, "tokenizer": TOKENIZER, "check": "none"},
            "check is 'none', wanted one of sample, full",
        ),
        (
            bp.Section,
            {"field": "text", "action": "learn"},
            r"action is 'learn', wanted one of train, mask, \$role, \$last, value",
        ),
        (
            bp.Section,
            {"field": "text", "action": "train", "template": "chat"},
            "template is 'chat', wanted one of message, conversation",
        ),
        (bp.TextRules, {"eos": "yes"}, "eos is 'yes', wanted one of never, if_missing, always"),
        (
            bp.Column,
            {"name": "w", "dtype": "float32", "depth": 1, "role": "weight"},
            "role is 'weight', wanted one of ids, mask, labels, weights,",
        ),
        (bp.Shard, {"output": "out", "max_tokens": 0}, "max_tokens is 0, wanted a whole number, at least 1"),
        (bp.Shard, {"output": "out", "max_items": -1}, "max_items is -1, wanted a whole number, at least 1"),
        (bp.Shard, {"output": "out", "pack": "bfd"}, "pack is 'bfd', wanted a Layout$"),
        (bp.Tokenize, {"tokenizer": "examples/tokenizer"}, "tokenizer is 'examples/tokenizer', wanted a Tokenizer$"),
        (bp.Compose, {"splits": {"train": 1}}, "splits is {'train': 1}, wanted a Splits$"),
        (bp.BuildMask, {"policy": "assistant"}, "policy is 'assistant', wanted a function or a dict such as {"),
    ],
)
def test_a_wrong_setting_is_refused_when_a_step_is_made(make: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make(**given)


def test_a_function_without_a_result_ends_the_run_with_the_name_of_its_step(tmp_path: Path) -> None:
    message = r"a step gave NoneType, wanted a block: does its function return one\? \[while running 'Mine'\]"
    pipeline = beam.Pipeline("FnApiRunner")
    batches = pipeline | bp.testing.create([{"text": "a"}]) | bp.Prepare(CONFIG, TOKENIZER)
    mine = batches | "Mine" >> beam.Map(lambda batch: None).with_output_types(bp.Batch)
    _ = mine | bp.Shard(tmp_path / "out", tokenizer=TOKENIZER)
    with pytest.raises(TypeError, match=message):
        pipeline.run()


def test_paths_and_single_names_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n')
    read: Any = bp.ReadJSONL(file)
    assert [each.path for each in read.inputs] == [str(file)]
    assert bp.Shard(tmp_path / "out").output == str(tmp_path / "out")
    assert bp.KeyRecords(duplicate="text").duplicate == ("text",)


def test_fields_of_two_steps_are_kept() -> None:
    block: Any = bp.testing.records([{"id": "a", "n": 2}])
    for fields in (["id", "text"], {"n": "int32"}):
        block = bp.KeepFields(fields).step()(block)
    kept = block.ledger.metadata
    assert [column.name for column in kept.columns] == ["id", "text", "n"] == [*kept.values]
    assert (bytes(kept.values["id"][0]), kept.values["n"].to_lists(), kept.missing.tolist()) == (b"a", [[2]], [1])


def tokenized(output: bp.Output = OUTPUT) -> Any:
    block = bp.ApplyTemplate([output], TOKENIZER).step()(bp.testing.records([CHAT]))
    return bp.Tokenize(TOKENIZER).step()(block)


@pytest.mark.parametrize("step", [bp.Truncate(4), bp.Pad(32, 3), bp.Labels(), bp.Shift(), None])
def test_tokens_are_neither_changed_nor_written_before_they_have_their_mask(step: Any) -> None:
    batch = tokenized()
    with pytest.raises(ValueError, match=r"^'sequence' has no 'loss_mask' yet: put BuildMask directly after Tokenize$"):
        bp.Layout().cached(batch, None, "drop") if step is None else step.step()(batch)
    ids = dataclasses.replace(OUTPUT, mask_name=None)
    assert bp.testing.to_rows(bp.Truncate(4).step()(tokenized(ids))) == [{"sequence": IDS[:4]}]


@pytest.mark.parametrize("name", ["../w", "a b", ""])
def test_a_column_whose_name_is_no_file_name_is_refused(name: str) -> None:
    columns = [bp.Column("ids", "int32", 1, "ids"), bp.Column(name, "float32", 1, "value")]
    with pytest.raises(ConfigError, match=f"found '{name}'; must be a name of letters, digits"):
        bp.Layout().columns(columns)
    assert [each.name for each in bp.Layout(names={name: "w"}).columns(columns)] == ["ids", "w"]


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
