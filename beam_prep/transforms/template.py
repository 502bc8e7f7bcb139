"""ApplyTemplate: records -> pieces of text."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

from beam_prep.core.data.schema import Output, TextRules
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.rendered import Rendered
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.records import Records
from beam_prep.errors import TokenizerError
from beam_prep.transforms.block_step import BlockStep

Render = Literal["auto", "jinja"]


def check_voice(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules) -> bool:
    """Whether these outputs need a chat template. Raises what `voice_of` raises, and does not load the tokenizer."""
    if rules.eos != "never" and "eos_token" not in tokenizer.special_tokens:
        raise TokenizerError(f"preprocessing.eos is {rules.eos!r}, and this tokenizer has no eos_token: name one in it")
    needed = any(output.has_template for output in outputs)
    if needed:
        tokenizer.template(rules.chat_template, date=rules.date)
    return needed


def voice_of(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules, render: Render = "jinja") -> Voice:
    """What renders these outputs.

    Args:
        outputs: what each row consists of.
        tokenizer: its chat template renders messages.
        rules: which BOS, EOS, template.
        render: `jinja`, or `auto`: by recorded plans where they hold, and jinja renders a sample too.

    Raises:
        TokenizerError: a section wants a template, or a rule a special token, that the tokenizer does not have.
    """
    needed = check_voice(outputs, tokenizer, rules)
    tokens = tokenizer.special_tokens
    return Voice(
        tokenizer.template(rules.chat_template, plans=render == "auto", date=rules.date) if needed else None,
        tokenizer.controls,
        tokens.get("bos_token", ""),
        tokens.get("eos_token", ""),
        rules,
        tokenizer.template(rules.chat_template, date=rules.date) if needed and render == "auto" else None,
    )


def _render(
    records: Records,
    outputs: tuple[Output, ...],
    tokenizer: Tokenizer,
    domain_key: str | None,
    rules: TextRules,
    render: Render,
    sampled: bool,
) -> Rendered:
    voice = voice_of(outputs, tokenizer, rules, render)
    return apply_template(
        records, outputs, voice if sampled else dataclasses.replace(voice, reference=None), domain_key
    )


@dataclasses.dataclass(eq=False)
class ApplyTemplate(BlockStep):
    """`Records` -> `Rendered`: each record as pieces of text with their roles, by the sections of each output.

    Records that cannot be used are rejected; those that yield nothing are dropped (`empty`).

    Attributes:
        outputs: what each row consists of, or a config's `input`, whose `date` then is that of `rules`.
        tokenizer: its chat template renders messages.
        domain_key: the record's key that names its domain.
        rules: BOS, EOS, implicit prompts, another chat template.
        render: `auto`: chat templates are rendered by recorded plans where they hold, which is several times faster
            and gives the same (`core.chat.recorded.plans`); `jinja`: never.
        sampled: jinja renders a sample of each block too, and all of it where one record differs. A difference in a
            record that is not drawn is not seen: `Pipeline(check="full")` compares all, and turns this off.

    Raises:
        TokenizerError: a section wants a template, or a rule a special token, that the tokenizer does not have; or
            the template would give another text in another run: see `ChatTemplate`.
    """

    outputs: Sequence[Output]
    tokenizer: Tokenizer
    domain_key: str | None = None
    rules: TextRules = dataclasses.field(default_factory=TextRules)
    render: Render = "auto"
    sampled: bool = True

    gives = Rendered

    def __post_init__(self) -> None:
        super().__init__()
        if self.rules.date is None:
            self.rules = dataclasses.replace(self.rules, date=getattr(self.outputs, "date", None))
        outputs = getattr(self.outputs, "outputs", None)
        self.outputs = tuple(outputs() if callable(outputs) else self.outputs)
        if self.render not in get_args(Render):
            raise ValueError(f"render is {self.render!r}, wanted {' or '.join(get_args(Render))}")
        check_voice(self.outputs, self.tokenizer, self.rules)

    def step(self) -> Callable[[Records], Rendered]:
        return partial(
            _render,
            outputs=tuple(self.outputs),
            tokenizer=self.tokenizer,
            domain_key=self.domain_key,
            rules=self.rules,
            render=self.render,
            sampled=self.sampled,
        )
