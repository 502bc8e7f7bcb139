"""The pieces of a rendering, and which of them belong to which message."""

import functools
from collections.abc import Mapping, Sequence

from beam_prep.core.chat.places import DependsOnContent, Place
from beam_prep.core.chat.recorded.layout import PieceLayout
from beam_prep.core.chat.regions import Region, regions_of

TEXT_KEYS = frozenset(("content", "reasoning_content", "thinking", "reasoning", "tool_calls"))
"""Keys of a message whose values are its own text. A name, or an id of a call, is none of it."""


class MessagePieces:
    """The pieces of a rendered conversation, or of all conversations with the same layout.

    Args:
        layout: of the rendering.
        texts: the text of each piece; None where it is not known.
        roles: of the messages.
        tokens: texts of the special tokens that the template is given, by name.

    Attributes:
        layout, texts, roles: see above.
        count: how many pieces there are.

    Raises:
        DependsOnContent: (any method) the answer depends on texts that are not known.
    """

    def __init__(
        self, layout: PieceLayout, texts: Sequence[str | None], roles: Sequence[str], tokens: Mapping[str, str]
    ) -> None:
        self.layout, self.texts, self.roles = layout, texts, roles
        self.count = len(texts)
        self._tokens = tokens

    def rendered_otherwise(self, layout: PieceLayout, texts: Sequence[str]) -> "MessagePieces":
        """The same conversation in another rendering."""
        return MessagePieces(layout, texts, self.roles, self._tokens)

    @property
    def regions(self) -> list[Region | None]:
        """Per message the pieces that the template wrote for it; None where that is not known for certain."""
        return self._regions[0]

    @property
    def guessed(self) -> bool:
        """The first region is what was written before all others, in no message's turn."""
        return self._regions[1]

    @functools.cached_property
    def _regions(self) -> tuple[list[Region | None], bool]:
        messages = len(self.roles)
        if self.layout.blind:
            return [None] * messages, False
        return regions_of(self.layout.marks, messages, self.count, self._has_text, self._is_token)

    def _has_text(self, start: int, stop: int) -> bool:
        texts = self.texts[start:stop]
        if any(texts):
            return True
        if None in texts:
            raise DependsOnContent
        return False

    def _is_token(self, start: int) -> bool:
        """True if the text from a piece on is one special token, or nothing."""
        texts = self.texts[start:]
        if None in texts:
            raise DependsOnContent
        return "".join(text or "" for text in texts).strip() in ("", *self._tokens.values())

    def text(self, piece: int) -> str:
        """The text of a piece, which has to be known."""
        text = self.texts[piece]
        if text is None:
            raise DependsOnContent
        return text

    def is_own(self, piece: int, message: int) -> bool:
        """True if a piece is computed from a message's own text alone."""
        sources = self.layout.sources[piece]
        return bool(sources) and all(place == message and key in TEXT_KEYS for place, key in sources)

    def own(self, message: int, start: int, stop: int) -> list[int]:
        """The pieces that are a message's own text."""
        return [piece for piece in range(start, stop) if self.is_own(piece, message)]

    def keys(self, pieces: Sequence[int]) -> set[str]:
        """The keys of messages that pieces are computed from."""
        return {key for piece in pieces for _, key in self.layout.sources[piece]}

    def is_one_content(self, own: Sequence[int]) -> bool:
        """True if a content comes first, in one piece."""
        return self.keys(own[:1]) == {"content"} and "content" not in self.keys(own[1:])

    def constants_from(self, start: Place, stop: int) -> tuple[str, int]:
        """The constant text from a place on, and the piece at which it ends."""
        texts: list[str] = []
        piece = start.piece
        while piece < stop and (self.layout.constants[piece] is not None or self._is_nothing(piece)):
            texts.append(self.texts[piece] or "")
            piece += 1
        return "".join(texts)[start.characters :], piece

    def constants_before(self, place: Place) -> str:
        """The constants before a place, from the beginning of its piece: a token may go over the place."""
        constants, _ = self.constants_from(Place(place.piece, 0), self.count)
        return constants[: place.characters]

    def constants_between(self, start: Place, stop: Place) -> str:
        """The constants between two places, without the other pieces between them."""
        constants = self.layout.constants
        texts = [constants[piece] or "" for piece in range(start.piece, min(stop.piece, self.count))]
        if stop.characters:
            texts.append((constants[stop.piece] or "")[: stop.characters])
        head = start.characters if start.piece < self.count and constants[start.piece] is not None else 0
        return "".join(texts)[head:]

    def _is_nothing(self, piece: int) -> bool:
        """True if a piece is blank, and no blank content: other conversations of the layout have text there."""
        return self.texts[piece] == "" and self.keys((piece,)).isdisjoint(("content", ""))

    def begin_of_turn(self, message: int, header: bool) -> Place | None:
        """Where a message's turn begins, or (without header) its own text; None where it is not written.

        A place after the text where that is not known.
        """
        region = self.regions[message]
        own = self.own(message, 0, self.count)
        if region is None:
            return Place(self.count, 0) if own else None
        return Place(region[0], 0) if header else Place(own[0], 0) if own else None

    def same_place(self, layout: PieceLayout, place: Place, message: int) -> Place | None:
        """The place that corresponds to one of another layout, if both are the same up to it.

        Returns:
            A place after the text where they are not; None where the message is not written here.
        """
        constants, piece, at = self.layout.constants, 0, 0
        before = [*zip(layout.constants[: place.piece], layout.sources, strict=False)]
        if place.characters:
            before.append(((layout.constants[place.piece] or "")[: place.characters], frozenset()))
        for text, sources in before:
            while text or text is None:
                here = constants[piece] if piece < self.count else ""
                if here is not None and at < len(here) and text is not None:
                    size = min(len(text), len(here) - at)
                    if text[:size] != here[at : at + size]:
                        break
                    text, at = text[size:], at + size
                elif here is not None and here and at == len(here):
                    piece, at = piece + 1, 0
                elif here is None and text is None and self.layout.sources[piece] == sources:
                    piece, at, text = piece + 1, 0, ""
                else:
                    break
            if text != "":
                return Place(self.count, 0) if self.own(message, 0, self.count) else None
        return Place(piece, at)
