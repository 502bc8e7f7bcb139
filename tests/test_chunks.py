"""`truncation_mode: "chunk"`, as a user sees it."""

import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.cli import main
from tests.conftest import ROOT, prepared

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


def config(name: str, **preprocessing: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    found["preprocessing"] = {**found.get("preprocessing", {}), **preprocessing}
    return found


def make(folder: Path, name: str, records: list[Any], **step: Any) -> bp.Dataset:
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    given = bp.PipelineConfig.from_dict(config(name, truncation_mode="chunk", **step))
    bp.Pipeline(given, [str(folder / "in.jsonl")], folder / "out", TOKENIZER).run(["--runner=FnApiRunner"])
    return bp.open(folder / "out")


def whole(name: str, records: list[Any]) -> Any:
    """The rows before they are cut."""
    return prepared(config(name, max_seq_len=100_000, truncation_mode="keep_start", stride=0, min_chars=1), records)


def test_a_long_text_is_rows_and_ends_with_one_eos(tmp_path: Path) -> None:
    dataset = make(tmp_path, "pretrain_chunks", TEXTS, max_seq_len=16, stride=3, min_chars=1)
    found = [row["sequence"].tolist() for row in dataset]
    wanted = []
    for ids in whole("pretrain_chunks", TEXTS)["sequence"].to_lists():
        starts = [0, *range(13, len(ids) - 3, 13)] if len(ids) > 16 else [0]
        wanted += [ids[start : start + 16] for start in starts]
    assert found == wanted
    eos = bp.Tokenizer.load(TOKENIZER).id_of("eos_token")
    assert [row[-1] for row in found].count(eos) == len(TEXTS)


@pytest.mark.parametrize("stride", [0, 5])
def test_each_trained_token_of_a_conversation_is_trained_once(
    tmp_path: Path, stride: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = make(tmp_path, "sft_conversation", CHATS, max_seq_len=32, stride=stride)
    trained = [token for row in dataset for token in row["labels"].tolist() if token != -100]
    assert trained == [token for token in whole("sft_conversation", CHATS)["labels"].flat.tolist() if token != -100]
    assert all((row["labels"] != -100).any() for row in dataset)  # chunks of a question alone are left out
    chunks = dataset.manifest["totals"]["chunks"]
    assert (chunks["rows"], chunks["rows_split"]) == (3, 2)
    assert chunks["chunks"] - chunks["chunks_untrained"] == len(dataset)
    assert chunks["chunks_untrained"] > 0
    assert (chunks["tokens_repeated"] > 0) == (stride > 0)
    assert main(["verify", str(dataset.path), "--inputs"]) == 0
    assert main(["inspect", str(dataset.path)]) == 0
    assert "chunks: 3 documents in " in capsys.readouterr().out


def test_shifted_labels_lose_nothing_at_the_border_of_chunks(tmp_path: Path) -> None:
    dataset = make(tmp_path, "sft_last_turn_shifted", CHATS, max_seq_len=8, rows_without_loss="keep")
    full = whole("sft_last_turn_shifted", CHATS)
    for name in ("input_ids", "labels"):
        assert [token for row in dataset for token in row[name].tolist()] == full[name].flat.tolist()


def test_a_preview_shows_every_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("pretrain_chunks", max_seq_len=40, min_chars=1)))
    (tmp_path / "in.jsonl").write_text(json.dumps(TEXTS[2]) + "\n")
    command = ["inspect", str(tmp_path / "in.jsonl"), "--config", str(tmp_path / "config.json")]
    assert main([*command, "--tokenizer_path", str(TOKENIZER)]) == 0
    assert "chunk 2 of " in capsys.readouterr().out
