"""The fast encoder: another library makes the ids, and byte lengths of tokens give the offsets.

The reference is `Tokenizer`: the Rust library that transformers uses. `FastEncoder` is used only if its ids equal the
reference's on all probes, and `tokens.tokenize.tokenize` has the reference encode a sample of every block, too.

The fast encoder has no character offsets. If every token represents bytes of the text (byte-level vocabularies, and BPE
of SentencePiece: see `token_bytes`), offsets are running sums of the tokens' byte lengths. Such sums can be equal by
chance if a normaliser changes the text. So a text that the normaliser changes is encoded by the reference.

gigatoken has the Unicode tables of a newer version than the reference. If its steps use them, each character that
Unicode 3.2 lacks is tried once with both libraries, and texts with a character that they treat differently are left to
the reference. With a normaliser, so are texts with newer letters and marks, because their treatment depends on their
neighbours.
"""

import functools
import importlib.metadata
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, characters, offsets_of, sizes, take
from beam_prep.errors import TokenizerError
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.token_bytes import normalisers, pre_tokenizers, token_bytes
from beam_prep.tokens.tokenizer import AddedToken, CharSpans, Tokenizer, TokenSpans

if TYPE_CHECKING:
    import gigatoken

Used = Literal["transformers", "gigatoken"]
Backend = Literal["auto", "transformers", "gigatoken"]


@functools.lru_cache(maxsize=4)
def _around_text(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """The ids that the reference puts before and after a text; None if it does anything else."""
    plain, full = (tokenizer.encode(["a"], special).flat.tolist() for special in (False, True))
    at = next((at for at in range(len(full) + 1) if full[at : at + len(plain)] == plain), None)
    return None if at is None or not plain else (full[:at], full[at + len(plain) :])


class Unsupported(Exception):
    """A backend cannot be used; the message is a short reason."""


def _first_line(error: Exception) -> str:
    """The first line of an error's message, at most 200 characters."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


GIGATOKEN_VERSION = "0.10.0"


@functools.lru_cache(maxsize=4)
def loaded_backend(tokenizer: Tokenizer) -> "WithGigatoken":
    """The tokenizer in gigatoken. Raises `Unsupported`, with a short reason."""
    try:
        import gigatoken
    except ImportError as error:
        raise Unsupported(f"it is not installed here ({error}): pip install 'beam-prep[fast]'") from None
    if (found := importlib.metadata.version("gigatoken")) != GIGATOKEN_VERSION:
        raise Unsupported(f"version {found} is installed, wanted {GIGATOKEN_VERSION}")
    try:
        loaded = gigatoken.Tokenizer.from_json(tokenizer.contents()["tokenizer.json"])
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise Unsupported(f"it does not take this tokenizer ({_first_line(error)})") from None
    model: Any = tokenizer.reference.model
    normalising, splitting = normalisers(tokenizer), pre_tokenizers(tokenizer)
    is_nfc = [step["type"] for step in normalising] == ["NFC"]
    _check_added(tokenizer.added, is_nfc, bool(normalising))
    splits_words = any(step["type"] == "Split" for step in splitting)
    if any(step.get("use_regex") is False for step in splitting) and not splits_words:
        raise Unsupported("a byte-level tokenizer that splits no words")
    if getattr(model, "ignore_merges", False) and getattr(model, "byte_fallback", False):
        raise Unsupported("a model with ignore_merges and byte_fallback")
    normalises, splits = (
        any(step["type"] not in _NO_TABLES or "Regex" in step.get("pattern", ()) for step in steps)
        for steps in (normalising, splitting)
    )
    vague = is_nfc and any(token.normalized or not token.content.isascii() for token in tokenizer.added)
    return WithGigatoken(tokenizer, loaded, normalises or splits, normalises, vague)


def _check_added(added: Sequence[AddedToken], is_nfc: bool, normalises: bool) -> None:
    """Raises `Unsupported` for added tokens that gigatoken finds in other places than the reference.

    The reference looks first for tokens that are not `normalized`, in the original text, and then for the others in the
    normalised rest. gigatoken looks for all at once.
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
        raise Unsupported(f"the added token {taking!r} takes blanks beside it, and {blank!r} has blanks at its ends")
    late = [token.content for token in added if token.normalized]
    early = [token.content for token in added if not token.normalized]
    if (token := sharing(early, late)) is not None:
        raise Unsupported(f"the added token {token!r} overlaps one that is matched in normalised text")


def sharing(texts: Sequence[str], others: Sequence[str]) -> str | None:
    """The first text that has a part in common with one of the others, so that both may match at one place."""
    return next((text for text in texts if any(_overlap(text, other) for other in others)), None)


def _overlap(one: str, other: str) -> bool:
    ends = range(1, min(len(one), len(other)) + 1)
    beside = any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in ends)
    return beside or one in other or other in one


