"""Rows of equal length."""

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import IGNORE_INDEX, Column
from beam_prep.core.tokens.batch import Batch

ATTENTION_MASK = "attention_mask"


@step
def pad(batch: Batch, multiple: int, pad_id: int) -> Batch:
    """Every row lengthened at its end to the next multiple of `multiple`, and an `attention_mask` (1 = a real token).

    Ids take `pad_id`, masks 0, labels -100: by position, never by comparing with the pad id, which is often the EOS
    of an answer.

    Raises:
        ValueError: rows of lists or values cannot be padded.
    """
    columns, schema = {}, {}
    lengths = target = np.zeros(len(batch), np.int64)
    for name, rows in batch.columns.items():
        column = batch.schema[name]
        if column.depth != 1 or column.role == "value":
            raise ValueError(f"column {name!r} holds lists or values; only sequences of one output can be padded")
        lengths = rows.lengths
        target = -(-np.maximum(lengths, 1) // multiple) * multiple
        fill = {"ids": pad_id, "labels": IGNORE_INDEX}.get(column.role, 0)
        columns[name], schema[name] = _filled(rows, target, fill), column
    ones = Ragged.from_lengths(np.ones(int(lengths.sum()), np.uint8), lengths)
    columns[ATTENTION_MASK] = _filled(ones, target, 0)
    schema[ATTENTION_MASK] = Column(ATTENTION_MASK, "int32", 1, "attention")
    return batch._with(columns=columns, schema=schema)


def _filled(rows: Ragged, target: Array, fill: int) -> Ragged:
    flat: Array = rows.flat
    offsets = offsets_of(target)
    values = np.full(offsets[-1], fill, flat.dtype)
    place = np.arange(len(flat)) + np.repeat(offsets[:-1] - rows.offsets[:-1], rows.lengths)
    values[place] = flat
    return Ragged(values, offsets)
