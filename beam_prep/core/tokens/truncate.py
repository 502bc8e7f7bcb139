"""Cutting rows to a length."""

from typing import Literal, get_args

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import OF_RECORDS
from beam_prep.core.tokens.batch import CUT_TOKENS, Batch
from beam_prep.errors import RunError

TruncationMode = Literal["keep_start", "keep_end", "drop", "error"]


@step
def truncate(
    batch: Batch,
    max_seq_len: int,
    mode: TruncationMode = "keep_start",
    eos_id: int | None = None,
    setting: str = "max_seq_len",
) -> Batch:
    """No sequence (in lists: no element) longer than `max_seq_len` tokens, masks alike.

    Args:
        batch: rows of tokens.
        max_seq_len: tokens.
        mode: keep the first tokens (`keep_start`) or the last (`keep_end`), drop the record (`drop`, counted as
            `too_long`), or fail the run (`error`).
        eos_id: the token that ends an answer.
        setting: what the config calls this length, for messages.

    Counts over kept rows: `truncated_rows`, `truncated_tokens` (ids), and `truncated_eos`: rows that lost their final
    EOS, so that nobody learns from them where to stop. A row that is cut twice counts once.

    Raises:
        RunError: a sequence is longer, and the mode is `error`.
    """
    if mode not in get_args(TruncationMode):
        raise ValueError(f"mode is {mode!r}, wanted one of {', '.join(get_args(TruncationMode))}")
    lost = np.zeros(len(batch), np.int64)
    for name, rows in batch.columns.items():
        if batch.schema[name].role == "ids":
            lost += _lost(rows, max_seq_len)
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
    columns = {
        name: rows if batch.schema[name].role in OF_RECORDS else _cut(rows, max_seq_len, mode)
        for name, rows in batch.columns.items()
    }
    shorter = batch._with(columns=columns, roles=batch.roles.cut(max_seq_len, keep_end=mode == "keep_end"))
    shorter.count(CUT_TOKENS, lost)
    shorter.count("truncated_rows", cut, once=True)
    if mode == "keep_start" and eos_id is not None:
        ids = [name for name in batch.columns if batch.schema[name].role == "ids"]
        places = np.flatnonzero(cut)
        ended = np.zeros(len(batch), bool)
        for name in ids:
            before, after = batch[name].take(places), shorter[name].take(places)
            ended[places] |= _count(before, eos_id) > _count(after, eos_id)
        shorter.count("truncated_eos", ended, once=True)
    return shorter


def _count(rows: Ragged, token: int) -> Array:
    """int64 [rows]: how often a token occurs in each row."""
    return rows.sums(rows.flat == token)


def _lost(rows: Ragged, length: int) -> Array:
    """int64 [rows]: tokens beyond `length`, of each row's sequences together."""
    inner = rows.values if isinstance(rows.values, Ragged) else rows
    lost = np.maximum(inner.lengths - length, 0)
    return np.diff(offsets_of(lost)[rows.offsets]) if isinstance(rows.values, Ragged) else lost


def _cut(rows: Ragged, length: int, mode: str) -> Ragged:
    if isinstance(rows.values, Ragged):
        return Ragged(_cut(rows.values, length, mode), rows.offsets)
    return rows.head(length) if mode == "keep_start" else rows.tail(length)
