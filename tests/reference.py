"""Tokenizers, each loaded once for all tests: ours, and transformers', which are right by definition."""

import functools
from pathlib import Path
from typing import Any

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
