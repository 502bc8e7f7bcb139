"""Pad: rows of equal length."""

import dataclasses

import apache_beam as beam

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.pad import pad


@dataclasses.dataclass(eq=False)
class Pad(beam.PTransform):
    """`Batch` -> `Batch`: every row padded at its end to a multiple of `multiple`, with an `attention_mask`.

    Attributes:
        multiple: tokens; the maximum length for rows of one length.
        pad_id: the id that fills up.
    """

    multiple: int
    pad_id: int

    def __post_init__(self) -> None:
        super().__init__()
        if self.multiple < 1:
            raise ValueError(f"multiple is {self.multiple}, wanted at least 1")

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[Batch]:
        return batches | beam.Map(pad, self.multiple, self.pad_id).with_output_types(Batch)
