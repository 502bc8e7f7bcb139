"""Compares an output with its manifest. `CHECKS` lists every check and what it reads.

Each file is read once for its sha256, and shards once more, by the readers of their formats. `build_manifest` in
`formats.manifest` checks that the counts of a manifest add up. docs/formats.md says what cannot be found.
"""

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, Ragged, ranges
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, ShardReader, joined
from beam_prep.formats import manifest as manifests
from beam_prep.formats.flat import FlatReader
from beam_prep.formats.manifest import MANIFEST, REPORT, RUN, SLICES, TOKENIZER, ShardReceipt, WrittenFile
from beam_prep.tokens.resolver import FACTS_FILE

VALUES_AT_ONCE = 1 << 20
"""Values (or bytes, see `Format.sizes_in`) that are read at a time; a larger row is read alone."""


class OutputFiles:
    """The files of an output on this machine's disk; `readers.shards.StoredFiles` are those of one in a store."""

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self._folder = Path(output)

    def names(self) -> Iterable[str]:
        """The path of every file, relative to the output, with "/". Links to folders are not followed."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return (path.relative_to(self._folder).as_posix() for path in files)

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """A folder on this machine with these files, if they exist. The folder lasts as long as the context."""
        return nullcontext(self._folder)


class Wrong(NamedTuple):
    """Rows with the same problem.

    Attributes:
        rows: int64 [wrong], the numbers of the rows, ascending.
        text: the problem; `{}` stands for a value of the row.
        shown: an array [wrong] of values for each `{}`.
    """

    rows: Array
    text: str
    shown: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a shard.

    Attributes:
        part: column -> these rows.
        columns: the columns.
        max_id: the largest id of the tokenizer; None: not known, for instance for a chain written by hand.
    """

    part: Mapping[str, Ragged]
    columns: Sequence[Column]
    max_id: int | None

    def of(self, *roles: str) -> Iterator[tuple[Column, Ragged]]:
        """(column, its rows) of the columns with these roles."""
        return ((column, self.part[column.name]) for column in self.columns if column.role in roles)

    def ids_of(self, column: Column) -> str | None:
        """The name of the column of ids that a column belongs to; None if there is none."""
        return column.of or next((each.name for each, _ in self.of("ids")), None)


def file_is_listed(folder: Path, file: WrittenFile) -> Iterator[str]:
    """A file that the manifest lists exists, with the listed size and sha256."""
    path = folder / file.path
    try:
        if (size := path.stat().st_size) != file.bytes:
            yield f"{file.path}: found {size} bytes, {MANIFEST} says {file.bytes}"
            return
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        yield f"{file.path}: no such file, though {MANIFEST} lists it"
    except OSError as error:
        yield f"{file.path}: cannot be read: {error.strerror}"
    else:
        if digest != file.sha256:
            yield f"{file.path} is damaged: found sha256 {digest}, {MANIFEST} says {file.sha256}"


def no_other_files(files: OutputFiles, listed: Iterable[str]) -> Iterator[str]:
    """There is no file that the manifest does not list. Hidden files are allowed."""
    for name in sorted({*files.names()} - {*listed, MANIFEST, RUN, REPORT}):
        if not any(part.startswith(".") for part in name.split("/")):
            yield f"{name}: found, though {MANIFEST} does not list it: remove it"


def manifest_is_as_written(files: OutputFiles) -> Iterator[str]:
    """The manifest has the sha256 in the hidden `.slices.json`, if that exists. If it differs, the check ends here."""
    with files.local([MANIFEST, SLICES]) as folder, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        wanted = json.loads((folder / SLICES).read_bytes())["manifest"]
        if wanted != (found := hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()):
            yield f"{MANIFEST} is damaged: found sha256 {found}, {SLICES} says {wanted}"


def ids_in_vocabulary(rows: Rows) -> Iterator[Wrong]:
    """Ids are from 0 to the largest id of the tokenizer; a label may also be -100."""
    most = rows.max_id
    for column, values in rows.of("ids", "labels"):
        wrong = (values.flat < 0) | (False if most is None else values.flat > most)
        if column.role == "labels":
            wrong &= values.flat != IGNORE_INDEX
        also = f"{IGNORE_INDEX} or " if column.role == "labels" else ""
        wanted = f"{also}ids from 0 to {'any' if most is None else most}"
        yield _values(values, wrong, f"of {column.name!r} holds {{}}, wanted {wanted}")


