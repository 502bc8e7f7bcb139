"""`Segments`: where each message stands in the tokens. `Roles`: messages and tokens by role, only for reports."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.rendered import UNSET

NAME_LIMIT = 64
"""Most characters of a role's name in a receipt."""


TOKENS, TRAINED = 0, 1
"""The count to which a span adds: all tokens of its role, or the trained ones. A token that segments share counts for
the first of them, and for the first trained one."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The place of each piece of an output in its tokens, for mask policies. Each array has one entry for each segment.

    A mask policy is a function of these segments. This one trains the last answer of each conversation:

    >>> def last_answer(segments):
    ...     return segments.is_role("assistant") & segments.is_last_of_role()
    >>> step = bp.BuildMask(last_answer)

    A message may be several segments, with the same sequence, turn and role: in a template with several
    `{% generation %}` blocks, each block is one. A policy on the length of a message adds them up: see
    docs/extending.md.

    Attributes:
        start, stop: int64, in the output's flat tokens. Segments may share a token.
        sequence: int64, the sequence of the segment.
        action: int8, see `MASK`, `TRAIN` and `BY_ROLE` of `data.rendered`.
        role: int32, index into `roles`; -1 for text sections.
        turn: int32, index of the message in its list; -1 for text sections.
        own: int8, the message's own `train` or `weight` key: 1: train, 0: do not train, -1: no key.
        refused: int64: 0; or, if the span of the message is uncertain, 1 + its index in `reasons`.
        roles: names of the roles.
        reasons: (reason, message) of refused segments.
        weight: float64, the loss weight of its tokens, if they are trained; None: the output has no weights.
        kind: int8, the kind of text, see `PART_KINDS`: 0 content, 1 reasoning, 2 tool calls, 3 generation prompt, 4 end
            tokens; only with `TextRules.mask_options`. None: all text is content.
    """

    start: Array
    stop: Array
    sequence: Array
    action: Array
    role: Array
    turn: Array
    own: Array
    refused: Array
    roles: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...] = ()
    weight: Array | None = None
    kind: Array | None = None

    def __len__(self) -> int:
        return len(self.start)

    def of_rows(self, rows: Ragged, kept: Array) -> "Segments":
        """The segments of some rows, with places in the tokens of these rows.

        Args:
            rows: the output's rows.
            kept: bool [rows].
        """
        sequences = rows.values if isinstance(rows.values, Ragged) else rows
        here = np.repeat(kept, rows.lengths) if isinstance(rows.values, Ragged) else kept
        before = offsets_of(np.where(here, 0, sequences.lengths))
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, values in columns.items():
            if isinstance(values, np.ndarray):
                columns[name] = values[here[self.sequence]]
        sequence = columns["sequence"]
        for name in ("start", "stop"):
            columns[name] = columns[name] - before[sequence]
        return Segments(**{**columns, "sequence": offsets_of(here)[sequence]})

    def is_role(self, name: str) -> Array:
        """bool [segments]: the segments of that role."""
        code = self.roles.index(name) if name in self.roles else len(self.roles)
        return np.asarray(self.role == code)

    def is_last_of_role(self) -> Array:
        """bool [segments]: True for segments of the last message of their role in their sequence."""
        key = self.sequence * (len(self.roles) + 1) + self.role
        _, group = np.unique(key, return_inverse=True)
        last = np.full(group.max(initial=-1) + 1, UNSET)
        np.maximum.at(last, group, self.turn)
        return np.asarray((self.turn == last[group]) & (self.role != UNSET))


def _none() -> Array:
    return np.zeros(0, np.int64)


class RoleSpans(NamedTuple):
    """Spans of tokens of one role. Two spans of the same kind never share a token.

    Attributes:
        line, row, role: int64 [spans]; for `row` see `Block.row`, 0 if records have one row.
        start, stop: int64 [spans]: first token and one past the last, counted in their sequence.
        size: int64 [spans]: number of tokens of that sequence.
        kind: int64 [spans]: the count to which the span adds: `TOKENS` or `TRAINED`.
    """

    line: Array
    row: Array
    role: Array
    start: Array
    stop: Array
    size: Array
    kind: Array


def _no_spans() -> RoleSpans:
    return RoleSpans(*(_none() for _ in RoleSpans._fields))


