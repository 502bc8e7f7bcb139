"""Pad: rows padded at their end."""

import dataclasses
from collections.abc import Callable
from functools import partial

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.pad import Padding, pad
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class Pad(BlockStep):
    """`Batch` -> `Batch`: every row padded at its end to a multiple of `multiple`, with an `attention_mask`.

    `Layout.padding` does the same while shards are written, which takes far less memory where rows are short.

    >>> pad = bp.Pad(2048, pad_id=0)

    Attributes:
        multiple: tokens; the maximum length for rows of one length.
        pad_id: the id of the tokens that are added.
    """

    multiple: int
    pad_id: int

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()
        Padding(self.multiple, self.pad_id)  # which checks them

    def step(self) -> Callable[[Batch], Batch]:
        return partial(pad, multiple=self.multiple, pad_id=self.pad_id)
