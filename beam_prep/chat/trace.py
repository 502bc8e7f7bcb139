"""One rendering: its text, which message each character comes from, and where each message's own text stands."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from beam_prep.chat.origins import MIXED, NAME, TOOLS, Text

END = 1 << 60
"""A place behind all characters."""


class SourceSpan(NamedTuple):
    """Characters that come from a message.

    Attributes:
        begin, end: the characters.
        index, keys: see `Origin`.
        owner: the message that the template was rendering when it wrote them; -1: unknown.
    """

    begin: int
    end: int
    index: int  # type: ignore[assignment]
    keys: tuple[str, ...]
    owner: int

    def __str__(self) -> str:
        who = {TOOLS: "the tools", MIXED: "several messages"}.get(self.index, f"message {self.index}")
        return f"{', '.join(self.keys) or 'text'} of {who}"


class Trace(NamedTuple):
    """A rendering.

    Attributes:
        text: the whole text.
        segments: spans of texts of messages and tools, in order.
        marks: (character, message): from there on, the template renders this message.
        generation: (character, GENERATION_BEGINS or GENERATION_ENDS): borders of `{% generation %}` blocks.
    """

    text: str
    segments: list[SourceSpan]
    marks: list[tuple[int, int]]
    generation: list[tuple[int, int]]

    def owner(self, at: int) -> int:
        """The message that the template renders before a place; -1: unknown."""
        k = bisect.bisect_left(self.marks, (at,))
        return self.marks[k - 1][1] if k else -1

    def next_mark(self, index: int, at: int) -> tuple[int, int]:
        """(where the next message's mark begins behind a place, that message); the end and -1 if there is none."""
        k = bisect.bisect_left(self.marks, (at,))
        k += k < len(self.marks) and self.marks[k][1] == index  # skip a mark of the same message
        return self.marks[k] if k < len(self.marks) else (len(self.text), -1)


def trace(pieces: Sequence[str]) -> Trace:
    """The trace of the strings that a template yields."""
    segments: list[SourceSpan] = []
    marks: list[tuple[int, int]] = []
    generation: list[tuple[int, int]] = []
    at, owner, new = 0, -1, tuple.__new__
    for piece in pieces:
        if type(piece) is not Text:
            at += len(piece)
            continue
        for value, origin in piece._parts:
            if origin is None:
                at += len(value)
                continue
            index, keys = origin
            if keys is not None:
                end = at + len(value)
                segments.append(new(SourceSpan, (at, end, index, keys, owner)))
                at = end
            elif index < 0:
                generation.append((at, index))
            else:
                owner = index
                if marks and marks[-1][0] == at:
                    marks.pop()  # nothing was written for the previous mark
                if not marks or marks[-1][1] != owner:
                    marks.append((at, owner))
    return Trace("".join(pieces), segments, marks, generation)


Said = tuple[int, tuple[str, ...], bool]


class TurnPlace(NamedTuple):
    """The place of a message's own text. Between `after` and `before`, no other message says anything.

    Attributes:
        after, begin, end, before: characters; the own text is [begin, end).
        said: what was said last before `after`: (how many messages earlier, its keys, whether this turn repeats it);
            None: nothing.
        apart: why the text is not one turn; "" if it is.
        goes_on: the places of the rest of its text, behind other messages' texts within the turn.
        again: the text is repeated within the turn, and no loop shows whose turn that is.
        owner: the message that the template was rendering when it wrote the text; -1: unknown.
    """

    after: int
    begin: int
    end: int
    before: int
    said: Said | None
    apart: str = ""
    goes_on: tuple["TurnPlace", ...] = ()
    again: bool = False
    owner: int = -1

    @property
    def silent(self) -> bool:
        """Whether the message says nothing."""
        return self.begin == self.end

    @property
    def pieces(self) -> tuple["TurnPlace", ...]:
        """All places of the message's text."""
        return (self, *self.goes_on)


def places(rendering: Trace, wanted: Iterable[int]) -> dict[int, TurnPlace]:
    """Message -> the place of its text. Messages without a place are left out."""
    own: dict[int, list[int]] = {index: [] for index in wanted}
    for order, segment in enumerate(rendering.segments):
        if segment[2] in own:
            own[segment[2]].append(order)
    found = {index: _place(rendering, orders, index) for index, orders in own.items()}
    silent = _silent_places(rendering, [index for index, place in found.items() if place is None])
    return {index: place for index, place in (found | silent).items() if place is not None}


def constants(rendering: Trace, begin: int, end: int) -> Iterator[str]:
    """The template's own texts in a part of a rendering."""
    segments = rendering.segments
    first = bisect.bisect_left(segments, (begin,))
    begin = max([begin, *(each.end for each in segments[first - 1 : first])])
    for segment in map(segments.__getitem__, range(first, len(segments))):
        if segment.begin >= end:
            break
        yield rendering.text[begin : segment.begin]
        begin = segment.end
    yield rendering.text[begin:end]


def says(rendering: Trace, segment: SourceSpan) -> bool:
    """Whether a segment is more than blanks."""
    begin, end = segment[:2]
    text = rendering.text
    return end > begin and not (text[begin].isspace() and text[begin:end].isspace())


def said(segment: SourceSpan, index: int) -> Said:
    """What a segment says, relative to a later message."""
    return index - segment.index if segment.index >= 0 else segment.index, segment.keys, False


def _said_before(segments: list[SourceSpan], before: int, index: int) -> Said | None:
    """What was said last before a message's text."""
    if before < 0:
        return None
    last = segments[before]
    earlier = map(segments.__getitem__, range(before - 1, -1, -1))
    again = last.owner == index and any(each.owner != index and each[2:4] == last[2:4] for each in earlier)
    return (*said(last, index)[:2], again)


def _place(rendering: Trace, orders: list[int], index: int) -> TurnPlace | None:
    segments = rendering.segments
    if len(orders) > 1:
        orders = [k for k in orders if segments[k].keys != NAME]
    if not orders or segments[orders[0]].keys == NAME:
        return None
    # Text that the template repeats while it renders another message is not part of the turn: a tool's name at the head
    # of its results, or a whole message in the next header.
    mine = [k for k in orders if segments[k].owner == index] or orders
    filled = [k for k in mine if segments[k].end > segments[k].begin] or mine[:1]
    in_one_place = filled[-1] - filled[0] < len(filled)
    if in_one_place and len(mine) == len(orders) and segments[mine[0]].owner == index:
        return _place_of(rendering, filled, index)
    apart, goes_on = "", []
    if len(mine) < len(orders):
        here = {key for k in mine for key in segments[k].keys}
        elsewhere = {key for k in orders for key in segments[k].keys} - here - {"*"}
        apart = f"its {', '.join(sorted(elsewhere))} is written in the turn of another message" if elsewhere else ""
    first, *others = _pieces(segments, filled, index)
    seen = {segments[k].keys for k in first}
    for piece in others:
        keys = {segments[k].keys for k in piece}
        if keys <= seen and all(_is_name(segments[k]) for k in piece):
            continue
        if keys & seen or ("*",) in seen:  # a whole message repeats each of its texts
            foreign = next(each for each in segments[first[-1] : piece[0]] if each.index != index)
            apart = f"between its texts stands {foreign}"
        seen |= keys
        goes_on.append(_place_of(rendering, piece, index))
    place = _place_of(rendering, first, index)
    own = [each for each in segments[first[0] : first[-1] + 1] if each.index == index]
    again = any(
        other.owner != index and (one.end < other.begin or repeats(rendering.text, one, other))
        for one, other in itertools.pairwise(own)
    )
    return place._replace(apart=apart, goes_on=tuple(goes_on), again=again)


def repeats(text: str, one: SourceSpan, other: SourceSpan) -> bool:
    """Whether one of two segments says what the other says."""
    short, long = sorted((text[one.begin : one.end], text[other.begin : other.end]), key=len)
    return one.keys == other.keys and bool(short) and len(long) > 1 and short in long


def _pieces(segments: list[SourceSpan], orders: list[int], index: int) -> list[list[int]]:
    """A message's segments, split where another message says something between them."""
    if orders[-1] - orders[0] < len(orders):
        return [orders]
    pieces = [orders[:1]]
    for last, k in itertools.pairwise(orders):
        between = segments[last + 1 : k]
        if any(each.index != index and each.end > each.begin for each in between):
            pieces.append([])
        pieces[-1].append(k)
    return pieces


def _place_of(rendering: Trace, piece: list[int], index: int) -> TurnPlace:
    segments = rendering.segments
    before, behind = piece[0] - 1, piece[-1] + 1
    while (
        before >= 0
        and segments[before].index == index
        and (segments[before].owner in (index, -1) or segments[before].begin == segments[before].end)
    ):
        before -= 1
    while behind < len(segments) and (segments[behind].index == index or not says(rendering, segments[behind])):
        behind += 1
    # A tool's name is repeated at the head of its results.
    while (
        len(piece) > 1
        and _is_name(segments[piece[-1]])
        and segments[piece[-1]].keys in {segments[k].keys for k in piece[:-1]}
    ):
        piece.pop()
    return TurnPlace(
        segments[before].end if before >= 0 else 0,
        segments[piece[0]].begin,
        segments[piece[-1]].end,
        segments[behind].begin if behind < len(segments) else END,
        _said_before(segments, before, index),
        owner=segments[piece[0]].owner,
    )


def _is_name(segment: SourceSpan) -> bool:
    return all(key.endswith((".name", ".id")) for key in segment.keys)


def _silent_places(rendering: Trace, wanted: Sequence[int]) -> dict[int, TurnPlace]:
    """The places of messages that say nothing, from what the template writes while it renders each."""
    if not wanted:
        return {}
    segments, found = rendering.segments, {}
    own: dict[int, list[tuple[int, int]]] = {index: [] for index in wanted}
    marks = (*rendering.marks, (len(rendering.text), -1))
    for (begin, who), (end, _) in itertools.pairwise(marks):
        if who in own:
            own[who].append((begin, end))
    ends = sorted({each.index: each.end for each in segments if each.index >= 0}.items())
    until = [0, *itertools.accumulate((end for _, end in ends), max)]
    for index, ranges in own.items():
        # A template may look through all messages before it writes the first.
        before = until[bisect.bisect_left(ends, (index,))]
        begin, end = next((each for each in ranges if each[0] >= before), (ranges or [(0, 0)])[0])
        if rendering.text[begin:end].strip():
            behind = bisect.bisect_right(segments, begin, key=itemgetter(1))
            last = segments[behind - 1] if behind else None
            after, what = (0, None) if last is None else (last.end, said(last, index))
            later = map(segments.__getitem__, range(bisect.bisect_left(segments, (begin,)), len(segments)))
            others = (each.begin for each in later if each.index != index and each.end > each.begin)
            found[index] = TurnPlace(after, begin, begin, next(others, END), what)
    return found


def spoken_by_others(rendering: Trace, index: int, at: int) -> SourceSpan | None:
    """The first span behind a place that comes from another message."""
    segments = rendering.segments
    later = map(segments.__getitem__, range(bisect.bisect_left(segments, (at,)), len(segments)))
    return next((each for each in later if each.index != index and says(rendering, each)), None)
