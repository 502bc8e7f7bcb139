"""Object stores: whole objects, with the clients that Beam's FileSystems make of Beam's options, kept per process.

FileSystems makes a client anew for every call, which takes longer than the call. And it can say neither "only if
nothing is there" nor "only the version that was listed", on which the guarantees of outputs rest. Writes here are one
request to the store or, for large files, an upload that counts only when it is complete: a cut object never takes a
name. What does not answer is asked again for `PATIENCE` seconds.
"""

import functools
import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.errors import StorageError

log = logging.getLogger("beam_prep")

PATIENCE = 60.0
"""Seconds that a store may be gone in the middle of a run."""

SHA256 = "sha256"
"""The name under which an object of ours says its digest."""

_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_AT_ONCE = 16
_PART = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
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


class Gone(Exception):
    """A store does not answer, or not now. Not an error of the job yet."""


class Changed(Exception):
    """An object is there in another version than asked for, or where none should be."""


class _Client(Protocol):
    """A store. Each call may raise `Gone`, `FileNotFoundError`, and `StorageError` where it is refused."""

    def find(self, path: str) -> Found:
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

    def upload(self, path: str, file: str, sha256: str) -> None:
        """Writes an object from a local file, whole or not at all."""
        ...

    def delete(self, path: str) -> None:
        """Removes an object; one that is not there is no error."""
        ...

    def listed(self, prefix: str) -> Iterator[Found]:
        """The objects whose paths begin so."""
        ...


def is_local(path: str) -> bool:
    """Whether a path lies on this machine's disk."""
    return "://" not in path


def patiently(work: Callable[[], T], path: str) -> T:
    """Does work on a path, again and again where its store does not answer, for `PATIENCE` seconds in all.

    Raises:
        StorageError: it did not answer for that long.
        Whatever else `work` raises.
    """
    began, pause = time.monotonic(), _PAUSE
    while True:
        try:
            return work()
        except Gone as error:
            tried = time.monotonic() - began
            if tried + pause > PATIENCE:
                raise StorageError(
                    f"{path}: the store does not answer, tried for {tried:.0f} s ({error}): see that it is up and "
                    "within reach, and run again; blocks that are done are not done again"
                ) from None
            log.info("%s: the store does not answer (%s); trying again", path, error)
        # Not all workers at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


# The two stores


def _split(path: str) -> tuple[str, str]:
    """(bucket, name) of an object."""
    match = re.fullmatch(r"[a-z0-9]+://([^/]+)/?(.*)", path, re.DOTALL)
    if match is None:
        raise StorageError(f"{path!r} names no object: wanted gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2]


def _refused(path: str, error: Exception) -> StorageError:
    return StorageError(f"{path}: the store refuses ({error}): check the credentials, their rights, and the bucket")


class _S3:
    """S3, by boto3."""

    def __init__(self, options: PipelineOptions) -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client

        self._s3 = boto3_client.Client(options).client
        # Threads beyond ten get a connection for one request alone, which is nothing to warn of.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from boto3.exceptions import S3UploadFailedError
        from botocore import exceptions

        try:
            yield
        except exceptions.ClientError as error:
            raise self._meaning(path, error) from None
        except S3UploadFailedError as error:
            cause = error.__context__
            if isinstance(cause, exceptions.ClientError):
                raise self._meaning(path, cause) from None
            raise Gone(str(error)) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise _refused(path, error) from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
            raise Gone(str(error)) from None

    def _meaning(self, path: str, error: Any) -> Exception:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code")
        if status == 404 and code != "NoSuchBucket":
            return FileNotFoundError(path)
        if status == 412:
            return Changed(path)
        if status >= 500 or status in (408, 429) or code in ("SlowDown", "RequestTimeout"):
            return Gone(str(error))
        return _refused(path, error)

    def find(self, path: str) -> Found:
        bucket, name = _split(path)
        with self._errors(path):
            return _of_s3(path, self._s3.head_object(Bucket=bucket, Key=name), "ContentLength")

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        bucket, name = _split(path)
        only = {} if version is None else {"IfMatch": version}
        with self._errors(path):
            found = self._s3.get_object(Bucket=bucket, Key=name, Range=f"bytes={start}-{stop - 1}", **only)
            return bytes(found["Body"].read())

    def tail(self, path: str, size: int) -> tuple[bytes, int]:
        bucket, name = _split(path)
        with self._errors(path):
            found = self._s3.get_object(Bucket=bucket, Key=name, Range=f"bytes=-{size}")
            data = bytes(found["Body"].read())
        return data, int(found.get("ContentRange", str(len(data))).rpartition("/")[2])

    def put(self, path: str, data: bytes | memoryview, sha256: str | None) -> None:
        bucket, name = _split(path)
        with self._errors(path):
            self._s3.put_object(Bucket=bucket, Key=name, Body=bytes(data), Metadata=_metadata(sha256))

    def upload(self, path: str, file: str, sha256: str) -> None:
        bucket, name = _split(path)
        with self._errors(path):  # in parts where it is large, and these are thrown away unless all arrive
            self._s3.upload_file(file, bucket, name, ExtraArgs={"Metadata": _metadata(sha256)})

    def delete(self, path: str) -> None:
        bucket, name = _split(path)
        with self._errors(path):
            self._s3.delete_object(Bucket=bucket, Key=name)

    def listed(self, prefix: str) -> Iterator[Found]:
        bucket, name = _split(prefix)
        with self._errors(prefix):
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=name):
                for entry in page.get("Contents", []):
                    yield _of_s3(f"s3://{bucket}/{entry['Key']}", entry, "Size")


