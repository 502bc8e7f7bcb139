"""Reads and writes objects, with clients that Beam makes from its options. A process keeps its clients.

Beam's FileSystems makes a new client for every call, which takes longer than the call. And it has no conditional writes
("only if there is no object", "only this version"), which our outputs need. A write is one request or, for a large
file, an upload that counts only when it is complete, so there is never half an object. A request without an answer is
repeated for `RETRY_SECONDS`.
"""

import functools
import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from beam_prep.errors import ConfigError, StorageError
from beam_prep.storage.stores.client import (
    ANY,
    CONNECTIONS,
    Changed,
    ObjectInfo,
    StoreClient,
    StoreUnavailable,
    is_local,
    options_here,
    with_retries,
)
from beam_prep.storage.stores.clients import GCSClient, S3Client

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

CLIENTS: dict[str, tuple[Callable[["PipelineOptions"], StoreClient], str]] = {
    "s3": (S3Client, "aws"),
    "gs": (GCSClient, "gcp"),
}


def client_of(path: str) -> StoreClient:
    # Each process has its own client: a connection must not be used on both sides of a fork.
    return client_for(path.partition("://")[0], os.getpid(), options_here())


@functools.lru_cache(maxsize=4)
def client_for(scheme: str, process: int, options: "PipelineOptions | None") -> StoreClient:
    from apache_beam.options.pipeline_options import PipelineOptions

    if scheme not in CLIENTS:
        raise ConfigError(f"{scheme}:// is not a known store: wanted gs:// or s3://, or a local path")
    make, extra = CLIENTS[scheme]
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns of more than `CONNECTIONS`
    try:
        return make(options or PipelineOptions([]))
    except (ImportError, AssertionError) as error:  # Beam's class for S3 asserts that boto3 is there
        raise ConfigError(f"{scheme}:// needs libraries ({error}): pip install 'beam-prep[{extra}]'") from None


def find(path: str) -> ObjectInfo | None:
    """Describes an object; None if it does not exist."""
    try:
        return with_retries(lambda: client_of(path).find(path), path)
    except FileNotFoundError:
        return None


def find_all(paths: Iterable[str]) -> list[ObjectInfo | None]:
    """`find` for several objects at the same time."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(find, paths))


def get(path: str, start: int, stop: int, version: str | None = None) -> bytes:
    """Bytes [start, stop) of an object.

    Raises:
        FileNotFoundError: there is no such object.
        Changed: the object has another version.
    """
    if stop <= start:
        return b""

    def all_of_it() -> bytes:
        data = client_of(path).get(path, start, stop, version)
        if len(data) < stop - start:
            raise StoreUnavailable(f"its answer about {path} is incomplete")
        return data

    return with_retries(all_of_it, path)


def put(path: str, data: bytes, version: str | None = ANY) -> None:
    """Writes an object, completely or not at all, if it has `version`, as `find` gave it; None: if there is no object.

    A request whose answer was lost is repeated, and fails because the first request succeeded. So after a failure the
    caller must read the object to know who wrote it.

    Raises:
        Changed: the object has another version, exists, or no longer exists.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    with _bucket_is_there(path):
        with_retries(lambda: client_of(path).put(path, data, version, sha256), path)


def upload(path: str, file: str, sha256: str, version: str | None) -> None:
    """Writes an object from a local file, completely or not at all. For `version` see `put`.

    On S3 a file that is uploaded in parts is written in any case.

    Raises:
        Changed: the object has another version, exists, or no longer exists; and its bytes are not these.
    """
    try:
        with _bucket_is_there(path):
            with_retries(lambda: client_of(path).upload(path, file, sha256, version), path)
    except Changed:
        found = find(path)  # an answer was lost, or a late copy of a step wrote the same
        if found is None or (found.size, found.sha256) != (os.path.getsize(file), sha256):
            raise


def copy(source: ObjectInfo, path: str, sha256: str) -> None:
    """Copies an object to another path of the same store, on the server.

    Args:
        source: the object, as `find` described it.
        path: the path of the copy.
        sha256: the digest of the content.

    Raises:
        Changed, FileNotFoundError: the source was replaced or removed.
    """
    with_retries(lambda: client_of(path).copy(source, path, sha256), path)


@contextmanager
def _bucket_is_there(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no such bucket: make it, or check its name") from None


def delete(paths: Iterable[str]) -> None:
    """Removes objects. A missing object is no error."""

    def remove(path: str) -> None:
        with suppress(FileNotFoundError):
            with_retries(lambda: client_of(path).delete(path), path)

    paths = list(paths)
    if len(paths) == 1:  # without a thread: a lease is removed when its process ends, which can start none
        remove(paths[0])
        return
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(remove, paths))


def listed(prefix: str) -> list[ObjectInfo]:
    """The objects whose paths begin with a prefix, sorted by path."""
    with _bucket_is_there(prefix):
        found = with_retries(lambda: list(client_of(prefix).listed(prefix)), prefix)
    return sorted(found, key=lambda each: each.path.encode())


def match_pattern(pattern: str) -> list[ObjectInfo]:
    """The objects that a path or a glob names (`*` ends at a "/", `**` does not; none is a leading dot), in order."""
    magic = re.search(r"[*?\[]", pattern)
    if magic is None:
        found = find(pattern)
        return [] if found is None else [found]
    from apache_beam.io.filesystem import FileSystem

    wanted, first = re.compile(FileSystem.translate_pattern(pattern)), magic.start()
    named = [each for each in listed(pattern[:first]) if wanted.match(each.path)]
    return named if "/." in pattern[first:] else [each for each in named if "/." not in each.path[first - 1 :]]


class Reader(io.RawIOBase):
    """An object as a file.

    Args:
        found: the object. Only this version is read.
        ahead: least bytes of a request.

    Raises:
        Changed, FileNotFoundError: (in `read`) the object was replaced or removed.
    """

    def __init__(self, found: ObjectInfo, ahead: int = 256 * 1024) -> None:
        self._found, self._ahead = found, ahead
        self._at = 0
        self._first, self._window = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        start = self._at
        stop = self._found.size if size < 0 else min(start + size, self._found.size)
        if stop <= start:
            return b""
        data = self._range(start, stop)
        self._at = stop
        return data

    def _range(self, start: int, stop: int) -> bytes:
        inside = start - self._first
        have = self._window[inside : inside + stop - start] if 0 <= inside < len(self._window) else b""
        if start + len(have) < stop:
            start += len(have)
            end = min(max(stop, start + self._ahead), self._found.size)
            self._window = get(self._found.path, start, end, self._found.version or None)
            self._first = start
            have += self._window[: stop - start]
        return have


def read_bytes(path: str) -> bytes:
    """The content of a file, local or in a store.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: a local file cannot be read.
    """
    if is_local(path):
        return Path(path).read_bytes()
    found = read_version(path)
    if found is None:
        raise FileNotFoundError(path)
    return found[0]


def read_version(path: str) -> tuple[bytes, str] | None:
    """(content, version) of a file; None if there is none. The version of a local file is its content."""
    if is_local(path):
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return None
        return content, content.decode("utf-8", "replace")
    while (found := find(path)) is not None:
        try:
            return get(path, 0, found.size, found.version), found.version
        except (Changed, FileNotFoundError):
            continue  # replaced meanwhile
    return None
