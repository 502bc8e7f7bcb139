"""Packed rows of whole runs: what is cut for packing is known to the ledger, the limits and the token cache."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from tests.conftest import Command, Run, run_of

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
