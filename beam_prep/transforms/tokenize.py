"""Tokenize: text -> ids."""

import dataclasses

import apache_beam as beam

from beam_prep.core.batch import Batch, tokenize
from beam_prep.core.template import Rendered
from beam_prep.core.tokenizer import Tokenizer


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
