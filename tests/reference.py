"""Tokenizers, each loaded once for all tests: ours, and transformers', which are right by definition; equal pieces."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.data.rendered import Pieces
from beam_prep.tokens.tokenizer import Tokenizer


@functools.cache
def auto(folder: Path) -> Any:
    """The `AutoTokenizer` of a folder, loaded once."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@functools.cache
def ours(folder: Path) -> Tokenizer:
    """Our tokenizer of a folder."""
    return Tokenizer.load(folder)


def same_pieces(one: Pieces, other: Pieces) -> bool:
    """True if both are equal, the roles of messages aside."""
    if (one.texts, one.roles, one.prompts, one.parts) != (other.texts, other.roles, other.prompts, other.parts):
        return False
    names = ("special", "prompt_end", "segments", "borders", "sequences", "rows", "bos")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
