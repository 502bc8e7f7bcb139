"""Makes a `Batch` of records that are tokenised already, without a tokenizer."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column, Output, Section
from beam_prep.reading.adapters import LeftOut, record_domain, record_weight, work_on_each
from beam_prep.reading.records import Record, Records
from beam_prep.reading.rollouts import RolloutFields, read_rollout, token_weights, tokenized
from beam_prep.tokens.batch import Batch


@step
def from_rollouts(records: Records, fields: RolloutFields, max_id: int, domain_key: str | None = None) -> Batch:
    """The ids, masks, log probabilities, numbers and texts of each record, unchanged.

    The column of responses comes first, so its tokens measure shards. Records without any of the fields are dropped
    (`empty`). For rejects see `read_rollout`.

    Args:
        records: the records.
        fields: the names of a record's fields.
        max_id: the tokenizer's largest id.
        domain_key: the field of a record that names its domain.
    """
    batch, found = _read(records, _outputs(fields), domain_key, lambda record: read_rollout(record, fields, max_id))
    for column in fields.columns:
        values = [row[column.name] for _, row in found]
        if (column.of or column.name) == "response_ids":
            flat = _joined(values, _DTYPES[column.role])
            rows = Ragged.from_lengths(flat, [length for lengths, _ in found for length in lengths])
            if column.depth == 2:
                rows = Ragged.from_lengths(rows, [len(lengths) for lengths, _ in found])
        else:
            rows = _flat(values, _DTYPES[column.role])
        _add(batch, column, rows)
    return batch


_DTYPES = {"ids": np.int32, "mask": np.uint8, "token_value": np.float64, "value": np.float64, "text": np.uint8}
"""Role of a column -> type of its values until they are cast to the column's own."""

_Read = TypeVar("_Read")


def _read(
    records: Records, outputs: tuple[Output, ...], domain_key: str | None, read: Callable[[Record], _Read | None]
) -> tuple[Batch, list[_Read]]:
    """(a batch without columns, the values that `read` returned). Records for which it returns None are dropped."""

    def work(record: Record) -> tuple[_Read, str]:
        each, domain = read(record), record_domain(record, domain_key)
        if each is None:
            raise LeftOut("empty")
        return each, domain

    left = work_on_each(records, work)
    found: Any = left.rows
    domains = [domain for _, domain in found]
    batch = Batch(left.origin, left.ledger, left.line, left.receipt, outputs, domains, made=dict(left.made))
    return batch, [each for each, _ in found]


def _outputs(fields: RolloutFields) -> tuple[Output, ...]:
    prompt = Output("prompt_ids", "ids", (Section(fields.prompt_ids, "mask"),))
    if fields.response_ids is None:
        return (prompt,)
    mask = None if fields.loss_mask is None else "loss_mask"
    sections = (Section(fields.response_ids, "train"),)
    return Output("response_ids", "list" if fields.grouped else "ids", sections, mask), prompt


def _add(batch: Batch, column: Column, rows: Ragged) -> None:
    batch.columns[column.name], batch.schema[column.name] = rows, column


def _joined(parts: list[Array], dtype: type) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _flat(rows: list[Array], dtype: type) -> Ragged:
    return Ragged.from_lengths(_joined(rows, dtype), [len(row) for row in rows])


@step
def from_tokens(records: Records, output: Output, max_id: int, domain_key: str | None = None) -> Batch:
    """The ids of each record's `input_ids`, the mask from its labels or masks, and weights if the output has them.

    Records without ids are dropped (`empty`). Records with ids beyond `max_id`, the tokenizer's largest, are rejected.
    """
    assert output.mask_name is not None

    def read(record: Record) -> tuple[Array, Array, Array] | None:
        row = tokenized(record, max_id)
        if row is None:
            return None
        ids, mask = row
        weights = np.zeros(0, np.float32)
        if output.weights_name is not None:
            per_token = record_weight(record) * token_weights(record, "loss_weights", len(ids))
            mask = mask & (per_token > 0)
            weights = np.where(mask, per_token, 0).astype(np.float32)
        return (ids, mask, weights) if len(ids) else None

    batch, found = _read(records, (output,), domain_key, read)
    ids, masks, weights = ([row[place] for row in found] for place in range(3))
    _add(batch, Column(output.name, "int32", 1, "ids"), _flat(ids, np.int32))
    _add(batch, Column(output.mask_name, "int32", 1, "mask", of=output.name), _flat(masks, np.uint8))
    if output.weights_name is not None:
        _add(batch, Column(output.weights_name, "float32", 1, "weights", of=output.name), _flat(weights, np.float32))
    return batch
