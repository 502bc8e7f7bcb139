"""Rows that are tokenised already: records -> `Batch` without a tokenizer."""

import numpy as np

from beam_prep.core.data.block import Reject, step
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.data.rendered import DEFAULT_DOMAIN
from beam_prep.core.data.schema import Column, Output
from beam_prep.core.reading.adapters import tokenized
from beam_prep.core.reading.loss_weights import record_weight, token_weights
from beam_prep.core.reading.records import Records
from beam_prep.core.tokens.batch import Batch


@step
def from_tokens(records: Records, output: Output, max_id: int, domain_key: str | None = None) -> Batch:
    """The ids of each record's `input_ids`, and the mask that its labels or masks give; with weights, those too.

    Records without ids are dropped (`empty`); ids beyond `max_id`, the tokenizer's largest, are rejected (`bad_id`).
    """
    assert output.mask_name is not None
    ids, masks, weights, kept, domain = [], [], [], [], []
    ledger = records.ledger.copy()
    for line, record in zip(records.line.tolist(), records.rows, strict=True):
        try:
            row = tokenized(record)
            if row is not None and row[0].max(initial=0) > max_id:
                raise Reject("bad_id", f"'input_ids' holds {row[0].max()}; the tokenizer has ids up to {max_id}")
            if row is not None and output.weights_name is not None:
                per_token = record_weight(record) * token_weights(record, "loss_weights", len(row[0]))
                trained = row[1] & (per_token > 0)
                weight = np.where(trained, per_token, 0).astype(np.float32)
                row = row[0], trained
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
            continue
        if row is None or not len(row[0]):
            ledger.drop(line, "empty")
            continue
        name = record.get(domain_key) if domain_key is not None else None
        ids.append(row[0])
        masks.append(row[1])
        kept.append(line)
        if output.weights_name is not None:
            weights.append(weight)
        domain.append(name if isinstance(name, str) else DEFAULT_DOMAIN)
    lengths = [len(row) for row in ids]
    batch = Batch(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, (output,), domain)
    batch.made = dict(records.made)
    columns: list[tuple[str, list[Array], str, str | None, type]] = [
        (output.name, ids, "ids", None, np.int32),
        (output.mask_name, masks, "mask", output.name, np.uint8),
    ]
    if output.weights_name is not None:
        columns.append((output.weights_name, weights, "weights", output.name, np.float32))
    for name, rows, role, of, dtype in columns:
        flat = np.concatenate(rows) if rows else np.zeros(0, dtype)
        batch.columns[name] = Ragged.from_lengths(flat, lengths)
        batch.schema[name] = Column(name, "float32" if role == "weights" else "int32", 1, role, of)  # type: ignore[arg-type]
    return batch
