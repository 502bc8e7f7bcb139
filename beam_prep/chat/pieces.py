"""`Piece`: a text to encode, as a record gives it; and the `Pieces` of all rows of an output."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.rendered import SEGMENT, UNSET, Pieces, Segment

T = TypeVar("T")


class Layout(NamedTuple):
    """The segments of all chats of a plan, see `replay`.

    Attributes:
        rows: `SEGMENT` [segments]; `start` and `stop` count the characters of constants alone.
        first, last: int64 [segments]: the texts before `start` and before `stop`.
    """

    rows: Array
    first: Array
    last: Array


class Piece(NamedTuple):
    """A text to encode.

    Attributes:
        text: the text.
        special: with the tokenizer's own special tokens.
        segments: its parts; none where a layout has them.
        prompt, prompt_end: see `Pieces`.
        roles: of its messages, as codes.
        layout, moved: of a chat that was replayed, see `Replayed`.
        parts: see `Pieces`.
    """

    text: str
    special: bool
    segments: Sequence[Segment] = ()
    prompt: str | None = None
    prompt_end: int = -2
    roles: Sequence[int] = ()
    layout: Layout | None = None
    moved: Sequence[int] = ()
    parts: Parts | None = None


Row = list[list[Piece]]
"""The sequences of a row."""

Codes = dict[T, int]
"""Values in the order of their codes."""


def weight_code(codes: Codes[float], message: Mapping[str, Any]) -> int:
    """The code of what a message that `check_message` has passed says about its own training, by `train` or `weight`.

    UNSET: nothing; 0: not trained; from 1 on: trained.
    """
    own = message.get("weight")
    if own is None:
        own = message.get("train")
    return UNSET if own is None else codes.setdefault(float(own), len(codes))


def pieces_of(
    rows: Sequence[Row], roles: tuple[str, ...], bos: bool, weights: Array, reasons: tuple[tuple[str, str], ...]
) -> Pieces:
    """The pieces of all rows; `bos`: each sequence begins with the BOS token, unless the first rendering brings it.

    For `roles`, `weights` and `reasons` see `Pieces`.
    """
    sequences = [sequence for row in rows for sequence in row]
    pieces = [piece for sequence in sequences for piece in sequence]
    segments, borders = _segments(pieces)
    message_roles = [role for piece in pieces for role in piece.roles]
    return Pieces(
        [piece.text for piece in pieces],
        np.array([piece.special for piece in pieces], bool),
        {place: piece.prompt for place, piece in enumerate(pieces) if piece.prompt is not None},
        np.array([piece.prompt_end for piece in pieces], np.int64),
        segments,
        borders,
        roles,
        offsets_of(np.array([*map(len, sequences)], np.int64)),
        offsets_of(np.array([*map(len, rows)], np.int64)),
        np.full(len(sequences), bos),
        Ragged.from_lengths(np.array(message_roles, np.int64), [len(piece.roles) for piece in pieces]),
        weights,
        reasons,
        {place: piece.parts for place, piece in enumerate(pieces) if piece.parts is not None},
    )


def _segments(pieces: Sequence[Piece]) -> tuple[Array, Array]:
    """(`SEGMENT` [segments], their borders by piece), those of layouts between the others."""
    listed = np.array([segment for piece in pieces for segment in piece.segments], SEGMENT)
    counts = np.array([len(piece.segments) for piece in pieces], np.int64)
    by_layout: dict[int, tuple[Layout, list[int]]] = {}
    for place, piece in enumerate(pieces):
        if piece.layout is not None:
            by_layout.setdefault(id(piece.layout), (piece.layout, []))[1].append(place)
    alone = np.repeat(np.arange(len(counts)), counts)  # the piece of each listed segment
    within = np.arange(len(listed)) - offsets_of(counts)[alone]
    for layout, places in by_layout.values():
        counts[places] = len(layout.rows)
    borders = offsets_of(counts)
    found = np.empty(borders[-1], SEGMENT)
    found[borders[alone] + within] = listed
    for layout, places in by_layout.values():
        moved = np.array([pieces[place].moved for place in places], np.int64)
        rows = np.tile(layout.rows, (len(places), 1))
        rows["start"] += moved[:, layout.first]
        rows["stop"] += moved[:, layout.last]
        found[(borders[places][:, None] + np.arange(len(layout.rows))).ravel()] = rows.ravel()
    return found, borders
