"""Unfinished things of a launch, and files that are hashed while they are written."""

import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from beam_prep.formats.manifest import WrittenFile
from beam_prep.storage.files import join
from beam_prep.storage.paths import is_local
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.options import StoreOptions

_KEPT = ("spool", "tokenizers")
"""Folders beside those of launches, for the next one after a failure."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder of unfinished things of one launch.

    Attributes:
        root: the folder of the output's launches; the default spool lies here, where the next launch finds it.
        launch: this launch's own name.
        options: for workers.
    """

    root: str
    launch: str
    options: StoreOptions = field(default_factory=StoreOptions.current)

    @classmethod
    def beside(cls, output: str, staging: str | None = None) -> "Staging":
        """`<staging>/<output's name and digest>/<new name>`; by default in a hidden folder beside it."""
        output = os.path.abspath(output) if is_local(output) else output
        folder, name = os.path.split(output)
        digest = hashlib.sha256(output.encode()).hexdigest()[:12]
        base = staging or join(folder, ".beam_prep")
        base = os.path.abspath(base) if is_local(base) else base
        return cls(join(base, f"{name}-{digest}"), uuid.uuid4().hex)

    @property
    def local(self) -> bool:
        """Whether it lies on this machine's disk."""
        return is_local(self.root)

    def path(self, *names: str) -> str:
        """A path in this launch's folder."""
        return join(self.root, self.launch, *names)

    def create(self) -> None:
        """Makes the launch's folder, and the one where workers report. (Stores have no folders.)"""
        if self.local:
            os.makedirs(self.path("progress"), exist_ok=True)

    def remove(self) -> None:
        """Removes the launch's folder."""
        self._remove(self.launch)

    def remove_kept(self) -> None:
        """Removes what the next launch would use again: tokenised blocks, the tokenizer."""
        for name in _KEPT:
            self._remove(name)

    def _remove(self, name: str) -> None:
        path = join(self.root, name)
        if self.local:
            shutil.rmtree(path, ignore_errors=True)
        else:
            objects.delete(found.path for found in objects.listed(f"{path}/"))

    def remove_older(self, seconds: float) -> None:
        """Removes folders that earlier launches on this output left, if they are older."""
        if not self.local:
            old: dict[str, float] = {}
            for found in objects.listed(f"{self.root}/"):
                name, slash, _ = found.path[len(self.root) + 1 :].partition("/")
                if slash and name not in (*_KEPT, self.launch):
                    old[name] = max(found.updated, old.get(name, 0.0))
            for name, updated in old.items():
                if time.time() - updated > seconds:
                    self._remove(name)
            return
        for entry in Path(self.root).iterdir() if os.path.isdir(self.root) else ():
            launch = entry.is_dir() and entry.name not in (*_KEPT, self.launch)
            if launch and time.time() - entry.stat().st_mtime > seconds:
                shutil.rmtree(entry, ignore_errors=True)


_WRITING = ThreadPoolExecutor(thread_name_prefix="beam_prep-write")
"""Files are written and hashed beside the work on the next rows: a shard is one worker's, whatever cores are idle."""


class HashedFile:
    """A file that is hashed while it is written; it takes its name when it is closed, whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._made = f"{path}.{uuid.uuid4().hex}"
        self._file = open(self._made, "wb")  # noqa: SIM115  (closed in `close`)
        self._digest = hashlib.sha256()
        self._pending: list[Future[Any]] = []
        self._size = 0

    def write(self, data: Any) -> int:
        """Writes bytes that nobody changes later, until the next call or `close`; these raise its errors."""
        self._wait()
        self._pending = [_WRITING.submit(work, data) for work in (self._digest.update, self._file.write)]
        size = memoryview(data).nbytes
        self._size += size
        return size

    def _wait(self) -> None:
        for future in self._pending:
            future.result()
        self._pending = []

    def close(self) -> None:
        self._wait()
        self._file.close()
        os.replace(self._made, self.path)

    def written(self, name: str) -> WrittenFile:
        return WrittenFile(name, self._size, self._digest.hexdigest())


class HashedFiles:
    """Files that are written beside each other below one local folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files: dict[str, HashedFile] = {}

    def open(self, name: str) -> BinaryIO:
        """A new file, by its path in the folder."""
        self._files[name] = HashedFile(os.path.join(self.folder, name))
        return self._files[name]  # type: ignore[return-value]

    def write(self, name: str, data: bytes) -> None:
        """A whole file."""
        file = self.open(name)
        file.write(data)
        file.close()

    def written(self) -> tuple[WrittenFile, ...]:
        """All of them, in order of their names, once they are closed."""
        return tuple(self._files[name].written(name) for name in sorted(self._files))


@contextmanager
def temporary_files() -> Iterator[HashedFiles]:
    """Files that go when they have been uploaded."""
    with tempfile.TemporaryDirectory(prefix="beam_prep-") as folder:
        yield HashedFiles(folder)
