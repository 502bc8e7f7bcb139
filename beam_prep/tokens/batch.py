"""`Batch`: rows of tokens as named ragged columns. `Segments`: where each message stands in them. `Roles`: messages and
tokens by role, only for reports and pages."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from beam_prep.data.block import Block, step
from beam_prep.data.ragged import Array, Ragged, no_numbers, offsets_of
from beam_prep.data.rendered import UNSET
from beam_prep.data.schema import PROMPT_COMPLETION, Column, Output

NAME_LIMIT = 64
"""Most characters of a role's name in a receipt."""


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


@dataclass(frozen=True, slots=True)
class Roles:
    """The messages of a block, and the role of each of its tokens.

    Attributes:
        names: names of the roles.
        line, role: int64 [messages]: of every rendered message, also of rows that are later dropped or rejected; a
            message of two outputs counts in both.
        tokens: output name -> its rows, with a number for each token: `role + trained * (len(names) + 1)`. Both are 1 +
            the index of a role, or 0: the role of the first segment that covers the token, and of the first trained
            one.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=no_numbers)
    role: Array = field(default_factory=no_numbers)
    tokens: Mapping[str, Ragged] = field(default_factory=dict)

    def with_messages(self, names: tuple[str, ...], line: Array, messages: Ragged) -> "Roles":
        """Adds the messages of another output.

        Args:
            names: names of the roles, which all outputs share.
            line: int64 [rows].
            messages: int64, the role of every message, by row.
        """
        lines = np.append(self.line, np.repeat(line, messages.lengths))
        return replace(self, names=names, line=lines, role=np.append(self.role, messages.flat))

    def with_tokens(self, name: str, rows: Ragged, segments: Segments, trained: Array) -> "Roles":
        """Adds the tokens of another output; `trained`: bool [segments]."""
        known = segments.role != UNSET
        if not known.any():
            return self
        size = len(segments.roles) + 1
        numbers = (segments.role + 1).astype(np.min_scalar_type(size * size))
        flat = painted(segments, np.flatnonzero(known), numbers, len(rows.flat))
        flat += painted(segments, np.flatnonzero(known & trained), numbers * numbers.dtype.type(size), len(rows.flat))
        return replace(self, tokens={**self.tokens, name: rows.with_flat(flat)})

    def mapped(self, change: Callable[[Ragged], Ragged]) -> "Roles":
        """The roles of other rows: `change` makes them of the rows of each output."""
        return replace(self, tokens={name: change(rows) for name, rows in self.tokens.items()})

    def count(self, line: Array) -> "RoleCounts":
        """Counts the messages of all lines, and the tokens of the rows; `line`: int32 [rows]."""
        size = len(self.names) + 1
        found, messages = np.unique(self.line * size + self.role, return_inverse=True)
        counts = np.zeros((3, len(found)), np.int64)
        counts[0] = np.bincount(messages, minlength=len(found))
        for rows in self.tokens.values():
            row, numbers, lengths = _runs(rows)
            for place, role in ((1, numbers % size - 1), (2, numbers // size - 1)):
                known = role >= 0
                entries = np.searchsorted(found, line[row[known]] * size + role[known])
                counts[place] += np.bincount(entries, lengths[known], len(found)).astype(np.int64)
        return RoleCounts(_short(self.names), *np.divmod(found, size), counts)


def _runs(rows: Ragged) -> tuple[Array, Array, Array]:
    """(row, value, length) of each run of equal values within a row."""
    flat, borders = rows.flat, rows.flat_offsets
    begins = np.zeros(len(flat) + 1, bool)
    begins[1:-1] = flat[1:] != flat[:-1]
    begins[borders] = True
    starts = np.flatnonzero(begins)
    row = np.searchsorted(borders, starts[:-1], side="right") - 1
    return row, flat[starts[:-1]].astype(np.int64), np.diff(starts)


def painted(segments: Segments, places: Array, values: Array, size: int) -> Array:
    """The values of some segments on each of their tokens, 0 on other tokens.

    Args:
        segments: the segments of an output.
        places: int64, ascending: the chosen segments. A token that several have gets the value of the first.
        values: one for each of all segments; the result has their dtype.
        size: number of tokens of the output.
    """
    places = places[np.argsort(segments.start[places], kind="stable")]
    start, stop = segments.start[places], segments.stop[places]
    start = np.maximum(start, np.maximum.accumulate(np.append(0, stop))[:-1])
    filled = start < stop
    places, start, stop = places[filled], start[filled], stop[filled]
    found = np.zeros(2 * len(places) + 1, values.dtype)
    found[1::2] = values[places]
    borders = np.concatenate([[0], np.column_stack([start, stop]).ravel(), [size]])
    return np.repeat(found, np.diff(borders))


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Names for a receipt: cut to `NAME_LIMIT`, and valid UTF-8."""
    return tuple(name[:NAME_LIMIT].encode("utf-8", "backslashreplace").decode() for name in names)


