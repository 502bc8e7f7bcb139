"""OpenAI's `weight` of a message: 0 and 1 are its `train`, on every path; other numbers are rejects."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_prep.data.schema import Output
from beam_prep.tokens.mask import RoleMask, build_mask
from tests.chars import batch_of, outcomes, texts, trained
from tests.test_loss_weights import OUTPUTS, TEMPLATE, said

WEIGHTS = st.sampled_from([None, 0, 1, 0.0, 1.0])


def masked(name: str, messages: list[dict[str, Any]]) -> tuple[Any, ...]:
    record = {"prompt": [said("user", "q")], "messages": messages}
    output = Output("sequence", "ids", tuple(OUTPUTS[name]), "loss_mask")
    batch = build_mask(batch_of([record], output, template=TEMPLATE), RoleMask({"assistant": "train"}))
    return outcomes(batch), texts(batch), trained(batch)


@pytest.mark.parametrize("name", OUTPUTS)
@settings(max_examples=settings().max_examples // 3)
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
    ({"weight": True}, "wrong_type", "'messages[1].weight' is a boolean (true), wanted 0 or 1"),
    ({"weight": "0"}, "wrong_type", "'messages[1].weight' is a string (\"0\"), wanted 0 or 1"),
    ({"weight": 0, "train": True}, "bad_weight", "'messages[1]' has train true and weight 0, wanted one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "reason", "message"), BAD)
def test_weights_that_cannot_be_honoured_are_rejects(own: Any, reason: str, message: str) -> None:
    output = Output("sequence", "ids", tuple(OUTPUTS["role"]), "loss_mask")
    record = {"prompt": [said("system", "q")], "messages": [said("user", "b"), said("assistant", "c", **own)]}
    ledger = batch_of([record], output, template=TEMPLATE).ledger
    assert ledger.outcomes[ledger.status[0] - 1] == ("rejected", reason)
    assert ledger.messages[0].startswith(message)


def test_part_of_a_completion_is_not_trained() -> None:
    messages = [said("assistant", "b", weight=0), said("user", "c"), said("assistant", "d")]
    ((text,), (shown,)) = masked("prompt", messages)[1:]
    assert text == "u:q;a:b;u:c;a:d;"
    assert [letter for letter in shown if letter.isalpha() and letter not in "ua"] == ["c", "d"]
