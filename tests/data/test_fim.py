"""Fill in the middle: the three parts are the document, in another order, and another seed draws others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.fim import KNOWN, Fim
from beam_prep.errors import TokenizerError

SENTINELS = ("<PRE>", "<MID>", "<SUF>")
TEXTS = st.text(st.characters(exclude_characters="<"), min_size=1)


@given(TEXTS, st.integers(0, 9))
def test_psm_is_prefix_suffix_and_middle(text: str, seed: int) -> None:
    made = Fim(1.0, "psm", seed, SENTINELS)(text)
    assert made.startswith("<PRE>")
    prefix, rest = made.removeprefix("<PRE>").split("<SUF>")
    suffix, middle = rest.split("<MID>")
    assert prefix + middle + suffix == text


@given(TEXTS, st.integers(0, 9))
def test_spm_is_suffix_and_then_the_rest_in_order(text: str, seed: int) -> None:
    made = Fim(1.0, "spm", seed, SENTINELS)(text)
    assert made.startswith("<PRE><SUF>")
    suffix, rest = made.removeprefix("<PRE><SUF>").split("<MID>")
    assert rest + suffix == text


@given(st.text(), st.integers(0, 9))
def test_a_document_is_the_same_each_time(text: str, seed: int) -> None:
    assert Fim(0.5, "psm", seed, SENTINELS)(text) == Fim(0.5, "psm", seed, SENTINELS)(text)
    assert Fim(0.0, "psm", seed, SENTINELS)(text) == text


def test_the_share_is_the_rate_and_another_seed_draws_others() -> None:
    texts = [f"document {number} of two thousand" for number in range(2000)]
    one, other = ([Fim(0.3, "psm", seed, SENTINELS)(text) != text for text in texts] for seed in (1, 2))
    assert 540 < sum(one) < 660  # 600 wanted; a standard deviation is 20
    both = sum(a and b for a, b in zip(one, other, strict=True))
    assert 130 < both < 230  # 180 wanted


def test_all_places_are_cut_at() -> None:
    cuts = {Fim(1.0, "psm", seed, SENTINELS)("abc").index("<SUF>") - len("<PRE>") for seed in range(200)}
    assert cuts == {0, 1, 2, 3}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known[0])
def test_known_sentinels_are_found(known: tuple[str, str, str]) -> None:
    assert Fim(0.5).of(["<eos>", *reversed(known)]).sentinels == known


def test_a_tokenizer_without_sentinels_is_refused() -> None:
    with pytest.raises(TokenizerError, match="none of the known sentinels"):
        Fim(0.5).of(["<|fim_prefix|>", "<fim_middle>", "<SUF>"])
    with pytest.raises(TokenizerError, match="no token '<M>' that it keeps in one piece; it has '<P>', '<S>'"):
        Fim(0.5, sentinels=("<P>", "<M>", "<S>")).of(["<P>", "<S>"])
    with pytest.raises(ValueError, match="sentinels is None"):
        Fim(0.5)("text")
