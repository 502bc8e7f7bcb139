"""Preference rows and rollouts that cannot teach anything are rejected, with the reason."""

import json
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.tokens.batch import Batch
from tests.conftest import ROOT, prepared

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
EOS = TOKENIZER.special_tokens["eos_token"]
DPO = json.loads((ROOT / "configs" / "dpo_conversation.json").read_text())
GRPO = json.loads((ROOT / "configs" / "grpo.json").read_text())


def pair(chosen: str, rejected: str, question: str = "What is two and two?") -> dict[str, Any]:
    ask = {"role": "user", "content": question}
    return {
        name: [ask, {"role": "assistant", "content": text}]
        for name, text in (("chosen", chosen), ("rejected", rejected))
    }


def rejects(batch: Batch) -> dict[int, str]:
    """Line of each reject, from 1 on, to its reason."""
    return {line + 1: reason for line, reason in bp.testing.rejects(batch)}


def messages(batch: Batch) -> dict[int, str]:
    return {line + 1: message for line, message in batch.ledger.messages.items()}


def test_pairs_that_teach_nothing_are_rejected() -> None:
    good = pair("Four.", "Five.")
    ask = good["chosen"][:1]
    answers = {name: [good[name][1]] for name in good}  # nothing is asked
    bare = [{"prompt": ask}, {"prompt": ask, "chosen": [], "rejected": []}]
    batch = prepared(DPO, [good, pair("Four.", "Four."), answers, *bare, {"prompt": ask, "chosen": good["chosen"][1:]}])
    assert len(batch) == 1
    assert rejects(batch) == {2: "equal_sides", 3: "no_prompt", 4: "no_answer", 5: "no_answer", 6: "no_answer"}


def test_a_prompt_that_is_text_beside_conversations_is_the_one_they_begin_with() -> None:
    without = pair("Four.", "Five.")
    beside = {"prompt": "What is two and two?", **without}  # as UltraFeedback has it
    one, other = bp.testing.to_rows(prepared(DPO, [without, beside]))
    assert one == other


def test_as_many_rewards_as_responses() -> None:
    ask = [{"role": "user", "content": "Two and two?"}]
    rows = [
        {"prompt": ask, "responses": ["4", "5"], "rewards": [1.0, 0.0]},
        {"prompt": ask, "responses": ["4", "5"], "rewards": [1.0]},
    ]
    assert rejects(prepared(GRPO, rows)) == {2: "count_mismatch"}


def test_the_last_message_is_the_assistants() -> None:
    config = json.loads((ROOT / "configs" / "sft_last_turn_shifted.json").read_text())
    good = {"messages": pair("Four.", "")["chosen"]}
    bad = {"messages": [*good["messages"], {"role": "user", "content": "Sure?"}]}
    assert rejects(prepared(config, [good, bad])) == {2: "last_not_assistant"}


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


def shown(row: dict[str, Any], ids: str, mask: str) -> tuple[str, str]:
    """(text that is not trained, text that is), the first before the second."""
    tokens, trained = np.array(row[ids]), np.array(row[mask]) > 0
    assert not trained[: (~trained).sum()].any()
    return TOKENIZER.decode(tokens[~trained].tolist()), TOKENIZER.decode(tokens[trained].tolist())


@pytest.mark.parametrize("implicit", [False, True])
def test_the_prompt_of_a_chat_stands_once_and_is_not_trained(implicit: bool) -> None:
    batch = prepared(conversation(implicit_prompt=implicit), [record for record, _ in CHATS.values()])
    for row, (_, prompt) in zip(bp.testing.to_rows(batch), CHATS.values(), strict=True):
        assert shown(row, "chosen", "chosen_mask") == (prompt, f"A heron.{EOS}")
        assert shown(row, "rejected", "rejected_mask") == (prompt, f"A robin.{EOS}")


def test_the_prompt_of_a_completion_stands_once() -> None:
    records = [{"prompt": record["prompt"], "completion": record["chosen"]} for record, _ in CHATS.values()]
    both = {"template": "conversation"}
    sections = [{"field": "prompt", "action": "mask", **both}, {"field": "completion", "action": "train", **both}]
    batch = prepared({"input": {"sections": sections, "chat_template": TEMPLATE}}, records)
    for row, (_, prompt) in zip(bp.testing.to_rows(batch), CHATS.values(), strict=True):
        assert shown(row, "sequence", "loss_mask") == (prompt, f"A heron.{EOS}")


@pytest.mark.parametrize("encode", ["joint", "separate"])
def test_the_prompt_of_texts_stands_once(encode: str) -> None:
    records = [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {"prompt": "The sky is", "chosen": "The sky is blue.", "rejected": "The sky is green."},
    ]
    sources = {
        side: {"sections": [{"field": "prompt", "action": "mask"}, {"field": side, "action": "train"}]}
        for side in ("chosen", "rejected")
    }
    rows = bp.testing.to_rows(prepared({"input": {"sources": sources}, "preprocessing": {"encode": encode}}, records))
    assert len(rows) == 2
    for row in rows:
        assert shown(row, "chosen", "chosen_mask") == ("The sky is", " blue.")
        assert shown(row, "rejected", "rejected_mask") == ("The sky is", " green.")


def test_a_side_with_another_prompt_is_a_reject_that_shows_both() -> None:
    other = {"role": "user", "content": "Which tree bends?"}
    bad = {"prompt": [ASK], "chosen": [other, HERON], "rejected": [other, ROBIN]}
    assert messages(prepared(conversation(), [CHATS["explicit"][0], bad])) == {
        2: "a side has another prompt: the prompt ('prompt') is [user: \"Which bird wades?\"], 'chosen' is "
        '[user: "Which tree bends?", assistant: "A heron."]; wanted a side that begins with the prompt as it is, or '
        "one that holds only what follows it"
    }


def test_a_pair_of_alpaca_has_its_system_text_and_its_question() -> None:
    record = {"system": "Be brief.", "question": "Which bird wades?", "chosen": "A heron.", "rejected": "A robin."}
    adapter = {"name": "alpaca", "to": "preference", "instruction": "question"}
    (row,) = bp.testing.to_rows(prepared(conversation(adapter=adapter), [record]))
    assert shown(row, "chosen", "chosen_mask")[0] == WITH_SYSTEM


def test_sides_that_only_the_cut_makes_equal_say_so() -> None:
    long = "word " * 200
    config = {**DPO, "preprocessing": {**DPO.get("preprocessing", {}), "max_seq_len": 64}}
    rows = [pair("Four.", "Five."), pair(long + "yes", long + "no", "Say it."), pair(long, long, "Say it.")]
    rows.append(pair("Yes " + long, "No " + long))
    for template in ("conversation", "message"):
        given = json.loads(json.dumps(config).replace('"conversation"', f'"{template}"'))
        found = messages(prepared(given, rows))
        assert found.keys() == {2, 3}
        assert "all that differs is cut off" in found[2]
        assert "cut off" not in found[3]
