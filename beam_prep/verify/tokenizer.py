"""The tokenizer in an output: whether it is the one that made it, and what its ids are."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_prep.core.encoding import tokenizer_cache
from beam_prep.core.encoding.resolver import expected_files
from beam_prep.formats.manifest import MANIFEST, TOKENIZER
from beam_prep.verify.files import OutputFiles


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a tokenizer.

    Attributes:
        max_id: the largest.
        pad_id: the one that pads rows; None: the tokenizer names neither a PAD token nor an EOS token.
    """

    max_id: int
    pad_id: int | None


@dataclass(frozen=True, slots=True)
class FoundTokenizer:
    """What the files in `tokenizer/` are.

    Attributes:
        vocabulary: None: they are not those of the tokenizer that made the output, or there are none.
        problems: one line each.
    """

    vocabulary: Vocabulary | None
    problems: tuple[str, ...] = ()


def find_tokenizer(files: OutputFiles, manifest: Mapping[str, Any]) -> FoundTokenizer:
    """Compares the tokenizer in the output with the one that made it."""
    names = [file["path"] for file in manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
    said = manifest.get("tokenizer")  # a chain written by hand does not say
    if not names:
        if said is None:
            return FoundTokenizer(None)
        return FoundTokenizer(None, (f"{TOKENIZER}: {MANIFEST} lists no files, but says {_fingerprint(said)}",))
    with files.local(names) as folder:
        found = _read(folder)
    # What transformers would read besides, whatever its digest is.
    wanted_names = {f"{TOKENIZER}/{name}" for name in tokenizer_cache.FILES}
    problems = [f"{name}: is none of a tokenizer's files: remove it" for name in names if name not in wanted_names]
    wanted = expected_files(found)
    if wanted is None:
        said_too = "" if said is None else f", {MANIFEST} says {_fingerprint(said)}"
        return FoundTokenizer(None, (*problems, f"{TOKENIZER}: found files that are not a tokenizer's{said_too}"))
    facts = json.loads(wanted[tokenizer_cache.FACTS_FILE])
    if said is not None and facts["fingerprint"] != said["fingerprint"]:
        problem = f"{TOKENIZER}: found fingerprint {facts['fingerprint']}, {MANIFEST} says {said['fingerprint']}"
        return FoundTokenizer(None, (*problems, problem))
    problems += _differences(found, wanted)
    if said is not None:
        problems += _special_tokens(facts["special_tokens"], said["special_tokens"])
    return FoundTokenizer(
        Vocabulary(facts["max_id"], _pad_id(facts["special_tokens"], json.loads(wanted["tokenizer.json"]))),
        tuple(problems),
    )


def _read(folder: Path) -> dict[str, bytes]:
    try:
        return tokenizer_cache.read(folder / TOKENIZER)
    except OSError:
        return {}


def _fingerprint(said: Mapping[str, Any]) -> str:
    return f"fingerprint {said['fingerprint']}"


def _differences(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> Iterator[str]:
    """Files that the fingerprint does not cover, and that transformers or we read all the same."""
    for name in tokenizer_cache.FILES:
        if name != "tokenizer.json" and _content(found.get(name)) != _content(wanted.get(name)):
            yield f"{TOKENIZER}/{name}: found another content than tokenizer.json and the special tokens give"


def _content(text: bytes | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _special_tokens(found: Mapping[str, str], said: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*found, *said}):
        if found.get(name) != said.get(name):
            yield f"{TOKENIZER}: found {name} {found.get(name)!r}, {MANIFEST} says {said.get(name)!r}"


def _pad_id(special_tokens: Mapping[str, str], tokenizer: Mapping[str, Any]) -> int | None:
    """See `Tokenizer.pad_id`; of a parsed tokenizer.json."""
    found = (_id_of(special_tokens[name], tokenizer) for name in ("pad_token", "eos_token") if name in special_tokens)
    return next((token for token in found if token is not None), None)


def _id_of(token: str, tokenizer: Mapping[str, Any]) -> int | None:
    """The id of a token in a parsed tokenizer.json."""
    for added in tokenizer["added_tokens"]:
        if added["content"] == token:
            return int(added["id"])
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab.get(token)
    return next((place for place, entry in enumerate(vocab) if entry[0] == token), None)
