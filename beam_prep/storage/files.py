"""Files on a local disk or in an object store: listed once, read as streams, written completely or not at all."""

import bz2
import glob
import gzip
import io
import itertools
import json
import logging
import os
import shutil
import stat
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa

from beam_prep.data.block import AnyPaths, InputFile
from beam_prep.errors import ConfigError, InputError, StorageError
from beam_prep.formats.manifest import MANIFEST, RUN
from beam_prep.reading.records import Readable, read_up_to
from beam_prep.reading.source import COMPRESSIONS, Position, split_name
from beam_prep.reading.sources import HEAD_BYTES, by_first_bytes, refusal, source_of
from beam_prep.storage import stores
from beam_prep.storage.stores import Changed, ObjectInfo, Reader, is_local, read_bytes, read_version

log = logging.getLogger("beam_prep")

_PACKED_BYTES = 256 * 1024

_END_BYTES = 256 * 1024
"""Bytes that are read from the end of an object in one request: enough for most row indexes, and for any seal."""

DAMAGED_SUFFIX = ".damaged"
"""The ending that a damaged file gets. It is kept for inspection and not used."""


def list_inputs(patterns: AnyPaths) -> list[InputFile]:
    """Lists the files of a job: arguments in the order given, the matches of a glob sorted by bytes.

    Args:
        patterns: paths, globs, and `@LIST`, a file with one path, glob or comment (`# ...`) a line. The folder of a
            dataset that `datasets` saved stands for its Arrow files.

    Raises:
        InputError: an argument matches nothing, is a directory, cannot be read, or names a file a second time; or a
            compressed file has 0 bytes.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    files: list[InputFile] = []
    seen: dict[str, str] = {}
    for pattern in itertools.chain.from_iterable(_listed(os.fspath(each)) for each in patterns):
        for file in _match(pattern):
            place = os.path.realpath(file.path) if is_local(file.path) else file.path
            if place in seen:
                raise InputError(f"the same input twice: {file.path!r} and {seen[place]!r}; name each file once")
            if file.compression is not None and not file.size:
                raise InputError(
                    f"{file.path!r} has 0 bytes, which no compressed file has: writing or uploading it has failed; "
                    "make it again, or leave it out"
                )
            seen[place] = file.path
            files.append(file)
    if not files:
        raise InputError("no input: name at least one JSONL file or glob, for instance 'data/*.jsonl'")
    return files


def input_at(path: str) -> InputFile:
    """An input by its path in a manifest, where `@`, `*` and `[` are letters. For errors see `list_inputs`."""
    (file,) = _match(glob.escape(path))
    return file


def _listed(pattern: str) -> list[str]:
    """The lines of a list of inputs (`@LIST`), without comments (`# ...`). Any other pattern is returned unchanged."""
    if not pattern.startswith("@"):
        return [pattern]
    path = pattern[1:]
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, StorageError, UnicodeDecodeError) as error:
        raise InputError(
            f"the list of inputs {path!r} cannot be read ({error}); wanted text, one path or glob a line "
            f"(an input whose name begins with @: type './{pattern}')"
        ) from None
    names = [line.strip() for line in lines]
    return [name for name in names if name and not name.startswith("#")]


def _match(pattern: str) -> list[InputFile]:
    if is_local(pattern):
        found = [pattern] if os.path.lexists(pattern) else []
        if not found and glob.has_magic(pattern):
            found = glob.glob(pattern, recursive=True)
        for closed in dict.fromkeys(_closed_folders(pattern)) if found != [pattern] else ():
            problem = f"cannot look into {closed!r}: permission denied; to read its files, type: chmod u+rx"
            if not found:
                raise InputError(problem)
            log.warning("warning: %s, or leave them out", problem)
        if not found:
            raise InputError(f"no such input: {pattern!r} (from {os.getcwd()}); check the path, or quote the glob")
        files = [file for path in sorted(found, key=os.fsencode) for file in _files_of_folder(path) or [path]]
        return [InputFile(path, *file_stat(path), compression_of(path), place=os.path.abspath(path)) for path in files]
    try:
        stored = stores.match_pattern(pattern)
    except (StorageError, ConfigError) as error:
        raise type(error)(f"cannot look up {pattern!r}: {error}") from None
    # The consoles of stores create empty objects as folders.
    stored = [each for each in stored if not each.path.endswith("/")]
    if not stored:
        inside = None if glob.has_magic(pattern) else _files_of_folder(pattern.rstrip("/"))
        if inside is None:
            raise InputError(
                f"no such input: {pattern!r}; check the bucket and the path, or name files: '{pattern}/*.jsonl'"
            )
        return [file for path in inside for file in _match(path)]
    return [
        InputFile(each.path, each.size, each.updated, compression_of(each.path), each.version, each.checksum)
        for each in stored
    ]


def _closed_folders(pattern: str) -> Iterator[str]:
    """The folders that `glob` passes over, with all their files, because they may not be read."""
    above, name = os.path.split(pattern)
    if not name:
        return
    yield from _closed_folders(above)
    folder = os.path.join(above, "**" if name == "**" else "", "")
    rights = os.R_OK | os.X_OK if glob.has_magic(name) else os.X_OK
    folders = glob.glob(folder, recursive=True) if glob.has_magic(folder) else [above]
    yield from (path for path in folders if os.path.isdir(path) and not os.access(path, rights))


def _files_of_folder(folder: str) -> list[str] | None:
    """The paths of the Arrow files of a folder that `datasets` saved, in the order of their rows; None: another folder.

    Raises:
        InputError: the folder holds several datasets, or does not name files with all rows in order.
    """
    if is_local(folder) and not os.path.isdir(folder):
        return None
    if exists(join(folder, "dataset_dict.json")):
        one = join(folder, "train")
        raise InputError(f"{folder!r} is a dataset with splits: name the folder of one, for instance {one!r}")
    if not exists(join(folder, "state.json")):
        return None
    try:
        state = json.loads(read_bytes(join(folder, "state.json")))
        names = [each["filename"] for each in state["_data_files"]]
        # Earlier versions of datasets store a selection or an order of rows in a separate file of indices.
        good = bool(names) and not any(value for name, value in state.items() if "indices" in name)
        good = good and all(name == os.path.basename(name) and name.endswith(".arrow") for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise InputError(
            f"{folder!r} is a dataset whose state.json does not name .arrow files with all its rows in order: load it "
            "with datasets, and save it again: dataset.flatten_indices().save_to_disk(...)"
        )
    return [join(folder, name) for name in names]


_LOGS = {"Delta": ("_delta_log", ".json"), "Iceberg": ("metadata", ".metadata.json")}
"""Kind of a table of many files -> the folder of its log, and the ending of the log's files."""
_REMOVED_ROWS = "whose files also hold removed rows: write its rows to a Parquet file first"


