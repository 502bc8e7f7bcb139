"""The key of a record for deduplication, by a plain program. Nothing of beam_prep is used here.

The key is made of the values of the fields `by` (all fields without `by`), as JSON with sorted keys, so that the order
of keys is no difference. A field that is absent is null. Each text in a value is normalised, at any depth:

* `none`: as it is,
* `whitespace`: stripped, and every run of white space (`str.split`) is one blank,
* `nfkc_casefold`: Unicode form NFKC, `str.casefold`, then as `whitespace`.
"""

import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal

Normalize = Literal["none", "whitespace", "nfkc_casefold"]

NORMALIZE: dict[Normalize, Callable[[str], str]] = {
    "none": lambda text: text,
    "whitespace": lambda text: " ".join(text.split()),
    "nfkc_casefold": lambda text: " ".join(unicodedata.normalize("NFKC", text).casefold().split()),
}


def key_of(record: dict[str, Any], by: Sequence[str] | None, normalize: Normalize) -> str:
    """The key of a record, as text."""
    value = record if by is None else [record.get(name) for name in by]
    return json.dumps(_normalised(value, NORMALIZE[normalize]), sort_keys=True)


def _normalised(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _normalised(inner, change) for name, inner in value.items()}  # names stay as they are
    return [_normalised(inner, change) for inner in value] if isinstance(value, list) else value
