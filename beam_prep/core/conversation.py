"""Whole conversations: rendered once, and told apart into what each message says.

Where a template marks generation with `{% generation %}`, that is what the assistant says. Elsewhere it is derived:
the template reports, while it renders, where it comes to each message; inside what it writes for a message, what is
said runs from the end of the generation prompt to the last special token. A span counts as proven when the message's
own content lies in it, and in what was written for this message alone.
"""

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
        said: list[Said] = []
        for place, message in enumerate(messages):
            if self.template.has_generation and message["role"] == "assistant":
                said += marked.get(place, [Said(place, 0, 0, chat.generations is not None)])
            else:
                said.append(self._derived(chat, place, message, prompt))
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

    def _derived(self, chat: RenderedChat, place: int, message: Message, prompt: str) -> Said:
        region = chat.regions[place]
        if region is None:
            return Said(place, 0, 0, False)
        text = chat.text[region[0] : region[1]]
        content = message.get("content") or ""
        answers = message["role"] == "assistant"
        header = _common(text, prompt) if answers else 0
        body = self._find(text, content, header, last=not answers)
        if body is None:
            return Said(place, *region, False)
        begin, end = body
        # Without a generation prompt an answer begins with its content (or with its tool calls).
        start = header if answers and prompt else begin
        stop = self._end(text, end)
        return Said(place, region[0] + start, region[0] + stop, start < stop)

    @staticmethod
    def _find(text: str, content: str, header: int, last: bool) -> tuple[int, int] | None:
        """Where the content lies in a message's text behind its header: as it is, or as templates trim it."""
        if not content.strip():
            return header, header
        for form in dict.fromkeys((content, content.strip())):
            at = text.rfind(form) if last else text.find(form, header)
            if at >= 0:
                return at, at + len(form)
        # Reasoning that stands in the content is often written apart: then what follows it must be there.
        answer = content.split("</think>")[-1].strip()
        at = text.find(answer, header)
        return (at, at + len(answer)) if "</think>" in content and at >= 0 else None

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
