"""Whole conversations: rendered once, and told apart into what each message says.

Where a template marks generation with `{% generation %}`, that is what the assistant says. Elsewhere it is derived:
the template reports, while it renders, where it comes to each message; inside what it writes for a message, what is
said runs from the end of the generation prompt to the last special token. A span counts as proven when the message's
own content lies in it, and no other's. Mostly that can be seen: the content stands once in what was written for the
message, and nothing that another says stands beside it. Where it cannot, the conversation is rendered again, with
marks around the contents.
"""

import bisect
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beam_prep.core.chat_template import ChatTemplate, Message, RenderedChat


class Said(NamedTuple):
    """What a message says, in characters of the whole rendering.

    Attributes:
        message: its index.
        start, stop: the range.
        proven: False where the range is not known for certain.
    """

    message: int
    start: int
    stop: int
    proven: bool


@dataclass(frozen=True)
class _Contents:
    """The contents of a rendered conversation."""

    template: ChatTemplate
    chat: RenderedChat
    messages: Sequence[Message]
    variables: dict[str, Any]

    @functools.cached_property
    def places(self) -> list[list[tuple[int, int]]] | None:
        """Where each is written, as `ChatTemplate.contents` tells: rendered when first asked for."""
        return self.template.contents(list(self.messages), self.chat.text, **self.variables)

    @functools.cached_property
    def _said(self) -> set[str]:
        contents = [message.get("content") or "" for message in self.messages]
        return {core for content in contents for core in (content.strip(), _answer(content)) if core}

    @functools.cached_property
    def _silent(self) -> dict[str, bool]:
        return {}

    def silent(self, around: str) -> bool:
        """Whether none of the contents stands in a text. (What stands around contents is mostly the same.)"""
        if around not in self._silent:
            self._silent[around] = not any(core in around for core in self._said)
        return self._silent[around]

    @functools.cached_property
    def _ranges(self) -> list[tuple[int, int, int]]:
        return sorted((start, stop, place) for place, at in enumerate(self.places or []) for start, stop in at)

    def others(self, place: int, start: int, stop: int) -> bool:
        """Whether some of another message's content is written in that range, or may be."""
        if self.places is None:
            return True
        at = max(bisect.bisect_left(self._ranges, (start,)) - 1, 0)
        inside = itertools.takewhile(lambda found: found[0] < stop, itertools.islice(self._ranges, at, None))
        return any(end > start and other != place for _, end, other in inside)


@dataclass(frozen=True, slots=True)
class Speech:
    """Finds what each message says.

    Attributes:
        template: the chat template.
        controls: texts of the tokenizer's special tokens.
    """

    template: ChatTemplate
    controls: tuple[str, ...]

    def find(self, chat: RenderedChat, messages: Sequence[Message], variables: dict[str, Any]) -> list[Said]:
        """One or more ranges a message, in order of the messages."""
        marked = self._marked(chat, messages) if self.template.has_generation else {}
        prompt = self.template.generation_prompt(**variables)
        contents = _Contents(self.template, chat, messages, variables)
        said: list[Said] = []
        for place, message in enumerate(messages):
            if self.template.has_generation and message["role"] == "assistant":
                said += marked.get(place, [Said(place, 0, 0, chat.generations is not None)])
            else:
                said.append(self._derived(chat, place, message, prompt, contents))
        return said

    def _marked(self, chat: RenderedChat, messages: Sequence[Message]) -> dict[int, list[Said]]:
        """Generation blocks by the message in whose region they begin; in order of the assistant's turns otherwise."""
        found: dict[int, list[Said]] = {}
        blocks = chat.generations or []
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        starts = [(region[0], place) for place, region in enumerate(chat.regions) if region is not None]
        certain = all(chat.regions[place] is not None for place in turns)
        for number, (start, stop) in enumerate(blocks):
            if certain:
                place = max((entry for entry in starts if entry[0] <= start), default=(0, -1))[1]
            elif len(blocks) == len(turns):
                place = turns[number]
            else:
                return {place: [Said(place, 0, 0, False)] for place in turns}
            if start < stop:
                found.setdefault(place, []).append(Said(place, start, stop, True))
        return found

    def _derived(self, chat: RenderedChat, place: int, message: Message, prompt: str, contents: _Contents) -> Said:
        region = chat.regions[place]
        if region is None:
            return Said(place, 0, 0, False)
        first, last = region
        text = chat.text[first:last]
        answers = message["role"] == "assistant" and bool(prompt)
        header = _common(text, prompt) if answers else 0
        guessed = chat.guessed and place == 0
        body = self._find(text, message, header) if answers and not guessed else None
        if body is None:
            body = self._find_exactly(text, message, header, first, place, contents, guessed)
        if body is None:
            return Said(place, first, last, False)
        begin, end = body
        # Without a generation prompt an answer begins with its content (or with its tool calls).
        start, stop = header if answers else begin, self._end(text, end)
        beside = (text[start:begin], text[end:stop])
        if not all(map(contents.silent, beside)) and contents.others(place, first + start, first + stop):
            return Said(place, first, last, False)
        return Said(place, first + start, first + stop, start < stop)

    @staticmethod
    def _find(text: str, message: Message, header: int) -> tuple[int, int] | None:
        """Where an answer's content lies behind its header: as it is, or as templates trim it."""
        content = message.get("content") or ""
        if not content.strip():
            return header, header
        for form in dict.fromkeys((content, content.strip())):
            at = text.find(form, header)
            if at >= 0:
                return at, at + len(form)
        # Reasoning that stands in the content is often written apart: then what follows it must be there.
        answer = _answer(content)
        at = text.find(answer, header)
        return (at, at + len(answer)) if answer and at >= 0 else None

    @staticmethod
    def _find_exactly(
        text: str, message: Message, header: int, first: int, place: int, contents: _Contents, guessed: bool
    ) -> tuple[int, int] | None:
        """Where a content lies behind a header that is not known: the header, or the end, may look like it."""
        content = message.get("content") or ""
        core = content.rstrip()
        at = text.find(core)
        if not guessed and core and not core[0].isspace() and at >= 0 and text.find(core, at + 1) < 0:
            return at, at + len(content if text.startswith(content, at) else core)
        own = [] if contents.places is None else contents.places[place]
        if len(own) == 1 and first <= own[0][0] and own[0][1] <= first + len(text):
            return own[0][0] - first, own[0][1] - first
        return (header, header) if not core and not own and message.get("tool_calls") else None

    def _end(self, text: str, content_end: int) -> int:
        """One past the last special token behind the content; the content's own end where there is none."""
        ends = [found.end() for found in control_pattern(self.controls).finditer(text, content_end)]
        return ends[-1] if ends else max(content_end, len(text.rstrip()))


def _answer(content: str) -> str:
    """What follows the reasoning that stands in a content; "" where none does."""
    return content.split("</think>")[-1].strip() if "</think>" in content else ""


_PATTERNS: dict[tuple[str, ...], re.Pattern[str]] = {}


def control_pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of the special tokens."""
    if controls not in _PATTERNS:
        _PATTERNS[controls] = re.compile("|".join(map(re.escape, controls)) or r"(?!)")
    return _PATTERNS[controls]


def _common(text: str, other: str) -> int:
    """Length of the common beginning."""
    if text.startswith(other):
        return len(other)
    return next(i for i, (a, b) in enumerate(zip(text + "\0", other + "\1", strict=False)) if a != b)
