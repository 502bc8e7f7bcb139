"""The short form of merges is the same tokenizer, or is not used."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from tokenizers import Tokenizer

from beam_prep.core.encoding.short_merges import with_short_merges
from tests.conftest import shared

PIECES = ("a", "\u0120", '"', "\\", "[", "]", ",", " ", "#version", "\n", "\u4f60", "/", "{", "}")
TOKENS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join)


def written(merges: list[tuple[str, str]], ascii_only: bool = False) -> bytes:
    """A `tokenizer.json` with these merges."""
    tokens = dict.fromkeys(token for left, right in merges for token in (left, right, left + right))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [list(pair) for pair in merges]}
    return json.dumps({"version": "1.0", "model": model}, ensure_ascii=ascii_only).encode()


@given(st.lists(st.tuples(TOKENS, TOKENS), unique=True, max_size=6), st.booleans())
@example([("]]", "]]"), ('"', '"')], False)
@example([('"], ["', "\\")], False)
@example([('", "', '\\"')], False)
@example([("#version", "a"), ("a", "a")], False)
def test_the_short_form_is_the_same_tokenizer(merges: list[tuple[str, str]], ascii_only: bool) -> None:
    source = written(merges, ascii_only)
    short = with_short_merges(source)
    assert Tokenizer.from_buffer(short).to_str() == Tokenizer.from_buffer(source).to_str()
    if not merges or any(" " in part or "#version" in part for pair in merges for part in pair):
        assert short == source
    else:
        assert json.loads(short)["model"]["merges"] == [" ".join(pair) for pair in merges]


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"{}",
        b'{"model": {"merges": []}}',
        b'{"model": {"merges": ["a b", "ab c"]}}',
        b'{"model":{"merges":[["a","b"]]}}',
        b'{"model": {"merges": [["a", "b"]], "vocab": {}}}',
        b'{"model": {"merges": [["a", "b"], ["a"]]}}',
        b'{"model": {"merges": [["a", "b", "c"]]}}',
        b'{"model": {"merges": [["a", "b"], [["c", "d"]]}}',
    ],
)
def test_what_has_another_form_stays_as_it_is(source: bytes) -> None:
    assert with_short_merges(source) == source


@pytest.mark.parametrize("name", ["qwen2.5", "gpt2", "mistral-v1", "t5-small", "chatml-12k", "tekken-32k"])
def test_real_tokenizers_are_the_same(name: str) -> None:
    found = Tokenizer.from_file(str(shared("tokenizers", name, "tokenizer.json"))).to_str()
    source = json.dumps(json.loads(found), ensure_ascii=False).encode()
    assert Tokenizer.from_buffer(with_short_merges(source)).to_str() == found
