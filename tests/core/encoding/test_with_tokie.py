"""tokie behind its gate: WordPiece and Unigram, and what of them is left to the reference."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from beam_prep.core.encoding import backends, with_tokie
from beam_prep.core.encoding.backends import PROBES, FastEncoder, choose, encoder_of
from beam_prep.core.encoding.fast_backend import Encoded, Unsupported
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.errors import TokenizerError
from tests.conftest import ROOT, shared
from tests.core.encoding.test_tokenizer import verify_texts

pytest.importorskip("tokie")

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
MASK = {**FLAGS, "content": "<mask>", "lstrip": True, "normalized": True, "special": True}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
COLLAPSE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
CONTROLS = {"bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), "xlm-r": ("<s>", "<pad>", "</s>", "<unk>")}


def around(first: str, last: str, source: dict[str, Any]) -> dict[str, Any]:
    ids = {token["content"]: token["id"] for token in source["added_tokens"]}
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (first, last)}
    one = [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    one.append({"SpecialToken": {"id": last, "type_id": 0}})
    pair = [*one, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": one, "pair": pair, "special_tokens": special}


@functools.cache
def learnt(kind: str, lowercase: bool = True) -> str:
    """A `tokenizer.json`, trained on the docs of this project."""
    texts = [path.read_text() for path in sorted(ROOT.glob("docs/*.md"))[:8]]
    special = list(CONTROLS[kind])
    if kind == "bert":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.train_from_iterator(
            texts, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
        )
    else:
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=900, show_progress=False, special_tokens=special, unk_token="<unk>"
        )
        made.train_from_iterator(texts, trainer)
    return str(made.to_str())


def written(folder: Path, kind: str, lowercase: bool = True, added: Any = (), **changes: Any) -> Tokenizer:
    """A small tokenizer. `added`: more added tokens; `changes`: other keys of its tokenizer.json."""
    source = json.loads(learnt(kind, lowercase))
    if kind == "xlm-r":
        t5 = json.loads(shared("tokenizers", "t5-small").joinpath("tokenizer.json").read_bytes())
        source["normalizer"] = {
            "type": "Sequence",
            "normalizers": [t5["normalizer"]["normalizers"][0], STRIP, COLLAPSE],
        }
    first, last = (CONTROLS[kind][place] for place in ((2, 3) if kind == "bert" else (0, 2)))
    source["post_processor"] = around(first, last, source)
    for token in added:
        source["added_tokens"].append({**token, "id": len(source["model"]["vocab"]) + len(source["added_tokens"]) - 4})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({**source, **changes}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return Tokenizer.load(folder)


def precompiled() -> dict[str, Any]:
    t5 = json.loads(shared("tokenizers", "t5-small").joinpath("tokenizer.json").read_bytes())
    return dict(t5["normalizer"]["normalizers"][0])


KINDS: dict[str, Any] = {
    "bert-uncased": lambda folder: written(folder, "bert"),
    "bert-cased": lambda folder: written(folder, "bert", lowercase=False),
    "t5-small": lambda _: Tokenizer.load(shared("tokenizers", "t5-small")),
    "xlm-r": lambda folder: written(folder, "xlm-r", added=[MASK]),
    "xlm-r, split at white space": lambda folder: written(
        folder,
        "xlm-r",
        normalizer=precompiled(),
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
    ),
}


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))


def test_auto_takes_it_and_its_ids_are_the_references(tokenizer: Tokenizer) -> None:
    assert choose(tokenizer, "auto", ["first record"]) == ("tokie", None)
    fast = FastEncoder(tokenizer, "tokie")
    texts = [text[:2000] for text in [*PROBES, *verify_texts()]]
    texts += [
        *tokenizer.controls,
        "a <mask> b",
        "x\u0085",
        "blanks \n\n",
        "\u2581",
        "a </s> b",
        "a" * 150,
        "'9999'99999",
    ]
    for special in (False, True):
        ids = fast.encode(texts, special)
        assert ids.to_lists() == tokenizer.encode(texts, special).to_lists()
        assert ids.flat.dtype == np.int32
    assert 0 < fast.fell_back < len(texts)
    assert FastEncoder(tokenizer, "tokie").encode([], True).to_lists() == []


ODD = ["\u0301", "\u200d", "\u1734", "\u08e2", "\ufe0f", "\u0378", "\x7f", "\u03a3", "\u2581", "\u3099", "\U0001f600"]


@given(
    st.lists(
        st.lists(
            st.one_of(st.text(max_size=5), st.sampled_from([*ODD, " ", "  ", "\n", "<mask>", "[SEP]", "</s>", "aa"]))
        ).map("".join),
        max_size=4,
    ),
    st.booleans(),
)
@example(["a \u0378 b", "\n", "", "\u0395\u03a3 \u0395\u03a3\u0391"], True)
def test_ids_of_any_text_are_the_references(tokenizer: Tokenizer, texts: list[str], special: bool) -> None:
    found = FastEncoder(tokenizer, "tokie").encode(texts, special)
    assert found.to_lists() == tokenizer.encode(texts, special).to_lists()


@given(st.lists(st.sampled_from(["9", "99", "(", "8", ",", ".", "=", "\u732b", "a", "-", "e"]), max_size=40))
def test_equal_segmentations_are_decided_as_the_reference_does(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    found = FastEncoder(tokenizer, "tokie").encode([text], False)
    assert found.to_lists() == tokenizer.encode([text], False).to_lists()


def test_a_text_longer_than_what_is_kept_of_words_has_the_references_ids(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(with_tokie, "_ANEW", 1000)
    loaded = with_tokie.load(tokenizer)
    texts = [text for text in verify_texts() if text.isascii()][:20]
    for text in (*texts, "word 99 " * 20_000):
        ids, left = loaded.encode([text])
        if not len(left):
            assert ids.to_lists() == tokenizer.encode([text], False).to_lists()


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bert", {"normalizer": None}, "wanted BertNormalizer"),
        ("bert", {"pre_tokenizer": {"type": "Whitespace"}}, "wanted BertNormalizer and BertPreTokenizer"),
        ("xlm-r", {"normalizer": {"type": "NFKC"}}, "a Unigram with NFKC"),
        ("xlm-r", {"normalizer": {"type": "Sequence", "normalizers": [COLLAPSE]}}, "wanted Precompiled"),
        ("xlm-r", {"pre_tokenizer": {**METASPACE, "prepend_scheme": "first"}}, "a Unigram with Metaspace, or another"),
        ("xlm-r", {"pre_tokenizer": None}, "wanted Metaspace"),
    ],
)
def test_a_kind_that_was_not_tried_is_refused(tmp_path: Path, kind: str, changes: Any, reason: str) -> None:
    tokenizer = written(tmp_path, kind, **changes)
    with pytest.raises(Unsupported, match=reason):
        with_tokie.load(tokenizer)
    backend, problem = choose(tokenizer, "auto")
    assert backend == "transformers"
    assert str(problem).startswith("gigatoken is not used: it does not take this tokenizer")
    assert "; tokie is not used: " in str(problem)


VAGUE = [
    {**FLAGS, "content": "Word", "normalized": True, "special": False},
    {**FLAGS, "content": "\u2603x", "normalized": True, "special": False},
    {**FLAGS, "content": "solo", "single_word": True, "special": False},
]


@pytest.mark.parametrize("kind", ["bert", "xlm-r"])
def test_tokens_that_are_matched_in_normalised_text_or_as_words_are_left(tmp_path: Path, kind: str) -> None:
    tokenizer = written(tmp_path, kind, added=VAGUE)
    loaded = with_tokie.load(tokenizer)
    texts = [
        "a Word b",
        "a word",
        "\uff37ord",
        "W\u0001ord",
        "\u2603x",
        "a\u2603xb",
        "solo",
        "a solo.",
        "soloist",
        "plain bit",
    ]
    ids, left = loaded.encode(texts)
    mine, theirs = ids.to_lists(), tokenizer.encode(texts, False).to_lists()
    assert all(mine[place] == theirs[place] for place in set(range(len(texts))) - set(left.tolist()))
    blank = [{**VAGUE[0], "content": " Word"}]
    with pytest.raises(Unsupported, match="an added token that begins with a blank"):
        with_tokie.load(written(tmp_path / "blank", kind, added=blank))


def test_a_tokenizer_that_it_splits_in_another_way_is_refused(tmp_path: Path) -> None:
    tokenizer = written(tmp_path, "xlm-r", normalizer=precompiled())
    assert "tokie is not used: its ids differ from transformers' on ' '" in str(choose(tokenizer, "auto")[1])


def test_one_wrong_id_on_a_probe_closes_the_gate(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    right = with_tokie.WithTokie.encode

    def wrong(self: with_tokie.WithTokie, texts: Sequence[str]) -> Encoded:
        ids, left = right(self, texts)
        flat = ids.flat.copy()
        flat[ids.offsets[[place for place, text in enumerate(texts) if text == "of the input"]]] += 1
        return ids.with_flat(flat), left

    monkeypatch.setattr(with_tokie.WithTokie, "encode", wrong)
    backend, problem = choose(tokenizer, "auto", ["of the input"])
    assert backend == "transformers"
    assert "tokie is not used: its ids differ from transformers' on the probe 'of the input'" in str(problem)


def test_another_version_or_none_means_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = written(tmp_path, "bert")
    backends._loaded.cache_clear()  # of the same one, in an earlier test
    monkeypatch.setattr(with_tokie, "VERSION", "0.0.1")
    assert "tokie is not used: version " in str(choose(tokenizer, "auto")[1])
    monkeypatch.setitem(sys.modules, "tokie", None)
    assert "tokie is not used: it is not installed here" in str(choose(tokenizer, "auto")[1])
    assert encoder_of(tokenizer, "tokie").backend == "transformers"  # a worker without the launcher's wheel
    with pytest.raises(TokenizerError, match=r"--tokenizer_backend tokie: it is not installed .*beam-prep\[fast\]"):
        choose(tokenizer, "tokie")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells a library how many cores it has")
def test_no_text_starts_a_thread(tokenizer: Tokenizer) -> None:
    """One process a core has no use for more; a long text makes them all."""
    code = (
        "import os, resource, sys; from beam_prep.core.encoding import with_tokie\n"
        "from beam_prep.core.encoding.tokenizer import Tokenizer\n"
        "loaded = with_tokie.load(Tokenizer.load(sys.argv[1]))\n"
        "loaded.encode(['all is imported now'])\n"
        "os.getuid() or os.setuid(65534)  # root may start threads whatever the limit\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
        "loaded.encode(['word ' * 100_000] * 3); print('done')"
    )
    made = subprocess.run([sys.executable, "-c", code, tokenizer.folder], capture_output=True, text=True, cwd=ROOT)
    assert made.stdout == "done\n", made.stderr
