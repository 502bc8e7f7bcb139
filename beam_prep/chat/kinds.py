"""The kinds of text within a turn: its reasoning, its tool calls, its end token, its header, and its content.

Constants around the text of reasoning or calls belong to them (`<think>`, `<tool_call>`). Between reasoning and calls,
the first tag and the blanks behind it belong to the reasoning. Reasoning at the beginning of a content, up to
`</think>`, is reasoning, too. This follows NeMo Automodel (`mask_reasoning_content`,
datasets/llm/formatting_utils.py), but on characters, and within the trained text of the message.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from beam_prep.chat.messages import Message
from beam_prep.chat.origins import REASONING_FIELDS
from beam_prep.chat.renderer import Tokens
from beam_prep.chat.trace import SourceSpan
from beam_prep.data.schema import PART_KINDS, MaskOptions

CONTENT, REASONING, TOOL_CALLS, GENERATION_PROMPT, EOS = range(len(PART_KINDS))

_INLINE = re.compile(r"\s*(?:<think>)?.*?</think>\n*", re.DOTALL)
"""Reasoning at the beginning of a content. The generation prompt may hold its first tag (DeepSeek-R1)."""
_INLINE_END, _BLANKS = re.compile(r"</think>\n*"), re.compile(r"\s*")


class KindSpan(NamedTuple):
    """A part of a rendered text: characters [start, stop), and the code of its kind (see `PART_KINDS`)."""

    start: int
    stop: int
    kind: int


def inline_reasoning(message: Mapping[str, Any]) -> int:
    """Characters of the reasoning at the beginning of an answer's content; 0 without one."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str) or "</think>" not in content:
        return 0
    found = _INLINE.match(content)
    return found.end() if found else 0


def without_history_reasoning(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """(the messages, without the reasoning of those before the last question; how many lost reasoning)."""
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=0)
    kept, lost = [], 0
    for place, message in enumerate(messages):
        inline = inline_reasoning(message)
        if place < last and (inline or any(message.get(key) for key in REASONING_FIELDS)):
            message = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
            message |= {"content": message["content"][inline:]} if inline else {}
            lost += 1
        kept.append(message)
    return kept, lost


def parts_of(
    text: str,
    message: Message,
    own: Sequence[SourceSpan],
    span: tuple[int, int],
    options: MaskOptions,
    prompt: str,
    tokens: Tokens,
) -> list[KindSpan]:
    """A message's span, split into parts of one kind each.

    Args:
        text: the conversation.
        message, own: the message, and the spans of its own text, in order.
        span: characters.
        options: the kinds that the config distinguishes.
        prompt: the generation prompt; "" without one.
        tokens: the special tokens.
    """
    start, stop = span
    at = text.rfind(prompt, 0, start + len(prompt)) if prompt and message["role"] == "assistant" else -1
    begin = max(start, at + len(prompt)) if 0 <= at <= start else start
    end = _end(text, begin, stop, own, tokens)
    said = [each for each in own if begin <= each.begin < end and each.end > each.begin]
    borders = _borders(text, message, said, tokens)
    cuts = [(begin, borders[0][1] if borders else CONTENT), *borders[1:], (end, EOS)]
    if begin > start:
        cuts.insert(0, (start, GENERATION_PROMPT if options.generation_prompt == "mask" else CONTENT))
    elif options.generation_prompt == "train" and 0 <= at < start and not text[at + len(prompt) : start].strip():
        cuts.insert(0, (at, GENERATION_PROMPT))
    places = [*accumulate((min(place, stop) for place, _ in cuts), max), stop]
    return [KindSpan(*part, kind) for part, (_, kind) in zip(pairwise(places), cuts, strict=True) if part[1] > part[0]]


def _end(text: str, begin: int, stop: int, own: Sequence[SourceSpan], tokens: Tokens) -> int:
    """Where the end tokens at the end of a span begin, with the white space around them."""
    said = max([begin, *(each.end for each in own if each.end <= stop)])
    found = re.compile(rf"(?:\s*{tokens.special.pattern})+\s*\Z").search(text, said, stop)
    return found.start() if found else stop


def _borders(text: str, message: Message, own: Sequence[SourceSpan], tokens: Tokens) -> list[tuple[int, int]]:
    """(begin of a kind, the kind), in order; the first kind begins with the turn."""
    borders: list[tuple[int, int]] = []
    behind = 0  # end of the previous text
    for segment in own:
        kind = REASONING if "reasoning" in segment.keys else CONTENT
        kind = TOOL_CALLS if any(key.startswith("tool_calls") for key in segment.keys) else kind
        last = borders[-1][1] if borders else None
        if last is None or (kind == CONTENT and last != CONTENT):
            borders.append((segment.begin, kind))  # constants beside content belong to the other kind
        elif kind != last:
            tag = tokens.tag.search(text, behind, segment.begin) if last == REASONING else None
            borders.append((_BLANKS.match(text, tag.end()).end() if tag else behind, kind))  # type: ignore[union-attr]
        behind = segment.end
    if inline_reasoning(message):
        first = next((each.begin for each in own if each.keys[:1] == ("content",)), None)
        close = _INLINE_END.search(text, first, own[-1].end) if first is not None else None
        if close is not None:
            later = [(at, kind) for at, kind in borders if at >= close.end()]
            return [(borders[0][0], REASONING), (close.end(), CONTENT), *later]
    return borders
