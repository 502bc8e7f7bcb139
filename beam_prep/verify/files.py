"""The files of an output: which are there, and whether each is as the manifest lists it."""

import hashlib
import os
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
        """See `OutputFiles.names`."""
        for folder, _, names in os.walk(self._folder):
            yield from (Path(folder, name).relative_to(self._folder).as_posix() for name in names)

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """See `OutputFiles.local`."""
        return nullcontext(self._folder)


def is_outside(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts


def file_problems(folder: Path, file: WrittenFile) -> Iterator[str]:
    """Compares the size and the sha256 of a file."""
    path = folder / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
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