ROLE_COUNTS = ("messages", "tokens", "trained")
"""The counts of each role."""


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """Messages and tokens of each role in each line of a block.

    Attributes:
        names: names of the roles.
        line, role: int64 [entries], ascending by line.
        counts: int64 [3, entries], see `ROLE_COUNTS`.
    """

    names: tuple[str, ...] = ()
    line: Array = field(default_factory=no_numbers)
    role: Array = field(default_factory=no_numbers)
    counts: Array = field(default_factory=lambda: np.zeros((3, 0), np.int64))

    def without(self, lines: Array) -> "RoleCounts":
        """The counts without the tokens of these lines. Their messages stay counted."""
        counts = self.counts.copy()
        counts[1:, np.isin(self.line, lines)] = 0
        return replace(self, counts=counts)

    def sums(self, lines: int) -> dict[str, Counter[str]]:
        """`messages`, `tokens` and `trained` tokens by role, of the first lines."""
        stop = int(np.searchsorted(self.line, lines))
        totals = {what: Counter[str]() for what in ROLE_COUNTS}
        for total, counts in zip(totals.values(), self.counts, strict=True):
            sums = np.bincount(self.role[:stop], counts[:stop], len(self.names)).tolist()
            for name, count in zip(self.names, sums, strict=True):
                total[name] += int(count)
        return totals


CUT_TOKENS = "truncated_tokens"
"""The counter of tokens that rows lost because they were too long."""


