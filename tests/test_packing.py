"""Packed rows of whole runs: what is cut for packing is known to the ledger, the limits and the token cache; and
`truncation_mode: "chunk"`, as a user sees it.
"""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from tests.conftest import TOKENIZER_PATH, Command, Run, config_of, prepared, run_of, says, words_of, write_lines

Record = dict[str, Any]


def tokens(length: int, trained: slice, first: int = 0, **more: Any) -> Record:
    """A row of ids that count up, of which some are trained."""
    ids = [5 + (first + place) % 3000 for place in range(length)]
    kept = set(range(length)[trained])
    return {"input_ids": ids, "labels": [token if place in kept else -100 for place, token in enumerate(ids)], **more}


LATE = [tokens(12, slice(10, None)), tokens(5, slice(2, None), 100), tokens(9, slice(0, 1), 200)]
"""12 tokens of which the last 2 are trained, 5, and 9 of which the first is."""


def config(strategy: str, longest: int = 8, **preprocessing: Any) -> dict[str, Any]:
    step = {"packing_strategy": strategy, "max_packed_len": longest, **preprocessing}
    return {"input": {"adapter": "tokenized"}, "preprocessing": step, "output": {"columns": "labels"}}


def documents(output: str | Path) -> list[list[tuple[int, bool]]]:
    """(id, trained) of each token of each document in the packed rows."""
    found = []
    for row in bp.open(output):
        pairs = list(zip(row["input_ids"].tolist(), (row["labels"] != -100).tolist(), strict=True))
        at = 0
        for length in row["seq_lens"].tolist():
            found.append(pairs[at : at + length])
            at += length
    return found


def pairs(record: Record, part: slice = slice(None)) -> list[tuple[int, bool]]:
    return [(a, b != -100) for a, b in zip(record["input_ids"], record["labels"], strict=True)][part]


def test_rows_that_lose_all_that_is_trained_leave_before_the_plan(run: Run) -> None:
    result = run(config("bfd", max_items=2), [*LATE, tokens(3, slice(None), 300)], max_no_loss_rate=1)
    assert result.manifest["ledger"]["dropped"] == {"rows_without_loss": 1}
    assert (result.manifest["ledger"]["kept"], result.manifest["ledger"]["not_read"]) == (2, 1)
    assert sorted(documents(result.output)) == sorted([pairs(LATE[1]), pairs(LATE[2], slice(8))])
    packing = result.manifest["totals"]["packing"]
    assert (packing["rows_cut"], packing["tokens_cut"], packing["packs_untrained"]) == (1, 1, 0)
    assert result.manifest["counters"] == {"truncated_rows": 1, "truncated_to_pack": 1, "truncated_tokens": 1}


def test_rows_without_a_trained_token_are_counted_where_every_token_is_kept(run: Run, command: Command) -> None:
    rows = [tokens(16, slice(14, None)), tokens(5, slice(2, None), 100)]
    result = run(config("wrapped", truncation_mode="drop"), rows, max_no_loss_rate=1)
    assert sorted(chain(*documents(result.output))) == sorted(pairs(rows[0]) + pairs(rows[1]))
    assert result.manifest["totals"]["packing"]["packs_untrained"] == 1
    bp.open(result.output).verify()
    assert "packs untrained 1" in command("inspect", result.output, "--count", 0)


@pytest.mark.long
def test_a_kept_cache_serves_both_strategies_that_cut_and_no_other(tmp_path: Path, run: Run) -> None:
    def blocks(name: str, **wanted: Any) -> int:
        options = {"cache_dir": str(tmp_path / "token_cache"), "max_no_loss_rate": 1}
        result = run(config(**wanted), LATE, name, **options)
        return int(run_of(result.output)["blocks_reused"])

    assert blocks("first", strategy="wrapped") == 0
    assert blocks("other", strategy="bfd_split", longest=6) == 1
    assert blocks("cut", strategy="bfd") == 0
    assert blocks("same cut", strategy="simple") == 1
    assert blocks("shorter", strategy="bfd", longest=7) == 0
    assert blocks("uncut", strategy="bfd", longest=5000) == 1


# Chunks

DOCUMENTS = [{"text": f"{number} " + "one two three four five " * number} for number in (1, 9, 40)]
CHATS = [
    {"messages": says(user="how far " * asked, assistant="not far " * said)}
    for asked, said in ((3, 5), (60, 30), (5, 90))
]


def chunked(name: str, **step: Any) -> dict[str, Any]:
    return config_of(name, preprocessing={"truncation_mode": "chunk", **step})


def whole(name: str, records: list[Any]) -> Any:
    """The rows before they are cut."""
    return prepared(chunked(name, max_seq_len=100_000, truncation_mode="keep_start", stride=0, min_chars=1), records)


def test_a_long_text_is_rows_and_ends_with_one_eos(run: Run) -> None:
    dataset = bp.open(run(chunked("pretrain_chunks", max_seq_len=16, stride=3, min_chars=1), DOCUMENTS).output)
    found = [row["sequence"].tolist() for row in dataset]
    wanted = []
    for ids in whole("pretrain_chunks", DOCUMENTS)["sequence"].to_lists():
        starts = [0, *range(13, len(ids) - 3, 13)] if len(ids) > 16 else [0]
        wanted += [ids[start : start + 16] for start in starts]
    assert found == wanted
    eos = bp.Tokenizer.load(TOKENIZER_PATH).id_of("eos_token")
    assert [row[-1] for row in found].count(eos) == len(DOCUMENTS)


@pytest.mark.parametrize("stride", [0, 5])
def test_each_trained_token_of_a_conversation_is_trained_once(run: Run, stride: int, command: Command) -> None:
    dataset = bp.open(run(chunked("sft_conversation", max_seq_len=32, stride=stride), CHATS).output)
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
    given = chunked("sft_last_turn_shifted", max_seq_len=8, rows_without_loss="keep")
    dataset = bp.open(run(given, CHATS).output)
    full = whole("sft_last_turn_shifted", CHATS)
    for name in ("input_ids", "labels"):
        assert [token for row in dataset for token in row[name].tolist()] == full[name].flat.tolist()


def test_a_preview_shows_every_chunk(tmp_path: Path, command: Command) -> None:
    words = words_of(chunked("pretrain_chunks", max_seq_len=40, min_chars=1), tmp_path)
    assert "chunk 2 of " in command("inspect", write_lines(tmp_path / "in.jsonl", [DOCUMENTS[2]]), *words)
