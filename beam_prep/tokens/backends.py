"""The fast encoder, used only after a check: another library instead of the reference, offsets from byte lengths.

What `Tokenizer` gives (the Rust library that transformers uses) is right by definition. `FastEncoder` is used only if
its ids equal the reference's on all probes, and `tokens.tokenize.tokenize` has the reference encode a sample of
every block, too.

Neither fast path gives character offsets. Where every token represents bytes of the text (byte-level vocabularies, and
BPE of SentencePiece: see `token_bytes`), offsets are running sums of the tokens' byte lengths. Equal sums prove nothing
where a normaliser may change the text. So the normaliser must leave the text unchanged; otherwise the reference encodes
it.

gigatoken's tables of characters are those of a newer Unicode than the reference's. Where its steps use them, each
character that Unicode 3.2 did not have yet is tried once by both, and texts with one that they treat in another way are
left to the reference. So are, with a normaliser, those with newer letters and marks: what these do depends on what is
beside them.
"""

import functools
import importlib.metadata
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, characters, offsets_of, sizes, take, utf8
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
    """A backend cannot be used; the message says why in a few words."""


def _first_line(error: Exception) -> str:
    """What an error says, cut to 200 characters of one line."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


GIGATOKEN_VERSION = "0.10.0"


@functools.lru_cache(maxsize=4)
def loaded_backend(tokenizer: Tokenizer) -> "WithGigatoken":
    """Raises `Unsupported`, with the reason in a few words."""
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
    if (token := sharing(early, late)) is not None:
        raise Unsupported(f"the added token {token!r} overlaps one that is matched in normalised text")


def sharing(some: Sequence[str], others: Sequence[str]) -> str | None:
    """The first of some texts that has a part in common with one of the others, where both can be in a text at once."""
    return next((text for text in some if any(_overlap(text, other) for other in others)), None)


def _overlap(one: str, other: str) -> bool:
    ends = range(1, min(len(one), len(other)) + 1)
    beside = any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in ends)
    return beside or one in other or other in one


_NO_TABLES = ("Prepend", "Replace", "Metaspace", "Split")
"""Steps that know no kinds of characters, unless they have a regular expression."""
_TRIED_AS = ("a{0}b 1{0}2 {0}{0} 's{0}\n{0} \n", "{0}'s {0}a", "a\u0300{0}\u0316x")


_UNTRIED, _SAME, _OTHER = range(3)


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
        self._tokenizer, self.loaded_backend = tokenizer, loaded
        self._looks, self._normalises, self._vague = looks, normalises, vague
        self._tried = np.full(0x110000, _UNTRIED, np.uint8)  # of each character
        self._tried[:0x80] = _SAME

    def encode(self, texts: Sequence[str]) -> tuple[Ragged, Array]:
        """Ids of each text, and which texts are the reference's.

        Returns:
            int32 ids of each text, without special tokens around it; and int64 [n], ascending: the numbers of the texts
            whose ids are not known to be the reference's, which encodes these.
        """
        left = np.zeros(0, np.int64)
        if self._looks and len(wide := _wide(texts)):
            some = take(texts, wide)
            left = wide[self._with_others(some)]
            if self._vague:
                found = (not unicodedata.is_normalized("NFC", text) for text in some)
                left = np.union1d(left, wide[np.fromiter(found, bool, len(wide))])
        return self._encode(texts), left

    def _encode(self, texts: Sequence[str]) -> Ragged:
        # One by one: these are arrays of numpy, while a batch is one of awkward, whose import takes 0.3 s.
        rows = [self.loaded_backend.encode(text) for text in texts]
        flat = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
        return Ragged.from_lengths(flat.view(np.int32), [*map(len, rows)])

    def _with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with a character that the two treat in another way."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        for point in np.unique(points[self._tried[points] == _UNTRIED]).tolist():
            self._tried[point] = _SAME if self._treats_alike(chr(point)) else _OTHER
        places = np.flatnonzero(self._tried[points] == _OTHER)
        return np.unique(np.searchsorted(offsets_of(characters(texts)), places, side="right") - 1)

    def _treats_alike(self, character: str) -> bool:
        """True if both give the same ids for a character."""
        if unicodedata.ucd_3_2_0.category(character) != "Cn":  # it is in the tables of all
            return True
        kind = unicodedata.category(character)
        if self._normalises and (kind[0] in "LM" or kind == "Cn"):
            return False  # it may be put in order, or composed, with what is beside it
        texts = [way.format(character) for way in _TRIED_AS]
        return self._encode(texts).to_lists() == self._tokenizer.encode(texts, False).to_lists()


def _wide(texts: Sequence[str]) -> Array:
    """int64: the texts that are not ASCII."""
    return np.flatnonzero(np.fromiter((not text.isascii() for text in texts), bool, len(texts)))


@dataclass
class FastEncoder:
    """An `Encoder` that gives what `Tokenizer` gives, faster.

    Attributes:
        tokenizer: the reference.
        backend: what makes ids; with `transformers` only offsets are made another way.
        fell_back: texts that the reference had to encode, since they may differ from what their tokens represent.
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
        """Ids of each text, each part of which is encoded alone: see `Encoder`."""
        if self.tokenizer.inside is self.tokenizer.reference:
            return self.encode(["".join(text.texts) for text in texts], add_special_tokens)
        self.fell_back += len(texts)
        return self.tokenizer.encode_parts(texts, add_special_tokens)

    def with_special_tokens(self, ids: Ragged) -> Ragged:
        """Ids of texts with the tokenizer's own special tokens."""
        around = _around_text(self.tokenizer)
        assert around is not None  # `choose` accepts no other tokenizer
        return with_parts_around(ids, *around)

    def _with_reference(
        self, texts: Sequence[str], special: bool, spans: CharSpans, ids: Ragged, tokens: TokenSpans, lossy: Array
    ) -> tuple[Ragged, TokenSpans]:
        """Replaces the ids and tokens of the texts of a bool mask by the reference's."""
        places = np.flatnonzero(lossy)
        self.fell_back += len(places)
        mine = lossy[spans.text]
        theirs = CharSpans(np.searchsorted(places, spans.text[mine]), spans.start[mine], spans.stop[mine])
        found, encoded = self.tokenizer.encode_spans(take(texts, places), special, theirs)
        tokens.start[mine], tokens.stop[mine] = encoded.start, encoded.stop
        return _replaced(ids, places, found), tokens


