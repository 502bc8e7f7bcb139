"""The role of every token, as columns of a block: for pages that show it. No run makes them."""

from dataclasses import replace

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import UNSET
from beam_prep.data.schema import PROMPT_COMPLETION, Column
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.segments import Segments, disjoint

_ROLES, _LABEL_ROLES = "\0roles", "\0label roles"  # no column of a user has such a name


def is_role_column(column: Column) -> bool:
    """True for the columns that this module adds."""
    return column.name.endswith((_ROLES, _LABEL_ROLES))


def is_of_labels(column: Column) -> bool:
    """True for the roles of shifted labels: the last one is of a token that the ids do not have."""
    return column.name.endswith(_LABEL_ROLES)


def with_roles(tokenized: Batch, masked: Batch) -> Batch:
    """The batch of BuildMask with a column of roles, int32, for each output that has messages.

    The numbers are 1 + the index of the role in `masked.roles.names`; 0 where a token belongs to no message, or where
    it is not certain which one. A token that two messages share is the first one's.

    Args:
        tokenized: the block before BuildMask.
        masked: the same after it; rows may have been rejected.
    """
    batch = masked
    for name, segments in tokenized.segments.items():
        rows = tokenized.columns[name]
        if (segments.role != UNSET).any():
            roles = rows.with_flat(_roles(segments, len(rows.flat)))
            kept = np.isin(tokenized.line, masked.line)
            batch = batch.assign(_column(name, rows.depth), roles.take(kept))
    return batch


def without_roles(batch: Batch) -> Batch:
    """The batch as the steps of a run know it."""
    kept = [name for name, column in batch.schema.items() if not is_role_column(column)]
    return batch._with(
        columns={name: batch.columns[name] for name in kept}, schema={name: batch.schema[name] for name in kept}
    )


def followed(before: Batch, after: Batch) -> Batch:
    """Roles for the columns that Labels, Shift or SplitPrompt made.

    Args:
        before: the block before the step, with roles.
        after: what the step made of it without them.
    """
    kept = np.isin(before.line, after.line)
    roles = {
        column.of: before.columns[name].take(kept)
        for name, column in before.schema.items()
        if is_role_column(column) and column.of is not None
    }
    batch = after
    if "input_ids" in after.columns and len(roles) == 1:
        (rows,), ids = roles.values(), after["input_ids"]
        batch = batch.assign(_column("input_ids", 1), _first(rows, ids.lengths))
        if after.schema["labels"].shifted:
            batch = batch.assign(
                replace(_column("input_ids", 1), name=f"input_ids{_LABEL_ROLES}"), _last(rows, ids.lengths)
            )
    elif PROMPT_COMPLETION[0] in after.columns:
        for name, side in zip(PROMPT_COMPLETION, ("chosen", "rejected", "chosen"), strict=True):
            if side in roles:
                part = _first if name == PROMPT_COMPLETION[2] else _last
                batch = batch.assign(_column(name, 1), part(roles[side], after[name].lengths))
    return batch


def _column(of: str, depth: int) -> Column:
    return Column(f"{of}{_ROLES}", "int32", depth, "token_value", of)


def _roles(segments: Segments, size: int) -> Array:
    """int32 [size]: 1 + the role of each token; 0 without."""
    places, start, stop = disjoint(segments, np.flatnonzero((segments.role != UNSET) & (segments.refused == 0)))
    some = start < stop
    places, start, stop = places[some], start[some], stop[some]
    lengths = np.diff(np.concatenate([[0], np.column_stack([start, stop]).ravel(), [size]]))
    roles = np.zeros(len(lengths), np.int32)
    roles[1::2] = segments.role[places] + 1
    return np.repeat(roles, lengths)


def _first(rows: Ragged, lengths: Array) -> Ragged:
    """The first values of each row, so many."""
    return _part(rows, np.zeros_like(lengths), lengths)


def _last(rows: Ragged, lengths: Array) -> Ragged:
    """The last values of each row, so many."""
    return _part(rows, rows.lengths - lengths, lengths)


def _part(rows: Ragged, start: Array, lengths: Array) -> Ragged:
    place = np.arange(len(rows.flat)) - np.repeat(rows.offsets[:-1], rows.lengths)
    begin = np.repeat(start, rows.lengths)
    kept = (place >= begin) & (place < begin + np.repeat(lengths, rows.lengths))
    return Ragged.from_lengths(rows.flat[kept], lengths)
