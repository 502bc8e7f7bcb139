"""transformers' own tokenizers: what they give is right by definition."""

import functools
from pathlib import Path
from typing import Any


@functools.cache
def auto(folder: Path) -> Any:
    """The `AutoTokenizer` of a folder, loaded once."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
