"""`Piece`: a text to encode, made from a record; and the `Pieces` of all rows of an output."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.rendered import SEGMENT, UNSET, Pieces, Segment

T = TypeVar("T")


class Piece(NamedTuple):
    """A text to encode.

    Attributes:
        text: the text.
        special: whether the tokenizer adds its special tokens.
        segments: the segments of the text.
        prompt, prompt_end: see `Pieces`.
        roles: of the messages, as codes.
        parts: see `Pieces`.
    """

    text: str
    special: bool
    segments: Sequence[Segment] = ()
    prompt: str | None = None
    prompt_end: int = -2
    roles: Sequence[int] = ()
    parts: Parts | None = None


Row = list[list[Piece]]
"""The sequences of a row."""

Codes = dict[T, int]
"""Values in the order of their codes."""


def weight_code(codes: Codes[float], message: Mapping[str, Any]) -> int:
    """The code of a message's own `weight` or `train`. The message has passed `check_message`.

    UNSET: it has neither; 0: not trained; 1 and more: trained.
    """
    own = message.get("weight")
    if own is None:
        own = message.get("train")
    return UNSET if own is None else codes.setdefault(float(own), len(codes))


def pieces_of(
    rows: Sequence[Row], roles: tuple[str, ...], bos: bool, weights: Array, reasons: tuple[tuple[str, str], ...]
) -> Pieces:
    """The pieces of all rows. `bos`: each sequence begins with the BOS token, unless the first rendering writes it.

    For `roles`, `weights` and `reasons` see `Pieces`.
    """
    sequences = [sequence for row in rows for sequence in row]
    pieces = [piece for sequence in sequences for piece in sequence]
    message_roles = [role for piece in pieces for role in piece.roles]
    return Pieces(
        [piece.text for piece in pieces],
        np.array([piece.special for piece in pieces], bool),
        {place: piece.prompt for place, piece in enumerate(pieces) if piece.prompt is not None},
        np.array([piece.prompt_end for piece in pieces], np.int64),
        np.array([segment for piece in pieces for segment in piece.segments], SEGMENT),
        offsets_of(np.array([len(piece.segments) for piece in pieces], np.int64)),
        roles,
        offsets_of(np.array([*map(len, sequences)], np.int64)),
        offsets_of(np.array([*map(len, rows)], np.int64)),
        np.full(len(sequences), bos),
        Ragged.from_lengths(np.array(message_roles, np.int64), [len(piece.roles) for piece in pieces]),
        weights,
        reasons,
        {place: piece.parts for place, piece in enumerate(pieces) if piece.parts is not None},
    )
