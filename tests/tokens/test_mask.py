"""Masks: what the loss is taken on, by section, role, and the message's own word; and rows with nothing to train."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.rendered import BY_ROLE, MASK, TRAIN, UNSET
from beam_prep.tokens.batch import Batch, Segments
from beam_prep.tokens.rows import RoleMask, build_mask, drop_rows_without_loss, to_labels
from tests.chars import batch_of, chat, messages, outcomes, row, text, trained

TALK = chat("s x", "u hi", "a yo", "u q", "a no")
PIECES = ("^", "s:x;", "u:hi;", "a:yo;", "u:q;", "a:no;")


def only(*turns: int) -> str:
    """TALK as a masked row in which these messages are trained."""
    return "".join(piece if turn in turns else "_" * len(piece) for turn, piece in enumerate(PIECES, -1))


def masked(rows: Any, *outputs: Any, roles: Any = None, default: Any = "mask", **options: Any) -> Batch:
    return build_mask(batch_of(rows, *outputs, **options), RoleMask(roles or {}, default))


# Roles


def test_bos_is_never_trained_unless_a_rendering_brings_it() -> None:
    rows = [{"messages": chat("u hi")}]
    assert trained(masked(rows, row(messages()), default="train")) == ["_u:hi;"]
    brought = masked(rows, row(messages()), default="train", template="^{{ messages[0].content }}")
    assert trained(brought) == ["^hi"]


def test_an_eos_that_the_tokenizer_adds_is_no_part_of_a_prompt() -> None:
    built = masked([{"a": "x", "b": "y"}], replace(row(text("a", "mask"), text("b")), joint=True))
    assert (trained(built), "prompt_not_prefix" in built.counters) == (["__y$"], False)


def test_last_is_found_in_each_element_of_a_list() -> None:
    rows = [{"r": [chat("a 1", "a 2"), chat("a 3"), []]}]
    batch = masked(rows, row(messages("r"), name="r", kind="list", mask="m"), roles={"assistant": "last"})
    assert batch["m"].to_lists() == [[[0] * 4 + [1] * 4, [1] * 4, []]]


# A message's own word


@pytest.mark.parametrize(
    ("action", "own", "wanted"),
    [
        ("$role", {}, [2, 4]),
        ("$role", {"t1": True, "t4": False}, [1, 2]),
        ("train", {"t0": False, "t3": False}, [1, 2, 4]),
        ("mask", {"t2": True, "t4": True}, []),
    ],
)
def test_a_messages_train_wins_but_not_in_a_masked_section(
    action: Any, own: dict[str, bool], wanted: list[int]
) -> None:
    talk = chat("s x", "u hi", "a yo", "u q", "a no", **own)
    batch = masked([{"messages": talk}], row(messages(action=action)), roles={"assistant": "train"})
    assert trained(batch) == [only(*wanted)]


@pytest.mark.parametrize("train", [1, "true"])
def test_a_train_that_is_no_boolean_is_rejected(train: Any) -> None:
    rows = [{"messages": [{"role": "user", "content": "x", "train": train}]}]
    assert outcomes(masked(rows, row(messages()))) == ["wrong_type"]


# Sections


def test_text_sections_are_trained_by_their_action_special_tokens_too() -> None:
    rows = [{"p": "ask", "r": "say"}, {"r": "say"}, {"p": "ask"}]
    batch = masked(rows, row(text("p", "mask"), text("r")))
    assert trained(batch) == ["_____say", "^say$", "_____"]


# Policies


@pytest.mark.parametrize("answer", [[1, 0], [True] * 6, [[True]] * 5])
def test_a_policy_that_gives_something_else_is_named(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"a mask policy gives bool \[5\], one a segment"):
        build_mask(batch_of([{"messages": TALK}], row(messages())), lambda segments: np.array(answer))


segments_of = st.lists(
    st.tuples(
        st.integers(0, 3),  # sequence
        st.sampled_from([MASK, TRAIN, BY_ROLE]),
        st.integers(0, 2),  # role
        st.integers(0, 4),  # turn
        st.sampled_from([UNSET, 0, 1]),
    ),
    max_size=12,
)


@given(
    segments_of,
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["train", "mask", "last"])),
    st.sampled_from(["train", "mask"]),
)
def test_role_mask_says_what_its_rules_say(found: list[tuple[int, ...]], rules: dict[str, Any], default: Any) -> None:
    found = [(at, action, role if action == BY_ROLE else UNSET, turn, own) for at, action, role, turn, own in found]
    sequence, action, role, turn, own = (np.array([entry[i] for entry in found], np.int64) for i in range(5))
    place = np.arange(len(found))
    segments = Segments(place, place + 1, sequence, action, role, turn, own, 0 * place, ("a", "b", "c"))
    wanted = []
    for at, how, code, number, word in found:
        if how == MASK:
            wanted.append(False)
        elif word != UNSET:
            wanted.append(word == 1)
        elif how == TRAIN:
            wanted.append(True)
        else:
            rule = rules.get("abc"[code], default)
            last = max(other[3] for other in found if other[0] == at and other[2] == code)
            wanted.append(rule == "train" or (rule == "last" and number == last))
    assert RoleMask(rules, default)(segments).tolist() == wanted


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.booleans()), max_size=10))
def test_a_token_that_any_trained_segment_covers_is_trained(spans: list[tuple[int, int, bool]]) -> None:
    """Segments of a conversation may overlap, and may be empty."""
    batch = batch_of([{"r": "x" * 26}], row(text("r", special=False)))
    count = len(spans)
    start, length, train = (np.array([span[i] for span in spans], np.int64) for i in range(3))
    zeros = np.zeros(count, np.int64)
    batch.segments["sequence"] = Segments(
        start, start + length, zeros, zeros + TRAIN, zeros + UNSET, zeros, zeros + UNSET, zeros, ()
    )
    built = build_mask(batch, lambda segments: train.astype(bool))
    covered = {token for first, size, kept in spans if kept for token in range(first, first + size)}
    assert built["loss_mask"].to_lists() == [[int(token in covered) for token in range(26)]]


# Nothing to train on


def untrained_rows() -> Batch:
    rows = [{"messages": chat("u q", "a b")}, {"messages": chat("u q")}, {"messages": chat("a b")}]
    return masked(rows, row(messages()), roles={"assistant": "train"})


def test_rows_without_a_trained_token_are_dropped_kept_or_rejected() -> None:
    assert outcomes(drop_rows_without_loss(untrained_rows(), "drop")) == ["", "rows_without_loss", ""]
    rejected = drop_rows_without_loss(untrained_rows(), "reject")
    assert outcomes(rejected) == ["", "rows_without_loss", ""]
    assert list(rejected.ledger.messages) == [1]
    assert trained(drop_rows_without_loss(untrained_rows(), "keep")) == ["_____a:b;", "_____", "_a:b;"]


def test_a_row_whose_only_trained_token_is_shifted_away_is_untrained() -> None:
    batch = masked([{"a": "x", "b": "yz"}, {"a": "x"}], row(text("a", special=False), text("b", "mask", special=False)))
    assert trained(batch) == ["x__", "x"]
    shifted = drop_rows_without_loss(to_labels(batch, shift=True), "drop")
    assert outcomes(shifted) == ["rows_without_loss", "too_short_to_shift"]


def test_a_row_needs_something_to_train_in_each_output_that_can_train() -> None:
    actions = {"x": "$role", "y": "$role", "p": "mask"}
    sides = [row(messages(name, action), name=name, mask=f"m{name}") for name, action in actions.items()]
    rows = [{"x": chat("a 1"), "y": chat(y), "p": chat("u q")} for y in ("a 2", "u 2")]
    batch = drop_rows_without_loss(masked(rows, *sides, roles={"assistant": "train"}), "drop")
    assert outcomes(batch) == ["", "rows_without_loss"]
