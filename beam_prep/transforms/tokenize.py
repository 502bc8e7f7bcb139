"""Tokenize: text -> ids."""

import dataclasses
import logging
from typing import Literal, get_args

import apache_beam as beam

from beam_prep.core.data.schema import Output
from beam_prep.core.encoding.backends import INHERITED, Backend, choose, encoder_of, name_of
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.pieces.rendered import Rendered
from beam_prep.core.reading.records import Records
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.tokenize import tokenize
from beam_prep.core.tokens.tokenized import from_tokens

log = logging.getLogger("beam_prep")


def _from_tokens(records: Records, output: Output, tokenizer: Tokenizer, domain_key: str | None) -> Batch:
    return from_tokens(records, output, tokenizer.max_id, domain_key)


@dataclasses.dataclass(eq=False)
class FromTokens(beam.PTransform):
    """`Records` -> `Batch`: records that are tokenised already, in place of ApplyTemplate, Tokenize and BuildMask.

    Attributes:
        output: the names of the columns.
        tokenizer: the one that made the ids; larger ones than it has are rejected.
        domain_key: the record's key that names its domain.
    """

    output: Output
    tokenizer: Tokenizer
    domain_key: str | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Batch]:
        work = beam.Map(_from_tokens, self.output, self.tokenizer, self.domain_key)
        return records | work.with_output_types(Batch)


def _tokenize(rendered: Rendered, tokenizer: Tokenizer, backend: str, sampled: bool) -> Batch:
    encoder = encoder_of(tokenizer, backend)
    batch = tokenize(rendered, encoder, tokenizer.bos_id, reference=tokenizer if sampled else None)
    again = "blocks_encoded_again" in batch.made
    theirs = len(batch) if again or encoder.backend == "transformers" else min(encoder.fell_back, len(batch))
    for name, records in (("gigatoken", len(batch) - theirs), ("transformers", theirs)):
        if records:
            batch.made[f"encoded_by_{name}"] = records
            batch.made[f"encoder: {name_of(name)}"] = records
    return batch


@dataclasses.dataclass(eq=False)
class Tokenize(beam.PTransform):
    """`Rendered` -> `Batch`: every piece of text encoded, the pieces of a sequence joined, ids in flat arrays.

    Attributes:
        tokenizer: loaded once by each process, at its first block.
        backend: `auto`: gigatoken, many times faster, where it gives the same ids as transformers (see
            `core.encoding.backends`); `transformers`: always the reference; `gigatoken`: or an error.
            `inherited`, for launchers: what `choose` said in the process that the workers are forked from.
        sampled: the reference encodes a sample of each block too, and all of it where one text differs. A difference
            in a text that is not drawn is not seen: `Pipeline(check="full")` compares all, and turns this off.

    Raises:
        TokenizerError: gigatoken was asked for, and cannot be used.
    """

    tokenizer: Tokenizer
    backend: Backend | Literal["inherited"] = "auto"
    sampled: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        self.chosen: str = self.backend
        if self.backend == INHERITED:
            return
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend is {self.backend!r}, wanted one of {', '.join(get_args(Backend))}")
        self.chosen, problem = choose(self.tokenizer, self.backend)
        if problem is not None:
            log.info("%s", problem)

    def expand(self, rendered: beam.PCollection[Rendered]) -> beam.PCollection[Batch]:
        return rendered | beam.Map(_tokenize, self.tokenizer, self.chosen, self.sampled).with_output_types(Batch)
