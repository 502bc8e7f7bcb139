"""The unfinished files of a launch, and files that are hashed while they are written."""

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from beam_prep.formats.manifest import WrittenFile
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import join, naming, remove_folder
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import StoreOptions, is_local, shortened

_KEPT = ("token_cache", "tokenizers", "references")
"""Folders that stay after a failed run, for the next launch on the same output."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of one launch's unfinished files.

    Attributes:
        root: the folder of all launches on this output. It holds the default token cache, so the next launch finds it.
        launch: the id of this launch.
        options: the store options that workers activate.
        home: the folder of the output's claim and lock. It is always next to the output, so all launches on the output
            find the same claim.
    """

    root: str
    launch: str
    options: StoreOptions = field(default_factory=StoreOptions.current)
    home: str = ""

    @classmethod
    def beside(cls, output: str, staging: str | None = None) -> "Staging":
        """A new launch, in `<staging>/<output's name and digest>/`; by default in `.beam_prep/` next to the output."""
        output = os.path.realpath(output) if is_local(output) else output
        folder, name = os.path.split(output)
        digest = hashlib.sha256(output.encode()).hexdigest()[:12]
        name = shortened(name)
        home = join(folder, ".beam_prep", f"{name}-{digest}")
        if staging is None:
            return cls(home, uuid.uuid4().hex, home=home)
        base = os.path.abspath(staging) if is_local(staging) else staging
        return cls(join(base, f"{name}-{digest}"), uuid.uuid4().hex, home=home)

    def claims(self, output: str) -> Claims:
        """The claim of all launches on the output.

        Args:
            output: its path, for messages.
        """
        return Claims(self.home, output, self.launch)

    @property
    def local(self) -> bool:
        """True if the folder is on a local disk, False if it is in a store."""
        return is_local(self.root)

    def path(self, *names: str) -> str:
        """A path in this launch's folder."""
        return join(self.root, self.launch, *names)

    def create(self) -> None:
        """Makes the launch's folder and the folder of its progress reports. (Stores have no folders.)"""
        if self.local:
            os.makedirs(self.path("progress"), exist_ok=True)

    def remove(self) -> None:
        """Removes the launch's folder."""
        remove_folder(self.path())

    def remove_kept(self) -> None:
        """Removes what the next launch could reuse: tokenised blocks, the tokenizer, evaluation data."""
        for name in _KEPT:
            remove_folder(join(self.root, name))

    def remove_others(self) -> None:
        """Removes the folders of all other launches. Only the launch that holds the claim may call it."""
        if self.local:
            names = (
                {entry.name for entry in os.scandir(self.root) if entry.is_dir()} if os.path.isdir(self.root) else set()
            )
        else:
            below = [found.path[len(self.root) + 1 :].partition("/") for found in objects.listed(f"{self.root}/")]
            names = {name for name, slash, _ in below if slash}
        for name in names - {*_KEPT, self.launch}:
            remove_folder(join(self.root, name))


def unfinished_file(folder: str) -> str:
    """A new path in a folder, which is made if it is missing.

    The output's folder is published as it is, so it must hold no incomplete file: a killed attempt may leave one.
    """
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, uuid.uuid4().hex)


class HashedFile:
    """A file that is hashed while it is written.

    Args:
        path: its path after `close`.
        unfinished: the folder of the file before `close`, on the same disk.
    """

    def __init__(self, path: str, unfinished: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._made = unfinished_file(unfinished)
        self._file = open(self._made, "wb")  # noqa: SIM115  (closed in `close`)
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Writes bytes; returns how many."""
        with naming(self.path):
            self._digest.update(data)
            self._file.write(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def close(self) -> None:
        with naming(self.path):
            self._file.close()
        os.replace(self._made, self.path)

    def written(self, name: str) -> WrittenFile:
        return WrittenFile(name, self._size, self._digest.hexdigest())


class HashedFiles:
    """Files that are written at the same time below one local folder. For `unfinished` see `HashedFile`."""

    def __init__(self, folder: str, unfinished: str) -> None:
        self.folder, self.unfinished = folder, unfinished
        self._files: dict[str, HashedFile] = {}

    def open(self, name: str) -> BinaryIO:
        """Opens a new file; `name`: its path in the folder."""
        self._files[name] = HashedFile(os.path.join(self.folder, name), self.unfinished)
        return self._files[name]  # type: ignore[return-value]

    def write(self, name: str, data: bytes) -> None:
        """Writes an entire file."""
        file = self.open(name)
        file.write(data)
        file.close()

    def written(self) -> tuple[WrittenFile, ...]:
        """All files, sorted by name. They must be closed."""
        return tuple(self._files[name].written(name) for name in sorted(self._files))


@contextmanager
def temporary_files() -> Iterator[HashedFiles]:
    """Files in a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="beam_prep-") as folder:
        yield HashedFiles(folder, folder)
