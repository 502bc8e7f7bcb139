"""The files of an output, and the check that a file is as the manifest lists it."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from beam_prep.formats.manifest import MANIFEST, WrittenFile


class OutputFiles(Protocol):
    """The files of an output, on a disk or in a store."""

    def names(self) -> Iterable[str]:
        """The path of every file, relative to the output, with "/"."""
        ...

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """A folder on this machine with these files, if they exist. The folder lasts as long as the context."""
        ...


class LocalFiles:
    """An output on this machine's disk."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def names(self) -> Iterator[str]:
        """See `OutputFiles.names`. A link to a folder of the output is not followed; another link counts as a file."""
        for path in self._entries():
            if not os.path.isdir(path) or not self._is_inside(path):
                yield self._name(path)

    def folder_problems(self) -> Iterator[str]:
        """One line for every link that leads out of the output, and every folder that cannot be read."""
        closed: list[OSError] = []
        for path in self._entries(closed.append):
            if os.path.islink(path) and not self._is_inside(path):
                where = f"a link to {os.readlink(path)!r}, which is not in the output"
                yield f"{self._name(path)}: {where}: put the files themselves there"
        for error in closed:
            yield f"{self._name(error.filename)}: cannot be read: make it readable (chmod u+rx)"

    def unlike(self, names: Iterable[str], listed: Iterable[str]) -> list[str]:
        """The names that are not links to listed files within the output."""
        known = {os.path.realpath(self._folder / name) for name in listed}
        return [name for name in names if os.path.realpath(self._folder / name) not in known]

    def _entries(self, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
        """All files and folders in the output that are not hidden."""
        for folder, folders, files in os.walk(self._folder, onerror=on_error):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (os.path.join(folder, name) for name in [*folders, *sorted(files)] if not name.startswith("."))

    def _is_inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._folder))

    def _name(self, path: str) -> str:
        return Path(path).relative_to(self._folder).as_posix()

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """See `OutputFiles.local`."""
        return nullcontext(self._folder)


def file_is_listed(folder: Path, file: WrittenFile) -> Iterator[str]:
    """A file that the manifest lists exists, with the listed size and sha256."""
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
