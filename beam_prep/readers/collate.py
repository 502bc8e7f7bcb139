"""`bp.collate(ds, ...)`: makes batches of rows, for the `collate_fn` of a loader.

A padded batch has an array [rows, longest] a column. A packed batch has all rows one after the other, [1, tokens], and
the starts of documents in the fields that transformers' flash attention reads.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import IGNORE_INDEX, NO_LOSS, OF_RECORDS, Column
from beam_prep.errors import ConfigError, FormatError
from beam_prep.formats import Row, joined
from beam_prep.readers.views import WHOLE, Rows, check, why_not_packed

Arrays = Literal["numpy", "torch", "jax"]
Side = Literal["right", "left"]


def collate(
    of: Rows | Sequence[Column],
    pad_id: int | None = None,
    packed: bool | None = None,
    arrays: Arrays = "numpy",
    side: Side = "right",
    pad_to_multiple_of: int = 1,
) -> "Collate":
    """Returns a function that makes a batch of rows.

    * Padded: `[rows, longest]` a column, and an `attention_mask` (1 = a real token). Ids are padded with `pad_id`,
      labels with -100, other columns with 0. Lists of lists become `[rows, lists, longest]`. With several columns of
      ids (preference pairs) each has its own mask, for instance `chosen_attention_mask`.
    * Packed: `[1, tokens]` a column, without padding, and `position_ids`, which begin at 0 with each document;
      `cu_seq_lens_q` and `cu_seq_lens_k` (int32: the starts of documents, and the end), `max_length_q` and
      `max_length_k` (the length of the longest document). The first token of a document has label -100, mask and weight
      0, unless labels are shifted: the token before it belongs to another document. There is no `attention_mask`,
      because with one models let documents see each other.

    Columns keep their names. Integers become int64 (jax: int32). Metadata columns are not padded: strings become a list
    of `str`, numbers an array, with a value for each row; in packed batches, for each document.

    >>> ds = bp.open("out/chat")
    >>> batch = bp.collate(ds, pad_id=0)([ds[0], ds[5]])
    >>> batch["input_ids"].shape, batch["attention_mask"].sum(axis=1).tolist()
    ((2, 264), [87, 264])
    >>> batch = bp.collate(ds, packed=True)([ds[0], ds[5]])
    >>> batch["input_ids"].shape, batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]
    ((1, 351), [0, 87, 351], 264)

    Args:
        of: the dataset or view of the rows, or its `schema`.
        pad_id: the id of padding, for padded batches.
        packed: makes packed batches; default: True if the rows are packed (they have the lengths of their documents).
        arrays: `numpy`, `torch` or `jax`.
        side: the side of padding: `right` or `left`.
        pad_to_multiple_of: the length of a padded batch is a multiple of this number.

    Raises:
        ConfigError: these columns cannot be batched like this; the message says why, and what to do.
    """
    schema = tuple(of if isinstance(of, Sequence) else of.schema)
    roles = {column.role for column in schema}
    if packed is None:
        packed = "lengths" in roles
    check("arrays", arrays, get_args(Arrays))
    check("side", side, get_args(Side))
    check("pad_to_multiple_of", pad_to_multiple_of, range(1, sys.maxsize))
    check("pad_id", pad_id or 0, WHOLE)
    if packed and (problem := why_not_packed(schema)) is not None:
        raise ConfigError(f"{problem}, or use packed=False, pad_id=...")
    if packed and pad_to_multiple_of != 1:
        raise ConfigError("a packed batch is not padded: leave out pad_to_multiple_of")
    if not packed and "lengths" in roles:
        why = "the rows hold several documents each, which would see each other in a padded batch"
        raise ConfigError(f"{why}: leave out packed=False")
    if not packed and pad_id is None and "ids" in roles:
        raise ConfigError("a padded batch needs pad_id=..., the id of the tokenizer's padding token")
    return Collate(schema, pad_id or 0, packed, arrays, side, pad_to_multiple_of)


@dataclass(frozen=True)
class Collate:
    """Makes batches, see `collate`. It can be pickled, for the processes of a loader."""

    schema: tuple[Column, ...]
    pad_id: int
    packed: bool
    arrays: Arrays
    side: Side
    multiple: int

    def __call__(self, rows: Sequence[Row] | Mapping[str, Any]) -> dict[str, Any]:
        """A batch from a list of rows, or from columns (`ds[[1, 5, 7]]`)."""
        tokens: dict[str, Ragged] = {}
        metadata: dict[str, Any] = {}
        for column in self.schema:
            name = column.name
            values = rows[name] if isinstance(rows, Mapping) else [row[name] for row in rows]
            if column.metadata:
                metadata[name] = _metadata(column, values)
            else:
                tokens[name] = values if isinstance(values, Ragged) else joined(values, column.dtype, column.depth)
        made = self._flattened(tokens) if self.packed else self._padded(tokens)
        return {name: _converted(value, self.arrays) for name, value in (made | metadata).items()}

    def _padded(self, columns: Mapping[str, Ragged]) -> dict[str, Any]:
        ids = [column.name for column in self.schema if column.role == "ids"]
        fills = {"ids": self.pad_id, "labels": IGNORE_INDEX}
        batch = {
            column.name: self._rectangle(columns[column.name], fills.get(column.role, 0), column.role)
            for column in self.schema
            if not column.metadata
        }
        if not any(column.role == "attention" for column in self.schema):
            for name in ids:
                real = columns[name].with_flat(np.ones(len(columns[name].flat), np.int64))
                mask = "attention_mask" if len(ids) == 1 else f"{name}_attention_mask"
                batch[mask] = self._rectangle(real, 0, "attention")
        return batch

    def _rectangle(self, rows: Ragged, fill: int, role: str) -> Array:
        multiple, side = (1, "right") if role in OF_RECORDS else (self.multiple, self.side)
        if not isinstance(rows.values, Ragged):
            return _rectangle(rows.values, rows.lengths, fill, multiple, side)
        lists = _rectangle(rows.values.flat, rows.values.lengths, fill, multiple, side)
        return _rectangle(lists, rows.lengths, fill, 1, "right")  # rows with fewer lists are padded at their end

    def _flattened(self, columns: Mapping[str, Ragged]) -> dict[str, Any]:
        (ids,) = (columns[column.name] for column in self.schema if column.role == "ids")
        lengths = next((columns[c.name].flat for c in self.schema if c.role == "lengths"), ids.lengths)
        lengths = lengths[lengths > 0].astype(np.int64)
        if lengths.sum() != len(ids.flat):
            raise FormatError(f"documents of {lengths.sum()} tokens in rows of {len(ids.flat)}: make the output again")
        borders = offsets_of(lengths)
        batch: dict[str, Any] = {}
        for column in self.schema:
            if column.metadata or column.role in ("position", "lengths"):
                continue
            values = columns[column.name].flat.copy()
            if column.role in NO_LOSS and not column.shifted:
                values[borders[:-1]] = NO_LOSS[column.role]
            batch[column.name] = values[None]
        place = next((column.name for column in self.schema if column.role == "position"), "position_ids")
        batch[place] = (np.arange(borders[-1]) - np.repeat(borders[:-1], lengths))[None]
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = borders.astype(np.int32)
        batch["max_length_q"] = batch["max_length_k"] = int(lengths.max(initial=0))
        return batch


def _rectangle(values: Array, lengths: Array, fill: int, multiple: int, side: str) -> Array:
    """The values of rows as a padded array [rows, longest, ...]."""
    width = -(-int(lengths.max(initial=0)) // multiple) * multiple
    if fill and values.dtype.kind in "iu":
        values = values.astype(np.int64)  # a narrow dtype may not hold `fill`
    padded = np.full((len(lengths), width, *values.shape[1:]), fill, values.dtype)
    places = np.arange(width)
    padded[places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]] = values
    return padded


def _metadata(column: Column, values: Any) -> Any:
    """The values of a metadata column, for each row, or for each document of packed rows."""
    if column.depth:
        values = [each for row in values for each in row]
    return values if column.role == "string" else np.array(values, column.dtype)


def _converted(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, int | list):
        return value
    if value.dtype.kind in "iu" and value.ndim > 1:  # `cu_seq_lens` stays int32
        value = value.astype(np.int32 if arrays == "jax" else np.int64, copy=False)
    if arrays == "torch":
        import torch

        return torch.from_numpy(value)
    if arrays == "jax":
        import jax.numpy

        return jax.numpy.asarray(value)
    return value
