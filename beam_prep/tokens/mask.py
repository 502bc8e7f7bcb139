"""Loss masks: decided for each segment, written for each token, without a Python loop over either."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array
from beam_prep.data.rendered import BY_ROLE, MASK, TRAIN, UNSET
from beam_prep.data.schema import NO_LOSS, PART_KINDS, Column, DefaultRule, MaskOptions, RoleRule
from beam_prep.tokens.batch import CUT_TOKENS, Batch, Segments, painted

RowsWithoutLoss = Literal["drop", "keep", "reject"]
MaskPolicy = Callable[[Segments], Array]
"""segments -> bool [segments]: True for the trained segments."""


@dataclass(frozen=True, slots=True)
class RoleMask:
    """The mask policy of a config: a section's action, and for `$role` the message's role.

    >>> rule = bp.RoleMask({"assistant": "last"}, default="mask")
    >>> one, zero = np.ones(3, int), np.zeros(3, int)
    >>> segments = bp.Segments(
    ...     start=np.array([0, 4, 9]), stop=np.array([4, 9, 12]), sequence=zero, action=2 * one,
    ...     role=np.array([0, 1, 1]), turn=np.array([0, 1, 2]), own=-one, refused=zero, roles=("user", "assistant"),
    ... )
    >>> rule(segments).tolist()
    [False, False, True]

    Attributes:
        roles: role -> `train`, `mask`, or `last` (only the last message of that role).
        default: the rule of roles that `roles` leaves out.
        options: what is trained within messages, if `Segments` tell kinds of text apart; None: all text.

    A message's own `train` or `weight` key wins, except in a section whose action is `mask`.
    """

    roles: Mapping[str, RoleRule] = field(default_factory=dict)
    default: DefaultRule = "mask"
    options: MaskOptions | None = None

    def __call__(self, segments: Segments) -> Array:
        rules = [self.roles.get(role, self.default) for role in segments.roles]
        train = np.array([rule == "train" for rule in rules] + [False])
        trained = np.where(segments.action == BY_ROLE, train[segments.role], segments.action == TRAIN)
        if "last" in rules:
            last = np.array([rule == "last" for rule in rules] + [False])
            trained |= (segments.action == BY_ROLE) & last[segments.role] & segments.is_last_of_role()
        own = (segments.own != UNSET) & (segments.action != MASK)
        trained = np.where(own, segments.own == 1, trained)
        if self.options is None or segments.kind is None:
            return trained
        masked = [code for code, kind in enumerate(PART_KINDS) if getattr(self.options, kind, None) == "mask"]
        return trained & ~np.isin(segments.kind, masked)


@step
def build_mask(batch: Batch, policy: MaskPolicy) -> Batch:
    """Adds the loss mask of every output that has one: uint8, 1 for trained tokens.

    A token is trained if any trained segment covers it. An output with weights also gets its weights column: float32,
    the weight of the first trained segment that covers the token, otherwise 0. Tokens of weight 0 are not trained.

    Raises:
        ValueError: the policy does not return one bool for each segment, or masks were built before.
    """
    columns, schema = {}, {}
    refused: dict[int, tuple[str, str]] = {}
    roles = batch.roles
    for name, rows in batch.columns.items():
        columns[name], schema[name] = rows, batch.schema[name]
        output = next(output for output in batch.outputs if output.name == name)
        if output.mask_name is None:
            if name in batch.segments:
                untrained = np.zeros(len(batch.segments[name]), bool)
                roles = roles.with_tokens(name, rows, batch.segments[name], untrained)
            continue
        if name not in batch.segments:
            raise ValueError(f"no segments for {name!r}: BuildMask comes once, directly after Tokenize")
        segments = batch.segments[name]
        trained = np.asarray(policy(segments))
        if trained.dtype != bool or trained.shape != (len(segments),):
            raise ValueError(
                f"a mask policy gives bool [{len(segments)}], one a segment; "
                f"{policy!r} gave {trained.dtype} {trained.shape}"
            )
        if segments.weight is not None:
            trained = trained & (segments.weight > 0)
        roles = roles.with_tokens(name, rows, segments, trained)
        places = np.flatnonzero(trained)
        ones = np.ones(len(segments), np.uint8)
        columns[output.mask_name] = rows.with_flat(painted(segments, places, ones, len(rows.flat)))
        schema[output.mask_name] = Column(output.mask_name, "int32", rows.depth, "mask", of=name)
        if output.weights_name is not None and segments.weight is not None:
            weights = painted(segments, places, segments.weight.astype(np.float32), len(rows.flat))
            columns[output.weights_name] = rows.with_flat(weights)
            schema[output.weights_name] = Column(output.weights_name, "float32", rows.depth, "weights", of=name)
        for segment in np.flatnonzero(trained & (segments.refused > 0)).tolist():
            row = int(segments.sequence[segment])
            if rows.depth != 1:
                row = int(np.searchsorted(rows.offsets, row, side="right")) - 1
            reason, why = segments.reasons[int(segments.refused[segment]) - 1]
            turn = int(segments.turn[segment])
            refused.setdefault(row, (reason, f"what is trained of message {turn} cannot be told: {why}"))
    masked = batch._with(columns=columns, schema=schema, segments={}, roles=roles)
    return masked.reject_each(refused) if refused else masked


def trained_tokens(batch: Batch) -> dict[str, Array]:
    """Column of masks or labels -> int64 [rows]: trained tokens of each row."""
    counts = {}
    for name, column in batch.schema.items():
        if column.role in ("mask", "labels"):
            counts[name] = batch[name].sums(batch[name].flat != NO_LOSS[column.role])
    return counts


def reject_equal_sides(batch: Batch) -> Batch:
    """Rejects preference rows with equal chosen and rejected sides (`equal_sides`).

    If such a row was cut, its sides differed before: see `truncate`.
    """
    one, other = (batch.columns.get(name) for name in ("chosen", "rejected"))
    if one is None or other is None or one.depth != 1 or other.depth != 1:
        return batch
    equal = (one.lengths == other.lengths) & (one.common(other) == one.lengths)
    lost = batch.counters.get(CUT_TOKENS, np.zeros(len(batch), np.int64))
    why = "wanted a difference", "all that differs is cut off: wanted a larger max_seq_len"
    return batch.reject_each(
        {
            row: ("equal_sides", f"chosen and rejected are the same tokens, {why[bool(lost[row])]}")
            for row in np.flatnonzero(equal).tolist()
        }
    )


def drop_rows_without_loss(batch: Batch, rows_without_loss: RowsWithoutLoss) -> Batch:
    """Drops, keeps or rejects rows with an output that has nothing to train on, after all cutting."""
    if rows_without_loss == "keep":
        return batch
    never = {output.mask_name for output in batch.outputs if not output.trains}
    counts = [per_row for name, per_row in trained_tokens(batch).items() if name not in never]
    if not counts:
        return batch
    bare = (np.array(counts) == 0).any(axis=0)
    if rows_without_loss == "drop":
        return batch.drop(bare, "rows_without_loss")
    return batch.reject(bare, "rows_without_loss", "nothing of the record is trained (after cutting)")


# Without a trained end token, a model does not learn to stop.

NEAR = 3
"""The end token is among this many last tokens of a turn: ChatML writes a line end after it."""
_SHOWN = 16


def endless_roles(
    batches: Iterable[Batch], policy: MaskPolicy, ends: Collection[int], decode: Callable[[list[int]], str]
) -> dict[str, list[int]]:
    """Role -> the last ids of its first trained turn, for the trained roles of which no turn ends with an end token.

    Args:
        batches: results of `tokenize`, with their segments.
        policy: decides what is trained.
        ends: ids of tokens that may end a turn, if only blanks stand behind them in the turn.
        decode: ids -> text.
    """
    found, known, wanted = dict[str, list[int]](), set[str](), np.array(sorted(ends), np.int64)
    for batch, output in ((each, output) for each in batches for output in each.outputs):
        if output.mask_name is None or output.name not in batch.segments:
            continue
        segments, flat = batch.segments[output.name], batch[output.name].flat
        trained = np.asarray(policy(segments)) & (segments.stop > segments.start) & (segments.role >= 0)
        is_end = np.isin(flat, wanted)
        for place in np.flatnonzero(trained).tolist():
            role = segments.roles[segments.role[place]]
            start, stop = int(segments.start[place]), int(segments.stop[place])
            near = np.flatnonzero(is_end[max(start, stop - NEAR) : stop][::-1])  # tokens behind each end token
            if len(near) and not decode(flat[stop - near[0] : stop].tolist()).strip():
                known.add(role)
            elif role not in found:
                found[role] = flat[max(start, stop - _SHOWN) : stop].tolist()
    return {role: each for role, each in found.items() if role not in known}