_NO_TABLES = ("Prepend", "Replace", "Metaspace", "Split")
"""Steps that use no Unicode tables, unless they have a regular expression."""
_TRIED_AS = ("a{0}b 1{0}2 {0}{0} 's{0}\n{0} \n", "{0}'s {0}a", "a\u0300{0}\u0316x")


_UNTRIED, _SAME, _OTHER = range(3)


class WithGigatoken:
    """A tokenizer that gigatoken has loaded.

    Args:
        tokenizer: the reference.
        loaded: the same tokenizer in gigatoken.
        looks: its steps use Unicode tables.
        normalises: its normaliser uses them.
        vague: added tokens may match only after NFC.
    """

    def __init__(
        self, tokenizer: Tokenizer, loaded: "gigatoken.Tokenizer", looks: bool, normalises: bool, vague: bool
    ) -> None:
        self._tokenizer, self.loaded_backend = tokenizer, loaded
        self._looks, self._normalises, self._vague = looks, normalises, vague
        self._tried = np.full(0x110000, _UNTRIED, np.uint8)  # by code point
        self._tried[:0x80] = _SAME

    def encode(self, texts: Sequence[str]) -> tuple[Ragged, Array]:
        """Encodes the texts, and says which of them the reference has to encode.

        Returns:
            int32 ids of each text, without special tokens around it; and int64 [n], ascending: the numbers of texts
            whose ids may differ from the reference's.
        """
        left = np.zeros(0, np.int64)
        if self._looks and len(wide := _wide(texts)):
            picked = take(texts, wide)
            left = wide[self._with_others(picked)]
            if self._vague:
                found = (not unicodedata.is_normalized("NFC", text) for text in picked)
                left = np.union1d(left, wide[np.fromiter(found, bool, len(wide))])
        return self._encode(texts), left

    def _encode(self, texts: Sequence[str]) -> Ragged:
        # One by one, as numpy arrays: a batch is an awkward array, whose import takes 0.3 s.
        rows = [self.loaded_backend.encode(text) for text in texts]
        flat = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
        return Ragged.from_lengths(flat.view(np.int32), [*map(len, rows)])

    def _with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with a character that the two libraries treat differently."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        for point in np.unique(points[self._tried[points] == _UNTRIED]).tolist():
            self._tried[point] = _SAME if self._treats_alike(chr(point)) else _OTHER
        places = np.flatnonzero(self._tried[points] == _OTHER)
        return np.unique(np.searchsorted(offsets_of(characters(texts)), places, side="right") - 1)

    def _treats_alike(self, character: str) -> bool:
        """True if both libraries give the same ids for a character."""
        if unicodedata.ucd_3_2_0.category(character) != "Cn":  # all tables have it
            return True
        kind = unicodedata.category(character)
        if self._normalises and (kind[0] in "LM" or kind == "Cn"):
            return False  # it may be reordered, or composed, with its neighbours
        texts = [way.format(character) for way in _TRIED_AS]
        return self._encode(texts).to_lists() == self._tokenizer.encode(texts, False).to_lists()


def _wide(texts: Sequence[str]) -> Array:
    """int64: the texts that are not ASCII."""
    return np.flatnonzero(np.fromiter((not text.isascii() for text in texts), bool, len(texts)))


