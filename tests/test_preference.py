"""Preference rows and rollouts that cannot teach anything are rejected, with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import beam_prep as bp
from tests.conftest import ROOT

DPO = json.loads((ROOT / "configs" / "dpo_conversation.json").read_text())
GRPO = json.loads((ROOT / "configs" / "grpo.json").read_text())


def pair(chosen: str, rejected: str, question: str = "What is two and two?") -> dict[str, Any]:
    ask = {"role": "user", "content": question}
    return {
        name: [ask, {"role": "assistant", "content": text}]
        for name, text in (("chosen", chosen), ("rejected", rejected))
    }


def rejects(output: Path) -> dict[int, str]:
    rows = [json.loads(line) for file in output.glob("rejects/*.jsonl") for line in file.read_text().splitlines()]
    return {row["line"]: row["reason"] for row in rows}


def test_sides_that_are_equal_or_missing_are_rejected(run: Callable[..., Any]) -> None:
    good = pair("Four.", "Five.")
    lone = {"chosen": good["chosen"]}
    answers = {name: [good[name][1]] for name in good}  # nothing is asked
    done = run(DPO, [good, pair("Four.", "Four."), lone, answers], max_reject_rate=1, max_no_loss_rate=1)
    assert len(bp.open(done.output)) == 1
    found = rejects(Path(done.output))
    assert found.keys() == {2, 3, 4}
    assert (found[2], found[4]) == ("equal_sides", "no_prompt")


def test_a_prompt_of_messages_that_nothing_follows_is_rejected(run: Callable[..., Any], way: None) -> None:
    good = pair("Four.", "Five.")
    ask = good["chosen"][:1]
    bare = [
        {"prompt": ask},
        {"prompt": ask, "chosen": [], "rejected": []},
        {"prompt": ask, "chosen": good["chosen"][1:]},
    ]
    done = run(DPO, [good, *bare], max_reject_rate=1)
    assert len(bp.open(done.output)) == 1
    assert rejects(Path(done.output)) == {2: "no_answer", 3: "no_answer", 4: "no_answer"}


def test_a_prompt_that_is_text_beside_conversations_is_the_one_they_begin_with(run: Callable[..., Any]) -> None:
    without = pair("Four.", "Five.")
    beside = {"prompt": "What is two and two?", **without}  # as UltraFeedback has it
    rows = bp.open(run(DPO, [without, beside]).output)
    assert len(rows) == 2
    assert all((rows[0][name] == rows[1][name]).all() for name in rows.columns)


def test_sides_that_are_equal_after_cutting_are_rejected(run: Callable[..., Any]) -> None:
    long = "word " * 200
    config = {**DPO, "preprocessing": {**DPO.get("preprocessing", {}), "max_seq_len": 64}}
    rows = [pair("Four.", "Five."), pair(long + "yes", long + "no", "Say it."), pair("Yes " + long, "No " + long)]
    done = run(config, rows, max_reject_rate=1, max_no_loss_rate=1)
    assert rejects(Path(done.output)) == {2: "equal_sides"}
    assert len(bp.open(done.output)) == 2


def test_as_many_rewards_as_responses(run: Callable[..., Any]) -> None:
    ask = [{"role": "user", "content": "Two and two?"}]
    rows = [
        {"prompt": ask, "responses": ["4", "5"], "rewards": [1.0, 0.0]},
        {"prompt": ask, "responses": ["4", "5"], "rewards": [1.0]},
    ]
    done = run(GRPO, rows, max_reject_rate=1, max_no_loss_rate=1)
    assert rejects(Path(done.output)) == {2: "count_mismatch"}


def test_the_last_message_is_the_assistants(run: Callable[..., Any]) -> None:
    config = json.loads((ROOT / "configs" / "sft_last_turn_shifted.json").read_text())
    good = {"messages": pair("Four.", "")["chosen"]}
    bad = {"messages": [*good["messages"], {"role": "user", "content": "Sure?"}]}
    done = run(config, [good, bad], max_reject_rate=1, max_no_loss_rate=1)
    assert rejects(Path(done.output)) == {2: "last_not_assistant"}
