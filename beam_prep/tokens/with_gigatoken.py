"""gigatoken as a backend: BPE, byte-level or as SentencePiece's.

Its tables of characters are those of a newer Unicode than the reference's. Where its steps use them, each character
that Unicode 3.2 did not have yet is tried once by both, and texts with one that they treat in another way are left to
the reference. So are, with a normaliser, those with newer letters and marks: what these do depends on what is beside
them.
"""

import functools
import importlib.metadata
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of, places_of, take, utf8
from beam_prep.tokens.token_bytes import normalisers, pre_tokenizers
from beam_prep.tokens.tokenizer import AddedToken, Tokenizer

if TYPE_CHECKING:
    import gigatoken


Encoded = tuple[Ragged, Array]
"""int32 ids of each text, without special tokens around it; and int64 [n], ascending: the numbers of the texts whose
ids are not known to be the reference's. It encodes these."""


class Unsupported(Exception):
    """A backend cannot be used; the message says why in a few words."""


def first_line(error: Exception) -> str:
    """What an error says, cut to 200 characters of one line."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


_SAME, _OTHER = 1, 2
_FEW = 32
"""Of so many bytes one: then it takes longer to look at its kind than at the character."""
_LOW = 6
"""Bits of a character that are in the last byte of its UTF-8."""


class TriedCharacters:
    """Tries each character that occurs in texts once.

    Args:
        ways: texts with `{0}`, for which the character is put in.
        agree: says of each of some texts whether both encoders give the same ids.
        trusted: true for characters that both treat alike, which are not tried. ASCII is among them.
        doubtful: true for other characters that are not tried either, as what they do depends on what is beside them.
    """

    def __init__(
        self,
        ways: Sequence[str],
        agree: Callable[[list[str]], Sequence[bool]],
        trusted: Callable[[str], bool],
        doubtful: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._ways, self._agree, self._trusted, self._doubtful = ways, agree, trusted, doubtful
        self._tried = np.zeros(0x110000, np.uint8)

    def _differ(self, points: Array) -> Array:
        """bool: which of these characters, uint32 code points, the two treat in another way."""
        found = self._tried[points]
        if len(new := np.unique(points[found == 0])):
            known = (self._known(chr(point)) for point in new.tolist())
            self._tried[new] = np.fromiter(known, np.uint8, len(new))
            if len(new := new[self._tried[new] == 0]):
                texts = [way.format(chr(point)) for point in new.tolist() for way in self._ways]
                same = np.reshape(np.asarray(self._agree(texts), bool), (len(new), len(self._ways))).all(axis=1)
                self._tried[new] = np.where(same, _SAME, _OTHER)
            found = self._tried[points]
        differ: Array = found == _OTHER
        return differ

    def _known(self, character: str) -> int:
        if self._trusted(character):
            return _SAME
        return _OTHER if self._doubtful(character) else 0

    def texts_with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with a character that the two treat in another way."""
        data, borders = utf8(texts)
        places = self._places(data)
        places = places[self._differ(_points(data, places))]
        found: Array = np.unique(np.searchsorted(borders, places, side="right") - 1)
        return found

    def _places(self, data: Array) -> Array:
        """int64: where the characters begin that may not be trusted; uint8 [bytes], UTF-8."""
        first, trusted, pairs = self._looked_at

        def may_begin_one(part: Array) -> Array:
            marked: Array = part >= first
            if np.count_nonzero(marked) * _FEW > len(part):
                for lead, more in trusted:
                    marked &= part - lead > more
            return marked

        places = places_of(data, may_begin_one)
        found: Array = places[pairs[data[places].astype(np.uint16) << 8 | data[places + 1]]]
        return found

    @functools.cached_property
    def _looked_at(self) -> tuple[np.uint8, list[tuple[np.uint8, np.uint8]], Array]:
        """Where characters may not be trusted, by the bytes that they begin with in UTF-8.

        So most characters of a text, which stand together in Unicode, are not even decoded.

        Returns:
            the lowest first byte; ranges of higher ones whose characters are all trusted (the lowest, and how many
            follow it); for both first bytes, bool [65,536].
        """
        trusted = np.fromiter(map(self._trusted, map(chr, range(1 << 16))), bool, 1 << 16)
        entirely: Any = trusted.reshape(-1, 1 << _LOW).all(axis=1)
        pairs: Array = np.ones((256, 256), bool)
        pairs[:0xC0] = False
        pairs[0xC0:0xE0] = ~entirely[:32, None]
        pairs[0xE0:0xF0, 0x80:0xC0] = ~entirely.reshape(16, 64)
        pairs[0xE0:0xF0, :0x80] = pairs[0xE0:0xF0, 0xC0:] = False
        leads = np.flatnonzero(pairs.any(axis=1))
        more = np.diff(leads) - 2
        ranges = [(np.uint8(lead + 1), np.uint8(size)) for lead, size in zip(leads, more, strict=False) if size > 0]
        return np.uint8(leads[0]), ranges, pairs.ravel()


def _points(data: Array, places: Array) -> Array:
    """uint32: the characters of two bytes or more that begin at these places."""
    first = data[places].astype(np.uint32)
    found: Array = (first & 0x1F) << 6 | data[places + 1] & 0x3F
    for lead, bits in ((0xE0, 0xF), (0xF0, 0x7)):
        longer = np.flatnonzero(first >= lead)
        mine = places[longer]
        point = first[longer] & bits
        for step in range(1, 3 if lead == 0xE0 else 4):
            point = point << _LOW | data[np.minimum(mine + step, len(data) - 1)] & 0x3F
        found[longer] = point
    return found


VERSION = "0.10.0"


def load(tokenizer: Tokenizer) -> "WithGigatoken":
    """Raises `Unsupported`, with the reason in a few words."""
    try:
        import gigatoken
    except ImportError as error:
        raise Unsupported(f"it is not installed here ({error}): pip install 'beam-prep[fast]'") from None
    if (found := importlib.metadata.version("gigatoken")) != VERSION:
        raise Unsupported(f"version {found} is installed, wanted {VERSION}")
    try:
        loaded = gigatoken.Tokenizer.from_json(tokenizer.contents()["tokenizer.json"])
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise Unsupported(f"it does not take this tokenizer ({first_line(error)})") from None
    components = tokenizer.components
    normalising, splitting = normalisers(tokenizer), pre_tokenizers(tokenizer)
    is_nfc = [step["type"] for step in normalising] == ["NFC"]
    _check_added(components.added, is_nfc, bool(normalising))
    splits_words = any(step["type"] == "Split" for step in splitting)
    if any(step.get("use_regex") is False for step in splitting) and not splits_words:
        raise Unsupported("a byte-level tokenizer that splits no words")
    if components.ignores_merges and components.byte_fallback:
        raise Unsupported("a model with ignore_merges and byte_fallback")
    normalises, splits = (
        any(step["type"] not in _NO_TABLES or "Regex" in step.get("pattern", ()) for step in steps)
        for steps in (normalising, splitting)
    )
    vague = is_nfc and any(token.normalized or not token.content.isascii() for token in components.added)
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
