"""`ds.torch()` and `ds.tf()`: rows as tensors of torch, or of TensorFlow."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
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


class Readable(Protocol):
    """A dataset, or a view of one."""

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int]) -> list[Row]: ...


class TorchRows:
    """See `Dataset.torch`, which makes it."""

    def __init__(self, rows: Readable) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self.__getitems__([index.__index__()])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {name: _tensors(values) for name, values in row.items()} for row in self._rows.__getitems__(list(indices))
        ]


def _tensors(values: Any) -> Any:
    if not isinstance(values, np.ndarray | Ragged):  # metadata: strings and numbers
        return values
    if isinstance(values, Ragged):
        return [_tensors(each) for each in values]
    import torch

    # What embeddings and losses take; torch has few operations for unsigned integers.
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iu" else values)
