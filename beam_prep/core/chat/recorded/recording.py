"""The recording of a traced rendering, and the plan that is compiled from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces
from beam_prep.core.chat.recorded.models import as_text
from beam_prep.core.chat.recorded.tracer import (
    Refusal,
    Trace,
    Tracer,
    expression_of,
    is_mixed,
    parts_of,
    real_value,
    sources_of,
)
from beam_prep.core.chat.tracker import Tracker


@dataclass(slots=True)
class RenderPlan:
    """A function that renders the conversations of a pattern; it gives None for one that it does not fit.

    Attributes:
        run: messages and tools -> pieces.
        layout: of the pieces.
        compared: how many of its texts were compared with jinja, and were equal.
    """

    run: Callable[[list[Message], Any], tuple[str, ...] | None]
    layout: PieceLayout
    compared: int = 0


class Recording:
    """Records what a traced rendering writes. Its tracker counts pieces, not characters."""

    def __init__(self, trace: Trace, tracker: Tracker) -> None:
        self.trace = trace
        self.tracker = tracker
        self._pieces: list[Any] = []
        self._awaited: Any = None

    def generation(self, caller: Any) -> Any:
        text = as_text(self.trace, caller())
        if self._awaited is not None:
            raise Refusal
        written = self.tracker.written
        self.tracker.generations.append((written, written + len(parts_of(text))))
        self._awaited = text
        return text

    def write(self, part: Any) -> None:
        if self._awaited is not None and part is not self._awaited:
            raise Refusal  # a generation block is not written where it was rendered
        self._awaited = None
        self.trace.pay(part)
        self._pieces += parts_of(part)
        self.tracker.written = len(self._pieces)

    def planned(self, messages: int, captured: bool, work: int) -> tuple[RenderedPieces, Callable[[], RenderPlan]]:
        """The pieces (constants side by side are one, unless a mark is between them), and what compiles a plan.

        Args:
            messages: how many there are.
            captured: a generation block is inside a capture or macro.
            work: see `Trace.largest`.
        """
        tracker = self.tracker
        if self._awaited is not None:
            raise Refusal
        blocks = [] if captured else tracker.generations
        borders = {written for written, _ in tracker.marks} | {at for block in blocks for at in block}
        at: dict[int, int] = {}  # pieces written -> pieces of the plan
        pieces: list[Any] = []
        for place, piece in enumerate(self._pieces):
            if type(piece) is str and pieces and type(pieces[-1]) is str and place not in borders:
                pieces[-1] += piece
            else:
                at[place] = len(pieces)
                pieces.append(piece)
        at[len(self._pieces)] = len(pieces)
        contents = tuple(piece.content if type(piece) is Tracer else -1 for piece in pieces)
        stripped = [type(piece) is Tracer and piece.name in self.trace.stripped for piece in pieces]
        layout = PieceLayout(
            tuple(piece if type(piece) is str else None for piece in pieces),
            tuple(sources_of(piece) for piece in pieces),
            tuple(type(piece) is Tracer and is_mixed(piece) for piece in pieces),
            contents,
            tuple((at[written], place) for written, place in tracker.marks),
            None if captured else tuple((at[start], at[stop]) for start, stop in blocks),
            tracker.blind,
            frozenset(self.trace.tested),
            frozenset(self.trace.dependent),
            messages,
            self.trace.simple,
            frozenset(content for content, cut in zip(contents, stripped, strict=True) if cut),
            largest=self.trace.largest(work),
        )
        trace = self.trace

        def compiled() -> RenderPlan:
            written = f"return ({''.join(expression_of(piece) + ', ' for piece in pieces)})"
            names = dict(trace.functions)
            size = f"sum(map(len, ({''.join(f'{name}, ' for name in trace.texts)})))"
            size = " + ".join([size, *sorted(trace.measured)])
            too_large = f"if {size} > {layout.largest}: raise OverflowError"
            exec("def plan(messages, tools):\n " + "\n ".join([*trace.lines, too_large, written]), names)
            return RenderPlan(names["plan"], layout)

        return RenderedPieces(tuple(map(real_value, pieces)), layout), compiled
