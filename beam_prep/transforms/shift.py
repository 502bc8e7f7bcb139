"""Labels and Shift: ids and mask -> input_ids and labels."""

from collections.abc import Callable
from functools import partial

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.shift import to_labels
from beam_prep.transforms.block_step import BlockStep


class Labels(BlockStep):
    """`Batch` -> `Batch`: `input_ids` and `labels` (-100 where there is no loss), position by position.

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Labels().step()(batch))
    [{'input_ids': [7, 8, 9], 'labels': [-100, 8, 9]}]
    """

    gives = Batch

    def step(self) -> Callable[[Batch], Batch]:
        return partial(to_labels, shift=False)


class Shift(BlockStep):
    """`Batch` -> `Batch`: `input_ids` without the last token, `labels` without the first: label i follows input i.

    Use it for trainers that do not shift; the models of transformers do. Rows of fewer than 2 tokens are
    rejected (`too_short_to_shift`).

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Shift().step()(batch))
    [{'input_ids': [7, 8], 'labels': [8, 9]}]
    """

    gives = Batch

    def step(self) -> Callable[[Batch], Batch]:
        return partial(to_labels, shift=True)
