"""Which texts have a character that two encoders may treat in another way: the same as looking at each character."""

import unicodedata

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.tokens.backends import TriedCharacters


def is_old(character: str) -> bool:
    return unicodedata.ucd_3_2_0.category(character) != "Cn"


def agrees(character: str) -> bool:
    return ord(character) % 3 > 0


def tried(calls: list[str]) -> TriedCharacters:
    def agree(texts: list[str]) -> list[bool]:
        calls.extend(texts)
        return [agrees(text[1]) for text in texts]

    return TriedCharacters(("<{0}>",), agree, is_old, lambda character: unicodedata.category(character) == "Mn")


def wanted(text: str) -> bool:
    """True if it has a character that may not be trusted."""
    others = [character for character in text if not is_old(character)]
    return any(unicodedata.category(character) == "Mn" or not agrees(character) for character in others)


CHARACTERS = st.one_of(
    st.characters(max_codepoint=0x7F),
    st.characters(min_codepoint=0x80, max_codepoint=0x7FF),
    st.characters(min_codepoint=0x800, max_codepoint=0xD7FF),
    st.characters(min_codepoint=0xE000, max_codepoint=0xFFFF),
    st.characters(min_codepoint=0x10000),
    st.sampled_from("\u0221\u0237\u1dcd\u2c6f\ua64b\U00011f00\U0001fa70\u00e9\u4e00\u9fff"),
)


@given(st.lists(st.text(CHARACTERS, max_size=20), max_size=8), st.integers(0, 300))
def test_texts_with_others_are_those_that_have_one(texts: list[str], latin: int) -> None:
    """Among few and among many ASCII characters: these are looked for in two ways."""
    texts = ["a" * latin, *texts, "b" * latin]
    calls: list[str] = []
    found = tried(calls).texts_with_others(texts)
    assert found.tolist() == [place for place, text in enumerate(texts) if wanted(text)]
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize("lead", ["\u0221", "\u1dcd", "\U00011f00"])
@pytest.mark.parametrize("letters", [0, 5, 31, 32, 33, 5000])
def test_one_character_is_found_wherever_it_stands(lead: str, letters: int) -> None:
    for texts in (["x" * letters + lead], [lead + "x" * letters], ["x" * letters, lead, "x" * letters]):
        found = tried([]).texts_with_others(texts)
        assert found.tolist() == [place for place, text in enumerate(texts) if wanted(text)]


@pytest.mark.long
def test_every_character_alone_is_told_from_those_that_are_trusted() -> None:
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    texts = list(map(chr, points))
    found = np.zeros(len(texts), bool)
    found[tried([]).texts_with_others(texts)] = True
    assert found.tolist() == list(map(wanted, texts))
