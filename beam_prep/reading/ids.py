"""Records that are tokenised already: their ids, with a mask, labels and weights for each id."""

from collections.abc import Callable
from typing import Any

import numpy as np

from beam_prep.data.block import Reject
from beam_prep.data.ragged import Array
from beam_prep.data.schema import IGNORE_INDEX
from beam_prep.reading.adapters import check_loss_weight
from beam_prep.reading.json_line import describe
from beam_prep.reading.records import Record

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
    check_list(record["input_ids"], "input_ids")
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
    check_list(values, name)
    if len(values) != length:
        raise Reject("count_mismatch", f"{length} input_ids, {len(values)} {name}: wanted as many of each")
    return read(values, name)


def check_list(value: Any, where: str) -> None:
    """Raises Reject (`wrong_type`) if the value is no list."""
    if not isinstance(value, list):
        raise Reject("wrong_type", f"'{where}' is {describe(value)}, wanted a list")


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
    check_list(values, where)
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
