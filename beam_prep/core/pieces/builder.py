"""Builds the `Pieces` of one output, row by row or many rows at once."""

from collections.abc import Sequence

import numpy as np

from beam_prep.core.data.columns import Texts, concat
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.pieces.checks import check_characters
from beam_prep.core.pieces.layout_segments import LayoutSegments
from beam_prep.core.pieces.rendered import TRAIN, WHOLE, Pieces, Segment, as_segments


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
        self._in_bulk: list[tuple[LayoutSegments, Array, Array, Array]] = []  # the same of many pieces: see `_by_table`
        self._bulk: Texts | None = None  # texts after all others
        self._message_roles: list[int] = []
        self._message_roles_borders = [0]
        self._message_roles_in_bulk: list[Ragged] = []

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

    def add_in_bulk(
        self, texts: Texts, special: bool, cuts: Array, groups: "list[tuple[LayoutSegments, Array]]"
    ) -> None:
        """Adds texts, a row each, after all others.

        Args:
            texts: to encode.
            special: with the tokenizer's own special tokens.
            cuts: int64 [texts]: how many characters were cut from the front of each.
            groups: for so many of them as its array has rows, in order: (table, lengths of what each consists of).
                Empty: each text is one segment, trained.
        """
        at = first = len(self._texts)
        count = len(texts)
        for table, lengths in groups:
            pieces = np.arange(at, at := at + len(lengths))
            self._in_bulk.append((table, pieces, lengths, cuts[pieces - first]))
            message_roles = np.tile(np.array(table.message_roles, np.int64), len(lengths))
            self._message_roles_in_bulk.append(
                Ragged.from_lengths(message_roles, np.full(len(lengths), len(table.message_roles)))
            )
        if not groups:
            self._message_roles_in_bulk.append(Ragged(np.zeros(0, np.int64), np.zeros(count + 1, np.int64)))
        self._bulk = texts
        self._special += [special] * count
        segments = [] if groups else [Segment(*WHOLE, TRAIN)] * count
        self._segments += segments
        borders = range(self._borders[-1] + 1, len(self._segments) + 1) if segments else [self._borders[-1]] * count
        self._borders += borders
        self._sequences += range(first + 1, first + count + 1)
        self.rows += range(len(self.rows), len(self.rows) + count)

    def build(self, roles: tuple[str, ...], bos: bool, weights: Array) -> Pieces:
        """The pieces; `bos`: each sequence begins with the BOS token, unless the first rendering brings it.

        For `roles` and `weights` see `Pieces`.
        """
        sequences = np.asarray(self._sequences, np.int64)
        by_table = self._by_table()
        segments, borders = self._all_segments(by_table)
        texts: Sequence[str] = self._texts
        if self._bulk is not None:
            texts = concat(texts, self._bulk) if texts else self._bulk
        message_roles = Ragged(
            np.asarray(self._message_roles, np.int64), np.asarray(self._message_roles_borders, np.int64)
        )
        return Pieces(
            texts,
            np.asarray(self._special, bool),
            self._prompts,
            self._prompt_ends(by_table),
            segments,
            borders,
            roles,
            sequences,
            np.asarray(self.rows, np.int64),
            np.full(len(sequences) - 1, bos),
            Ragged.concat([message_roles, *self._message_roles_in_bulk]),
            weights,
        )

    def _by_table(self) -> "list[tuple[LayoutSegments, Array, Array, Array]]":
        """(table, its pieces, lengths of what each consists of, characters cut from the front of each)."""
        by_table: dict[LayoutSegments, list[int]] = {}
        for piece, (table, _, _) in self._measured.items():
            by_table.setdefault(table, []).append(piece)
        return [
            *self._in_bulk,
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

    def _prompt_ends(self, by_table: "list[tuple[LayoutSegments, Array, Array, Array]]") -> Array:
        """`prompt_end` of `Pieces`."""
        ends = np.full(len(self._special), -2)
        ends[list(self._prompt_end)] = list(self._prompt_end.values())
        for table, pieces, lengths, cuts in by_table:
            if table.prompt is not None:
                end = lengths[:, : table.prompt.piece].sum(axis=1) + table.prompt.characters - cuts
                ends[pieces] = np.maximum(end, 0)
        return ends

    def _all_segments(self, by_table: "list[tuple[LayoutSegments, Array, Array, Array]]") -> tuple[Array, Array]:
        """(`SEGMENT` [segments], their borders), those of plans put between the others."""
        listed = np.asarray(self._segments, np.int64).reshape(-1, len(Segment._fields))
        counts: Array = np.diff(np.asarray(self._borders, np.int64))
        if not by_table:
            return as_segments(listed), offsets_of(counts)
        for table, pieces, _, _ in by_table:
            counts[pieces] = len(table)
        borders = offsets_of(counts)
        segments = np.empty((borders[-1], len(Segment._fields)), np.int64)
        planned = np.zeros(len(counts), bool)
        for _, pieces, _, _ in by_table:
            planned[pieces] = True
        segments[np.repeat(~planned, counts)] = listed
        for table, pieces, lengths, cuts in by_table:
            rows = (borders[pieces][:, None] + np.arange(len(table))).ravel()
            segments[rows] = table.segments(lengths, cuts)
        return as_segments(segments), borders