@dataclass
class FastEncoder:
    """An `Encoder` with the results of `Tokenizer`, but faster.

    Attributes:
        tokenizer: the reference.
        backend: makes the ids; with `transformers`, only offsets are made in the fast way.
        fell_back: number of texts that the reference had to encode, because the fast result may be wrong.
    """

    tokenizer: Tokenizer
    backend: Used
    fell_back: int = 0

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32, without truncation or padding."""
        if self.backend == "transformers":
            return self.tokenizer.encode(texts, add_special_tokens)
        if not texts:
            return Ragged.from_lists([])
        ids, left = loaded_backend(self.tokenizer).encode(texts)
        if len(left):
            self.fell_back += len(left)
            ids = _replaced(ids, left, self.tokenizer.encode(take(texts, left), False))
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def encode_spans(
        self, texts: Sequence[str], add_special_tokens: bool, spans: CharSpans
    ) -> tuple[Ragged, TokenSpans]:
        """Ids of each text, and the tokens that overlap each character span: see `Encoder`."""
        table = token_bytes(self.tokenizer)
        if table is None or not texts or (add_special_tokens and _around_text(self.tokenizer) is None):
            self.fell_back += len(texts)
            return self.tokenizer.encode_spans(texts, add_special_tokens, spans)
        ids = self.encode(texts, False)
        in_bytes = sizes(texts)
        wide = np.flatnonzero(in_bytes > characters(texts))
        others = take(texts, wide)
        lengths = table.of(ids, texts)
        ends = offsets_of(lengths)
        totals = ends[ids.offsets]
        lossless = np.diff(totals) == in_bytes
        lossless[wide] &= np.fromiter(map(table.keeps, others), bool, len(others))
        tokens = _overlapping(ids, lengths, ends[1:], totals, spans.text, *_in_bytes(texts, wide, spans))
        if add_special_tokens:
            ids = self.with_special_tokens(ids)
            before = len((_around_text(self.tokenizer) or ([], []))[0])
            tokens = TokenSpans(tokens.start + before, tokens.stop + before)
        empty = spans.start >= spans.stop
        tokens.start[empty] = tokens.stop[empty] = 0
        if lossless.all():
            return ids, tokens
        return self._with_reference(texts, add_special_tokens, spans, ids, tokens, ~lossless)

    def encode_parts(self, texts: Sequence[Parts], add_special_tokens: bool) -> Ragged:
        """Ids of each text; each part of a text is encoded alone: see `Encoder`."""
        if self.tokenizer.inside is self.tokenizer.reference:
            return self.encode(["".join(text.texts) for text in texts], add_special_tokens)
        self.fell_back += len(texts)
        return self.tokenizer.encode_parts(texts, add_special_tokens)

    def with_special_tokens(self, ids: Ragged) -> Ragged:
        """Ids of texts, with the tokenizer's special tokens added."""
        around = _around_text(self.tokenizer)
        assert around is not None  # `choose` accepts no other tokenizer
        return with_parts_around(ids, *around)

    def _with_reference(
        self, texts: Sequence[str], special: bool, spans: CharSpans, ids: Ragged, tokens: TokenSpans, lossy: Array
    ) -> tuple[Ragged, TokenSpans]:
        """Replaces ids and tokens by the reference's, for the texts of a bool mask."""
        places = np.flatnonzero(lossy)
        self.fell_back += len(places)
        mine = lossy[spans.text]
        theirs = CharSpans(np.searchsorted(places, spans.text[mine]), spans.start[mine], spans.stop[mine])
        found, encoded = self.tokenizer.encode_spans(take(texts, places), special, theirs)
        tokens.start[mine], tokens.stop[mine] = encoded.start, encoded.stop
        return _replaced(ids, places, found), tokens


def _replaced(ids: Ragged, places: Array, others: Ragged) -> Ragged:
    """The rows, with the rows at these places replaced."""
    order = np.arange(len(ids))
    order[places] = len(ids) + np.arange(len(places))
    return Ragged.concat([ids, others]).take(order)


def with_parts_around(ids: Ragged, before: list[int], after: list[int]) -> Ragged:
    """Every row with the same ids before and after it."""
    if not before and not after:
        return ids
    # In row order: between two rows, the ids after the first come before the ids before the second.
    places = np.column_stack([ids.offsets[:-1]] * len(before) + [ids.offsets[1:]] * len(after)).ravel()
    flat = np.insert(ids.flat, places, np.tile(np.array(before + after, np.int32), len(ids)))
    return Ragged.from_lengths(flat, ids.lengths + len(before) + len(after))


