"""Finds records that share an n-gram of words with evaluation data.

The words of a text: Unicode form NFKC, case folded (`str.casefold`), each character that is no letter, mark or number
(Unicode categories L, M, N) replaced by a blank, split at blanks. N-grams are looked up by a 64-bit hash, and each hit
is compared as text, so there are no false hits.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array, offsets_of
from beam_prep.reading.records import CONTAMINATED, SHOWN, Record, Records
from beam_prep.reading.sources import place_in

Mode = Literal["drop", "mark"]

_NOTED = 300
"""Most characters of an n-gram in a note."""
AT_ONCE = 1 << 17
"""Characters of the texts that are processed at a time."""
_BITS = 32
"""Bits of the filter for each n-gram: at most one of 32 other n-grams passes."""
_MOST_BITS = 31
"""The filter has at most 2**31 bits (256 MB)."""

_MULTIPLIER = 0x9E3779B97F4A7C15
_BLANK, _BETWEEN = ord(" "), ord("\n")


class Shared(NamedTuple):
    """An n-gram that a text shares with a reference: its words, and the first place in the references that has it."""

    ngram: str
    file: str
    line: int

    @property
    def note(self) -> str:
        words = self.ngram if len(self.ngram) <= _NOTED else f"{self.ngram[:_NOTED]} ..."
        return f"shares {words!r} with {self.file}, {place_in(self.file, self.line)}"


class Words:
    """The words of several texts. Behind each text is a word of its own, a line feed.

    Attributes:
        data: uint8, the words as UTF-8, a blank behind each.
        start, end: int64 [words], their borders in `data`.
        between: int64 [texts], the number of the word behind each text.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        data = np.frombuffer(_plain(texts), np.uint8)
        kept = data != _BLANK
        self.data: Array = data[kept | np.append(False, kept[:-1])]
        self.end = np.flatnonzero(self.data == _BLANK)
        self.start = np.append(0, self.end + 1)[:-1]
        self.between = np.flatnonzero(self.data[self.start] == _BETWEEN)

    def hashes(self, count: int) -> Array:
        """uint64 [words - count + 1]: hashes of `count` words in a row.

        The hash is the sum of byte * multiplier**place, divided by the power of the first byte's place. It is computed
        as the difference of two cumulative sums.
        """
        size = len(self.data)
        powers = _powers(size)
        factors = powers[size - self.start] * np.uint64(pow(_MULTIPLIER, -size, 1 << 64))
        sums = powers[:size]
        sums *= self.data  # in place, like the sums: a text may be large
        np.cumsum(sums, out=sums)
        borders = np.append(np.uint64(0), sums[self.end])
        found: Array = borders[count:] - borders[:-count]
        found *= factors[: len(found)]
        return found

    def ngram(self, first: int, count: int) -> Array:
        """uint8: `count` words, a blank behind each."""
        return self.data[self.start[first] : self.end[first + count - 1] + 1]


def _powers(most: int) -> Array:
    """uint64: the powers of the multiplier, up to `most` and further."""
    near, far = (
        np.full(1 << 12, _MULTIPLIER, np.uint64),
        np.full((most >> 12) + 1, pow(_MULTIPLIER, 1 << 12, 1 << 64), np.uint64),
    )
    near[0] = far[0] = 1
    return np.multiply.outer(np.cumprod(far), np.cumprod(near)).reshape(-1)


def _plain(texts: Sequence[str]) -> bytes:
    """UTF-8 of folded texts: a blank for each character outside of words, a line feed behind each text."""
    is_ascii = all(map(str.isascii, texts))
    folded = texts if is_ascii else [_folded(text) for text in texts]
    behind = offsets_of([len(text) + 3 for text in folded])[1:] - 2
    joined = "   ".join([*folded, ""])
    if is_ascii:
        data = bytearray(joined.encode().translate(_ASCII))
        np.frombuffer(data, np.uint8)[behind] = _BETWEEN
        return bytes(data)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).copy()
    characters[~_kept_characters()[characters]] = _BLANK
    characters[behind] = _BETWEEN
    return characters.tobytes().decode("utf-32-le").encode()


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _is_kept(code: int) -> bool:
    return unicodedata.category(chr(code))[0] in "LMN"