def columns_are_aligned(rows: Rows) -> Iterator[Wrong]:
    """Masks, labels, weights, positions have a value for each id, row by row, list by list."""
    for column, found in rows.of("mask", "labels", "weights", "token_value", "attention", "position"):
        if (ids := rows.ids_of(column)) is None:
            continue
        wanted = rows.part[ids]
        lengths = found.flat_lengths, wanted.flat_lengths
        wrong = np.flatnonzero((lengths[0] != lengths[1]) | (found.lengths != wanted.lengths))
        text = f"has {{}} and {{}} values of {column.name!r} and {ids!r}, wanted as many of each"
        yield Wrong(wrong, text, tuple(each[wrong] for each in lengths))
        if not len(wrong) and isinstance(found.values, Ragged) and isinstance(wanted.values, Ragged):
            lists = np.flatnonzero(found.values.lengths != wanted.values.lengths)
            text = f"has lists of {column.name!r} of other lengths than those of {ids!r}"
            yield Wrong(np.unique(np.searchsorted(found.offsets, lists, "right") - 1), text)


def documents_add_up(rows: Rows) -> Iterator[Wrong]:
    """The lengths of documents are above 0 and add up to their packed row; each document has its metadata."""
    for column, lengths in rows.of("lengths"):
        ids = rows.part[str(rows.ids_of(column))]
        yield _values(lengths, lengths.flat <= 0, f"of {column.name!r} holds {{}}, wanted lengths above 0")
        sums = lengths.sums()
        wrong = np.flatnonzero(sums != ids.lengths)
        text = f"of {column.name!r} adds up to {{}} tokens, wanted {{}}"
        yield Wrong(wrong, text, (sums[wrong], ids.lengths[wrong]))
        for other, values in rows.of("string", "number", "file", "offset"):
            wrong = np.flatnonzero(values.lengths != lengths.lengths)
            text = f"has {{}} of {other.name!r} for {{}} documents, wanted one each"
            yield Wrong(wrong, text, (values.lengths[wrong], lengths.lengths[wrong]))


def _values(rows: Ragged, wrong: Array, text: str) -> Wrong:
    """The rows with wrong values, and the first of each; `wrong`: bool, for each innermost value of `rows`."""
    places = np.flatnonzero(wrong)
    numbers, first = np.unique(np.searchsorted(rows.flat_offsets, places, "right") - 1, return_index=True)
    return Wrong(numbers, text, (rows.flat[places[first]],))


@dataclass(slots=True)
class FoundShard:
    """The counts and problems of a shard, from the reader of a format.

    Attributes:
        rows, tokens, trained: see `ShardReceipt`.
        documents: the number of documents in packed rows.
        wrong: problem -> (number of rows, text for the first row).
    """

    rows: int = 0
    documents: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Counts and checks the next rows."""
        counts = manifests.count_tokens(rows.columns, rows.part)
        self.tokens.update(counts["tokens"])
        self.trained.update(counts["trained"])
        self.documents += sum(len(lengths.flat) for _, lengths in rows.of("lengths"))
        for found in (wrong for check in ROW_CHECKS for wrong in check(rows)):
            if len(found.rows):
                first = f"row {self.rows + found.rows[0]} {found.text.format(*(each[0] for each in found.shown))}"
                count, text = self.wrong.get(found.text, (0, first))
                self.wrong[found.text] = count + len(np.unique(found.rows)), text
        self.rows += len(next(iter(rows.part.values())))


def counts_are_listed(found: FoundShard, shard: ShardReceipt) -> Iterator[str]:
    """The numbers of rows, tokens, trained tokens and documents of a shard are as the manifest says."""
    if found.rows != shard.rows:
        yield f"found {found.rows} rows, {MANIFEST} says {shard.rows}"
    for kind, counts, listed in (("tokens", found.tokens, shard.tokens), ("trained", found.trained, shard.trained)):
        for column, count in counts.items():
            if count != listed.get(column):
                yield f"found {kind} {count} of {column!r}, {MANIFEST} says {listed.get(column)}"
    if shard.packing is not None and not shard.packing["rows_split"]:
        filled = shard.packing["rows"] - shard.packing["rows_empty"]
        if found.documents != filled:
            yield f"found {found.documents} documents in packed rows, {MANIFEST} says {filled}"


def rejects_are_counted(found: Mapping[str, int], listed: Mapping[str, int]) -> Iterator[str]:
    """There are as many rejects of each reason as the ledger says."""
    for reason in sorted({*found, *listed}):
        if found.get(reason, 0) != listed.get(reason, 0):
            yield f"rejects: found {found.get(reason, 0)} lines of {reason!r}, the ledger says {listed.get(reason, 0)}"


ROW_CHECKS = (ids_in_vocabulary, columns_are_aligned, documents_add_up)
"""They report the first row of each problem, and the number of rows."""
_DECODED = "the rows of every shard, in every format"
CHECKS: Mapping[Callable[..., Iterator[Any]], str] = {
    manifest_is_as_written: "the manifest",
    no_other_files: "a list of the files",
    file_is_listed: "every byte of every file",
    **dict.fromkeys(ROW_CHECKS, _DECODED),
    counts_are_listed: _DECODED,
    rejects_are_counted: "the files of rejects",
}
"""Check -> what it reads, which is what it costs. The docstring says what must hold."""


def problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line for every difference between an output and its manifest: the file, found, wanted.

    Raises:
        FormatError: the manifest itself is damaged.
    """
    for damage in manifest_is_as_written(files):
        raise FormatError(damage)
    shards, rejects = manifests.receipts_of(manifest), [WrittenFile(**file) for file in manifest["rejects"]]
    others = [*rejects, *(WrittenFile(**file) for file in manifest["files"])]
    of_shards = (file.path for shard in shards for file in shard.files)
    yield from no_other_files(files, [*of_shards, *(file.path for file in others)])
    max_id = _max_id(files)
    shards_of = Counter(shard.part for shard in shards)
    for shard in shards:
        yield from _shard(files, manifest, shard, shards_of[shard.part], max_id)
    rejected = Counter[str]()
    for file in others:
        with files.local([file.path]) as folder:
            yield from file_is_listed(folder, file)
            if file in rejects and (folder / file.path).is_file():
                yield from _count_rejects(folder / file.path, file.path, rejected)
    yield from rejects_are_counted(rejected, manifest["ledger"]["rejected"])


