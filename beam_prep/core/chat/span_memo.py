"""Spans that are found once for all conversations of a plan that are alike in what spans depend on.

`SpanFinder` looks at the layout of a rendering, at the frame of the template, and of the texts at little more than
whether they are empty. Conversations for which all of that is the same have the same spans, as places in pieces.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.message_pieces import TEXT_KEYS
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces

_MOST_ENTIRE = 1000
"""Characters of pieces that count entirely. Longer ones are seldom the same twice, and would be kept for nothing."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """Which texts of a layout the spans depend on.

    Attributes:
        entire: pieces whose whole text counts, since the template's own text is in them.
        others: other pieces that are not constant: what counts is whether they are empty, or blank.
        unwritten: messages whose content is no piece, as it is or stripped: whether it is blank counts, too.
        end: the piece from which on all text together may be one special token; -1: only constants are there.
    """

    entire: tuple[int, ...]
    others: tuple[int, ...]
    unwritten: tuple[int, ...]
    end: int


@functools.lru_cache(maxsize=4096)
def _looked(layout: PieceLayout) -> _Looked | None:
    """None where the spans depend on more than that."""
    if layout.assumed:
        return None
    written = Counter(source for sources in layout.sources for source in sources if source[1] in TEXT_KEYS)
    if any(count > 1 and key != "tool_calls" for (_, key), count in written.items()):
        return None  # whether they are parts of one value depends on all of it
    variable = [piece for piece, constant in enumerate(layout.constants) if constant is None]
    written_as_it_is = {layout.plain_content[piece] for piece in variable}
    end = layout.marks[-1][0] if layout.marks else len(layout.constants)
    return _Looked(
        tuple(piece for piece in variable if layout.mixed[piece]),
        tuple(piece for piece in variable if not layout.mixed[piece]),
        tuple(message for message in range(layout.messages) if message not in written_as_it_is),
        end if variable and variable[-1] >= end else -1,
    )


def what_counts(
    planned: RenderedPieces, messages: Sequence[Message], tokens: frozenset[str]
) -> tuple[Hashable, ...] | None:
    """What the spans of a conversation depend on, besides roles, frame and generation prompt.

    Args:
        planned: its rendering by a plan.
        messages: as the template sees them.
        tokens: texts of the special tokens that the template is given, and "".

    Returns:
        None where that is too much to be compared.
    """
    pieces, layout = planned
    looked = _looked(layout)
    if looked is None:
        return None
    entire = tuple([pieces[piece] for piece in looked.entire])
    if entire and sum(map(len, entire)) > _MOST_ENTIRE:
        return None
    others = [pieces[piece] for piece in looked.others]
    contents = [messages[message].get("content") for message in looked.unwritten]
    return (
        layout,
        entire,
        # Most often there are words in all of them.
        all(map(str.strip, others)) or tuple([2 if text.strip() else 1 if text else 0 for text in others]),
        tuple([isinstance(content, str) and bool(content.strip()) for content in contents]),
        looked.end >= 0 and "".join(pieces[looked.end :]).strip() in tokens,
    )