_ASCII = bytes(ord(chr(code).lower()) if code < 0x80 and _is_kept(code) else ord(" ") for code in range(256))


@functools.cache
def _kept_characters() -> Array:
    """bool [code points]: True for characters of words."""
    return np.fromiter(map(_is_kept, range(0x110000)), bool, 0x110000)


class IndexSource(Protocol):
    """A source of the index, for the launcher and for workers."""

    def load(self) -> "Index": ...


@dataclass(frozen=True)
class Index:
    """The n-grams of the references.

    Attributes:
        ngram: words of an n-gram.
        hashes: uint64 [n-grams], ascending.
        starts: int64 [n-grams], the first place of each in `text`.
        text: uint8, the words of all references, see `Words.data`.
        record_starts: int64 [records], where each reference begins in `text`.
        record_files: int32 [records], indexes into `files`.
        record_lines: int64 [records], line numbers from 1.
        files: paths of the references.
        without: number of references without a text of `ngram` words.
    """

    ngram: int
    hashes: Array
    starts: Array
    text: Array
    record_starts: Array
    record_files: Array
    record_lines: Array
    files: tuple[str, ...]
    without: int

    def load(self) -> "Index":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_filter"}

    @functools.cached_property
    def _filter(self) -> tuple[Array, np.uint64]:
        """(uint8: a bit for each prefix of hashes, set if an n-gram has it; number of hash bits behind the prefix)."""
        bits = min(max(3, (_BITS * len(self.hashes)).bit_length()), _MOST_BITS)
        unused = np.uint64(64 - bits)
        found = np.zeros(1 << bits, bool)
        found[(self.hashes >> unused).astype(np.int64)] = True
        return np.packbits(found, bitorder="little"), unused

    def find(self, texts: Sequence[str]) -> dict[int, Shared]:
        """Text -> the first n-gram that it shares; only texts that share one, ascending."""
        found: dict[int, Shared] = {}
        is_ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        # A non-ASCII character takes four bytes, and may become several words, so these texts are separate.
        for places in (np.flatnonzero(is_ascii & (sizes >= 2 * self.ngram - 1)), np.flatnonzero(~is_ascii)):
            for part in _parts(places, sizes):
                for text, shared in self._find(Words([texts[place] for place in part])):
                    found[part[text]] = shared
        return dict(sorted(found.items()))

    def _find(self, words: Words) -> Iterator[tuple[int, Shared]]:
        hashes = words.hashes(self.ngram)
        table, unused = self._filter
        place = (hashes >> unused).view(np.int64)
        byte = table.take(place >> 3)
        byte >>= (place & 7).astype(np.uint8)
        byte &= 1
        maybe = np.flatnonzero(byte)
        wanted = hashes[maybe]
        at = np.searchsorted(self.hashes, wanted)
        hit = self.hashes.take(at, mode="clip") == wanted
        maybe, at = maybe[hit], at[hit]
        texts = np.searchsorted(words.between, maybe)
        done = -1
        for first, start, text in zip(maybe.tolist(), self.starts[at].tolist(), texts.tolist(), strict=True):
            ngram = words.ngram(first, self.ngram)
            if text != done and np.array_equal(ngram, self.text[start : start + len(ngram)]):
                record = int(np.searchsorted(self.record_starts, start, side="right")) - 1
                shown = ngram[:-1].tobytes().decode()
                yield text, Shared(shown, self.files[self.record_files[record]], int(self.record_lines[record]))
                done = text


