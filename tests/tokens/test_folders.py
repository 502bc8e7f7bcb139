"""What a tokenizer's folder means is what transformers makes of it: settings, tokens, named templates."""

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

import beam_prep as bp
from beam_prep.chat.chat_format import chat_format_of, template_of
from beam_prep.errors import TokenizerError
from beam_prep.recipe import prepare
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import Capture, Patch, shared
from tests.tokens.folders import TEMPLATES, differences, folder_of, load_reference
from tests.tokens.test_tokenizer import OURS, SOURCE, configure, copy_of

CHAT = [{"role": "user", "content": "Hi  "}, {"role": "assistant", "content": "Hello.\n"}]


def changed(target: Path, base: Path = OURS, files: dict[str, str] | None = None, **config: Any) -> Path:
    """A copy of a folder with other settings and files."""
    configure(copy_of(base, target), **config)
    for name, text in (files or {}).items():
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text(text)
    return target


def with_templates(target: Path, **templates: str) -> Path:
    made = changed(target, chat_template=[{"name": name, "template": text} for name, text in templates.items()])
    (made / "chat_template.jinja").unlink()
    return made


def check_folders(base: Path, seed: str, count: int, tmp_path: Path) -> None:
    for number in range(count):
        rng = random.Random(f"{seed}/{base.name}/{number}")
        path = tmp_path / str(number)
        names = folder_of(rng, base, path)
        reference = load_reference(path)
        if reference is not None:
            found = differences(path, reference, rng, texts=20, conversations=6)
            # The class may name a token that the base lacks: that is refused.
            assert [each for each in found if "which the vocabulary lacks" not in each] == [], names