@dataclass(slots=True)
class Batch(Block):
    """Rows of tokens of a block.

    >>> from beam_prep.tokens.tokenize import from_tokens
    >>> output = bp.Output("sequence", "ids", (bp.Section("input_ids", "train"),), mask_name="loss_mask")
    >>> records = bp.testing.records([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    >>> batch = from_tokens(records, output, max_id=9)
    >>> batch["sequence"].to_lists()
    [[5, 6, 7], [8]]
    >>> bp.testing.to_rows(batch.drop(batch["sequence"].lengths < 2, "short"))
    [{'sequence': [5, 6, 7], 'loss_mask': [1, 1, 1]}]

    Attributes:
        outputs: the outputs of each record.
        domain: one domain name for each row.
        columns: column name -> rows. Ids are int32, masks uint8 (0, 1), labels int32, values float64. `Shard` converts
            them to the dtypes of the config.
        schema: column name -> its description. (`dtype` is the final dtype.)
        segments: output name -> its segments; empty after BuildMask.
        counters: name -> int64 [rows], counts of events in kept rows.
        roles: the messages of each role, and the role of each token.
    """

    outputs: tuple[Output, ...] = ()
    domain: list[str] = field(default_factory=list)
    columns: dict[str, Ragged] = field(default_factory=dict)
    schema: dict[str, Column] = field(default_factory=dict)
    segments: dict[str, Segments] = field(default_factory=dict)
    counters: dict[str, Array] = field(default_factory=dict)
    roles: Roles = field(default_factory=Roles)

    def __getitem__(self, name: str) -> Ragged:
        return self.columns[name]

    @property
    def tokens(self) -> Array:
        """int64 [rows]: tokens of each row's first output of ids, which measures shards."""
        return self._tokens_by_output()[0]

    @property
    def lengths(self) -> Array:
        """int64 [rows]: tokens of each row, in all outputs of ids."""
        return np.asarray(np.sum(self._tokens_by_output(), axis=0))

    def _tokens_by_output(self) -> list[Array]:
        found = [self.columns[name].flat_lengths for name, column in self.schema.items() if column.role == "ids"]
        return found or [np.zeros(len(self), np.int64)]

    def _lengths(self) -> Iterator[tuple[str, int]]:
        yield "domains", len(self.domain)
        yield from ((f"column {name!r}", len(rows)) for name, rows in self.columns.items())
        yield from ((f"counter {name!r}", len(counts)) for name, counts in self.counters.items())
        yield from ((f"the roles of {name!r}", len(rows)) for name, rows in self.roles.tokens.items())

    def assign(self, column: Column, rows: Ragged) -> "Batch":
        """The batch with a column added or replaced."""
        if len(rows) != len(self):
            raise ValueError(f"column {column.name!r} has {len(rows)} rows, the batch {len(self)}")
        return self._with(columns={**self.columns, column.name: rows}, schema={**self.schema, column.name: column})

    def take(self, rows: Array) -> "Batch":
        """The rows of a bool mask [rows]."""
        if rows.all():
            return self
        picked = np.flatnonzero(rows)
        return self._with(
            line=self.line[rows],
            row=None if self.row is None else self.row[rows],
            domain=[self.domain[row] for row in picked.tolist()],
            columns={name: column.take(rows) for name, column in self.columns.items()},
            counters={name: counts[rows] for name, counts in self.counters.items()},
            segments={name: found.of_rows(self.columns[name], rows) for name, found in self.segments.items()},
            roles=self.roles.mapped(lambda roles: roles.take(picked)),
        )

    def count(self, name: str, per_row: Array, once: bool = False) -> None:
        """Adds to a counter of rows. `once`: `per_row` is bool, and a row counts at most once."""
        if per_row.any():
            before = self.counters.get(name, 0)
            self.counters[name] = (np.maximum if once else np.add)(before, per_row.astype(np.int64))

    def drop(self, rows: Array, reason: str) -> "Batch":
        """The batch without the rows of a bool mask. The ledger marks their lines as dropped.

        A record that keeps other rows is kept; the counter `rows_dropped` counts its lost rows.

        Raises:
            ValueError: `rows` is no such mask.
        """
        rows = self._checked(rows)
        left = self._without(rows)
        if left is not self:
            lines = self.line[rows]
            left.ledger.drop(np.setdiff1d(lines, left.line), reason)
            if self.row is not None:
                first = np.append(True, np.diff(left.line) > 0)[: len(left)]
                lost = np.bincount(lines, minlength=len(left.ledger.status))[left.line]
                left.count("rows_dropped", np.where(first, lost, 0))
        return left

    def reject_each(self, reasons: Mapping[int, tuple[str, str]]) -> "Batch":
        """The batch without some rows. Rejects their records: row -> (reason, message)."""
        rows = np.zeros(len(self), bool)
        rows[list(reasons)] = True
        left = self._without(self._of_same_records(rows))
        for row, (reason, message) in reasons.items():
            left.ledger.reject(int(self.line[row]), reason, message)
        return left

    def reject(self, rows: Array, reason: str, message: str) -> "Batch":
        """The batch without the rows of a bool mask. Rejects their records.

        Raises:
            ValueError: `rows` is no such mask.
        """
        return self.reject_each(dict.fromkeys(np.flatnonzero(self._checked(rows)).tolist(), (reason, message)))

    def _checked(self, rows: Array) -> Array:
        """`rows` as a bool mask: numbers of rows would take out other rows, or none."""
        found = np.asarray(rows)
        if found.shape != (len(self),) or (found.dtype != bool and len(self)):  # an array of [] has floats
            raise ValueError(f"rows is {found.dtype} {found.shape}, wanted a bool mask [{len(self)}]: `numbers > 0`")
        return found.astype(bool)

    def _of_same_records(self, rows: Array) -> Array:
        """bool [rows]: these rows, and all other rows of their records."""
        return np.isin(self.line, self.line[rows]) if self.row is not None else rows

    def _without(self, rows: Array) -> "Batch":
        """The other rows, with a copy of the ledger: another step may use this batch."""
        if not rows.any():
            return self
        left = self.take(~rows)
        left.ledger = self.ledger.copy()
        return left

    def _with(self, **changes: object) -> "Batch":
        values: dict[str, Any] = {"counters": dict(self.counters), **changes}
        return replace(self, **values)


@step
def in_domain(batch: Batch, domain: str) -> Batch:
    """Puts all rows into this domain, whatever their records say."""
    return replace(batch, domain=[domain] * len(batch))


# The role of every token, as columns of a block, for pages that show them. A run does not make these columns.

