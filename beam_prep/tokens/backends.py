"""The fast encoder, used only after a check: another library instead of the reference, offsets from byte lengths.

What `Tokenizer` gives (the Rust library that transformers uses) is right by definition. `FastEncoder` is used only if
its ids equal the reference's on all probes, and `tokens.tokenize.tokenize` has the reference encode a sample of
every block, too.

Neither fast path gives character offsets. Where every token represents bytes of the text (byte-level vocabularies, and
BPE of SentencePiece: see `token_bytes`), offsets are running sums of the tokens' byte lengths. Equal sums prove nothing
where a normaliser may change the text. So the normaliser must leave the text unchanged; otherwise the reference encodes
it.
"""

import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import MAX_NARROW, Array, Ragged, characters, offsets_of, sizes, take, utf8
from beam_prep.errors import TokenizerError
from beam_prep.tokens import with_gigatoken
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.token_bytes import token_bytes
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer, TokenSpans
from beam_prep.tokens.with_gigatoken import Unsupported, WithGigatoken

Used = Literal["transformers", "gigatoken"]
Backend = Literal["auto", "transformers", "gigatoken"]


@functools.lru_cache(maxsize=4)
def _around_text(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """The ids that the reference puts before and after a text; None if it does anything else."""
    plain, full = (tokenizer.encode(["a"], special).flat.tolist() for special in (False, True))
    at = next((at for at in range(len(full) + 1) if full[at : at + len(plain)] == plain), None)
    return None if at is None or not plain else (full[:at], full[at + len(plain) :])


@functools.lru_cache(maxsize=4)
def _loaded(tokenizer: Tokenizer) -> WithGigatoken:
    """Raises `Unsupported`, with the reason in a few words."""
    return with_gigatoken.load(tokenizer)


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
        ids, left = _loaded(self.tokenizer).encode(texts)
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
        # Tokens rarely represent 2 GB of text, and sums of half the size take half the time.
        most = len(ids.flat) * int(table.lengths.max(initial=0))
        lengths = table.of(ids, texts)
        ends = np.cumsum(lengths, dtype=np.int32 if most <= MAX_NARROW else np.int64)
        totals = np.zeros(len(ids) + 1, np.int64)
        totals[ids.offsets > 0] = ends[ids.offsets[ids.offsets > 0] - 1]
        lossless = np.diff(totals) == in_bytes
        lossless[wide] &= np.fromiter(map(table.keeps, others), bool, len(others))
        tokens = _overlapping(ids, lengths, ends, totals, spans.text, *_in_bytes(texts, wide, spans))
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
        return _around(ids, *around)

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


def _around(ids: Ragged, before: list[int], after: list[int]) -> Ragged:
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
    some = texts if len(places) == len(texts) else take(texts, places)
    data, borders = utf8(some)
    first, text = offsets_of(characters(some)), np.searchsorted(places, spans.text[mine])
    start, stop = spans.start.copy(), spans.stop.copy()
    for border in (start, stop):
        border[mine] = _bytes_before(data, first[text] + border[mine]) - borders[text]
    return start, stop


_WORD = 64


def _bytes_before(data: Array, characters: Array) -> Array:
    """int64: the bytes (UTF-8) of so many characters from the first on; uint8 [bytes] -> of each number."""
    # Characters are counted by words of bytes, so that no place is kept for each of them.
    bits = np.packbits(data.view(np.int8) >= -64)  # not 0b10xxxxxx, a byte that goes on with a character
    words = np.concatenate([bits, np.zeros(-len(bits) % (_WORD // 8), np.uint8)])
    until = offsets_of(np.bitwise_count(words.view(np.uint64)))
    word = np.searchsorted(until, characters, side="right") - 1
    found = np.full(len(characters), len(data), np.int64)
    inside = np.flatnonzero(characters < until[-1])
    word = word[inside]
    begun = np.cumsum(np.unpackbits(words.reshape(-1, _WORD // 8)[word], axis=1), axis=1, dtype=np.uint8)
    found[inside] = word * _WORD + (begun > (characters[inside] - until[word])[:, None]).argmax(axis=1)
    return found


def _overlapping(
    ids: Ragged, lengths: Array, ends: Array, totals: Array, text: Array, start: Array, stop: Array
) -> TokenSpans:
    """The tokens of texts that overlap ranges of their bytes.

    Args:
        ids: ids of the texts.
        lengths: uint8 or int32 [tokens]: bytes of each.
        ends: int32 or int64 [tokens]: bytes up to the end of each token, over all texts.
        totals: int64 [texts + 1]: bytes before each text.
        text, start, stop: int64 [ranges]: index of the text, first byte, one past the last.
    """
    # In the type of `ends`, which would be copied otherwise.
    start, stop = (start + totals[text]).astype(ends.dtype), (stop + totals[text]).astype(ends.dtype)
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
    _loaded(tokenizer)
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
            _loaded(tokenizer)
        except Unsupported:
            used = "transformers"
    return FastEncoder(tokenizer, used)
