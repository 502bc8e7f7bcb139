"""Spans compared with what a template writes where its tests of messages come out otherwise.

A constant within a span may be there because of what the message itself says. It is trained only if the template
writes it whatever the message says: in every outcome of the template's tests of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from beam_prep.core.chat.message_pieces import MessagePieces
from beam_prep.core.chat.places import Place, Span
from beam_prep.core.chat.recorded.layout import RenderedPieces


class OtherOutcomes:
    """The renderings of a conversation with other outcomes of the template's tests.

    Args:
        pieces: the conversation as it is.
        renderings: gives, for several messages, what the template writes if its tests of what these say come out
            otherwise: see `Recorder.with_other_outcomes`. None: there are none to compare with.
    """

    def __init__(
        self,
        pieces: MessagePieces,
        renderings: Callable[[frozenset[int]], Mapping[int, Sequence[RenderedPieces]]] | None,
    ) -> None:
        self._pieces, self._renderings = pieces, renderings

    def keep_turn(self, span: Span, header: str | None) -> bool:
        """True if the constants of a span are in the message's turn in all other outcomes, too.

        Args:
            span: of one message.
            header: what the turn begins with before the span; None: the span begins with the message's own text.
        """
        message, layout, roles = span.message, self._pieces.layout, self._pieces.roles
        alike = frozenset(place for place in layout.tested if roles[place] == roles[message])
        for other in self._others(message, alike):
            if other is None:
                return False
            begin = other.begin_of_turn(message, header is not None)
            if begin is not None and not self._keeps(other, message, span, begin, header):
                return False
        return True

    def keep_answer(self, span: Span, first: int) -> bool:
        """True if the constants of a span that follows a prompt are in the same place in all other outcomes, too.

        Args:
            span: from the message `first` to the last one.
            first: index of the first message after the prompt.
        """
        answer = self._pieces.layout.tested.intersection(range(first, span.message + 1))
        for message in answer:
            for other in self._others(message, answer):
                if other is None:
                    return False
                begin = other.same_place(self._pieces.layout, span.start, message)
                if begin is not None and not self._keeps(other, message, span, begin, ""):
                    return False
        return True

    def _others(self, message: int, together: frozenset[int]) -> Iterator[MessagePieces | None]:
        """The conversation where tests of what a message says come out otherwise; None: that is not known.

        Args:
            message: which one.
            together: tests of these come out otherwise at the same time.
        """
        if self._renderings is None or self._pieces.layout.assumed or message not in together:
            return
        found = self._renderings(together).get(message)
        if found is None:
            yield None
            return
        for planned in found:
            yield self._pieces.rendered_otherwise(planned.layout, planned.pieces)

    def _keeps(self, other: MessagePieces, message: int, span: Span, begin: Place, header: str | None) -> bool:
        """True if a span holds the constants that are written in its place in another outcome.

        Args:
            other: the other outcome.
            message: whose tests came out otherwise there.
            span: begins where this message is written, or before.
            begin: where the header begins there.
            header: what comes before the span; None: that begins with the message's own text.
        """
        pieces, end = self._pieces, Place(other.count, 0)
        if begin == end:
            return False
        own = pieces.own(message, span.start.piece, pieces.count)
        others = other.own(message, begin.piece, end.piece)
        constants = (header or "") + pieces.constants_between(span.start, span.stop)
        theirs = other.constants_between(begin, end)
        keys, their_keys = pieces.keys(own), other.keys(others)
        if keys != their_keys and (keys ^ their_keys != {"content"} or header is None):
            return True  # the constants around reasoning and calls are written for these
        if keys != their_keys or not keys <= {"content"}:  # white space may depend on whether there is a content
            squeezed = "".join(theirs.split()).startswith("".join(constants.split()))
            return squeezed and theirs.startswith(header or "")
        if own:
            after, after_others = Place(own[-1] + 1, 0), Place(others[-1] + 1, 0)
            rest = pieces.constants_between(after, span.stop)
            if not other.constants_between(after_others, end).startswith(rest):
                return False
        return theirs.startswith(constants)
