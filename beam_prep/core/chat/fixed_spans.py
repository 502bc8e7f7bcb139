"""Spans that are found once for all conversations with the same layout.

A `PieceLayout` says which pieces of the text are constant and where the contents are, so the spans of every
conversation of that layout can be given as borders of pieces. If a span could depend on what a message says, there
are none, and each conversation is examined on its own.
"""

import functools

from beam_prep.core.chat.frame import frame_of
from beam_prep.core.chat.message_pieces import MessagePieces
from beam_prep.core.chat.places import DependsOnContent, Place, Span
from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.chat.spans import SpanFinder
from beam_prep.core.chat.template import ChatTemplate


def _finder(
    layout: PieceLayout, roles: tuple[str, ...], template: ChatTemplate, controls: tuple[str, ...]
) -> SpanFinder:
    if layout.blind or layout.tested:
        raise DependsOnContent
    pieces = MessagePieces(layout, layout.constants, roles, template.tokens)
    return SpanFinder(pieces, frame_of(template, controls, {}), template.generation_prompt())


@functools.lru_cache(maxsize=4096)
def place_spans(
    layout: PieceLayout, roles: tuple[str, ...], template: ChatTemplate, controls: tuple[str, ...]
) -> list[Span] | None:
    """The spans that `Conversation.spans` gives for every conversation of a layout, all of them proven.

    They hold for messages that have only a role and a content.

    Args:
        layout: of the rendering.
        roles: of its messages.
        template: the one that was rendered, without `tools` or variables.
        controls: texts of the tokenizer's special tokens.

    Returns:
        One or more a message; None where it depends on the contents.
    """
    try:
        finder = _finder(layout, roles, template, controls)
        blocks = _blocks(layout, finder) if template.has_generation else {}
        spans: list[Span] = []
        for message, role in enumerate(roles):
            if template.has_generation and role == "assistant":
                spans += blocks.get(message, [Span(message, Place(0, 0), Place(0, 0))])
            else:
                derived = finder.derived(message)
                if derived is None:
                    return None
                spans.append(derived)
    except DependsOnContent:
        return None
    return spans


@functools.lru_cache(maxsize=4096)
def place_answer(
    layout: PieceLayout,
    roles: tuple[str, ...],
    template: ChatTemplate,
    controls: tuple[str, ...],
    prompt: PieceLayout,
    first: int,
) -> tuple[Place, Span] | None:
    """The span that `Conversation.after_prompt` gives for every conversation of a layout.

    Args:
        layout, roles, template, controls: see `place_spans`.
        prompt: layout of the first messages with the generation prompt.
        first: how many these are.

    Returns:
        Where the prompt ends, and the span; None where these depend on the contents.
    """
    try:
        end = _end_of_prompt(layout, prompt, template.generation_prompt())
        span = _finder(layout, roles, template, controls).prompted(first, end)
    except DependsOnContent:
        return None
    return None if span is None else (end, span)


def _end_of_prompt(layout: PieceLayout, prompt: PieceLayout, added: str) -> Place:
    """Where a prompt ends that is the beginning of each conversation of a layout."""
    if layout.tested or prompt.tested:
        raise DependsOnContent
    texts, contents = _folded(prompt)
    others, other_contents = _folded(layout)
    last = len(contents)
    if not texts[-1].endswith(added):
        raise DependsOnContent  # the header follows the prompt: see `Conversation.after_prompt`
    if prompt.stripped != {message for message in layout.stripped if message < prompt.messages}:
        raise DependsOnContent
    if contents != other_contents[:last] or texts[:-1] != others[:last] or not others[last].startswith(texts[last]):
        raise DependsOnContent
    return Place(contents[-1][0] + 1 if contents else 0, len(texts[last]))


def _folded(layout: PieceLayout) -> tuple[list[str], list[tuple[int, int]]]:
    """The constant texts before, between and after the contents; (piece, message) of each content."""
    texts, contents = [""], []
    for piece, (constant, message) in enumerate(zip(layout.constants, layout.plain_content, strict=True)):
        if constant is not None:
            texts[-1] += constant
        elif message >= 0 and layout.sources[piece] == {(message, "content")}:
            contents.append((piece, message))
            texts.append("")
        else:
            raise DependsOnContent
    return texts, contents


def _blocks(layout: PieceLayout, finder: SpanFinder) -> dict[int, list[Span]]:
    """Generation blocks by message."""
    if layout.generations is None:
        raise DependsOnContent
    found: dict[int, list[Span]] = {}
    for start, stop in layout.generations:
        inside = [
            message
            for message, region in enumerate(finder.regions)
            if region is not None and region[0] <= start and stop <= region[1]
        ]
        if len(inside) != 1 or not any(layout.constants[start:stop]):
            raise DependsOnContent
        found.setdefault(inside[0], []).append(Span(inside[0], Place(start, 0), Place(stop, 0)))
    return found
