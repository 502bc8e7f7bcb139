"""Fill in the middle: the parts are the document, in the order of the mode, and another seed draws others."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.fim import KNOWN, Fim, FimMode, Known
from beam_prep.errors import TokenizerError

SENTINELS = ("<PRE>", "<MID>", "<SUF>")
TEXTS = st.text(st.characters(exclude_characters="<"), min_size=1)


def parts_of(fim: Fim, text: str) -> tuple[str, ...]:
    made = fim(text)
    assert made is not None
    return made.texts


@given(TEXTS, st.integers(0, 9))
def test_the_parts_are_the_document_in_the_order_of_the_mode(text: str, seed: int) -> None:
    before, prefix, after, suffix, between, middle = parts_of(Fim(1.0, "psm", seed, SENTINELS), text)
    assert (before, after, between) == ("<PRE>", "<SUF>", "<MID>")
    assert prefix + middle + suffix == text
    made = {mode: parts_of(Fim(1.0, mode, seed, SENTINELS), text) for mode in get_args(FimMode)}
    assert made == {
        "psm": (before, prefix, after, suffix, between, middle),
        "spm": (before, after, suffix, between, prefix + middle),
        "spm_v1": (after, suffix, before, prefix, between, middle),
        "codestral": (after, suffix, before, prefix + middle),
    }
    assert parts_of(Fim(1.0, "psm", seed, SENTINELS, "<EOT>"), text) == (*made["psm"], "<EOT>")
    assert Fim(1.0, sentinels=SENTINELS)(text) == Fim(1.0, "psm", 0, SENTINELS)(text)


@pytest.mark.parametrize("mode", get_args(FimMode))
@given(text=st.text(), seed=st.integers(0, 9))
def test_the_first_part_is_the_one_that_the_document_begins_with(mode: FimMode, text: str, seed: int) -> None:
    made = Fim(1.0, mode, seed, SENTINELS)(text)
    assert made is not None
    first = made.texts[made.first]
    assert text.startswith(first)
    assert bool(first) == bool(text)


def test_the_share_is_the_rate_and_another_seed_draws_others() -> None:
    texts = [f"document {number} of two thousand" for number in range(2000)]
    one, other = ([Fim(0.3, "psm", seed, SENTINELS)(text) is not None for text in texts] for seed in (1, 2))
    assert 540 < sum(one) < 660  # 600 wanted; a standard deviation is 20
    both = sum(a and b for a, b in zip(one, other, strict=True))
    assert 130 < both < 230  # 180 wanted


def test_all_places_are_cut_at() -> None:
    cuts = {len(parts_of(Fim(1.0, "psm", seed, SENTINELS), "abc")[1]) for seed in range(200)}
    assert cuts == {0, 1, 2, 3}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.prefix)
def test_known_sentinels_are_found_and_have_their_mode(known: Known) -> None:
    tokens = ["<eos>", known.suffix, known.middle, known.prefix]
    found = Fim(0.5).of(tokens)
    assert (found.sentinels, found.mode, found.end) == (known[:3], known.mode, None)
    assert Fim(0.5, sentinels=known[:3]).of(tokens) == found
    assert Fim(0.5, "spm").of(tokens).mode == "spm"
    if known.end is not None:
        assert Fim(0.5).of([*tokens, known.end]).end == known.end


def test_a_tokenizer_without_sentinels_is_refused() -> None:
    with pytest.raises(TokenizerError, match="none of the known sentinels"):
        Fim(0.5).of(["<|fim_prefix|>", "<fim_middle>", "<SUF>"])
    with pytest.raises(TokenizerError, match=r"three different tokens .+ it has '<P>', '<S>'"):
        Fim(0.5, sentinels=("<P>", "<M>", "<S>")).of(["<P>", "<S>"])
    with pytest.raises(ValueError, match="sentinels is None"):
        Fim(0.5)("text")
