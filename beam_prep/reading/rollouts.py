"""Rollouts: the ids of a prompt and of its responses, with log probabilities, rewards and other values of records."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_prep.data.block import Reject
from beam_prep.data.ragged import Array
from beam_prep.reading.ids import check_list, check_types, read_bits, read_ids
from beam_prep.reading.json_line import describe
from beam_prep.reading.records import Record


@dataclass(frozen=True, slots=True)
class RolloutFields:
    """The record's key for each column; None: there is no such column.

    >>> bp.RolloutFields(logprobs="old_logprobs", values=(("advantages", "adv"),)).response_ids
    'response_ids'

    Attributes:
        prompt_ids: a list of ids.
        response_ids: a list of ids for each response; None: records are only prompts.
        loss_mask: a list of 0 and 1 for each response, one value for each of its ids.
        logprobs: a list of numbers for each response, one for each of its ids.
        rewards: a number for each response.
        policy_version: a number, or one for each response.
        values: (column, key) of further numbers.
        texts: (column, key) of texts, which are kept as UTF-8.
        grouped: True: a record has all responses to its prompt, in lists; False: it has one response.
    """

    prompt_ids: str = "prompt_ids"
    response_ids: str | None = "response_ids"
    loss_mask: str | None = None
    logprobs: str | None = None
    rewards: str | None = None
    policy_version: str | None = None
    values: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    grouped: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RolloutFields":
        """Makes it from `input.rollouts` of a config."""
        found: dict[str, Any] = dict(given)
        for name in ("values", "texts"):
            found[name] = tuple(found[name].items())
        return cls(**found)

    @property
    def numbers(self) -> dict[str, str]:
        """Column -> key, of the columns with numbers of the record or its responses."""
        named = {"rewards": self.rewards, "policy_version": self.policy_version}
        return {column: key for column, key in named.items() if key is not None} | dict(self.values)

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys that a record must have."""
        ids = [self.response_ids, self.loss_mask, self.logprobs, self.prompt_ids]
        keys = [key for key in ids if key is not None]
        return tuple(dict.fromkeys([*keys, *self.numbers.values(), *dict(self.texts).values()]))


@dataclass(slots=True)
class Rollout:
    """The rollouts of one record.

    Attributes:
        prompt: int32, the ids of the prompt.
        lengths: number of ids of each response.
        responses: int32, the ids of all responses; mask (uint8) and logprobs (float64), if any, have equal length.
        numbers: column -> its numbers.
        texts: column -> its text, as UTF-8 bytes (uint8).
    """

    prompt: Array
    lengths: list[int] = field(default_factory=list)
    responses: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    mask: Array | None = None
    logprobs: Array | None = None
    numbers: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, Array] = field(default_factory=dict)


def read_rollout(record: Record, fields: RolloutFields, max_id: int) -> Rollout | None:
    """The rollouts of a record; None if all fields are missing.

    Raises:
        Reject: `missing_source`: a field is missing. `wrong_type`, `bad_id`, `bad_number`, `bad_text`: a field holds a
            wrong value. `count_mismatch`: lists do not have the lengths that they must have.
    """
    missing = [key for key in fields.reads if record.get(key) is None or record[key] == []]
    if len(missing) == len(fields.reads):
        return None
    if missing:
        raise Reject("missing_source", f"field {missing[0]!r} is absent, null or empty")
    found = Rollout(read_ids(record[fields.prompt_ids], fields.prompt_ids, max_id))
    count = None
    if (name := fields.response_ids) is not None:
        responses = [read_ids(each, where, max_id) for where, each in _each(record, name, fields.grouped)]
        found.lengths = [len(each) for each in responses]
        found.responses = np.concatenate(responses)
        if not len(found.responses):
            raise Reject("missing_source", f"field {name!r} has no token")
        count = len(responses)
        found.mask = _aligned(record, fields, fields.loss_mask, found.lengths, read_bits)
        found.logprobs = _aligned(record, fields, fields.logprobs, found.lengths, _reals)
    for column, key in fields.numbers.items():
        found.numbers[column] = _numbers(record[key], key)
        _check_count(record, fields, column, key, count)
    for column, key in fields.texts:
        found.texts[column] = _text(record[key], key)
    return found


