"""Finds parts of a rendering: the conversation is rendered once more, with fences around the parts."""

import re

from beam_prep.core.chat.message import Message

FENCES = "\ufdd0", "\ufdd1"
"""Characters that mark the beginning and the end of a content or a generation block."""
NUMBERED_FENCE = re.compile("([\ufdd0\ufdd1])(.)", re.DOTALL)  # a fence, and the number of a message
_FIRST_NUMBER = 0xF0000


def put_between_fences(message: Message, place: int, trimmed: bool, blanks: bool) -> Message:
    """A message whose content is between numbered fences; `trimmed`: white space at its edges outside of them."""
    content = message.get("content")
    if not isinstance(content, str) or not (content.strip() or (blanks and not message.get("tool_calls"))):
        return message
    core = content.strip() if trimmed else content
    head, _, tail = content.partition(core) if core else ("", "", "")
    opening, closing = (fence + chr(_FIRST_NUMBER + place) for fence in FENCES)
    return {**message, "content": head + opening + core + closing + tail}


def content_ranges(fenced: str, messages: int) -> list[list[tuple[int, int]]]:
    """Ranges between numbered fences, in the text without them."""
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(messages)]
    opened: dict[int, int] = {}
    for seen, found in enumerate(NUMBERED_FENCE.finditer(fenced)):
        at, place = found.start() - 2 * seen, ord(found[2]) - _FIRST_NUMBER
        if found[1] == FENCES[0]:
            opened[place] = at
        else:
            ranges[place].append((opened.pop(place, at), at))
    return ranges


def generation_ranges(fenced: str, text: str) -> list[tuple[int, int]] | None:
    """Ranges between fences, in the text without them; None if the template did more than write the fences."""
    opening, closing = FENCES
    if fenced.replace(opening, "").replace(closing, "") != text or opening in text or closing in text:
        return None
    ranges, start, seen = [], -1, 0
    for place, character in enumerate(fenced):
        if character in FENCES and (character == opening) != (start < 0):
            return None
        if character == opening:
            start, seen = place - seen, seen + 1
        elif character == closing:
            ranges.append((start, place - seen))
            start, seen = -1, seen + 1
    return ranges
