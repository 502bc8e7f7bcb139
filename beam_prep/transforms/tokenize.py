"""Tokenize: text -> ids."""

import logging
from typing import Any, Literal, cast, get_args

from beam_prep.core.encoding.backends import Backend, choose
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.tokenize_with import REFERENCE, tokenize_with
from beam_prep.transforms.block_step import BlockStep

AnyBackend = Backend | Literal["reference"]

log = logging.getLogger("beam_prep")


class Tokenize(BlockStep):
    """`Rendered` -> `Batch`: every piece of text encoded, the pieces of a sequence joined, ids in flat arrays.

    Attributes:
        tokenizer: the tokenizer. Each process loads it once, at its first block.
        backend: `auto`: gigatoken, many times faster, where it gives the same ids as transformers (see
            `core.encoding.backends`); `transformers`: always the reference; `gigatoken`: that, or an error.
            `reference`, for checks: ids and offsets of the library that transformers uses, and nothing else.
        sampled: the reference encodes a sample of each block, too, and the entire block if one text differs. A
            difference in a text outside the sample is not seen: `Pipeline(check="full")` compares all texts instead.

    Raises:
        TokenizerError: gigatoken was asked for, and cannot be used.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> block = bp.testing.records([{"text": "Hello"}])
    >>> block = bp.ApplyTemplate([bp.Output("ids", "ids", (bp.Section("text", "train"),))], tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Tokenize(tokenizer).step()(block))
    [{'ids': [43, 520, 82]}]
    """

    tokenizer: Tokenizer
    backend: AnyBackend = "auto"
    sampled: bool = True

    work, gives = tokenize_with, Batch

    def check(self) -> None:
        self.chosen: str = self.backend
        if self.backend == REFERENCE:
            return
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend is {self.backend!r}, wanted one of {', '.join(get_args(Backend))}")
        self.chosen, problem = choose(self.tokenizer, cast(Backend, self.backend))
        if problem is not None:
            log.info("%s", problem)

    def settings(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "backend": self.chosen, "sampled": self.sampled}