def _in_bytes(texts: Sequence[str], places: Array, spans: CharSpans) -> tuple[Array, Array]:
    """Spans of characters -> (first byte, one past the last byte), in UTF-8.

    Args:
        texts: the texts.
        places: int64, ascending: the numbers of the texts that are not ASCII.
        spans: of all texts.
    """
    is_wide = np.zeros(len(texts), bool)
    is_wide[places] = True
    mine = np.flatnonzero(is_wide[spans.text])
    if not len(mine):
        return spans.start, spans.stop
    start, stop = spans.start.copy(), spans.stop.copy()
    numbers = np.tile(spans.text[mine], 2)
    characters_before = np.concatenate((start[mine], stop[mine]))
    found = np.empty(len(numbers), np.int64)
    order = np.lexsort((characters_before, numbers))
    text, at, size, last = "", 0, 0, -1
    borders = zip(order.tolist(), numbers[order].tolist(), characters_before[order].tolist(), strict=True)
    for place, number, character in borders:  # piece by piece: positions of all characters take 8 bytes each
        if number != last:
            text, at, size, last = texts[number], 0, 0, number
        size += len(text[at:character].encode())
        at = character
        found[place] = size
    start[mine], stop[mine] = np.split(found, 2)
    return start, stop


def _overlapping(
    ids: Ragged, lengths: Array, ends: Array, totals: Array, text: Array, start: Array, stop: Array
) -> TokenSpans:
    """The tokens that overlap ranges of bytes of texts.

    Args:
        ids: ids of the texts.
        lengths: int32 [tokens]: bytes of each token.
        ends: int64 [tokens]: bytes up to the end of each token, over all texts.
        totals: int64 [texts + 1]: bytes before each text.
        text, start, stop: int64 [ranges]: index of the text, first byte, one past the last.
    """
    start, stop = start + totals[text], stop + totals[text]
    first = np.searchsorted(ends, start, side="right")
    # A token of no bytes (a blank that the tokenizer added) counts as part of the character behind it.
    before = np.maximum(first - 1, 0)
    first -= (first > ids.offsets[text]) & (ends[before] == start) & (lengths[before] == 0) if len(ends) else 0
    last = np.searchsorted(ends, stop, side="left") + 1
    return TokenSpans(first - ids.offsets[text], last - ids.offsets[text])


def choose(tokenizer: Tokenizer, backend: Backend, first_texts: Sequence[str] = ()) -> tuple[Used, str | None]:
    """Chooses the backend that encodes, when a pipeline is built.

    Args:
        tokenizer: the reference.
        backend: `auto`: gigatoken, if its ids equal the reference's on all probes.
        first_texts: first texts of the input, as further probes.

    Returns:
        the backend; and why it is not gigatoken, if gigatoken was wanted.

    Raises:
        TokenizerError: gigatoken is wanted, and cannot be used.
    """
    if backend == "transformers":
        return backend, None
    try:
        _probe(tokenizer, first_texts)
    except Unsupported as problem:
        if backend != "auto":
            raise TokenizerError(
                f"--tokenizer_backend {backend}: {problem}; pass --tokenizer_backend auto (or transformers)"
            ) from None
        return "transformers", f"gigatoken is not used: {problem}"
    return "gigatoken", None


def _probe(tokenizer: Tokenizer, first_texts: Sequence[str]) -> None:
    """Raises `Unsupported` unless gigatoken gives the reference's ids on all probes."""
    fast = FastEncoder(tokenizer, "gigatoken")
    tokens = [*tokenizer.controls, *tokenizer.special_tokens.values()]
    between = [f"{token}{probe}{token} {token}\n{token}" for token in tokens[:32] for probe in PROBES[2:4]]
    texts = [*PROBES, *between, "".join(tokens), *first_texts]
    loaded_backend(tokenizer)
    if _around_text(tokenizer) is None:
        raise Unsupported("this tokenizer does more than put special tokens around a text")
    for special in (False, True):
        mine, theirs = (encoder.encode(texts, special).to_lists() for encoder in (fast, tokenizer))
        for text, one, other in zip(texts, mine, theirs, strict=True):
            if one != other:
                raise Unsupported(f"its ids differ from transformers' on the probe {text[:40]!r}")


@functools.cache
def name_of(backend: str) -> str:
    """A backend with its version: `gigatoken 0.10.0`. For transformers, this is its Rust library, `tokenizers`."""
    name = "tokenizers" if backend == "transformers" else backend
    return f"{name} {importlib.metadata.version(name)}"


def encoder_of(tokenizer: Tokenizer, backend: str) -> FastEncoder:
    """The encoder of a worker; it uses the reference if this machine lacks the backend."""
    used = cast(Used, backend)
    if used == "gigatoken":
        try:
            loaded_backend(tokenizer)
        except Unsupported:
            used = "transformers"
    return FastEncoder(tokenizer, used)