def _each(record: Record, name: str, grouped: bool) -> Iterator[tuple[str, Any]]:
    """(place, value) for each response."""
    if not grouped:
        yield name, record[name]
        return
    if not isinstance(record[name], list):
        raise Reject("wrong_type", f"field {name!r} is {describe(record[name])}, wanted a list of lists")
    for place, value in enumerate(record[name]):
        yield f"{name}[{place}]", value


def _aligned(record: Record, fields: RolloutFields, name: str | None, lengths: list[int], read: Any) -> Array | None:
    """The values for each id of all responses; None: there is no such column."""
    if name is None:
        return None
    each = list(_each(record, name, fields.grouped))
    if len(each) != len(lengths):
        counts = f"{len(lengths)} {fields.response_ids}, {len(each)} {name}"
        raise Reject("count_mismatch", f"{counts}: wanted as many of each")
    parts = []
    for (where, value), (beside, _), length in zip(
        each, _each(record, str(fields.response_ids), fields.grouped), lengths, strict=True
    ):
        check_list(value, where)
        if len(value) != length:
            found = f"{where!r} has {len(value)} values, {beside!r} {length}"
            raise Reject("count_mismatch", f"{found}: wanted as many of each")
        parts.append(read(value, where))
    return np.concatenate(parts)


def _reals(values: list[Any], where: str) -> Array:
    check_types(values, where, "a number", int, float)
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        raise Reject("bad_number", f"'{where}' holds a number beyond a double") from None
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise Reject("bad_number", f"'{where}[{wrong[0]}]' is {describe(values[wrong[0]])}, which JSON does not have")
    return numbers


def _numbers(value: Any, where: str) -> list[float]:
    """A number, or a list of numbers."""
    values = value if isinstance(value, list) else [value]
    return [exact_double(each, f"{where}[{place}]") for place, each in enumerate(values)]


def _check_count(record: Record, fields: RolloutFields, column: str, key: str, responses: int | None) -> None:
    """Checks that there is a number for each response, or one number for all, which is no list."""
    value = record[key]
    if not isinstance(value, list):
        if fields.grouped and column == "rewards":
            raise Reject("wrong_type", f"field {key!r} is {describe(value)}, wanted a list, a number for each response")
    elif not fields.grouped and responses is not None:
        raise Reject("wrong_type", f"field {key!r} is a list, wanted a number: the record is one response")
    elif responses is not None and len(value) != responses:
        found = f"{responses} {fields.response_ids}, {len(value)} {key}"
        raise Reject("count_mismatch", f"{found}: wanted as many of each")


LARGEST_EXACT = 2**53
"""All smaller integers, with either sign, are exact doubles."""


def exact_double(number: Any, where: str) -> float:
    """A number of a record as an exact double.

    Raises:
        Reject: `wrong_type`, or `bad_number`: no double holds it exactly.
    """
    if type(number) not in (int, float):
        raise Reject("wrong_type", f"field '{where}' is {describe(number)}, wanted a number")
    try:
        double = float(number)
    except OverflowError:
        raise Reject("bad_number", f"field '{where}' is beyond a double") from None
    if not math.isfinite(double):
        raise Reject("bad_number", f"field '{where}' is {describe(number)}, which JSON does not have")
    if double != number:
        raise Reject("bad_number", f"field '{where}' is {describe(number)}, wanted one that a double holds exactly")
    return double


def _text(value: Any, where: str) -> Array:
    """The UTF-8 bytes of a text."""
    if not isinstance(value, str):
        wanted = "wanted a string (anything else as a string of its JSON)"
        raise Reject("wrong_type", f"field {where!r} is {describe(value)}, {wanted}")
    try:
        return np.frombuffer(value.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise Reject("bad_text", f"character {error.start} of {where!r} is half of a surrogate pair") from None
