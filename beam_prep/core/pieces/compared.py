"""Compares a few rows of a block with what the reference makes of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from beam_prep.core.data.block import ALIVE
from beam_prep.core.pieces.rendered import UNSET, Pieces, Rendered, Segment


def are_equal(one: Rendered, lines: Sequence[int], other: Rendered, others: Sequence[int]) -> bool:
    """True if the same became of these lines of one block as of those of another: pieces, values, domain, or why not.

    The roles of messages aside, which are no part of a row.
    """
    return all(_outcome(one, line) == _outcome(other, of) for line, of in zip(lines, others, strict=True))


def _outcome(rendered: Rendered, line: int) -> Any:
    status = int(rendered.ledger.status[line])
    if status != ALIVE:
        return rendered.ledger.outcomes[status - 1], rendered.ledger.messages.get(line)
    row = int(np.searchsorted(rendered.line, line))
    pieces = {name: _row(pieces, row) for name, pieces in rendered.pieces.items()}
    values = {name: found.take(np.array([row])).to_lists() for name, found in rendered.values.items()}
    weight = None if rendered.weights is None else float(rendered.weights[row])
    return rendered.domain[row], weight, pieces, values


def _row(pieces: Pieces, row: int) -> list[Any]:
    """All that is known about a row. Codes, which each block gives in its own order, become what they stand for."""
    found: list[Any] = []
    for sequence in range(int(pieces.rows[row]), int(pieces.rows[row + 1])):
        found.append(bool(pieces.bos[sequence]))
        for piece in range(int(pieces.sequences[sequence]), int(pieces.sequences[sequence + 1])):
            segments = pieces.segments[pieces.borders[piece] : pieces.borders[piece + 1]]
            known = [_named(pieces, Segment(*segment)) for segment in segments.tolist()]
            about = bool(pieces.special[piece]), pieces.prompts.get(piece), int(pieces.prompt_end[piece])
            found.append((pieces.texts[piece], about, known))
    return found


def _named(pieces: Pieces, segment: Segment) -> Any:
    role = None if segment.role == UNSET else pieces.roles[segment.role]
    weight = None if segment.own == UNSET else float(pieces.weights[segment.own])
    return segment._replace(role=UNSET, own=UNSET), role, weight