@dataclass(frozen=True, slots=True)
class Roles:
    """The messages of a block and their tokens, also of rows that are later dropped or rejected.

    Attributes:
        names: names of the roles.
        line, role: int64 [messages]: of every rendered message; a message of two outputs counts in both.
        spans: the tokens of the messages.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=_none)
    role: Array = field(default_factory=_none)
    spans: RoleSpans = field(default_factory=_no_spans)

    def with_messages(self, names: tuple[str, ...], line: Array, messages: Ragged) -> "Roles":
        """Adds the messages of another output.

        Args:
            names: names of the roles, which all outputs share.
            line: int64 [rows].
            messages: int64, the role of every message, by row.
        """
        lines = np.concatenate([self.line, np.repeat(line, messages.lengths)])
        return replace(self, names=names, line=lines, role=np.concatenate([self.role, messages.flat]))

    def with_tokens(
        self, line: Array, tokens: Ragged, segments: Segments, trained: Array | None, row: Array | None = None
    ) -> "Roles":
        """Adds the tokens of another output.

        Args:
            line: int64 [rows].
            tokens: the output's rows.
            segments: where each message stands in the rows.
            trained: bool [segments]; None: the output has no mask.
            row: see `Block.row`; only if a row is one sequence.
        """
        sequences, line = tokens.values if isinstance(tokens.values, Ragged) else tokens, line.astype(np.int64)
        if isinstance(tokens.values, Ragged):
            line = np.repeat(line, tokens.lengths)
        number = np.zeros(len(line), np.int64) if row is None else row.astype(np.int64)
        known = np.flatnonzero(segments.role != UNSET)
        picks = [(known, TOKENS)] if trained is None else [(known, TOKENS), (known[trained[known]], TRAINED)]
        spans = [self.spans]
        for picked, kind in picks:
            places, start, stop = disjoint(segments, picked)
            sequence = segments.sequence[places]
            begin, size = sequences.offsets[sequence], sequences.lengths[sequence]
            each = line[sequence], number[sequence], segments.role[places], start - begin, stop - begin, size
            spans.append(RoleSpans(*each, np.full(len(places), kind)))
        return replace(self, spans=RoleSpans(*map(np.concatenate, zip(*spans, strict=True))))

    def without(self, line: Array, row: Array) -> "Roles":
        """The roles without the tokens of some rows, if other rows of the record stay."""
        gone = np.isin(self.spans.line << 32 | self.spans.row, line.astype(np.int64) << 32 | row.astype(np.int64))
        return replace(self, spans=RoleSpans(*(values[~gone] for values in self.spans)))

    def cut(self, length: int, keep_end: bool) -> "Roles":
        """The roles after sequences are cut to `length` tokens."""
        spans = self.spans
        before = np.maximum(spans.size - length, 0) if keep_end else 0
        start, stop = (np.clip(place - before, 0, length) for place in (spans.start, spans.stop))
        return replace(self, spans=spans._replace(start=start, stop=stop, size=np.minimum(spans.size, length)))

    def count(self, kept: Array, lines: int) -> "RoleCounts":
        """Counts the messages of all lines, and the tokens of kept lines.

        Args:
            kept: int32 [rows], the lines of kept rows.
            lines: number of lines of the block.
        """
        roles = len(self.names)
        found, messages = np.unique(self.line * roles + self.role, return_inverse=True)
        alive = np.zeros(lines, bool)
        alive[kept] = True
        spans = self.spans
        of_spans = np.searchsorted(found, spans.line * roles + spans.role)
        sizes = np.where(alive[spans.line], spans.stop - spans.start, 0)
        counts = np.array(
            [
                np.bincount(messages, minlength=len(found)),
                np.bincount(of_spans, np.where(spans.kind == TOKENS, sizes, 0), len(found)),
                np.bincount(of_spans, np.where(spans.kind == TRAINED, sizes, 0), len(found)),
            ],
            np.int64,
        )
        line, role = np.divmod(found, max(1, roles))
        return RoleCounts(_short(self.names), line, role, counts)


def disjoint(segments: Segments, places: Array) -> tuple[Array, Array, Array]:
    """(segments ordered by start, their starts, their stops); a shared token belongs to its first segment."""
    places = places[np.argsort(segments.start[places], kind="stable")]
    start, stop = segments.start[places], segments.stop[places]
    before = np.maximum.accumulate(np.append(0, stop))[:-1]
    return places, np.minimum(np.maximum(start, before), stop), stop


def painted(segments: Segments, places: Array, values: Array, size: int) -> Array:
    """The values of some segments on each of their tokens, 0 on other tokens.

    Args:
        segments: the segments of an output.
        places: int64, ascending: the chosen segments. A token that several have gets the value of the first.
        values: one for each of all segments; the result has their dtype.
        size: number of tokens of the output.
    """
    places, start, stop = disjoint(segments, places)
    filled = start < stop
    places, start, stop = places[filled], start[filled], stop[filled]
    found = np.zeros(2 * len(places) + 1, values.dtype)
    found[1::2] = values[places]
    borders = np.concatenate([[0], np.column_stack([start, stop]).ravel(), [size]])
    return np.repeat(found, np.diff(borders))


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Names for a receipt: cut to `NAME_LIMIT`, and valid UTF-8."""
    return tuple(name[:NAME_LIMIT].encode("utf-8", "backslashreplace").decode() for name in names)


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """Messages and tokens of each role in each line of a block.

    Attributes:
        names: names of the roles.
        line, role: int64 [entries], ascending by line.
        counts: int64 [3, entries]: messages; tokens; trained tokens.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=_none)
    role: Array = field(default_factory=_none)
    counts: Array = field(default_factory=lambda: np.zeros((3, 0), np.int64))

    def without(self, lines: Array) -> "RoleCounts":
        """The counts without the tokens of these lines. Their messages stay counted."""
        counts = self.counts.copy()
        counts[1:, np.isin(self.line, lines)] = 0
        return replace(self, counts=counts)

    def sums(self, lines: int | None = None) -> dict[str, tuple[int, int, int]]:
        """Role -> (messages, tokens, trained tokens), of the first `lines` lines, or of all."""
        stop = len(self.line) if lines is None else int(np.searchsorted(self.line, lines))
        sums = np.zeros((len(self.names), 3), np.int64)
        for place, counts in enumerate(self.counts):
            sums[:, place] = np.bincount(self.role[:stop], counts[:stop], len(self.names))
        totals: dict[str, tuple[int, int, int]] = {}
        for name, (messages, tokens, trained) in zip(self.names, sums.tolist(), strict=True):
            if messages:
                had = totals.get(name, (0, 0, 0))
                totals[name] = (had[0] + messages, had[1] + tokens, had[2] + trained)
        return totals
