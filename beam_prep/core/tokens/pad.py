"""Rows padded at their end, so that their lengths are multiples of a number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import IGNORE_INDEX, Column
from beam_prep.core.tokens.batch import Batch

ATTENTION_MASK = "attention_mask"
TOKENS_AT_ONCE = 1 << 20
"""Padded tokens of a column that `Padding.in_parts` holds at a time, or those of one row: 4 MB."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads rows at their end.

    >>> padding = bp.Padding(multiple=4, pad_id=0)
    >>> ids = bp.Column("sequence", "int32", 1, "ids")
    >>> padded = padding.rows({"sequence": bp.Ragged.from_lists([[5, 6, 7], [8]])}, {"sequence": ids})
    >>> padded["sequence"].to_lists()
    [[5, 6, 7, 0], [8, 0, 0, 0]]
    >>> padded["attention_mask"].to_lists()
    [[1, 1, 1, 0], [1, 0, 0, 0]]

    Attributes:
        multiple: tokens; a row is padded to the next multiple of it, an empty one to `multiple` tokens.
        pad_id: the id of the tokens that are added.

    Raises:
        ValueError: `multiple` is less than 1.
    """

    multiple: int
    pad_id: int

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple is {self.multiple}, wanted at least 1")

    def lengths(self, lengths: Array) -> Array:
        """int64 [rows]: the padded lengths of rows of these lengths."""
        return np.asarray(-(-np.maximum(lengths, 1) // self.multiple) * self.multiple)

    def check(self, schema: Mapping[str, Column]) -> None:
        """Raises ValueError if a column holds lists or values, or ids of a dtype that cannot hold the pad id."""
        for name, column in schema.items():
            if not column.of_tokens and not column.carried:
                raise ValueError(f"column {name!r} holds lists or values; only sequences of one output can be padded")
            if column.role == "ids" and self.pad_id > np.iinfo(column.dtype).max:
                raise ValueError(f"column {name!r}: the pad id {self.pad_id} does not fit {column.dtype}: use int32")

    def rows(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> dict[str, Ragged]:
        """The padded columns, and an `attention_mask` (uint8, 1 = a real token).

        Ids take `pad_id`, masks 0, labels -100: by position, never by comparing with the pad id, which is often the
        EOS of an answer.

        Raises:
            ValueError: see `check`; or rows of several lengths, of which one `attention_mask` cannot tell.
        """
        self.check(schema)
        lengths = next(iter(columns.values())).lengths
        offsets = offsets_of(self.lengths(lengths))
        place = np.arange(lengths.sum()) + np.repeat(offsets[:-1] - offsets_of(lengths)[:-1], lengths)

        def filled(values: Array, fill: int) -> Ragged:
            found = np.full(offsets[-1], fill, values.dtype)
            found[place] = values
            return Ragged(found, offsets)

        padded = {}
        for name, rows in columns.items():
            if schema[name].carried:
                padded[name] = rows
                continue
            if not np.array_equal(rows.lengths, lengths):
                raise ValueError(f"column {name!r} has other lengths than the first; only one output can be padded")
            padded[name] = filled(rows.flat, {"ids": self.pad_id, "labels": IGNORE_INDEX}.get(schema[name].role, 0))
        padded[ATTENTION_MASK] = filled(np.ones(len(place), np.uint8), 0)
        return padded

    def in_parts(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> Iterator[dict[str, Ragged]]:
        """The same as `rows`, in parts of `TOKENS_AT_ONCE`: padded, short rows take a hundred times their memory."""
        ends = offsets_of(self.lengths(next(iter(columns.values())).lengths))
        start, count = 0, len(ends) - 1
        while start < count:
            fitting = int(np.searchsorted(ends, ends[start] + TOKENS_AT_ONCE, "right")) - 1
            stop = max(fitting, start + 1)
            yield self.rows({name: rows[start:stop] for name, rows in columns.items()}, schema)
            start = stop


@step
def pad(batch: Batch, multiple: int, pad_id: int) -> Batch:
    """Pads the rows of a block, see `Padding`.

    Raises:
        ValueError: rows of lists or values cannot be padded.
    """
    columns = Padding(multiple, pad_id).rows(batch.columns, batch.schema)
    mask = Column(ATTENTION_MASK, "int32", 1, "attention")
    return batch._with(columns=columns, schema={**batch.schema, ATTENTION_MASK: mask})
