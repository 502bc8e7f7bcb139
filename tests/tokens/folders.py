"""Tokenizer folders drawn at random: a base vocabulary with other settings, tokens, parts and templates.

`folder_of(rng, base, path)` writes one and gives the names of what it changed. `differences(path)` says where what the
product makes of a folder is not what transformers makes of it.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beam_prep.chat.chat_format import template_of
from beam_prep.data.block import Reject
from beam_prep.errors import TokenizerError
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.tokenizer import Tokenizer
from tests.chat.trained import CHATML

Draw = Callable[[random.Random, dict[str, Any], dict[str, Any], Path], None]
"""Changes the parsed config and tokenizer.json, or writes a file into the folder."""

TEMPLATES = {
    "default": CHATML,
    "tool_use": "{% if tools %}{{ 'Tools: ' + (tools | tojson) + '\n' }}{% endif %}" + CHATML,
    "marked": "{{ bos_token }}{% for m in messages %}\n[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{%- endfor %}\n",
    "spaces": "{# a #} {% set a = 1 %}\n  {{ a }} {{ messages[0].content }} \n  {% if a %}\n  yes\n  {% endif %}\r\n\n",
    "blocks": "\n{% set ns = namespace(n=0) %}\n{% macro one(m) %}\n{{ m.role }}: {{ m.content }}\n{% endmacro %}\n"
    "{% for m in messages %}\n  {% set ns.n = ns.n + 1 %}\n{{ ns.n }} {{ one(m) }}\n{% endfor %}\n\n",
}
WORDS = ["Hello", "world", "  two  spaces", "\n", "\t", "naïve", "日本語", "🙂", "don't", "1234", "fi", "x = [1]", ""]
TOOLS = [{"type": "function", "function": {"name": "tide", "description": "d", "parameters": {"type": "object"}}}]
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


def _added(parsed: dict[str, Any]) -> list[str]:
    return [token["content"] for token in parsed["added_tokens"]]


def _new_token(rng: random.Random, parsed: dict[str, Any], **rules: Any) -> str:
    """Adds a token behind the last id."""
    vocab = parsed["model"]["vocab"]
    ids = [*(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))]
    content = rng.choice(["<new_{}>", "[NEW{}]", "new{}word", "<|n {}|>"]).format(rng.randrange(100))
    if content in _added(parsed):
        return content
    number = max([*ids, *(token["id"] for token in parsed["added_tokens"])]) + 1
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    parsed["added_tokens"].append({"id": number, "content": content, **plain, **rules})
    return content


def _object(content: str, **rules: bool) -> dict[str, Any]:
    """A token as settings write it with its rules."""
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {**plain, "content": content, "__type": "AddedToken", **rules}


def _flag(name: str, *values: Any) -> Draw:
    def draw(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
        config[name] = rng.choice(values)

    return draw


def _named_token(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    text: Any = rng.choice([None, *_added(parsed)])
    if text is not None and rng.random() < 0.3:
        text = _object(text, lstrip=rng.random() < 0.5)
    config[rng.choice(NAMED)] = text


def _rules(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    rule = rng.choice(["special", "lstrip", "rstrip", "normalized", "single_word"])
    if parsed["added_tokens"]:
        token = rng.choice(parsed["added_tokens"])
        token[rule] = not token[rule]


def _more_tokens(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    for _ in range(rng.randrange(1, 4)):
        rules = ("special", "lstrip", "rstrip", "normalized")
        _new_token(rng, parsed, **{rule: rng.random() < 0.5 for rule in rules})


def _extra_tokens(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    tokens = [_new_token(rng, parsed) for _ in range(2)]
    rules = {"rstrip": rng.random() < 0.5, "special": True}
    name, value = rng.choice(
        [
            ("extra_special_tokens", tokens),
            ("additional_special_tokens", tokens),
            ("extra_special_tokens", {"image_token": tokens[0], "boi_token": tokens[1]}),
            ("extra_special_tokens", [_object(token, **rules) for token in tokens]),
        ]
    )
    if rng.random() < 0.2:
        (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": tokens}))
    else:
        config[name] = value


def _normaliser(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    kinds: list[dict[str, Any]] = [
        *({"type": name} for name in ("NFC", "NFKC", "Lowercase")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": "1"}, "content": "one"},
        {"type": "Prepend", "prepend": "▁"},
    ]
    parsed["normalizer"] = {"type": "Sequence", "normalizers": rng.sample(kinds, rng.randrange(1, 3))}


def _pre_tokenizer(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    if isinstance(parsed["model"]["vocab"], list) or "▁the" in parsed["model"]["vocab"]:
        scheme = rng.choice(["always", "first", "never"])
        parsed["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    else:
        parsed["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True}
        parsed["pre_tokenizer"]["use_regex"] = rng.random() < 0.5


def _post_processor(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    def piece(kind: str, name: str, type_id: int = 0) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    tokens = rng.choices(parsed["added_tokens"], k=rng.randrange(3)) if parsed["added_tokens"] else []
    around = [piece("SpecialToken", token["content"]) for token in tokens]
    contents = {token["content"]: token["id"] for token in tokens}
    table = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in contents.items()}
    parsed["post_processor"] = tokens and {
        "type": "TemplateProcessing",
        "single": [*around[:1], piece("Sequence", "A"), *around[1:]],
        "pair": [piece("Sequence", "A"), piece("Sequence", "B", 1)],
        "special_tokens": table,
    }


def _template(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config.pop("chat_template", None)
    names = rng.sample(sorted(TEMPLATES), rng.randrange(1, 4))
    form = rng.choice(["text", "file", "list", "folder"])
    if form == "text":
        config["chat_template"] = TEMPLATES[names[0]]
    elif form == "list":
        config["chat_template"] = [
            {"name": name, "template": TEMPLATES[rng.choice(names) if name == "default" else name]}
            for name in dict.fromkeys([*names, "default"])
        ]
    else:
        (folder / "chat_template.jinja").write_text(TEMPLATES[names[0]])
        if form == "folder":
            (folder / "additional_chat_templates").mkdir()
            for name in names:
                (folder / "additional_chat_templates" / f"{name}.jinja").write_text(TEMPLATES[name])


def _added_in_config(rng: random.Random, config: dict[str, Any], parsed: dict[str, Any], folder: Path) -> None:
    """Rules of a token that stand in the config only, and those of the file differ."""
    if parsed["added_tokens"]:
        token = dict(rng.choice(parsed["added_tokens"]))
        number = token.pop("id")
        token[rng.choice(["lstrip", "rstrip", "special", "normalized"])] ^= True
        config["added_tokens_decoder"] = {**(config.get("added_tokens_decoder") or {}), str(number): token}


DRAWS: dict[str, Draw] = {
    "add_bos_token": _flag("add_bos_token", True, False),
    "add_eos_token": _flag("add_eos_token", True, False),
    "add_prefix_space": _flag("add_prefix_space", True, False),
    "legacy": _flag("legacy", True, False),
    "clean_up_tokenization_spaces": _flag("clean_up_tokenization_spaces", True),
    "split_special_tokens": _flag("split_special_tokens", True),
    "model_max_length": _flag("model_max_length", 8, 512),
    "padding_side": _flag("padding_side", "left"),
    "truncation_side": _flag("truncation_side", "left"),
    "do_lower_case": _flag("do_lower_case", True),
    "tokenizer_class": _flag(
        "tokenizer_class",
        *("PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"),
        *("GemmaTokenizer", "TokenizersBackend", "T5Tokenizer", "CodeLlamaTokenizer"),
    ),
    "named_token": _named_token,
    "rules": _rules,
    "more_tokens": _more_tokens,
    "extra_special_tokens": _extra_tokens,
    "normalizer": _normaliser,
    "pre_tokenizer": _pre_tokenizer,
    "post_processor": _post_processor,
    "chat_template": _template,
    "added_tokens_decoder": _added_in_config,
}


def folder_of(rng: random.Random, base: Path, path: Path) -> list[str]:
    """Writes a tokenizer folder.

    Args:
        rng: draws what is changed.
        base: the folder that is changed.
        path: where it is written; made.

    Returns:
        the names of what was changed.
    """
    path.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / name).exists():
            shutil.copy(base / name, path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    parsed = json.loads((path / "tokenizer.json").read_text())
    names = rng.sample(sorted(DRAWS), rng.randrange(1, 5))
    for name in names:
        DRAWS[name](rng, config, parsed, path)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(parsed, ensure_ascii=False))
    return names


def texts_of(rng: random.Random, tokens: list[str], count: int) -> list[str]:
    """Texts of words, spaces and tokens."""

    def word() -> str:
        return rng.choice(["", " "]) + rng.choice(tokens if tokens and rng.random() < 0.3 else WORDS)

    return ["".join(word() for _ in range(rng.randrange(8))) for _ in range(count)]


def conversations_of(rng: random.Random, count: int) -> list[tuple[list[dict[str, str]], Any]]:
    """(messages, tools) of each."""
    made = []
    for _ in range(count):
        roles = [*rng.choice([[], ["system"]]), *(["user", "assistant"] * rng.randrange(1, 3))]
        messages = [{"role": role, "content": texts_of(rng, [], 1)[0] + "."} for role in roles]
        made.append((messages, rng.choice([None, TOOLS])))
    return made


def load_reference(path: Path) -> Any:
    """What transformers makes of the folder; None where it fails, or does not encode with it."""
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        found([*PROBES])
    except Exception:  # it raises exceptions of all kinds
        return None
    return found


def differences(path: Path, reference: Any, rng: random.Random, texts: int = 50, conversations: int = 20) -> list[str]:
    """What the product makes of a folder otherwise than transformers does, one line each; a refusal is one."""
    try:
        tokenizer = Tokenizer.load(path)
    except TokenizerError as error:
        return [f"refused: {error}"]
    found = []
    # CodeLlama's class makes another text of one that holds this: it is for prompts.
    tokens = [token for token in reference.get_added_vocab() if token != "<FILL_ME>"][-12:]
    for text in texts_of(rng, tokens, texts):
        for special in (False, True):
            mine = tokenizer.encode([text], special).to_lists()[0]
            theirs = reference(text, add_special_tokens=special, truncation=False, padding=False)["input_ids"]
            if mine != theirs:
                found.append(f"ids of {text!r} (special {special}): {mine}, wanted {theirs}")
    for messages, tools in conversations_of(rng, conversations):
        found += _of_conversation(tokenizer, reference, messages, tools)
    again = load_reference(Path(tokenizer.folder))
    for text in texts_of(rng, tokens, 5):
        for special in (False, True):
            if again(text, add_special_tokens=special)["input_ids"] != tokenizer.encode([text], special).to_lists()[0]:
                found.append(f"the output's tokenizer folder, read by transformers: other ids of {text!r} ({special})")
    return found


def _of_conversation(tokenizer: Tokenizer, reference: Any, messages: Any, tools: Any) -> list[str]:
    try:
        wanted = reference.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception:  # no template, or one that fails
        wanted = None
    try:
        mine = template_of(tokenizer).text(messages, **({} if tools is None else {"tools": tools}))
    except (Reject, TokenizerError) as error:
        return [] if wanted is None else [f"conversation refused: {error}"]
    if mine != wanted:
        return [f"conversation: {mine!r}, wanted {wanted!r}"]
    ids = tokenizer.encode([mine], False).to_lists()[0]
    theirs = reference(wanted, add_special_tokens=False)["input_ids"]
    return [] if ids == theirs else [f"ids of the conversation {mine!r}: {ids}, wanted {theirs}"]
