"""gigatoken as a backend: BPE, byte-level or as SentencePiece's.

Its tables of characters are those of a newer Unicode than the reference's. Where its steps use them, each character
that Unicode 3.2 did not have yet is tried once by both, and texts with one that they treat in another way are left to
the reference. So are, with a normaliser, those with newer letters and marks: what these do depends on what is beside
them.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.texts import take
from beam_prep.core.encoding.fast_backend import Encoded, Unsupported, first_line, wanted_version
from beam_prep.core.encoding.token_bytes import normalisers, pre_tokenizers
from beam_prep.core.encoding.tokenizer import AddedToken, Tokenizer
from beam_prep.core.encoding.tried_characters import TriedCharacters

if TYPE_CHECKING:
    import gigatoken

VERSION = "0.10.0"


def load(tokenizer: Tokenizer) -> "WithGigatoken":
    """Raises `Unsupported`, with the reason in a few words."""
    try:
        import gigatoken
    except ImportError as error:
        raise Unsupported(f"it is not installed here ({error}): pip install 'beam-prep[fast]'") from None
    wanted_version("gigatoken", VERSION)
    try:
        loaded = gigatoken.Tokenizer.from_json(tokenizer.contents()["tokenizer.json"])
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise Unsupported(f"it does not take this tokenizer ({first_line(error)})") from None
    makeup = tokenizer.makeup
    normalising, splitting = normalisers(tokenizer), pre_tokenizers(tokenizer)
    is_nfc = [step["type"] for step in normalising] == ["NFC"]
    _check_added(makeup.added, is_nfc, bool(normalising))
    splits_words = any(step["type"] == "Split" for step in splitting)
    if any(step.get("use_regex") is False for step in splitting) and not splits_words:
        raise Unsupported("a byte-level tokenizer that splits no words")
    if makeup.ignores_merges and makeup.byte_fallback:
        raise Unsupported("a model with ignore_merges and byte_fallback")
    normalises, splits = (
        any(step["type"] not in _NO_TABLES or "Regex" in step.get("pattern", ()) for step in steps)
        for steps in (normalising, splitting)
    )
    vague = is_nfc and any(token.normalized or not token.content.isascii() for token in makeup.added)
    return WithGigatoken(tokenizer, loaded, normalises or splits, normalises, vague)


def _check_added(added: Sequence[AddedToken], is_nfc: bool, normalises: bool) -> None:
    """Raises `Unsupported` for added tokens that gigatoken finds elsewhere than the reference.

    The reference looks for those that are not `normalized` first, in the text as it is, and then for the others in what
    is between, normalised. gigatoken looks for all at once.
    """
    if word := next((token.content for token in added if token.single_word), None):
        raise Unsupported(f"the added token {word!r} is matched as a word")
    if normalises and not is_nfc and any(token.normalized and not token.special for token in added):
        raise Unsupported("an added token is matched in normalised text")
    if other := next((token.content for token in added if not unicodedata.is_normalized("NFC", token.content)), None):
        raise Unsupported(f"the added token {other!r} is not NFC")
    blank = next((token.content for token in added if token.content != token.content.strip()), None)
    taking = next((token.content for token in added if token.lstrip or token.rstrip), None)
    if blank is not None and taking is not None:
        raise Unsupported(f"the added token {taking!r} takes blanks beside it, and {blank!r} is one that has blanks")
    late = [token.content for token in added if token.normalized]
    early = [token.content for token in added if not token.normalized]
    if (token := _overlapping(early, late)) is not None:
        raise Unsupported(f"the added token {token!r} overlaps one that is matched in normalised text")


def _overlapping(some: Sequence[str], others: Sequence[str]) -> str | None:
    """The first of some texts that has a part in common with one of the others, where both can be in a text at once."""
    # By the ends of all others, since there may be thousands of both.
    first = {other[:size] for other in others for size in range(1, len(other) + 1)}
    last = {other[-size:] for other in others for size in range(1, len(other) + 1)}
    for text in some:
        ends = (text[-size:] for size in range(1, len(text) + 1))
        begins = (text[:size] for size in range(1, len(text) + 1))
        if not first.isdisjoint(ends) or not last.isdisjoint(begins):
            return text
        if any(text in other or other in text for other in others):
            return text
    return None


_NO_TABLES = ("Prepend", "Replace", "Metaspace", "Split")
"""Steps that know no kinds of characters, unless they have a regular expression."""
_TRIED_AS = ("a{0}b 1{0}2 {0}{0} 's{0}\n{0} \n", "{0}'s {0}a", "a\u0300{0}\u0316x")


class WithGigatoken:
    """A loaded tokenizer.

    Args:
        tokenizer: the reference.
        loaded: the same in gigatoken.
        looks: its steps look at the kinds of characters.
        normalises: so does its normaliser.
        vague: it may find added tokens in what a text becomes by NFC.
    """

    def __init__(
        self, tokenizer: Tokenizer, loaded: "gigatoken.Tokenizer", looks: bool, normalises: bool, vague: bool
    ) -> None:
        self._tokenizer, self._loaded = tokenizer, loaded
        self._normalises, self._vague = normalises, vague
        self._tried = TriedCharacters(_TRIED_AS, self._agree, _is_old, self._is_doubtful) if looks else None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text, and which texts are the reference's."""
        left = np.zeros(0, np.int64)
        if self._tried is not None and len(wide := _wide(texts)):
            # Where nearly all are, they need not be copied.
            some, wide = (texts, np.arange(len(texts))) if 2 * len(wide) > len(texts) else (take(texts, wide), wide)
            left = wide[self._tried.texts_with_others(some)]
            if self._vague:
                found = (not unicodedata.is_normalized("NFC", text) for text in some)
                left = np.union1d(left, wide[np.fromiter(found, bool, len(wide))])
        return self._encode(texts), left

    def _encode(self, texts: Sequence[str]) -> Ragged:
        # One by one: these are arrays of numpy, while a batch is one of awkward, whose import takes 0.3 s.
        rows = [self._loaded.encode(text) for text in texts]
        flat = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
        return Ragged(flat.view(np.int32), offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))))

    def _agree(self, texts: list[str]) -> list[bool]:
        mine, theirs = self._encode(texts).to_lists(), self._tokenizer.encode(texts, False).to_lists()
        return [one == other for one, other in zip(mine, theirs, strict=True)]

    def _is_doubtful(self, character: str) -> bool:
        """True for what may be put in order, or composed with what is beside it: marks, letters, what is newer yet."""
        kind = unicodedata.category(character)
        return self._normalises and (kind[0] in "LM" or kind == "Cn")


def _is_old(character: str) -> bool:
    """True for what Unicode 3.2 has, which is the same in every version of Python: it is in the tables of all."""
    return unicodedata.ucd_3_2_0.category(character) != "Cn"


def _wide(texts: Sequence[str]) -> Array:
    """int64: the texts that are not ASCII."""
    return np.flatnonzero(np.fromiter((not text.isascii() for text in texts), bool, len(texts)))
