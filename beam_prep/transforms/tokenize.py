"""Tokenize: text -> ids."""

import dataclasses

import apache_beam as beam

from beam_prep.core.batch import Batch, tokenize
from beam_prep.core.records import Records
from beam_prep.core.schema import Output
from beam_prep.core.template import Rendered
from beam_prep.core.tokenized import from_tokens
from beam_prep.core.tokenizer import Tokenizer


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


def _tokenize(rendered: Rendered, tokenizer: Tokenizer) -> Batch:
    return tokenize(rendered, tokenizer, tokenizer.bos_id)


@dataclasses.dataclass(eq=False)
class Tokenize(beam.PTransform):
    """`Rendered` -> `Batch`: every piece of text encoded, the pieces of a sequence joined, ids in flat arrays.

    Attributes:
        tokenizer: loaded once by each process, at its first block.
    """

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, rendered: beam.PCollection[Rendered]) -> beam.PCollection[Batch]:
        return rendered | beam.Map(_tokenize, self.tokenizer).with_output_types(Batch)
