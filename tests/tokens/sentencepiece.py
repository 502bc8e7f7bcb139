"""Small tokenizers of the kinds that SentencePiece makes, trained on the docs of this project."""

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers

from tests.conftest import ROOT

BLANK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
PREPEND = {"type": "Prepend", "prepend": BLANK}
MERGED = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def metaspace(scheme: str, split: bool = False) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": split}


KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any] | None]] = {
    "llama-2": ([PREPEND, REPLACE], None),
    "gemma": ([REPLACE], MERGED),
    "no prefix": ([REPLACE], None),
    "first": ([], metaspace("first")),
    "first, split": ([], metaspace("first", True)),
    "never": ([], metaspace("never")),
    "always": ([], metaspace("always")),
}
"""Name to its normalisers and its splitter. The names are those of models that have tokenizers like it."""
CONTROLS = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")


@functools.cache
def _learnt() -> str:
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1500, special_tokens=[*CONTROLS], show_progress=False)
    learnt = tokenizers.Tokenizer(tokenizers.models.BPE())
    learnt.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    learnt.train_from_iterator([path.read_text() for path in sorted(ROOT.glob("docs/*.md"))[:8]], trainer)
    return learnt.to_str()


def made(folder: Path, kind: str, added: tuple[dict[str, Any], ...] = (), **changes: Any) -> Path:
    """A folder with the tokenizer. `added`: more added tokens; `changes`: other keys of its tokenizer.json."""
    normalisers, splitter = KINDS[kind]
    in_turn = {"type": "Sequence", "normalizers": normalisers}
    source = json.loads(_learnt())
    vocabulary = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += [token for token in source["model"]["vocab"] if token not in CONTROLS]
    rules = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    model = {**source["model"], "vocab": {token: number for number, token in enumerate(vocabulary)}, **rules}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [{"id": number, "content": text, "special": True, **flags} for number, text in enumerate(CONTROLS)]
    for more in added:
        number = model["vocab"].get(more["content"], len(vocabulary) + len(tokens))
        tokens.append({"id": number, "special": False, **flags, **more})
    source = {
        **source,
        "model": model,
        "added_tokens": sorted(tokens, key=lambda token: token["id"]),
        "normalizer": in_turn if len(normalisers) > 1 else (*normalisers, None)[0],
        "pre_tokenizer": splitter,
        "decoder": None,
        **changes,
    }
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(source))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
