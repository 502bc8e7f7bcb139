"""Which texts have a character that two encoders may treat in another way: the same as looking at each character."""

import unicodedata
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from beam_prep.data.ragged import Array, Ragged
from beam_prep.tokens.backends import WithGigatoken


def is_old(character: str) -> bool:
    return unicodedata.ucd_3_2_0.category(character) != "Cn"


def agrees(character: str) -> bool:
    return ord(character) % 3 > 0


class Reference:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def encode(self, texts: list[str], add_special_tokens: bool) -> Ragged:
        self.calls.extend(texts)
        return Ragged.from_lists([[0]] * len(texts))


class Fast:
    def encode(self, text: str) -> Array:
        new = [character for character in text if not is_old(character)]  # others are of the text that it is put in
        return np.array([not all(map(agrees, new))], np.uint32)


def others(texts: list[str], calls: list[str]) -> list[int]:
    fast: Any = WithGigatoken(Reference(calls), Fast(), True, True, False)  # type: ignore[arg-type]
    found: list[int] = fast.encode(texts, located=True)[1].tolist()
    return found


def wanted(text: str) -> bool:
    """True if it has a character that may not be trusted."""
    new = [character for character in text if not is_old(character)]
    kinds = [unicodedata.category(character) for character in new]
    changed = not unicodedata.is_normalized("NFC", text)
    return changed or any(
        kind[0] in "LM" or kind == "Cn" or not agrees(each) for each, kind in zip(new, kinds, strict=True)
    )


SOME = "e\u0301\u212b\u0221\u20b2\u1dcd\ua64b\U00011f00\u4e00"
CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(SOME)


@given(st.lists(st.text(CHARACTERS, max_size=20), max_size=8), st.integers(0, 300))
def test_texts_with_others_are_those_that_have_one(texts: list[str], latin: int) -> None:
    texts = ["a" * latin, *texts, "b" * latin]
    calls: list[str] = []
    assert others(texts, calls) == [place for place, text in enumerate(texts) if wanted(text)]
    assert len(calls) == len(set(calls))
