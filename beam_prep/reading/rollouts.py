"""Records that hold ids already: tokenised rows, and rollouts with log probabilities, rewards and other values."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.block import Reason, Reject
from beam_prep.data.ragged import Array
from beam_prep.data.schema import IGNORE_INDEX, Action, Column, Output, Section
from beam_prep.reading.adapters import check_loss_weight
from beam_prep.reading.records import Record, check_type, describe


class _Kind(NamedTuple):
    """The numbers that a list may hold: their types, the least and the greatest, and why another one is rejected."""

    wanted: str
    types: tuple[type, ...]
    low: float
    high: float
    dtype: str
    reason: Reason = "wrong_type"


_BITS = _Kind("0 or 1", (int, bool), 0, 1, "uint8")
_REALS = _Kind("a finite number", (int, float), -sys.float_info.max, sys.float_info.max, "float64", "bad_number")


def _ids(max_id: int) -> _Kind:
    return _Kind(f"a token id, 0 to {max_id}", (int,), 0, max_id, "int32", "bad_id")


def _listed(values: Any, where: str, kind: _Kind, length: int | None = None) -> Array:
    """A list of numbers.

    Args:
        values: the list.
        where: its place in the record.
        kind: its numbers.
        length: how many there must be, one for each token id.

    Raises:
        Reject: `wrong_type`, `count_mismatch`, or the reason of the kind.
    """
    check_type(values, list, f"'{where}'", "a list")
    if length is not None and len(values) != length:
        raise Reject("count_mismatch", f"'{where}' has {len(values)} values, wanted {length}: one for each token id")
    # An array alone would take `true` and `1.0` for integers.
    are_numbers = set(map(type, values)) <= set(kind.types)
    if are_numbers:
        found = np.array(values)
        wrong = np.flatnonzero(~((found >= kind.low) & (found <= kind.high)))
    else:
        wrong = np.array([place for place, value in enumerate(values) if type(value) not in kind.types])
    if len(wrong):
        first = f"'{where}[{wrong[0]}]' is {describe(values[wrong[0]])}"
        raise Reject(kind.reason if are_numbers else "wrong_type", f"{first}, wanted {kind.wanted}")
    return found.astype(kind.dtype)


# Tokenised rows

_MASKS = ("loss_mask", "completion_mask", "assistant_masks")

_DOCUMENTS: dict[str, Callable[[list[Any]], int]] = {
    "position_ids": lambda positions: positions.count(0),
    "seq_lengths": len,
    "seq_lens": len,
}
"""Column of a packed row -> its number of documents. Packed again as one document, they would see each other."""


def tokenized(record: Record, max_id: int) -> tuple[Array, Array] | None:
    """(ids int32 [n], mask uint8 [n]) of a tokenised record; None if `input_ids` is absent or null.

    The mask is 1 where all given masks (`loss_mask`, `completion_mask`, `assistant_masks`) are 1, and the label in
    `labels`, if there are some, is the id itself and not -100 (labels are not shifted). TRL's collator does the same.

    Args:
        record: the row.
        max_id: the largest id of the tokenizer.

    Raises:
        Reject: `wrong_type`, `bad_id`, `count_mismatch`, `labels_differ`, `padded`, or `packed`.
    """
    if record.get("input_ids") is None:
        return None
    check_type(record["input_ids"], list, "'input_ids'", "a list")
    length = len(record["input_ids"])
    given = [name for name in ("attention_mask", *_MASKS) if record.get(name) is not None]
    masks = {name: _listed(record[name], name, _BITS, length) for name in given}
    # Checked before the ids, because padding may have ids that the tokenizer lacks.
    if "attention_mask" in masks and not masks["attention_mask"].all():
        raise Reject("padded", "'attention_mask' has zeros, wanted rows without padding")
    for name, documents in _DOCUMENTS.items():
        if isinstance(said := record.get(name), list) and (count := documents(said)) > 1:
            raise Reject("packed", f"{name!r} says that the row holds {count} documents, wanted a row for each")
    ids = _listed(record["input_ids"], "input_ids", _ids(max_id))
    mask = np.bitwise_and.reduce([np.ones(length, np.uint8), *masks.values()])
    if record.get("labels") is None:
        return ids, mask
    kind = _Kind(f"an id, or {IGNORE_INDEX}", (int,), IGNORE_INDEX, max_id, "int32", "labels_differ")
    labels = _listed(record["labels"], "labels", kind, length)
    trained = labels != IGNORE_INDEX
    for place in np.flatnonzero(trained & (labels != ids))[:1]:
        found = f"'labels[{place}]' is {labels[place]} where the id is {ids[place]}"
        raise Reject("labels_differ", f"{found}, wanted that id or {IGNORE_INDEX} (labels that are not shifted)")
    return ids, mask & trained


def token_weights(record: Record, name: str, length: int) -> Array:
    """float64 [length]: the token weights of a tokenised record; 1 if it has none.

    Raises:
        Reject: `wrong_type`, `bad_weight`, or `count_mismatch`: their number is not `length`.
    """
    values = record.get(name)
    if values is None:
        return np.ones(length)
    weights = _listed(values, name, _REALS, length)
    for place, value in enumerate(values):
        check_loss_weight(value, f"{name}[{place}]")
    return weights


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
        pairs = {name: tuple(given[name].items()) for name in ("values", "texts")}
        return cls(**{**given, **pairs})

    @property
    def columns(self) -> dict[Column, str]:
        """Column -> the key that a record must have for it."""
        depth = 2 if self.grouped else 1
        found = {
            Column("response_ids", "int32", depth, "ids"): self.response_ids,
            Column("loss_mask", "int32", depth, "mask", of="response_ids"): self.loss_mask,
            Column("logprobs", "float32", depth, "token_value", of="response_ids"): self.logprobs,
            Column("prompt_ids", "int32", 1, "ids"): self.prompt_ids,
            Column("rewards", "float32", 1, "value"): self.rewards,
            Column("policy_version", "int64", 1, "value"): self.policy_version,
            **{Column(name, "float32", 1, "value"): key for name, key in self.values},
            **{Column(name, "uint8", 1, "text"): key for name, key in self.texts},
        }
        return {column: key for column, key in found.items() if key is not None}

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that each record becomes. Their sections name columns."""
        actions: dict[str, Action] = {"response_ids": "train", "prompt_ids": "mask"}
        return tuple(
            Output(
                column.name,
                "list" if column.role == "ids" and column.depth == 2 else column.role,  # type: ignore[arg-type]
                (Section(column.name, actions.get(column.name, "value")),),
                "loss_mask" if column.name == "response_ids" and self.loss_mask else None,
            )
            for column in self.columns
            if column.role != "mask"
        )


