"""`Rendered`: pieces of text to encode, each with its roles and actions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from beam_prep.core.data.block import Block
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import Output

DEFAULT_DOMAIN = "__default__"

MASK, TRAIN, BY_ROLE = 0, 1, 2
"""Codes of a piece's action: never trained, trained, by its role."""

UNSET = -1


class Segment(NamedTuple):
    """A part of a piece, and what is known about it.

    Attributes:
        start, stop: characters of the piece; (0, -1) = the entire piece.
        action: MASK, TRAIN or BY_ROLE.
        role: index into the block's roles; UNSET for text sections.
        turn: index of the message; UNSET for text sections.
        own: the code of the message's own `train` or `weight` key, see `MessageWeights`; UNSET without.
        refused: 0; or, where it contradicts the rule of what is trained, 1 + its index in `Pieces.reasons`.
        kind: of its text, see `PART_KINDS`; 0, content, where kinds are not told apart.
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


@dataclass(slots=True)
class Pieces:
    """The texts of one output, in order, and what is known about each.

    Attributes:
        texts: one text a piece; each is encoded alone.
        special: bool [pieces]: encoded with the tokenizer's own special tokens.
        prompts: piece -> its prompt's text: the piece is trained after the longest common prefix of both's ids.
        prompt_end: int64 [pieces]: one past the last character of the prompt that a conversation begins with; -1: it
            does not begin with its prompt; -2: it has none.
        segments: `SEGMENT` [segments].
        borders: int64 [pieces + 1]: borders of pieces, in segments.
        roles: the names of the roles of this block.
        sequences: int64 [sequences + 1]: borders of sequences, in pieces.
        rows: int64 [rows + 1]: borders of rows, in sequences (one each, but for lists).
        bos: bool [sequences]: begins with the BOS token, unless the first rendering brings it.
        message_roles: int64, the role of every message, one row a piece.
        weights: float64: the weight of each code of `own`.
        reasons: (reason, message) of segments that are refused.
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

    def message_roles_by_row(self) -> Ragged:
        """int64, the role of every message of each row."""
        return Ragged(self.message_roles.values, self.message_roles.offsets[self.sequences[self.rows]])

    def take(self, places: Array) -> "Pieces":
        """A selection of the pieces, each a row of its own."""
        segments = Ragged(np.arange(len(self.segments)), self.borders).take(places)
        each = np.arange(len(places) + 1)
        return Pieces(
            [self.texts[place] for place in places.tolist()],
            self.special[places],
            {new: self.prompts[old] for new, old in enumerate(places.tolist()) if old in self.prompts},
            self.prompt_end[places],
            self.segments[segments.flat],
            segments.offsets,
            self.roles,
            each,
            each,
            np.zeros(len(places), bool),
            self.message_roles.take(places),
            self.weights,
            self.reasons,
        )


