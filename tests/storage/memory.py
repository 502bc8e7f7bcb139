"""An object store in this process's memory, for tests that need no server: `mem://bucket/name`."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import BinaryIO

from beam_prep.storage.stores import ANY, Changed, ObjectInfo


class MemoryStore:
    """See `StoreClient`. Every write gives an object another version, as on GCS. `read`: the paths that were read."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str, str | None, float]] = {}
        self.clock: Callable[[], float] = lambda: 0.0
        self._writes = 0
        self.read: list[str] = []

    def errors(self, path: str) -> nullcontext[None]:
        return nullcontext()

    def find(self, path: str) -> ObjectInfo:
        if path not in self._objects:
            raise FileNotFoundError(path)
        data, version, sha256, updated = self._objects[path]
        return ObjectInfo(path, len(data), version, hashlib.md5(data).hexdigest(), updated, sha256)

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        self.read.append(path)
        if version not in (None, self.find(path).version):
            raise Changed(path)
        return self._objects[path][0][start:stop]

    def put(self, path: str, body: bytes | BinaryIO, version: str | None, sha256: str | None) -> None:
        if version not in (ANY, self.find(path).version if path in self._objects else None):
            raise Changed(path)
        self._writes += 1
        if not isinstance(body, bytes):
            body.seek(0)
            body = body.read()
        self._objects[path] = body, str(self._writes), sha256, self.clock()

    def copy(self, source: ObjectInfo, path: str, sha256: str, version: str | None) -> None:
        self.put(path, self.get(source.path, 0, source.size, source.version), version, sha256)

    def delete(self, path: str) -> None:
        self._objects.pop(path, None)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        return (self.find(path) for path in sorted(self._objects) if path.startswith(prefix))
