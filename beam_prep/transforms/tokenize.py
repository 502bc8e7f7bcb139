"""Tokenize: text -> ids."""

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Literal, cast, get_args

from beam_prep.core.data.rendered import Rendered
from beam_prep.core.data.schema import Output
from beam_prep.core.encoding.backends import Backend, choose
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.reading.records import Records
from beam_prep.core.reading.rollouts import RolloutFields
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.rollouts import from_rollouts
from beam_prep.core.tokens.tokenize_with import REFERENCE, tokenize_with
from beam_prep.core.tokens.tokenized import from_tokens
from beam_prep.transforms.block_step import BlockStep

AnyBackend = Backend | Literal["reference"]

log = logging.getLogger("beam_prep")


def _from_tokens(records: Records, output: Output, tokenizer: Tokenizer, domain_key: str | None) -> Batch:
    return from_tokens(records, output, tokenizer.max_id, domain_key)


@dataclasses.dataclass(eq=False)
class FromTokens(BlockStep):
    """`Records` -> `Batch`: records that are tokenised already, in place of ApplyTemplate, Tokenize and BuildMask.

    Attributes:
        output: the names of the columns.
        tokenizer: the one that made the ids. Records with larger ids than it has are rejected.
        domain_key: the record's key that names its domain.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("input_ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> bp.testing.to_rows(bp.FromTokens(row, tokenizer).step()(block))
    [{'input_ids': [7, 8, 9], 'loss_mask': [0, 1, 1]}]
    """

    output: Output
    tokenizer: Tokenizer
    domain_key: str | None = None

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()

    def step(self) -> Callable[[Records], Batch]:
        return partial(_from_tokens, output=self.output, tokenizer=self.tokenizer, domain_key=self.domain_key)


def _from_rollouts(records: Records, fields: RolloutFields, tokenizer: Tokenizer, domain_key: str | None) -> Batch:
    return from_rollouts(records, fields, tokenizer.max_id, domain_key)


@dataclasses.dataclass(eq=False)
class FromRollouts(BlockStep):
    """`Records` -> `Batch`: rollouts that are ids already, in place of ApplyTemplate, Tokenize and BuildMask.

    Attributes:
        fields: where a record has what.
        tokenizer: the one that made the ids. Records with larger ids than it has are rejected.
        domain_key: the record's key that names its domain.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> fields = bp.RolloutFields(logprobs="logprobs", rewards="rewards")
    >>> record = {"prompt_ids": [5], "response_ids": [[6, 7], [8]], "logprobs": [[-0.5, 0], [-2]], "rewards": [1, 0]}
    >>> bp.testing.to_rows(bp.FromRollouts(fields, tokenizer).step()(bp.testing.records([record])))
    [{'response_ids': [[6, 7], [8]], 'logprobs': [[-0.5, 0.0], [-2.0]], 'prompt_ids': [5], 'rewards': [1.0, 0.0]}]
    """

    fields: RolloutFields
    tokenizer: Tokenizer
    domain_key: str | None = None

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()

    def step(self) -> Callable[[Records], Batch]:
        return partial(_from_rollouts, fields=self.fields, tokenizer=self.tokenizer, domain_key=self.domain_key)


@dataclasses.dataclass(eq=False)
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

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()
        self.chosen: str = self.backend
        if self.backend == REFERENCE:
            return
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend is {self.backend!r}, wanted one of {', '.join(get_args(Backend))}")
        self.chosen, problem = choose(self.tokenizer, cast(Backend, self.backend))
        if problem is not None:
            log.info("%s", problem)

    def step(self) -> Callable[[Rendered], Batch]:
        return partial(tokenize_with, tokenizer=self.tokenizer, backend=self.chosen, sampled=self.sampled)
