"""`input.rollouts`: ids of prompts and responses, and what belongs to them, come out as they went in."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.reading.rollouts import RolloutFields
from beam_prep.shards.layout import finalize_columns
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import truncate
from beam_prep.tokens.tokenize import from_rollouts
from tests.chars import outcomes

MAX_ID = 99
ALL = RolloutFields(
    loss_mask="loss_mask",
    logprobs="logprobs",
    rewards="rewards",
    policy_version="version",
    values=(("advantages", "adv"),),
    texts=(("answer", "gold"),),
)
ONE = RolloutFields(**{name: getattr(ALL, name) for name in ALL.__slots__} | {"grouped": False})
GROUP: dict[str, Any] = {
    "prompt_ids": [5, 6],
    "response_ids": [[7, 8, 9], [], [10]],
    "loss_mask": [[1, 0, 1], [], [True]],
    "logprobs": [[-0.5, 0, -1.25], [], [-2.0]],
    "rewards": [1, 0.0, 0.5],
    "version": 3,
    "adv": [0.25, -1, 0],
    "gold": "zwölf",
}
SINGLE: dict[str, Any] = {**GROUP, "response_ids": [7, 8], "loss_mask": [0, 1], "logprobs": [-0.5, -0.25]}
SINGLE |= {"rewards": 1, "adv": 0.25, "gold": ""}


def batch_of(*records: Any, fields: RolloutFields = ALL) -> Batch:
    return from_rollouts(bp.testing.records(records), fields, MAX_ID)


def test_a_record_of_one_response() -> None:
    (row,) = bp.testing.to_rows(batch_of(SINGLE, fields=ONE))
    assert (row["response_ids"], row["loss_mask"], row["logprobs"]) == ([7, 8], [0, 1], [-0.5, -0.25])
    assert (row["rewards"], row["advantages"], row["answer"]) == ([1], [0.25], [])


def test_a_record_without_any_of_the_fields_is_empty() -> None:
    assert outcomes(batch_of({}, {"other": 1}, {"response_ids": [], "prompt_ids": None})) == ["empty"] * 3


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt_ids": None}, "missing_source", "field 'prompt_ids' is absent, null or empty"),
    ({"response_ids": [[], [], []]}, "missing_source", "field 'response_ids' has no token"),
    ({"prompt_ids": [5, 6.0]}, "wrong_type", "'prompt_ids[1]' is a number (6.0), wanted a token id"),
    ({"prompt_ids": [5, -1]}, "bad_id", "'prompt_ids[1]' is a number (-1), wanted a token id, 0 to 99"),
    ({"response_ids": [7, 8]}, "wrong_type", "'response_ids[0]' is a number (7), wanted a list"),
    ({"response_ids": [[7, 8, 9], []]}, "count_mismatch", "2 response_ids, 3 loss_mask: wanted as many of each"),
    ({"loss_mask": [[1, 0], [], [1]]}, "count_mismatch", "'loss_mask[0]' has 2 values, wanted 3: one for each"),
    ({"adv": [1, 0, 1, 1]}, "count_mismatch", "3 response_ids, 4 adv"),
    ({"loss_mask": [[1, 0, 2], [], [1]]}, "wrong_type", "'loss_mask[0][2]' is a number (2), wanted 0 or 1"),
    ({"logprobs": [[-0.5, 0, -1e39], [], [-2.0]]}, "bad_number", "a number does not fit the dtype of its column"),
    ({"rewards": [1, 0, 1e39]}, "bad_number", "a number does not fit the dtype of its column: rewards (float32)"),
    ({"rewards": 1}, "wrong_type", "field 'rewards' is a number (1), wanted a list, a number for each response"),
    ({"rewards": [1, 0, True]}, "wrong_type", "field 'rewards[2]' is a boolean (true), wanted a number"),
    ({"rewards": [1, 0, 2**53 + 1]}, "bad_number", "field 'rewards[2]' is a number (9007199254740993)"),
    ({"gold": 12}, "wrong_type", "field 'gold' is a number (12), wanted a string"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason", "message"), BAD)
def test_what_is_wrong_is_a_reject(change: Any, reason: str, message: str) -> None:
    batch = finalize_columns(batch_of(GROUP, {**GROUP, **change}, GROUP), "drop", {})
    assert outcomes(batch) == ["", reason, ""]
    assert batch.ledger.messages[1].startswith(message)
    assert len(batch) == 2


def test_a_record_of_one_response_has_one_number_of_each() -> None:
    assert (
        outcomes(batch_of(*({**SINGLE, key: [1]} for key in ("rewards", "version", "adv")), fields=ONE))
        == ["wrong_type"] * 3
    )
    assert outcomes(batch_of(GROUP, fields=ONE)) == outcomes(batch_of(SINGLE)) == ["wrong_type"]


def test_a_group_in_which_nothing_is_trained() -> None:
    bare = {**GROUP, "loss_mask": [[0, 0, 0], [], [0]]}
    part = {**GROUP, "loss_mask": [[0, 0, 0], [], [1]]}
    for rows_without_loss, wanted in (("drop", "rows_without_loss"), ("reject", "rows_without_loss"), ("keep", "")):
        assert outcomes(finalize_columns(batch_of(bare, part), rows_without_loss, {})) == [wanted, ""]  # type: ignore[arg-type]


def test_long_rollouts_are_dropped_with_their_group() -> None:
    found = [outcomes(truncate(batch_of(GROUP), length, "drop")) for length in (3, 2)]
    assert found == [[""], ["too_long"]]


# Properties

IDS = st.lists(st.integers(0, MAX_ID), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    responses = draw(st.lists(IDS, min_size=1, max_size=4).filter(any))
    count = len(responses)
    return {
        "prompt_ids": draw(st.lists(st.integers(0, MAX_ID), min_size=1, max_size=6)),
        "response_ids": responses,
        "loss_mask": [[draw(st.integers(0, 1)) for _ in each] for each in responses],
        "logprobs": [[draw(FLOATS) for _ in each] for each in responses],
        "rewards": draw(st.lists(FLOATS, min_size=count, max_size=count)),
        "version": draw(st.one_of(st.integers(-(2**53), 2**53), st.just([draw(st.integers(0, 9))] * count))),
        "adv": draw(st.one_of(FLOATS, st.lists(FLOATS, min_size=count, max_size=count))),
        "gold": draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    }


COLUMNS = "advantages answer logprobs loss_mask policy_version prompt_ids response_ids rewards".split()


def flat(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in flat(each)] if isinstance(value, list) else [value]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(groups(), min_size=1, max_size=4))
def test_what_goes_in_comes_out(records: list[dict[str, Any]]) -> None:
    batch = finalize_columns(batch_of(*records), "keep", {"loss_mask": "bool"})
    assert outcomes(batch) == [""] * len(records)
    for record, row in zip(records, bp.testing.to_rows(batch), strict=True):
        assert sorted(row) == COLUMNS
        assert (row["prompt_ids"], row["response_ids"]) == (record["prompt_ids"], record["response_ids"])
        assert row["loss_mask"] == record["loss_mask"]
        assert bytes(row["answer"]).decode() == record["gold"]
        assert row["policy_version"] == flat(record["version"])
        assert [len(each) for each in row["logprobs"]] == [len(each) for each in record["response_ids"]]
        for column, key in (("logprobs", "logprobs"), ("rewards", "rewards"), ("advantages", "adv")):
            bits = np.array(flat(record[key]), np.float32).tobytes()  # -0.0 is not 0.0
            assert np.array(flat(row[column]), np.float32).tobytes() == bits


JUNK = st.one_of(
    st.none(), st.booleans(), st.text(max_size=2), st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70), st.just([]), st.just({}), st.just([[1]]), st.just([None]), st.just([[]]),
    st.just(10**300), st.lists(st.integers(-2, 200), max_size=4), st.dictionaries(st.text(max_size=1), st.none()),
)  # fmt: skip
REASONS = {"", "empty", "missing_source", "wrong_type", "bad_id", "bad_number", "count_mismatch", "duplicate_key"}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(groups(), st.data())
def test_a_damaged_record_is_a_reject_and_its_neighbours_are_kept(record: dict[str, Any], data: st.DataObject) -> None:
    damaged = copy.deepcopy(record)
    for _ in range(data.draw(st.integers(1, 3))):
        holder: Any = damaged
        key: Any = data.draw(st.sampled_from(sorted(damaged)))
        while isinstance(holder[key], list) and holder[key] and data.draw(st.booleans()):
            holder, key = holder[key], data.draw(st.integers(0, len(holder[key]) - 1))
        holder[key] = copy.deepcopy(data.draw(JUNK))  # else one list may come to lie in itself
    batch = finalize_columns(batch_of(record, damaged, record), "keep", {})
    found = outcomes(batch)
    assert (found[0], found[2]) == ("", "")
    assert found[1] in REASONS
    if found[1] == "":  # then every list is as long as it must be
        row = bp.testing.to_rows(batch)[1]
        lengths = [len(each) for each in row["response_ids"]]
        assert [len(each) for each in row["loss_mask"]] == [len(each) for each in row["logprobs"]] == lengths
        assert len(row["rewards"]) == len(lengths)
        assert 0 <= min(flat(row["response_ids"])) <= max(flat(row["response_ids"])) <= MAX_ID
