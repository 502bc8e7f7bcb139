"""Where a span ends: after the end token that directly follows the message's own text."""

import functools
import re
from collections.abc import Sequence

from beam_prep.core.chat.end_tokens import after_end, control_pattern, ending_pattern
from beam_prep.core.chat.frame import Frame
from beam_prep.core.chat.message_pieces import MessagePieces
from beam_prep.core.chat.places import Place


class SpanEnds:
    """The ends of the spans of a conversation.

    Args:
        pieces: the conversation.
        frame: what the template writes around any message.
        prompt: the generation prompt.
        guarded: a constant may be there because of what the record says: then the template has to write it always.

    Raises:
        DependsOnContent: (any method) the answer depends on texts that are not known.
    """

    def __init__(self, pieces: MessagePieces, frame: Frame, prompt: str, guarded: bool) -> None:
        self._pieces, self._frame, self._prompt, self._guarded = pieces, frame, prompt, guarded

    def end(self, message: int, start: Place, own: Sequence[int], limit: int, header: str) -> Place | None:
        """Where a span ends: after the end token that directly follows the message's own text; None: not certain.

        Args:
            message: its index.
            start: where the span begins.
            own: the pieces that are its own text.
            limit: the piece at which its turn ends.
            header: the constants before the span.
        """
        pieces, frame = self._pieces, self._frame
        role = pieces.roles[message]
        after = Place(own[-1] + 1, 0) if own else start
        rest, reached = pieces.constants_from(after, limit)
        pattern = ending_pattern(frame.controls)
        end = pattern.match(rest)
        around = bool(own) and pieces.keys(own[-1:]) != {"content"}
        if not own:  # it says nothing: constants may come before the end token
            end = self._end_of_nothing(rest)
        elif end is None and around and frame.ends_at_once(role):  # so may those around calls
            end = next((token for token in pattern.finditer(rest) if token[1] in frame.turns), None)
        if end is None:
            if reached < limit or (rest.strip() and (around or self._tokens_in(rest))) or not own:
                return None
            return self._start_of_next(message, after, limit) if not rest else after
        if end[1] != frame.eos and (end[1] in self._tokens_in(header) or end[1] in self._first_tokens):
            return None  # it may as well begin the next turn
        if not own and not frame.turns.isdisjoint(self._tokens_in(rest[: end.start(1)])):
            return None
        eos = frame.eos
        if end[1] == eos and rest.startswith(eos, end.end()):
            return None  # which of them ends the answer?
        stop = after_end(rest, end, eos)
        if self._guarded and around and not frame.is_around_parts(rest[: end.start(1)]):
            return None
        if (self._guarded or end.start()) and not frame.ends_turn(role, rest[:stop]):
            return None
        place = Place(after.piece, after.characters + stop)
        if (around or not own) and not self._is_last_of_turn(message, place):
            return None
        return place

    def _is_last_of_turn(self, message: int, place: Place) -> bool:
        """True if the rest of a message's turn is what follows any other answer: no second header."""
        region = self._pieces.regions[message]
        rest = "" if region is None else self._pieces.constants_between(place, Place(region[1], 0))
        return not rest.strip() or self._frame.follows(self._pieces.roles[message], rest)

    def _end_of_nothing(self, rest: str) -> re.Match[str] | None:
        """The end token of an answer that says nothing: where any other's is, after what is written before any."""
        pattern = ending_pattern(self._frame.controls)
        gaps = {"", *self._frame.gaps_after(self._prompt, self._pieces.layout.assumed)}
        ends = [
            end
            for gap in sorted(gaps, key=len)
            if rest.startswith(gap) and (end := pattern.match(rest, len(gap))) is not None
        ]
        return ends[-1] if ends else None

    @functools.cached_property
    def _first_tokens(self) -> list[str]:
        """The special tokens that the conversation begins with."""
        pattern = ending_pattern(self._frame.controls)
        found, at = [], 0
        while (token := pattern.match(self._begin, at)) is not None:
            found.append(token[1])
            at = token.end()
        return found

    @functools.cached_property
    def _begin(self) -> str:
        """The constants that the conversation begins with."""
        constants, _ = self._pieces.constants_from(Place(0, 0), self._pieces.count)
        return constants

    def _start_of_next(self, message: int, after: Place, limit: int) -> Place:
        """Where a span ends that nothing follows in its turn: after an EOS that the next turn begins with."""
        eos = self._frame.eos
        if any(region is not None and region[0] == limit for region in self._pieces.regions[:message]):
            return after  # an earlier message's turn
        following, _ = self._pieces.constants_from(Place(limit, 0), self._pieces.count)
        if eos and following.startswith(eos) and not self._begin.startswith(eos):
            return Place(limit, len(eos))
        return after

    def _tokens_in(self, text: str) -> list[str]:
        return control_pattern(self._frame.controls).findall(text)
