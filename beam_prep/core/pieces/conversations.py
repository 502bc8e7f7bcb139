"""Collects the conversations that the records of a block give to one output."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from beam_prep.core.chat.conversation import Conversation, MessageSpan, likeness
from beam_prep.core.chat.fixed_spans import place_answer, place_spans
from beam_prep.core.chat.kinds import Kinds, without_history_reasoning
from beam_prep.core.chat.message import Message, for_template
from beam_prep.core.chat.places import DependsOnContent, Place, Span
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces
from beam_prep.core.chat.recorded.plans import Shape, shape_of
from beam_prep.core.data.block import Reject
from beam_prep.core.data.schema import Output
from beam_prep.core.pieces.builder import PiecesBuilder
from beam_prep.core.pieces.checks import are_plain, guarded_messages, variables_of
from beam_prep.core.pieces.kind_segments import KindSegments
from beam_prep.core.pieces.layout_segments import NOT_MADE, NOWHERE, LayoutSegments, NoPlanOfPrompt
from beam_prep.core.pieces.message_weights import MessageWeights
from beam_prep.core.pieces.rendered import WHOLE, Segment
from beam_prep.core.pieces.renderer import Renderer
from beam_prep.core.pieces.trained_parts import TrainedParts
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.records import Record


class ConversationCollector:
    """Renders the conversations of one output, a piece each.

    Args:
        output: one whose sections are a conversation.
        voice: with a template.
        renderer: of the same template.
        roles: the roles of the block: name -> code; new ones are added.
        builder: takes the pieces.
        weights: of the messages of this output.

    Attributes:
        made: counts for `run.json`: messages whose reasoning was taken out (`reasoning_dropped`), or is not written by
            the template (`reasoning_not_written`).
    """

    def __init__(
        self,
        output: Output,
        voice: Voice,
        renderer: Renderer,
        roles: dict[str, int],
        builder: PiecesBuilder,
        weights: MessageWeights,
    ) -> None:
        self._output, self._voice, self._renderer, self._builder = output, voice, renderer, builder
        self._guard, self._guarded = voice.guard, voice.guard.rule != "keep"
        self._parts = TrainedParts(output, roles, weights)
        self._fields = [section.field for section in output.sections]
        self._tables: dict[tuple[PieceLayout, tuple[int, ...]], LayoutSegments | None] = {}
        self._alike: dict[Hashable, LayoutSegments | None] = {}
        # What messages of a shape say about their own training; such messages need no check.
        self._sound: dict[Hashable, tuple[int, ...]] = {}
        self.made: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Adds the messages of all sections, rendered once; nothing where there are none.

        Raises:
            Reject: see `check_messages`, `Renderer` and `TrainedParts`.
        """
        listed = self._listed(record)
        if listed is not None and self._add_plain(record, *listed):
            return
        messages, counts, shape, own = self._checked(record, listed)
        if not messages:
            return
        if (rules := self._voice.rules.mask_options) is not None and rules.reasoning == "drop_history":
            messages, dropped = without_history_reasoning(messages)
            self.made["reasoning_dropped"] += dropped
            shape = None
        variables = self._guard(variables_of(record))
        planned = self._renderer.template.planned(messages, shape, **variables)
        if planned is not None:
            seen = shape.messages if shape is not None else list(map(for_template, messages))
            if self._add_alike(planned, messages, seen, variables, counts, own):
                return
        actions = self._parts.actions(counts)
        chat = self._renderer.chat(messages, variables, planned)
        conversation = Conversation(self._renderer.template, self._voice.controls, chat, messages, variables)
        text, cut, special = self._voice.cut_bos(chat.text)
        answer = prompt_end = masked = None
        if (masked := self._parts.prompt_length(messages, actions)) is not None:
            prompt = self._renderer.text(messages[:masked], True, variables)
            answer = conversation.after_prompt(masked, prompt)
            begins = chat.text.startswith(prompt)
            prompt_end = max(len(prompt) - cut, 0) if begins else -1
        segments = list(self._parts.segments(conversation.spans, messages, actions, answer))
        if (options := self._voice.rules.mask_options) is not None:
            added = self._renderer.template.generation_prompt(**variables)
            render = partial(self._renderer.text, add_prompt=False, variables=variables)
            kinds = Kinds(options, chat.text, messages, added, self._voice.controls, render)
            cutting = KindSegments(kinds, conversation, masked, answer)
            segments = list(cutting.cut(segments))
            self.made.update(cutting.made)
        if cut:
            segments = [_moved(segment, cut) for segment in segments]
        self._builder.add_piece(
            text, special, *segments, prompt_end=prompt_end, message_roles=self._parts.codes(messages)
        )

    def _listed(self, record: Record) -> tuple[list[Any], tuple[int, ...]] | None:
        """What the lists of all sections hold, unchecked, and how many each; None where one is no list."""
        if len(self._fields) == 1:
            value = record.get(self._fields[0])
            if type(value) is list:
                return value, (len(value),)
        lists = [[] if (value := record.get(field)) is None else value for field in self._fields]
        if not {list}.issuperset(map(type, lists)):
            return None
        return list(chain.from_iterable(lists)), tuple(map(len, lists))

    def _checked(
        self, record: Record, listed: tuple[list[Any], tuple[int, ...]] | None
    ) -> tuple[list[Message], tuple[int, ...], Shape | None, tuple[int, ...]]:
        """The messages of all sections, and how many each has; their shape, if it is known; see `TrainedParts.own`.

        Of messages whose keys and types have passed once, nothing is checked again, unless it depends on values.

        Raises:
            Reject: see `check_messages`.
        """
        shape = None if listed is None or self._guarded else shape_of(listed[0])
        if listed is not None and shape is not None and (own := self._sound.get(shape.key)) is not None:
            return *listed, shape, own
        weighted = self._output.weights_name is not None
        names = [section.field for section in self._output.sections]
        lists = [guarded_messages(self._guard, record.get(name), name, weighted)[0] for name in names]
        messages = list(chain.from_iterable(lists))
        own = self._parts.own(messages)
        if shape is not None and all(map(_says_the_same, shape.messages)):
            self._sound[shape.key] = own
        else:
            shape = None  # the messages may be others now
        return messages, tuple(map(len, lists)), shape, own

    def _add_plain(self, record: Record, messages: list[Any], counts: tuple[int, ...]) -> bool:
        """Adds messages of only a role and a content that a plan renders; gives True if it did.

        The span of each message is then known from the layout: see `core.chat.fixed_spans`.
        """
        if record.get("tools") is not None or record.get("chat_template_kwargs") is not None:
            return False
        if self._voice.rules.mask_options is not None:
            return False
        if not messages or (self._guarded and not are_plain(messages)):
            return False
        messages = self._guard(messages)
        planned = self._renderer.template.planned(messages)
        if planned is None:
            return False
        pieces, layout = planned
        table = self.table_of(layout, messages, counts)
        if table is None:
            return False
        self._add_measured(pieces, table)
        return True

    def _add_alike(
        self,
        planned: RenderedPieces,
        messages: list[dict[str, Any]],
        seen: list[dict[str, Any]],
        variables: dict[str, Any],
        counts: tuple[int, ...],
        own: tuple[int, ...],
    ) -> bool:
        """Adds a conversation with the segments of another one that is like it; gives True if it did.

        Spans are then not looked for message by message: see `core.chat.span_memo`.

        Args:
            planned: its rendering.
            messages: of it; `seen`: as the template sees them.
            variables: of the template.
            counts: how many messages each section has.
            own: see `TrainedParts.own`.
        """
        if self._parts.prompt_length(messages, self._parts.actions(counts)) is not None:
            return False
        if self._voice.rules.mask_options is not None:
            return False
        template, controls = self._renderer.template, self._voice.controls
        try:
            alike = likeness(template, controls, planned, seen, variables)
        except Reject:  # of the generation prompt, which is not always needed
            return False
        if alike is None:
            return False
        key = alike, counts, own
        table: LayoutSegments | None = self._alike.get(key, NOT_MADE)
        if table is NOT_MADE:
            chat = template.chat_of(planned)
            conversation = chat and Conversation(template, controls, chat, messages, variables)
            table = self._alike[key] = self._table_of_alike(conversation, messages, counts) if conversation else None
        if table is None:
            return False
        self._add_measured(planned.pieces, table)
        return True

    def _table_of_alike(
        self, conversation: Conversation, messages: list[dict[str, Any]], counts: Sequence[int]
    ) -> LayoutSegments | None:
        """The segments of all conversations that are alike; None where they are not places in pieces."""
        placed: list[Span] = []

        def spans() -> list[MessageSpan]:
            found = conversation.placed_spans()
            if found is None:
                raise DependsOnContent
            placed.extend(span for span, _ in found)
            return [MessageSpan(span.message, place, place, proven) for place, (span, proven) in enumerate(found)]

        try:
            return self._segments_at(placed, spans, messages, self._parts.actions(counts))
        except DependsOnContent:
            return None

    def _add_measured(self, pieces: Sequence[str], table: LayoutSegments) -> None:
        text, cut, special = self._voice.cut_bos("".join(pieces))
        self._builder.add_piece(
            text, special, measured=(table, tuple(map(len, pieces)), cut), message_roles=table.message_roles
        )

    def table_of(
        self, layout: PieceLayout, messages: list[dict[str, Any]], counts: tuple[int, ...]
    ) -> "LayoutSegments | None":
        """See `_table`; made once, unless the prompt has no plan yet."""
        key = layout, counts
        table: LayoutSegments | None = self._tables.get(key, NOT_MADE)
        if table is NOT_MADE:
            try:
                table = self._tables[key] = self._table(layout, messages, counts)
            except NoPlanOfPrompt:
                return None
        return table

    def _table(
        self, layout: PieceLayout, messages: list[dict[str, Any]], counts: Sequence[int]
    ) -> "LayoutSegments | None":
        """The segments of all conversations of a layout; None where they depend on the contents."""
        template = self._renderer.template
        if not are_plain(messages):  # and no other conversation of this layout is
            return None
        actions = self._parts.actions(counts)
        roles = tuple(message["role"] for message in messages)
        placed: list[Span] = []
        prompt: Place | None = None
        answer: MessageSpan | None = None
        if (masked := self._parts.prompt_length(messages, actions)) is not None:
            planned = template.planned(messages[:masked], add_generation_prompt=True)
            if planned is None:
                raise NoPlanOfPrompt
            found = place_answer(layout, roles, template, self._voice.controls, planned.layout, masked)
            if found is None:
                return None
            prompt, span = found
            placed.append(span)
            answer = MessageSpan(span.message, 0, 0, True)

        def spans() -> list[MessageSpan]:
            found = place_spans(layout, roles, template, self._voice.controls)
            if found is None:
                raise DependsOnContent
            first = len(placed)
            placed.extend(found)
            return [MessageSpan(span.message, number, number, True) for number, span in enumerate(found, first)]

        try:
            return self._segments_at(placed, spans, messages, actions, answer, prompt)
        except DependsOnContent:
            return None

    def _segments_at(
        self,
        placed: Sequence[Span],
        spans: Callable[[], list[MessageSpan]],
        messages: list[dict[str, Any]],
        actions: list[str],
        answer: MessageSpan | None = None,
        prompt: Place | None = None,
    ) -> LayoutSegments:
        """The segments, as places in pieces.

        Args:
            placed: spans; `spans` may add some.
            spans, answer: their `start` is a number of `placed`.
            messages, actions: see `TrainedParts`.
            prompt: where the prompt ends, if there is one.
        """
        segments = list(self._parts.segments(spans, messages, actions, answer))
        ends = [placed[segment.start][1:] if segment.stop >= 0 else (NOWHERE, NOWHERE) for segment in segments]
        return LayoutSegments(
            np.array([(start.piece, stop.piece) for start, stop in ends], np.int64).reshape(-1, 2),
            np.array([(start.characters, stop.characters) for start, stop in ends], np.int64).reshape(-1, 2),
            np.array([segment[2:] for segment in segments], np.int64).reshape(-1, len(Segment._fields) - 2),
            prompt,
            tuple(self._parts.codes(messages)),
        )


def _says_the_same(message: Message) -> bool:
    """True if for all messages of its keys and types the checks, and what they say about training, come out alike."""
    return type(message.get("content")) is not list and message.keys().isdisjoint(("train", "weight"))


def _moved(segment: Segment, cut: int) -> Segment:
    if segment[:2] == WHOLE:
        return segment
    return segment._replace(start=max(segment.start - cut, 0), stop=max(segment.stop - cut, 0))
