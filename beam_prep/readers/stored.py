"""Reads an output in a store: the manifest from the store, shards from a cache to which they are copied on first use.

The files of a shard are a folder of the cache, named by a digest of its content and its size. The copy is checked, and
gets its name when it is complete. Processes share the cache. The least recently used folder is removed first, but none
that this process has open.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from beam_prep.errors import FormatError, StorageError
from beam_prep.formats.manifest import FAILURE, MANIFEST, is_outside
from beam_prep.readers.shards import OpenShard, close_oldest
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import Changed, ObjectInfo, StoreOptions, is_local

if TYPE_CHECKING:
    from filelock import FileLock

CACHE_BYTES = 100 * 10**9
_STALE = 24 * 3600
"""Seconds after which the incomplete copy of a killed process is removed."""

_in_use: "weakref.WeakValueDictionary[str, OpenShard]" = weakref.WeakValueDictionary()
"""Folder -> shard, for the shards that this process has open."""


def default_folder() -> Path:
    """The default folder of the cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("beam_prep", appauthor=False)) / "outputs"


def hold(folder: Path, shard: OpenShard) -> None:
    """Keeps a folder in the cache as long as its shard is open."""
    _in_use[str(folder)] = shard


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
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: no cache can be made here ({error.strerror}): give cache=DIR") from None

    def __reduce__(self) -> tuple[type["Stored"], tuple[Any, ...]]:
        return Stored, (self.url, self._folder, self._most, self._options)

    def fetched(self, files: Sequence[Mapping[str, Any]], inside: str) -> Path:
        """A local folder with these files of an output. Paths are relative to `inside`, a folder of the output.

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
        with self._lock(digest[:2]):  # only one process copies a shard
            with contextlib.suppress(OSError):
                if all((home / name).stat().st_size == file["bytes"] for name, file in wanted.items()):
                    os.utime(home)
                    return home
            made = self._folder / f".{uuid.uuid4().hex}"
            try:
                self._make_room(size)
                made.mkdir()
                for name, file in wanted.items():
                    self._copy(file, made / name)
                _remove(home)  # left from before: a file was cut or removed
                os.rename(made, home)
            except OSError as error:
                raise StorageError(
                    f"{made}: cannot be written ({error.strerror}): make room, or give cache=DIR"
                ) from None
            finally:
                shutil.rmtree(made, ignore_errors=True)
        return home

    def _copy(self, file: Mapping[str, Any], path: Path) -> None:
        url = f"{self.url}/{file['path']}"
        found = objects.find(url)
        if found is None:
            raise FormatError(f"{url}: no such object, though {MANIFEST} lists it")
        if (digest := copied(found, path)) != file["sha256"]:
            raise FormatError(f"{url} is damaged: found sha256 {digest}, {MANIFEST} says {file['sha256']}")

    def _lock(self, name: str) -> "FileLock":
        from filelock import FileLock  # imported here, because most outputs are on a disk

        return FileLock(self._folder / f".lock-{name}", mode=0o600)

    def _make_room(self, size: int) -> None:
        """Removes the least recently used folders until there is room for `size` bytes."""
        with self._lock("all"):
            found: list[tuple[float, int, Path]] = []
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    if entry.name.startswith("."):
                        if entry.is_dir() and entry.stat().st_mtime < time.time() - _STALE:
                            shutil.rmtree(entry.path, ignore_errors=True)
                    elif entry.is_dir():
                        found.append((entry.stat().st_mtime, int(entry.name.rpartition("-")[2]), Path(entry.path)))
            found.sort()
            total = sum(each for _, each, _ in found)
            while total + size > self._most:
                free = next((entry for entry in found if str(entry[2]) not in _in_use), None)
                if free is None:
                    if close_oldest():
                        continue
                    held = sum(each for _, each, _ in found)
                    raise StorageError(
                        f"{self._folder}: cache_bytes is {self._most}, too small for a shard of {size} bytes: "
                        f"give cache_bytes={size + held} or more"
                    )
                _remove(free[2])
                found.remove(free)
                total -= free[1]


def _remove(folder: Path) -> None:
    # The rename comes first, so another process sees the complete folder or none.
    removed = folder.with_name(f".{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)


class StoredFiles:
    """The files of an output, see `verify.OutputFiles`. The objects are listed once, when this is made.

    Args:
        output: a path on `gs://` or `s3://`.

    Raises:
        FormatError: there is no output.
        StorageError: the store does not answer, or refuses.
    """

    def __init__(self, output: str) -> None:
        base = output.rstrip("/")
        found = {each.path[len(base) + 1 :]: each for each in objects.listed(f"{base}/")}
        # The consoles of stores make "folders": empty objects with a name that ends with "/".
        self._found = {name: each for name, each in found.items() if not name.endswith("/") and name}
        if MANIFEST not in self._found:
            raise no_output(base)

    def manifest(self) -> bytes:
        """The manifest's text."""
        with self.local([MANIFEST]) as folder:
            return (folder / MANIFEST).read_bytes()

    def names(self) -> Iterable[str]:
        """See `verify.OutputFiles`."""
        return self._found

    @contextlib.contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:
        """See `verify.OutputFiles`. The copies are in the folder of temporary files (`TMPDIR`).

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
            reader = objects.Reader(found)
            while part := reader.read(_PART_BYTES):
                digest.update(part)
                copy.write(part)
    except (Changed, FileNotFoundError):
        raise FormatError(f"{found.path} changed while it was read: a job is writing this output") from None
    return digest.hexdigest()


def no_output(path: str) -> FormatError:
    """The error for a path without a manifest, on a disk or in a store."""
    left, failed = f"{path}/{FAILURE}", f"{path}.failed/{FAILURE}"
    for failure, found in (
        (left, "is what a failed run left, not an output"),
        (failed, "holds no output, its run failed"),
    ):
        if os.path.isfile(failure) if is_local(failure) else objects.find(failure) is not None:
            return FormatError(f"{path} {found}: the reason is in {failure}")
    if is_local(path) and not os.path.isdir(path):
        return FormatError(f"{path} is no directory; give the directory that `beam-prep run` made with -o")
    from beam_prep.storage.versions import Versions  # imported here: it imports Arrow, which is slow

    if names := Versions(path).names():
        link = f"; if it is a version, type: ln -sfn {names[-1]} {path}/latest" if is_local(path) else ""
        return FormatError(f"{path} has no {MANIFEST}, and no link `latest`: open {path}/{names[-1]}{link}")
    return FormatError(f"{path} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again")
