"""`output.loss_weights`: a weight for each token, from the weights of its message and its record."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.schema import Output, Section
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import RoleMask, build_mask
from beam_prep.tokens.tokenize import from_tokens
from tests.chars import batch_of, outcomes, texts, trained
from tests.chat.trained import say as said
from tests.conftest import Run, chat_config, prepared

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{{ 'a:' if add_generation_prompt }}"
OUTPUTS = {
    "message": [Section("messages", "$role", "message")],
    "all": [Section("messages", "train", "conversation")],
    "role": [Section("messages", "$role", "conversation")],
    "last": [Section("messages", "$last", "conversation")],
    "prompt": [Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")],
}
NUMBERS = st.one_of(st.sampled_from([0, 1, 0.0, 1.0, 0.5, 2, 1e-12, 1e12]), st.floats(1e-6, 1e6))


def output(*sections: Section) -> Output:
    return Output("sequence", "ids", sections, "loss_mask", weights_name="loss_weights")


def masked(name: str, record: dict[str, Any]) -> Batch:
    record = {"prompt": [said("user", "q")], **record}
    batch = batch_of([record], output(*OUTPUTS[name]), template=TEMPLATE)
    return build_mask(batch, RoleMask({"assistant": "train"}))


def shown(batch: Batch) -> list[tuple[str, float]]:
    """(characters, weight) of each run of equal weights of the only row."""
    found = zip(texts(batch)[0], batch["loss_weights"].to_lists()[0], strict=True)
    runs = itertools.groupby(found, lambda pair: pair[1])
    return [("".join(character for character, _ in run), weight) for weight, run in runs]


TALK = [said("user", "hi"), said("assistant", "bc", weight=0.5), said("user", "d"), said("assistant", "efg")]


TWO = [said("user", "b", weight=2), said("assistant", "c")]
TWICE = said("assistant", "c", weight=2)
PART = [("u:q;a:", 0), ("bc;", 0.5), ("u:", 0), ("d", 1), (";a:", 0), ("efg;", 1)]
FOURTH = [("u:hi;a:", 0), ("bc;", 0.125), ("u:d;a:", 0), ("efg;", 0.25)]


@pytest.mark.parametrize(
    ("name", "record", "wanted"),
    [
        # A template for each message: all of its rendering has its weight.
        ("message", {"messages": TALK}, [("^u:hi;", 0), ("a:bc;", 0.5), ("u:d;", 0), ("a:efg;", 1)]),
        # One conversation: what the message says, and the end of its turn.
        ("role", {"messages": TALK, "weight": 0.25}, FOURTH),
        # What follows the prompt has the weight of the last message; an earlier one is trained by its own key only.
        ("last", {"messages": [TWO[1], TWICE]}, [("a:c;a:", 0), ("c;", 2)]),
        ("prompt", {"messages": [TWICE], "weight": 0.5}, [("u:q;a:", 0), ("c;", 1)]),
        # Several messages of other weights are each trained as with $role.
        ("prompt", {"messages": TALK[1:]}, PART),
    ],
)  # fmt: skip
def test_weights_by_hand(name: str, record: Any, wanted: Any) -> None:
    assert shown(masked(name, record)) == wanted


@pytest.mark.parametrize("name", OUTPUTS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 3)
@given(st.lists(st.one_of(st.none(), NUMBERS), min_size=1, max_size=5), st.one_of(st.none(), NUMBERS))
def test_a_weight_changes_no_mask_but_where_it_is_0(name: str, weights: list[Any], whole: float | None) -> None:
    """Above 0 exactly where the mask is 1; in sum, the weight of each message as often as it has trained tokens."""
    # The assistant is last, as `$last` wants it; each message is of a letter of its own.
    roles = [("assistant", "user")[(len(weights) - place + 1) % 2] for place in range(len(weights))]
    messages = [
        said(role, "bcdef"[place] * (place + 1), **({} if weight is None else {"weight": weight}))
        for place, (role, weight) in enumerate(zip(roles, weights, strict=True))
    ]
    if name == "last":
        messages = [said("user", "z"), *messages]
    # A prompt that a conversation may follow, whoever begins it.
    prompt = {"prompt": [said("system", "q")]}
    batch = masked(name, {**prompt, "messages": messages} | ({} if whole is None else {"weight": whole}))
    assert outcomes(batch) == [""]
    flat, mask = batch["loss_weights"].flat, batch["loss_mask"].flat
    assert flat.dtype == np.float32
    assert np.isfinite(flat).all()
    assert ((flat > 0) == (mask == 1)).all()
    record = 1.0 if whole is None else whole
    for weight, message in zip(weights, messages[-len(weights) :], strict=True):
        here = [letter in message["content"] for letter in texts(batch)[0]]
        found = flat[here]
        wanted = np.float32(record * (1.0 if weight is None else weight))
        assert set(found.tolist()) <= {0.0, float(wanted)}
        assert found.sum(dtype=np.float64) == pytest.approx(float(wanted) * int(mask[here].sum()))
    # The same conversation, each weight above 0 as 1: the same mask, where no rule trains the text around messages.
    if whole != 0 and name in ("message", "role"):
        ones = [m | ({"weight": float(m["weight"] != 0)} if "weight" in m else {}) for m in messages]
        assert trained(batch) == trained(masked(name, {"messages": ones}))


BAD = [
    (-1, "bad_weight", "is a number (-1), wanted 0, or a number from 1e-12 to 1e+12"),
    (10**400, "bad_number", "beyond a double"),
    (10**30, "bad_weight", "is a number (1000000000000000000000000000000), wanted 0, or"),
    (True, "wrong_type", "is a boolean (true), wanted 0, or"),
    ("1", "wrong_type", 'is a string ("1"), wanted 0, or'),
]


def reject_of(batch: Batch) -> tuple[str, str]:
    """The reason and the message of its only line."""
    ((_, reason),) = batch.ledger.outcomes
    return reason, batch.ledger.messages[0]


def talk(**own: Any) -> dict[str, Any]:
    return {"prompt": [said("user", "q")], "messages": [said("user", "b"), said("assistant", "c", **own)]}


@pytest.mark.parametrize(("weight", "reason", "message"), BAD)
def test_what_is_no_weight_is_a_reject(weight: Any, reason: str, message: str) -> None:
    of_message, of_record = masked("role", talk(weight=weight)), masked("role", {**talk(), "weight": weight})
    for batch, place in ((of_message, "'messages[1].weight' "), (of_record, "'weight' ")):
        found = reject_of(batch)
        assert found[0] == reason
        assert message in found[1] if reason == "bad_number" else found[1].startswith(place + message)


# Text, and rows that are tokenised already


def test_texts_have_the_weight_of_their_record() -> None:
    batch = batch_of(
        [{"text": "ab", "weight": 0.5}, {"text": "c"}, {"text": "d", "weight": None}, {"text": "e", "weight": 0}],
        output(Section("text", "train", None, False)),
    )
    batch = build_mask(batch, RoleMask())
    assert batch["loss_weights"].to_lists() == [[0.5, 0.5], [1], [1], [0]]
    assert batch["loss_mask"].to_lists() == [[1, 1], [1], [1], [0]]


def tokens(*records: Any) -> Batch:
    return from_tokens(bp.testing.records(records), output(), max_id=99)


def test_rows_of_ids_have_the_weights_of_record_and_token() -> None:
    batch = tokens(
        {"input_ids": [5, 6, 7], "loss_weights": [0.5, 0, 2], "weight": 3},
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_weights": [4, 0, 2]},
        {"input_ids": [5, 6], "loss_mask": [0, 1], "weight": 0.1},
        {"input_ids": [5], "weight": 0},
        {"input_ids": [5], "loss_weights": None},
    )
    third = float(np.float32(0.1))
    assert batch["loss_weights"].to_lists() == [[1.5, 0, 6], [0, 0, 2], [0, third], [0], [1]]
    assert batch["loss_mask"].to_lists() == [[1, 0, 1], [0, 0, 1], [0, 1], [0], [1]]


def test_rows_of_ids_with_bad_weights_are_rejects() -> None:
    bad: list[Any] = [[1], [1, [1]], [1, -1], [1, 1e13], [1, 1e-300]]
    found = tokens(*({"input_ids": [5, 6], "loss_weights": weights} for weights in bad))
    assert outcomes(found) == ["count_mismatch", "wrong_type", *["bad_weight"] * 3]


# Runs


LONG = [
    {"input_ids": [11, 12, 13, 14, 15], "labels": [-100, 12, 13, 14, 15], "loss_weights": [9, 1, 0.5, 0, 2]},
    {"input_ids": [21, 22, 23], "weight": 0.25},
    {"input_ids": [31, 32], "labels": [-100, 32], "weight": 0},
]


START = [[0, 1, 0.5, 0, 2], [0.25] * 3]
PACKED = [[*START[0], *START[1]]]


@pytest.mark.parametrize(
    ("preprocessing", "weights", "labels"),
    [
        ({}, START, [-100, 12, 13, -100, 15]),
        ({"shift": True}, [[1, 0.5, 0, 2], [0.25] * 2], [12, 13, -100, 15]),
        ({"max_seq_len": 3, "truncation_mode": "keep_end"}, [[0.5, 0, 2], [0.25] * 3], [13, -100, 15]),
        ({"padding": 4}, [[*START[0], 0, 0, 0], [*START[1], 0]], [-100, 12, 13, -100, 15, -100, -100, -100]),
        ({"packing_strategy": "bfd", "max_packed_len": 8}, PACKED, [-100, 12, 13, -100, 15, 21, 22, 23]),
    ],
)
def test_weights_go_with_their_labels(preprocessing: Any, weights: Any, labels: Any, run: Run) -> None:
    output = {"columns": "labels", "loss_weights": True}
    given = {"input": {"adapter": "tokenized"}, "preprocessing": preprocessing, "output": output}
    result = run(given, LONG, max_no_loss_rate=1)
    found = bp.open(result.output)
    found.verify()
    assert [row["loss_weights"].tolist() for row in found] == weights
    assert found[0]["labels"].tolist() == labels
    assert result.manifest["ledger"]["dropped"] == {"rows_without_loss": 1}


def test_ids_and_masks_are_those_without_weights_and_conversations_that_come_again_have_their_own() -> None:
    own: list[tuple[dict[str, Any], dict[str, Any], float]] = [
        ({}, {}, 1),
        ({"weight": 0.5}, {}, 0.5),
        ({}, {"weight": 4}, 4),
        ({"weight": 0.5}, {"weight": 4}, 2),
        ({"train": True}, {"weight": 8}, 8),
    ]
    records = [
        {"messages": [said("user", f"hi {n}"), said("assistant", "a b", **message)], **record}
        for n in range(20)
        for message, record, _ in own
    ]
    bare = [{"messages": [said(each["role"], each["content"]) for each in record["messages"]]} for record in records]
    plain, weighted = prepared(chat_config(), bare), prepared(chat_config(output={"loss_weights": True}), records)
    for one, other, (*_, weight) in zip(bp.testing.to_rows(plain), bp.testing.to_rows(weighted), own * 20, strict=True):
        assert other == {**one, "loss_weights": [weight * is_trained for is_trained in one["loss_mask"]]}


# OpenAI's `weight` of a message: 0 and 1 are its `train`; other numbers are rejects


WEIGHTS = st.sampled_from([None, 0, 1, 0.0, 1.0])


def trained_of(name: str, messages: list[dict[str, Any]]) -> tuple[Any, ...]:
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
    found = trained_of(name, by_weight)
    assert found == trained_of(name, by_train)
    twice = [{**one, **other} for one, other in zip(by_train, by_weight, strict=True)]
    assert found == trained_of(name, twice)
    if found[0] == [""] and name != "message":
        whole = "".join(f"{role[0]}:{content};" for role, content in turns)
        for (_, content), train in zip(turns, trains, strict=True):
            if train is not None:  # it has the last word, whatever the section says of messages that say nothing
                assert (content in found[2][0]) == train, (whole, found)


BAD_WEIGHTS: list[tuple[Any, str, str]] = [
    ({"weight": 0.5}, "bad_weight", "'messages[1].weight' is a number (0.5), wanted 0 or 1: there"),
    ({"weight": True}, "wrong_type", "'messages[1].weight' is a boolean (true), wanted 0 or 1"),
    ({"weight": "0"}, "wrong_type", "'messages[1].weight' is a string (\"0\"), wanted 0 or 1"),
    (
        {"weight": 2},
        "bad_weight",
        "'messages[1].weight' is a number (2), wanted 0 or 1: there are no loss weights"
        ' (of sections: "output": {"loss_weights": true})',
    ),
    ({"weight": 0, "train": True}, "bad_weight", "'messages[1]' has train true and weight 0, wanted one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "reason", "message"), BAD_WEIGHTS)
def test_weights_that_cannot_be_honoured_are_rejects(own: Any, reason: str, message: str) -> None:
    found = reject_of(batch_of([talk(**own)], Output("sequence", "ids", tuple(OUTPUTS["role"])), template=TEMPLATE))
    assert found[0] == reason
    assert found[1].startswith(message)
