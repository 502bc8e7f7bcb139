"""The fast encoder: another library makes the ids, and byte lengths of tokens give the offsets.

The reference is `Tokenizer`: the Rust library that transformers uses. `FastEncoder` is used only if its ids equal the
reference's on all probes, and `tokens.tokenize.tokenize` has the reference encode a sample of every block, too.

The fast encoder has no character offsets. If every token represents bytes of the text (byte-level vocabularies, and BPE
of SentencePiece: see `TokenBytes`), offsets are running sums of the tokens' byte lengths. Such sums can be equal by
chance if a normaliser changes the text. So with a normaliser, the reference encodes texts that are not NFC.

gigatoken has the Unicode tables of a newer version than the reference. If its steps use them, each character that
Unicode 3.2 lacks is tried once with both libraries, and texts with a character that they treat differently are left to
the reference. With a normaliser, so are texts with newer letters and marks, because their treatment depends on their
neighbours.
"""

import contextlib
import functools
import importlib.metadata
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, characters, offsets_of, take
from beam_prep.errors import TokenizerError
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer, state_of

if TYPE_CHECKING:
    import gigatoken
    import tokenizers

Backend = Literal["auto", "transformers", "gigatoken"]


class Unsupported(Exception):
    """A backend cannot be used; the message is a short reason."""


