"""`ds.tf()`: rows as a `tf.data.Dataset`."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Column
from beam_prep.formats import Row


class Iterable(Protocol):
    """A dataset, or a view of one."""

    @property
    def schema(self) -> tuple[Column, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Row]: ...


def tf_rows(rows: Iterable) -> Any:
    """See `Dataset.tf`."""
    import tensorflow as tf

    def elements() -> Iterator[dict[str, Any]]:
        for row in rows:
            yield {name: _ragged(tf, values) if isinstance(values, Ragged) else values for name, values in row.items()}

    made = tf.data.Dataset.from_generator(elements, output_signature=_signature(tf, rows.schema))
    return made.apply(tf.data.experimental.assert_cardinality(len(rows)))


def _signature(tf: Any, schema: Sequence[Column]) -> dict[str, Any]:
    return {
        column.name: tf.TensorSpec([None] * column.depth, tf.string if column.role == "string" else column.dtype)
        if column.depth <= 1
        else tf.RaggedTensorSpec([None, None], column.dtype, ragged_rank=1)
        for column in schema
    }


def _ragged(tf: Any, rows: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(np.asarray(rows.values), rows.offsets, validate=False)
