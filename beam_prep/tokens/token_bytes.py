"""Number of bytes of a text that each of its tokens represents, if the vocabulary determines it.

There are two families. In a byte-level vocabulary, each character of a token is one byte. In a SentencePiece
vocabulary, `▁` is a blank and `<0x0A>` one byte, and the tokenizer may add a blank before a text.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.tokens.tokenizer import Tokenizer, state_of

_BLANK = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NEVER = 1 << 20
"""Bytes of a token whose text is unknown: with it, no sum is right."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Number of bytes of a text that each token represents.

    Attributes:
        lengths: int32 [ids].
        normalised: the tokenizer normalises to NFC.
        blank: the tokenizer writes `▁` for a blank, so a text must not contain `▁`.
        prefix: the texts before which it adds a blank. `parts`: each part of a text between two added tokens; `text`:
            the text, if it begins with neither a blank nor an added token; `none`.
        added: bool [ids]: added tokens, which end such a part.
    """

    lengths: Array
    normalised: bool = False
    blank: bool = False
    prefix: Literal["none", "parts", "text"] = "none"
    added: Array | None = None

    def keeps(self, text: str) -> bool:
        """True if the normaliser keeps the bytes that a text's tokens represent."""
        if self.blank:
            return _BLANK not in text
        return not self.normalised or text.isascii() or unicodedata.is_normalized("NFC", text)

    def of(self, ids: Ragged, texts: Sequence[str]) -> Array:
        """int32 [tokens]: bytes of its text that each token represents."""
        found: Array = self.lengths[ids.flat]
        if self.prefix == "none" or not len(found):
            return found
        assert self.added is not None
        ends = self.added[ids.flat]
        begins = np.zeros(len(found), bool)
        first = ids.offsets[:-1]
        if self.prefix == "text":
            blank = np.fromiter((text.startswith(" ") for text in texts), bool, len(texts))
            begins[first[(ids.lengths > 0) & ~blank]] = True
        else:
            begins[first[ids.lengths > 0]] = True
            begins[1:] |= ends[:-1]
        begins &= ~ends
        begins &= found > 0  # lengths must not become negative
        shorter: Array = found - begins
        return shorter


@functools.lru_cache(maxsize=4)
def token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """The byte lengths of tokens; None if the vocabulary may lose bytes: then the reference makes the offsets."""
    if type(tokenizer.reference.model).__name__ != "BPE":
        return None
    return _byte_level(tokenizer) or _of_pieces(tokenizer)


def _byte_level(tokenizer: Tokenizer) -> TokenBytes | None:
    backend = tokenizer.reference
    model: Any = backend.model
    normaliser, steps = state_of(backend.normalizer), pre_tokenizers(tokenizer)
    if normaliser not in (None, {"type": "NFC"}) or not any(step["type"] == "ByteLevel" for step in steps):
        return None
    if any(step["type"] not in ("Split", "Digits", "Punctuation", "ByteLevel") for step in steps):
        return None
    if any(step.get("add_prefix_space") or step.get("behavior") == "Removed" for step in steps):
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix or model.byte_fallback:
        return None
    # Each character of a byte-level token represents one byte; an added token represents its own text.
    # Token by token: a dict of all tokens would take longer, and 20 MB.
    tokens = map(backend.id_to_token, range(tokenizer.max_id + 1))
    lengths = np.fromiter((len(token or "") for token in tokens), np.int32, tokenizer.max_id + 1)
    if model.unk_token is not None and (unknown := backend.token_to_id(model.unk_token)) is not None:
        lengths[unknown] = _NEVER
    added = tokenizer.added
    spaced = any(token.content != token.content.strip() for token in added)
    for token in added:
        vague = (token.normalized and normaliser is not None) or (spaced and (token.lstrip or token.rstrip))
        lengths[token.id] = _NEVER if vague else len(token.content.encode())
    return TokenBytes(lengths, normaliser is not None)


def _of_pieces(tokenizer: Tokenizer) -> TokenBytes | None:
    """For a vocabulary that SentencePiece made, or one like it."""
    backend = tokenizer.reference
    model: Any = backend.model
    prefix = _prefix(normalisers(tokenizer), pre_tokenizers(tokenizer))
    if prefix is None or not model.byte_fallback or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)):
        return None
    lengths, added = np.zeros(tokenizer.max_id + 1, np.int32), np.zeros(tokenizer.max_id + 1, bool)
    for content, number in vocabulary.items():
        lengths[number] = len(content.encode()) - 2 * content.count(_BLANK)
    for content in (f"<0x{byte:02X}>" for byte in range(256)):
        lengths[vocabulary[content]] = 1
    for token in tokenizer.added:
        content = token.content
        if _BLANK in content and content in vocabulary:
            continue  # `keeps` accepts no text that contains it; elsewhere, its id stands for blanks
        lengths[token.id], added[token.id] = len(content.encode()), True
        # The token may include blanks around it, or its text the blank that is added before a text.
        if token.normalized or token.lstrip or token.rstrip or _BYTE.fullmatch(content):
            lengths[token.id] = _NEVER
    return TokenBytes(lengths, blank=True, prefix=prefix, added=added)


def _prefix(
    normalisers: list[dict[str, Any]], splitters: list[dict[str, Any]]
) -> Literal["none", "parts", "text"] | None:
    """`TokenBytes.prefix`, if the tokenizer only writes `▁` for blanks; None for other tokenizers."""
    if any(step.get("behavior") == "Removed" for step in splitters):
        return None
    if any(step["type"] not in ("Split", "Digits", "Metaspace") for step in splitters):
        return None
    metaspaces = [step for step in splitters if step["type"] == "Metaspace"]
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    if metaspaces:
        scheme = metaspaces[0]["prepend_scheme"]
        alone = not normalisers and len(splitters) == 1 and metaspaces[0]["replacement"] == _BLANK
        # `always` depends on the first byte of each part, so it is not supported.
        return {"first": "text", "never": "none"}.get(scheme) if alone else None  # type: ignore[return-value]
    if normalisers == [{"type": "Prepend", "prepend": _BLANK}, replaces]:
        return "parts"
    return "none" if normalisers == [replaces] else None


def normalisers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The steps of the normaliser, as in `tokenizer.json`; [] without one."""
    return [*_steps(state_of(tokenizer.reference.normalizer), "normalizers")]


def pre_tokenizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The steps that split a text into words, as in `tokenizer.json`; [] without any."""
    return [*_steps(state_of(tokenizer.reference.pre_tokenizer), "pretokenizers")]


def _steps(state: dict[str, Any] | None, name: str) -> Iterator[dict[str, Any]]:
    if state is not None and name not in state:
        yield state
    for step in (state or {}).get(name, ()):
        yield from _steps(step, name)