def of_tables(files: Iterable[InputFile]) -> list[str]:
    """A warning for each folder of a Delta or Iceberg table, if its log can be listed."""
    folders: dict[str, str] = {}
    for file in files:
        if source_of(file.path).by_row:
            folder = os.path.dirname(file.place or file.path)
            while "=" in os.path.basename(folder):  # of a partition
                folder = os.path.dirname(folder)
            folders.setdefault(folder, file.path)
    found = []
    for folder, path in folders.items():
        for kind, (history, ending) in _LOGS.items():
            root, name = os.path.split(folder)
            if kind == "Iceberg" and name != "data":
                continue
            with suppress(OSError, StorageError):  # to read the files needs no right to list others
                logs = names_in(join(root if kind == "Iceberg" else folder, history))
                if any(each.endswith(ending) for each in logs):
                    found.append(f"{path!r} belongs to a table of {kind}, {_REMOVED_ROWS}")
    return found


def _advice_on_folder(path: str, place: str) -> str:
    """The message for a local folder: what it is, and what to name in place of it."""
    if all(os.path.isfile(os.path.join(place, name)) for name in (MANIFEST, RUN)):
        return f"{path!r} is an output of beam_prep, wanted files of records: leave it out of the inputs"
    for below in ("*", "*/*", "*/*/*"):
        for kind, (history, ending) in _LOGS.items():
            if glob.glob(f"{below.removesuffix('*')}{history}/*{ending}", root_dir=place):
                what = f"{path!r} is a table of {kind}" if below == "*" else f"{path!r} holds tables of {kind}"
                return f"{what}, {_REMOVED_ROWS}"
        found = glob.glob(below, root_dir=place)
        if names := [each for each in found if source_of(each).endings or ".jsonl" in each]:
            break
    else:
        below, names = "*", ["a.jsonl"]
    endings = {name.removeprefix(split_name(name)[0]) for name in names}
    globs = " ".join(repr(os.path.join(path, f"{below}{ending}")) for ending in sorted(endings))
    return f"{path!r} is a directory: name its files, for instance {globs}"


