"""Offsets from byte lengths of tokens that SentencePiece made: the reference's, or the reference itself."""

import functools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from beam_prep.data.ragged import Ragged
from beam_prep.tokens import backends
from beam_prep.tokens.backends import FastEncoder, TokenBytes, choose, token_bytes
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer
from tests.chars import char_spans
from tests.conftest import Patch, shared
from tests.reference import ours as loaded
from tests.tokens.sentencepiece import BLANK, CONTROLS, KINDS, PREPEND, REPLACE, made
from tests.tokens.test_tokenizer import OURS, SOURCE, copy_of

ODD = [" ", "  ", "\n", BLANK, "<0x0A>", "<0x41>", "\u00e9", "\u4f60\u597d", "\U0001f600", "word", " the", "\x00", "\t"]
WORDS = st.lists(st.sampled_from([*ODD, *CONTROLS, "a", "x\u0344"]), max_size=8).map("".join)
PREFIXES = {"llama-2": "parts", "first": "text", "first, split": "text", "always": None}


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.load(made(Path(tempfile.mkdtemp(), "tokenizer"), kind))


def all_spans(texts: Sequence[str]) -> CharSpans:
    """All spans of short texts, every span of one character of others."""
    places = []
    for place, text in enumerate(texts):
        for start in range(len(text) + 1):
            stops = range(start, len(text) + 1) if len(text) < 12 else (start + 1, len(text))
            places += [(place, start, stop) for stop in stops if stop <= len(text)]
    return char_spans(places)


def compare(reference: Tokenizer, texts: Sequence[str]) -> int:
    """Compares ids and spans with the reference's. Returns how many texts it had to encode."""
    if choose(reference, "auto")[0] != "gigatoken":
        return len(texts)
    spans = all_spans(texts)
    for special in (False, True):
        ids, tokens = reference.encode_spans(texts, special, spans)
        fast = FastEncoder(reference)
        found, mine = fast.encode_spans(texts, special, spans)
        assert found.to_lists() == ids.to_lists()
        assert mine.tolist() == tokens.tolist()
    return fast.fell_back


@pytest.mark.parametrize("kind", KINDS)
def test_probes_have_the_references_offsets(kind: str) -> None:
    found = token_bytes(tokenizer(kind))
    assert (None if found is None else found.prefix) == PREFIXES.get(kind, "none")
    texts = [text[:120] for text in PROBES]
    texts += [f"<s>{text}[/INST]{text} </s> [INST]" for text in texts[:12]] + [*CONTROLS, *ODD]
    backend, problem = choose(tokenizer(kind), "auto")
    assert backend == "gigatoken", problem
    fell_back = compare(tokenizer(kind), texts)
    if found is not None:
        assert fell_back == sum(BLANK in text for text in texts)


@given(st.sampled_from([*KINDS]), st.lists(st.one_of(WORDS, st.text(max_size=9)), min_size=1, max_size=4))
@example("llama-2", ["", "\n", " \n", "\n ", "<s>\n<s>", "<s> a", BLANK, f" {BLANK}"])
@example("first", ["", "\n", " a", "<s>a", "a<s>a", f"{BLANK}a"])
def test_any_text_has_the_references_offsets(kind: str, texts: list[str]) -> None:
    compare(tokenizer(kind), texts)


ADDED: dict[str, dict[str, Any]] = {
    "blanks": {"content": BLANK * 2},
    "lines": {"content": "\n\n"},
    "byte": {"content": "<0x0A>"},
    "left": {"content": "[L]", "lstrip": True},
    "right": {"content": "[R]", "rstrip": True},
    "both": {"content": "[B]", "lstrip": True, "rstrip": True},
    "word": {"content": "[W]", "single_word": True},
    "normalized": {"content": "[N]", "normalized": True},
    "blank inside": {"content": "[a b]"},
    "piece": {"content": "the"},
}


@functools.cache
def with_added(kind: str, names: frozenset[str]) -> Tokenizer:
    added = tuple(ADDED[name] for name in sorted(names))
    return Tokenizer.load(made(Path(tempfile.mkdtemp(), "tokenizer"), kind, added))


