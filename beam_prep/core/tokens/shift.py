"""The labels layout, shifted or not."""

from dataclasses import replace

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.data.schema import IGNORE_INDEX, Column
from beam_prep.core.tokens.batch import Batch


@step
def to_labels(batch: Batch, shift: bool) -> Batch:
    """`sequence` and its mask -> `input_ids` and `labels`, int32, -100 where there is no loss. Weights follow labels.

    With `shift`, position i of a row's labels is the token that follows position i of its input_ids
    (`input_ids = ids[:-1]`, `labels = where(mask, ids, -100)[1:]`): for trainers that do not shift by themselves.
    The models of transformers do. Rows of fewer than 2 tokens are then rejected (`too_short_to_shift`).

    Raises:
        ValueError: the batch is not one output of ids with its mask.
    """
    output = batch.outputs[0]
    if (
        len(batch.outputs) != 1
        or output.kind != "ids"
        or set(batch.columns) - {output.weights_name} - {output.mask_name} != {output.name}
    ):
        raise ValueError(f"labels are made of one sequence and its mask, the batch has {', '.join(batch.columns)}")
    if shift:
        message = "the record has fewer than 2 tokens, so no token follows another"
        batch = batch.reject(batch[output.name].lengths < 2, "too_short_to_shift", message)
    ids = batch[output.name]
    mask = batch.columns.get(output.mask_name) if output.mask_name is not None else None
    flat: Array = ids.flat
    labels = flat if mask is None else np.where(mask.flat != 0, flat, np.int32(IGNORE_INDEX))
    if shift:
        ids, labels_rows = _drop_one(ids, flat, last=True), _drop_one(ids, labels, last=False)
    else:
        labels_rows = ids.with_flat(labels)
    columns = {"input_ids": ids, "labels": labels_rows}
    schema = {
        "input_ids": Column("input_ids", "int32", 1, "ids"),
        "labels": Column("labels", "int32", 1, "labels", of="input_ids", shifted=shift),
    }
    if (name := output.weights_name) is not None:
        weights = batch[name]
        columns[name] = _drop_one(weights, weights.flat, last=False) if shift else weights
        schema[name] = replace(batch.schema[name], of="input_ids", shifted=shift)
    return batch._with(columns=columns, schema=schema)


def _drop_one(rows: Ragged, flat: Array, last: bool) -> Ragged:
    """Every row without its last (or its first) value. No row may be empty."""
    keep = np.ones(len(flat), bool)
    keep[rows.offsets[1:] - 1 if last else rows.offsets[:-1]] = False
    return Ragged.from_lengths(flat[keep], rows.lengths - 1)