def compression_of(path: str) -> str | None:
    packed = split_name(path)[2]
    return COMPRESSIONS[packed][0] if packed else None


def file_stat(path: str, place: str = "") -> tuple[int, float]:
    """(size in bytes, time of the last change) of a local file.

    Args:
        path: the path as given, for errors.
        place: the absolute path, if `path` is relative to another folder.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        found = os.stat(place or path)
    except OSError as error:
        raise InputError(f"cannot read {path!r}: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(_advice_on_folder(path, place or path))
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path!r} is a pipe or a device, which cannot be read twice: write its data to a file first")
    if not os.access(place or path, os.R_OK):
        raise InputError(f"cannot read {path!r}: permission denied; make it readable (chmod u+r)")
    return found.st_size, found.st_mtime


_AHEAD = 8 * 1024 * 1024
_BEYOND = 64 * 1024


@contextmanager
def open_input(
    source: InputFile, start: int = 0, size: int | None = None, position: Position | None = None
) -> Iterator[Readable]:
    """A stream of a file's content, positioned one byte before `start` (at 0 for 0). Compressed files begin at 0.

    The content of a table is the stored file.

    Args:
        source: the file, as it was listed.
        start: where the range begins.
        size: the size of the range in bytes, if known. A request to a store asks for so many bytes, and a few more for
            the end of the last line.
        position: gets the position in the stored file after every read of a compressed file.

    Raises:
        InputError: the file changed since it was listed, is damaged, or is not compressed as its ending says.
    """
    with _stream(source, _AHEAD if size is None else size + _BEYOND) as stream:
        if start:
            stream.seek(start - 1)
        kind = source_of(source.path)
        yield kind.lines(Input(source, stream, start == 0 and not kind.by_row, position), source.path)


@contextmanager
def _stream(source: InputFile, ahead: int) -> Iterator[Any]:
    """The stored file as a stream. A request to a store asks for at least `ahead` bytes.

    Raises:
        InputError: the file changed since it was listed, or cannot be read.
    """
    if is_local(source.path):
        _check_unchanged(source)
        try:
            stream: Any = open(source.place or source.path, "rb")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise InputError(f"cannot read {source.path!r}: {error}") from None
    else:
        stream = Reader(ObjectInfo(source.path, source.size, source.version or "", "", source.updated), ahead)
    try:
        with stream:
            yield stream
    except (Changed, FileNotFoundError):
        raise _changed(source) from None
    # The file may have been overwritten during the read: some stores ignore the version in a request.
    _check_unchanged(source)


@contextmanager
def open_table(source: InputFile) -> Iterator[Any]:
    """The stored file of a table, for reads at any position.

    Raises:
        InputError: the file changed since it was listed, is damaged, or cannot be read.
    """
    try:
        with _stream(source, _BEYOND) as stream:
            yield stream
    # Column names that are not UTF-8, and sizes beyond the memory, raise no Arrow error.
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise InputError(_damaged(source, error)) from None


def _damaged(source: InputFile, error: BaseException) -> str:
    """The error message for a table that Arrow cannot read."""
    with open_input(source, size=HEAD_BYTES) as stream:
        other = refusal(read_up_to(stream, HEAD_BYTES), source.path)
    text = " ".join(str(error).split()) or type(error).__name__
    if other is None and ("all lists to be of size" in text or "Nested data conversions" in text):
        return (
            f"{source.path!r} has a column that pyarrow cannot read back ({text[:300]}): write its lists with no fixed "
            "size, and flatter types, or leave the column out"
        )
    return other or (
        f"{source.path!r} cannot be read as {source_of(source.path).name} ({text[:300]}): it is cut, damaged, or "
        "another kind of file; make it again, rename it, or leave it out"
    )


def _check_unchanged(source: InputFile) -> None:
    if is_local(source.path):
        same = file_stat(source.path, source.place) == (source.size, source.updated)
    else:
        found = stores.find(source.path)
        same = found is not None and found.version == source.version
    if not same:
        raise _changed(source)


def _changed(source: InputFile) -> InputError:
    return InputError(f"{source.path!r} changed while the job ran: run again on files that do not change")


class Input:
    """Reads a file. Its errors name the file.

    Raises:
        InputError: (in `read`) the file cannot be read, or is not compressed as its ending says; or it is read from its
            start and is certainly not JSONL.
    """

    def __init__(
        self, source: InputFile, stream: Any, from_start: bool = False, position: Position | None = None
    ) -> None:
        self._source = source
        self._packed, self._position = stream, position
        self._unseen = from_start
        packed = source.compression is not None and source.size > 0
        self._stream: Any = _decompressed(str(source.compression), stream) if packed else stream
        if not packed:
            self._position = None

    def read(self, size: int) -> bytes:
        source = self._source
        try:
            data: bytes = self._stream.read(size)
        except FileNotFoundError:
            raise  # see `_stream`
        except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
            kind, advice = source.compression or "text", "repair it, rename it, or leave it out"
            if "too much memory" in str(error):
                advice = "type: zstd -dc --long=31 FILE > NEW"
            said = f"{source.path!r} cannot be read as {kind} ({error}): {advice}"
            if self._unseen and getattr(error, "errno", None) is None:  # what was read: a Git LFS pointer, an HTML page
                self._packed.seek(0)
                said = by_first_bytes(self._packed.read(HEAD_BYTES), source.path) or said
            raise InputError(said) from None
        if self._position is not None:
            self._position.stored = self._packed.tell()
        if self._unseen and size > 0:
            self._unseen = False
            if (problem := refusal(data[:HEAD_BYTES], source.path)) is not None:
                raise InputError(problem)
        return data


def _decompressed(compression: str, stream: Any) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=stream)
    if compression == "bzip2":
        return _Bzip2(stream)
    # Unlike the zstandard package, Arrow detects a truncated frame.
    return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")


class _Bzip2:
    """Reads bzip2 streams, one after another.

    `bz2.BZ2File` takes a damaged stream after the first for padding, and silently ends there. Here it is an error.
    (Arrow's reader fails with an internal error if a read ends exactly at the end of a stream.)
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decompressor = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; b"" only at the end."""
        while True:
            packed = b""
            if self._decompressor.eof:
                packed = self._decompressor.unused_data or self._stream.read(_PACKED_BYTES)
                if not packed:
                    return b""
                self._decompressor = bz2.BZ2Decompressor()
            elif self._decompressor.needs_input:
                packed = self._stream.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError("it ends in the middle")
            if data := self._decompressor.decompress(packed, size):
                return data


def read_file(path: str) -> Any:
    """Opens a file for Arrow: a local file is mapped into memory, the end of an object is read in one request.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if is_local(path):
        return pa.memory_map(path)
    found = stores.find(path)
    if found is None:
        raise FileNotFoundError(path)
    # Token cache objects are written once, so any version is right.
    reader = Reader(replace(found, version=""), 0)
    reader.seek(-_END_BYTES, io.SEEK_END)
    reader.read()
    reader.seek(0)
    return pa.PythonFile(reader, mode="r")


def write_file(path: str, *parts: bytes | pa.Buffer) -> None:
    """Writes a file, completely or not at all. In an object store it is one request.

    On a disk it is renamed when it is complete. A killed process leaves a file with another name, which `gc` removes.
    """
    if not is_local(path):
        stores.put(path, b"".join(parts))
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    made = f"{path}.{uuid.uuid4().hex}"
    try:
        with naming(path), open(made, "wb") as file:
            file.writelines(parts)
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)  # it is there only after an error, for instance on a full disk


