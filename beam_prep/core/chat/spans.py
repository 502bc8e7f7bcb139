"""The spans of a rendered conversation: what is trained of each message, and what is refused.

A conversation is given in pieces (`PieceLayout`): constants of the template, and texts that the template computed,
each with the messages and keys that it is computed from.

Trained: the message's own text (content, reasoning, tool calls, with the constants that the template writes around
them), the end token right after it, and an EOS right after that. If the template writes the entire generation prompt
for the message, the span begins where that ends; else it begins with the message's own text.

Refused (there is no span, and the record is rejected): a span with anything else in it. All of it must be the
message's own text, or a constant that begins and ends no turn and that the template writes whatever any message says.

    own_text.py         the span holds the message's own text, once, and no constants of another turn
    span_end.py         which end token ends it
    other_outcomes.py   its constants do not depend on what the message says
    frame.py            nor on what another message says: the constants of made-up conversations
"""

from collections.abc import Callable, Mapping, Sequence

from beam_prep.core.chat.frame import Frame
from beam_prep.core.chat.message import Message
from beam_prep.core.chat.message_pieces import MessagePieces
from beam_prep.core.chat.other_outcomes import OtherOutcomes
from beam_prep.core.chat.own_text import OwnText
from beam_prep.core.chat.places import Place, Span
from beam_prep.core.chat.recorded.layout import RenderedPieces
from beam_prep.core.chat.span_end import SpanEnds


