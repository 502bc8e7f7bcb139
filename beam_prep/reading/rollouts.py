"""Records that hold ids already: tokenised rows, and rollouts with log probabilities, rewards and other values."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_prep.data.block import Reject
from beam_prep.data.ragged import Array
from beam_prep.data.schema import IGNORE_INDEX
from beam_prep.reading.adapters import check_loss_weight
from beam_prep.reading.json_line import check_type, describe
from beam_prep.reading.records import Record

# Tokenised rows

_MASKS = ("loss_mask", "completion_mask", "assistant_masks")


def tokenized(record: Record, max_id: int) -> tuple[Array, Array] | None:
    """(ids int32 [n], mask uint8 [n]) of a tokenised record; None if `input_ids` is absent or null.

    The mask comes from `labels` (-100: not trained, otherwise the id itself, not shifted). Without labels, the mask is
    1 where all given masks (`loss_mask`, `completion_mask`, `assistant_masks`) are 1; without masks, it is 1.

    Args:
        record: the row.
        max_id: the largest id of the tokenizer.

    Raises:
        Reject: `wrong_type`, `bad_id`, `count_mismatch`, `labels_differ`, or `padded`.
    """
    if record.get("input_ids") is None:
        return None
    check_type(record["input_ids"], list, "'input_ids'", "a list")
    # Checked before the ids, because padding may have ids that the tokenizer lacks.
    attended = _beside(record, "attention_mask", len(record["input_ids"]), read_bits)
    if attended is not None and not attended.all():
        raise Reject("padded", "'attention_mask' has zeros, wanted rows without padding")
    ids = read_ids(record["input_ids"], "input_ids", max_id)
    labels = _beside(record, "labels", len(ids), _integers)
    if labels is not None:
        trained = labels != IGNORE_INDEX
        for place in np.flatnonzero(trained & (labels != ids))[:1]:
            found = f"'labels[{place}]' is {labels[place]} where the id is {ids[place]}"
            raise Reject("labels_differ", f"{found}, wanted that id or {IGNORE_INDEX} (labels that are not shifted)")
        return ids, trained.astype(np.uint8)
    masks = [_beside(record, name, len(ids), read_bits) for name in _MASKS]
    found_masks = [mask for mask in masks if mask is not None]
    return ids, np.bitwise_and.reduce([np.ones(len(ids), np.uint8), *found_masks])


def token_weights(record: Record, name: str, length: int) -> Array:
    """float64 [length]: the token weights of a tokenised record; 1 if it has none.

    Raises:
        Reject: `wrong_type`, `bad_weight`, or `count_mismatch`: their number is not `length`.
    """
    weights = _beside(record, name, length, _weights)
    return np.ones(length) if weights is None else weights


def _beside(record: Record, name: str, length: int, read: Callable[[list[Any], str], Array]) -> Array | None:
    """A field with a value for each id; None if absent or null."""
    values = record.get(name)
    if values is None:
        return None
    check_type(values, list, f"'{name}'", "a list")
    if len(values) != length:
        raise Reject("count_mismatch", f"{length} input_ids, {len(values)} {name}: wanted as many of each")
    return read(values, name)


def check_types(values: list[Any], where: str, wanted: str, *kinds: type) -> None:
    """Raises Reject (`wrong_type`) if a value has none of these types."""
    # The types of all values in one call: an array would take `true` and `1.0` for integers.
    if not set(map(type, values)) <= set(kinds):
        place = next(place for place, value in enumerate(values) if type(value) not in kinds)
        raise Reject("wrong_type", f"'{where}[{place}]' is {describe(values[place])}, wanted {wanted}")


def read_ids(values: Any, where: str, max_id: int) -> Array:
    """int32: a list of token ids.

    Raises:
        Reject: `wrong_type`, or `bad_id`.
    """
    check_type(values, list, f"'{where}'", "a list")
    check_types(values, where, "a token id", int)
    if values and not (min(values) >= 0 and max(values) <= max_id):
        place = next(place for place, value in enumerate(values) if not 0 <= value <= max_id)
        raise Reject(
            "bad_id", f"'{where}[{place}]' is {describe(values[place])}, wanted an id of the tokenizer, 0 to {max_id}"
        )
    return np.array(values, np.int32)


def read_bits(values: list[Any], where: str) -> Array:
    """uint8: a list of 0 and 1, or false and true.

    Raises:
        Reject: `wrong_type`.
    """
    check_types(values, where, "0 or 1", int, bool)
    if values and not (min(values) >= 0 and max(values) <= 1):
        place = next(place for place, value in enumerate(values) if value not in (0, 1))
        raise Reject("wrong_type", f"'{where}[{place}]' is {describe(values[place])}, wanted 0 or 1")
    return np.array(values, np.uint8)


def _integers(values: list[Any], where: str) -> Array:
    """Python integers, of any size."""
    check_types(values, where, "an integer", int)
    return np.array(values, object)


def _weights(values: list[Any], where: str) -> Array:
    for place, value in enumerate(values):
        check_loss_weight(value, f"{where}[{place}]")
    return np.array(values, np.float64)


# Rollouts


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
    check_type(record[name], list, f"field {name!r}", "a list of lists")
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
    for (where, value), length in zip(each, lengths, strict=True):
        check_type(value, list, f"'{where}'", "a list")
        if len(value) != length:
            found = f"{where!r} has {len(value)} values, its response has {length} ids"
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
        double = math.inf
    if not math.isfinite(double) or double != number:
        wanted = "wanted a finite number that a double holds exactly"
        raise Reject("bad_number", f"field '{where}' is {describe(number)}, {wanted}")
    return double


def _text(value: Any, where: str) -> Array:
    """The UTF-8 bytes of a text."""
    check_type(value, str, f"field {where!r}", "a string (anything else as a string of its JSON)")
    try:
        return np.frombuffer(value.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise Reject("bad_text", f"character {error.start} of {where!r} is half of a surrogate pair") from None
