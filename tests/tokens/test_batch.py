"""Pieces of text -> rows of tokens: the exact ids, where BOS and special tokens go, and which records are left."""

from typing import Any

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenize import tokenize
from tests.chars import Chars, batch_of, chat, messages, outcomes, render, row, text, texts

# BOS


def test_bos_is_not_added_where_the_first_rendering_brings_it() -> None:
    template = "{% for m in messages %}{% if m.role == 'system' %}^{% endif %}{{ m.content }}{% endfor %}"
    rows = [{"messages": chat(*said)} for said in (("s x", "u hi"), ("u hi", "s x"), ("u h",))]
    assert texts(batch_of(rows, row(messages()), template=template)) == ["^xhi", "^hi^x", "^h"]


def test_a_text_sections_own_bos_stays_and_the_double_is_counted() -> None:
    """No golden shows it: BOS of the template sections, then the text section's own."""
    outputs = row(text("text"), messages())
    batch = batch_of([{"text": "ab", "messages": chat("u q")}, {"messages": chat("u q")}], outputs)
    assert texts(batch) == ["^^ab$u:q;", "^u:q;"]
    assert batch.counters["double_bos"].tolist() == [1, 0]


# Special tokens


@pytest.mark.parametrize(
    ("record", "wanted"),
    [({"a": "x", "b": "y"}, "^x$y"), *(({"a": a, "b": "y"}, "^y$") for a in (" \n\t ", None)), ({"a": "x"}, "^x$")],
)
def test_special_tokens_go_to_the_first_section_that_yields(record: dict[str, Any], wanted: str) -> None:
    assert texts(batch_of([record], row(text("a", "mask"), text("b")))) == [wanted]


# Which records are left


class Picky(Chars):
    """Has no token for `#`."""

    def encode(self, texts: Any, add_special_tokens: bool) -> Ragged:
        return super().encode([text.replace("#", "") for text in texts], add_special_tokens)


def test_segments_keep_their_places_where_rows_of_lists_go() -> None:
    outputs = row(text("a"), name="a", kind="list", mask="m"), row(text("b", special=False), name="b", mask=None)
    rows = [
        {"a": ["x", "#"], "b": "q"},
        {"a": ["#", ""], "b": "q"},
        {"a": ["yy", "", "zzz"], "b": "#"},
        {"a": [None, "u", "vv"], "b": "r"},
    ]
    batch = batch_of(rows, *outputs, encoder=Picky())
    assert outcomes(batch) == ["", "missing_source", "missing_source", ""]
    assert texts(batch, "a") == [["x", ""], ["", "u", "vv"]]
    segments = batch.segments["a"]
    assert list(zip(segments.start.tolist(), segments.stop.tolist(), segments.sequence.tolist(), strict=True)) == [
        (0, 1, 0),
        (1, 1, 1),
        (1, 2, 3),
        (2, 4, 4),
    ]


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"x": "a", "y": "b"}, ""),
        ({"x": "a"}, "missing_source"),
        ({"x": "", "y": None}, "empty"),
        ({"x": "a", "y": "#"}, "missing_source"),
        ({"x": "#", "y": "#"}, "empty"),
    ],
)
def test_a_record_needs_all_of_its_outputs_or_none(record: dict[str, Any], wanted: str) -> None:
    outputs = row(text("x", special=False), name="x", mask=None), row(text("y", special=False), name="y", mask=None)
    batch = batch_of([{"x": "k", "y": "l"}, record, {"x": "m", "y": "n"}], *outputs, encoder=Picky())
    assert outcomes(batch) == ["", wanted, ""]
    kept = ["k", record["x"], "m"] if not wanted else ["k", "m"]
    assert texts(batch, "x") == kept
    assert batch.line.tolist() == [line for line in range(3) if not wanted or line != 1]


# Batch


def two_rows() -> Batch:
    batch = batch_of([{"a": "x", "d": 1}, {"a": "yy"}, {"a": "zzz"}], row(text("a", special=False)))
    batch.segments = {}
    return batch


def test_dropped_and_rejected_rows_leave_the_batch_and_enter_the_ledger() -> None:
    batch = two_rows()
    batch.count("seen", np.array([1, 2, 3]))
    left = batch.drop(np.array([True, False, False]), "tired").reject(np.array([False, True]), "wrong", "it is")
    assert texts(left) == ["yy"]
    assert outcomes(left) == ["tired", "", "wrong"]
    assert left.ledger.messages == {2: "it is"}
    assert left.line.tolist() == [1]
    assert left.domain == ["__default__"]
    assert left.counters["seen"].tolist() == [2]


@pytest.mark.parametrize("rows", [[1, 2], [1, 0, 0], [True, False], [[True], [False], [False]]])
def test_rows_that_are_taken_out_are_given_as_a_mask(rows: list[Any]) -> None:
    """With numbers of rows, `drop` left all rows, and `reject` took out others."""
    batch = two_rows()
    with pytest.raises(ValueError, match=r"rows is .*, wanted a bool mask \[3\]"):
        batch.drop(np.array(rows), "tired")
    with pytest.raises(ValueError, match=r"rows is .*, wanted a bool mask \[3\]"):
        batch.reject(np.array(rows), "wrong", "it is")
    empty = batch.drop(np.ones(3, bool), "tired")
    assert len(empty.drop(np.array([]), "tired").reject(np.array([]), "wrong", "it is")) == 0


def test_counters_add_up_and_zeros_leave_none() -> None:
    batch = two_rows()
    batch.count("a", np.array([0, 0, 0]))
    batch.count("b", np.array([True, False, True]))
    batch.count("b", np.array([1, 1, 0]))
    assert {name: counts.tolist() for name, counts in batch.counters.items()} == {"b": [2, 1, 1]}


def test_two_consumers_of_one_batch_have_ledgers_of_their_own() -> None:
    """`batches | Truncate(...)` beside `batches | Shard(...)`: what one drops, the other keeps."""
    batch = two_rows()
    one = batch.drop(np.array([True, False, False]), "tired")
    other = batch.reject(np.array([False, True, True]), "wrong", "it is")
    assert [outcomes(each) for each in (batch, one, other)] == [["", "", ""], ["tired", "", ""], ["", "wrong", "wrong"]]
    assert (batch.ledger.messages, other.ledger.messages) == ({}, {1: "it is", 2: "it is"})
    rendered = render([{"messages": chat("s x")}], row(messages()), template="")
    assert outcomes(tokenize(rendered, Chars(), None)) == ["empty"]
    assert outcomes(rendered) == [""]
