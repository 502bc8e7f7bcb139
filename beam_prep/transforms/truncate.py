"""Truncate: rows cut to a length."""

import dataclasses

import apache_beam as beam

from beam_prep.core.batch import Batch
from beam_prep.core.truncate import truncate


@dataclasses.dataclass(eq=False)
class Truncate(beam.PTransform):
    """`Batch` -> `Batch`: the first `max_seq_len` tokens of every sequence; in lists, of every element."""

    max_seq_len: int

    def __post_init__(self) -> None:
        super().__init__()
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len is {self.max_seq_len}, wanted at least 1")

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[Batch]:
        return batches | beam.Map(truncate, self.max_seq_len).with_output_types(Batch)
