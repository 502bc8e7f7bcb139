"""Spans of characters are in the order of their texts."""

import numpy as np
import pytest

from beam_prep.tokens.tokenizer import CharSpans


def test_no_spans_are_spans() -> None:
    assert len(CharSpans.of([])) == 0


def test_spans_in_another_order_are_refused() -> None:
    assert len(CharSpans.of([(0, 3, 4), (0, 1, 2), (2, 0, 1)])) == 3
    with pytest.raises(ValueError, match="not in the order of their texts"):
        CharSpans.of([(1, 0, 1), (0, 0, 1)])


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="columns of 2, 1 and 2 entries"):
        CharSpans(np.array([0, 1]), np.array([0]), np.array([1, 1]))
