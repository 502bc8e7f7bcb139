"""The fast backend behind its gate: the reference's ids and spans, or the reference itself."""

import functools
import sys
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output
from beam_prep.errors import TokenizerError
from beam_prep.tokens import backends as module
from beam_prep.tokens.backends import FastEncoder, choose, encoder_of
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.rows import RoleMask, build_mask
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer
from tests.chars import char_spans
from tests.chat.trained import CHATML, CONTROLS, SECTIONS, talk
from tests.conftest import Patch, shared
from tests.reference import ours as loaded
from tests.tokens.test_token_bytes import compare
from tests.tokens.test_tokenizer import OURS, SOURCE, _folders, verify_texts
from tests.tokens.test_tokenizer import copy_of as changed_copy

ROW = (Output("sequence", "ids", SECTIONS["$role"], "loss_mask"),)
NOT_FOR_GIGATOKEN = {"t5-small": "Unigram"}


@functools.cache
def ours() -> Tokenizer:
    return loaded(OURS)


def spans_of(texts: Sequence[str], seed: int = 0) -> CharSpans:
    """Some spans of each text, empty ones too, in no order inside a text."""
    drawn = np.random.default_rng(seed)
    places = [(at, *sorted(drawn.integers(0, len(text) + 1, 2))) for at, text in enumerate(texts) for _ in "abc"]
    return char_spans(places)


@pytest.mark.parametrize("folder", [*_folders()])
def test_every_tokenizer_gives_the_references_ids_and_spans_or_is_refused_with_a_reason(folder: Path) -> None:
    if folder.name in NOT_FOR_GIGATOKEN:
        backend, problem = choose(loaded(folder), "auto", ["first record"])
        assert backend == "transformers"
        assert "gigatoken is not used" in str(problem)
        wanted = rf"{NOT_FOR_GIGATOKEN[folder.name]}.*pass --tokenizer_backend auto"
        with pytest.raises(TokenizerError, match=wanted):
            choose(loaded(folder), "gigatoken", ["first record"])
        return
    assert choose(loaded(folder), "auto", ["first record"]) == ("gigatoken", None)
    tokenizer, fast = loaded(folder), FastEncoder(loaded(folder))
    texts = [text[:400] for text in [*PROBES, *verify_texts()]] + list(tokenizer.controls) + [""]
    spans = spans_of(texts)
    for special in (False, True):
        assert fast.encode(texts, special).to_lists() == tokenizer.encode(texts, special).to_lists()
        mine, theirs = (encoder.encode_spans(texts, special, spans) for encoder in (fast, tokenizer))
        assert mine[0].to_lists() == theirs[0].to_lists()
        assert mine[1].tolist() == theirs[1].tolist()
    assert fast.fell_back < 2 * len(texts)
    assert mine[0].flat.dtype == np.int32


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5), *[st.lists(st.integers(10, 19), max_size=2)] * 2)
def test_every_row_gets_what_stands_around_a_text(rows: list[list[int]], before: list[int], behind: list[int]) -> None:
    wanted = [[*before, *row, *behind] for row in rows]
    assert module.with_parts_around(Ragged.from_lists(rows), before, behind).to_lists() == wanted


@pytest.fixture
def fresh() -> Any:
    """The backends are looked for anew."""
    module.loaded_backend.cache_clear()
    yield
    module.loaded_backend.cache_clear()


def test_a_missing_wheel_means_the_reference(monkeypatch: Patch, fresh: None) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    backend, problem = choose(ours(), "auto")
    assert backend == "transformers"
    assert "not installed" in str(problem)
    assert encoder_of(ours(), "gigatoken") is ours()  # a worker without the launcher's wheel


def test_another_version_means_the_reference(monkeypatch: Patch, fresh: None) -> None:
    monkeypatch.setattr(module, "GIGATOKEN_VERSION", "0.0.1")
    assert choose(ours(), "auto")[0] == "transformers"
    with pytest.raises(TokenizerError, match=r"version .* is installed, wanted 0\.0\.1"):
        choose(ours(), "gigatoken")


def test_one_wrong_id_on_a_text_of_the_input_closes_the_gate(monkeypatch: Patch) -> None:
    whole = FastEncoder.encode

    def wrong(self: FastEncoder, texts: Sequence[str], special: bool) -> Ragged:
        ids = whole(self, texts, special)
        flat = ids.flat.copy()
        flat[ids.offsets[[place for place, text in enumerate(texts) if text == "of the input"]]] += 1
        return ids.with_flat(flat)

    monkeypatch.setattr(FastEncoder, "encode", wrong)
    assert choose(ours(), "auto") == ("gigatoken", None)
    backend, problem = choose(ours(), "auto", ["of the input"])
    assert backend == "transformers"
    assert "'of the input'" in str(problem)


