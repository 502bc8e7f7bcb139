"""OpenAI's `weight` of a message: 0 and 1 are its `train`, on every path; other numbers are rejects."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.schema import Output
from beam_prep.tokens.mask import RoleMask, build_mask
from tests.chars import batch_of, outcomes, texts, trained
from tests.conftest import prepared
from tests.test_loss_weights import OUTPUTS, TEMPLATE, said

WEIGHTS = st.sampled_from([None, 0, 1, 0.0, 1.0])


def masked(name: str, messages: list[dict[str, Any]]) -> tuple[Any, ...]:
    record = {"prompt": [said("user", "q")], "messages": messages}
    output = Output("sequence", "ids", tuple(OUTPUTS[name]), "loss_mask")
    batch = build_mask(batch_of([record], output, template=TEMPLATE), RoleMask({"assistant": "train"}))
    return outcomes(batch), texts(batch), trained(batch)


@pytest.mark.long
@pytest.mark.parametrize("name", OUTPUTS)
@given(st.lists(WEIGHTS, min_size=1, max_size=4), st.booleans())
def test_a_weight_is_what_train_would_be(name: str, weights: list[Any], both: bool) -> None:
    turns = [(("user", "assistant")[(place + len(weights)) % 2], "bcdefgh"[place]) for place in range(len(weights))]
    trains = [None if weight is None else bool(weight) for weight in weights]
    by_train = [said(*turn, train=train) for turn, train in zip(turns, trains, strict=True)]
    by_weight = [said(*turn, weight=weight) for turn, weight in zip(turns, weights, strict=True)]
    found = masked(name, by_weight)
    assert found == masked(name, by_train)
    twice = [{**one, **other} for one, other in zip(by_train, by_weight, strict=True)]
    assert found == masked(name, twice)
    if found[0] == [""] and name != "message":
        whole = "".join(f"{role[0]}:{content};" for role, content in turns)
        for (_, content), train in zip(turns, trains, strict=True):
            if train is not None:  # it has the last word, whatever the section says of messages that say nothing
                assert (content in found[2][0]) == train, (whole, found)


BAD: list[tuple[Any, str, str]] = [
    ({"weight": 0.5}, "bad_weight", "'messages[1].weight' is a number (0.5), wanted 0 or 1: there"),
    ({"weight": -1}, "bad_weight", "'messages[1].weight' is a number (-1), wanted 0 or 1"),
    ({"weight": 2}, "bad_weight", "'messages[1].weight' is a number (2), wanted 0 or 1"),
    ({"weight": True}, "wrong_type", "'messages[1].weight' is a boolean (true), wanted 0 or 1"),
    ({"weight": "0"}, "wrong_type", "'messages[1].weight' is a string (\"0\"), wanted 0 or 1"),
    ({"weight": [0]}, "wrong_type", "'messages[1].weight' is a list, wanted 0 or 1"),
    ({"weight": 0, "train": True}, "bad_weight", "'messages[1]' has train true and weight 0, wanted one of them"),
    ({"weight": 1.0, "train": False}, "bad_weight", "'messages[1]' has train false and weight 1.0, wanted one"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "own", "reason", "message"), [*(("role", *bad) for bad in BAD), *((name, *BAD[0]) for name in OUTPUTS)]
)
def test_weights_that_cannot_be_honoured_are_rejects(name: str, own: Any, reason: str, message: str) -> None:
    output = Output("sequence", "ids", tuple(OUTPUTS[name]), "loss_mask")
    record = {"prompt": [said("system", "q")], "messages": [said("user", "b"), said("assistant", "c", **own)]}
    ledger = batch_of([record], output, template=TEMPLATE).ledger
    assert ledger.outcomes[ledger.status[0] - 1] == ("rejected", reason)
    assert ledger.messages[0].startswith(message)


def test_part_of_a_completion_is_not_trained() -> None:
    messages = [said("assistant", "b", weight=0), said("user", "c"), said("assistant", "d")]
    ((text,), (shown,)) = masked("prompt", messages)[1:]
    assert text == "u:q;a:b;u:c;a:d;"
    assert [letter for letter in shown if letter.isalpha() and letter not in "ua"] == ["c", "d"]


def chats(key: str) -> list[dict[str, Any]]:
    """80 chats of a role and a content alone, then some of which messages say more."""

    def chat(number: int, *own: Any) -> list[dict[str, Any]]:
        turns = [
            ("user", f"What is {number}?"),
            ("assistant", "A number."),
            ("user", "And?"),
            ("assistant", f"{number}."),
        ]
        values = own or [None] * 4
        keys: list[dict[str, Any]] = [
            {} if value is None else {key: bool(value) if key == "train" else value} for value in values
        ]
        return [said(*turn, **more) for turn, more in zip(turns, keys, strict=True)]

    plain = [{"messages": chat(number)} for number in range(80)]
    return [*plain, *({"messages": chat(n, 0, n % 2, None, [0, 1.0][n % 3 == 0])} for n in range(80, 100))]


@pytest.mark.parametrize("kind", ["role", "last", "message", "sharegpt", "prompt", "preference", "implicit"])
def test_every_path_honours_weights(kind: str) -> None:
    conversation = {"template": "conversation"}
    sections: Any = [{"field": "messages", "action": "$last" if kind == "last" else "$role", **conversation}]
    given: dict[str, Any] = {"sections": sections}
    if kind == "message":
        given["sections"] = [{"field": "messages", "action": "$role", "template": True}]
    elif kind == "sharegpt":
        given["adapter"] = "sharegpt"
    elif kind in ("prompt", "preference", "implicit"):
        prompt, side = (
            {"field": name, "action": action, **conversation} for name, action in (("p", "mask"), ("c", "train"))
        )
        given = {"sections": [prompt, side]}
        if kind != "prompt":
            sides = {name: {"sections": [prompt, {**side, "field": name}]} for name in ("chosen", "rejected")}
            given = {"sources": sides, "implicit_prompt": kind == "implicit"}

    def shaped(record: dict[str, Any]) -> dict[str, Any]:
        messages = record["messages"]
        if kind == "sharegpt":
            return {
                "conversations": [
                    {"from": m["role"], "value": m["content"], **{k: m[k] for k in m if k in ("train", "weight")}}
                    for m in messages
                ]
            }
        if kind == "prompt":
            return {"p": messages[:1], "c": messages[1:]}
        other = [*messages[:-1], {**messages[-1], "content": "Nothing."}]
        if kind == "preference":
            return {"p": messages[:1], "chosen": messages[1:], "rejected": other[1:]}
        return {"chosen": messages, "rejected": other} if kind == "implicit" else record

    config = {"input": given, "mask": {"assistant": "train"}, "preprocessing": {"rows_without_loss": "keep"}}
    plain = [{"messages": [said(m["role"], m["content"]) for m in c["messages"]]} for c in chats("train")]
    weighted, trained, bare = (
        bp.testing.to_rows(prepared(config, [shaped(record) for record in records]))
        for records in (chats("weight"), chats("train"), plain)
    )
    assert len(weighted) == 100
    assert weighted == trained != bare
    assert weighted[:80] == bare[:80]
