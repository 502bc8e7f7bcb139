"""`ChatFormat`: the chat template, tokens and rules that records are rendered with."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from beam_prep.chat import limits
from beam_prep.chat.control import JOINER, Guard, Rule, Search, control_tokens, parsed_tokens, search_of
from beam_prep.chat.messages import ToolArguments
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.data.fim import Fim, Parts
from beam_prep.data.schema import Output, TextRules
from beam_prep.errors import TokenizerError
from beam_prep.tokens.tokenizer import Tokenizer

TEMPLATE_LIMITS = {"template_characters": limits.MAX_CHARACTERS, "template_rounds": limits.MAX_ROUNDS}
"""The limits of a rendering, under their names in the manifest."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A chat template, the special tokens that it may write, and the rules for text.

    Attributes:
        template: None if no section needs one.
        guard: the rule for texts of control tokens in a record's own texts.
        bos, eos: texts of these tokens; "" without them.
        rules: see `TextRules`.
        fim: `rules.fim` with the tokenizer's sentinels.
        sentinels: finds the sentinels of `fim`.
        plain: conversations are rendered by `ChatTemplate.render_plainly`.
        most_text: most characters of the texts of a block, unless the block is large.
    """

    template: ChatTemplate | None
    guard: Guard = field(default_factory=Guard)
    bos: str = ""
    eos: str = ""
    rules: TextRules = field(default_factory=TextRules)
    fim: Fim | None = None
    sentinels: Search | None = None
    plain: bool = False
    most_text: int = 1 << 28

    def cut_bos(self, text: str) -> tuple[str, int, bool]:
        """(text, characters cut, whether the tokenizer adds its special tokens), by the rule for BOS."""
        rule, bos = self.rules.bos, self.bos
        cut = len(bos) if rule != "keep" and bos and text.startswith(bos) else 0
        return text[cut:], cut, rule == "tokenizer"

    def reordered(self, document: str) -> Parts | None:
        """A document in the order of the rule of `fim`; None: unchanged.

        Raises:
            Reject: `control_token`: the document holds a sentinel, so the borders of its parts would be ambiguous.
        """
        assert self.fim is not None
        assert self.sentinels is not None
        if (found := self.sentinels(document)) is not None:
            raise Reject(
                "control_token",
                f"the document holds {found[0]!r}, a sentinel of output.fim, wanted none "
                "(preprocessing.control_tokens: 'escape' keeps it text)",
            )
        return self.fim(document)


def chat_format_of(outputs: Sequence[Output], tokenizer: Tokenizer, rules: TextRules) -> ChatFormat:
    """The chat format that renders these outputs. Loads the tokenizer only if needed.

    Args:
        outputs: the outputs of each record.
        tokenizer: its chat template renders messages.
        rules: which BOS, EOS, template.

    Raises:
        TokenizerError: the tokenizer lacks a template that a section needs, or special tokens that a rule needs.
    """
    tokens, template, fim, sentinels = tokenizer.special_tokens, None, None, None
    if rules.eos != "never":
        if "eos_token" not in tokens:
            raise TokenizerError(
                f"preprocessing.eos is {rules.eos!r}, and this tokenizer has no eos_token: name one in it"
            )
        _check_eos(tokenizer)
    if rules.fim is not None:
        added = [each for each in tokenizer.added.values() if not (each.lstrip or each.rstrip or each.single_word)]
        fim = rules.fim.of([each.content for each in added])
        _check_parts(tokenizer, fim.tokens[0])
        sentinels = search_of(fim.tokens, tokenizer)
    if any(output.has_template for output in outputs):
        template = template_of(tokenizer, rules.chat_template, rules.date, rules.tool_arguments)
    bos, eos = tokens.get("bos_token", ""), tokens.get("eos_token", "")
    guard = guard_of(tokenizer, template, rules.control_tokens)
    return ChatFormat(template, guard, bos, eos, rules, fim, sentinels)


def _check_eos(tokenizer: Tokenizer) -> None:
    """Raises TokenizerError if the EOS token's text behind a text does not become the EOS token."""
    eos = tokenizer.special_tokens["eos_token"]
    ids = tokenizer.encode([f"a{eos}"], add_special_tokens=False).flat.tolist()
    if ids[-1:] != [tokenizer.id_of("eos_token")]:
        raise TokenizerError(
            f"preprocessing.eos: this tokenizer makes {tokenizer.pieces(ids)} of 'a{eos}', wanted {eos!r} in one piece "
            f"at the end: set normalized and single_word of {eos!r} to false in tokenizer.json and "
            "tokenizer_config.json, and split_special_tokens to false; or leave preprocessing.eos out"
        )


