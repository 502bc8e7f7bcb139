"""The segments of a conversation, cut where its text becomes another kind."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator

from beam_prep.core.chat.conversation import Conversation, MessageSpan
from beam_prep.core.chat.kinds import Kinds, Part, partition
from beam_prep.core.pieces.rendered import WHOLE, Segment


class KindSegments:
    """Cuts the segments of one conversation.

    Args:
        kinds: of its text.
        conversation: the conversation.
        prompt: how many messages its prompt has; None: it is not one of prompt and answer.
        answer: the span of all messages after the prompt.

    Attributes:
        made: how many messages have a reasoning that the template does not write (`reasoning_not_written`).
    """

    def __init__(
        self, kinds: Kinds, conversation: Conversation, prompt: int | None, answer: MessageSpan | None
    ) -> None:
        self._kinds, self._conversation = kinds, conversation
        self._prompt, self._answer = prompt, answer
        self.made: Counter[str] = Counter()

    def cut(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """The segments, in parts of one kind each. A part that is not certain is not proven."""
        for segment in segments:
            first, last, start, stop = self._extent(segment)
            parts: list[Part] = []
            proven = segment.proven
            for message in range(first, last + 1):
                place = (start, stop) if first == last else self._place(message)
                found = None if place is None else self._kinds.parts(message, *place)
                if place is None or found is None:
                    proven = 0 if self._kinds.has_parts(message) else proven
                    continue
                self.made["reasoning_not_written"] += not self._kinds.is_written(message, found)
                end = self._kinds.end(max([place[0], *(part.stop for part in found)]), place[1])
                parts += [*found, *([end] if end.start < end.stop else [])]
            if self._kinds.options.generation_prompt == "train" and first == last:
                header = self._kinds.header(start)
                if header is not None and header.start < start:
                    yield segment._replace(start=header.start, stop=start, kind=header.kind)
            for part in partition(start, stop, parts):
                yield segment._replace(start=part.start, stop=part.stop, proven=proven, kind=part.kind)

    def _extent(self, segment: Segment) -> tuple[int, int, int, int]:
        """(first message, last message, start, stop)."""
        if segment[:2] == WHOLE:
            return 0, len(self._kinds.messages) - 1, 0, len(self._kinds.text)
        start, stop = segment[:2]
        if self._prompt is not None and self._answer is not None and (start, stop) == self._answer[1:3]:
            return self._prompt, segment.turn, start, stop
        return segment.turn, segment.turn, start, stop

    def _place(self, message: int) -> tuple[int, int] | None:
        """Where the text of a message is; None where that is not certain."""
        own = self._spans.get(message, [])
        if not own or not all(span.proven for span in own):
            return None
        return min(span.start for span in own), max(span.stop for span in own)

    @functools.cached_property
    def _spans(self) -> dict[int, list[MessageSpan]]:
        found: dict[int, list[MessageSpan]] = {}
        for span in self._conversation.spans():
            found.setdefault(span.message, []).append(span)
        return found
