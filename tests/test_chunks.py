"""`truncation_mode: "chunk"`, as a user sees it."""

import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from tests.conftest import TOKENIZER_PATH, Command, Run, config_of, prepared, says, write_lines

TEXTS = [{"text": f"{number} " + "one two three four five " * number} for number in (1, 9, 40)]
CHATS = [
    {"messages": says(user="how far " * asked, assistant="not far " * said)}
    for asked, said in ((3, 5), (60, 30), (5, 90))
]


def config(name: str, **step: Any) -> dict[str, Any]:
    return config_of(name, preprocessing={"truncation_mode": "chunk", **step})


def whole(name: str, records: list[Any]) -> Any:
    """The rows before they are cut."""
    return prepared(config(name, max_seq_len=100_000, truncation_mode="keep_start", stride=0, min_chars=1), records)


def test_a_long_text_is_rows_and_ends_with_one_eos(run: Run) -> None:
    dataset = bp.open(run(config("pretrain_chunks", max_seq_len=16, stride=3, min_chars=1), TEXTS).output)
    found = [row["sequence"].tolist() for row in dataset]
    wanted = []
    for ids in whole("pretrain_chunks", TEXTS)["sequence"].to_lists():
        starts = [0, *range(13, len(ids) - 3, 13)] if len(ids) > 16 else [0]
        wanted += [ids[start : start + 16] for start in starts]
    assert found == wanted
    eos = bp.Tokenizer.load(TOKENIZER_PATH).id_of("eos_token")
    assert [row[-1] for row in found].count(eos) == len(TEXTS)


@pytest.mark.parametrize("stride", [0, 5])
def test_each_trained_token_of_a_conversation_is_trained_once(run: Run, stride: int, command: Command) -> None:
    dataset = bp.open(run(config("sft_conversation", max_seq_len=32, stride=stride), CHATS).output)
    trained = [token for row in dataset for token in row["labels"].tolist() if token != -100]
    assert trained == [token for token in whole("sft_conversation", CHATS)["labels"].flat.tolist() if token != -100]
    assert all((row["labels"] != -100).any() for row in dataset)  # chunks of a question alone are left out
    chunks = dataset.manifest["totals"]["chunks"]
    assert (chunks["rows"], chunks["rows_split"]) == (3, 2)
    assert chunks["chunks"] - chunks["chunks_untrained"] == len(dataset)
    assert chunks["chunks_untrained"] > 0
    assert (chunks["tokens_repeated"] > 0) == (stride > 0)
    command("verify", dataset.path, "--inputs")
    assert "rows 3, " in command("inspect", dataset.path)


def test_shifted_labels_lose_nothing_at_the_border_of_chunks(run: Run) -> None:
    given = config("sft_last_turn_shifted", max_seq_len=8, rows_without_loss="keep")
    dataset = bp.open(run(given, CHATS).output)
    full = whole("sft_last_turn_shifted", CHATS)
    for name in ("input_ids", "labels"):
        assert [token for row in dataset for token in row[name].tolist()] == full[name].flat.tolist()


def test_a_preview_shows_every_chunk(tmp_path: Path, command: Command) -> None:
    given, source = tmp_path / "config.json", write_lines(tmp_path / "in.jsonl", [TEXTS[2]])
    given.write_text(json.dumps(config("pretrain_chunks", max_seq_len=40, min_chars=1)))
    assert "chunk 2 of " in command("inspect", source, "--config", given, "--tokenizer_path", TOKENIZER_PATH)