_CUT = ("  ab  c\n\td e.\n ", "ab c")


@functools.lru_cache(maxsize=8)
def _check_parts(tokenizer: Tokenizer, sentinel: str) -> None:
    """Raises TokenizerError if a text that is encoded in three parts does not decode to the same text as a whole."""
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
def guard_of(tokenizer: Tokenizer, template: ChatTemplate | None, rule: Rule) -> Guard:
    """The guard for a tokenizer's control tokens; the same object at every call.

    Args:
        tokenizer: has the added tokens.
        template: may parse some of these tokens in an assistant's content.
        rule: see `Guard`.

    Raises:
        TokenizerError: the rule is `escape`, and the tokenizer still makes a control token of its escaped text.
    """
    if rule == "keep":
        return Guard()
    controls = control_tokens(tokenizer.added.values(), "" if template is None else template.source)
    parsed: list[str] = []
    if template is not None:
        written = {*template.special_tokens.values()}
        candidates = [token for token in controls if token in template.source or token in written]
        parsed = parsed_tokens(template.with_answer, candidates, controls)
    guard = Guard(rule, controls, parsed, tokenizer)
    if rule == "escape":
        _check_escapes(Guard(rule, controls), tokenizer)
    return guard


def _check_escapes(guard: Guard, tokenizer: Tokenizer) -> None:
    """Raises TokenizerError if the tokenizer's normaliser removes the invisible character of an escape."""
    ids = {token.content: number for number, token in tokenizer.added.items()}
    # `plain` has the tokens that come in any case: a vocabulary may lack the character.
    texts = [f"a{JOINER}b", *(f"a{guard(token, 'text')}b" for token in guard.controls)]
    plain, *escaped = tokenizer.encode(texts, add_special_tokens=False).to_lists()
    for token, row in zip(guard.controls, escaped, strict=True):
        if ids[token] in row and ids[token] not in plain:
            raise TokenizerError(
                f"preprocessing.control_tokens is 'escape', and this tokenizer still makes the token {token!r} "
                "of its escaped text, because its normalizer removes the escape: use 'reject'"
            )


@functools.lru_cache(maxsize=8)
def template_of(
    tokenizer: Tokenizer, source: str | None = None, date: str | None = None, tool_arguments: ToolArguments = "auto"
) -> ChatTemplate:
    """The compiled chat template of a tokenizer; the same object at every call.

    Args:
        tokenizer: has the template and the special tokens.
        source: a template in place of the tokenizer's own, see `Tokenizer.template_source`.
        date, tool_arguments: see `ChatTemplate`.

    Raises:
        TokenizerError: the tokenizer has no template; or see `ChatTemplate`.
    """
    source = tokenizer.template_source(source)
    if source is None and tokenizer.chat_templates:
        raise TokenizerError(
            f"this tokenizer's chat templates are named {', '.join(map(repr, sorted(tokenizer.chat_templates)))}, and "
            "none is the default one: name one in the config (input.chat_template)"
        )
    if source is None:
        raise TokenizerError(
            "this tokenizer has no chat template, and the config asks for one (`template` of a section): name one "
            'in the config (input.chat_template: "FILE.jinja"; in `beam-prep template`: --chat_template FILE), or put '
            "a chat_template.jinja into the tokenizer's folder (a chat_template.json is not read), or use text sections"
        )
    return ChatTemplate(source, tokenizer.special_tokens, tokenizer.controls, date, tool_arguments)