VOICE = ChatFormat(ChatTemplate(CHATML, {}, CONTROLS))


def rendered(*texts: str) -> Rendered:
    """A block of conversations, each with one user message and one answer."""
    rows = [{"messages": talk(f"{text} {place}", text)} for place, text in enumerate(texts)]
    return apply_template(testing.records(rows), ROW, VOICE)


def same(one: Batch, other: Batch) -> bool:
    one, other = (build_mask(batch, RoleMask({"assistant": "train"})) for batch in (one, other))
    return all(one[name].to_lists() == other[name].to_lists() for name in ("sequence", "loss_mask"))


@pytest.mark.parametrize("texts", [["some words"] * 5, ["word " * 50_000]])
def test_a_block_whose_sample_differs_is_the_references(texts: list[str], monkeypatch: Patch) -> None:
    block = rendered(*texts)
    wanted = tokenize(block, ours(), None)
    right = tokenize(block, FastEncoder(ours()), None, reference=ours())
    assert same(right, wanted)
    assert "blocks_encoded_again" not in right.made
    wrong = FastEncoder.encode_spans

    def late(self: FastEncoder, texts: Sequence[str], special: bool, spans: CharSpans) -> tuple[Ragged, Array]:
        ids, tokens = wrong(self, texts, special, spans)
        return ids, tokens + (spans.start > 0)

    monkeypatch.setattr(FastEncoder, "encode_spans", late)
    again = tokenize(block, FastEncoder(ours()), None, reference=ours())
    assert same(again, wanted)
    assert again.made["blocks_encoded_again"] == 1


def test_the_sample_is_a_small_part() -> None:
    block = rendered(*(f"words of {place}" for place in range(500)))
    made = tokenize(block, FastEncoder(ours()), None, reference=ours()).made
    assert made["compared_with_transformers"] == 16


NFC_TOO = ("ours", "ours, NFC", "qwen2.5", "mistral-v1")


@functools.cache
def normalising(name: str) -> Tokenizer:
    """A tokenizer of the test material, or ours with a normaliser."""
    if not name.startswith("ours"):
        return loaded(shared("tokenizers", name))
    if name == "ours":
        return ours()
    return Tokenizer.load(changed_copy(OURS, Path(tempfile.mkdtemp(), "tokenizer"), normalizer={"type": "NFC"}))


ANY = st.text(max_size=30) | st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), max_size=8)


