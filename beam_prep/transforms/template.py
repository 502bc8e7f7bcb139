"""ApplyTemplate: records -> pieces of text."""

import dataclasses
from collections.abc import Sequence

import apache_beam as beam

from beam_prep.core.records import Records
from beam_prep.core.schema import Output
from beam_prep.core.template import Rendered, apply_template
from beam_prep.core.tokenizer import Tokenizer


def _render(records: Records, outputs: tuple[Output, ...], tokenizer: Tokenizer, domain_key: str | None) -> Rendered:
    needed = any(output.has_template for output in outputs)
    return apply_template(records, outputs, tokenizer.template() if needed else None, domain_key)


@dataclasses.dataclass(eq=False)
class ApplyTemplate(beam.PTransform):
    """`Records` -> `Rendered`: each record as pieces of text with their roles, by the sections of each output.

    Records that cannot be used are rejected; those that yield nothing are dropped (`empty`).

    Attributes:
        outputs: what each row consists of, or a config's `input`.
        tokenizer: its chat template renders messages.
        domain_key: the record's key that names its domain.

    Raises:
        TokenizerError: a section wants a template and the tokenizer has none.
    """

    outputs: Sequence[Output]
    tokenizer: Tokenizer
    domain_key: str | None = None

    def __post_init__(self) -> None:
        super().__init__()
        outputs = getattr(self.outputs, "outputs", None)
        self.outputs = tuple(outputs() if callable(outputs) else self.outputs)
        if any(output.has_template for output in self.outputs):
            self.tokenizer.template()

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Rendered]:
        return records | beam.Map(_render, self.outputs, self.tokenizer, self.domain_key).with_output_types(Rendered)