def _replaced(ids: Ragged, places: Array, others: Ragged) -> Ragged:
    """Rows with those of these numbers replaced."""
    order = np.arange(len(ids))
    order[places] = len(ids) + np.arange(len(places))
    return Ragged.concat([ids, others]).take(order)


def with_parts_around(ids: Ragged, before: list[int], after: list[int]) -> Ragged:
    """Every row with the same ids before and after it."""
    if not before and not after:
        return ids
    # In order of the rows: between two of them, the ids that end the one come before those that begin the other.
    places = np.column_stack([ids.offsets[:-1]] * len(before) + [ids.offsets[1:]] * len(after)).ravel()
    flat = np.insert(ids.flat, places, np.tile(np.array(before + after, np.int32), len(ids)))
    return Ragged.from_lengths(flat, ids.lengths + len(before) + len(after))


def _in_bytes(texts: Sequence[str], places: Array, spans: CharSpans) -> tuple[Array, Array]:
    """First byte (UTF-8) and one past the last of spans of characters.

    Args:
        texts: the texts.
        places: int64, ascending: the numbers of those that are not ASCII.
        spans: of all texts.
    """
    is_wide = np.zeros(len(texts), bool)
    is_wide[places] = True
    mine = np.flatnonzero(is_wide[spans.text])
    if not len(mine):
        return spans.start, spans.stop
    some = take(texts, places)
    data, borders = utf8(some)
    # Not 0b10xxxxxx, within a character; and the end.
    begins = np.flatnonzero(np.append(data.view(np.int8), np.int8(0)) >= -64)
    first, text = offsets_of(characters(some)), np.searchsorted(places, spans.text[mine])
    start, stop = spans.start.copy(), spans.stop.copy()
    for border in (start, stop):
        border[mine] = begins[first[text] + border[mine]] - borders[text]
    return start, stop


def _overlapping(
    ids: Ragged, lengths: Array, ends: Array, totals: Array, text: Array, start: Array, stop: Array
) -> TokenSpans:
    """The tokens of texts that overlap ranges of their bytes.

    Args:
        ids: ids of the texts.
        lengths: int32 [tokens]: bytes of each.
        ends: int64 [tokens]: bytes up to the end of each token, over all texts.
        totals: int64 [texts + 1]: bytes before each text.
        text, start, stop: int64 [ranges]: index of the text, first byte, one past the last.
    """
    start, stop = start + totals[text], stop + totals[text]
    first = np.searchsorted(ends, start, side="right")
    # A token of no bytes, a blank that the tokenizer put there, counts as one of the character behind it.
    before = np.maximum(first - 1, 0)
    first -= (first > ids.offsets[text]) & (ends[before] == start) & (lengths[before] == 0) if len(ends) else 0
    last = np.searchsorted(ends, stop, side="left") + 1
    return TokenSpans(first - ids.offsets[text], last - ids.offsets[text])


def choose(tokenizer: Tokenizer, backend: Backend, first_texts: Sequence[str] = ()) -> tuple[Used, str | None]:
    """Chooses the backend that encodes, when a pipeline is built.

    Args:
        tokenizer: the reference.
        backend: `auto`: gigatoken, if its ids equal the reference's on all probes.
        first_texts: of the input, probes as well.

    Returns:
        the backend; and why it is not gigatoken, where that was wanted.

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
    """Raises `Unsupported` unless gigatoken gives the reference's ids."""
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
    """A backend with its version: `gigatoken 0.10.0`; that of transformers is its Rust library, `tokenizers`."""
    name = "tokenizers" if backend == "transformers" else backend
    return f"{name} {importlib.metadata.version(name)}"


def encoder_of(tokenizer: Tokenizer, backend: str) -> FastEncoder:
    """The encoder of a worker; it uses the reference if this machine does not have the backend."""
    used = cast(Used, backend)
    if used == "gigatoken":
        try:
            loaded_backend(tokenizer)
        except Unsupported:
            used = "transformers"
    return FastEncoder(tokenizer, used)
