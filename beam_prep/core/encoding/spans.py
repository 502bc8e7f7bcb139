"""Spans of characters, and the spans of tokens that overlap them: one array a column, one entry a span."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from beam_prep.core.data.ragged import Array


@dataclass(frozen=True, slots=True, eq=False)
class CharSpans:
    """Spans of characters of some texts.

    Attributes:
        text: int64, ascending: index of the text.
        start, stop: int64: first character and one past the last. Characters count in the text as given, whatever the
            tokenizer's normaliser makes of it.

    Raises:
        ValueError: the columns are not equally long, or `text` does not ascend.
    """

    text: Array
    start: Array
    stop: Array

    def __post_init__(self) -> None:
        if not len(self.text) == len(self.start) == len(self.stop):
            raise ValueError(f"columns of {len(self.text)}, {len(self.start)} and {len(self.stop)} entries")
        if (self.text[1:] < self.text[:-1]).any():
            raise ValueError("spans are not in the order of their texts")

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int, int]]) -> "CharSpans":
        """From (text, start, stop) of each."""
        return cls(*np.array(list(spans), np.int64).reshape(-1, 3).T)

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpans:
    """The tokens that overlap each span of characters.

    Attributes:
        start, stop: int64: first token and one past the last, counted in their text; equal where a span is empty.
    """

    start: Array
    stop: Array

    def to_list(self) -> list[tuple[int, int]]:
        """(start, stop) of each; for tests and printing only."""
        return list(zip(self.start.tolist(), self.stop.tolist(), strict=True))
