"""Whole conversations: rendered once, and told apart into what each message says.

Where a template marks generation with `{% generation %}`, that is what the assistant says. Elsewhere it is derived:
the template reports, while it renders, where it comes to each message; inside what it writes for a message, what is
said runs from the end of the generation prompt to the last special token. A span counts as proven when the message's
own content lies in it, and no other's. Mostly that can be seen: the content stands once in what was written for the
message, and around it there are only special tokens. Where it cannot, the conversation is rendered again, with marks
around the contents.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beam_prep.core.chat_template import ChatTemplate, Message, RenderedChat


Contents = Callable[[], list[list[tuple[int, int]]] | None]
"""Where each message's content is written, as `ChatTemplate.contents` tells; rendered when it is first asked for."""


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
        contents = functools.cache(lambda: self.template.contents(list(messages), chat.text, **variables))
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

    def _derived(self, chat: RenderedChat, place: int, message: Message, prompt: str, contents: Contents) -> Said:
        region = chat.regions[place]
        if region is None:
            return Said(place, 0, 0, False)
        first, last = region
        text = chat.text[first:last]
        answers = message["role"] == "assistant" and bool(prompt)
        header = _common(text, prompt) if answers else 0
        body = self._find(text, message, header) if answers else None
        if body is None:
            body = self._find_exactly(text, message, header, first, place, contents)
        if body is None:
            return Said(place, first, last, False)
        begin, end = body
        # Without a generation prompt an answer begins with its content (or with its tool calls).
        start, stop = header if answers else begin, self._end(text, end)
        if start < stop and not self._plain(text[start:begin] + text[end:stop]):
            told = contents()
            if told is None or any(
                a < first + stop and b > first + start for other, at in enumerate(told) if other != place for a, b in at
            ):
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
        answer = content.split("</think>")[-1].strip()
        at = text.find(answer, header)
        return (at, at + len(answer)) if "</think>" in content and at >= 0 else None

    @staticmethod
    def _find_exactly(
        text: str, message: Message, header: int, first: int, place: int, contents: Contents
    ) -> tuple[int, int] | None:
        """Where a content lies whose header is not known: it may look like the header, or like what ends the message."""
        content = message.get("content") or ""
        at = text.find(content)
        if content and content == content.strip() and at >= 0 and text.find(content, at + 1) < 0:
            return at, at + len(content)
        told = contents()
        own = [] if told is None else told[place]
        if len(own) == 1 and first <= own[0][0] and own[0][1] <= first + len(text):
            return own[0][0] - first, own[0][1] - first
        return (header, header) if not content.strip() and not own and message.get("tool_calls") else None

    def _plain(self, around: str) -> bool:
        """Whether what stands around a content is nothing that anybody says: special tokens and white space."""
        return not _pattern(self.controls).sub("", around).strip()

    def _end(self, text: str, content_end: int) -> int:
        """One past the last special token behind the content; the content's own end where there is none."""
        ends = [found.end() for found in _pattern(self.controls).finditer(text, content_end)]
        return ends[-1] if ends else max(content_end, len(text.rstrip()))


_PATTERNS: dict[tuple[str, ...], re.Pattern[str]] = {}


def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    if controls not in _PATTERNS:
        _PATTERNS[controls] = re.compile("|".join(map(re.escape, controls)) or r"(?!)")
    return _PATTERNS[controls]


def _common(text: str, other: str) -> int:
    """Length of the common beginning."""
    if text.startswith(other):
        return len(other)
    return next(i for i, (a, b) in enumerate(zip(text + "\0", other + "\1", strict=False)) if a != b)
