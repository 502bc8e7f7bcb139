"""Resolves a tokenizer with transformers, and makes the files of the resolved one."""

import hashlib
import itertools
import json
import os
import socket
import textwrap
import urllib.parse
from collections.abc import Mapping
from typing import Any

from beam_prep.errors import TokenizerError
from beam_prep.tokens import tokenizer_cache

# Parts of a tokenizer.json that say how offsets are made.
_PARTS = ("post_processor", "pre_tokenizer", "pretokenizers", "processors")


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
)
"""A tokenizer's folder has one of these."""
_REASON = 300  # characters
_SHOWN = 6


def resolve(path: str) -> tokenizer_cache.ResolvedTokenizer:
    """Asks transformers for a tokenizer, and writes its files.

    Args:
        path: a folder, or a name on the Hugging Face Hub.

    Raises:
        TokenizerError: there is no tokenizer that can be used.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    looks_local = os.path.isdir(path) or path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not os.path.isdir(path):
        raise TokenizerError(
            f"no tokenizer folder {path!r}: --tokenizer_path wants a folder with tokenizer.json, or a Hugging Face name"
        )
    offline = not looks_local and not _hub_answers()
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=offline)
    except Exception as error:  # on other files, transformers and the Rust library raise exceptions of all kinds
        hint = "a folder with tokenizer.json"
        if not looks_local:
            hint += ", or a name on the Hugging Face Hub"
        if offline:
            hint += " (which does not answer, and the name is not in the local cache)"
        if looks_local and not any(os.path.exists(os.path.join(path, name)) for name in _FILES):
            # What transformers says is about other kinds of tokenizers, in many lines.
            raise TokenizerError(f"no tokenizer in {path!r}: wanted {hint}; found {_found_in(path)}") from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TokenizerError(
            f"no tokenizer in {path!r}: wanted {hint}. transformers says: {textwrap.shorten(reason, _REASON)}"
        ) from None
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"the tokenizer in {path!r} has no tokenizer.json (no Rust tokenizer): save a fast one")
    backend.no_padding()
    backend.no_truncation()
    nested = found.init_kwargs.get("special_tokens")
    named = {k: v for k, v in nested.items() if isinstance(v, str)} if isinstance(nested, dict) else {}
    special_tokens = {**named, **{k: str(v) for k, v in found.special_tokens_map.items() if isinstance(v, str)}}
    template = found.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if template is not None:
        template = template.removeprefix("\ufeff")  # transformers keeps a file's BOM, as text of every row
    source = json.loads(backend.to_str())
    _keep_offsets(source)
    return write(json.dumps(source, ensure_ascii=False), special_tokens, template)


def _keep_offsets(part: Any) -> None:
    """Offsets that include white space: trimmed ones lose the tokens at the edge of a span. No id changes."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "trim_offsets":
            part[key] = False
        elif isinstance(value, dict | list) and (isinstance(key, int) or key in _PARTS):
            _keep_offsets(value)


def _found_in(folder: str) -> str:
    """What is in a folder that is no tokenizer's: the folder below that is one, or else its first names."""
    names = sorted(os.listdir(folder))
    for name in names:
        if os.path.isfile(os.path.join(folder, name, "tokenizer.json")):
            return f"one in {os.path.join(folder, name)!r}: did you mean that?"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more}" if names else "nothing in it"


def _hub_answers() -> bool:
    """True if the Hugging Face Hub can be resolved. Its client would otherwise retry for a minute."""
    host = urllib.parse.urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def write(source: str, special_tokens: dict[str, str], template: str | None) -> tokenizer_cache.ResolvedTokenizer:
    """Writes the files of a resolved tokenizer to where every process of this machine finds them."""
    texts = _files_of(source, special_tokens, template)
    fingerprint: str = json.loads(texts[tokenizer_cache.FACTS_FILE])["fingerprint"]
    return tokenizer_cache.ResolvedTokenizer(
        str(tokenizer_cache.keep(fingerprint, texts)), fingerprint, tokenizer_cache.digest_of(texts)
    )


def _files_of(source: str, special_tokens: dict[str, str], template: str | None) -> dict[str, bytes]:
    """The files of a resolved tokenizer, by name."""
    special_tokens = dict(sorted(special_tokens.items()))
    parsed = json.loads(source)
    canonical = json.dumps([parsed, template, special_tokens], sort_keys=True, ensure_ascii=False)
    fingerprint = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
    facts = {"fingerprint": fingerprint, "max_id": _largest_id(parsed), "special_tokens": special_tokens}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special_tokens}
    texts = {"tokenizer.json": source, "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1) + "\n"}
    if template is not None:
        texts["chat_template.jinja"] = template
    texts[tokenizer_cache.FACTS_FILE] = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    return {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}


def _largest_id(source: Any) -> int:
    """The largest id in a tokenizer.json, added tokens included."""
    known = source["model"]["vocab"]
    ids = known.values() if isinstance(known, dict) else range(len(known))
    return max(itertools.chain(ids, (token["id"] for token in source["added_tokens"])), default=0)


def fingerprint_of(contents: Mapping[str, bytes]) -> str | None:
    """The fingerprint of a resolved tokenizer, computed from its files; None if they are not those of one."""
    texts = expected_files(contents)
    return None if texts is None else str(json.loads(texts[tokenizer_cache.FACTS_FILE])["fingerprint"])


def expected_files(contents: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """The files as `write` would write them; None if they are not those of a resolved tokenizer."""
    try:
        template = contents.get("chat_template.jinja")
        return _files_of(
            contents["tokenizer.json"].decode("utf-8", "surrogatepass"),
            json.loads(contents[tokenizer_cache.FACTS_FILE])["special_tokens"],
            None if template is None else template.decode("utf-8", "surrogatepass"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
