"""Tokenizers: ids as transformers gives them, one fingerprint everywhere, folders that others can read."""

import functools
import gzip
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_prep.chat.chat_format import template_of
from beam_prep.errors import TokenizerError
from beam_prep.tokens import resolver
from beam_prep.tokens import tokenizer as module
from beam_prep.tokens.tokenizer import Tokenizer
from tests.chars import char_spans
from tests.conftest import ROOT, SHARED, Patch, shared
from tests.reference import auto
from tests.reference import ours as load

OURS = ROOT / "examples" / "tokenizer"
SOURCE = json.loads((OURS / "tokenizer.json").read_text())

# Runs of `-` in which two segmentations tie (the material's README): other ids there, as many of them.
TIES = {"t5-small": {71, 74, 77, 148}}


# Each is made as another one that is tried each time, with another template or vocabulary.
ALIKE = {"gpt2", "tekken-32k", "minimind", "mm_chatml", "mistral-v3", "mistral-v1-conversations", "mistral-v3-sections"}


def _folders() -> Iterator[Any]:
    yield pytest.param(OURS, id="ours")
    base = SHARED / "tokenizers"
    for path in sorted(base.iterdir()) if base.is_dir() else ():
        if path.is_dir():
            yield pytest.param(path, id=path.name, marks=pytest.mark.long if path.name in ALIKE else ())


@pytest.fixture(scope="module", params=_folders())
def folder(request: pytest.FixtureRequest) -> Path:
    """Every tokenizer at hand, one after the other: each is loaded once."""
    return Path(request.param)


@functools.cache
def verify_texts() -> list[str]:
    return [entry["text"] for entry in json.loads(shared("tokenizers", "verify_texts.json").read_text())]


