"""Measures of texts."""

from collections.abc import Sequence

import numpy as np

from beam_prep.core.data.ragged import Array, offsets_of


def characters(texts: Sequence[str]) -> Array:
    """int64: lengths of texts."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def sizes(texts: Sequence[str]) -> Array:
    """int64: bytes of texts (UTF-8)."""
    return np.fromiter((len(text) if text.isascii() else len(text.encode()) for text in texts), np.int64, len(texts))


def utf8(texts: Sequence[str]) -> tuple[Array, Array]:
    """(UTF-8 of all texts, uint8 [bytes]; their borders in it, int64 [texts + 1])."""
    return np.frombuffer("".join(texts).encode(), np.uint8), offsets_of(sizes(texts))


def take(texts: Sequence[str], places: Array) -> list[str]:
    """The texts at these places, in that order."""
    return [texts[place] for place in places.tolist()]
