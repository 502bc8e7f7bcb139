"""Steps on rows of tokens: mask, labels, padding, truncation, the prompt of a pair."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array, Ragged, offsets_of, ranges
from beam_prep.data.rendered import BY_ROLE, MASK, TRAIN, UNSET
from beam_prep.data.schema import (
    IGNORE_INDEX,
    NO_LOSS,
    OF_RECORDS,
    PART_KINDS,
    PROMPT_COMPLETION,
    Column,
    DefaultRule,
    MaskOptions,
    RoleRule,
)
from beam_prep.errors import RunError
from beam_prep.hints import check_least
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


def check_masked(batch: Batch) -> None:
    """Raises ValueError if an output still waits for its mask: a later mask would be of other tokens, or of none."""
    for output in batch.outputs:
        if output.mask_name is not None and output.name in batch.segments:
            raise ValueError(f"{output.name!r} has no {output.mask_name!r} yet: put BuildMask directly after Tokenize")


def trained_tokens(columns: Iterable[Column], rows: Mapping[str, Ragged]) -> dict[str, Array]:
    """Column of masks or labels -> int64 [rows]: trained tokens of each row."""
    found = {}
    for column in columns:
        if column.role in ("mask", "labels"):
            marks = rows[column.name]
            found[column.name] = marks.sums(marks.flat != NO_LOSS[column.role])
    return found


def reject_equal_sides(batch: Batch) -> Batch:
    """Rejects preference rows with equal chosen and rejected sides (`equal_sides`).

    If such a row was cut, its sides differed before: see `truncate`.
    """
    one, other = (batch.columns.get(name) for name in ("chosen", "rejected"))
    if one is None or other is None or one.depth != 1 or other.depth != 1:
        return batch
    equal = (one.lengths == other.lengths) & (one.common(other) == one.lengths)
    why = "wanted a difference", "all that differs is cut off: wanted a larger max_seq_len"
    return _reject_sides(batch, equal, "equal_sides", "chosen and rejected are the same tokens, ", why)


def _reject_sides(batch: Batch, rows: Array, reason: str, said: str, why: tuple[str, str]) -> Batch:
    """Rejects preference rows; `why` ends the message, of rows that are whole and of those that were cut."""
    lost = batch.counters.get(CUT_TOKENS, np.zeros(len(batch), np.int64))
    rejected = np.flatnonzero(rows).tolist()
    return batch.reject_each({row: (reason, said + why[bool(lost[row])]) for row in rejected})


def drop_rows_without_loss(batch: Batch, rows_without_loss: RowsWithoutLoss) -> Batch:
    """Drops, keeps or rejects rows with an output that has nothing to train on, after all cutting."""
    if rows_without_loss == "keep":
        return batch
    never = {output.mask_name for output in batch.outputs if not output.trains}
    found = trained_tokens(batch.schema.values(), batch.columns)
    counts = [per_row for name, per_row in found.items() if name not in never]
    if not counts:
        return batch
    bare = (np.array(counts) == 0).any(axis=0)
    if rows_without_loss == "drop":
        return batch.drop(bare, "rows_without_loss")
    return batch.reject(bare, "rows_without_loss", "nothing of the record is trained (after cutting)")


@step
def to_labels(batch: Batch, shift: bool) -> Batch:
    """`sequence` and its mask -> `input_ids` and `labels`, int32, -100 without loss. Weights follow the labels.

    With `shift`, position i of a row's labels is the token that follows position i of its input_ids
    (`input_ids = ids[:-1]`, `labels = where(mask, ids, -100)[1:]`): for trainers that do not shift labels themselves.
    The models of transformers shift them. Rows of fewer than 2 tokens are rejected (`too_short_to_shift`).

    Raises:
        ValueError: the batch does not have exactly one output of ids with its mask; or see `check_masked`.
    """
    check_masked(batch)
    output = batch.outputs[0]
    if (
        len(batch.outputs) != 1
        or output.kind != "ids"
        or set(batch.columns) - {output.weights_name} - {output.mask_name} != {output.name}
    ):
        raise ValueError(f"labels are made of one sequence and its mask, the batch has {', '.join(batch.columns)}")
    if shift:
        message = "the record has fewer than 2 tokens, so no token follows another"
        batch = batch.reject(batch[output.name].lengths < 2, "too_short_to_shift", message)
    ids = batch[output.name]
    mask = batch.columns.get(output.mask_name or "")
    labels = ids if mask is None else ids.with_flat(np.where(mask.flat != 0, ids.flat, np.int32(IGNORE_INDEX)))
    columns = {"input_ids": ids, "labels": labels}
    schema = {
        "input_ids": Column("input_ids", "int32", 1, "ids"),
        "labels": Column("labels", "int32", 1, "labels", of="input_ids", shifted=shift),
    }
    if (name := output.weights_name) is not None:
        columns[name] = batch[name]
        schema[name] = replace(batch.schema[name], of="input_ids", shifted=shift)
    if shift:
        shorter = ids.lengths - 1
        columns = {each: rows.cut(0 if each == "input_ids" else 1, shorter) for each, rows in columns.items()}
    return batch._with(columns=columns, schema=schema)


ATTENTION_MASK = "attention_mask"


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads rows at their end.

    >>> padding = bp.Padding(multiple=4, pad_id=0)
    >>> ids = bp.Column("sequence", "int32", 1, "ids")
    >>> padded = padding.rows({"sequence": bp.Ragged.from_lists([[5, 6, 7], [8]])}, {"sequence": ids})
    >>> padded["sequence"].to_lists()
    [[5, 6, 7, 0], [8, 0, 0, 0]]
    >>> padded["attention_mask"].to_lists()
    [[1, 1, 1, 0], [1, 0, 0, 0]]

    Attributes:
        multiple: tokens; a row is padded to the next multiple, an empty row to `multiple` tokens.
        pad_id: the id of the added tokens.
        tokens_at_once: of the class: padded tokens of a column in a part of `in_parts` (4 MB). A longer row is a part
            by itself.

    Raises:
        ValueError: `multiple` is less than 1, or `pad_id` less than 0.
    """

    multiple: int
    pad_id: int
    tokens_at_once: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        check_least(1, multiple=self.multiple)
        check_least(0, pad_id=self.pad_id)

    def lengths(self, lengths: Array) -> Array:
        """int64 [rows]: the padded lengths of rows of these lengths."""
        return np.asarray(-(-np.maximum(lengths, 1) // self.multiple) * self.multiple)

    def check(self, schema: Mapping[str, Column]) -> None:
        """Raises ValueError if a column holds lists or values, or if an ids column's dtype cannot hold the pad id."""
        for name, column in schema.items():
            if not column.of_tokens and not column.metadata:
                raise ValueError(f"column {name!r} holds lists or values; only sequences of one output can be padded")
            if column.role == "ids" and self.pad_id > np.iinfo(column.dtype).max:
                raise ValueError(f"column {name!r}: the pad id {self.pad_id} does not fit {column.dtype}: use int32")

    def rows(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> dict[str, Ragged]:
        """The padded columns, and an `attention_mask` (uint8, 1 = a real token).

        Ids are filled with `pad_id`, masks with 0, labels with -100. The position decides, not the pad id, which is
        often the EOS of an answer.

        Raises:
            ValueError: see `check`; or columns have rows of different lengths, so one `attention_mask` is not enough.
        """
        self.check(schema)
        lengths = next(iter(columns.values())).lengths
        offsets = offsets_of(self.lengths(lengths))
        moved = offsets[:-1] - offsets_of(lengths)[:-1]
        place = np.arange(lengths.sum()) + np.repeat(moved, lengths)

        def filled(values: Array, fill: int) -> Ragged:
            found = np.full(offsets[-1], fill, values.dtype)
            found[place] = values
            return Ragged(found, offsets)

        padded = {}
        fillers = {"ids": self.pad_id, "labels": IGNORE_INDEX}
        for name, rows in columns.items():
            if schema[name].metadata:
                padded[name] = rows
                continue
            if not np.array_equal(rows.lengths, lengths):
                raise ValueError(f"column {name!r} has other lengths than the first; only one output can be padded")
            padded[name] = filled(rows.flat, fillers.get(schema[name].role, 0))
        padded[ATTENTION_MASK] = filled(np.ones(len(place), np.uint8), 0)
        return padded

    def in_parts(self, columns: Mapping[str, Ragged], schema: Mapping[str, Column]) -> Iterator[dict[str, Ragged]]:
        """`rows` in parts of `tokens_at_once`: padded short rows take a hundred times their memory."""
        for part in ranges(self.lengths(next(iter(columns.values())).lengths), self.tokens_at_once):
            yield self.rows({name: rows[part] for name, rows in columns.items()}, schema)


@step
def pad(batch: Batch, multiple: int, pad_id: int) -> Batch:
    """Pads the rows of a block, see `Padding`.

    Raises:
        ValueError: rows of lists or values cannot be padded; or see `check_masked`.
    """
    check_masked(batch)
    columns = Padding(multiple, pad_id).rows(batch.columns, batch.schema)
    mask = Column(ATTENTION_MASK, "int32", 1, "attention")
    return batch._with(columns=columns, schema={**batch.schema, ATTENTION_MASK: mask})


SIDES = ("chosen", "rejected")


@step
def split_prompt(batch: Batch, rows_without_loss: RowsWithoutLoss = "drop") -> Batch:
    """`chosen`, `rejected` and their masks -> the completions `chosen_ids` and `rejected_ids`, and `prompt_ids`.

    The prompt is the tokens before the first trained one; all later tokens must be trained. Rows with nothing to train
    on are dropped or rejected, by `rows_without_loss`; `keep` drops them, too, because they have no completion.
    Rejects: `equal_sides`; `prompt_differs`: the sides have different prompts; `not_prompt_first`: a token after the
    first trained one is not trained.

    Raises:
        ValueError: the batch has other columns.
    """
    masks = [next((o.mask_name for o in batch.outputs if o.name == side), None) for side in SIDES]
    if None in masks or set(batch.columns) != {*SIDES, *masks}:
        raise ValueError(
            f"prompts are split off chosen and rejected with masks, the batch has {', '.join(batch.columns)}"
        )
    batch = drop_rows_without_loss(reject_equal_sides(batch), "reject" if rows_without_loss == "reject" else "drop")
    prompt, other = (_prompt_sizes(batch[str(mask)]) for mask in masks)
    mixed = (prompt < 0) | (other < 0)
    common = batch[SIDES[0]].common(batch[SIDES[1]])
    differs = ~mixed & ((prompt != other) | (common < prompt))
    hole = 'a token after the first trained one is not trained; "action": "train" for both sides trains all of them'
    batch = batch.reject(mixed, "not_prompt_first", hole)
    why = "", " once they are cut: wanted a larger max_seq_len, or truncation_mode 'keep_start' or 'drop'"
    said = "chosen and rejected do not begin with the same prompt"
    batch = _reject_sides(batch, differs[~mixed], "prompt_differs", said, why)
    prompt = prompt[~mixed & ~differs]
    columns: dict[str, Any] = {
        name: batch[side].cut(prompt, batch[side].lengths - prompt)
        for name, side in zip(PROMPT_COMPLETION[:2], SIDES, strict=True)
    }
    columns[PROMPT_COMPLETION[2]] = batch[SIDES[0]].cut(0, prompt)
    return batch._with(columns=columns, schema={name: Column(name, "int32", 1, "ids") for name in columns})


def _prompt_sizes(mask: Ragged) -> Array:
    """int64 [rows]: tokens before the first trained one; -1 if a later one is not trained. Every row trains one."""
    trained = mask.sums(mask.flat != 0)
    size = mask.lengths - trained
    places = np.arange(len(mask.flat)) - np.repeat(mask.offsets[:-1], mask.lengths)
    at_end = mask.sums((mask.flat != 0) & (places >= np.repeat(size, mask.lengths)))
    return np.where(at_end == trained, size, -1)


TruncationMode = Literal["keep_start", "keep_end", "drop", "error"]


@step
def truncate(
    batch: Batch,
    max_seq_len: int,
    mode: TruncationMode = "keep_start",
    eos_id: int | None = None,
    setting: str = "max_seq_len",
) -> Batch:
    """Cuts sequences (in lists: elements) to `max_seq_len` tokens, with their masks.

    Args:
        batch: rows of tokens.
        max_seq_len: tokens.
        mode: `keep_start` keeps the first tokens, `keep_end` the last, `drop` drops the record (counted as `too_long`),
            `error` fails the run.
        eos_id: the token that ends an answer.
        setting: the config's name for this length, for messages.

    Counters of kept rows: `truncated_rows`, `truncated_tokens` (ids), and `truncated_eos`: rows that lost their final
    EOS, so that a model does not learn from them where to stop. A row that is cut twice counts once.

    Raises:
        RunError: a sequence is too long, and the mode is `error`.
        ValueError: see `check_masked`.
    """
    check_masked(batch)
    if mode in ("keep_start", "keep_end"):
        batch = reject_equal_sides(batch)  # sides that become equal later do so because they are cut
    columns = {
        name: rows if batch.schema[name].role in OF_RECORDS else _cut(rows, max_seq_len, mode)
        for name, rows in batch.columns.items()
    }
    shorter = batch._with(columns=columns, roles=batch.roles.mapped(lambda rows: _cut(rows, max_seq_len, mode)))
    lost = batch.lengths - shorter.lengths
    cut = lost > 0
    if not cut.any():
        return batch
    if mode == "drop":
        return batch.drop(cut, "too_long")
    if mode == "error":
        row = int(np.argmax(cut))
        raise RunError(
            f"a sequence is {lost[row]} tokens longer than {setting} {max_seq_len} ({batch.where(row)}): "
            f"raise {setting}, or choose another truncation_mode"
        )
    shorter.count(CUT_TOKENS, lost)
    shorter.count("truncated_rows", cut, once=True)
    if mode == "keep_start" and eos_id is not None:
        ids = [name for name in batch.columns if batch.schema[name].role == "ids"]
        ended = [_count(batch[name], eos_id) > _count(shorter[name], eos_id) for name in ids]
        shorter.count("truncated_eos", np.any(ended, axis=0), once=True)
    return shorter


def _count(rows: Ragged, token: int) -> Array:
    """int64 [rows]: number of occurrences of a token in each row."""
    return rows.sums(rows.flat == token)


def _cut(rows: Ragged, length: int, mode: str) -> Ragged:
    if isinstance(rows.values, Ragged):
        return Ragged(_cut(rows.values, length, mode), rows.offsets)
    if rows.lengths.max(initial=0) <= length:
        return rows
    kept = np.minimum(rows.lengths, length)
    return rows.cut(0 if mode == "keep_start" else rows.lengths - kept, kept)


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
    found, known = dict[str, list[int]](), set[str]()
    wanted = np.array(sorted(ends), np.int64)
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