def test_a_folder_drawn_at_random_gives_the_ids_and_texts_of_transformers(tmp_path: Path) -> None:
    check_folders(OURS, "quick", 12, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("base", ["chatml-12k", "mistral-v1", "minimind", "t5-small", "tekken-32k"])
def test_a_folder_of_another_vocabulary_gives_them_too(base: str, tmp_path: Path) -> None:
    check_folders(shared("tokenizers", base), "long", 10, tmp_path)


def test_equal_splits_of_a_run_of_dashes_are_those_of_a_unigram_class_of_transformers(tmp_path: Path) -> None:
    folder = changed(tmp_path / "made", shared("tokenizers", "t5-small"), tokenizer_class="T5Tokenizer")
    texts = ["-" * size for size in range(1, 40)]
    mine = Tokenizer.load(folder).encode(texts, add_special_tokens=True).to_lists()
    assert mine == load_reference(folder)(texts)["input_ids"]


def test_templates_in_the_folder_below_are_named_by_their_files(tmp_path: Path) -> None:
    more = {"additional_chat_templates/rag.jinja": "{{ 'rag' }}"}
    tokenizer = Tokenizer.load(changed(tmp_path / "made", files=more))
    assert sorted(tokenizer.chat_templates) == ["default", "rag"]
    assert tokenizer.with_template("rag").chat_template == "{{ 'rag' }}"
    assert tokenizer.chat_template == (OURS / "chat_template.jinja").read_text()
    with pytest.raises(TokenizerError, match=r"found 'rags', .* named 'default', 'rag' .*rags\.jinja"):
        tokenizer.with_template("rags")
    with pytest.raises(TokenizerError, match="this tokenizer's are named nothing"):
        Tokenizer.load(OURS).with_template("rag")


def test_named_templates_without_a_default_one_are_listed(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(with_templates(tmp_path / "made", rag="{{ 1 }}", tool_use="{{ 2 }}"))
    with pytest.raises(TokenizerError, match=r"named 'rag', 'tool_use', and none is the default one: name one"):
        template_of(tokenizer)
    assert tokenizer.with_template("tool_use").chat_template == "{{ 2 }}"


def test_a_config_names_the_template_that_renders(tmp_path: Path) -> None:
    brief = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    tokenizer = Tokenizer.load(with_templates(tmp_path / "made", default=TEMPLATES["default"], brief=brief))
    sections = [{"field": "messages", "action": "$role", "template": "conversation"}]
    config = {"input": {"sections": sections, "chat_template": "brief"}, "mask": {"assistant": "train"}}
    block = bp.testing.records([{"messages": CHAT}])
    (ids,) = prepare(block, bp.PipelineConfig.from_dict(config), tokenizer)["sequence"].to_lists()
    assert tokenizer.decode(ids) == "user=Hi  ;assistant=Hello.\n;"


def test_parts_of_a_document_are_encoded_with_the_tokenizers_settings(tmp_path: Path) -> None:
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    folder = copy_of(OURS, tmp_path / "made", pre_tokenizer=metaspace)
    tokenizer = Tokenizer.load(configure(folder, split_special_tokens=True))
    assert tokenizer.inside is not tokenizer.reference
    assert [each.encode_special_tokens for each in (tokenizer.reference, tokenizer.inside)] == [True, True]


def test_a_new_token_for_which_the_model_has_a_row_is_taken(tmp_path: Path) -> None:
    rows = json.dumps({"model_type": "llama", "vocab_size": 1 << 17})
    folder = changed(tmp_path / "made", files={"config.json": rows}, pad_token="<pad_new>")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.pad_id == load_reference(folder).pad_token_id == tokenizer.max_id


def test_a_new_token_is_refused_without_a_tokenizer_json_too(tmp_path: Path) -> None:
    vocab = {character: number for number, character in enumerate([*sorted(ByteLevel.alphabet()), "<end>"])}
    names = {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<end>")}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    for pad, added in (("<end>", {}), ("<pad>", {"<pad>": len(vocab)})):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**names, "pad_token": pad}))
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
        assert Tokenizer.load(tmp_path).pad_id == {**vocab, **added}[pad]
    (tmp_path / "added_tokens.json").unlink()
    with pytest.raises(TokenizerError, match=r"pad_token names '<pad>', which the vocabulary lacks; .* new id 257"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "name", "content", "says"),
    [
        ({"model_max_length": "512"}, "", b"", r": tokenizer_config.json has model_max_length '512'.+ without quotes"),
        ({"pad_token": "<pad_new>"}, "", b"", r"pad_token names '<.*>', which the vocabulary lacks; .* new id \d+"),
        ({"extra_special_tokens": {"a_token": "<|a|>"}}, "", b"", r"names '<.*>', which the vocabulary lacks"),
        ({}, "tokenizer.json", b"{x", r"tokenizer.json cannot be read \(Expecting property name"),
        ({}, "tokenizer.json", b"version https://git-lfs.github", "a Git LFS pointer, .+: git lfs pull"),
        ({}, "chat_template.jinja", "1".encode("utf-16"), r"jinja cannot be read \(.+ invalid start byte"),
        ({}, "chat_template.jinja", b"\xef\xbb\xbf{{ 1 }}", r"'chat_template' begins with a byte order mark \(BOM\)"),
        ({}, "additional_chat_templates/rag.jinja", b"\xef\xbb\xbf", r"'rag' begins with a byte order mark \(BOM\)"),
        ({}, "additional_chat_templates/rag.jinja", b"\xe4", r"rag.jinja cannot be read \(.+ unexpected end of data"),
    ],
)
def test_a_folder_that_cannot_be_used_says_what_is_wrong_where(
    config: dict[str, Any], name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    folder = changed(tmp_path / "made", **config)
    if name:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.load(folder)


def test_code_in_the_folder_is_refused_and_never_run(tmp_path: Path, capfd: Capture) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    about = {"tokenizer_class": "HomeTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_home.Home", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "tokenization_home.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(TokenizerError, match=r"code of its own \(`auto_map`\), which is never run here: load it"):
        Tokenizer.load(folder)
    assert "[y/N]" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"tokenizer.model": "IQ== 0\nIg== 1\n"}, "pip install 'sentencepiece<0.2.3' tiktoken .+, or load it with"),
        ({"spiece.model": "version https://git-lfs.github.com/spec/v1"}, "is a Git LFS pointer, .+ type: git lfs pull"),
        ({"tekken.json": "{}", "config.json": '{"model_type": "mistral"}'}, r"tekken.json: with PreTrained"),
        ({"vocab.json": "{}", "merges.txt": ""}, "transformers says: .+vocab.json: with its class, as GPT2Tokenizer"),
    ],
)
def test_files_that_are_no_tokenizer_json_say_what_reads_them(
    files: dict[str, str], wanted: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    installed = importlib.util.find_spec
    hidden = ("tiktoken", "sentencepiece")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in hidden else installed(name))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TokenizerError, match=wanted):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["LlamaTokenizer", "GemmaTokenizerFast", "XLMRobertaTokenizer", "T5Tokenizer"])
