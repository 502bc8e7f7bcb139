"""Exact deduplication as a plain sequential program, and inputs for it. Nothing of beam_prep is used here.

Of records with the same key the first in input order is kept: files as listed, lines as they stand. The key is made of
the values of the fields `by` (all fields without `by`), as JSON with sorted keys, so that the order of keys is no
difference. A field that is absent is null. Each text in a value is normalised, at any depth:

* `none`: as it is,
* `whitespace`: stripped, and every run of white space (`str.split`) is one blank,
* `nfkc_casefold`: Unicode form NFKC, `str.casefold`, then as `whitespace`.

Lines that are blank, no JSON, no object, or have a repeated key are no records: they are never copies, nor have any.
"""

import gzip
import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import hypothesis.strategies as st

Normalize = Literal["none", "whitespace", "nfkc_casefold"]
Record = dict[str, Any]

NORMALIZE: dict[Normalize, Callable[[str], str]] = {
    "none": lambda text: text,
    "whitespace": lambda text: " ".join(text.split()),
    "nfkc_casefold": lambda text: " ".join(unicodedata.normalize("NFKC", text).casefold().split()),
}


class Place(NamedTuple):
    """A line of the input: its file's index, and the line from 1."""

    file: int
    line: int


@dataclass(frozen=True)
class Deduplicated:
    """What is kept, and of what the others are copies.

    Attributes:
        kept: (place, record), in input order.
        copies: place of a record that is dropped -> place of the one that is kept.
    """

    kept: list[tuple[Place, Record]]
    copies: dict[Place, Place]


def deduplicated(paths: Sequence[Path], by: Sequence[str] | None, normalize: Normalize) -> Deduplicated:
    """The records of files without copies."""
    first: dict[str, Place] = {}
    kept, copies = [], {}
    for place, record in records_of(paths):
        earlier = first.setdefault(key_of(record, by, normalize), place)
        if earlier == place:
            kept.append((place, record))
        else:
            copies[place] = earlier
    return Deduplicated(kept, copies)


def key_of(record: Record, by: Sequence[str] | None, normalize: Normalize) -> str:
    """The key of a record, as text."""
    value = record if by is None else [record.get(name) for name in by]
    return json.dumps(_normalised(value, NORMALIZE[normalize]), sort_keys=True)


def _normalised(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _normalised(inner, change) for name, inner in value.items()}  # names stay as they are
    return [_normalised(inner, change) for inner in value] if isinstance(value, list) else value


def records_of(paths: Sequence[Path]) -> Iterator[tuple[Place, Record]]:
    """The records of files, in input order."""
    for number, path in enumerate(paths):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line, content in enumerate(data.split(b"\n"), start=1):
            try:
                record = json.loads(content, object_pairs_hook=_without_repeated)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield Place(number, line), record


def _without_repeated(pairs: list[tuple[str, Any]]) -> Record:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


# Inputs


@dataclass(frozen=True)
class File:
    """A file of an input: its name, which says whether it is compressed, and its lines."""

    name: str
    lines: tuple[bytes, ...]

    def write(self, folder: Path) -> Path:
        """Writes it. The same lines are the same bytes."""
        data = b"".join(line + b"\n" for line in self.lines)
        path = folder / self.name
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path


WORDS = st.sampled_from(["a", "b", "Straße", "ﬁn", "é", "日本", "K", "1", ""])
TEXTS = st.lists(WORDS, max_size=4).map(" ".join)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS}), min_size=1, max_size=3
)
RECORDS = st.one_of(
    st.fixed_dictionaries({"id": st.integers(0, 3), "text": TEXTS}, optional={"source": TEXTS | st.none()}),
    st.fixed_dictionaries({"id": st.integers(0, 3), "messages": MESSAGES}, optional={"source": TEXTS}),
)
NO_RECORDS = st.sampled_from([b"", b"  ", b"{", b"[1]", b"null", b'{"text": "a", "text": "b"}'])

_CHANGES: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.title,
    lambda text: f" {text}",
    lambda text: text.replace(" ", "\t \n"),
    lambda text: text.replace(" ", "\u00a0"),
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: unicodedata.normalize("NFKC", text),
)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy with other texts (but for roles), and the keys of objects in the reverse order."""
    if isinstance(value, dict):
        pairs = reversed(value.items())
        return {name: inner if name == "role" else _changed(inner, change) for name, inner in pairs}
    if isinstance(value, list):
        return [_changed(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


@st.composite
def copies_of(draw: st.DrawFn, record: Record) -> bytes:
    """A line with a record: as it is, or with its keys in another order, other white space, case or Unicode form."""
    changed = draw(st.sampled_from([record, *(_changed(record, change) for change in _CHANGES)]))
    text = json.dumps(
        changed,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])),
    )
    return text.encode()


@st.composite
def corpora(draw: st.DrawFn, longest: int = 12, equal_blocks: int = 0) -> list[File]:
    """The files of an input, with copies within and across them; some are equal, some are compressed.

    Args:
        longest: lines of a file, at most, without `equal_blocks`.
        equal_blocks: bytes, a power of two: most files then are two equal blocks of this size. 0: none is made so.
    """
    records = draw(st.lists(RECORDS, min_size=1, max_size=6))
    line = st.one_of(
        st.sampled_from(records).flatmap(copies_of), st.sampled_from(records).flatmap(copies_of), NO_RECORDS
    )
    contents = draw(st.lists(st.lists(line, max_size=longest), min_size=1, max_size=3))
    if draw(st.booleans()):
        contents.append(draw(st.sampled_from(contents)))  # an equal file
    if equal_blocks:
        contents = [_repeated(lines, equal_blocks) for lines in contents]
    endings = draw(st.lists(st.sampled_from([".jsonl", ".jsonl.gz"]), min_size=len(contents), max_size=len(contents)))
    return [
        File(f"{place}{ending}", tuple(lines))
        for place, (lines, ending) in enumerate(zip(contents, endings, strict=True))
    ]


def _repeated(lines: list[bytes], size: int) -> list[bytes]:
    """Lines of one length that divides `size`, again and again, for at least two blocks of that size."""
    width = 1 << (max([len(line) for line in lines], default=0)).bit_length()
    if not lines or width > size:
        return lines
    block = [lines[place % len(lines)].ljust(width - 1) for place in range(size // width)]
    return block * 2