@pytest.mark.parametrize("name", NFC_TOO)
@given(st.lists(ANY, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
@example(["a\u0301 <|im_end|>\u2126", "", "\U0001f9d1\u200d\U0001f680x"], 1, True)
@example(["\u0628\u08d3\u0651", "\u09b9\u09fe\u09cd", "\U00011935\U00011930", "\u0c5c's \U000323b0's"], 1, True)
def test_ids_and_spans_of_any_text_are_the_references(name: str, texts: list[str], seed: int, special: bool) -> None:
    spans, tokenizer = spans_of(texts, seed), normalising(name)
    fast = FastEncoder(tokenizer)
    mine, theirs = (encoder.encode_spans(texts, special, spans) for encoder in (fast, tokenizer))
    assert mine[0].to_lists() == theirs[0].to_lists() == fast.encode(texts, special).to_lists()
    assert mine[1].tolist() == theirs[1].tolist()


def test_characters_that_both_know_are_not_left_to_the_reference() -> None:
    fast = FastEncoder(normalising("ours, NFC"))
    fast.encode(["\u0416\u4f60\u597d \u00e9 \u0928\u094d \U0001f600\U0001f9d1\u200d\U0001f680 \u20bf"], False)
    assert fast.fell_back == 0
    fast.encode(["plain", "\u0628\u08d3\u0651", "plain \u4f60"], False)
    assert fast.fell_back == 1


def with_added(folder: Path, *tokens: dict[str, Any], **changes: Any) -> Tokenizer:
    """Ours, with more added tokens."""
    plain = {**SOURCE["added_tokens"][0], "special": False}
    added = [*SOURCE["added_tokens"], *({**plain, "id": 5000 + at, **each} for at, each in enumerate(tokens))]
    return Tokenizer.load(changed_copy(OURS, folder, added_tokens=added, **changes))


MASK: dict[str, Any] = {"content": "[MASK]", "lstrip": True, "special": True}
NFC = {"type": "NFC"}
WITHOUT_Z = {
    **{token: number for token, number in SOURCE["model"]["vocab"].items() if "z" not in token},
    "<unk>": len(SOURCE["model"]["vocab"]),
}
MERGES = [pair for pair in SOURCE["model"]["merges"] if "z" not in "".join(pair)]
UNKNOWN = {**SOURCE["model"], "vocab": WITHOUT_Z, "merges": MERGES, "unk_token": "<unk>", "fuse_unk": True}
SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}


@pytest.mark.parametrize(
    ("tokens", "changes", "reason"),
    [
        ([MASK, {"content": "  ", "normalized": True}], {}, "the added token '[MASK]' in other places"),
        ([{"content": "ab", "normalized": True}, {"content": "b<x>"}], {}, "the added token 'b<x>'"),
        ([{"content": "\u2126", "normalized": True}], {"normalizer": NFC}, "the added token '\u2126'"),
        ([{"content": "<t>", "rstrip": True}, {"content": "  "}], {}, "the added token '<t>' in other places"),
        ([], {"pre_tokenizer": SPLIT}, "splits no words"),
        ([], {"model": UNKNOWN}, "it does not take this tokenizer"),
    ],
)
def test_added_tokens_that_gigatoken_finds_elsewhere_close_its_gate(
    tokens: list[dict[str, Any]], changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    backend, problem = choose(with_added(tmp_path / "t", *tokens, **changes), "auto")
    assert backend == "transformers"
    assert reason in str(problem)


@pytest.mark.parametrize(
    ("content", "texts", "fell_back"),
    [
        ("\u226e", ["<\u0338", "a \u226e b", "\u0628\u08d3\u0651", "\U000105d2\u0307"], 3),
        ("the", ["the\u0301", "the \u4f60", "\u00e9the", "e\u0301the"], 2),
    ],
)
def test_ids_and_spans_of_a_token_that_is_found_in_normalised_text_are_the_references(
    content: str, texts: list[str], fell_back: int, tmp_path: Path
) -> None:
    tokenizer = with_added(tmp_path / "t", {"content": content, "normalized": True}, normalizer=NFC)
    assert choose(tokenizer, "auto")[0] == "gigatoken"
    fast = FastEncoder(tokenizer)
    assert fast.encode(texts, False).to_lists() == tokenizer.encode(texts, False).to_lists()
    assert fast.fell_back == fell_back
    compare(tokenizer, texts)


FLAGS = ("normalized", "single_word", "lstrip", "rstrip", "special")
CONTENTS = (
    "<t>", "ab", "b<x>", "[M]", "  ", "\n\n", "\t", "the", "\u00e9", "e\u0301", "\u226e", " b", "<t>x", "a", "\u2126"
)  # fmt: skip
AROUND = (*CONTENTS, " ", "\n", "x", "e", "<", "\u0301", "\u0338", "\u03a9", "\u08d3\u0651", "the end")
# Two tokens that are one text when they are normalised make a tokenizer that is refused.
ADDED = st.lists(
    st.tuples(st.sampled_from(CONTENTS), st.frozensets(st.sampled_from(FLAGS), max_size=3)),
    min_size=1, max_size=3, unique_by=lambda token: unicodedata.normalize("NFC", token[0]),
)  # fmt: skip


@pytest.mark.long
@given(ADDED, st.booleans(), st.lists(st.lists(st.sampled_from(AROUND), max_size=6).map("".join), max_size=8))
def test_with_any_added_tokens_ids_and_spans_are_the_references_or_the_gate_is_closed(
    tokens: list[tuple[str, frozenset[str]]], nfc: bool, texts: list[str]
) -> None:
    added = [{"content": content, **dict.fromkeys(flags, True)} for content, flags in tokens]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = with_added(Path(folder, "t"), *added, **({"normalizer": NFC} if nfc else {}))
        compare(tokenizer, texts)


TOKENS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


@given(TOKENS, TOKENS)
def test_tokens_overlap_if_a_text_can_hold_a_part_of_both(some: list[str], others: list[str]) -> None:
    def overlap(one: str, other: str) -> bool:
        return other in one or any(one.endswith(other[:size]) for size in range(1, len(other)))

    wanted = [one for one in some if any(overlap(one, other) or overlap(other, one) for other in others)]
    assert [one for one in some if any(module.overlap(one, other) for other in others)] == wanted
