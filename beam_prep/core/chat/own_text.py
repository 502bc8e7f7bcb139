"""Checks that a span holds a message's own text, all of it, and nothing else but constants of its turn."""

import itertools
from collections.abc import Sequence
from typing import Any

from beam_prep.core.chat.end_tokens import control_pattern
from beam_prep.core.chat.frame import Frame
from beam_prep.core.chat.message import Message
from beam_prep.core.chat.message_pieces import MessagePieces
from beam_prep.core.chat.places import DependsOnContent, Place


class OwnText:
    """The own text of the messages of a conversation.

    Args:
        pieces: the conversation.
        frame: what the template writes around any message.
        prompt: the generation prompt.
        messages: the messages; None where they are not known.
        guarded: a constant may be there because of what the record says: then the template has to write it always.

    Raises:
        DependsOnContent: (any method) the answer depends on texts that are not known.
    """

    def __init__(
        self, pieces: MessagePieces, frame: Frame, prompt: str, messages: Sequence[Message] | None, guarded: bool
    ) -> None:
        self._pieces, self._frame, self._prompt = pieces, frame, prompt
        self._messages, self._guarded = messages, guarded

    def is_written_once(self, message: int, own: Sequence[int]) -> bool:
        """True if the template writes a message's text: all of it once, in order."""
        pieces = self._pieces
        keys = pieces.keys(own)
        if self._messages is None:
            # Contents that are not known may be blank, and are one piece each.
            if keys != {"content"} or len(own) != 1 or pieces.layout.mixed[own[0]]:
                raise DependsOnContent
            return True
        given = self._messages[message]
        content = given.get("content")
        if isinstance(content, str) and content.strip() and "content" not in keys:
            return False
        for key in keys - {"tool_calls"}:
            texts = [pieces.texts[piece] or "" for piece in own if key in pieces.keys((piece,))]
            if len(texts) > 1 and (not _are_parts(texts, given.get(key)) or self._frame.repeats):
                return False  # what looks like a part of it may be a copy of a part
        return True

    def is_proven(self, message: int, start: Place, own: Sequence[int]) -> bool:
        """True if all text from a place to a message's last piece is its own, or constants within its turn."""
        pieces, layout = self._pieces, self._pieces.layout
        if message in layout.dependent:
            return False
        if not own:
            return True
        if self._guarded and any(layout.mixed[piece] and pieces.keys((piece,)) != {"tool_calls"} for piece in own):
            return False  # what the template puts into it may be there because of what another message says
        gap, reached = pieces.constants_from(start, own[0])
        if reached < own[0]:
            return False
        if layout.assumed and gap.strip():
            return False  # it may depend on the message's own words, and no test of them can be taken otherwise
        if self._guarded and not self._is_written_always(gap, own):
            return False
        before = pieces.constants_before(start)
        texts = [before, gap]
        for piece in range(own[0], own[-1]):
            text = pieces.texts[piece]
            if pieces.is_own(piece, message):
                texts.append("\0" if not layout.mixed[piece] else pieces.text(piece))
            elif layout.constants[piece] is None and text != "":
                return False
            else:
                texts.append(text or "")
        texts.append(pieces.text(own[-1]) if layout.mixed[own[-1]] else "")
        text = "".join(texts)
        found = control_pattern(self._frame.controls).finditer(text)
        tokens = [token[0] for token in found if token.end() > len(before)]
        return not tokens or self._frame.turns.isdisjoint(tokens)

    def _is_written_always(self, gap: str, own: Sequence[int]) -> bool:
        """True if the constants before and between the parts of a message's text depend on no message."""
        pieces, frame = self._pieces, self._frame
        calls_first = "tool_calls" in pieces.keys(own[:1])
        blank = not self._prompt and not gap.strip()
        if gap and not blank and not calls_first and gap not in frame.gaps_after(self._prompt, pieces.layout.assumed):
            return False
        between = [gap] if calls_first else []
        for one, other in itertools.pairwise(own):
            between.append("".join(pieces.layout.constants[piece] or "" for piece in range(one + 1, other)))
        return all(map(frame.is_around_parts, between))


def _are_parts(texts: Sequence[str], value: Any) -> bool:
    """True if texts are parts of a value, one after the other. A text that is written twice is none."""
    if not isinstance(value, str):
        return False
    at = 0
    for text in texts:
        found = value.find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return True
