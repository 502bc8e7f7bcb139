"""Truncate: rows are cut to a length."""

import dataclasses
from collections.abc import Callable
from functools import partial

from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.truncate import TruncationMode, truncate
from beam_prep.transforms.block_step import BlockStep


def _truncate(batch: Batch, max_seq_len: int, mode: TruncationMode, eos: int | Tokenizer | None) -> Batch:
    return truncate(batch, max_seq_len, mode, eos.id_of("eos_token") if isinstance(eos, Tokenizer) else eos)


@dataclasses.dataclass(eq=False)
class Truncate(BlockStep):
    """`Batch` -> `Batch`: no sequence longer than `max_seq_len` tokens; in lists, no element.

    Attributes:
        max_seq_len: tokens.
        mode: a longer sequence is cut (`keep_start`, `keep_end`), its record is dropped (`drop`, counted as
            `too_long`), or the run fails (`error`).
        eos_id: the token that ends an answer, or a tokenizer, which means its EOS token. Rows that lose it are counted.

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Truncate(2).step()(batch))
    [{'ids': [7, 8], 'loss_mask': [0, 1]}]
    """

    max_seq_len: int
    mode: TruncationMode = "keep_start"
    eos_id: int | Tokenizer | None = None

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len is {self.max_seq_len}, wanted at least 1")

    def step(self) -> Callable[[Batch], Batch]:
        return partial(_truncate, max_seq_len=self.max_seq_len, mode=self.mode, eos=self.eos_id)
