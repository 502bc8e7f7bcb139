"""`Renderer`: renders with a template and a record's variables, within limits, with or without origins."""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from beam_prep.chat import limits, origins
from beam_prep.chat.environment import RAISED_BY_TEMPLATES, check_addresses, without_addresses
from beam_prep.chat.limits import TemplateLimit
from beam_prep.chat.messages import Message
from beam_prep.chat.origins import TOOLS, Origin
from beam_prep.chat.trace import Trace, trace
from beam_prep.data.block import Reject

_AT_ONCE = 1000
"""Pieces of a rendering between two counts of its characters."""


def any_of(texts: Collection[str]) -> str:
    """A pattern that matches any of these texts, the longest first.

    Texts with the same first character are grouped, because `re` tries the alternatives one after the other.

    >>> any_of(["<b>", "<br>", "User"])
    '<(?:br>|b>)|U(?:ser)'
    """
    rests: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        rests.setdefault(text[:1], []).append(re.escape(text[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in rests.items()) or r"(?!)"


class Tokens:
    """Patterns for the special tokens of a tokenizer, and for texts that look like special tokens.

    Args:
        texts: of the special tokens.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        tokens = any_of(texts)
        self.texts = tuple(texts)
        self.special = re.compile(f"(?:{tokens})")
        self.only_special = re.compile(rf"(?:\s|{tokens})*")
        self.tag = re.compile(rf"{tokens}|<[^<>\s]*>|\[[^\[\]\s]*\]")
        self.only_tags = re.compile(rf"(?:\s|{self.tag.pattern})*")
        self.token = re.compile(rf"{self.tag.pattern}|\w+|\s|.", re.DOTALL)

    def whole(self, text: str, begin: int, end: int) -> int:
        """The end, moved back to the end of a whole token."""
        last = next((token for token in self.token.finditer(text, begin) if token.end() >= end), None)
        return last.start() if last and last.start() < end < last.end() else end


@dataclass(slots=True)
class Renderer:
    """A template with the variables of a record.

    Attributes:
        compiled: the template.
        special_tokens: by their names in templates.
        tokens: patterns for all special tokens.
        formed: messages -> (messages in the form that the template takes, see `Forms.apply`).
        variables: `tools`, and other variables of the template.
    """

    compiled: jinja2.Template
    special_tokens: Mapping[str, str]
    tokens: Tokens
    formed: Callable[[Sequence[Message]], tuple[Sequence[Message], dict[str, int]]]
    variables: Mapping[str, Any]

    def run(self, messages: Sequence[Message], prompt: bool = False) -> Trace:
        """One rendering, with origins. The messages are in the form that the template takes."""
        rendering = trace(self.pieces(messages, prompt))
        self._check_addresses(rendering.text, messages)
        return rendering

    def pieces(self, messages: Sequence[Message], prompt: bool = False) -> list[str]:
        """The strings that the template yields, with origins."""
        tools = self.variables.get("tools")
        more = {} if tools is None else {"tools": origins.wrap(tools, Origin(TOOLS, ("tools",)))}
        nodes = [origins.message_node(message, index) for index, message in enumerate(messages)]
        return self._yielded(nodes, prompt, more)

    def text(self, messages: Sequence[Message], prompt: bool = False) -> str:
        """The text, without origins."""
        text = "".join(self._yielded(messages, prompt, {}))
        self._check_addresses(text, messages)
        return text

    def written(self, messages: Sequence[Message], prompt: bool) -> str | None:
        """The text, without origins; None if the template raises."""
        try:
            return self.text(messages, prompt)
        except Reject:
            return None

    def _check_addresses(self, text: str, messages: Sequence[Message]) -> None:
        try:
            check_addresses(text, (messages, self.variables))
        except jinja2.TemplateError as error:
            raise Reject("template_error", f"the chat template raised: {error}") from None

    def _yielded(self, messages: Sequence[Any], prompt: bool, more: dict[str, Any]) -> list[str]:
        limits.begin(messages)
        origins.ASKED.texts.clear()
        given = {"documents": None, "tools": None, **self.special_tokens, **self.variables, **more}
        context = self.compiled.new_context(given | {"messages": messages, "add_generation_prompt": prompt})
        found: list[str] = []
        characters = 0
        try:
            pieces = self.compiled.root_render_func(context)
            while chunk := list(itertools.islice(pieces, _AT_ONCE)):
                found += chunk
                characters += sum(map(str.__len__, chunk))
                limits.expect(characters)
        except TemplateLimit as error:
            raise Reject("template_limit", f"the chat template is stopped: {error}") from None
        except RAISED_BY_TEMPLATES as error:
            kind = type(error).__name__
            known = "" if kind in ("TemplateError", "UndefinedError", "SecurityError") else f"{kind}: "
            message = f"the chat template raised: {known}{without_addresses(str(error))}"
            raise Reject("template_error", message) from None
        return found
