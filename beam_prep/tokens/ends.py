"""Checks that trained turns of a role end with an end token: without one, a model does not learn to stop."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np

from beam_prep.tokens.batch import Batch
from beam_prep.tokens.mask import MaskPolicy

NEAR = 3
"""The end token is among this many last tokens of a turn: ChatML writes a line end after it."""
_SHOWN = 16


class Endless(NamedTuple):
    """A trained turn without an end token.

    Attributes:
        tail: its last ids.
        followed: True: an end token stands behind it, but is not trained.
    """

    tail: list[int]
    followed: bool


def endless_roles(
    batches: Iterable[Batch], policy: MaskPolicy, ends: Collection[int], decode: Callable[[list[int]], str]
) -> dict[str, Endless]:
    """Role -> its first trained turn, for the trained roles of which no turn ends with an end token.

    Args:
        batches: results of `tokenize`, with their segments.
        policy: decides what is trained.
        ends: ids of tokens that may end a turn, if only blanks stand behind them in the turn.
        decode: ids -> text.
    """
    found, known, wanted = dict[str, Endless](), set[str](), np.array(sorted(ends), np.int64)
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
                tail = flat[max(start, stop - _SHOWN) : stop].tolist()
                found[role] = Endless(tail, bool(is_end[stop : stop + NEAR].any()))
    return {role: each for role, each in found.items() if role not in known}
