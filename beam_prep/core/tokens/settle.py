"""Columns in the dtypes in which they are stored."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array
from beam_prep.core.reading.drops import CONTAMINATED
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import Untrained, reject_equal_sides, settle_untrained


@step
def settle(batch: Batch, untrained: Untrained, dtypes: Mapping[str, str]) -> Batch:
    """The last step before rows are stored: takes out equal sides and untrained rows, and casts columns.

    Rows that the ledger marks are counted.
    """
    stored = store_as(settle_untrained(reject_equal_sides(batch), untrained), dtypes)
    if notes := stored.ledger.notes:
        stored.count(CONTAMINATED, np.isin(stored.line, list(notes)), once=True)
    return stored


def store_as(batch: Batch, dtypes: Mapping[str, str]) -> Batch:
    """Every column in its dtype: the one in `dtypes`, else the one of its schema.

    Rows with a number that its dtype cannot hold are rejected (`bad_number`); fractions do not fit integers.

    Raises:
        ValueError: a token id (or a label) does not fit its dtype.
    """
    lost = np.zeros(len(batch), bool)
    columns, schema = {}, {}
    for name, column in batch.schema.items():
        dtype = dtypes.get(name, column.dtype)
        rows = batch[name]
        flat, fits = _cast(rows.flat, dtype)
        if not fits.all():
            if column.role not in ("value", "token_value"):
                raise ValueError(f"column {name!r} holds {rows.flat[~fits][0]}, which does not fit {dtype}: use int32")
            lost |= rows.sums(~fits) > 0
        columns[name], schema[name] = rows.with_flat(flat), replace(column, dtype=dtype)
    stored = batch._with(columns=columns, schema=schema)
    return stored.reject(lost, "bad_number", "a number does not fit the dtype of its column") if lost.any() else stored


def _cast(values: Array, dtype: str) -> tuple[Array, Array]:
    """(values in `dtype`, bool: which of them it holds). bool stays uint8, as Arrow would pack bits."""
    target = np.dtype(np.uint8 if dtype == "bool" else dtype)
    if values.dtype == target:
        return values, np.ones(1, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        # The bits are the same, and need no copy.
        same = values.dtype.kind in "iu" and target.kind in "iu" and values.dtype.itemsize == target.itemsize
        cast = values.view(target) if same else values.astype(target)
    if target.kind == "f":
        return cast, np.isfinite(cast)
    limits = np.iinfo(target)
    if values.dtype.kind == "f":
        # 2**63 is a double, 2**63 - 1 is not: compare below the first that does not fit.
        return cast, (values == np.floor(values)) & (values >= limits.min) & (values < float(limits.max) + 1)
    if len(values) and (int(values.max()) > limits.max or int(values.min()) < limits.min):
        return cast, (values <= limits.max) & (values >= limits.min)
    return cast, np.ones(1, bool)
