"""Preference rows and rollouts that cannot teach anything are rejected, with the reason."""

import json
from typing import Any

import numpy as np

import beam_prep as bp
from beam_prep.tokens.batch import Batch
from tests.conftest import ROOT, prepared

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
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


def test_the_answer_of_each_side_is_trained() -> None:
    """Of messages as of texts, which are encoded together or apart."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    texts = {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}
    asked = {"prompt": [{"role": "user", "content": "Sky?"}]}
    chat = {**asked, **{side: [{"role": "assistant", "content": text}] for side, text in [*texts.items()][1:]}}
    for record, more, prompt in (
        (chat, {"template": "conversation"}, "<user>Sky?<assistant>"),
        (texts, {"encode": "joint"}, "The sky is"),
        (texts, {"encode": "separate"}, "The sky is"),
    ):
        rules = {"encode": more["encode"]} if "encode" in more else {}
        both = {} if rules else more
        sources = {
            side: {
                "sections": [{"field": "prompt", "action": "mask", **both}, {"field": side, "action": "train", **both}]
            }
            for side in ("chosen", "rejected")
        }
        given = {"sources": sources, **({} if rules else {"chat_template": template})}
        (row,) = bp.testing.to_rows(prepared({"input": given, "preprocessing": rules}, [record]))
        for side in ("chosen", "rejected"):
            tokens, trained = np.array(row[side]), np.array(row[f"{side}_mask"]) > 0
            assert TOKENIZER.decode(tokens[~trained].tolist()) == prompt
            assert TOKENIZER.decode(tokens[trained].tolist()) == texts[side]


def test_sides_that_only_the_cut_makes_equal_say_so() -> None:
    long = "word " * 200
    config = {**DPO, "preprocessing": {**DPO.get("preprocessing", {}), "max_seq_len": 64}}
    rows = [pair("Four.", "Five."), pair(long + "yes", long + "no", "Say it."), pair(long, long, "Say it.")]
    rows.append(pair("Yes " + long, "No " + long))
    batch = prepared(config, rows)
    assert rejects(batch) == {2: "equal_sides", 3: "equal_sides"}
    assert "all that differs is cut off" in batch.ledger.messages[1]
    assert "cut off" not in batch.ledger.messages[2]
