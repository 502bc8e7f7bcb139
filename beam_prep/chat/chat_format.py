"""`ChatFormat`: the chat template, tokens and rules that records are rendered with."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from beam_prep.chat import limits
from beam_prep.chat.checks import Guard
from beam_prep.chat.messages import ToolArguments
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.data.fim import Fim, Parts
from beam_prep.data.schema import Output, TextRules
from beam_prep.errors import TokenizerError
from beam_prep.tokens.tokenizer import Tokenizer

TEMPLATE_LIMITS = {"template_characters": limits.MAX_CHARACTERS, "template_rounds": limits.MAX_ROUNDS}
"""The limits of a rendering, as the manifest names them."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template, the special tokens that it may write, and the rules for text.

    Attributes:
        template: None if no section wants one.
        controls: texts of the tokenizer's special tokens, for `rules.control_tokens`.
        bos, eos: texts of these tokens, "" where there are none.
        rules: see `TextRules`.
        fim: `rules.fim` with the tokenizer's sentinels.
        normalised: the text in which the tokenizer looks for sentinels; None: in the text as it is.
        plain: conversations are rendered in the plain way, see `ChatTemplate.render_plainly`.
    """

    template: ChatTemplate | None
    controls: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    rules: TextRules = field(default_factory=TextRules)
    fim: Fim | None = None
    normalised: Callable[[str], str] | None = None
    plain: bool = False

    def cut_bos(self, text: str) -> tuple[str, int, bool]:
        """(text, characters cut, with the tokenizer's special tokens), by the rule for BOS."""
        rule, bos = self.rules.bos, self.bos
        cut = len(bos) if rule != "keep" and bos and text.startswith(bos) else 0
        return text[cut:], cut, rule == "tokenizer"

    @property
    def guard(self) -> Guard:
        """The rule for texts of special tokens in what users wrote."""
        return Guard(self.rules.control_tokens, self.controls)

    def reordered(self, document: str) -> Parts | None:
        """A document by the rule of `fim`; None: as it is.

        Raises:
            Reject: `control_token`: it holds a sentinel, so nobody could tell where its parts begin.
        """
        assert self.fim is not None
        for found in self.fim.tokens:
            if found in document or (self.normalised and self.normalised(found) in self.normalised(document)):
                raise Reject(
                    "control_token",
                    f"the document holds {found!r}, a sentinel of output.fim, wanted none "
                    "(preprocessing.control_tokens: 'escape' keeps it text)",
                )
        return self.fim(document)


def chat_format_of(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules) -> ChatFormat:
    """The chat format that renders these outputs. Loads the tokenizer only for what needs it.

    Args:
        outputs: what each row consists of.
        tokenizer: its chat template renders messages.
        rules: which BOS, EOS, template.

    Raises:
        TokenizerError: a section wants a template, or a rule special tokens, that the tokenizer does not have.
    """
    tokens, template, fim, normalised = tokenizer.special_tokens, None, None, None
    if rules.eos != "never" and "eos_token" not in tokens:
        raise TokenizerError(f"preprocessing.eos is {rules.eos!r}, and this tokenizer has no eos_token: name one in it")
    if rules.fim is not None:
        # A token that takes white space beside it would change the document.
        exact = [each for each in tokenizer.components.added if not (each.lstrip or each.rstrip or each.single_word)]
        fim = rules.fim.of([each.content for each in exact])
        _check_parts(tokenizer, fim.tokens[0])
        normaliser = tokenizer.inside.normalizer
        if normaliser is not None and any(each.normalized and each.content in fim.tokens for each in exact):
            normalised = normaliser.normalize_str
    if any(output.has_template for output in outputs):
        template = template_of(tokenizer, rules.chat_template, rules.date, rules.tool_arguments)
    controls = () if rules.control_tokens == "keep" else tokenizer.controls
    if rules.control_tokens != "keep" and fim is not None:
        controls = tuple(sorted({*controls, *fim.tokens}, key=len, reverse=True))
    bos, eos = tokens.get("bos_token", ""), tokens.get("eos_token", "")
    return ChatFormat(template, controls, bos, eos, rules, fim, normalised)


_CUT = ("  ab  c\n\td e.\n ", "ab c")


@functools.lru_cache(maxsize=8)
def _check_parts(tokenizer: Tokenizer, sentinel: str) -> None:
    """Raises TokenizerError if texts that are cut into three, at any places, do not decode to what they do whole."""
    own = tokenizer.reference.token_to_id(sentinel)
    for text in _CUT:
        whole = tokenizer.decode(tokenizer.encode([text], False).flat.tolist())
        cuts = [(begin, end) for end in range(len(text) + 1) for begin in range(end + 1)]
        parts = [(text[:begin], text[begin:end], text[end:]) for begin, end in cuts]
        apart = [
            Parts((before, sentinel, middle, sentinel, after), 0 if before else 2 if middle else 4)
            for before, middle, after in parts
        ]
        for cut, ids in zip(parts, tokenizer.encode_parts(apart, False).to_lists(), strict=True):
            if (found := tokenizer.decode([token for token in ids if token != own])) != whole:
                raise TokenizerError(
                    f"output.fim: with this tokenizer, the parts {', '.join(map(repr, cut))} decode to {found!r}, "
                    f"wanted {whole!r}: use a tokenizer that keeps white space, or leave output.fim out"
                )


@functools.lru_cache(maxsize=8)
def template_of(
    tokenizer: Tokenizer, source: str | None = None, date: str | None = None, tool_arguments: ToolArguments = "auto"
) -> ChatTemplate:
    """The compiled chat template of a tokenizer, the same object at every call.

    Args:
        tokenizer: its template, and its special tokens.
        source: a template in place of the tokenizer's own.
        date, tool_arguments: see `ChatTemplate`.

    Raises:
        TokenizerError: the tokenizer has none; or see `ChatTemplate`.
    """
    source = source or tokenizer.chat_template
    if source is None and tokenizer.chat_templates:
        raise TokenizerError(
            f"this tokenizer's chat templates are named {', '.join(map(repr, sorted(tokenizer.chat_templates)))}, and "
            "none is the default one: name one in the config (input.chat_template)"
        )
    if source is None:
        raise TokenizerError(
            "this tokenizer has no chat template, and the config asks for one (`template` of a section): name one "
            'in the config (input.chat_template: "FILE.jinja"), or '
            "put a chat_template.jinja into the tokenizer's folder, or use text sections"
        )
    return ChatTemplate(source, tokenizer.special_tokens, tokenizer.controls, date, tool_arguments)
