"""What the launcher copies to a folder that workers elsewhere read: the tokenizer, evaluation data (decontamination).

It also loads both: a tokenizer from a store, evaluation data from its files.
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from beam_prep.data.block import AnyPath, AnyPaths, InputFile, Split
from beam_prep.data.hashing import Node, tree_digest
from beam_prep.data.ragged import Array
from beam_prep.errors import FormatError, InputError, StorageError, TokenizerError
from beam_prep.formats.cached_block import Sealed, seal_batches
from beam_prep.reading.decontaminate import Index, TextsOfFiles, index_of, texts_of
from beam_prep.reading.records import Record, Records
from beam_prep.reading.sources import place_in
from beam_prep.storage import stores
from beam_prep.storage.files import join, list_inputs, read_file, write_file
from beam_prep.storage.inputs import BLOCK_BYTES, read_split
from beam_prep.storage.stores import StoreOptions, StoreUnavailable, T, is_local, read_bytes, with_retries
from beam_prep.tokens import resolver
from beam_prep.tokens.tokenizer import Tokenizer


def _read(read: Callable[[str], T], path: str, what: str) -> T:
    """Reads a file that the launcher has written. A shared folder may show it late, so a missing file is tried again.

    Raises:
        StorageError: the file did not appear in time, or is damaged; `what` names it.
    """

    def reading() -> T:
        try:
            return read(path)
        except OSError as error:
            raise StoreUnavailable(str(error)) from None

    try:
        return with_retries(reading, path)
    except (StorageError, FormatError) as error:
        raise StorageError(
            f"{what} cannot be read on this worker: {error}. "
            "--staging must name a folder that launcher and workers share, or one on gs:// or s3://"
        ) from None


def load_tokenizer(path: AnyPath) -> Tokenizer:
    """Like `Tokenizer.load`, also for a folder on gs:// or s3://, which is first copied to this disk without weights.

    Raises:
        TokenizerError: there is no usable tokenizer.
        StorageError: the store does not answer, or refuses.
    """
    given = os.fspath(path)
    if is_local(given):
        return Tokenizer.load(given)
    base = given.rstrip("/") + "/"
    names = [each.path[len(base) :] for each in stores.listed(base)]
    names = [name for name in names if name.rpartition("/")[0] in ("", resolver.BELOW)]
    names = [name for name in names if name and Path(name).suffix not in resolver.WEIGHTS]
    if not names:
        raise TokenizerError(f"no tokenizer folder {given!r}: wanted one with tokenizer.json; check bucket and path")
    with tempfile.TemporaryDirectory(prefix="beam_prep-tokenizer-") as copied:
        for name in names:
            (Path(copied) / name).parent.mkdir(exist_ok=True)
            (Path(copied) / name).write_bytes(read_bytes(base + name))
        try:
            return Tokenizer.load(copied).keep()  # `load` does not copy a folder that `save` wrote
        except TokenizerError as error:
            raise TokenizerError(str(error).replace(copied, given)) from None


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """A tokenizer's files in a folder that all workers can read: the `TokenizerSource` of a `Tokenizer`.

    Attributes:
        path: the folder.
        names: its files.
        options: see `StoreOptions`.
    """

    path: str
    names: tuple[str, ...]
    options: StoreOptions = field(default_factory=StoreOptions.current, compare=False)

    def __str__(self) -> str:
        return self.path

    def __call__(self) -> dict[str, bytes]:
        """The files.

        Raises:
            TokenizerError: the files cannot be read.
        """
        what = f"the tokenizer's folder {self.path}"
        try:
            return {name: _read(read_bytes, join(self.path, name), what) for name in self.names}
        except StorageError as error:
            raise TokenizerError(str(error)) from None


def ship(tokenizer: Tokenizer, folder: str) -> Tokenizer:
    """Copies a tokenizer's files to a folder that all workers can read. Returns the tokenizer that loads from it."""
    place = join(folder, "tokenizers", tokenizer.fingerprint)
    contents = tokenizer.contents()
    for name, content in contents.items():
        write_file(join(place, name), content)  # it replaces an old file, which an earlier launch may have left damaged
    return tokenizer.from_source(TokenizerFolder(place, tuple(contents)))


_ARRAYS = ("hashes", "starts", "numbers", "vocabulary", "record_starts", "record_files", "record_lines")


