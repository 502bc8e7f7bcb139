"""The contract of a client of an object store, and its errors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from beam_prep.errors import StorageError

SHA256 = "sha256"
"""The key of an object's metadata under which we keep its digest."""
CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as its store describes it.

    Attributes:
        path: `gs://bucket/name`.
        size: bytes.
        version: changes when the object is written (GCS: generation, S3: etag).
        checksum: of its content, in the store's own form.
        updated: seconds since the epoch.
        sha256: of its content, if we wrote it; listings do not have it.
    """

    path: str
    size: int
    version: str
    checksum: str
    updated: float
    sha256: str | None = None


class StoreUnavailable(Exception):
    """A store does not answer, or not now. The request is made again before it becomes an error of the job."""


class Changed(Exception):
    """An object was read in another version than asked for."""


class PreconditionFailed(Exception):
    """A conditional put wrote nothing: the object is there, or no longer there, or in another version."""


class StoreClient(Protocol):
    """A store. Each call may raise `StoreUnavailable`, `FileNotFoundError`, and `StorageError` where it is refused."""

    def find(self, path: str) -> ObjectInfo:
        """Describes an object."""
        ...

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        """Bytes [start, stop) of an object. `Changed` if it has another version."""
        ...

    def tail(self, path: str, size: int) -> tuple[bytes, int]:
        """The last bytes of an object, at most `size`, and the object's size."""
        ...

    def put(self, path: str, data: bytes | memoryview, sha256: str | None) -> None:
        """Writes an object, completely or not at all."""
        ...

    def put_if(self, path: str, data: bytes, version: str | None, sha256: str | None) -> None:
        """Writes an object only if it has this version, or (None) if there is none. Otherwise `PreconditionFailed`.

        Servers that ignore preconditions (gcp-storage-emulator) always write. On S3 the version is a digest of the
        content: the same content written again is the same version.
        """
        ...

    def upload(self, path: str, file: str, sha256: str, version: str | None) -> None:
        """Writes an object from a local file, completely or not at all; and only if it has this version, see `put_if`.

        S3 does not look at the version of a file that is uploaded in parts.
        """
        ...

    def copy(self, source: ObjectInfo, path: str, sha256: str) -> None:
        """Copies an object to another path of the store, by its server. `Changed` if it has another version.

        Servers that ignore preconditions (gcp-storage-emulator) copy any version.
        """
        ...

    def delete(self, path: str) -> None:
        """Removes an object. One that is not there is no error."""
        ...

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose paths begin with a prefix."""
        ...


def bucket_and_name(path: str) -> tuple[str, str]:
    """Splits an object's path into (bucket, name)."""
    match = re.fullmatch(r"[a-z0-9]+://([^/]+)/?(.*)", path, re.DOTALL)
    if match is None:
        raise StorageError(f"{path!r} names no object: wanted gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2]


def incomplete(path: str) -> StoreUnavailable:
    """The error of an answer of which a part is missing: its connection was cut."""
    return StoreUnavailable(f"the answer about {path} is incomplete")


def refused(path: str, error: Exception) -> StorageError:
    """The error of a request that a store refuses."""
    return StorageError(f"{path}: the store refuses ({error}): check the credentials, their rights, and the bucket")


def metadata(sha256: str | None) -> dict[str, str]:
    """The metadata of an object of ours."""
    return {} if sha256 is None else {SHA256: sha256}
