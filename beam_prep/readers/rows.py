"""The base class of datasets and views: rows by number, as arrays, or as tensors of torch or TensorFlow."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import Row


class Rows(ABC):
    """A dataset, or a view of one."""

    @property
    @abstractmethod
    def schema(self) -> tuple[Column, ...]:
        """The columns, in order."""

    @property
    @abstractmethod
    def key(self) -> int:
        """A checksum of the rows and their order. States of views hold it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Row]: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.schema)

    def torch(self) -> "TorchRows":
        """The rows as tensors of torch: a map-style dataset for `DataLoader` and torchdata's `StatefulDataLoader`.

        Integers are int64; a list of lists is a list of tensors. Metadata columns stay `str`, `int` and `float`.
        `bp.collate(..., arrays="torch")` makes tensors of batches, and is faster.
        """
        return TorchRows(self)

    def tf(self) -> Any:
        """The rows as a `tf.data.Dataset`, in order. A row is a dict of tensors [length]; a list of lists is a
        `RaggedTensor`. A metadata column is a scalar (in packed rows [documents]); strings are `tf.string`.
        """
        import tensorflow as tf

        def elements() -> Iterator[dict[str, Any]]:
            for row in self:
                yield {name: _ragged(tf, each) if isinstance(each, Ragged) else each for name, each in row.items()}

        made = tf.data.Dataset.from_generator(elements, output_signature=_signature(tf, self.schema))
        return made.apply(tf.data.experimental.assert_cardinality(len(self)))


def _signature(tf: Any, schema: Sequence[Column]) -> dict[str, Any]:
    return {
        column.name: tf.TensorSpec([None] * column.depth, tf.string if column.role == "string" else column.dtype)
        if column.depth <= 1
        else tf.RaggedTensorSpec([None, None], column.dtype, ragged_rank=1)
        for column in schema
    }


def _ragged(tf: Any, rows: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(np.asarray(rows.values), rows.offsets, validate=False)


class TorchRows:
    """See `Rows.torch`, which makes it."""

    def __init__(self, rows: Rows) -> None:
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

    # Embeddings and losses take int64, and torch has few operations for unsigned integers.
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind in "iu" else values)
