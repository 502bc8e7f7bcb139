"""Digests of records: equal values have equal ones, whatever a record holds that can be read."""

import json
from collections import OrderedDict
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

import beam_prep as bp
from beam_prep.reading.keys import DUPLICATE, NO_KEY, SPLIT, form, key_records, normalized
from beam_prep.reading.records import dumped
from beam_prep.recipe import key_steps
from tests.compose import naive
from tests.compose.oracle import key_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def canonical(value: Any) -> bytes:
    return dumped(value, sort=True)


@given(VALUES)
def test_the_canonical_text_is_json_with_sorted_keys(value: Any) -> None:
    assert json.loads(canonical(value)) == value
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical(shuffled) == canonical(value)
    big = [value, 10**30]  # integers that orjson does not write
    assert canonical(big) == json.dumps(big, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


@given(VALUES, VALUES)
@example("\ufb01 A", "FI  a")
def test_a_value_is_equal_to_those_that_the_oracle_says(one: Any, other: Any) -> None:
    for how in ("none", "whitespace", "nfkc_casefold"):
        before = json.dumps(one)
        same = canonical(normalized([one], how)) == canonical(normalized([other], how))
        assert same == (key_of({"a": one}, ["a"], how) == key_of({"a": other}, ["a"], how))
        lines = [json.dumps({"a": value, "b": 1}) for value in (one, other)]
        found = key_records(bp.testing.records(lines), duplicate=("a", "b"), normalize=how).ledger
        if not found.status.any():  # numbers beyond a double are rejects
            first, second = found.digests[DUPLICATE].tolist()
            assert (first == second) == same
        assert canonical(normalized(normalized(one, how), how)) == canonical(normalized(one, how))
        assert json.dumps(one) == before


def test_digests_are_what_earlier_versions_made() -> None:
    """Another digest would put other records into each split."""
    lines = ['{"b": 1, "a": "é"}', '{"a": null}', '{"a": 2.50, "big": 123456789012345678901234567890}']
    records = bp.testing.records(lines)
    whole = key_records(records, split=True).ledger.digests[SPLIT]
    assert whole.tolist() == [naive.split_digest(json.loads(line)) for line in lines]
    assert whole.tolist() == [8328051787880320142, 13723916651595322929, 12574773168616205508]
    named = key_records(records, split=True, split_key="a", reject_missing=False).ledger.digests[SPLIT]
    assert named.tolist() == [naive.key_digest("é"), NO_KEY, naive.key_digest(2.5)]


def test_records_without_what_is_digested_are_rejected_or_have_no_key() -> None:
    records = bp.testing.records([{"a": None, "b": 1}, {"a": 0, "b": None}, {"a": False}, {"a": "", "c": 1}])
    found = key_records(records, split=True, split_key="a", duplicate=("b", "c"))
    assert [found.ledger.messages.get(line) for line in range(4)] == [
        "the record has no 'a', which decides its split",
        "the record has no 'b' and 'c', by which records are compared",
        "the record has no 'b' and 'c', by which records are compared",
        None,
    ]
    reasons = [found.ledger.outcomes[code - 1][1] for code in found.ledger.status[:3]]
    assert reasons == ["no_split_key", "no_key", "no_key"]
    assert found.line.tolist() == [3]
    kept = key_records(records, split=True, split_key="a", reject_missing=False).ledger
    assert (kept.digests[SPLIT] == NO_KEY).tolist() == [True, False, False, False]
    assert not kept.status.any()
    assert np.unique(kept.digests[SPLIT]).size == 4


CHAT: dict[str, Any] = {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]}
HI = {"conversations": [{"from": "human", "value": "Hi"}]}


@pytest.mark.parametrize(
    ("settings", "one", "other"),
    [
        (CHAT | {"adapter": "alpaca"}, {"instruction": "a", "output": "b", "input": "c"}, {"input": "d"}),
        (CHAT | {"adapter": {"name": "alpaca", "input": "x"}}, {"instruction": "a", "output": "b"}, {"x": "d"}),
        (CHAT | {"adapter": "sharegpt"}, {"system": "a", **HI}, {"system": "b"}),
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}, {"tools": [{"name": "a"}]}),
        ({"adapter": "tokenized"}, {"input_ids": [1, 2], "labels": [-100, 2]}, {"labels": [1, 2]}),
    ],
)
def test_records_that_differ_in_an_optional_field_that_is_read_are_no_copies(
    settings: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    config = bp.PipelineConfig.from_dict({"input": settings, "preprocessing": {"deduplicate": {}}})
    (step,) = key_steps(config)
    records = bp.testing.records([one, one | other, one | {"id": 1}])
    first, changed, copy = step.step()(records).ledger.digests[DUPLICATE].tolist()
    assert first == copy != changed


def test_messages_of_subclasses_are_duplicates_of_plain_ones() -> None:
    """A user's own step may give them."""

    class Word(str):
        __slots__ = ()

    plain = {"role": "user", "content": "Hi."}
    others = OrderedDict(plain), {"role": Word("user"), "content": "Hi."}, {**plain, "content": Word("Hi.")}
    assert {form([each]) for each in others} == {form([plain])}
