"""Drawn rows for the page: runs of tokens, trained or not."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_prep.core.data.carried import carried_value
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Column
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.inspect.sequences import RowDisplay, TokenSequence, parts_of, pieces_of, special_ids
from beam_prep.inspect.visible import VISIBLE


@dataclass(frozen=True, slots=True)
class Run:
    """Text of neighbouring tokens that are alike.

    Attributes:
        text: with control characters made visible.
        trained: the loss is taken on them; None: it is not known.
        special: they are special tokens.
    """

    text: str
    trained: bool | None
    special: bool


@dataclass(frozen=True, slots=True)
class ShownSequence:
    """A sequence of tokens: its column, remarks, and its text; or, without `runs`, a line about a column of values."""

    name: str
    notes: str = ""
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row: its domain, its sequences, and whether only their beginnings are shown."""

    domain: str
    sequences: tuple[ShownSequence, ...]
    cut: bool


def shown_rows(
    samples: Sequence[Mapping[str, Any]], config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> Iterator[ShownRow]:
    """The rows that were drawn, to be shown.

    Args:
        samples: as `run.json` has them.
        config: as the manifest has it.
        tokenizer: decodes tokens; None: they are shown as ids.
    """
    special = special_ids(tokenizer)
    for sample in samples:
        display = RowDisplay(tuple(Column(**column) for column in sample["columns"]), tokenizer, config)
        row = {column.name: _array(sample["row"][column.name], column) for column in display.schema}
        parts = [part for column in display.schema for part in parts_of(column, display, row)]
        sequences = (_sequence(part, tokenizer, special) for part in parts)
        yield ShownRow(sample["domain"], tuple(sequences), sample["cut"])


def _array(values: list[Any], column: Column) -> Any:
    dtype = np.dtype(column.dtype)
    if column.carried:
        return carried_value(column, np.asarray(values, dtype))
    return np.asarray(values, dtype) if column.depth == 1 else Ragged.from_lists(values, dtype)


def _sequence(part: TokenSequence | str, tokenizer: Tokenizer | None, special: frozenset[int]) -> ShownSequence:
    if isinstance(part, str):
        return ShownSequence(part.translate(VISIBLE))
    ids = part.ids.tolist()
    trained = [None] * len(ids) if part.trained is None else part.trained.tolist()
    tokens = zip(trained, (token in special for token in ids), pieces_of(ids, tokenizer), strict=True)
    runs = (
        Run("".join(piece for *_, piece in run).translate(VISIBLE), *kind)
        for kind, run in itertools.groupby(tokens, lambda token: token[:2])
    )
    return ShownSequence(part.name, ", ".join(part.notes), tuple(runs))
