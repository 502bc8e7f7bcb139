"""Finds records that share an n-gram of words with evaluation data.

The words of a text: Unicode form NFKC, case folded (`str.casefold`), each character that is no letter, mark or number
(Unicode categories L, M, N) replaced by a blank, split at blanks. The words of the references have numbers. N-grams of
numbers are looked up by a 64-bit hash, and each hit is compared by its numbers, so there are no false hits.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from beam_prep.data.block import step
from beam_prep.data.ragged import Array, offsets_of
from beam_prep.reading.records import CONTAMINATED, SHOWN, Record, Records
from beam_prep.reading.sources import place_in

Mode = Literal["drop", "mark"]

_NOTED = 300
"""Most characters of an n-gram in a note."""
_MOST_BITS = 28
"""The filter has at most 2**28 places (256 MB)."""
_MULTIPLIER = 0x9E3779B97F4A7C15

_BETWEEN = "\ue000"
"""Stands for a word behind each text. Within a text this character, as each for private use, becomes a blank."""
_NO_WORD, _END, _FIRST = 0, 1, 2
"""The numbers of words that the references lack, of `_BETWEEN`, and of the first word."""


class Shared(NamedTuple):
    """An n-gram that a text shares with a reference: its words, and the first place in the references that has it."""

    ngram: str
    file: str
    line: int

    @property
    def note(self) -> str:
        words = self.ngram if len(self.ngram) <= _NOTED else f"{self.ngram[:_NOTED]} ..."
        return f"shares {words!r} with {self.file}, {place_in(self.file, self.line)}"


@functools.cache
def _outside() -> Array:
    """bool [code points]: True for characters that are outside of words."""
    return np.array([unicodedata.category(chr(code))[0] not in "LMN" for code in range(0x110000)])


def words_of(texts: Sequence[str]) -> list[str]:
    """The words of texts, and `_BETWEEN` behind each text."""
    folded = [unicodedata.normalize("NFKC", text).casefold() for text in texts]
    joined = "   ".join([*folded, ""])
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).copy()
    characters[_outside()[characters]] = ord(" ")
    characters[offsets_of([len(text) + 3 for text in folded])[1:] - 2] = ord(_BETWEEN)
    return characters.tobytes().decode("utf-32-le").split()


def ngrams(numbers: Array, count: int) -> tuple[Array, Array]:
    """(int64: the first place of each n-gram without `_NO_WORD` and `_END`; uint64: its hash).

    Args:
        numbers: uint32 [words].
        count: words of an n-gram.
    """
    size = max(0, len(numbers) - count + 1)
    hashes, within = np.zeros(size, np.uint64), np.ones(size, bool)
    for place in range(count):
        words = numbers[place : place + size]
        hashes *= np.uint64(_MULTIPLIER)
        hashes += words
        within &= words >= _FIRST
    first = np.flatnonzero(within)
    return first, hashes[first] * np.uint64(_MULTIPLIER)


@runtime_checkable
class IndexSource(Protocol):
    """A source of the index, for the launcher and for workers."""

    def load(self) -> "Index": ...


@dataclass(frozen=True)
class Index:
    """The n-grams of the references.

    Attributes:
        ngram: words of an n-gram.
        hashes: uint64 [n-grams], ascending.
        starts: int64 [n-grams], the first place of each in `numbers`.
        numbers: uint32, the words of all references, `_END` behind each text.
        vocabulary: uint8, the word of each number from `_FIRST`, as UTF-8 with blanks between them.
        record_starts: int64 [records], where each reference begins in `numbers`.
        record_files: int32 [records], indexes into `files`.
        record_lines: int64 [records], line numbers from 1.
        files: paths of the references.
        without: number of references without a text of `ngram` words.
    """

    ngram: int
    hashes: Array
    starts: Array
    numbers: Array
    vocabulary: Array
    record_starts: Array
    record_files: Array
    record_lines: Array
    files: tuple[str, ...]
    without: int

    def load(self) -> "Index":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @functools.cached_property
    def _number_of(self) -> Mapping[str, int]:
        words = self.vocabulary.tobytes().decode().split()
        return {_BETWEEN: _END} | dict(zip(words, range(_FIRST, _FIRST + len(words)), strict=True))

    @functools.cached_property
    def _filter(self) -> tuple[Array, np.uint64]:
        """(bool: True for each prefix of the hashes; number of hash bits behind the prefix).

        At most one of 8 other n-grams passes. Most are sorted out here, which is faster than a search in `hashes`.
        """
        bits = min((8 * len(self.hashes)).bit_length(), _MOST_BITS)
        unused = np.uint64(64 - bits)
        found = np.zeros(1 << bits, bool)
        found[(self.hashes >> unused).astype(np.int64)] = True
        return found, unused

    def find(self, texts: Sequence[str]) -> dict[int, Shared]:
        """Text -> the first n-gram that it shares; only texts that share one, ascending."""
        words, number_of = words_of(texts), self._number_of
        numbers = np.array([number_of.get(word, _NO_WORD) for word in words], np.uint32)
        first, hashes = ngrams(numbers, self.ngram)
        table, unused = self._filter
        maybe = np.flatnonzero(table[(hashes >> unused).astype(np.int64)])
        first, hashes = first[maybe], hashes[maybe]
        at = np.searchsorted(self.hashes, hashes)
        hit = self.hashes.take(at, mode="clip") == hashes
        first, at = first[hit], at[hit]
        found: dict[int, Shared] = {}
        of_text = np.searchsorted(np.flatnonzero(numbers == _END), first)
        for begin, start, text in zip(first.tolist(), self.starts[at].tolist(), of_text.tolist(), strict=True):
            end, stop = begin + self.ngram, start + self.ngram
            if text not in found and np.array_equal(numbers[begin:end], self.numbers[start:stop]):
                record = int(np.searchsorted(self.record_starts, start, side="right")) - 1
                file, line = self.files[self.record_files[record]], int(self.record_lines[record])
                found[text] = Shared(" ".join(words[begin:end]), file, line)
        return found


TextsOfFiles = Iterable[tuple[str, Sequence[int], Sequence[Sequence[str]]]]
"""(path of a file, the line of each record from 1, the texts of each record); a file's records follow each other.
There is one, maybe without records."""


def index_of(references: TextsOfFiles, ngram: int) -> Index:
    """The index of references; `ngram`: words of an n-gram."""
    size, without, paths, number_of = 0, 0, list[str](), {_BETWEEN: _END}
    parts = list[tuple[Array, ...]]()
    for path, line, texts in references:
        if paths[-1:] != [path]:
            paths.append(path)
        words = words_of([text for each in texts for text in each])
        numbers = np.array([number_of.setdefault(word, len(number_of) + 1) for word in words], np.uint32)
        first, hashes = ngrams(numbers, ngram)
        begins = np.append(0, np.flatnonzero(numbers == _END) + 1)[offsets_of([len(each) for each in texts])]
        without += int((np.diff(np.searchsorted(first, begins)) == 0).sum())
        files, lines = np.full(len(line), len(paths) - 1, np.int32), np.array(line, np.int64)
        parts.append((hashes, first + size, numbers, begins[:-1] + size, files, lines))
        size += len(numbers)
    hashes, starts, numbers, begins, files, lines = map(np.concatenate, zip(*parts, strict=True))
    hashes, places = np.unique(hashes, return_index=True)  # the first place of each n-gram
    vocabulary = np.frombuffer(" ".join([*number_of][1:]).encode(), np.uint8)
    return Index(ngram, hashes, starts[places], numbers, vocabulary, begins, files, lines, tuple(paths), without)


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
    owners = np.searchsorted(borders, list(found), side="right") - 1
    for row, each in zip(owners.tolist(), found.values(), strict=True):
        shared.setdefault(row, each)
    ledger, rows = records.ledger.copy(), np.array(list(shared), np.int64)
    lines, notes = records.line[rows], [each.note for each in shared.values()]
    if mode == "mark":
        ledger.notes.update(zip(lines.tolist(), notes, strict=True))
        return replace(records, ledger=ledger)
    ledger.drop(lines, CONTAMINATED)
    ledger.notes.update(zip(lines[:SHOWN].tolist(), notes[:SHOWN], strict=True))
    return records.keep(np.delete(np.arange(len(records)), rows), ledger)
