"""The role of every token, as columns of a block, for pages that show them. A run does not make these columns."""

from beam_prep.data.schema import PROMPT_COMPLETION, Column
from beam_prep.tokens.batch import Batch

_ROLES, _LABEL_ROLES = "\0roles", "\0label roles"  # no user's column has such a name


def is_role_column(column: Column) -> bool:
    """True for the columns that this module adds."""
    return column.name.endswith((_ROLES, _LABEL_ROLES))


def is_of_labels(column: Column) -> bool:
    """True for the roles of shifted labels, whose last token is not among the ids."""
    return column.name.endswith(_LABEL_ROLES)


def with_roles(batch: Batch) -> Batch:
    """The rows after all steps, with a column of roles for each output of ids that has messages, and for labels.

    A value is 1 + the index of the role in `batch.roles.names`; 0 if the token belongs to no message. A token that two
    messages share belongs to the first one.
    """
    made, size = batch, len(batch.roles.names) + 1
    sources = dict(zip(PROMPT_COMPLETION, ("chosen", "rejected", "chosen"), strict=True))
    if "labels" in batch.schema:
        sources |= dict.fromkeys(("input_ids", "labels"), batch.outputs[0].name)
    for name, column in batch.schema.items():
        of_labels = column.role == "labels" and column.shifted
        source = sources.get(name, name)
        if source not in batch.roles.tokens or not (column.role == "ids" or of_labels):
            continue
        rows, lengths = batch.roles.tokens[source], batch[name].lengths
        # Completions, and shifted labels, are the last tokens of a row.
        at_end = of_labels or name in PROMPT_COMPLETION[:2]
        roles = rows.with_flat(rows.flat % size).cut(rows.lengths - lengths if at_end else 0, lengths)
        of = column.of or name
        ending = _LABEL_ROLES if of_labels else _ROLES
        made = made.assign(Column(f"{of}{ending}", "int32", roles.depth, "token_value", of), roles)
    return made


def without_roles(batch: Batch) -> Batch:
    """The batch without the columns of this module."""
    kept = {name: column for name, column in batch.schema.items() if not is_role_column(column)}
    return batch._with(columns={name: batch.columns[name] for name in kept}, schema=kept)
