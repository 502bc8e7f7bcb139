"""The shards of an output: which are open, and where their files are.

Shards of an output in a store are copied to a cache on first use. The files of a shard are a folder of the cache, named
by a digest of its content and its size. The copy is checked, and gets its name when it is complete. Processes share the
cache. The least recently used folder is removed first. Open shards stay readable: their files are mapped.

A lease of a reader is an empty file, `OUT/.beam_prep/readers/<version_name>/<id>`. For a day after its last write the
version is not removed. The reader writes it again when it opens shards.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column, metadata_value
from beam_prep.errors import BeamPrepError, FormatError, StorageError
from beam_prep.formats import Row, ShardReader
from beam_prep.formats.manifest import FAILURE, HIDDEN, LATEST, MANIFEST, READERS, is_outside
from beam_prep.storage import stores
from beam_prep.storage.stores import Changed, ObjectInfo, StoreOptions, is_local
from beam_prep.verify import OutputFiles

if TYPE_CHECKING:
    from filelock import FileLock


class OpenShard:
    """An open shard. Its rows are copies in native byte order, and belong to the caller.

    Args:
        reader: the shard's reader.
        start: the number of its first row in the entire output.
        schema: its columns.
    """

    __slots__ = ("_flat", "_metadata", "_names", "reader", "start")

    def __init__(self, reader: ShardReader, start: int, schema: Sequence[Column]) -> None:
        names = [column.name for column in schema]
        self.reader, self.start, self._names = reader, start, names
        self._metadata = [column for column in schema if column.metadata]
        self._flat: list[tuple[str, Array, memoryview]] | None = None
        columns = _columns_of(reader)
        if columns is not None and all(_is_flat(columns[name]) for name in names):
            self._flat = [(name, columns[name].flat, _borders(columns[name])) for name in names]

    def row(self, number: int) -> Row:
        """A row, by its number in the entire output."""
        at = number - self.start
        row: Row = {}
        if self._flat is not None:  # takes a third of the time; a comprehension would add a call
            for name, values, borders in self._flat:
                row[name] = values[borders[at] : borders[at + 1]].copy()
        else:
            for name, value in self.reader.row(at).items():
                row[name] = value.with_flat(_native(value.flat)) if isinstance(value, Ragged) else _native(value)
        for column in self._metadata:
            row[column.name] = metadata_value(column, row[column.name])
        return row

    def views(self, number: int) -> list[Array | Ragged]:
        """The columns of a row, which may be views of the file."""
        at = number - self.start
        if self._flat is not None:
            return [values[borders[at] : borders[at + 1]] for _, values, borders in self._flat]
        row = self.reader.row(at)
        return [row[name] for name in self._names]

    def lengths(self, name: str) -> Array:
        """int64 [rows]: the length of each row of a column."""
        if (known := getattr(self.reader, "lengths", None)) is not None:
            return np.asarray(known(name))
        rows = map(self.reader.row, range(len(self.reader)))
        return np.array([len(row[name]) for row in rows], np.int64)


def _columns_of(reader: ShardReader) -> Mapping[str, Ragged] | None:
    """The columns over mapped files, if the reader has them. (In a user's format, `columns` may be anything.)"""
    columns = getattr(reader, "columns", None)
    return columns if isinstance(columns, Mapping) else None


def _is_flat(rows: Ragged) -> bool:
    return isinstance(rows.values, np.ndarray) and rows.values.dtype.isnative


def _borders(rows: Ragged) -> memoryview:
    """The offsets of rows. A memory view gives Python integers; to slice with numpy integers takes twice the time."""
    return np.require(rows.offsets, np.int64, ("C", "A")).data  # a view of unaligned integers has no `data`


def _native(values: Array) -> Array:
    # A copy, because a write to a tensor over a read-only map would crash the process.
    return np.array(values, dtype=values.dtype.newbyteorder("="))


CACHE_BYTES = 100 * 10**9
_STALE = 24 * 3600
"""Seconds after which the incomplete copy of a killed process is removed."""


def default_folder() -> Path:
    """The default folder of the cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("beam_prep", appauthor=False)) / "outputs"


class Stored:
    """The files of an output in a store. It can be pickled: another process uses the same cache.

    Args:
        url: the output.
        folder: the cache; it is made if it is missing.
        most: most bytes of the cache.
        options: Beam's options for the store.
    """

    def __init__(self, url: str, folder: Path, most: int, options: StoreOptions) -> None:
        self.url, self._folder, self._most, self._options = url, folder, most, options
        options.activate()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.url, self._folder, self._most, self._options)

    def fetched(self, files: Sequence[Mapping[str, Any]], inside: str, close: Callable[[], None]) -> Path:
        """A local folder with these files of an output. Paths are relative to `inside`, a folder of the output.

        `close` closes the open shards of the caller: a removed file takes room as long as it is mapped.

        Raises:
            FormatError: a file is missing or damaged in the store, or its path leads out of `inside`.
            StorageError: the cache is too small for the files, or its disk is full.
        """
        wanted = {}
        for file in files:
            path = PurePosixPath(file["path"])
            if is_outside(str(path)) or not path.is_relative_to(inside):  # else it could be any file here
                raise FormatError(f"{MANIFEST}: lists {str(path)!r}, which is not a path in {inside!r}")
            wanted[path.relative_to(inside).as_posix()] = file
        said = json.dumps([[name, file["sha256"]] for name, file in wanted.items()])
        digest = hashlib.sha256(said.encode()).hexdigest()
        size = sum(file["bytes"] for file in files)
        home = self._folder / f"{digest}-{size}"
        made = self._folder / f".{uuid.uuid4().hex}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock(digest[:2]):  # only one process copies a shard
                with contextlib.suppress(OSError):
                    if all((home / name).stat().st_size == file["bytes"] for name, file in wanted.items()):
                        os.utime(home)
                        return home
                self._make_room(size, close)
                made.mkdir()
                for name, file in wanted.items():
                    self._copy(file, made / name)
                _remove(home)  # left from before: a file was cut or removed
                os.rename(made, home)
        except OSError as error:
            raise StorageError(f"{made}: cannot be written ({error.strerror}): make room, or give cache=DIR") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return home

    def _copy(self, file: Mapping[str, Any], path: Path) -> None:
        url = f"{self.url}/{file['path']}"
        found = stores.find(url)
        if found is None:
            raise FormatError(f"{url}: no such object, though {MANIFEST} lists it")
        if (digest := copied(found, path)) != file["sha256"]:
            raise FormatError(f"{url} is damaged: found sha256 {digest}, {MANIFEST} says {file['sha256']}")

    def _lock(self, name: str) -> "FileLock":
        from filelock import FileLock  # imported here, because most outputs are on a disk

        return FileLock(self._folder / f".lock-{name}", mode=0o600)

    def _make_room(self, size: int, close: Callable[[], None]) -> None:
        """Removes the least recently used folders until there is room for `size` bytes."""
        if size > self._most:
            raise StorageError(
                f"{self._folder}: cache_bytes is {self._most}, too small for a shard of {size} bytes: "
                f"give cache_bytes={size} or more"
            )
        with self._lock("all"):
            found: list[tuple[float, int, Path]] = []
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    if entry.name.startswith("."):
                        if entry.is_dir() and entry.stat().st_mtime < time.time() - _STALE:
                            shutil.rmtree(entry.path, ignore_errors=True)
                    elif entry.is_dir():
                        stored = int(entry.name.rpartition("-")[2])  # its size in bytes
                        found.append((entry.stat().st_mtime, stored, Path(entry.path)))
            total = sum(each for _, each, _ in found)
            for _, freed, folder in sorted(found):
                if total + size <= self._most:
                    break
                close()
                _remove(folder)
                total -= freed


def _remove(folder: Path) -> None:
    # The rename comes first, so another process sees the complete folder or none.
    removed = folder.with_name(f".{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)


class StoredFiles(OutputFiles):
    """The files of an output in a store. The objects are listed once, when this is made.

    Raises:
        StorageError: the store does not answer, or refuses.
    """

    def __init__(self, output: str) -> None:
        found = {each.path[len(output) + 1 :]: each for each in stores.listed(f"{output}/")}
        # The consoles of stores make "folders": empty objects with a name that ends with "/".
        self._found = {name: each for name, each in found.items() if not name.endswith("/") and name}

    def names(self) -> Iterable[str]:
        """See `OutputFiles`."""
        return self._found

    @contextlib.contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:
        """See `OutputFiles`. The copies are in the folder of temporary files (`TMPDIR`).

        Raises:
            FormatError: a file was replaced or removed meanwhile.
        """
        with tempfile.TemporaryDirectory(prefix="beam_prep-") as folder:
            for name in names:
                if name in self._found and not is_outside(name):
                    copied(self._found[name], Path(folder, name))
            yield Path(folder)


_PART_BYTES = 8 << 20


def copied(found: ObjectInfo, path: Path) -> str:
    """Copies an object of an output to this machine. Returns the sha256 of the copy.

    Raises:
        FormatError: the object was replaced or removed since it was listed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with path.open("wb") as copy:
            reader = stores.Reader(found)
            while part := reader.read(_PART_BYTES):
                digest.update(part)
                copy.write(part)
    except (Changed, FileNotFoundError):
        raise FormatError(f"{found.path} changed while it was read: a job is writing this output") from None
    return digest.hexdigest()


def no_output(path: str) -> FormatError:
    """The error for a path without a manifest, on a disk or in a store."""
    for failure in (f"{path}/{FAILURE}", f"{path}.failed/{FAILURE}"):
        if os.path.isfile(failure) if is_local(failure) else stores.find(failure) is not None:
            return FormatError(f"{path} holds no output, its run failed: the reason is in {failure}")
    if is_local(path) and not os.path.isdir(path):
        return FormatError(f"{path} is no directory; give the directory that `beam-prep run` made with -o")
    from beam_prep.storage.versions import Versions  # imported here: it imports Arrow, which is slow

    if names := Versions(path).names():
        link = f"; if it is a version, type: ln -sfn {names[-1]} {path}/latest" if is_local(path) else ""
        return FormatError(f"{path} has no {MANIFEST}, and no link `latest`: open {path}/{names[-1]}{link}")
    return FormatError(f"{path} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again")


def latest_name(folder: str) -> str | None:
    """The name of the latest version below a folder; None if it has no versions."""
    if is_local(folder):
        link = f"{folder}/{LATEST}"
        return os.readlink(link) if os.path.islink(link) else None
    from beam_prep.storage.versions import Versions  # imported here: it imports Arrow, which is slow

    return Versions(folder).latest()


def is_version(output: str) -> bool:
    """True if an output lies beside a `latest`."""
    with contextlib.suppress(BeamPrepError):  # no right to read there, or a `latest.json` of another program
        return latest_name(output.rpartition("/")[0]) is not None
    return False


class ReaderLease:
    """The lease of a reader on a version. It ends with this object. A reader that may not write has no lease.

    A copy of it, in a data loader's process, renews the lease and does not end it.

    Args:
        version: the path of the version, or its URL.
    """

    def __init__(self, version: str) -> None:
        root, _, name = version.rpartition("/")
        self._path = f"{root}/{HIDDEN}/{READERS}/{name}/{uuid.uuid4().hex}"
        self._renewed = 0.0
        self.renew()
        weakref.finalize(self, _end, self._path, os.getpid())

    def renew(self) -> None:
        """Renews the lease if an hour has passed."""
        if self._renewed and time.time() - self._renewed < 3600:
            return
        self._renewed = time.time()  # a copy may be on another machine, with a monotonic clock of its own
        from beam_prep.storage.files import write_file  # imported here: it imports Arrow, which is slow

        with contextlib.suppress(OSError, BeamPrepError):  # no right to write
            write_file(self._path, b"")


def _end(path: str, pid: int) -> None:
    if os.getpid() != pid:  # a process that the reader's process forked
        return
    with contextlib.suppress(OSError, BeamPrepError):
        if not is_local(path):
            stores.delete([path])
            return
        Path(path).unlink()
        for folder in list(Path(path).parents)[:3]:
            folder.rmdir()
