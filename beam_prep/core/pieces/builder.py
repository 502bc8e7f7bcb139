"""Builds the `Pieces` of one output, row by row or many rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from beam_prep.core.data.columns import Texts, merge
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.pieces.checks import check_characters
from beam_prep.core.pieces.layout_segments import LayoutSegments
from beam_prep.core.pieces.rendered import Pieces, Segment, as_segments

Groups = list[tuple[LayoutSegments, Array, Array, Array]]
"""(table, its pieces, lengths of what each consists of, characters cut from the front of each)."""


@dataclass(frozen=True, slots=True)
class BulkPieces:
    """The pieces of many rows.

    Attributes:
        texts: to encode.
        special: bool [pieces]: with the tokenizer's own special tokens.
        message_roles: the roles of the messages of each piece.
        segments: int64 [pieces, fields of `Segment`]: one a piece; None: those of `groups`.
        groups: pieces by table, by their numbers here.
        sequences: int64 [sequences]: pieces of each; None: each piece is one.
        rows: int64 [rows]: sequences of each; None: each sequence is one.
    """

    texts: Texts
    special: Array
    message_roles: Ragged
    segments: Array | None = None
    groups: Groups = field(default_factory=list)
    sequences: Array | None = None
    rows: Array | None = None


class PiecesBuilder:
    """The pieces of one output while they are collected; `undo` takes the last rows back.

    Attributes:
        rows: borders of rows, in sequences.
        characters: of all texts that were added one by one.
    """

    def __init__(self) -> None:
        self.rows = [0]
        self.characters = 0
        self._texts: list[str] = []
        self._special: list[bool] = []
        self._prompts: dict[int, str] = {}
        self._prompt_end: dict[int, int] = {}
        self._segments: list[Segment] = []
        self._borders = [0]
        self._sequences = [0]
        # piece -> its segments, lengths of what it consists of, characters cut from its front
        self._measured: dict[int, tuple[LayoutSegments, tuple[int, ...], int]] = {}
        self._bulk: BulkPieces | None = None  # after all others
        self._message_roles: list[int] = []
        self._message_roles_borders = [0]

    def __len__(self) -> int:
        return len(self._texts)

    def add_piece(
        self,
        text: str,
        special: bool,
        *segments: Segment,
        prompt: str | None = None,
        prompt_end: int | None = None,
        measured: "tuple[LayoutSegments, tuple[int, ...], int] | None" = None,
        message_roles: Sequence[int] = (),
    ) -> None:
        """Adds a piece to the present sequence.

        Args:
            text: to encode.
            special: with the tokenizer's own special tokens.
            segments: its parts.
            prompt, prompt_end: see `Pieces`.
            measured: in place of its parts: the table that has them, the lengths of what the text consists of, and
                how many characters were cut from its front.
            message_roles: the roles of its messages.

        Raises:
            Reject: `bad_text`: the text cannot be encoded.
        """
        if not text.isascii():
            check_characters(text)
        if prompt is not None:
            self._prompts[len(self._texts)] = prompt
        if prompt_end is not None:
            self._prompt_end[len(self._texts)] = prompt_end
        if measured is not None:
            self._measured[len(self._texts)] = measured
        self._texts.append(text)
        self.characters += len(text)
        self._special.append(special)
        self._segments += segments
        self._borders.append(len(self._segments))
        self._message_roles += message_roles
        self._message_roles_borders.append(len(self._message_roles))

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
            self._prompt_end.pop(piece, None)
            self._measured.pop(piece, None)
        self.characters -= sum(map(len, self._texts[pieces:]))
        del self._texts[pieces:], self._special[pieces:], self._borders[pieces + 1 :]
        del self._segments[self._borders[-1] :]
        del self._message_roles_borders[pieces + 1 :]
        del self._message_roles[self._message_roles_borders[-1] :]

    def add_in_bulk(self, bulk: BulkPieces) -> None:
        """Adds pieces after all others, once."""
        self._bulk = bulk

    def build(self, roles: tuple[str, ...], bos: bool, weights: Array, order: Array | None = None) -> Pieces:
        """The pieces; `bos`: each sequence begins with the BOS token, unless the first rendering brings it.

        For `roles` and `weights` see `Pieces`. `order`: int64 [rows], the numbers of the rows, those in bulk after the
        others; None: as they were added.
        """
        texts: Sequence[str] = self._texts
        special = np.asarray(self._special, bool)
        sequences, rows = np.diff(np.asarray(self._sequences, np.int64)), np.diff(np.asarray(self.rows, np.int64))
        message_roles = Ragged(
            np.asarray(self._message_roles, np.int64), np.asarray(self._message_roles_borders, np.int64)
        )
        places: Array | None = None  # the number that each piece had when it was added
        if (bulk := self._bulk) is not None:
            of_bulk = np.ones(len(bulk.texts), np.int64) if bulk.sequences is None else bulk.sequences
            sequences = np.concatenate([sequences, of_bulk])
            rows = np.concatenate([rows, np.ones(len(of_bulk), np.int64) if bulk.rows is None else bulk.rows])
            if order is not None:
                moved = Ragged(np.arange(len(sequences)), offsets_of(rows)).take(order).flat
                places = Ragged(np.arange(len(texts) + len(bulk.texts)), offsets_of(sequences)).take(moved).flat
                sequences, rows = sequences[moved], rows[order]
            texts = merge(self._texts, bulk.texts, places)
            special = np.concatenate([special, bulk.special])
            message_roles = Ragged.concat([message_roles, bulk.message_roles])
        by_table = self._by_table()
        ends = self._prompt_ends(by_table, len(special))
        segments, borders = self._all_segments(by_table, len(special), places)
        if places is not None:
            special, ends, message_roles = special[places], ends[places], message_roles.take(places)
        return Pieces(
            texts,
            special,
            self._prompts if places is None else _moved(self._prompts, places),
            ends,
            segments,
            borders,
            roles,
            offsets_of(sequences),
            offsets_of(rows),
            np.full(len(sequences), bos),
            message_roles,
            weights,
        )

    def _by_table(self) -> Groups:
        """The pieces by table."""
        by_table: dict[LayoutSegments, list[int]] = {}
        for piece, (table, _, _) in self._measured.items():
            by_table.setdefault(table, []).append(piece)
        first, groups = len(self._texts), [] if self._bulk is None else self._bulk.groups
        return [
            *((table, pieces + first, lengths, cuts) for table, pieces, lengths, cuts in groups),
            *(
                (
                    table,
                    np.array(pieces, np.int64),
                    np.array([self._measured[piece][1] for piece in pieces], np.int64),
                    np.array([self._measured[piece][2] for piece in pieces], np.int64),
                )
                for table, pieces in by_table.items()
            ),
        ]

    def _prompt_ends(self, by_table: Groups, count: int) -> Array:
        """`prompt_end` of `Pieces`."""
        ends = np.full(count, -2)
        ends[list(self._prompt_end)] = list(self._prompt_end.values())
        for table, pieces, lengths, cuts in by_table:
            if table.prompt is not None:
                end = lengths[:, : table.prompt.piece].sum(axis=1) + table.prompt.characters - cuts
                ends[pieces] = np.maximum(end, 0)
        return ends

    def _all_segments(self, by_table: Groups, count: int, places: Array | None) -> tuple[Array, Array]:
        """(`SEGMENT` [segments], their borders), those of plans put between the others."""
        listed = np.asarray(self._segments, np.int64).reshape(-1, len(Segment._fields))
        counts = np.zeros(count, np.int64)
        counts[: len(self._texts)] = np.diff(np.asarray(self._borders, np.int64))
        if self._bulk is not None and self._bulk.segments is not None:
            listed = np.concatenate([listed, self._bulk.segments])
            counts[len(self._texts) :] = 1
        if not by_table and places is None:
            return as_segments(listed), offsets_of(counts)
        alone = counts.copy()
        for table, pieces, _, _ in by_table:
            counts[pieces] = len(table)
        if places is None:
            borders = offsets_of(counts)
            starts = borders[:-1]
        else:
            borders = offsets_of(counts[places])
            starts = np.empty(count, np.int64)
            starts[places] = borders[:-1]
        segments = np.empty((borders[-1], len(Segment._fields)), np.int64)
        segments[np.repeat(starts - offsets_of(alone)[:-1], alone) + np.arange(len(listed))] = listed
        for table, pieces, lengths, cuts in by_table:
            rows = (starts[pieces][:, None] + np.arange(len(table))).ravel()
            segments[rows] = table.segments(lengths, cuts)
        return as_segments(segments), borders


def _moved(prompts: dict[int, str], places: Array) -> dict[int, str]:
    """The prompts by the new numbers of their pieces; `places` are the old ones."""
    if not prompts:
        return prompts
    number = {old: new for new, old in enumerate(places.tolist()) if old in prompts}
    return {number[old]: prompt for old, prompt in prompts.items()}