def test_a_folder_without_the_vocabulary_of_its_class_is_an_error(name: str, tmp_path: Path) -> None:
    """transformers loads it: every text is unknown, or nothing."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    (tmp_path / "tokenizer.model.v7").write_bytes(b"\n")
    with pytest.raises(TokenizerError, match=r"special tokens and no other, .+: wanted .*tokenizer.json"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_and_merges_are_loaded_where_the_class_is_named(tmp_path: Path) -> None:
    model = SOURCE["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokenizer, reference = Tokenizer.load(tmp_path), load_reference(tmp_path)
    assert tokenizer.encode(["Hello there"], True).to_lists()[0] == reference("Hello there")["input_ids"] != []


def test_an_added_token_of_which_the_normaliser_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    """The Rust library would panic, with a traceback, on the first text that is not ASCII."""
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    before = SOURCE["added_tokens"][:3]
    for normalized in (True, False):
        token = {**before[0], "id": 4096, "content": "\n", "special": False, "normalized": normalized}
        folder = copy_of(OURS, tmp_path / str(normalized), normalizer=strip, added_tokens=[*before, token])
        if normalized:
            with pytest.raises(TokenizerError, match=r"leaves nothing of the added token '\\n'"):
                Tokenizer.load(folder)
    assert Tokenizer.load(folder).encode(["\u00a3\n"], False).flat[-1] == 4096


@pytest.mark.parametrize("rule", ["single_word", "split_special_tokens"])
def test_an_eos_text_that_does_not_become_the_eos_token_is_an_error(rule: str, tmp_path: Path) -> None:
    tokens = [{**token, "single_word": rule == "single_word"} for token in SOURCE["added_tokens"]]
    folder = copy_of(OURS, tmp_path / "made", added_tokens=tokens)
    configure(folder, split_special_tokens=rule == "split_special_tokens")
    with pytest.raises(TokenizerError, match=r"this tokenizer makes \['a', '.+\] of 'a<.+', wanted '<.+' in one piece"):
        chat_format_of((), Tokenizer.load(folder), bp.TextRules(eos="always"))


def test_the_longest_row_of_the_model_is_known(tmp_path: Path) -> None:
    for place, (given, known) in enumerate([(512, 512), (512.0, 512), (-1, None), (None, None)]):
        folder = changed(tmp_path / str(place), model_max_length=given)
        assert Tokenizer.load(folder).model_max_length == known


def test_a_token_that_only_we_read_is_an_error_where_the_template_writes_it(tmp_path: Path) -> None:
    """transformers does not look into `special_tokens`: the template would write nothing there."""
    folder = changed(tmp_path / "made", special_tokens={"eos_token": "<|im_end|>"}, eos_token=None)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Tokenizer.load(folder).special_tokens["eos_token"] == "<|im_end|>"
    (folder / "chat_template.jinja").write_text("{{ messages[0].content + eos_token }}")
    with pytest.raises(TokenizerError, match=r'Name it at the top of tokenizer_config\.json, as "eos_token": "<\|im_'):
        Tokenizer.load(folder)
