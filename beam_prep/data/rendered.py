"""`Rendered`: the texts of a block, ready to encode, each with its roles and actions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from beam_prep.data.block import Block
from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, offsets_of, take
from beam_prep.data.schema import Output

DEFAULT_DOMAIN = "__default__"

MASK, TRAIN, BY_ROLE = 0, 1, 2
"""Codes of a segment's action: never trained, trained, by its role."""

UNSET = -1

T = TypeVar("T")


class Segment(NamedTuple):
    """A part of a piece, with its role and action.

    Attributes:
        start, stop: characters of the piece; (0, -1) = the entire piece.
        action: MASK, TRAIN or BY_ROLE.
        role: index into the block's roles; UNSET for text sections.
        turn: index of the message; UNSET for text sections.
        own: the code of the message's own `train` or `weight` key, see `weight_code`; UNSET without.
        refused: 0; or, if its turn contradicts the rule of what is trained, 1 + its index in `Pieces.reasons`.
        kind: the kind of its text, see `PART_KINDS`; 0 (content) if kinds are not told apart.
    """

    start: int
    stop: int
    action: int
    role: int = UNSET
    turn: int = UNSET
    own: int = UNSET
    refused: int = 0
    kind: int = 0


SEGMENT = np.dtype([(name, np.int64) for name in Segment.__annotations__])
"""Segments as an array, with the fields of `Segment`."""


WHOLE = (0, -1)


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


@dataclass(slots=True)
class Pieces:
    """The texts of one output, in order, with their segments.

    Attributes:
        texts: one text for each piece; each is encoded alone.
        special: bool [pieces]: the tokenizer adds its special tokens.
        prompts: piece -> its prompt's text: the piece is trained behind the longest common prefix of both's ids.
        prompt_end: int64 [pieces]: one past the last character of the prompt that begins a conversation; -1: the
            conversation does not begin with its prompt; -2: it has no prompt.
        segments: `SEGMENT` [segments].
        borders: int64 [pieces + 1]: borders of pieces, in segments.
        roles: the names of the roles of this block.
        sequences: int64 [sequences + 1]: borders of sequences, in pieces.
        rows: int64 [rows + 1]: borders of rows, in sequences (one sequence each, except for lists).
        bos: bool [sequences]: begins with the BOS token, unless the first rendering writes it.
        message_roles: int64, the role of every message, one row for each piece.
        weights: float64: the weight of each code of `own`.
        reasons: (reason, message) of refused segments.
        parts: piece -> the parts of its text, for a document that is reordered for FIM.
    """

    texts: Sequence[str]
    special: Array
    prompts: dict[int, str]
    prompt_end: Array
    segments: Array
    borders: Array
    roles: tuple[str, ...]
    sequences: Array
    rows: Array
    bos: Array
    message_roles: Ragged
    weights: Array
    reasons: tuple[tuple[str, str], ...] = ()
    parts: dict[int, Parts] = field(default_factory=dict)

    def message_roles_by_row(self) -> Ragged:
        """int64, the role of every message, one row for each row."""
        return Ragged(self.message_roles.values, self.message_roles.offsets[self.sequences[self.rows]])

    def take(self, places: Array) -> "Pieces":
        """Some of the pieces, each as a row by itself."""
        segments = Ragged(np.arange(len(self.segments)), self.borders).take(places)
        each = np.arange(len(places) + 1)
        return replace(
            self,
            texts=take(self.texts, places),
            special=self.special[places],
            prompts={new: self.prompts[old] for new, old in enumerate(places.tolist()) if old in self.prompts},
            prompt_end=self.prompt_end[places],
            segments=self.segments[segments.flat],
            borders=segments.offsets,
            sequences=each,
            rows=each,
            bos=np.zeros(len(places), bool),
            message_roles=self.message_roles.take(places),
            parts={new: self.parts[old] for new, old in enumerate(places.tolist()) if old in self.parts},
        )


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


@dataclass(slots=True)
class Rendered(Block):
    """Texts of a block, ready to encode.

    >>> from beam_prep.chat.apply import apply_template
    >>> from beam_prep.chat.chat_format import ChatFormat
    >>> output = bp.Output("sequence", "ids", (bp.Section("text", "train"),), mask_name="loss_mask")
    >>> rendered = apply_template(bp.testing.records([{"text": "Hello"}, {"text": ""}]), (output,), ChatFormat(None))
    >>> bp.testing.to_rows(rendered)
    [{'sequence': ['Hello']}]

    Attributes:
        outputs: the outputs of each record.
        domain: one domain name for each row.
        pieces: output name -> its texts (kinds `ids` and `list`).
        values: output name -> numbers (kind `value`), float64.
        weights: float64 [rows], the weights of records; None: no output has weights.
        counters: name -> int64 [rows], see `Batch.counters`.
    """

    outputs: tuple[Output, ...] = ()
    domain: list[str] = field(default_factory=list)
    pieces: dict[str, Pieces] = field(default_factory=dict)
    values: dict[str, Ragged] = field(default_factory=dict)
    weights: Array | None = None
    counters: dict[str, Array] = field(default_factory=dict)

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "domains", len(self.domain)
        yield from ((f"{name!r}", len(pieces.rows) - 1) for name, pieces in self.pieces.items())
        yield from ((f"{name!r}", len(rows)) for name, rows in self.values.items())
        yield from ((f"counter {name!r}", len(counts)) for name, counts in self.counters.items())