class SpanFinder:
    """Finds the spans of a conversation, or of all conversations with the same layout.

    Args:
        pieces: the conversation.
        frame: what the template writes around any message.
        prompt: the generation prompt.
        messages: the messages, where they are known.
        data: the template was given other text of the record: see `has_data`.
        other_outcomes: see `OtherOutcomes`.

    Raises:
        DependsOnContent: (any method) the answer depends on texts that are not known.
    """

    def __init__(
        self,
        pieces: MessagePieces,
        frame: Frame,
        prompt: str,
        messages: Sequence[Message] | None = None,
        data: bool = False,
        other_outcomes: Callable[[frozenset[int]], Mapping[int, Sequence[RenderedPieces]]] | None = None,
    ) -> None:
        self._pieces, self._frame, self._prompt = pieces, frame, prompt
        # A constant may be there because of what the record says: then the template has to write it always.
        guarded = bool(pieces.layout.tested) or pieces.layout.assumed or data
        self._own_text = OwnText(pieces, frame, prompt, messages, guarded)
        self._ends = SpanEnds(pieces, frame, prompt, guarded)
        self._other_outcomes = OtherOutcomes(pieces, other_outcomes)

    @property
    def regions(self) -> list[tuple[int, int] | None]:
        """Per message the pieces that the template wrote for it; None where that is not known for certain."""
        return self._pieces.regions

    def derived(self, message: int) -> Span | None:
        """The span of a message, within the text that the template wrote for it; None where it is not certain."""
        pieces = self._pieces
        region = pieces.regions[message]
        if region is None:
            return None
        first, last = region
        own = pieces.own(message, first, last)
        lead, _ = pieces.constants_from(Place(first, 0), own[0] if own else last)
        start = self._start(message, first, own, lead)
        if start is None:
            return None
        if not self._own_text.is_written_once(message, own) or not self._own_text.is_proven(message, start, own):
            return None
        stop = self._ends.end(message, start, own, last, lead if own else lead[: start.characters])
        if stop is None:
            return None
        span = Span(message, start, stop)
        header = None if own and start.piece == own[0] else lead[: start.characters]
        return span if self._other_outcomes.keep_turn(span, header) else None

    def _start(self, message: int, first: int, own: Sequence[int], lead: str) -> Place | None:
        """Where the span of a message begins; None where that is not certain.

        Args:
            message: its index.
            first: the piece that its turn begins with.
            own: the pieces that are its own text.
            lead: the constants before these.
        """
        pieces = self._pieces
        guessed = pieces.guessed and message == 0
        role = "" if guessed else pieces.roles[message]
        is_answer = pieces.roles[message] == "assistant"
        if guessed and self._prompt in lead and not lead.endswith(self._prompt) and is_answer:
            return None  # where its turn begins is guessed, and constants come after the generation prompt
        if role == "assistant" and self._prompt and lead.startswith(self._prompt):
            return Place(first, len(self._prompt))
        if own and pieces.layout.mixed[own[0]]:
            return None  # the end of the header is not known
        if pieces.is_one_content(own):
            if role == "assistant" and lead.strip() and not pieces.text(own[0]).strip():
                return None  # the end of a header without text after it is not known
            return Place(own[0], 0)
        # Constants around reasoning and calls are trained, the header before them is not.
        known = [header for header in self._frame.leads.get(role, ()) if lead.startswith(header)]
        return Place(first, max(map(len, known))) if known else None

    def prompted(self, first: int, prompt: Place | None) -> Span | None:
        """The span after a prompt: the messages from `first` on; None where it may hold anything else.

        Args:
            first: index of the first message after the prompt.
            prompt: where the prompt ends; None: it is not the beginning of the text. Then the span begins where the
                first message's own text begins.
        """
        pieces = self._pieces
        last = len(pieces.roles) - 1
        start = prompt
        if start is not None and any(
            place >= first for piece in range(start.piece) for place, _ in pieces.layout.sources[piece]
        ):
            return None
        own = [] if start is None else pieces.own(first, start.piece, pieces.count)
        if start is None or (not self._prompt and pieces.constants_from(start, (own or [pieces.count])[0])[0].strip()):
            # Without a generation prompt, the header comes after the prompt.
            derived = self.derived(first)
            if derived is None:
                return None
            start = derived.start
            own = pieces.own(first, start.piece, pieces.count)
        if not self._own_text.is_written_once(first, own) or not self._own_text.is_proven(first, start, own):
            return None
        if last > first:
            final = pieces.own(last, start.piece, pieces.count)
            if not own or not final or not self._own_text.is_written_once(last, final):
                return None
            if not self._are_of(first, own[0], final[-1]):
                return None
            if not pieces.layout.dependent.isdisjoint(range(first, last + 1)) or not self._are_bordered(first):
                return None
            own = final
        # What the template writes for a message that it puts after the last one ends nothing.
        end = own[-1] if own else start.piece
        later = [region[0] for region in pieces.regions[:first] if region is not None and region[0] > end]
        stop = self._ends.end(last, start, own, min(later, default=pieces.count), self._prompt)
        if stop is None:
            return None
        rest, reached = pieces.constants_from(stop, pieces.count)
        if reached == pieces.count and not rest.strip():
            stop = Place(pieces.count, 0)
        span = Span(last, start, stop)
        return span if self._other_outcomes.keep_answer(span, first) else None

    def _are_bordered(self, first: int) -> bool:
        """True if only headers and ends are between messages from `first` on, where all may be constant."""
        pieces, roles = self._pieces, self._pieces.roles
        if not pieces.layout.assumed:
            return True
        for message in range(first, len(roles) - 1):
            before, after = (pieces.own(place, 0, pieces.count) for place in (message, message + 1))
            if not before or not after or roles[message] == roles[message + 1]:
                return False
            text = "".join(pieces.text(piece) for piece in range(before[-1] + 1, after[0]))
            if text not in self._frame.borders(roles[message], roles[message + 1]):
                return False
        return True

    def _are_of(self, first: int, start: int, stop: int) -> bool:
        """True if pieces are constants, or computed from messages from `first` on."""
        pieces = self._pieces
        return all(
            pieces.layout.constants[piece] is not None
            or pieces.texts[piece] == ""
            or (bool(sources := pieces.layout.sources[piece]) and all(place >= first for place, _ in sources))
            for piece in range(start, stop + 1)
        )
