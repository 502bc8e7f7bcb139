"""Conversations that are rendered once, and the span of each message in the text.

Where a template marks generation with `{% generation %}`, the blocks are the assistant's spans. Other spans are
derived, from what each piece of the text is computed from: see `spans`. A template that does something that cannot be
traced is rendered once more, with marks around the contents; then a message has a span only if the text around it is
what the template writes around any message.
"""

import bisect
import functools
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beam_prep.core.chat.end_tokens import end_of_answer
from beam_prep.core.chat.frame import Frame, frame_of, has_data
from beam_prep.core.chat.message import Message, for_template
from beam_prep.core.chat.message_pieces import TEXT_KEYS, MessagePieces
from beam_prep.core.chat.places import Characters, Place, Span
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces
from beam_prep.core.chat.span_memo import what_counts
from beam_prep.core.chat.spans import SpanFinder
from beam_prep.core.chat.template import ChatTemplate, RenderedChat, key_of

_MOST_KNOWN = 4096
"""Kinds of conversations of a template whose spans are kept."""
_MOST_VARIABLES = 256
"""Values of variables for which it is kept what spans depend on because of them."""


class MessageSpan(NamedTuple):
    """The span of a message, in characters of the entire rendering.

    Attributes:
        message: its index.
        start, stop: the range.
        proven: False where the range is not known for certain.
    """

    message: int
    start: int
    stop: int
    proven: bool


