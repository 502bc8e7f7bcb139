"""The kinds of text within a message: its reasoning, its tool calls, its end token, its header, and its content.

The reasoning is what the template writes because there is reasoning: the text that is not there if the conversation is
rendered without it, with the constants around it (`<think>`). Tool calls likewise. So nothing has to be known of the
template. As NeMo Automodel does it (`mask_reasoning_content`, datasets/llm/formatting_utils.py), but on characters and
within the message's span.
"""

import itertools
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beam_prep.chat.messages import Message
from beam_prep.chat.origins import REASONING_FIELDS
from beam_prep.chat.turns import Tokens
from beam_prep.core.data.schema import PART_KINDS, MaskOptions, PartKind

_INLINE = re.compile(r"\s*(?:<think>)?.*?</think>\n*", re.DOTALL)
"""Reasoning at the beginning of a content. Its first tag may be in the generation prompt (DeepSeek-R1)."""

_CODES: dict[PartKind, int] = {kind: code for code, kind in enumerate(PART_KINDS)}


class Part(NamedTuple):
    """A part of a rendered text: characters [start, stop), and the code of its kind, see `PART_KINDS`."""

    start: int
    stop: int
    kind: int


def inline_reasoning(message: Mapping[str, Any]) -> int:
    """Characters of the reasoning with which an answer's content begins; 0 if it has none."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str) or "</think>" not in content:
        return 0
    found = _INLINE.match(content)
    return found.end() if found else 0


def without_reasoning(message: Message) -> Message | None:
    """A message without its reasoning; None if it has none."""
    kept = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    inline = inline_reasoning(message)
    if not inline and not any(message.get(key) for key in REASONING_FIELDS):
        return None
    return {**kept, "content": kept["content"][inline:]} if inline else kept


def without_history_reasoning(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """The messages, those before the last question without their reasoning; and how many lost it."""
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=0)
    found = [without_reasoning(message) if place < last else None for place, message in enumerate(messages)]
    kept = [message if less is None else less for message, less in zip(messages, found, strict=True)]
    return kept, sum(less is not None for less in found)


@dataclass(frozen=True)
class Kinds:
    """Finds the parts of the messages of a rendered conversation.

    Attributes:
        options: which parts are asked for.
        text: the conversation.
        messages: its messages.
        prompt: the generation prompt.
        tokens: the special tokens.
        render: renders other messages in the same way.
    """

    options: MaskOptions
    text: str
    messages: Sequence[Message]
    prompt: str
    tokens: Tokens
    render: Callable[[list[Message]], str]

    def cut(self, message: int, start: int, stop: int) -> list[Part] | None:
        """A span of a message, in parts of one kind each; None where these are not certain.

        Args:
            message: its index.
            start, stop: the span.
        """
        parts = self.parts(message, start, stop)
        if parts is None:
            return None
        end = self._end(max([start, *(part.stop for part in parts)]), stop)
        found = list(partition(start, stop, [*parts, end] if end.start < end.stop else parts))
        header = self._header(start) if self.options.generation_prompt == "train" else None
        return [header._replace(stop=start), *found] if header is not None and header.start < start else found

    def parts(self, message: int, start: int, stop: int) -> list[Part] | None:
        """The reasoning, the tool calls and the generation prompt of a message. For arguments see `cut`."""
        given = self.messages[message]
        header = self._header(start) if given["role"] == "assistant" else None
        if header is not None:
            start = max(start, header.stop)  # which is no part of what the message says
        found = []
        if (less := without_reasoning(given)) is not None:
            found.append(self._difference(message, less, start, stop, "reasoning"))
        if given.get("tool_calls"):
            less = {key: value for key, value in given.items() if key != "tool_calls"}
            less = {**less, "content": "" if less.get("content") is None else less["content"]}
            found.append(self._difference(message, less, start, stop, "tool_calls"))
        if None in found:
            return None
        parts = sorted(part for part in found if part is not None and part.start < part.stop)
        if any(one.stop > other.start for one, other in itertools.pairwise(parts)):
            return None
        if header is not None and self.options.generation_prompt == "mask":
            parts.insert(0, header)
        return parts

    def _header(self, start: int) -> Part | None:
        """The generation prompt that a span, which begins at `start`, comes after or begins in; None: there is none."""
        if not self.prompt:
            return None
        at = self.text.rfind(self.prompt, 0, start + len(self.prompt))
        stop = at + len(self.prompt)
        return Part(at, stop, _CODES["generation_prompt"]) if at >= 0 and at <= start <= stop else None

    def _end(self, start: int, stop: int) -> Part:
        """The end tokens, with the white space around them, at the end of a span; empty if there are none."""
        ends = re.compile(rf"(?:\s*{self.tokens.special.pattern})+\s*\Z")
        found = ends.search(self.text, start, stop)
        return Part(stop if found is None else found.start(), stop, _CODES["eos"])

    def _difference(self, message: int, less: Message, start: int, stop: int, kind: PartKind) -> Part | None:
        """What the template writes of a message, but not of `less`; None where it is not within the message's text."""
        other = self.render([less if place == message else each for place, each in enumerate(self.messages)])
        text = self.text
        first = len(os.path.commonprefix([text, other]))
        last = len(text) - len(os.path.commonprefix([text[first:][::-1], other[first:][::-1]]))
        # Text that begins as what follows it may as well begin earlier: as early as it can, it begins with its tag.
        while first > start and last > first and text[first - 1] == text[last - 1]:
            first, last = first - 1, last - 1
        return Part(first, last, _CODES[kind]) if first >= last or start <= first <= last <= stop else None


def partition(start: int, stop: int, parts: Sequence[Part]) -> Iterator[Part]:
    """The parts of [start, stop), and content between them.

    Args:
        start, stop: characters.
        parts: in order, none over another; those outside are left out.
    """
    at = start
    for part in parts:
        first, last = max(part.start, at), min(part.stop, stop)
        if first < last:
            if at < first:
                yield Part(at, first, _CODES["content"])
            yield Part(first, last, part.kind)
            at = last
    if at < stop:
        yield Part(at, stop, _CODES["content"])
