"""Cutting rows to a length."""

import numpy as np

from beam_prep.core.batch import Batch
from beam_prep.core.ragged import Ragged, offsets_of


def truncate(batch: Batch, max_seq_len: int) -> Batch:
    """Keeps the first `max_seq_len` tokens of every sequence (of every element, in lists), of masks alike.

    Counts `truncated_rows` and `truncated_tokens` over the ids.
    """
    columns = {}
    for name, rows in batch.columns.items():
        if batch.schema[name].role == "value":
            columns[name] = rows
            continue
        inner = rows.values if isinstance(rows.values, Ragged) else rows
        cut = inner.head(max_seq_len)
        if cut is inner:
            columns[name] = rows
            continue
        columns[name] = Ragged(cut, rows.offsets) if isinstance(rows.values, Ragged) else cut
        if batch.schema[name].role == "ids":
            lost = inner.lengths - cut.lengths
            if isinstance(rows.values, Ragged):
                lost = np.diff(offsets_of(lost)[rows.offsets])
            batch.count("truncated_tokens", lost)
            batch.count(
                "truncated_rows", (lost > 0) & (batch.counters.get("truncated_rows", np.zeros(len(batch))) == 0)
            )
    return batch._with(columns=columns)
