"""`Batch`: rows of tokens as named ragged columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from beam_prep.data.block import Block, step
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column, Output
from beam_prep.tokens.segments import Roles, Segments

CUT_TOKENS = "truncated_tokens"
"""The counter of tokens that rows lost because they were too long."""


@dataclass(slots=True)
class Batch(Block):
    """Rows of tokens of a block.

    >>> from beam_prep.tokens.tokenized import from_tokens
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
        for name, column in self.schema.items():
            if column.role == "ids":
                return self.columns[name].flat_lengths
        return np.zeros(len(self), np.int64)

    @property
    def lengths(self) -> Array:
        """int64 [rows]: tokens of each row, in all outputs of ids."""
        found = [self.columns[name].flat_lengths for name, column in self.schema.items() if column.role == "ids"]
        return np.sum(found, axis=0) if found else np.zeros(len(self), np.int64)

    @property
    def uncut(self) -> Array:
        """int64 [rows]: `lengths` before any row was cut."""
        return self.lengths + self.counters.get(CUT_TOKENS, 0)

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
        """
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
        """The batch without the rows of a bool mask. Rejects their records."""
        return self.reject_each(dict.fromkeys(np.flatnonzero(rows).tolist(), (reason, message)))

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
