"""Who says what: the messages of a block and their tokens, counted by role. For the ledger; no token depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from beam_prep.core.ragged import Array, Ragged

if TYPE_CHECKING:
    from beam_prep.core.batch import Segments

NAME_LIMIT = 64
"""Characters of a role that are kept: it stands in every receipt."""


def _none(columns: int = 0) -> Array:
    return np.zeros((0, columns) if columns else 0, np.int64)


@dataclass(frozen=True, slots=True)
class Roles:
    """The messages of a block, also of rows that leave later, and which tokens they are.

    Attributes:
        names: of the roles.
        line, role: int64 [messages]: of every message that was rendered; a message of two outputs counts in both.
        spans: int64 [spans, 6]: tokens of one role: line, role, first and one past the last, counted in their
            sequence, the tokens of that sequence, and 1 where they are trained. No two with the same last entry share
            a token.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=_none)
    role: Array = field(default_factory=_none)
    spans: Array = field(default_factory=lambda: _none(6))

    def said(self, names: tuple[str, ...], line: Array, said: Ragged) -> "Roles":
        """With the messages of another output.

        Args:
            names: of the roles, which all outputs share.
            line: int64 [rows].
            said: int64, the role of every message, by row.
        """
        lines = np.concatenate([self.line, np.repeat(line, said.lengths)])
        return replace(self, names=names, line=lines, role=np.concatenate([self.role, said.flat]))

    def spoken(self, line: Array, tokens: Ragged, segments: "Segments", trained: Array | None) -> "Roles":
        """With the tokens of another output.

        Args:
            line: int64 [rows].
            tokens: the output's rows.
            segments: where each message lies in them.
            trained: bool [segments]; None: the output has no mask.
        """
        sequences = tokens.values if isinstance(tokens.values, Ragged) else tokens
        if isinstance(tokens.values, Ragged):
            line = np.repeat(line, tokens.lengths)
        known = segments.role >= 0
        spans = [self.spans]
        for kind, wanted in enumerate([known] if trained is None else [known, known & trained]):
            start, stop = segments.start[wanted], segments.stop[wanted]
            sequence, role = segments.sequence[wanted], segments.role[wanted]
            order = np.argsort(start, kind="stable")
            start, stop, sequence, role = start[order], stop[order], sequence[order], role[order]
            # A token of two of them counts for the first.
            before = np.maximum.accumulate(np.append(0, stop[:-1])) if len(stop) else stop
            start = np.minimum(np.maximum(start, before), stop)
            begin = sequences.offsets[sequence]
            entries = [line[sequence], role, start - begin, stop - begin, sequences.lengths[sequence]]
            spans.append(np.column_stack([*entries, np.full(len(role), kind)]))
        return replace(self, spans=np.concatenate(spans))

    def cut(self, length: int, keep_end: bool) -> "Roles":
        """Of sequences cut to `length` tokens."""
        spans = self.spans.copy()
        if keep_end:
            spans[:, 2:4] -= np.maximum(spans[:, 4:5] - length, 0)
        np.clip(spans[:, 2:4], 0, length, out=spans[:, 2:4])
        np.minimum(spans[:, 4], length, out=spans[:, 4])
        return replace(self, spans=spans)

    def count(self, kept: Array, lines: int) -> "RoleCounts":
        """Messages of all lines, tokens of those that are kept.

        Args:
            kept: int32 [rows], their lines.
            lines: of the block.
        """
        alive = np.zeros(lines, bool)
        alive[kept] = True
        spans = self.spans[alive[self.spans[:, 0]]]
        keys = np.concatenate([self.line * len(self.names) + self.role, spans[:, 0] * len(self.names) + spans[:, 1]])
        if lines * len(self.names) <= 2 * len(keys) + _FEW:
            found = np.flatnonzero(np.bincount(keys))
            place = np.zeros(lines * len(self.names), np.int64)
            place[found] = np.arange(len(found))
            place = place[keys]
        else:
            found, place = np.unique(keys, return_inverse=True)
        messages, of_spans = place[: len(self.line)], place[len(self.line) :]
        sizes = spans[:, 3] - spans[:, 2]
        counts = [
            np.bincount(messages, minlength=len(found)),
            *(np.bincount(of_spans, np.where(spans[:, 5] == kind, sizes, 0), len(found)) for kind in (0, 1)),
        ]
        line, role = np.divmod(found, max(1, len(self.names)))
        return RoleCounts(_short(self.names), line, role, np.column_stack(counts).astype(np.int64))


_FEW = 1 << 16


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Names that every receipt can hold: not long, and UTF-8."""
    return tuple(name[:NAME_LIMIT].encode("utf-8", "backslashreplace").decode() for name in names)


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """What each role says in each line of a block.

    Attributes:
        names: of the roles.
        line, role: int64 [entries], ascending by line.
        counts: int64 [entries, 3]: messages; tokens; tokens that are trained.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=_none)
    role: Array = field(default_factory=_none)
    counts: Array = field(default_factory=lambda: _none(3))

    def sums(self, lines: int | None = None) -> dict[str, tuple[int, int, int]]:
        """Role -> (messages, tokens, trained tokens), of the first `lines` lines, or all."""
        stop = len(self.line) if lines is None else int(np.searchsorted(self.line, lines))
        sums = np.zeros((len(self.names), 3), np.int64)
        np.add.at(sums, self.role[:stop], self.counts[:stop])
        totals: dict[str, tuple[int, int, int]] = {}
        for name, (messages, tokens, trained) in zip(self.names, sums.tolist(), strict=True):
            if messages:
                had = totals.get(name, (0, 0, 0))
                totals[name] = (had[0] + messages, had[1] + tokens, had[2] + trained)
        return totals
