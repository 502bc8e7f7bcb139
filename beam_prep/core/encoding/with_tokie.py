"""tokie as a backend: WordPiece as BERT's, and Unigram as T5's and XLM-R's.

Alone it does not give the reference's ids: docs/decisions/backends.md says what differs, and how that was found. Here
it gets what it lacks, and texts in which it may still differ are left to the reference:

* Its tables of characters are those of another Unicode. So each character is tried once by both, in several places.
* It strips no blanks at the end of a text or beside an added token, and puts a lone `▁` where nothing is left.
* An unknown character has another score in its Unigram. Sums round in another way then, and rounding decides between
  segmentations that are equal otherwise. So the vocabulary that it gets has every character, with the right score.
* It keeps each word of a Unigram for ever, with 32-bit places. So it is loaded anew now and then.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.encoding.fast_backend import Encoded, Unsupported, first_line, wanted_version
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.encoding.tried_characters import TriedCharacters

if TYPE_CHECKING:
    import tokie

VERSION = "0.1.4"

_BLANK = "\u2581"
_TRIED_AS = ("{0}", "a{0}", "{0}a", "a{0}b", "a {0} b")
_CHARACTERS = (range(0x21, 0xD800), range(0xF900, 0x10000), range(0x1F000, 0x1FB00))
"""Those that get a piece if they have none. The others are left to the reference where they are unknown."""
_SCORE = "the score of an unknown character"
"""Stands for that score until the text is written."""
_ANEW = 1 << 24
"""Characters after which a Unigram is loaded anew; random letters then take 300 MB, and prose a tenth of that."""


def load(tokenizer: Tokenizer) -> "WithTokie":
    """Raises `Unsupported`, with the reason in a few words."""
    source = json.loads(tokenizer.contents()["tokenizer.json"])
    kinds: dict[str, type[_WordPiece] | type[_Unigram]] = {"WordPiece": _WordPiece, "Unigram": _Unigram}
    kind = source["model"]["type"]
    if kind not in kinds:
        raise Unsupported(f"the model is {kind}, wanted {' or '.join(kinds)}")
    try:
        import tokie  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"it is not installed here ({error}): pip install 'beam-prep[fast]'") from None
    wanted_version("tokie", VERSION)
    made = kinds[kind](tokenizer, source)
    made.check()
    return made


class WithTokie:
    """A loaded tokenizer.

    Args:
        tokenizer: the reference.
        source: its `tokenizer.json`.
        text: what tokie gets in place of that.
    """

    def __init__(self, tokenizer: Tokenizer, source: dict[str, Any], text: str) -> None:
        self._tokenizer = tokenizer
        self._loaded = self._load(text)
        added = source["added_tokens"]
        self._left = np.zeros(tokenizer.max_id + 1, bool)
        """Tokens whose texts are left to the reference: those that were added, and what may be a part of such a one."""
        self._left[[token["id"] for token in added]] = True
        vague = [token["content"] for token in added if token["normalized"] or token["single_word"]]
        normalised = map(tokenizer.reference.normalizer.normalize_str, vague)
        self._first = {word[0] for word in (*vague, *normalised) if word}
        """What tokens begin with that tokie may find in another way."""
        if any(first.isspace() or first == _BLANK for first in self._first):
            raise Unsupported("an added token that begins with a blank, and is matched in normalised text or as a word")
        pieces = tokenizer.reference.get_vocab(with_added_tokens=False)
        self._left[[number for piece, number in pieces.items() if not self._first.isdisjoint(piece)]] = True
        self._tried = TriedCharacters(_TRIED_AS, self._agree)

    def check(self) -> None:
        """Raises `Unsupported` if characters of nearly every text would be left to the reference."""
        points = np.arange(0x20, 0x7F)
        if others := "".join(map(chr, points[self._tried.differ(points)].tolist())):
            raise Unsupported(f"its ids differ from transformers' on {others!r}")

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text, and which texts are the reference's."""
        others = self._tried.texts_with_others(texts)
        ids, left = self._encode(list(texts))
        left[others] = True
        return ids, np.flatnonzero(left)

    def _agree(self, texts: list[str]) -> list[bool]:
        """Compares both."""
        ids, left = self._encode(texts)
        mine, theirs = ids.to_lists(), self._tokenizer.encode(texts, False).to_lists()
        return [one == two or passed for one, two, passed in zip(mine, theirs, left.tolist(), strict=True)]

    def _encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        """Ids of each text; and a bool for each: what its ids are says that it is the reference's."""
        ids = Ragged.from_lists([self._loaded.encode(text, add_special_tokens=False).ids for text in texts])
        return ids, self._rows_with(ids, self._left)

    @staticmethod
    def _rows_with(ids: Ragged, table: Array) -> Array:
        found = np.zeros(len(ids), bool)
        found[np.searchsorted(ids.offsets, np.flatnonzero(table[ids.flat]), side="right") - 1] = True
        return found

    @staticmethod
    def _load(text: str) -> "tokie.Tokenizer":
        import tokie

        with tempfile.TemporaryDirectory(prefix="beam_prep-tokie-") as folder:
            path = Path(folder, "tokenizer.json")  # the library reads files only
            path.write_text(text, encoding="utf-8")
            try:
                loaded = tokie.Tokenizer.from_json(str(path))
            except (ValueError, TypeError, OSError, tokie.TokieError) as error:
                raise Unsupported(f"it does not take this tokenizer ({first_line(error)})") from None
        with _one_core():
            # It counts the cores once, and would start a thread for each of them at every long text.
            loaded.encode_batch(["a"] * 2, add_special_tokens=False)
        return loaded


