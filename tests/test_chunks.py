"""`truncation_mode: "chunk"`, as a user sees it."""

import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.errors import ConfigError
from tests.conftest import ROOT

TOKENIZER = ROOT / "examples" / "tokenizer"
TEXTS = [{"text": f"{number} " + "one two three four five " * number} for number in (1, 9, 40)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": "how far " * asked},
            {"role": "assistant", "content": "not far " * said},
        ]
    }
    for asked, said in ((3, 5), (60, 30), (5, 90))
]


def make(folder: Path, name: str, records: list[Any], options: list[str] | None = None, **changes: Any) -> bp.Dataset:
    config = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    for part, fields in changes.items():
        config[part] = {**config.get(part, {}), **fields}
    folder.mkdir(exist_ok=True)
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    job = bp.Pipeline(bp.PipelineConfig.from_dict(config), [str(folder / "in.jsonl")], folder / "out", TOKENIZER)
    job.run(options or ["--runner=FnApiRunner"])
    return bp.open(folder / "out")


def whole(folder: Path, name: str, records: list[Any]) -> list[Any]:
    long = {"max_seq_len": 100_000, "truncation_mode": "keep_start"}
    if name.startswith("pretrain"):
        long["min_chars"] = 1
    return list(make(folder, name, records, preprocessing=long))


@pytest.mark.parametrize("stride", [0, 3])
def test_a_long_text_is_rows_and_ends_with_one_eos(tmp_path: Path, stride: int) -> None:
    step = {"max_seq_len": 16, "stride": stride, "min_chars": 1}
    found = [
        row["sequence"].tolist() for row in make(tmp_path / "chunks", "pretrain_chunks", TEXTS, preprocessing=step)
    ]
    wanted = []
    for row in whole(tmp_path / "whole", "pretrain_chunks", TEXTS):
        ids = row["sequence"].tolist()
        starts = [0, *range(16 - stride, len(ids) - stride, 16 - stride)] if len(ids) > 16 else [0]
        wanted += [ids[start : start + 16] for start in starts]
    assert found == wanted
    eos = bp.Tokenizer.load(TOKENIZER).id_of("eos_token")
    assert [row[-1] for row in found].count(eos) == len(TEXTS)


@pytest.mark.parametrize("stride", [0, 5])
def test_each_trained_token_of_a_conversation_is_trained_once(tmp_path: Path, stride: int) -> None:
    step = {"max_seq_len": 32, "truncation_mode": "chunk", "stride": stride}
    dataset = make(tmp_path / "chunks", "sft_conversation", CHATS, preprocessing=step)
    full = whole(tmp_path / "whole", "sft_conversation", CHATS)
    trained = [token for row in dataset for token in row["labels"].tolist() if token != -100]
    assert trained == [token for row in full for token in row["labels"].tolist() if token != -100]
    assert all((row["labels"] != -100).any() for row in dataset)  # chunks of a question alone are left out
    chunks = dataset.manifest["totals"]["chunks"]
    assert (chunks["rows"], chunks["rows_split"]) == (3, 2)
    assert chunks["chunks"] - chunks["chunks_untrained"] == len(dataset)
    assert chunks["chunks_untrained"] > 0
    assert (chunks["tokens_repeated"] > 0) == (stride > 0)


def test_shifted_labels_lose_nothing_at_the_border_of_chunks(tmp_path: Path) -> None:
    step = {"max_seq_len": 8, "truncation_mode": "chunk", "rows_without_loss": "keep"}
    dataset = make(tmp_path / "chunks", "sft_last_turn_shifted", CHATS, preprocessing=step)
    ids = [token for row in dataset for token in row["input_ids"].tolist()]
    labels = [token for row in dataset for token in row["labels"].tolist()]
    full = whole(tmp_path / "whole", "sft_last_turn_shifted", CHATS)
    assert ids == [token for row in full for token in row["input_ids"].tolist()]
    assert labels == [token for row in full for token in row["labels"].tolist()]


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"stride": 4},
        {"padding": "max_length"},
        {"packing_strategy": "bfd", "max_packed_len": 24},
        {"packing_strategy": "wrapped", "stride": 2},
        {"rows_without_loss": "keep"},
    ],
    ids=json.dumps,
)
@pytest.mark.long
def test_the_output_is_sound_and_the_same_with_blocks_and_workers(
    tmp_path: Path, step: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = {"max_seq_len": 32, "truncation_mode": "chunk", **step}
    formats = {"storage_format": ["bin", "tfrecord", "arrow"], "max_tokens_per_shard": 300}
    made = make(tmp_path / "one", "sft_conversation", CHATS * 4, preprocessing=chunks, output=formats)
    assert main(["verify", str(made.path), "--inputs"]) == 0
    assert main(["inspect", str(made.path)]) == 0
    assert "chunks: 12 documents in " in capsys.readouterr().out
    options = ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    config = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())
    config["preprocessing"] |= chunks
    config["output"] |= formats
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "in.jsonl").write_bytes((tmp_path / "one" / "in.jsonl").read_bytes())
    job = bp.Pipeline(
        bp.PipelineConfig.from_dict(config),
        [str(tmp_path / "one" / "in.jsonl")],
        tmp_path / "two" / "out",
        TOKENIZER,
        block_bytes=65536,
    )
    job.run(options)
    assert (tmp_path / "two/out/manifest.json").read_bytes() == (tmp_path / "one/out/manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        ("sft_conversation", {"stride": 3}, "stride: found 3; it works only with truncation_mode: 'chunk'"),
        (
            "sft_conversation",
            {"truncation_mode": "chunk", "max_seq_len": 64, "stride": 64},
            "stride: found 64; it must be less than a chunk, which has 64 tokens",
        ),
        ("dpo", {"truncation_mode": "chunk"}, "truncation_mode: found 'chunk'; it works only with input.sections"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, step: dict[str, Any], message: str) -> None:
    config = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    config["preprocessing"] = {**config.get("preprocessing", {}), **step}
    with pytest.raises(ConfigError) as caught:
        bp.PipelineConfig.from_dict(config)
    assert message in str(caught.value)


def test_a_preview_shows_every_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((ROOT / "configs" / "pretrain_chunks.json").read_text())
    config["preprocessing"] |= {"max_seq_len": 40, "min_chars": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "in.jsonl").write_text(json.dumps(TEXTS[2]) + "\n")
    command = ["inspect", str(tmp_path / "in.jsonl"), "--config", str(tmp_path / "config.json")]
    assert main([*command, "--tokenizer_path", str(TOKENIZER)]) == 0
    assert "chunk 2 of " in capsys.readouterr().out