def _of_s3(path: str, found: Mapping[str, Any], size: str) -> Found:
    etag, updated = found["ETag"], found["LastModified"].timestamp()
    return Found(path, int(found[size]), etag, etag, updated, found.get("Metadata", {}).get(SHA256))


class _GCS:
    """Google Cloud Storage, by google-cloud-storage."""

    def __init__(self, options: PipelineOptions) -> None:
        from apache_beam.io.gcp import gcsio
        from requests.adapters import HTTPAdapter

        self._gcs = gcsio.create_storage_client(options)
        # Else connections beyond ten are thrown away after each request, with a warning.
        for scheme in ("https://", "http://"):
            self._gcs._http.mount(scheme, HTTPAdapter(pool_maxsize=2 * _AT_ONCE))

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        import requests
        import urllib3
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        try:
            yield
        except exceptions.NotFound:
            raise FileNotFoundError(path) from None
        except exceptions.PreconditionFailed:
            raise Changed(path) from None
        except (exceptions.ServerError, exceptions.TooManyRequests) as error:
            raise Gone(str(error)) from None
        except InvalidResponse as error:  # of uploads
            status = error.response.status_code
            if status == 404:
                raise FileNotFoundError(path) from None
            raise (Gone(str(error)) if status >= 500 or status in (408, 429) else _refused(path, error)) from None
        except (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError) as error:
            raise Gone(str(error)) from None
        except (requests.exceptions.ChunkedEncodingError, DataCorruption, TransportError) as error:
            raise Gone(str(error)) from None
        except (exceptions.ClientError, GoogleAuthError) as error:
            raise _refused(path, error) from None

    def _blob(self, path: str, version: str | None = None) -> Any:
        bucket, name = _split(path)
        return self._gcs.bucket(bucket).blob(name, generation=None if version is None else int(version))

    def find(self, path: str) -> Found:
        blob = self._blob(path)
        with self._errors(path):
            blob.reload(retry=None)
        return _of_gcs(blob)

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        with self._errors(path):
            only = None if version is None else int(version)
            # As it is stored: the library would unpack what is marked as gzip.
            data: bytes = self._blob(path).download_as_bytes(
                start=start, end=stop - 1, raw_download=True, if_generation_match=only, checksum=None, retry=None
            )
        return data

    def tail(self, path: str, size: int) -> tuple[bytes, int]:
        found = self.find(path)  # its client cannot ask for the end of what it does not know the size of
        start = max(0, found.size - size)
        return self.get(path, start, found.size, found.version), found.size

    def put(self, path: str, data: bytes | memoryview, sha256: str | None) -> None:
        blob = self._blob(path)
        blob.metadata = _metadata(sha256)
        with self._errors(path):
            blob.upload_from_file(io.BytesIO(data), size=len(data), checksum="crc32c", retry=None)

    def upload(self, path: str, file: str, sha256: str) -> None:
        blob = self._blob(path)
        blob.metadata = _metadata(sha256)
        with self._errors(path):  # resumable where it is large: it is an object only with its last byte
            blob.upload_from_filename(file, content_type="application/octet-stream", checksum="crc32c", retry=None)

    def delete(self, path: str) -> None:
        try:
            with self._errors(path):
                self._blob(path).delete(retry=None)
        except FileNotFoundError:
            return

    def listed(self, prefix: str) -> Iterator[Found]:
        bucket, name = _split(prefix)
        with self._errors(prefix):
            for blob in self._gcs.list_blobs(bucket, prefix=name, retry=None):
                yield _of_gcs(blob)


def _of_gcs(blob: Any) -> Found:
    path = f"gs://{blob.bucket.name}/{blob.name}"
    sha256 = (blob.metadata or {}).get(SHA256)
    return Found(path, int(blob.size), str(blob.generation), blob.crc32c, blob.updated.timestamp(), sha256)


def _metadata(sha256: str | None) -> dict[str, str]:
    return {} if sha256 is None else {SHA256: sha256}


_STORES: dict[str, tuple[Callable[[PipelineOptions], _Client], str]] = {"s3": (_S3, "aws"), "gs": (_GCS, "gcp")}


def _client(path: str) -> _Client:
    # One a process: a connection must not be used on both sides of a fork.
    return _made(path.partition("://")[0], os.getpid(), FileSystems._pipeline_options)


