"""The files of an output: which are there, and whether each is as the manifest lists it."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Protocol

from beam_prep.formats.manifest import MANIFEST, WrittenFile


class OutputFiles(Protocol):
    """The files of an output, on a disk or in a store."""

    def names(self) -> Iterable[str]:
        """Every file that is there, relative to the output; "/" separates."""
        ...

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """A folder on this machine with those of these files that exist. It is there as long as the context."""
        ...


class LocalFiles:
    """An output on this machine's disk."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def names(self) -> Iterator[str]:
        """See `OutputFiles.names`. Links to folders of the output are followed, once; see `links_out` for others."""
        for entry in self._entries():
            if not entry.is_dir() or not self._is_inside(entry.path):
                yield self._name(entry.path)

    def links_out(self) -> Iterator[str]:
        """One line for every link that leads out of the output."""
        for entry in self._entries():
            if entry.is_symlink() and not self._is_inside(entry.path):
                yield (
                    f"{self._name(entry.path)}: a link to {os.readlink(entry.path)!r}, which is not in the output: put "
                    "the files themselves there"
                )

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """All that is in the output and not hidden. A folder is entered once, however many links lead to it."""
        seen = {os.path.realpath(self._folder)}
        folders = [os.fspath(self._folder)]
        linked: list[str] = []
        while folders or linked:
            # Links last: a folder's own name comes before those that links give it.
            with os.scandir((folders or linked).pop()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.name.startswith("."):
                        continue
                    yield entry
                    if entry.is_dir() and self._is_inside(entry.path) and (real := os.path.realpath(entry)) not in seen:
                        seen.add(real)
                        (linked if entry.is_symlink() else folders).append(entry.path)

    def _is_inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._folder))

    def _name(self, path: str) -> str:
        return Path(path).relative_to(self._folder).as_posix()

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """See `OutputFiles.local`."""
        return nullcontext(self._folder)


def is_outside(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts


def file_problems(folder: Path, file: WrittenFile) -> Iterator[str]:
    """Compares the size and the sha256 of a file."""
    path = folder / file.path
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would block
            yield f"{file.path}: found a folder, a pipe or a device, {MANIFEST} says a file of {file.bytes} bytes"
            return
        if found.st_size != file.bytes:
            yield f"{file.path}: found {found.st_size} bytes, {MANIFEST} says {file.bytes}"
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
