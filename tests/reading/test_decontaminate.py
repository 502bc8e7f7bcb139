"""N-grams of words: what is found is what a set of tuples of words finds."""

import pickle
import unicodedata
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

import beam_prep as bp
from beam_prep.reading import decontaminate as module
from beam_prep.reading.decontaminate import Index, Shared, decontaminate
from beam_prep.reading.records import SHOWN, shown
from tests.conftest import Patch


def words(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    plain = "".join(each if unicodedata.category(each)[0] in "LMN" else " " for each in folded)
    return [word for word in plain.split(" ") if word]


def ngrams(text: str, count: int) -> list[tuple[str, ...]]:
    found = words(text)
    return [tuple(found[first : first + count]) for first in range(len(found) - count + 1)]


def index_of(count: int, references: Sequence[Sequence[str]], file: str = "eval.jsonl") -> Index:
    return module.index_of([(file, range(1, len(references) + 1), references)], count)


WORD = st.one_of(
    st.sampled_from("a B The the ﬁx fix Straße STRASSE e\u0301 é 日本 1 ½ नमस्ते".split()),
    st.sampled_from(["", "...", "x-y", "don't", "_", "😀", "\0", "\ud800", "\u00ad", "\u200d", "1+1", "x" * 2000]),
    st.sampled_from(["x" * 8, "x" * 64, "x" * 65]),
    st.text(max_size=3),
)
BETWEEN = st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\u3000", ", ", "-", "\x1c"])
TEXT = st.lists(st.tuples(WORD, BETWEEN).map("".join), max_size=14).map("".join)


@st.composite
def both(draw: st.DrawFn) -> tuple[int, list[list[str]], list[str]]:
    """(words of an n-gram, texts of references, other texts): the latter are often parts of the former, changed."""
    references = draw(st.lists(st.lists(TEXT, max_size=3), min_size=1, max_size=4))
    texts = draw(st.lists(TEXT, max_size=4))
    for each in references:
        for text in each:
            first, last = draw(st.tuples(st.integers(0, 20), st.integers(0, 60)))
            part = text[first:last]
            changed = draw(st.sampled_from([part, part.upper(), part.title(), part.replace(" ", "; ")]))
            texts.append(f"{draw(TEXT)} {changed} {draw(TEXT)}")
    return draw(st.sampled_from([1, 2, 3, 4, 5, 8, 13])), references, texts


@given(both())
@example((2, [["The end"], ["the END"]], ["so THE, end."]))
@example((1, [["ﬁx"]], ["fix"]))
def test_what_is_found_is_what_a_set_of_words_finds(given: tuple[int, list[list[str]], list[str]]) -> None:
    count, references, texts = given
    first: dict[tuple[str, ...], int] = {}
    for line, each in enumerate(references, start=1):
        for text in each:
            for ngram in ngrams(text, count):
                first.setdefault(ngram, line)
    wanted = {}
    for place, text in enumerate(texts):
        shared = next((ngram for ngram in ngrams(text, count) if ngram in first), None)
        if shared is not None:
            wanted[place] = Shared(" ".join(shared), "eval.jsonl", first[shared])
    index = index_of(count, references)
    assert index.find(texts) == wanted
    assert len(index.hashes) == len(first)
    assert index.without == sum(not any(ngrams(text, count) for text in each) for each in references)
    assert pickle.loads(pickle.dumps(index)).find(texts) == wanted


def test_what_has_the_hash_of_an_ngram_and_other_words_is_not_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "_MULTIPLIER", 1)  # the order of words does not count then
    index = index_of(2, [["one two"]])
    assert index.find(["two one", "three one two", "one twofold", "zone two", "one tw"]) == {
        1: Shared("one two", "eval.jsonl", 1)
    }


REFERENCES = index_of(2, [["Two words"]])


def test_of_dropped_records_the_first_say_what_they_share() -> None:
    made = decontaminate(bp.testing.records([{"a": "two words"}] * (SHOWN + 5)), REFERENCES)
    assert len(made) == 0
    assert {*made.ledger.notes} == {*range(SHOWN)}


def test_a_marked_record_that_is_dropped_later_is_not_listed_as_kept() -> None:
    ledger = decontaminate(bp.testing.records([{"a": "two words"}] * 2), REFERENCES, mode="mark").ledger
    ledger.drop(np.array([0]), "later")
    assert [(each.line, each.kind) for each in shown(ledger, 9)] == [(0, "dropped"), (1, "marked")]


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (bp.Decontaminate, {"against": REFERENCES, "ngram": 0}, "ngram is 0, wanted 1 word or more"),
        (bp.Decontaminate, {"against": REFERENCES, "mode": "keep"}, "mode is 'keep', wanted one of drop, mark"),
        (bp.KeepFields, {"fields": {"id": "int8"}}, r"field 'id' has type 'int8', wanted one of string, int32"),
    ],
)
def test_wrong_options_of_a_step_are_refused(step: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(**options)
