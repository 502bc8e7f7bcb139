"""Fill in the middle loses and adds nothing: the parts decode to the document, in the order of the models."""

import functools
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep import testing
from beam_prep.chat.apply import render_records
from beam_prep.config import PipelineConfig
from beam_prep.data.fim import Fim, FimMode
from beam_prep.data.schema import TextRules
from beam_prep.errors import TokenizerError
from beam_prep.recipe import prepare
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenize import tokenize_with
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT, shared, text_config

OURS = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
CODE_LLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")
OUTPUT = bp.Output("sequence", "ids", (bp.Section("text", "train"),), mask_name="loss_mask")
FIM = Fim(1.0, seed=5)
ADD = "def add(a, b):\n    return a + b\n"  # is cut into "def ", "add ... return", " a + b"


@functools.cache
def changed(name: str, added: tuple[str, ...] = (), special: bool = True, **parts: str) -> Tokenizer:
    """A tokenizer with tokens added to it, and with other parts, which are given as JSON."""
    folder = Path(tempfile.mkdtemp()) / "tokenizer"
    shutil.copytree(ROOT / "examples" / "tokenizer" if name == "ours" else shared("tokenizers", name), folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    made = json.loads((folder / "tokenizer.json").read_text())
    made.update({part: json.loads(text) for part, text in parts.items()})
    backend = tokenizers.Tokenizer.from_str(json.dumps(made))
    backend.add_tokens([tokenizers.AddedToken(text, special=special, normalized=not special) for text in added])
    backend.save(str(folder / "tokenizer.json"))
    try:
        return Tokenizer.load(folder)
    finally:
        shutil.rmtree(folder)


@functools.cache
def with_sentinels(name: str) -> Tokenizer:
    known = json.loads((shared("tokenizers", name) / "tokenizer.json").read_text())["added_tokens"]
    has = {token["content"] for token in known} & {"[PREFIX]", OURS[0]}
    return changed(name, () if has else OURS)


def batch_of(
    tokenizer: Tokenizer, texts: Sequence[str], fim: Fim = FIM, backend: str = "transformers", **rules: Any
) -> Batch:
    records = testing.records([{"text": text} for text in texts])
    rendered = render_records(records, (OUTPUT,), tokenizer, None, TextRules(fim=fim, **rules))
    return tokenize_with(rendered, tokenizer, backend, True)


def tokens(tokenizer: Tokenizer, text: str, fim: Fim = FIM, **rules: Any) -> list[str]:
    """What a document becomes, a text for each id."""
    (ids,) = batch_of(tokenizer, [text], fim, **rules)["sequence"].to_lists()
    return [str(tokenizer.reference.id_to_token(token)) for token in ids]


def joined(tokenizer: Tokenizer, ids: list[int], fim: Fim) -> str:
    """Prefix, middle and suffix, decoded together."""
    names = fim.of([token.content for token in tokenizer.added.values()]).sentinels or ()
    before, between, after = (tokenizer.reference.token_to_id(name) for name in names)
    parts: dict[int | None, list[int]] = {before: [], between: [], after: []}
    now: list[int] = []
    for token in ids:
        if token in parts:
            now = parts[token]
            assert not now
        elif token not in (tokenizer.bos_id, tokenizer.id_of("eos_token")):
            now.append(token)
    return tokenizer.decode([*parts[before], *parts[between], *parts[after]])


def words(text: str) -> list[str]:
    return text.split(" ")


def normalised(text: str) -> str:
    return unicodedata.normalize("NFC", text)


# In the models' own formats


def test_each_mode_of_a_sentencepiece_tokenizer() -> None:
    """What the document begins with has the space: the middle, where the prefix is empty."""
    tokenizer = changed("mistral-v3")
    found = tokens(tokenizer, ADD, eos="always")
    assert found == words("<s> [SUFFIX] ▁a ▁+ ▁b <0x0A> [PREFIX] ▁def ▁add ( a , ▁b ): <0x0A> ▁▁▁ ▁return </s>")
    suffix, middle = "[SUFFIX] ▁a ▁+ ▁b <0x0A>", "[MIDDLE] add ( a , ▁b ): <0x0A> ▁▁▁ ▁return"
    assert tokens(tokenizer, ADD, Fim(1.0, "psm", 5)) == words(f"<s> [PREFIX] ▁def ▁ {suffix} {middle}")
    found = tokens(tokenizer, "x=[1,2,3]", Fim(1.0, "psm", 1))
    assert found == words("<s> [PREFIX] [SUFFIX] =[ 1 , 2 , 3 ] [MIDDLE] ▁x")
    found = tokens(tokenizer, "  x=[1,2,3]", Fim(1.0, "spm", 7))
    assert found == words("<s> [PREFIX] [SUFFIX] [ 1 , 2 , 3 ] [MIDDLE] ▁▁ ▁x =")


def test_code_llama_ends_the_middle_with_its_own_token() -> None:
    tokenizer = changed("mistral-v1", CODE_LLAMA, True)
    suffix = "▁<SUF> ▁a ▁+ ▁b <0x0A> ▁<MID>"
    found = tokens(tokenizer, ADD, eos="always")
    assert found == words(f"<s> ▁<PRE> ▁def ▁ {suffix} add ( a , ▁b ): <0x0A> ▁▁▁ ▁return ▁<EOT> </s>")
    found = tokens(tokenizer, ADD, Fim(1.0, "spm", 5), eos="always")
    assert found == words(f"<s> ▁<PRE> {suffix} ▁def ▁add ( a , ▁b ): <0x0A> ▁▁▁ ▁return ▁<EOT> </s>")


# Exact for all documents and tokenizers


METASPACE = '{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "%s", "split": %s}'
BYTES = '{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}'
WAYS: dict[str, Callable[[], Tokenizer]] = {
    "bpe3k_nobos": lambda: with_sentinels("bpe3k_nobos"),
    "mistral-v3": lambda: with_sentinels("mistral-v3"),
    # Other ways to put a space before a text
    "first": lambda: changed("mistral-v3", normalizer="null", pre_tokenizer=METASPACE % ("first", "false")),
    "never": lambda: changed("mistral-v3", normalizer="null", pre_tokenizer=METASPACE % ("never", "true")),
    "bytes": lambda: changed("bpe3k_nobos", OURS, pre_tokenizer=BYTES),
    "prepended": lambda: changed("bpe3k_nobos", OURS, normalizer='{"type": "Prepend", "prepend": " "}'),
}


@pytest.mark.parametrize("way", WAYS)
@given(
    text=st.text(st.one_of(st.sampled_from(" \n\tab▁<é한"), st.characters(codec="utf-8")), min_size=1),
    seed=st.integers(0, 99),
    mode=st.sampled_from(get_args(FimMode)),
)
def test_the_parts_decode_to_the_document(way: str, text: str, seed: int, mode: FimMode) -> None:
    tokenizer, fim = WAYS[way](), Fim(1.0, mode, seed)
    (ids,) = batch_of(tokenizer, [text], fim, eos="always")["sequence"].to_lists()
    whole = tokenizer.decode(tokenizer.encode([text], False).flat.tolist())
    # A normaliser does not compose characters over a border.
    assert normalised(joined(tokenizer, ids, fim)) == normalised(whole)


def test_backends_give_the_same() -> None:
    texts = [f"{' ' * (number % 3)}line {number}\n\tx = {number}" for number in range(40)]
    for name in ("mistral-v3", "bpe3k_nobos"):
        tokenizer = with_sentinels(name)
        wanted = batch_of(tokenizer, texts, Fim(0.5, seed=1))["sequence"].to_lists()
        assert batch_of(tokenizer, texts, Fim(0.5, seed=1), "gigatoken")["sequence"].to_lists() == wanted


def test_a_tokenizer_that_loses_white_space_is_refused() -> None:
    tokenizer = changed("t5-small")
    named = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
    with pytest.raises(TokenizerError, match=r"the parts .* decode to .*, wanted .*: use a tokenizer that keeps"):
        batch_of(tokenizer, ["one two"], Fim(1.0, sentinels=named))


def test_sentinels_that_cannot_be_meant_are_refused() -> None:
    tokenizer = changed("ours", OURS)
    with pytest.raises(TokenizerError, match=r"wanted \[prefix, middle, suffix\], three different tokens"):
        batch_of(tokenizer, ["fine"], Fim(1.0, sentinels=(OURS[0], OURS[0], OURS[2])))
    with pytest.raises(TokenizerError, match=r", in the order \['<\|fim_pre"):
        batch_of(tokenizer, ["fine"], Fim(1.0, sentinels=(OURS[0], OURS[2], OURS[1])))


def test_sentinels_that_take_white_space_are_refused() -> None:
    backend = tokenizers.Tokenizer.from_str(changed("ours").reference.to_str())
    backend.add_tokens([tokenizers.AddedToken(text, special=True, lstrip=True) for text in OURS])
    tokenizer = changed("ours", added_tokens=json.dumps(json.loads(backend.to_str())["added_tokens"]))
    with pytest.raises(TokenizerError, match=r"none of the known sentinels without white space beside them"):
        batch_of(tokenizer, ["fine"], Fim(1.0))


# Documents that hold a sentinel


@pytest.mark.parametrize("rule", ["keep", "reject"])
def test_a_document_that_holds_a_sentinel_is_rejected(rule: str) -> None:
    tokenizer = changed("ours", OURS, special=rule == "keep")
    texts = ["fine", f"a {OURS[1]} b", "fine too", f"{OURS[2]}"]
    batch = batch_of(tokenizer, texts, Fim(0.5), control_tokens=rule)
    assert batch.line.tolist() == [0, 2]
    assert batch.ledger.outcomes == [("rejected", "control_token")]
    assert OURS[1] in batch.ledger.messages[1]
    assert OURS[2] in batch.ledger.messages[3]


@pytest.mark.parametrize("special", [True, False], ids=["special", "not special"])
def test_an_escaped_sentinel_is_text(special: bool) -> None:
    tokenizer = changed("ours", OURS, special)
    for seed in range(20):
        fim = Fim(1.0, "psm", seed)
        (ids,) = batch_of(tokenizer, [f"a {OURS[1]} b"], fim, control_tokens="escape")["sequence"].to_lists()
        assert joined(tokenizer, ids, fim) == "a <\u2060|fim_middle|> b"


@pytest.mark.parametrize("special", [True, False], ids=["special", "not special"])
def test_the_end_token_is_a_sentinel_too(special: bool) -> None:
    """Tokens that are not special are looked for in the normalised text: there " <PRE>" is "▁<PRE>"."""
    tokenizer = changed("mistral-v1", CODE_LLAMA, special)
    text = "a ▁<EOT>" if special else "a <PRE> b"
    batch = batch_of(tokenizer, ["fine", text, "a<PRE>"])
    assert batch.line.tolist() == [0, 2]
    assert ("'▁<EOT>'" if special else "'▁<PRE>'") in batch.ledger.messages[1]


# Of a config


@pytest.mark.parametrize(("mode", "encode"), [("psm", "separate"), ("spm", "joint")])
def test_a_config_says_rate_mode_and_seed(mode: FimMode, encode: str) -> None:
    tokenizer = changed("ours", OURS)
    texts = [f"def f{number}(x):\n    return x + {number}  # größer\n" for number in range(60)]
    ends = [text + "<|im_end|>" * (number % 2) for number, text in enumerate(texts)]
    rules = {"min_chars": 1, "eos": "if_missing", "encode": encode, "control_tokens": "keep"}
    given = text_config(preprocessing=rules, output={"fim": {"rate": 0.5, "mode": mode, "seed": 3}})
    batch = prepare(testing.records([{"text": text} for text in ends]), PipelineConfig.from_dict(given), tokenizer)
    wanted = batch_of(tokenizer, texts, Fim(0.5, mode, 3), eos="always")
    assert batch["sequence"].to_lists() == wanted["sequence"].to_lists()
    sentinel = tokenizer.reference.token_to_id(OURS[0])
    assert 15 < sum(sentinel in ids for ids in batch["sequence"].to_lists()) < 45