def write_if(path: str, data: bytes, version: str | None) -> bool:
    """Writes a file if it still has `version`, as `read_version` gave it; None: if there is no file. False if not.

    On a disk a lock file makes compare and write one step. In a store it is a conditional put.
    """
    if not is_local(path):
        try:
            stores.put(path, data, version)
        except Changed:
            return False
        return True
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with filelock.FileLock(f"{path}.lock"):
        _, found = read_version(path) or (b"", None)
        if found != version:
            return False
        made = f"{path}.new"
        Path(made).write_bytes(data)
        os.replace(made, path)
    return True


def delete(paths: Iterable[str]) -> None:
    """Removes files on a local disk or in stores. A missing file is no error."""
    stored = []
    for path in paths:
        if is_local(path):
            Path(path).unlink(missing_ok=True)
        else:
            stored.append(path)
    if stored:
        stores.delete(stored)


def listed(folder: str) -> Iterator[ObjectInfo]:
    """The files below a folder, at any depth."""
    if not is_local(folder):
        yield from stores.listed(f"{folder}/")
        return
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                found = os.stat(path := join(inside, name))
                yield ObjectInfo(path, found.st_size, "", "", found.st_mtime)


def names_in(folder: str) -> set[str]:
    """The names of what is in a folder, files and folders; none if it is missing."""
    if not is_local(folder):
        return {found.path[len(folder) + 1 :].partition("/")[0] for found in stores.listed(f"{folder}/")}
    return {*os.listdir(folder)} if os.path.isdir(folder) else set()


