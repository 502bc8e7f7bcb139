"""SplitPrompt: preference pairs as a prompt and two completions."""

import dataclasses
from collections.abc import Callable
from functools import partial

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import Untrained
from beam_prep.core.tokens.split_prompt import split_prompt
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class SplitPrompt(BlockStep):
    """`Batch` -> `Batch`: `chosen_ids`, `rejected_ids` and `prompt_ids`, as TRL's preference collator reads them.

    The prompt is what comes before the first trained token of both sides. Rejects: `equal_sides`, `prompt_differs`,
    `not_prompt_first`.

    Attributes:
        untrained: what becomes of rows without a completion: `drop` (and `keep`) or `reject`.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> texts = [("prompt", "mask"), ("chosen", "train")], [("prompt", "mask"), ("rejected", "train")]
    >>> rows = [
    ...     bp.Output(side[1][0], "ids", tuple(bp.Section(*part) for part in side), f"{side[1][0]}_mask")
    ...     for side in texts
    ... ]
    >>> records = bp.testing.records([{"prompt": "How far? ", "chosen": "Far.", "rejected": "No."}])
    >>> batch = bp.Tokenize(tokenizer).step()(bp.ApplyTemplate(rows, tokenizer).step()(records))
    >>> (row,) = bp.testing.to_rows(bp.SplitPrompt().step()(bp.BuildMask({}).step()(batch)))
    >>> {name: tokenizer.decode(ids) for name, ids in row.items()}
    {'chosen_ids': 'Far.', 'rejected_ids': 'No.', 'prompt_ids': 'How far? '}
    """

    untrained: Untrained = "drop"

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()

    def step(self) -> Callable[[Batch], Batch]:
        return partial(split_prompt, untrained=self.untrained)