class _WordPiece(WithTokie):
    def __init__(self, tokenizer: Tokenizer, source: dict[str, Any]) -> None:
        model, kinds = source["model"], _kinds(source)
        if kinds != ["BertNormalizer", "BertPreTokenizer"]:
            raise Unsupported(f"WordPiece with {kinds}, wanted BertNormalizer and BertPreTokenizer")
        step = source["normalizer"]
        if not (
            step["clean_text"] and step["handle_chinese_chars"] and step["strip_accents"] in (None, step["lowercase"])
        ):
            raise Unsupported("a BertNormalizer with other settings than BERT's")
        if (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) != ("##", 100):
            raise Unsupported("a WordPiece with other settings than BERT's")
        if (unknown := model["vocab"].get(model["unk_token"])) is None:
            raise Unsupported("a WordPiece without its unknown token")
        super().__init__(tokenizer, source, json.dumps(source))
        self._left[unknown] = bool(self._first)  # both give it to words, too; these may hold such a token


class _Unigram(WithTokie):
    def __init__(self, tokenizer: Tokenizer, source: dict[str, Any]) -> None:
        model = source["model"]
        self._strips = _is_like_t5(source)
        unknown, pieces = model["unk_id"], [piece for piece, _ in model["vocab"]]
        if model.get("byte_fallback") or unknown is None:
            raise Unsupported("a Unigram with byte fallback, or without an unknown token")
        named = {token["content"] for token in source["added_tokens"]}
        plain = {piece for piece in pieces if piece not in named}
        known = {piece for piece in plain if len(piece) == 1}
        if any(_BLANK in piece[1:] or not known.issuperset(piece) for piece in plain) or _BLANK not in known:
            raise Unsupported("a Unigram with a piece that spans words, or has a character that is no piece")
        score = _unknown_score(tokenizer)
        self._ids = tokenizer.max_id + 1  # and from there on, characters that are unknown to the reference
        # In place of added tokens that are no pieces: a blank is in no word.
        between = [[f" {number}", _SCORE] for number in range(len(pieces), self._ids)]
        others = [[chr(point), _SCORE] for points in _CHARACTERS for point in points if chr(point) not in known]
        more = {**source, "model": {**model, "vocab": [*model["vocab"], *between, *others]}}
        self._text, self._seen = json.dumps(more).replace(json.dumps(_SCORE), score), 0
        super().__init__(tokenizer, source, self._text)
        self._blank, self._unknown = pieces.index(_BLANK), unknown
        self._left[unknown] = True
        # It gives an added token that is no piece an id of its own, behind all others.
        behind = np.ones(len(source["added_tokens"]), bool)
        self._left = np.concatenate([self._left, [character in self._first for character, _ in others], behind])

    def _encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        self._seen += sum(map(len, texts))
        if self._seen > _ANEW:
            self._loaded, self._seen = self._load(self._text), 0
        ids, left = super()._encode(texts)
        # Of unknown characters in a row the reference makes one token.
        unknown = ids.flat >= self._ids
        begins = np.zeros(len(unknown) + 1, bool)
        begins[ids.offsets] = True
        kept = ~unknown | begins[:-1] | ~np.append(False, unknown[:-1])
        # Blanks at the end of a text.
        flat = np.where(unknown, self._unknown, ids.flat)
        last = np.maximum.accumulate(np.where(flat == self._blank, -1, np.arange(len(flat))))
        ends = np.maximum(np.append(-1, last)[ids.offsets[1:]] + 1, ids.offsets[:-1])
        left |= ends == ids.offsets[:-1]
        if self._strips:
            kept &= np.arange(len(flat)) < np.repeat(ends, ids.lengths)
        counts = np.append(0, np.cumsum(kept))
        return Ragged(flat[kept].astype(np.int32), counts[ids.offsets]), left