def remove_folder(path: str) -> None:
    """Removes a folder with its content. A missing folder is no error."""
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        stores.delete(found.path for found in stores.listed(f"{path}/"))


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the path to an OSError without a path, for instance of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def set_aside(path: str) -> None:
    """Renames a damaged file, so it is no longer found. A missing file is no error."""
    with suppress(FileNotFoundError):
        if is_local(path):
            os.replace(path, path + DAMAGED_SUFFIX)
        else:
            stores.put(path + DAMAGED_SUFFIX, read_bytes(path))
            stores.delete([path])


def exists(path: str) -> bool:
    """True if a file exists."""
    return os.path.exists(path) if is_local(path) else stores.find(path) is not None


def join(folder: str, *names: str) -> str:
    """Joins names to the path of a folder, local or in a store."""
    return os.path.join(folder, *names) if is_local(folder) else "/".join([folder.rstrip("/"), *names])


_COMPRESSED = 4
"""Bytes of content for each byte of a compressed file, or of a table, about."""


def plain_size(files: Iterable[InputFile]) -> int:
    """Bytes of the files' contents, about."""
    size = 0
    for file in files:
        is_packed = file.compression is not None or source_of(file.path).is_packed
        size += file.size * (_COMPRESSED if is_packed else 1)
    return size


def total_size(files: Iterable[InputFile]) -> int:
    """The stored size of all files, in bytes (compressed or not)."""
    return sum(file.size for file in files)