def _max_id(files: OutputFiles) -> int | None:
    """The largest id of the tokenizer in an output; None: there is none, or `file_is_listed` reports it."""
    name = f"{TOKENIZER}/{FACTS_FILE}"
    with files.local([name]) as folder, contextlib.suppress(OSError, ValueError):
        found: int = json.loads((folder / name).read_bytes())["max_id"]
        return found
    return None


def _shard(
    files: OutputFiles, manifest: Mapping[str, Any], shard: ShardReceipt, shards: int, max_id: int | None
) -> Iterator[str]:
    """The problems of one of the `shards` of a domain (in a split)."""
    place, columns = manifests.folder_of_shard(manifest, shard.domain, shard.split), manifests.output_columns(manifest)
    with files.local([file.path for file in shard.files]) as folder:
        damaged = [problem for file in shard.files for problem in file_is_listed(folder, file)]
        yield from damaged
        for name in manifest["formats"]:
            found = FoundShard()
            try:
                if name not in FORMATS:
                    raise ImportError("this version cannot read the format: pip install --upgrade beam-prep")
                for part in _parts(FORMATS[name].read(folder / place, columns, shard.shard, shards), columns):
                    found.add(Rows(part, columns, max_id))
                wrong = [*counts_are_listed(found, shard)]
                wrong += [text if count == 1 else f"{text} ({count} rows)" for count, text in found.wrong.values()]
            except ValueError as error:  # damaged offsets that the reader accepted
                wrong = [f"its rows cannot be read: {error}"]
            except (FormatError, ImportError) as error:
                # The damage of a file was already reported.
                wrong = [] if damaged else [str(error)]
            yield from (f"{place}: shard {shard.shard} ({name}): {problem}" for problem in wrong)


def _parts(reader: ShardReader, columns: Sequence[Column]) -> Iterator[dict[str, Ragged]]:
    """All rows in order, some at a time.

    Raises:
        FormatError: a row is damaged.
    """
    for part in ranges(reader.sizes(), VALUES_AT_ONCE):
        if isinstance(reader, FlatReader):  # its columns are arrays
            yield reader.rows(part.start, part.stop)
        else:
            rows = [reader.row(number) for number in range(part.start, part.stop)]
            yield {each.name: joined([row[each.name] for row in rows], each.dtype, each.levels) for each in columns}


def _count_rejects(path: Path, name: str, rejected: Counter[str]) -> Iterator[str]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                rejected[json.loads(line)["reason"]] += 1
            except (ValueError, KeyError, TypeError):
                yield f"{name}: line {number} is no reject: {line[:60]!r}"


def numbers(manifest: Mapping[str, Any], text: bytes) -> dict[str, Any]:
    """A few numbers of an output, for a scheduler.

    Args:
        manifest: its manifest.
        text: the bytes of the manifest.

    Returns:
        `manifest_sha256`; `shards` and `rows`; `tokens` and `trained`, by column; `read`, the number of records that
        were read, and `rejected`, by reason.
    """
    totals, ledger = manifest["totals"], manifest["ledger"]
    return {
        "manifest_sha256": hashlib.sha256(text).hexdigest(),
        "shards": len(manifest["shards"]),
        **{key: totals[key] for key in ("rows", "tokens", "trained")},
        **{key: ledger[key] for key in ("read", "rejected")},
    }
