"""The voice of a tokenizer's template, and records rendered by it."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from beam_prep.core.chat.limits import MAX_CHARACTERS, MAX_WORK
from beam_prep.core.data.fim import Fim
from beam_prep.core.data.schema import Output, TextRules
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.rendered import Rendered
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.records import Records
from beam_prep.errors import TokenizerError

TEMPLATE_LIMITS = {"template_characters": MAX_CHARACTERS, "template_work": MAX_WORK}
"""The limits of a rendering, as the manifest names them."""

Render = Literal["auto", "jinja"]


def check_voice(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules) -> bool:
    """True if these outputs need a chat template.

    Raises what `voice_of` raises, and loads the tokenizer only for `rules.fim`.
    """
    if rules.eos != "never" and "eos_token" not in tokenizer.special_tokens:
        raise TokenizerError(f"preprocessing.eos is {rules.eos!r}, and this tokenizer has no eos_token: name one in it")
    fim_of(tokenizer, rules)
    needed = any(output.has_template for output in outputs)
    if needed:
        tokenizer.template(rules.chat_template, date=rules.date)
    return needed


def voice_of(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules, render: Render = "jinja") -> Voice:
    """The voice that renders these outputs.

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
        fim_of(tokenizer, rules),
    )


def fim_of(tokenizer: Tokenizer, rules: TextRules) -> Fim | None:
    """The rule for reordering documents, with the tokenizer's sentinels; None: there is none.

    Raises:
        TokenizerError: it has no sentinels.
    """
    if rules.fim is None:
        return None
    added = tokenizer.makeup.added
    # One that takes white space beside it would change the document.
    return rules.fim.of([token.content for token in added if not (token.lstrip or token.rstrip or token.single_word)])


def render_records(
    records: Records,
    outputs: tuple[Output, ...],
    tokenizer: Tokenizer,
    domain_key: str | None,
    rules: TextRules,
    render: Render,
    sampled: bool,
) -> Rendered:
    """Renders the records of a block; `sampled`: the reference renders a sample of them, too."""
    voice = voice_of(outputs, tokenizer, rules, render)
    return apply_template(
        records, outputs, voice if sampled else dataclasses.replace(voice, reference=None), domain_key
    )