@dataclass(frozen=True)
class Conversation:
    """A rendered conversation.

    Attributes:
        template: the chat template.
        controls: texts of the tokenizer's special tokens.
        chat: the rendering.
        messages: the messages.
        variables: what else the template was given.
    """

    template: ChatTemplate
    controls: tuple[str, ...]
    chat: RenderedChat
    messages: Sequence[Message]
    variables: dict[str, Any]

    def spans(self) -> list[MessageSpan]:
        """The spans of all messages, one or more a message, in order of the messages."""
        marks = self.template.has_generation
        spans: list[MessageSpan] = []
        for place, message in enumerate(self.messages):
            if marks and message["role"] == "assistant":
                spans += self._marked.get(place, [MessageSpan(place, 0, 0, self.chat.generations is not None)])
            else:
                spans.append(self._derived(place))
        return spans

    def placed_spans(self) -> list[tuple[Span, bool]] | None:
        """The spans of all messages as places in pieces, one a message, and whether each is proven.

        They are the same for conversations with the same `likeness`.

        Returns:
            None where the pieces are not known, or where spans are generation blocks.
        """
        if self._planned is None or self.template.has_generation:
            return None
        found = []
        for place in range(len(self.messages)):
            span = self._placed(place)
            if span is None:
                start, stop = map(self._characters.place, self.chat.regions[place] or (0, 0))
                found.append((Span(place, start, stop), False))
            else:
                found.append((span, span.start < span.stop))
        return found

    def after_prompt(self, first: int, prompt: str) -> MessageSpan:
        """The span after the prompt: the messages from `first` on.

        Args:
            first: index of the first message after the prompt.
            prompt: the messages before it, rendered with the generation prompt.
        """
        text, last = self.chat.text, len(self.messages) - 1
        # A prompt that ends with the text of a message may end within the text of another one.
        begins = text.startswith(prompt) and prompt.endswith(self._generation_prompt)
        if self._planned is not None:
            characters = self._characters
            place = characters.place(len(prompt)) if begins else None
            known = self._known
            if (key := (first, place)) not in known:
                known[key] = self._finder.prompted(first, place)
            if (span := known[key]) is not None:
                return MessageSpan(last, characters.of(span.start), characters.of(span.stop), True)
        if not self.template.has_generation:
            return MessageSpan(last, 0, len(text), False)
        starts = [span.start for span in self._marked.get(first, ()) if span.proven]
        stops = [span.stop for span in self._marked.get(last, ()) if span.proven]
        if not starts or not stops:
            return MessageSpan(last, 0, len(text), False)
        start = max(starts[0], len(prompt)) if begins else starts[0]
        return MessageSpan(last, start, end_of_answer(text, stops[-1], self.controls, self._frame.eos), True)

    def _placed(self, place: int) -> Span | None:
        known = self._known
        if place not in known:
            known[place] = self._finder.derived(place)
        return known[place]

    @functools.cached_property
    def _marked(self) -> dict[int, list[MessageSpan]]:
        """Generation blocks by the message in whose region they begin; by what they are computed from otherwise."""
        found: dict[int, list[MessageSpan]] = {}
        blocks = self.chat.generations or []
        turns = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        starts = [(region[0], place) for place, region in enumerate(self.chat.regions) if region is not None]
        certain = all(self.chat.regions[place] is not None for place in turns)
        for start, stop in blocks:
            if start == stop:
                continue
            if certain:
                place = max((entry for entry in starts if entry[0] <= start), default=(0, -1))[1]
            else:
                place = self._author(start, stop)
            if not certain and place not in turns:
                return {turn: [MessageSpan(turn, 0, 0, False)] for turn in turns}
            found.setdefault(place, []).append(MessageSpan(place, start, stop, True))
        return found

    def _author(self, start: int, stop: int) -> int:
        """The message that a range of characters is the text of; -1 where it is of none, or of several."""
        if self._planned is None:
            return -1
        texts, layout = self._planned.pieces, self._planned.layout
        characters = Characters(texts)
        authors = {
            message if key in TEXT_KEYS else -1
            for piece in range(characters.place(start).piece, len(texts))
            if texts[piece] and characters.of(Place(piece, 0)) < stop
            for message, key in layout.sources[piece]
        }
        return authors.pop() if len(authors) == 1 else -1

    def _derived(self, place: int) -> MessageSpan:
        if self._planned is not None:
            characters = self._characters
            if (span := self._placed(place)) is not None:
                return MessageSpan(place, characters.of(span.start), characters.of(span.stop), span.start < span.stop)
        return MessageSpan(place, *(self.chat.regions[place] or (0, 0)), False)

    @functools.cached_property
    def _frame(self) -> Frame:
        return frame_of(self.template, self.controls, self.variables)

    @functools.cached_property
    def _planned(self) -> RenderedPieces | None:
        """The pieces of the text, with what each is computed from; None where that is not known."""
        return (
            self.chat.planned
            or self.template.provenance(list(self.messages), self.chat.text, **self.variables)
            or self._fenced()
        )

    # The prompt costs a look at all variables, tools among them.

    @functools.cached_property
    def _generation_prompt(self) -> str:
        return self.template.generation_prompt(**self.variables)

    @functools.cached_property
    def _given(self) -> list[Message]:
        """The messages as the template sees them."""
        return [for_template(message) for message in self.messages]

    @functools.cached_property
    def _roles(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self.messages)

    @functools.cached_property
    def _characters(self) -> Characters:
        """Places in the pieces, in characters."""
        assert self._planned is not None
        return Characters(self._planned.pieces)

    @functools.cached_property
    def _known(self) -> dict[Hashable, Span | None]:
        """The spans that are known, in pieces: by message, and by the first message after a prompt and its place.

        Conversations of a plan for which they are the same share them: see `span_memo`.
        """
        planned = self.chat.planned
        key = None if planned is None else likeness(self.template, self.controls, planned, self._given, self.variables)
        if key is None:
            return {}
        if len(self.template.spans) > _MOST_KNOWN:
            self.template.spans.clear()
        return self.template.spans.setdefault(key, {})

    @functools.cached_property
    def _finder(self) -> SpanFinder:
        """Finds the spans."""
        planned = self._planned
        assert planned is not None
        return SpanFinder(
            MessagePieces(planned.layout, planned.pieces, self._roles, self.template.tokens),
            self._frame,
            self._generation_prompt,
            self._given,
            has_data(self.variables),
            self._other_outcomes,
        )

    def _other_outcomes(self, messages: frozenset[int]) -> dict[int, list[RenderedPieces]]:
        """The renderings in which tests of messages come out otherwise."""
        if messages not in self._found_outcomes:
            planned = self.chat.planned
            self._found_outcomes[messages] = self.template.with_other_outcomes(
                list(self.messages), messages, planned, **self.variables
            )
        return self._found_outcomes[messages]

    @functools.cached_property
    def _found_outcomes(self) -> dict[frozenset[int], dict[int, list[RenderedPieces]]]:
        """By messages: see `_other_outcomes`."""
        return {}

    def _fenced(self) -> RenderedPieces | None:
        """The pieces as marks around the contents show them: see `ChatTemplate.contents`."""
        if any(
            message.get(key)
            for message in map(for_template, self.messages)
            for key in ("reasoning_content", "tool_calls")
        ):
            return None  # no marks are put around these
        places = self.template.contents(list(self.messages), self.chat.text, **self.variables)
        return None if places is None else _fenced(self.chat, places)