def read_rollout(record: Record, fields: RolloutFields, max_id: int) -> dict[str, list[Array]] | None:
    """Column -> its lists in a record, one for each response; None if all fields are missing.

    Values are ids (int32), masks (uint8), log probabilities and numbers (float64), and texts as UTF-8 (uint8).

    Raises:
        Reject: `missing_source`: a field is missing. `wrong_type`, `bad_id`, `bad_number`, `bad_text`: a field holds a
            wrong value. `count_mismatch`: lists do not have the lengths that they must have.
    """
    columns = fields.columns
    missing = [key for key in columns.values() if record.get(key) is None or record[key] == []]
    if len(missing) == len(columns):
        return None
    if missing:
        raise Reject("missing_source", f"field {missing[0]!r} is absent, null or empty")
    found: dict[str, list[Array]] = {}
    kinds = {"ids": _ids(max_id), "mask": _BITS, "token_value": _REALS}
    for column, key in columns.items():
        value, responses = record[key], found.get("response_ids", [])
        is_listed = isinstance(value, list) and fields.grouped and column.role in ("value", "mask", "token_value")
        if is_listed and responses and len(value) != len(responses):
            counts = f"{len(responses)} {fields.response_ids}, {len(value)} {key}"
            raise Reject("count_mismatch", f"{counts}: wanted as many of each")
        if column.role == "text":
            found[column.name] = [_text(value, key)]
        elif column.role == "value":
            numbers = value if isinstance(value, list) else [value]
            found[column.name] = [np.array([exact_double(each, f"{key}[{at}]") for at, each in enumerate(numbers)])]
            if responses and not fields.grouped:
                check_type(value, int | float, f"field {key!r}", "a number: the record is one response")
            elif column.name == "rewards":
                check_type(value, list, f"field {key!r}", "a list, a number for each response")
        else:
            lists = {key: value}
            if column.depth == 2:
                check_type(value, list, f"field {key!r}", "a list of lists")
                lists = {f"{key}[{place}]": each for place, each in enumerate(value)}
            lengths = [None] * len(lists) if column.of is None else [*map(len, responses)]
            found[column.name] = [
                _listed(each, where, kinds[column.role], length)
                for (where, each), length in zip(lists.items(), lengths, strict=True)
            ]
            if not sum(map(len, found[column.name])):
                raise Reject("missing_source", f"field {key!r} has no token")
    return found


def exact_double(number: Any, where: str) -> float:
    """A number of a record as an exact double.

    Raises:
        Reject: `wrong_type`, or `bad_number`: no double holds it exactly.
    """
    if type(number) not in (int, float):
        raise Reject("wrong_type", f"field '{where}' is {describe(number)}, wanted a number")
    if not abs(number) <= sys.float_info.max or float(number) != number:  # also for NaN
        wanted = "wanted a finite number that a double holds exactly"
        raise Reject("bad_number", f"field '{where}' is {describe(number)}, {wanted}")
    return float(number)


def _text(value: Any, where: str) -> Array:
    """The UTF-8 bytes of a text."""
    check_type(value, str, f"field {where!r}", "a string (anything else as a string of its JSON)")
    try:
        return np.frombuffer(value.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise Reject("bad_text", f"character {error.start} of {where!r} is half of a surrogate pair") from None
