"""Labels and Shift: ids and mask -> input_ids and labels."""

import apache_beam as beam

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.shift import to_labels


class Labels(beam.PTransform):
    """`Batch` -> `Batch`: `input_ids` and `labels` (-100 where there is no loss), position by position."""

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[Batch]:
        return batches | beam.Map(to_labels, shift=False).with_output_types(Batch)


class Shift(beam.PTransform):
    """`Batch` -> `Batch`: `input_ids` without the last token, `labels` without the first: label i follows input i.

    For trainers that do not shift by themselves; the models of transformers do. Rows of fewer than 2 tokens are
    rejected (`too_short_to_shift`).
    """

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[Batch]:
        return batches | beam.Map(to_labels, shift=True).with_output_types(Batch)
