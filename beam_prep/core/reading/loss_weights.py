"""Weights of the loss, as records have them: one number for a record, a message or a token."""

from typing import Any

import numpy as np

from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Array
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record

SMALLEST, LARGEST = 1e-12, 1e12
"""The smallest weight above 0, and the largest. The product of three of them is a normal float32."""

WANTED = f"wanted 0, or a number from {SMALLEST:g} to {LARGEST:g}"


def record_weight(record: Record) -> float:
    """The weight of a record, its `weight`; 1 where that is absent or null.

    Raises:
        Reject: `wrong_type` or `bad_weight`.
    """
    weight = record.get("weight")
    if weight is None:
        return 1.0
    check_loss_weight(weight, "weight")
    return float(weight)


def check_loss_weight(weight: Any, where: str) -> None:
    """Raises Reject if this is no weight: `wrong_type` or `bad_weight`."""
    if type(weight) not in (int, float):
        raise Reject("wrong_type", f"'{where}' is {describe(weight)}, {WANTED}")
    if weight != 0 and not SMALLEST <= weight <= LARGEST:
        raise Reject("bad_weight", f"'{where}' is {describe(weight)}, {WANTED}")


def token_weights(record: Record, name: str, length: int) -> Array:
    """float64 [length]: the weights of tokens, of a record that is tokenised already; 1 where it has none.

    Raises:
        Reject: `wrong_type`, `bad_weight`, or `count_mismatch`: there are not `length` of them.
    """
    values = record.get(name)
    if values is None:
        return np.ones(length)
    if not isinstance(values, list):
        raise Reject("wrong_type", f"field {name!r} is {describe(values)}, wanted a list of numbers")
    if len(values) != length:
        raise Reject("count_mismatch", f"{length} input_ids, {len(values)} {name}: wanted as many of each")
    if set(map(type, values)) <= {int, float} and (not values or max(values) <= LARGEST):
        weights = np.array(values, np.float64)
        if ((weights == 0) | (weights >= SMALLEST)).all():
            return weights
    for place, value in enumerate(values):
        check_loss_weight(value, f"{name}[{place}]")
    raise AssertionError("each weight is one, all of them are not")