TEXTS = st.lists(
    st.sampled_from([*(token["content"] for token in ADDED.values()), *ODD, "<s>", "the", "a", "[/INST]"]), max_size=9
)


@given(
    st.sampled_from([*KINDS]),
    st.frozensets(st.sampled_from([*ADDED]), max_size=1),
    st.lists(TEXTS.map("".join), min_size=1, max_size=4),
)
@example("llama-2", frozenset(["blanks"]), ["\n\n", BLANK * 2])
@example("llama-2", frozenset(ADDED), ["[N]a [L] a[R] [B] <0x0A>\n\n\n  [a b]"])
def test_added_tokens_of_any_kind_move_no_offset(kind: str, names: frozenset[str], texts: list[str]) -> None:
    compare(with_added(kind, names), texts)


def test_a_token_that_takes_only_blanks_of_a_span_is_no_token_of_it() -> None:
    """As a header of Phi-3, behind which an answer begins with a blank."""
    ids, places = with_added("llama-2", frozenset(["right"])).encode_spans(["[R]\n a"], False, char_spans([(0, 4, 6)]))
    assert places.T.tolist() == [[len(ids.flat) - 1, len(ids.flat)]]


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [REPLACE, PREPEND]}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False}},
    ],
)
def test_what_changes_a_text_in_another_way_is_left_to_the_reference(changes: dict[str, Any], tmp_path: Path) -> None:
    other = Tokenizer.load(made(tmp_path / "tokenizer", "llama-2", **changes))
    assert token_bytes(other) is None
    assert compare(other, ["A text of \ufb01ve words", " a"]) == 2


def test_tokens_of_more_bytes_than_a_byte_counts_keep_their_length() -> None:
    table = TokenBytes(np.array([3, 256, 0], np.int32))
    assert table.of(Ragged.from_lists([[1, 0], [], [1]]), ["", "", ""]).tolist() == [256, 3, 256]


def test_a_split_that_removes_what_it_does_not_match_leaves_no_text_to_the_reference(tmp_path: Path) -> None:
    """Phi-4 and OLMo-2 write the splits of GPT-4 so: what matches no part would be removed, and everything matches."""
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    split = {"pattern": {"Regex": rf"{pattern}|\s+(?!\S)|\s+"}, "type": "Split", "behavior": "Removed", "invert": True}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, bytes_of]}
    other = Tokenizer.load(copy_of(OURS, tmp_path / "tokenizer", pre_tokenizer=steps))
    assert compare(other, ["It's plain text,\n\n with 1234 \u00e9", *ODD]) == 0


def test_sums_that_cancel_out_move_no_offset() -> None:
    """NFC makes two code points of one and other bytes of others: one part grows, another shrinks by as much."""
    qwen = loaded(shared("tokenizers", "qwen2.5"))
    text, table = "x\u0344<|im_end|>yes \u2126\u2126", token_bytes(qwen)
    assert table is not None
    assert table.lengths[qwen.encode([text], False).flat].sum() == len(text.encode())  # sums alone would not tell
    assert compare(qwen, [text]) == 1


def test_a_vocabulary_with_a_prefix_space_has_the_references_offsets(tmp_path: Path) -> None:
    """A space that is put before a text is in its tokens, and not in the text."""
    steps = json.dumps(SOURCE["pre_tokenizer"]).replace('"add_prefix_space": false', '"add_prefix_space": true')
    other = Tokenizer.load(copy_of(OURS, tmp_path / "t", pre_tokenizer=json.loads(steps)))
    assert compare(other, ["one two", "three"]) == 2


def test_tokens_that_stand_for_more_than_int32_counts_are_not_taken_for_their_text(monkeypatch: Patch) -> None:
    """Eight tokens of 2**29 + 1 bytes would be 8 bytes, as the text has, where sums wrap."""
    ours = loaded(OURS)
    table = token_bytes(ours)
    assert table is not None
    wide = replace(table, lengths=np.full(len(table.lengths), (1 << 29) + 1, np.int32))
    monkeypatch.setattr(backends, "token_bytes", lambda tokenizer: wide)
    assert compare(ours, ["12345678"]) == 1