@dataclass(frozen=True)
class References:
    """Evaluation data that was read.

    Attributes:
        index: the index of its n-grams.
        files: path, size and digest of each file, as for the inputs of a manifest.
    """

    index: Index
    files: tuple[dict[str, Any], ...]

    def facts(self) -> dict[str, Any]:
        """The entry in a manifest. Its file digests make jobs with other evaluation data different jobs."""
        index = self.index
        return {
            "files": list(self.files),
            "records": len(index.record_lines),
            "records_without": index.without,
            "ngrams": len(index.hashes),
        }

    @property
    def warnings(self) -> list[str]:
        """Warns of records that are too short to be found."""
        index = self.index
        if not index.without:
            return []
        return [
            f"{index.without:,} of {len(index.record_lines):,} records of preprocessing.decontaminate.against have no "
            f"text of {index.ngram} words, and are not looked for: a smaller ngram would find them"
        ]


def read_references(against: AnyPaths, fields: Sequence[str] | None, ngram: int) -> References:
    """Reads evaluation data. Files that did not change since the last call are not read again.

    Args:
        against: paths and globs, see `list_inputs`.
        fields: the fields whose texts are searched for; None: all texts.
        ngram: words of an n-gram.

    Raises:
        InputError: a file cannot be read, or has no record; a record is not JSON, or has none of the fields; or no text
            of all files has `ngram` words.
        StorageError: the store does not answer, or refuses.
    """
    try:
        files = list_inputs(against)
    except InputError as error:
        raise InputError(f"preprocessing.decontaminate.against: {error}") from None
    return _references(tuple(files), None if fields is None else tuple(fields), ngram)


@functools.lru_cache(maxsize=2)
def _references(files: tuple[InputFile, ...], fields: tuple[str, ...] | None, ngram: int) -> References:
    found = []

    def read() -> TextsOfFiles:
        for number, source in enumerate(files):
            lines, nodes, records = 0, list[Node](), 0
            for block in read_split(Split(number, source, 0, -1), BLOCK_BYTES):
                texts = [_texts(record, fields, _at(source, lines + line)) for line, record in _each(block, lines)]
                yield source.path, (block.line + lines + 1).tolist(), texts
                lines, records = lines + len(block.ledger.status), records + len(texts)
                nodes += block.origin.nodes
            if not records:
                raise InputError(f"preprocessing.decontaminate.against: {source.path} has no record")
            found.append({"path": source.path, "size": source.size, "digest": tree_digest(nodes)})

    index = index_of(read(), ngram)
    if not len(index.hashes):
        raise InputError(
            f"preprocessing.decontaminate: no text of {len(index.record_lines):,} records in `against` has {ngram} "
            "words, so nothing would be found: check `field`, or give a smaller `ngram`"
        )
    return References(index, tuple(found))


def _at(source: InputFile, line: int) -> str:
    return f"{source.path}, {place_in(source.path, line + 1)}"


def _each(block: Records, before: int) -> Iterator[tuple[int, Record]]:
    """(line, record) of each record.

    Raises:
        InputError: a line is no record.
    """
    ledger = block.ledger
    for line, message in sorted(ledger.messages.items()):
        reason = ledger.outcomes[ledger.status[line] - 1][1]
        where = _at(block.origin.source, before + line)
        raise InputError(f"preprocessing.decontaminate.against: {where}: {reason}: {message}")
    yield from zip(block.line.tolist(), block.rows, strict=True)


def _texts(record: Record, fields: tuple[str, ...] | None, where: str) -> list[str]:
    if fields is not None and not any(name in record for name in fields):
        wanted = " or ".join(map(repr, fields))
        there = ", ".join(repr(name[:64]) for name in [*record][:12]) or "(none)"
        raise InputError(f"preprocessing.decontaminate.field: {where}: no field {wanted}; its fields: {there}")
    return texts_of(record, fields)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index in a file that all workers can read. A process loads it once; from a local disk it maps the file.

    Attributes:
        path: the file.
        options: see `StoreOptions`.
    """

    path: str
    options: StoreOptions = field(default_factory=StoreOptions.current, compare=False)

    def load(self) -> Index:
        """The index.

        Raises:
            StorageError: the file cannot be read.
        """
        return _read(_index_in, self.path, f"the evaluation data of preprocessing.decontaminate, {self.path},")


@functools.lru_cache(maxsize=2)
def _index_in(path: str) -> Index:
    sealed = Sealed(read_file(path), "")
    batch = sealed.batch(0)
    arrays = {name: batch.column(name).values.to_numpy() for name in _ARRAYS}
    about = sealed.fact("index")
    return Index(**arrays, **{**about, "files": tuple(about["files"])})


def _column(values: Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values))


def ship_references(references: References, folder: str) -> IndexFile:
    """Writes the index to a folder that all workers can read."""
    index = references.index
    batch = pa.record_batch({name: _column(getattr(index, name)) for name in _ARRAYS})
    about = {"ngram": index.ngram, "files": index.files, "without": index.without}
    content, seal = seal_batches([batch], batch.schema, {"index": about}, "")
    path = join(folder, "references", hashlib.sha256(content).hexdigest()[:32])
    write_file(path, content, seal)
    return IndexFile(path)