def _kinds(source: dict[str, Any]) -> list[str]:
    return [step["type"] for part in ("normalizer", "pre_tokenizer") for step in _steps(source[part])]


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inner in part.get("normalizers") or part["pretokenizers"] for step in _steps(inner)]


def _is_like_t5(source: dict[str, Any]) -> bool:
    """Whether blanks at the end are stripped. Raises `Unsupported` for another kind than was tried."""
    for step in [*_steps(source["normalizer"]), *_steps(source["pre_tokenizer"])]:
        match step:
            case {"type": "Precompiled" | "WhitespaceSplit"}:
                continue
            case {"type": "Strip", "strip_left": False, "strip_right": True}:
                continue
            case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "\u2581"}:
                continue
            case {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}:
                continue
        raise Unsupported(f"a Unigram with {step['type']}, or another setting of it than T5's")
    kinds = _kinds(source)
    normaliser = [kind for kind in kinds if kind not in ("WhitespaceSplit", "Metaspace")]
    if normaliser not in (["Precompiled"], ["Precompiled", "Replace"], ["Precompiled", "Strip", "Replace"]):
        raise Unsupported(f"a Unigram with {kinds}, wanted Precompiled")
    if kinds[len(normaliser) :] not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        raise Unsupported(f"a Unigram with {kinds}, wanted Metaspace")
    return "Strip" in kinds


def _unknown_score(tokenizer: Tokenizer) -> str:
    """What the reference takes for an unknown character, written so that it is read as that."""
    import tokenizers

    scores = [score for _, score in json.loads(tokenizer.reference.model.__getstate__())["vocab"]]
    wanted: float = min(scores) - 10.0
    # Both read JSON by a parser that may miss a number of 17 digits by a bit.
    for written in (f"{wanted:.{digits}f}" for digits in range(1, 30)):
        model = {"type": "Unigram", "unk_id": 0, "vocab": [["a", _SCORE]], "byte_fallback": False}
        state = {"version": "1.0", "added_tokens": [], "model": model}
        read = tokenizers.Tokenizer.from_str(json.dumps(state).replace(json.dumps(_SCORE), written))
        if json.loads(read.model.__getstate__())["vocab"][0][1] == wanted:
            return written
    raise Unsupported("a score of unknown characters that JSON does not hold")


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """This thread may run on one core only, where the system has a way to say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
