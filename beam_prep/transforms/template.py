"""ApplyTemplate: records -> pieces of text."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from beam_prep.chat.apply import COMPARED, render_records
from beam_prep.chat.voice import voice_of
from beam_prep.core.data.rendered import Rendered
from beam_prep.core.data.schema import Output, TextRules
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.reading.records import Records
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class ApplyTemplate(BlockStep):
    """`Records` -> `Rendered`: each record as pieces of text with their roles, by the sections of each output.

    Records that cannot be used are rejected. Records without any text are dropped (`empty`).

    Attributes:
        outputs: what each row consists of, or a config's `input`, whose `date` then is that of `rules`.
        tokenizer: its chat template renders messages.
        domain_key: the record's key that names its domain.
        rules: BOS, EOS, implicit prompts, another chat template.
        compared: of so many conversations of each block the text is compared with transformers' own, and what is
            trained with renderings of prefixes; if one differs, the block is rendered in the plain way. A difference
            in a record outside the sample is not seen: None compares all, as `Pipeline(check="full")` does, and a
            difference ends the run.

    Raises:
        TokenizerError: a section wants a template, or a rule a special token, that the tokenizer does not have; or
            the template would give another text in another run: see `ChatTemplate`.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
    >>> block = bp.testing.records([{"messages": [{"role": "user", "content": "Hi"}]}])
    >>> bp.testing.to_rows(bp.ApplyTemplate([row], tokenizer).step()(block))
    [{'ids': ['<|im_start|>user\\nHi<|im_end|>\\n']}]
    """

    outputs: Sequence[Output]
    tokenizer: Tokenizer
    domain_key: str | None = None
    rules: TextRules = dataclasses.field(default_factory=TextRules)
    compared: int | None = COMPARED

    gives = Rendered

    def __post_init__(self) -> None:
        super().__init__()
        if self.rules.date is None:
            self.rules = dataclasses.replace(self.rules, date=getattr(self.outputs, "date", None))
        outputs = getattr(self.outputs, "outputs", None)
        self.outputs = tuple(outputs() if callable(outputs) else self.outputs)
        voice_of(self.outputs, self.tokenizer, self.rules)

    def step(self) -> Callable[[Records], Rendered]:
        return partial(
            render_records,
            outputs=tuple(self.outputs),
            tokenizer=self.tokenizer,
            domain_key=self.domain_key,
            rules=self.rules,
            compared=self.compared,
        )