def likeness(
    template: ChatTemplate,
    controls: tuple[str, ...],
    planned: RenderedPieces,
    messages: Sequence[Message],
    variables: dict[str, Any],
) -> Hashable | None:
    """What the spans of a conversation depend on, the same for those that are alike.

    Args:
        template, controls, variables: see `Conversation`.
        planned: its rendering by a plan.
        messages: as the template sees them.

    Returns:
        None where that is too much to be compared.

    Raises:
        Reject: there is no generation prompt.
    """
    counts = what_counts(planned, messages, template.written_tokens)
    if counts is None:
        return None
    roles = tuple([message["role"] for message in messages])
    return _variables_say(template, controls, variables), roles, counts


def _variables_say(template: ChatTemplate, controls: tuple[str, ...], variables: dict[str, Any]) -> Hashable:
    """What spans depend on because of the variables. Kept, as many conversations have the same tools.

    Raises:
        Reject: there is no generation prompt.
    """
    key = controls, key_of(variables)
    found = template.known_variables.get(key)
    if found is None:
        if len(template.known_variables) > _MOST_VARIABLES:
            template.known_variables.clear()
        frame = frame_of(template, controls, variables)
        found = frame, template.generation_prompt(**variables), has_data(variables)
        template.known_variables[key] = found
    return found


def _fenced(chat: RenderedChat, places: Sequence[Sequence[tuple[int, int]]]) -> RenderedPieces:
    """A rendering in pieces, from the ranges of its contents."""
    regions = chat.regions
    contents = [(start, stop, message) for message, ranges in enumerate(places) for start, stop in ranges]
    borders = {0, len(chat.text), *(at for each in regions if each is not None for at in each)}
    borders |= {at for start, stop, _ in contents for at in (start, stop)}
    # (first character, order among pieces that begin there, one past the last, messages)
    pieces = [
        (start, 2, stop, tuple(message for first, last, message in contents if first <= start and stop <= last))
        for start, stop in itertools.pairwise(sorted(borders))
    ]
    for start, stop, message in contents:
        if start == stop:  # at a border it belongs to the message whose turn it is
            region = regions[message]
            pieces.append((start, 1 if region is not None and region[0] == start < region[1] else 0, stop, (message,)))
    pieces.sort()
    marks = []
    for message, region in enumerate(regions):
        if region is not None and not (chat.guessed and message == 0):
            first, last = (bisect.bisect_left(pieces, (at, 1)) for at in region)
            marks += [(first, 1, message), (last, 0, -1)]
    texts = tuple(chat.text[start:stop] for start, _, stop, _ in pieces)
    layout = PieceLayout(
        constants=tuple(None if piece[3] else text for piece, text in zip(pieces, texts, strict=True)),
        sources=tuple(frozenset((message, "content") for message in piece[3]) for piece in pieces),
        mixed=(False,) * len(pieces),
        plain_content=(-1,) * len(pieces),
        marks=tuple((at, message) for at, _, message in sorted(marks)),
        generations=None,
        blind=not marks,
        tested=frozenset(range(len(regions))),
        dependent=frozenset(),
        messages=len(regions),
        simple=False,
        stripped=frozenset(),
        assumed=True,
    )
    return RenderedPieces(texts, layout)
