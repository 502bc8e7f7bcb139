"""The role of every token, as columns of a block, for pages that show them. A run does not make these columns."""

import numpy as np

from beam_prep.data.ragged import Ragged
from beam_prep.data.rendered import UNSET
from beam_prep.data.schema import PROMPT_COMPLETION, Column
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.segments import painted

_ROLES, _LABEL_ROLES = "\0roles", "\0label roles"  # no user's column has such a name


def is_role_column(column: Column) -> bool:
    """True for the columns that this module adds."""
    return column.name.endswith((_ROLES, _LABEL_ROLES))


def is_role_of(column: Column, ids: str, labels: bool = False) -> bool:
    """True for the roles of a column of ids; `labels`: of its shifted labels, whose last token is not among the ids."""
    return column.of == ids and column.name.endswith(_LABEL_ROLES if labels else _ROLES)


def with_roles(tokenized: Batch, masked: Batch) -> Batch:
    """The batch of BuildMask with a column of roles, int32, for each output that has messages.

    A value is 1 + the index of the role in `masked.roles.names`; 0 if the token belongs to no message, or if the
    message is uncertain. A token that two messages share belongs to the first one.

    Args:
        tokenized: the block before BuildMask.
        masked: the block after it; rows may have been rejected.
    """
    batch = masked
    for name, segments in tokenized.segments.items():
        rows = tokenized.columns[name]
        if (segments.role != UNSET).any():
            certain = np.flatnonzero((segments.role != UNSET) & (segments.refused == 0))
            roles = rows.with_flat(painted(segments, certain, segments.role.astype(np.int32) + 1, len(rows.flat)))
            kept = np.isin(tokenized.line, masked.line)
            batch = _assigned(batch, name, roles.take(kept))
    return batch


def without_roles(batch: Batch) -> Batch:
    """The batch without the columns of this module, as the steps of a run expect it."""
    kept = [name for name, column in batch.schema.items() if not is_role_column(column)]
    return batch._with(
        columns={name: batch.columns[name] for name in kept}, schema={name: batch.schema[name] for name in kept}
    )


def followed(before: Batch, after: Batch) -> Batch:
    """Adds the roles to a block that Labels, Shift or SplitPrompt made.

    Args:
        before: the block before the step, with roles.
        after: the result of the step, without roles.
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
        batch = _assigned(batch, "input_ids", rows.cut(0, ids.lengths))
        if after.schema["labels"].shifted:
            batch = _assigned(batch, "input_ids", rows.cut(rows.lengths - ids.lengths, ids.lengths), _LABEL_ROLES)
    elif PROMPT_COMPLETION[0] in after.columns:
        for name, side in zip(PROMPT_COMPLETION, ("chosen", "rejected", "chosen"), strict=True):
            if side in roles:
                rows, lengths = roles[side], after[name].lengths
                begin = 0 if name == PROMPT_COMPLETION[2] else rows.lengths - lengths
                batch = _assigned(batch, name, rows.cut(begin, lengths))
    return batch


def _assigned(batch: Batch, of: str, roles: Ragged, ending: str = _ROLES) -> Batch:
    return batch.assign(Column(f"{of}{ending}", "int32", roles.depth, "token_value", of), roles)