def copy_of(folder: Path, target: Path, **changes: Any) -> Path:
    """A tokenizer folder with keys of its tokenizer.json changed."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.py", "beam_prep.json"))
    source = json.loads((target / "tokenizer.json").read_text())
    (target / "tokenizer.json").write_text(json.dumps({**source, **changes}))
    return target


def configure(folder: Path, **changes: Any) -> Path:
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


# Ids


@functools.cache
def ids_of(folder: Path) -> list[list[int]]:
    return load(folder).encode(verify_texts(), False).to_lists()


def test_ids_are_those_of_transformers(folder: Path) -> None:
    assert ids_of(folder) == auto(folder)(verify_texts(), add_special_tokens=False)["input_ids"]
    assert load(folder).max_id == max(load(folder).reference.get_vocab(with_added_tokens=True).values())
    texts = ["", *verify_texts()[1::8]]
    assert load(folder).encode(texts, True).to_lists() == auto(folder)(texts, add_special_tokens=True)["input_ids"]


def test_ids_are_those_of_an_independent_encoder(folder: Path) -> None:
    golden = folder / "golden_ids.jsonl.gz"
    if not golden.exists():
        pytest.skip("no golden ids")
    wanted = [json.loads(line) for line in gzip.decompress(golden.read_bytes()).splitlines()]
    ties = TIES.get(folder.name, set())
    differ = {place for place, (one, other) in enumerate(zip(ids_of(folder), wanted, strict=True)) if one != other}
    assert differ <= ties
    assert all(len(ids_of(folder)[place]) == len(wanted[place]) for place in ties)


def test_more_texts_than_one_call_takes_come_back_in_order() -> None:
    tokenizer = Tokenizer.load(OURS)
    texts = [f"text number {number}" * (number % 5) for number in range(1000)] + ["text " * 5500] * 5
    whole = [encoding.ids for encoding in tokenizer.reference.encode_batch(texts, add_special_tokens=False)]
    assert [len(chunk) for chunk in module.chunks(texts)] == [512, 489, 2, 2]  # of 65,536 characters at most
    assert tokenizer.encode(texts, False).to_lists() == whole
    spans = char_spans([(place, 0, 4) for place, text in enumerate(texts) if text])
    ids, places = tokenizer.encode_spans(texts, False, spans)
    assert ids.to_lists() == whole
    assert places.T.tolist() == [[0, len(tokenizer.encode(["text"], False).flat)]] * len(spans)


def test_spans_cover_the_tokens_that_overlap_them(folder: Path) -> None:
    """Offsets of the reference, token by token; what a normaliser takes away is left out of the comparison."""
    tokenizer, choose = load(folder), random.Random(0)
    backend = tokenizer.reference
    texts = [text[:300] for text in verify_texts()[::4]] + ["a\u0301 é 日本語 🧑‍🚀 \u2126 x"]
    spans = []
    for place, text in enumerate(texts):
        cuts = [sorted(choose.sample(range(len(text) + 1), 2)) for _ in range(5) if len(text) > 1]
        spans += [(place, start, stop) for start, stop in cuts]
    for special in (False, True):
        ids, found = tokenizer.encode_spans(texts, special, char_spans(spans))
        assert ids.to_lists() == tokenizer.encode(texts, special).to_lists()
        offsets = [backend.encode(text, add_special_tokens=special).offsets for text in texts]
        for (place, start, stop), (first, last) in zip(spans, found.T, strict=True):
            overlap = [token for token, (a, b) in enumerate(offsets[place]) if a < stop and b > start and a < b]
            assert list(range(first, last)) == overlap, (texts[place], start, stop)


def test_a_token_of_white_space_that_takes_more_of_it_is_covered(tmp_path: Path) -> None:
    token = {**SOURCE["added_tokens"][0], "id": 4096, "content": "\n\n", "lstrip": True}
    folder = copy_of(OURS, tmp_path / "made", added_tokens=[*SOURCE["added_tokens"], token])
    ids, (first, last) = Tokenizer.load(folder).encode_spans(["a: \n\nb"], False, char_spans([(0, 3, 6)]))
    assert ids.to_lists()[0][int(first[0]) : int(last[0])][0] == 4096


def test_the_pieces_of_a_text_join_to_the_whole() -> None:
    tokenizer = load(shared("tokenizers", "t5-small"))
    for text in ("Hello, world!", "日本語 🧑‍🚀 é", "", " a  b", "x\n\ny"):
        ids = tokenizer.encode([text], True).flat.tolist()
        assert "".join(tokenizer.pieces(ids)) == tokenizer.decode(ids)
        assert len(tokenizer.pieces(ids)) == len(ids)


# Special tokens


def test_the_usual_keys_win_over_the_object(tmp_path: Path) -> None:
    more = {"bos_token": "<|im_end|>", "x_token": "<|pad|>"}
    tokenizer = Tokenizer.load(configure(copy_of(OURS, tmp_path / "t"), special_tokens=more))
    assert tokenizer.special_tokens["bos_token"] == "<|bos|>"
    assert tokenizer.special_tokens["x_token"] == "<|pad|>"
    lacks = configure(copy_of(OURS, tmp_path / "u"), bos_token=None, special_tokens={"bos_token": "<nowhere>"})
    assert Tokenizer.load(lacks).bos_id is None


# What a tokenizer.json may say besides

FIXED = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
PADDING = {**FIXED, "pad_id": 3, "pad_type_id": 0, "pad_token": "<|pad|>"}
TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}


def test_padding_and_truncation_that_are_stored_are_off(tmp_path: Path) -> None:
    folder = copy_of(OURS, tmp_path / "t", padding=PADDING, truncation=TRUNCATION)
    texts = ["a", "a much longer text that would be cut", ""]
    tokenizer, plain = Tokenizer.load(folder), Tokenizer.load(OURS)
    spans = char_spans([(0, 0, 1), (1, 7, 36)])
    for special in (False, True):
        (ids, places), wanted = (each.encode_spans(texts, special, spans) for each in (tokenizer, plain))
        assert ids.to_lists() == wanted[0].to_lists() == tokenizer.encode(texts, special).to_lists()
        assert places.tolist() == wanted[1].tolist()
    assert tokenizer.fingerprint == plain.fingerprint
    kept = json.loads(Path(tokenizer.folder, "tokenizer.json").read_text())
    assert (kept["padding"], kept["truncation"]) == (None, None)


# Fingerprints


def test_the_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    names = ["mm_chatml_pp", "chatml-12k"]
    folders = [str(OURS), *(str(shared("tokenizers", name)) for name in names)]
    program = (
        "import sys; from beam_prep.tokens.tokenizer import Tokenizer; "
        "print(*(Tokenizer.load(path).fingerprint for path in sys.argv[1:]))"
    )
    # An empty folder for temporary files: nothing that this process resolved is met there.
    environment = {**os.environ, "PYTHONHASHSEED": "1", "TMPDIR": str(tmp_path), "LC_ALL": "C"}
    found = subprocess.check_output([sys.executable, "-c", program, *folders], env=environment, text=True).split()
    assert found == [Tokenizer.load(path).fingerprint for path in folders]
    assert len(set(found)) == 3


@pytest.mark.parametrize("change", ["vocabulary", "template", "bos"])
def test_whatever_changes_the_ids_changes_the_fingerprint(change: str, tmp_path: Path) -> None:
    """An output's `tokenizer/` is a natural start for one's own: the mark in it must not vouch for other files."""
    before = Tokenizer.load(OURS)
    assert Tokenizer.load(copy_of(OURS, tmp_path / "copy")).fingerprint == before.fingerprint
    before.save(tmp_path / "saved")
    for folder in (tmp_path / "copy", tmp_path / "saved"):
        if change == "template":
            (folder / "chat_template.jinja").write_text("{{ messages }}!")
        elif change == "bos":
            configure(folder, bos_token="<|im_end|>")
        else:
            model = {**SOURCE["model"], "merges": SOURCE["model"]["merges"][:-1]}
            (folder / "tokenizer.json").write_text(json.dumps({**SOURCE, "model": model}))
        after = Tokenizer.load(folder)
        assert after.fingerprint != before.fingerprint
        assert (after.chat_template == "{{ messages }}!") == (change == "template")
        assert (after.special_tokens["bos_token"] == "<|im_end|>") == (change == "bos")


def test_it_is_cheap_to_pickle_and_the_same_on_the_other_side() -> None:
    tokenizer = Tokenizer.load(OURS)
    tokenizer.encode(["loads it"], False)
    data = pickle.dumps(tokenizer)
    assert len(data) < 500
    assert pickle.loads(data).encode(["Hello"], True).to_lists() == tokenizer.encode(["Hello"], True).to_lists()


# What is no tokenizer


@pytest.fixture
def offline(monkeypatch: Patch) -> None:
    monkeypatch.setattr(resolver, "hub_answers", lambda: False)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("path", ["/nowhere/tokenizer", "../nowhere", "a/b/c", "some-org/some-model", "", "."])
def test_a_wrong_path_is_answered_with_what_to_type(path: str) -> None:
    assert_answered(path)


@pytest.mark.parametrize("source", [None, "{}", '{"model": {"type": "None"}}'])
def test_a_folder_without_a_good_tokenizer_json_is_answered_so(source: str | None, tmp_path: Path) -> None:
    assert_answered(str(OURS / "tokenizer.json"))
    assert_answered(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    if source is not None:
        (tmp_path / "tokenizer.json").write_text(source)
    assert_answered(str(tmp_path))


def assert_answered(path: str) -> None:
    """One line that names what was given, and what is wanted."""
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(path)
    message = str(caught.value)
    assert repr(path) in message
    assert "wanted a folder with tokenizer.json" in message or "wants a folder with tokenizer.json" in message
    assert "\n" not in message


@pytest.mark.usefixtures("offline")
def test_a_name_without_a_network_says_why_it_is_not_found() -> None:
    with pytest.raises(TokenizerError, match=r"Hub.+does not answer, and the name is not in the local cache"):
        Tokenizer.load("some-org/some-model")


def test_a_flipped_bit_in_a_saved_folder_is_never_trusted(tmp_path: Path) -> None:
    """Whatever the mark says: all of it follows from the other files."""
    saved = Path(Tokenizer.load(OURS).save(tmp_path / "saved").folder)
    mark = (saved / "beam_prep.json").read_bytes()
    assert resolver.is_resolved(saved)
    for place in range(0, len(mark), 7):
        (saved / "beam_prep.json").write_bytes(mark[:place] + bytes([mark[place] ^ 1]) + mark[place + 1 :])
        assert not resolver.is_resolved(saved)


def test_a_tokenizer_without_a_template_says_what_to_do() -> None:
    tokenizer = Tokenizer.load(shared("tokenizers", "t5-small"))
    assert tokenizer.chat_template is None
    with pytest.raises(TokenizerError, match=r"no chat template.+put a chat_template.jinja into the tokenizer's fol"):
        template_of(tokenizer)
