"""Truncate: rows cut to a length."""

import dataclasses

import apache_beam as beam

from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.truncate import TruncationMode, truncate


def _truncate(batch: Batch, max_seq_len: int, mode: TruncationMode, eos: int | Tokenizer | None) -> Batch:
    return truncate(batch, max_seq_len, mode, eos.id_of("eos_token") if isinstance(eos, Tokenizer) else eos)


@dataclasses.dataclass(eq=False)
class Truncate(beam.PTransform):
    """`Batch` -> `Batch`: no sequence longer than `max_seq_len` tokens; in lists, no element.

    Attributes:
        max_seq_len: tokens.
        mode: what is longer is cut (`keep_start`, `keep_end`), its record dropped (`drop`, counted as `too_long`),
            or the run fails (`error`).
        eos_id: the token that ends an answer; rows that lose it are counted. A tokenizer stands for its EOS token.
    """

    max_seq_len: int
    mode: TruncationMode = "keep_start"
    eos_id: int | Tokenizer | None = None

    def __post_init__(self) -> None:
        super().__init__()
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len is {self.max_seq_len}, wanted at least 1")

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[Batch]:
        return batches | beam.Map(_truncate, self.max_seq_len, self.mode, self.eos_id).with_output_types(Batch)