@functools.lru_cache(maxsize=4)
def _around_text(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the reference puts before and after a text. Raises `Unsupported` if it does anything else."""
    plain, full = (tokenizer.encode(["a"], special).flat.tolist() for special in (False, True))
    places = (at for at in range(len(full) + 1) if full[at : at + len(plain)] == plain)
    at = next(places, None)
    if at is None or not plain:
        raise Unsupported("this tokenizer does more than put special tokens around a text")
    return full[:at], full[at + len(plain) :]


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
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise Unsupported(f"it does not take this tokenizer ({reason})") from None
    model: Any = tokenizer.reference.model
    normalising, splitting = _steps_of(tokenizer)
    is_nfc = [step["type"] for step in normalising] == ["NFC"]
    _check_added([*tokenizer.added.values()], bool(normalising) and not is_nfc)
    splits_words = any(step["type"] == "Split" for step in splitting)
    if any(step.get("use_regex") is False for step in splitting) and not splits_words:
        raise Unsupported("a byte-level tokenizer that splits no words")
    if getattr(model, "ignore_merges", False) and getattr(model, "byte_fallback", False):
        raise Unsupported("a model with ignore_merges and byte_fallback")
    normalises, splits = (
        any(step["type"] not in _NO_TABLES or "Regex" in step.get("pattern", ()) for step in steps)
        for steps in (normalising, splitting)
    )
    vague = is_nfc and any(token.normalized or not token.content.isascii() for token in tokenizer.added.values())
    return WithGigatoken(tokenizer, loaded, normalises or splits, normalises, vague)


def _check_added(added: "Sequence[tokenizers.AddedToken]", rewrites: bool) -> None:
    """Raises `Unsupported` for added tokens that gigatoken finds in other places than the reference.

    The reference looks first for tokens that are not `normalized`, in the original text, and then for the others in the
    normalised rest. gigatoken looks for all at once.

    Args:
        added: the tokens.
        rewrites: the normaliser does more than NFC.
    """
    blank = any(token.content != token.content.strip() for token in added)
    late = [token.content for token in added if token.normalized]
    for token in added:
        if (
            token.single_word
            or (rewrites and token.normalized and not token.special)
            or not unicodedata.is_normalized("NFC", token.content)
            or (blank and (token.lstrip or token.rstrip))
            or (not token.normalized and any(overlap(token.content, other) for other in late))
        ):
            raise Unsupported(f"it may find the added token {token.content!r} in other places")


def overlap(one: str, other: str) -> bool:
    """True if two texts have a part in common, so that both may match at one place."""
    ends = range(1, min(len(one), len(other)) + 1)
    beside = any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in ends)
    return beside or one in other or other in one


_NO_TABLES = ("Prepend", "Replace", "Metaspace", "Split")
"""Steps that use no Unicode tables, unless they have a regular expression."""
_TRIED_AS = ("a{0}b 1{0}2 {0}{0} 's{0}\n{0} \n", "{0}'s {0}a", "a\u0300{0}\u0316x")


_UNTRIED, _SAME, _OTHER = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class WithGigatoken:
    """A tokenizer that gigatoken has loaded.

    Attributes:
        tokenizer: the reference.
        loaded: the same tokenizer in gigatoken.
        looks: its steps use Unicode tables.
        normalises: its normaliser uses them.
        vague: added tokens may match only after NFC.
        _tried: by code point, what was found.
    """

    tokenizer: Tokenizer
    loaded: "gigatoken.Tokenizer"
    looks: bool
    normalises: bool
    vague: bool
    _tried: Array = field(default_factory=lambda: np.full(0x110000, _UNTRIED, np.uint8))

    def encode(self, texts: Sequence[str], located: bool = False) -> tuple[Ragged, Array]:
        """Encodes the texts, and says which of them the reference has to encode.

        Args:
            texts: the texts.
            located: the ids must show the places of their characters, too: a normaliser must not change the text.

        Returns:
            int32 ids of each text, without special tokens around it; and int64 [n], ascending: the numbers of texts
            whose ids may differ from the reference's.
        """
        left = np.zeros(0, np.int64)
        wide = [place for place, text in enumerate(texts) if self.looks and not text.isascii()]
        if wide:
            left = np.array(wide)[self._with_others([texts[place] for place in wide])]
            if self.vague or (located and self.normalises):  # asking takes a third of the time of encoding
                changed = [place for place in wide if not unicodedata.is_normalized("NFC", texts[place])]
                left = np.union1d(left, np.array(changed, np.int64))
        return self._encode(texts), left

    def _encode(self, texts: Sequence[str]) -> Ragged:
        # One by one, as numpy arrays: a batch is an awkward array, whose import takes 0.3 s.
        rows = [self.loaded.encode(text) for text in texts]
        flat = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
        return Ragged.from_lengths(flat.view(np.int32), [*map(len, rows)])

    def _with_others(self, texts: Sequence[str]) -> Array:
        """int64, ascending: the texts with a character that the two libraries treat differently."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        places = np.flatnonzero(points > 127)  # both treat ASCII alike
        points = points[places]
        for point in np.unique(points[self._tried[points] == _UNTRIED]).tolist():
            self._tried[point] = _SAME if self._treats_alike(chr(point)) else _OTHER
        places = places[self._tried[points] == _OTHER]
        return np.unique(np.searchsorted(offsets_of(characters(texts)), places, side="right") - 1)

    def _treats_alike(self, character: str) -> bool:
        """True if both libraries give the same ids for a character."""
        if unicodedata.ucd_3_2_0.category(character) != "Cn":  # all tables have it
            return True
        kind = unicodedata.category(character)
        if self.normalises and (kind[0] in "LM" or kind == "Cn"):
            return False  # it may be reordered, or composed, with its neighbours
        texts = [way.format(character) for way in _TRIED_AS]
        return self._encode(texts).to_lists() == self.tokenizer.encode(texts, False).to_lists()


@dataclass
class FastEncoder:
    """Encodes with the results of `Tokenizer`, and its methods, but faster.

    Attributes:
        tokenizer: the reference.
        fell_back: number of texts that the reference had to encode, because the fast result may be wrong.
    """

    tokenizer: Tokenizer
    fell_back: int = 0

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32, without truncation or padding."""
        if not texts:
            return Ragged.from_lists([])
        ids, left = loaded_backend(self.tokenizer).encode(texts)
        if len(left):
            self.fell_back += len(left)
            ids = _replaced(ids, left, self.tokenizer.encode(take(texts, left), False))
        return with_parts_around(ids, *_around_text(self.tokenizer)) if add_special_tokens else ids

    def encode_spans(self, texts: Sequence[str], add_special_tokens: bool, spans: CharSpans) -> tuple[Ragged, Array]:
        """Ids of each text, and the tokens that overlap each character span: see `Tokenizer`."""
        if not len(spans):
            return self.encode(texts, add_special_tokens), np.zeros((2, 0), np.int64)
        table = token_bytes(self.tokenizer)
        if table is None:
            self.fell_back += len(texts)
            return self.tokenizer.encode_spans(texts, add_special_tokens, spans)
        ids, left = loaded_backend(self.tokenizer).encode(texts, located=True)
        in_bytes, start, stop = _in_bytes(texts, spans)
        lengths = table.of(ids, texts)
        ends = offsets_of(lengths)
        totals = ends[ids.offsets]
        lossless = np.diff(totals) == in_bytes
        lossless[left] = False
        if table.blank:
            lossless &= [_BLANK not in text for text in texts]
        tokens = _overlapping(ids, lengths, ends[1:], totals, spans.text, start, stop)
        if add_special_tokens:
            before, after = _around_text(self.tokenizer)
            ids = with_parts_around(ids, before, after)
            tokens += len(before)
        tokens[:, spans.start >= spans.stop] = 0
        if lossless.all():
            return ids, tokens
        places = np.flatnonzero(~lossless)
        self.fell_back += len(places)
        mine = ~lossless[spans.text]
        theirs = CharSpans(np.searchsorted(places, spans.text[mine]), spans.start[mine], spans.stop[mine])
        found, tokens[:, mine] = self.tokenizer.encode_spans(take(texts, places), add_special_tokens, theirs)
        return _replaced(ids, places, found), tokens

    def encode_parts(self, texts: Sequence[Parts], add_special_tokens: bool) -> Ragged:
        """Ids of each text; each part of a text is encoded alone: see `Tokenizer`."""
        if self.tokenizer.inside is self.tokenizer.reference:
            return self.encode(["".join(text.texts) for text in texts], add_special_tokens)
        self.fell_back += len(texts)
        return self.tokenizer.encode_parts(texts, add_special_tokens)


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
    borders = [ids.offsets[:-1]] * len(before) + [ids.offsets[1:]] * len(after)
    added = np.tile(np.array(before + after, np.int32), len(ids))
    flat = np.insert(ids.flat, np.column_stack(borders).ravel(), added)
    return Ragged.from_lengths(flat, ids.lengths + len(before) + len(after))


def _in_bytes(texts: Sequence[str], spans: CharSpans) -> tuple[Array, Array, Array]:
    """(bytes of each text; the first byte of each span, one past the last byte), in UTF-8."""
    data = np.frombuffer(b"".join(map(str.encode, texts)), np.uint8)
    more = np.flatnonzero(data >> 6 == 2)  # the bytes of characters behind their first
    owner = more - np.arange(1, len(more) + 1)  # the number of the character
    borders = offsets_of(characters(texts))
    first = borders[spans.text]
    places = borders, first + spans.start, first + spans.stop
    begin, start, stop = (at + np.searchsorted(owner, at) for at in places)
    return np.diff(begin), start - begin[spans.text], stop - begin[spans.text]


def _overlapping(
    ids: Ragged, lengths: Array, ends: Array, totals: Array, text: Array, start: Array, stop: Array
) -> Array:
    """int64 [2, ranges]: the tokens that overlap ranges of bytes of texts.

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
    if len(ends):
        before = np.maximum(first - 1, 0)
        is_blank = (ends[before] == start) & (lengths[before] == 0)
        first -= (first > ids.offsets[text]) & is_blank
    last = np.searchsorted(ends, stop, side="left") + 1
    return np.stack([first, last]) - ids.offsets[text]


# Offsets: the number of bytes of a text that each of its tokens represents, if the vocabulary determines it. There are
# two families. In a byte-level vocabulary, each character of a token is one byte. In a SentencePiece vocabulary, `▁` is
# a blank and `<0x0A>` one byte, and the tokenizer may add a blank before a text.

_BLANK = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NEVER = 1 << 20
"""Bytes of a token whose text is unknown: with it, no sum is right."""
_OF_BYTES = {"Split", "Digits", "Punctuation", "ByteLevel"}

Prefix = Literal["none", "parts", "text"]


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Number of bytes of a text that each token represents.

    Attributes:
        lengths: int32 [ids].
        blank: the tokenizer writes `▁` for a blank, so a text must not contain `▁`.
        prefix: the texts before which it adds a blank. `parts`: each part of a text between two added tokens; `text`:
            the text, if it begins with neither a blank nor an added token; `none`.
        added: bool [ids]: added tokens, which end such a part.
    """

    lengths: Array
    blank: bool = False
    prefix: Prefix = "none"
    added: Array | None = None

    def of(self, ids: Ragged, texts: Sequence[str]) -> Array:
        """int32 [tokens]: bytes of its text that each token represents."""
        found: Array = self.lengths[ids.flat]
        if self.prefix == "none" or not len(found):
            return found
        assert self.added is not None
        ends, begins = self.added[ids.flat], ids.lengths > 0
        if self.prefix == "parts":
            places = np.append(ids.offsets[:-1][begins], 1 + np.flatnonzero(ends[:-1]))
        else:
            places = ids.offsets[:-1][begins & [not text.startswith(" ") for text in texts]]
        places = places[~ends[places] & (found[places] > 0)]  # lengths must not become negative
        found[places] -= 1
        return found


@functools.lru_cache(maxsize=4)
def token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """The byte lengths of tokens; None if the vocabulary may lose bytes: then the reference makes the offsets."""
    backend = tokenizer.reference
    model: Any = backend.model
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    normalising, splitting = _steps_of(tokenizer)
    if any(step.get("add_prefix_space") for step in splitting):
        return None
    kinds = {step["type"] for step in splitting}
    in_bytes = "ByteLevel" in kinds
    prefix: Prefix | None = None
    # A `Split` that removes a part of a text makes its sum too small.
    if in_bytes and kinds <= _OF_BYTES and normalising in ([], [{"type": "NFC"}]) and not model.byte_fallback:
        prefix = "none"
    elif model.byte_fallback and all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)):
        prefix = _prefix(normalising, splitting)
    if prefix is None:
        return None
    lengths, added = np.zeros(tokenizer.max_id + 1, np.int32), np.zeros(tokenizer.max_id + 1, bool)
    # Token by token: a dict of all tokens would take longer, and 20 MB.
    for number in range(len(lengths)):
        token = backend.id_to_token(number) or ""
        if in_bytes:
            lengths[number] = len(token)
        else:
            lengths[number] = 1 if _BYTE.fullmatch(token) else len(token.encode()) - 2 * token.count(_BLANK)
    if in_bytes and model.unk_token is not None and (unknown := backend.token_to_id(model.unk_token)) is not None:
        lengths[unknown] = _NEVER
    for number, each in tokenizer.added.items():
        content = each.content
        vague = each.normalized and bool(normalising)
        if not in_bytes:
            if _BLANK in content and model.token_to_id(content) is not None:
                continue  # texts that contain it are the reference's; elsewhere, its id stands for blanks
            # The token may include blanks around it, or its text the blank that is added before a text.
            vague = each.normalized or each.lstrip or each.rstrip or _BYTE.fullmatch(content) is not None
        lengths[number], added[number] = _NEVER if vague else len(content.encode()), True
    return TokenBytes(lengths, not in_bytes, prefix, added)


def _prefix(normalisers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> Prefix | None:
    """`TokenBytes.prefix`, if the tokenizer only writes `▁` for blanks; None for other tokenizers."""
    kept = ("Split", "Digits", "Metaspace")
    if any(step["type"] not in kept or step.get("behavior") == "Removed" for step in splitters):
        return None
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    if any(step["type"] == "Metaspace" for step in splitters):
        # `always` depends on the first byte of each part, so it is not supported.
        schemes: dict[str, Prefix] = {"first": "text", "never": "none"}
        alone = not normalisers and len(splitters) == 1 and splitters[0]["replacement"] == _BLANK
        return schemes.get(splitters[0]["prepend_scheme"]) if alone else None
    if normalisers == [{"type": "Prepend", "prepend": _BLANK}, replaces]:
        return "parts"
    return "none" if normalisers == [replaces] else None


def _steps_of(tokenizer: Tokenizer) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps of the normaliser, and those that split a text into words, as in `tokenizer.json`."""
    normaliser, splitter = tokenizer.reference.normalizer, tokenizer.reference.pre_tokenizer
    return [*_steps(state_of(normaliser), "normalizers")], [*_steps(state_of(splitter), "pretokenizers")]


def _steps(state: dict[str, Any] | None, name: str) -> Iterator[dict[str, Any]]:
    if state is not None and name not in state:
        yield state
    for step in (state or {}).get(name, ()):
        yield from _steps(step, name)


def choose(tokenizer: Tokenizer, backend: Backend, first_texts: Sequence[str] = ()) -> tuple[Backend, str | None]:
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
    fast = FastEncoder(tokenizer)
    tokens = [*tokenizer.controls, *tokenizer.special_tokens.values()]
    between = [f"{token}{probe}{token} {token}\n{token}" for token in tokens[:32] for probe in PROBES[2:4]]
    texts = [*PROBES, *between, "".join(tokens), *first_texts]
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


def encoder_of(tokenizer: Tokenizer, backend: str) -> Tokenizer | FastEncoder:
    """The encoder of a worker: the reference, unless this machine has the backend."""
    if backend == "gigatoken":
        with contextlib.suppress(Unsupported):
            loaded_backend(tokenizer)
            return FastEncoder(tokenizer)
    return tokenizer