@functools.lru_cache(maxsize=4)
def _made(scheme: str, process: int, options: PipelineOptions | None) -> _Client:
    if scheme not in _STORES:
        raise StorageError(f"{scheme}:// is no store that is known here: wanted gs:// or s3://, or a local path")
    make, extra = _STORES[scheme]
    try:
        return make(options or PipelineOptions([]))
    except (ImportError, AssertionError) as error:  # Beam's class for S3 asserts that boto3 is there
        raise StorageError(f"{scheme}:// needs libraries ({error}): pip install 'beam-prep[{extra}]'") from None


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores, for workers that Beam does not tell them: a pool's, and those of the local runner.

    They take effect where one of these is unpickled.
    """

    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def current(cls) -> "StoreOptions":
        """Those of this process."""
        found = FileSystems._pipeline_options
        every = {} if found is None else found.get_all_options(drop_default=True)
        mine = ("project", "impersonate_service_account")
        return cls(tuple((k, v) for k, v in sorted(every.items()) if k.startswith("s3_") or k in mine))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.given,)


def _restored(given: tuple[tuple[str, Any], ...]) -> StoreOptions:
    here = dict(StoreOptions.current().given) if given else {}  # Beam takes its time to say
    if any(here.get(name) != value for name, value in given):
        FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(given)}))
    return StoreOptions(given)


# What the rest of the package calls


def find(path: str) -> Found | None:
    """What a store says of an object; None: there is none."""
    try:
        return patiently(lambda: _client(path).find(path), path)
    except FileNotFoundError:
        return None


def find_all(paths: Iterable[str]) -> list[Found | None]:
    """`find`, several at the same time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(find, paths))


def get(path: str, start: int, stop: int, version: str | None = None) -> bytes:
    """Bytes [start, stop) of an object.

    Raises:
        FileNotFoundError: there is none.
        Changed: it is another version.
    """
    if stop <= start:
        return b""
    return patiently(lambda: _client(path).get(path, start, stop, version), path)


def put(path: str, data: bytes | memoryview, sha256: str | None = None) -> None:
    """Writes an object, whole or not at all."""
    with _bucket_is_there(path):
        patiently(lambda: _client(path).put(path, data, sha256), path)


def upload(path: str, file: str, sha256: str) -> None:
    """Writes an object from a local file, whole or not at all."""
    with _bucket_is_there(path):
        patiently(lambda: _client(path).upload(path, file, sha256), path)


@contextmanager
def _bucket_is_there(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no such bucket: make it, or check its name") from None


def delete(paths: Iterable[str]) -> None:
    """Removes objects; those that are not there are no error."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda path: patiently(lambda: _client(path).delete(path), path), paths))


def listed(prefix: str) -> list[Found]:
    """The objects whose paths begin so, in order."""
    with _bucket_is_there(prefix):
        found = patiently(lambda: list(_client(prefix).listed(prefix)), prefix)
    return sorted(found, key=lambda each: each.path.encode())


def matched(pattern: str) -> list[Found]:
    """The objects that a path or a glob names (`*` ends at a "/", `**` does not), in order."""
    magic = re.search(r"[*?\[]", pattern)
    if magic is None:
        found = find(pattern)
        return [] if found is None else [found]
    wanted = re.compile(FileSystem.translate_pattern(pattern))
    return [each for each in listed(pattern[: magic.start()]) if wanted.match(each.path)]


class Reader(io.RawIOBase):
    """An object as a file.

    Args:
        found: the object; another version of it is never read.
        ahead: bytes to ask for at a time, at least.

    Raises:
        Changed, FileNotFoundError: (when read) it is no longer there as it was.
    """

    def __init__(self, found: Found, ahead: int = 256 * 1024) -> None:
        self._found, self._ahead = found, ahead
        self._at = 0
        self._first, self._window = 0, b""

    @classmethod
    def from_end(cls, path: str, size: int = 64 * 1024) -> "Reader":
        """One that has the end of an object already, in one request.

        Raises:
            FileNotFoundError: there is none.
        """
        data, whole = patiently(lambda: _client(path).tail(path, size), path)
        # Written once, so any version is the one.
        reader = cls(Found(path, whole, "", "", 0.0), 0)
        reader._first, reader._window = whole - len(data), data
        return reader

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

    def size(self) -> int:
        """Bytes of the whole."""
        return self._found.size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as asked for unless the object ends."""
        end = self._found.size if size < 0 else min(self._at + size, self._found.size)
        if end <= self._at:
            return b""
        start, inside = self._at, self._at - self._first
        have = self._window[inside : inside + end - start] if 0 <= inside < len(self._window) else b""
        if start + len(have) < end:
            start += len(have)
            stop = min(max(end, start + self._ahead), self._found.size)
            self._window = get(self._found.path, start, stop, self._found.version or None)
            self._first = start
            have += self._window[: end - start]
        self._at = end
        return have


def parts(found: Found) -> Iterator[bytes]:
    """An object's content, some of it at a time.

    Raises:
        Changed, FileNotFoundError: it is no longer there as it was.
    """
    reader = Reader(found)
    while data := reader.read(_PART):
        yield data


def read_bytes(path: str) -> bytes:
    """The content of a file, local or not.

    Raises:
        FileNotFoundError: there is none.
        OSError: (local) it cannot be read.
    """
    if is_local(path):
        return Path(path).read_bytes()
    found = find(path)
    if found is None:
        raise FileNotFoundError(path)
    return get(path, 0, found.size)