def _parts(places: Array, sizes: Array) -> Iterator[list[int]]:
    """Splits texts into parts of about `AT_ONCE` characters, by place."""
    begins = offsets_of(sizes[places])[:-1]
    if len(places):
        yield from map(np.ndarray.tolist, np.split(places, np.flatnonzero(np.diff(begins // AT_ONCE)) + 1))


class IndexBuilder:
    """Collects references, file by file.

    Args:
        ngram: words of an n-gram.
    """

    def __init__(self, ngram: int) -> None:
        self._ngram, self._size, self._without = ngram, 0, 0
        self._files: list[str] = []
        kinds = (np.uint64, np.int64, np.uint8, np.int64, np.int32, np.int64)
        self._parts = [tuple(np.zeros(0, kind) for kind in kinds)]  # the arrays of `Index`, in its order

    def add(self, file: str, lines: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        """Adds the records of a file.

        Args:
            file: its path.
            lines: the line of each record, from 1.
            texts: the texts of each record.
        """
        if self._files[-1:] != [file]:
            self._files.append(file)
        sizes = np.array([sum(map(len, each)) for each in texts], np.int64)
        for part in _parts(np.arange(len(texts)), sizes):
            self._add([lines[place] for place in part], [texts[place] for place in part])

    def _add(self, lines: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        words = Words([text for each in texts for text in each])
        hashes = words.hashes(self._ngram)
        first = np.arange(len(hashes))
        first = first[first + self._ngram <= words.between[np.searchsorted(words.between, first)]]
        begins = np.append(0, words.between + 1)[offsets_of([len(each) for each in texts])]
        self._without += int((np.diff(np.searchsorted(first, begins)) == 0).sum())
        borders = np.append(words.start, len(words.data)) + self._size
        self._size += len(words.data)
        self._parts.append(
            (
                *(hashes[first], borders[first], words.data, borders[begins[:-1]]),
                *(np.full(len(lines), len(self._files) - 1, np.int32), np.array(lines, np.int64)),
            )
        )

    def build(self) -> Index:
        """The index of all added records."""
        hashes, starts, text, begins, files, lines = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort(hashes, kind="stable")  # stable: the first place of each n-gram comes first
        hashes, starts = hashes[order], starts[order]
        new = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
        paths = tuple(self._files)
        return Index(self._ngram, hashes[new], starts[new], text, begins, files, lines, paths, self._without)


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, at any depth, without the `role` of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name != "role":
                yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


def texts_of(record: Record, fields: Iterable[str] | None) -> list[str]:
    """The texts in these fields of a record; None: in all fields."""
    values = record if fields is None else [record.get(name) for name in fields]
    return list(texts_in(values))


@step
def decontaminate(
    records: Records, references: IndexSource, fields: tuple[str, ...] | None = None, mode: Mode = "drop"
) -> Records:
    """Drops (`contaminated`) or marks the records with a text that shares an n-gram with a reference.

    Args:
        records: the records.
        references: gives the index.
        fields: the compared fields, see `texts_of`.
        mode: `mark`: records are kept, and the ledger notes what they share.
    """
    by_row = [texts_of(row, fields) for row in records.rows]
    texts, borders = [text for each in by_row for text in each], offsets_of([len(each) for each in by_row])
    if not texts or not (found := references.load().find(texts)):
        return records
    shared: dict[int, Shared] = {}
    for row, each in zip(np.searchsorted(borders, list(found), side="right") - 1, found.values(), strict=True):
        shared.setdefault(int(row), each)
    ledger, rows = records.ledger.copy(), np.array(list(shared), np.int64)
    lines = records.line[rows]
    if mode == "mark":
        ledger.notes.update(zip(lines.tolist(), (each.note for each in shared.values()), strict=True))
        return replace(records, ledger=ledger)
    ledger.drop(lines, CONTAMINATED)
    ledger.notes.update(zip(lines[:SHOWN].tolist(), [each.note for each in shared.values()][:SHOWN], strict=True))
    return records.keep(np.delete(np.arange(len(records)), rows), ledger)
