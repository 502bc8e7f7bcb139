"""What the ledger of a block carries along becomes columns of its rows."""

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.carried import FILE, MISSING, OFFSET, one_each
from beam_prep.core.tokens.batch import Batch


@step
def add_carried(batch: Batch, provenance: bool = False) -> Batch:
    """Adds a column for each field that `carry_fields` noted; without it there are none.

    Rows with a value that cannot be carried are rejected (`carry`).

    Args:
        batch: the rows.
        provenance: adds `FILE` and `OFFSET`, too, counted from the block.
    """
    carried = batch.ledger.carried
    if carried is not None:
        wrong = np.array([line in carried.problems for line in batch.line.tolist()], bool)
        if wrong.any():
            left = batch.take(~wrong)
            left.ledger = batch.ledger.copy()
            for line in batch.line[wrong].tolist():
                left.ledger.reject(line, "carry", carried.problems[line])
            batch = left
        columns = {column.name: carried.values[column.name].take(batch.line) for column in carried.columns}
        schema = {column.name: column for column in carried.columns}
        batch = batch._with(columns={**batch.columns, **columns}, schema={**batch.schema, **schema})
        batch.count(MISSING, carried.missing[batch.line])
    if provenance:
        offsets = one_each(batch.ledger.offsets(batch.line))
        batch = batch.assign(FILE, one_each(np.zeros(len(batch), np.int32))).assign(OFFSET, offsets)
    return batch
