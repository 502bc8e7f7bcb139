"""A rendering in pieces, and the layout of these, which all conversations of a plan share."""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

Source = tuple[int, str]
"""A message's index and its key; the key is "" for a value that is computed from a message without being text of it."""

NO_SOURCES: frozenset[Source] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class PieceLayout:
    """The layout of the pieces, the same for all conversations of a plan. One object a plan, compared by identity.

    Attributes:
        constants: per piece its text where it is constant, else None.
        sources: per piece the messages and keys that it is computed from: none for constants and tools.
        mixed: per piece whether text of the template itself is in a piece that is computed from messages.
        plain_content: per piece the message whose content it is, as it is or stripped of white space; else -1.
        marks: (pieces written, message) whenever a loop comes to a message or ends: then -1, or the message of the
            loop around it.
        generations: ranges of the `{% generation %}` blocks in pieces; None if they are not known.
        blind: a loop whose text is captured came to a message: `marks` do not tell which text is whose.
        tested: messages whose text the template tests: the plan fits only texts with the same outcomes.
        dependent: messages in whose turn the template tests what another message says.
        messages: how many there are.
        simple: the text is constants and contents, and nothing else is looked at.
        stripped: messages whose content is stripped of white space, where the layout is simple.
        assumed: only contents are traced. All other text is taken for constant, and may not be.
        largest: see `Trace.largest`.
    """

    constants: tuple[str | None, ...]
    sources: tuple[frozenset[Source], ...]
    mixed: tuple[bool, ...]
    plain_content: tuple[int, ...]
    marks: tuple[tuple[int, int], ...]
    generations: tuple[tuple[int, int], ...] | None
    blind: bool
    tested: frozenset[int]
    dependent: frozenset[int]
    messages: int
    simple: bool
    stripped: frozenset[int]
    assumed: bool = False
    largest: int = 0


class RenderedPieces(NamedTuple):
    """A rendered conversation in pieces: its text is `"".join(pieces)`."""

    pieces: tuple[str, ...]
    layout: PieceLayout


class RenderedText(NamedTuple):
    """A rendering by jinja: the text, and marks and generation blocks in characters; `blind`: see `PieceLayout`."""

    text: str
    marks: list[tuple[int, int]]
    generations: list[tuple[int, int]] | None
    blind: bool


def in_characters(planned: RenderedPieces) -> RenderedText:
    """A rendering in pieces as jinja's own rendering would report it."""
    pieces, layout = planned
    at = [0, *accumulate(map(len, pieces))]
    blocks = layout.generations
    return RenderedText(
        "".join(pieces),
        [(at[written], place) for written, place in layout.marks],
        None if blocks is None else [(at[start], at[stop]) for start, stop in blocks],
        layout.blind,
    )
