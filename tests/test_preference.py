"""Preference rows and rollouts that cannot teach anything are rejected, with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


# A prompt stands once: as exact texts, what is trained in brackets.

HERON, ROBIN = {"role": "assistant", "content": "A heron."}, {"role": "assistant", "content": "A robin."}
ASK = {"role": "user", "content": "Which bird wades?"}
BRIEF = {"role": "system", "content": "Be brief."}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ONCE = "<user>Which bird wades?<assistant>"
WITH_SYSTEM = "<system>Be brief.<user>Which bird wades?<assistant>"

CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "explicit": ({"prompt": [ASK], "chosen": [HERON], "rejected": [ROBIN]}, ONCE),
    "explicit, and repeated": ({"prompt": [ASK], "chosen": [ASK, HERON], "rejected": [ASK, ROBIN]}, ONCE),
    "a text, and repeated": ({"prompt": "Which bird wades?", "chosen": [ASK, HERON], "rejected": [ASK, ROBIN]}, ONCE),
    "a text, and answers": ({"prompt": "Which bird wades?", "chosen": [HERON], "rejected": [ROBIN]}, ONCE),
    "a text, and a system message in the sides": (
        {"prompt": "Which bird wades?", "chosen": [BRIEF, ASK, HERON], "rejected": [BRIEF, ASK, ROBIN]},
        WITH_SYSTEM,
    ),
    "a system message in the prompt alone": (
        {"prompt": [BRIEF, ASK], "chosen": [ASK, HERON], "rejected": [ASK, ROBIN]},
        WITH_SYSTEM,
    ),
}


def conversation(field: str = "prompt", **rest: Any) -> dict[str, Any]:
    both = {"template": "conversation"}
    sources = {
        side: {"sections": [{"field": field, "action": "mask", **both}, {"field": side, "action": "train", **both}]}
        for side in ("chosen", "rejected")
    }
    return {"input": {"sources": sources, "chat_template": TEMPLATE, **rest}}


def shown(dataset: Any, row: int, ids: str, mask: str) -> tuple[str, str]:
    """(text that is not trained, text that is), the first before the second."""
    tokens, trained = dataset[row][ids], dataset[row][mask].astype(bool)
    assert not trained[: (~trained).sum()].any()
    return dataset.tokenizer.decode(tokens[~trained]), dataset.tokenizer.decode(tokens[trained])


@pytest.mark.parametrize("implicit", [False, True])
def test_the_prompt_of_a_chat_stands_once_and_is_not_trained(
    run: Callable[..., Any], implicit: bool, way: None
) -> None:
    rows: Any = bp.open(run(conversation(implicit_prompt=implicit), [record for record, _ in CHATS.values()]).output)
    eos = rows.tokenizer.special_tokens["eos_token"]
    assert len(rows) == len(CHATS)
    for row, (_, prompt) in enumerate(CHATS.values()):
        assert shown(rows, row, "chosen", "chosen_mask") == (prompt, f"A heron.{eos}")
        assert shown(rows, row, "rejected", "rejected_mask") == (prompt, f"A robin.{eos}")


def test_the_prompt_of_a_completion_stands_once(run: Callable[..., Any]) -> None:
    records = [{"prompt": record["prompt"], "completion": record["chosen"]} for record, _ in CHATS.values()]
    both = {"template": "conversation"}
    sections = [{"field": "prompt", "action": "mask", **both}, {"field": "completion", "action": "train", **both}]
    rows: Any = bp.open(run({"input": {"sections": sections, "chat_template": TEMPLATE}}, records).output)
    eos = rows.tokenizer.special_tokens["eos_token"]
    for row, (_, prompt) in enumerate(CHATS.values()):
        assert shown(rows, row, "sequence", "loss_mask") == (prompt, f"A heron.{eos}")


@pytest.mark.parametrize("encode", ["joint", "separate"])
def test_the_prompt_of_texts_stands_once(run: Callable[..., Any], encode: str) -> None:
    records = [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {"prompt": "The sky is", "chosen": "The sky is blue.", "rejected": "The sky is green."},
    ]
    sources = {
        side: {"sections": [{"field": "prompt", "action": "mask"}, {"field": side, "action": "train"}]}
        for side in ("chosen", "rejected")
    }
    rows = bp.open(run({"input": {"sources": sources}, "preprocessing": {"encode": encode}}, records).output)
    assert len(rows) == 2
    for row in range(2):
        assert shown(rows, row, "chosen", "chosen_mask") == ("The sky is", " blue.")
        assert shown(rows, row, "rejected", "rejected_mask") == ("The sky is", " green.")


def test_a_side_with_another_prompt_is_a_reject_that_shows_both(run: Callable[..., Any]) -> None:
    other = {"role": "user", "content": "Which tree bends?"}
    bad = {"prompt": [ASK], "chosen": [other, HERON], "rejected": [other, ROBIN]}
    done = run(conversation(), [CHATS["explicit"][0], bad], max_reject_rate=1)
    assert messages(Path(done.output)) == {
        2: "a side has another prompt: the prompt ('prompt') is [user: \"Which bird wades?\"], 'chosen' is "
        '[user: "Which tree bends?", assistant: "A heron."]; wanted a side that begins with the prompt as it is, or '
        "one that holds only what follows it"
    }


def test_a_pair_of_alpaca_has_its_system_text_and_its_question(run: Callable[..., Any]) -> None:
    record = {"system": "Be brief.", "question": "Which bird wades?", "chosen": "A heron.", "rejected": "A robin."}
    adapter = {"name": "alpaca", "to": "preference", "instruction": "question"}
    rows = bp.open(run(conversation(adapter=adapter), [record]).output)
    assert shown(rows, 0, "chosen", "chosen_mask")[0] == WITH_SYSTEM


def test_sides_that_only_the_cut_makes_equal_say_so(run: Callable[..., Any]) -> None:
    long = "word " * 200
    config = {**DPO, "preprocessing": {**DPO.get("preprocessing", {}), "max_seq_len": 64}}
    rows = [pair("Four.", "Five."), pair(long + "yes", long + "no", "Say it."), pair(long, long, "Say it.")]
    for template in ("conversation", "message"):
        given = json.loads(json.dumps(config).replace('"conversation"', f'"{template}"'))
        done = run(given, rows, template, max_reject_rate=1)
        found = messages(Path(done.output))
        assert found.keys() == {2, 3}
        assert "all that differs is cut off" in found[2]
        assert "cut off" not in found[3]


def messages(output: Path) -> dict[int, str]:
    rows = [json.loads(line) for file in output.glob("rejects/*.jsonl") for line in file.read_text().splitlines()]
    return {row["line"]: row["message"] for row in rows}