@dataclass(slots=True)
class Rendered(Block):
    """Texts of a block, ready to encode.

    >>> from beam_prep.chat.apply import apply_template
    >>> from beam_prep.chat.voice import Voice
    >>> output = bp.Output("sequence", "ids", (bp.Section("text", "train"),), mask_name="loss_mask")
    >>> rendered = apply_template(bp.testing.records([{"text": "Hello"}, {"text": ""}]), (output,), Voice(None))
    >>> bp.testing.to_rows(rendered)
    [{'sequence': ['Hello']}]

    Attributes:
        outputs: what each row consists of.
        domain: one name a row.
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


class Layout(NamedTuple):
    """The segments of all chats of a plan, see `replay`.

    Attributes:
        rows: `SEGMENT` [segments]; `start` and `stop` count the characters of constants alone.
        first, last: int64 [segments]: the texts before `start` and before `stop`.
        message_roles: the roles of the messages.
    """

    rows: Array
    first: Array
    last: Array
    message_roles: tuple[int, ...]


class PiecesBuilder:
    """The pieces of one output while they are collected, row by row; `undo` takes the last rows back.

    Attributes:
        rows: borders of rows, in sequences.
        characters: of all texts.
        reasons: (reason, message) -> the code of segments that are refused.
    """

    def __init__(self) -> None:
        self.rows = [0]
        self.characters = 0
        self.reasons: dict[tuple[str, str], int] = {}
        self._texts: list[str] = []
        self._special: list[bool] = []
        self._prompts: dict[int, str] = {}
        self._prompt_end: list[int] = []
        self._segments: list[Segment] = []
        self._borders = [0]  # of pieces, in segments that no layout has
        self._layouts: dict[int, tuple[Layout, list[int]]] = {}  # piece -> its layout, and `Replayed.moved`
        self._sequences = [0]
        self._message_roles: list[int] = []
        self._message_roles_borders = [0]

    def __len__(self) -> int:
        return len(self._texts)

    def add_piece(
        self,
        text: str,
        special: bool,
        segments: Sequence[Segment],
        prompt: str | None = None,
        prompt_end: int = -2,
        message_roles: Sequence[int] = (),
    ) -> None:
        """Adds a piece to the present sequence.

        Args:
            text: to encode.
            special: with the tokenizer's own special tokens.
            segments: its parts.
            prompt, prompt_end: see `Pieces`.
            message_roles: the roles of its messages.
        """
        if prompt is not None:
            self._prompts[len(self._texts)] = prompt
        self._texts.append(text)
        self.characters += len(text)
        self._special.append(special)
        self._prompt_end.append(prompt_end)
        self._segments += segments
        self._borders.append(len(self._segments))
        self._message_roles += message_roles
        self._message_roles_borders.append(len(self._message_roles))

    def add_replayed(self, text: str, special: bool, prompt_end: int, layout: Layout, moved: list[int]) -> None:
        """Adds a chat that was replayed.

        Args:
            text, special, prompt_end: see `add_piece`.
            layout: of all chats of its plan.
            moved: see `Replayed`.
        """
        self._layouts[len(self._texts)] = layout, moved
        self.add_piece(text, special, (), prompt_end=prompt_end, message_roles=layout.message_roles)

    def refused(self, reason: tuple[str, str]) -> int:
        """The code of a segment that is refused."""
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def end_sequence(self) -> None:
        self._sequences.append(len(self._texts))

    def end_row(self) -> None:
        self.rows.append(len(self._sequences) - 1)

    def undo(self, rows: int) -> None:
        """Back to the first `rows` rows."""
        del self.rows[rows + 1 :]
        del self._sequences[self.rows[-1] + 1 :]
        pieces = self._sequences[-1]
        for piece in range(pieces, len(self._texts)):
            self._prompts.pop(piece, None)
            self._layouts.pop(piece, None)
        self.characters -= sum(map(len, self._texts[pieces:]))
        del self._texts[pieces:], self._special[pieces:], self._prompt_end[pieces:]
        del self._borders[pieces + 1 :]
        del self._segments[self._borders[-1] :]
        del self._message_roles_borders[pieces + 1 :]
        del self._message_roles[self._message_roles_borders[-1] :]

    def build(self, roles: tuple[str, ...], bos: bool, weights: Array) -> Pieces:
        """The pieces; `bos`: each sequence begins with the BOS token, unless the first rendering brings it.

        For `roles` and `weights` see `Pieces`.
        """
        segments, borders = self._all_segments()
        return Pieces(
            self._texts,
            np.asarray(self._special, bool),
            self._prompts,
            np.asarray(self._prompt_end, np.int64),
            segments,
            borders,
            roles,
            np.asarray(self._sequences, np.int64),
            np.asarray(self.rows, np.int64),
            np.full(len(self._sequences) - 1, bos),
            Ragged(np.asarray(self._message_roles, np.int64), np.asarray(self._message_roles_borders, np.int64)),
            weights,
            tuple(self.reasons),
        )

    def _all_segments(self) -> tuple[Array, Array]:
        """(`SEGMENT` [segments], their borders by piece), those of layouts between the others."""
        listed, counts = np.array(self._segments, SEGMENT), np.diff(self._borders)
        if not self._layouts:
            return listed, offsets_of(counts)
        by_layout: dict[int, tuple[Layout, list[int], list[list[int]]]] = {}
        for piece, (layout, moved) in self._layouts.items():
            _, pieces, all_moved = by_layout.setdefault(id(layout), (layout, [], []))
            pieces.append(piece)
            all_moved.append(moved)
        alone = np.repeat(np.arange(len(counts)), counts)  # piece of each listed segment
        within = np.arange(len(listed)) - offsets_of(counts)[alone]
        for layout, pieces, _ in by_layout.values():
            counts[pieces] = len(layout.rows)
        borders = offsets_of(counts)
        found = np.empty(borders[-1], SEGMENT)
        found[borders[alone] + within] = listed
        for layout, pieces, all_moved in by_layout.values():
            moved_by = np.array(all_moved, np.int64)
            rows = np.tile(layout.rows, (len(pieces), 1))
            rows["start"] += moved_by[:, layout.first]
            rows["stop"] += moved_by[:, layout.last]
            places = borders[pieces][:, None] + np.arange(len(layout.rows))
            found[places.ravel()] = rows.ravel()
        return found, borders