_ROLES = "\0roles"  # no user's column has such a name


def is_role_column(column: Column) -> bool:
    """True for the columns that `with_roles` adds."""
    return column.name.endswith(_ROLES)


def with_roles(batch: Batch) -> Batch:
    """The rows after all steps, with a column of roles for each output of ids that has messages.

    A value is 1 + the index of the role in `batch.roles.names`; 0 if the token belongs to no message. A token that two
    messages share belongs to the first one.
    """
    made, size = batch, len(batch.roles.names) + 1
    sources = dict(zip(PROMPT_COMPLETION, ("chosen", "rejected", "chosen"), strict=True))
    if "labels" in batch.schema:
        sources["input_ids"] = batch.outputs[0].name
    for name, column in batch.schema.items():
        source = sources.get(name, name)
        if source in batch.roles.tokens and column.role == "ids":
            rows, lengths = batch.roles.tokens[source], batch[name].lengths
            # Completions are the last tokens of a row.
            begin = rows.lengths - lengths if name in PROMPT_COMPLETION[:2] else 0
            roles = rows.with_flat(rows.flat % size).cut(begin, lengths)
            made = made.assign(Column(f"{name}{_ROLES}", "int32", roles.depth, "token_value", name), roles)
    return made


# Batches of one block by two backends: which cached blocks may be used again, and what differs.

Check = Literal["sample", "full"]

IN_FULL = "blocks_checked_in_full"
"""The entry in `Block.made` of a block that was compared completely with the reference."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Which cached blocks a run may use, by how they were made.

    Attributes:
        backend: `transformers`: not those that another backend encoded, unless they were checked in full.
        check: `full`: only those that were checked in full.
    """

    backend: str = "auto"
    check: Check = "sample"

    def holds(self, made: Mapping[str, int]) -> bool:
        """True if a block may be used.

        Args:
            made: see `Block`.
        """
        fast = self.backend == "transformers" and "encoded_by_gigatoken" in made
        return IN_FULL in made or (self.check == "sample" and not fast)


def first_difference(batch: Batch, reference: Batch) -> tuple[int, str] | None:
    """(line, difference) of the first line on which two batches of a block differ; None if they are equal.

    Compares the outcome of each line, messages of rejects, domains, counters, and every value of every column
    with its type. Neither batch may have segments left.
    """
    if len(batch) and len(reference) and batch.schema != reference.schema:
        return int(batch.line[0]), f"found the columns {batch.schema}, wanted {reference.schema}"
    lines = zip_longest(_lines(batch), _lines(reference), fillvalue={"outcome": "no line"})
    for line, (mine, theirs) in enumerate(lines):
        for what in dict.fromkeys([*mine, *theirs]):
            one, other = mine.get(what, "nothing"), theirs.get(what, "nothing")
            if one != other:
                pairs = enumerate(zip_longest(one, other))
                at = max(0, next(place for place, (a, b) in pairs if a != b) - _BEFORE)
                return line, f"{what}: found {one[at : at + _SHOWN]!r}, wanted {other[at : at + _SHOWN]!r}"
    return None


_BEFORE, _SHOWN = 20, 80  # characters


def _lines(batch: Batch) -> list[dict[str, str]]:
    """For each line: its outcome, and the values of its rows, by name."""
    ledger = batch.ledger
    rows = np.bincount(batch.line, minlength=len(ledger.status)).tolist()
    words = [f"{kind} ({reason})" for kind, reason in ledger.outcomes]
    codes = zip(ledger.status.tolist(), rows, strict=True)
    found = [{"outcome": words[code - 1] if code else f"rows: {count}"} for code, count in codes]
    for line, message in ledger.messages.items():
        found[line]["outcome"] += f": {message}"
    for row, line in enumerate(batch.line.tolist()):
        of = "" if batch.row is None else f"row {batch.row[row]}, "
        found[line][f"{of}domain"] = batch.domain[row]
        found[line] |= {f"{of}counter {name!r}": str(each[row]) for name, each in batch.counters.items() if each[row]}
        found[line] |= {f"{of}column {name!r}": _shown(values, row) for name, values in batch.columns.items()}
    return found


def _shown(rows: Ragged, row: int) -> str:
    return f"{rows.flat.dtype} {rows[row : row + 1].to_lists()[0]}"
