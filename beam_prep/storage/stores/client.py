"""What a client of an object store does, and what can go wrong."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from beam_prep.errors import StorageError

SHA256 = "sha256"
"""The name under which an object of ours says its digest."""
CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a store tells of it.

    Attributes:
        path: `gs://bucket/name`.
        size: bytes.
        version: changes whenever it is written (GCS: generation, S3: etag).
        checksum: of its content, as this store says it.
        updated: seconds since the epoch.
        sha256: of its content, where we wrote it; listings do not tell.
    """

    path: str
    size: int
    version: str
    checksum: str
    updated: float
    sha256: str | None = None


class StoreUnavailable(Exception):
    """A store does not answer, or not now. Not an error of the job yet."""


class Changed(Exception):
    """An object was read in another version than asked for."""


class PreconditionFailed(Exception):
    """A conditional put wrote nothing: the object is there, or no longer there, or in another version."""


class StoreClient(Protocol):
    """A store. Each call may raise `StoreUnavailable`, `FileNotFoundError`, and `StorageError` where it is refused."""

    def find(self, path: str) -> ObjectInfo:
        """What is there."""
        ...

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        """Bytes [start, stop) of an object; `Changed`: not of this version."""
        ...

    def tail(self, path: str, size: int) -> tuple[bytes, int]:
        """The last bytes of an object, at most `size`, and how many it has in all."""
        ...

    def put(self, path: str, data: bytes | memoryview, sha256: str | None) -> None:
        """Writes an object, whole or not at all."""
        ...

    def put_if(self, path: str, data: bytes, version: str | None) -> None:
        """Writes an object only if it is of this version; None: only if there is none. Else `PreconditionFailed`.

        Servers that ignore preconditions (gcp-storage-emulator) always write. On S3 the version is a digest of the
        content: the same content written again is the same version.
        """
        ...

    def upload(self, path: str, file: str, sha256: str) -> None:
        """Writes an object from a local file, whole or not at all."""
        ...

    def delete(self, path: str) -> None:
        """Removes an object; one that is not there is no error."""
        ...

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose paths begin so."""
        ...


def bucket_and_name(path: str) -> tuple[str, str]:
    """(bucket, name) of an object."""
    match = re.fullmatch(r"[a-z0-9]+://([^/]+)/?(.*)", path, re.DOTALL)
    if match is None:
        raise StorageError(f"{path!r} names no object: wanted gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2]


def refused(path: str, error: Exception) -> StorageError:
    return StorageError(f"{path}: the store refuses ({error}): check the credentials, their rights, and the bucket")


def metadata(sha256: str | None) -> dict[str, str]:
    return {} if sha256 is None else {SHA256: sha256}
