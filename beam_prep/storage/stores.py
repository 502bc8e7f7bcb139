"""Reads and writes objects in stores (gs://, s3://), with clients that Beam makes from its options.

Beam's FileSystems makes a new client for every call, which takes longer than the call. And it has no conditional writes
("only if there is no object", "only this version"), which our outputs need. A write is one request or, for a large
file, an upload that counts only when it is complete, so there is never half an object. A request without an answer is
repeated for `RETRY_SECONDS`. A process keeps its clients. Beam is imported only when a store is used, not by readers of
local outputs.
"""

import functools
import hashlib
import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from beam_prep.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


def options_here() -> "PipelineOptions | None":
    """The options given to `FileSystems.set_options` in this process. Beam has no public name for them."""
    from apache_beam.io.filesystems import FileSystems

    given: PipelineOptions | None = FileSystems._pipeline_options
    return given


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores. Beam does not send them to the workers of a pool or of the local runner.

    So what uses a store on a worker has these among its attributes: unpickling activates them.
    """

    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def current(cls) -> "StoreOptions":
        """The options of this process."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions, S3Options

        found = options_here()
        if found is None:
            return cls()
        s3, google = (
            found.view_as(group).get_all_options(drop_default=True, current_only=True)
            for group in (S3Options, GoogleCloudOptions)
        )
        mine = {name: google[name] for name in ("project", "impersonate_service_account") if name in google}
        return cls(tuple(sorted({**mine, **s3}.items())))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.activate()

    def activate(self) -> None:
        """Makes these the options of this process, for Beam's FileSystems, too.

        Beam keeps one set of options for each process, so call this only on workers, which work for one job.
        """
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions

        here = dict(StoreOptions.current().given) if self.given else {}  # slow in Beam
        if any(here.get(name) != value for name, value in self.given):
            FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(self.given)}))


SHA256 = "sha256"
"""The key of our digest in an object's metadata."""
CONNECTIONS = 10
"""Requests at the same time: as many connections as boto3 and google-cloud-storage keep open."""
ANY = "any"
"""In place of a version: writes in any case, with or without an object at this path."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as its store describes it.

    Attributes:
        path: `gs://bucket/name`.
        size: bytes.
        version: changes when the object is written (GCS: generation, S3: etag).
        checksum: the store's checksum of the content.
        updated: time of the last write, in seconds since the epoch.
        sha256: our digest of the content, if we wrote the object; listings do not have it.
    """

    path: str
    size: int
    version: str
    checksum: str
    updated: float
    sha256: str | None = None


class StoreUnavailable(Exception):
    """A store does not answer now. The request is repeated for some time before the job fails."""


class Changed(Exception):
    """An object does not have the wanted version, so it was not read, or not written."""


class StoreClient(Protocol):
    """A store. Within `errors` calls may raise `StoreUnavailable`, `FileNotFoundError`, or `StorageError` (refused)."""

    def errors(self, path: str) -> AbstractContextManager[None]:
        """Turns the errors of the store's library into these; `path`: for messages."""

    def find(self, path: str) -> ObjectInfo:
        """Describes an object."""

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        """Bytes [start, stop) of an object. `Changed` if it has another version."""

    def put(self, path: str, body: BinaryIO, version: str | None, sha256: str) -> None:
        """Writes an object, completely or not at all. `Changed` unless the object has `version`.

        Version None: there must be no object. `ANY`: always writes.

        Servers that ignore preconditions (gcp-storage-emulator) always write. On S3 the version is a digest of the
        content, so the same content written again has the same version; and a large file is written in any case.
        """

    def copy(self, source: ObjectInfo, path: str, sha256: str, version: str | None) -> None:
        """Copies an object to another path of the store, on the server. `Changed` if it has another version.

        `version`: see `put`; on S3 it is not looked at. Servers that ignore preconditions (gcp-storage-emulator) copy
        any version.
        """

    def delete(self, path: str) -> None:
        """Removes an object. A missing object is no error."""

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose paths begin with a prefix."""


def bucket_and_name(path: str) -> tuple[str, str]:
    """Splits an object's path into (bucket, name)."""
    match = re.fullmatch(r"[a-z0-9]+://([^/]+)/?(.*)", path, re.DOTALL)
    if match is None:
        raise StorageError(f"{path!r} names no object: wanted gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2]


def refused(path: str, error: Exception) -> StorageError:
    """The error of a request that a store refuses."""
    return StorageError(f"{path}: the store refuses ({error}): check the credentials, their rights, and the bucket")


def failed(path: str, status: int, error: Exception) -> Exception:
    """The error of a request that failed with an HTTP status; with one of a success, the answer was cut."""
    if status == 404:
        return FileNotFoundError(path)
    if status == 412:
        return Changed(path)
    # 308: an upload is incomplete. 409: another conditional put on the object is under way.
    if status < 300 or status >= 500 or status in (308, 408, 409, 429):
        return StoreUnavailable(str(error))
    return refused(path, error)


log = logging.getLogger("beam_prep")

RETRY_SECONDS = 60.0
"""Seconds that a store may be unavailable during a run."""

PAUSE, LONGEST_PAUSE = 0.25, 8.0

T = TypeVar("T")


def _asked(path: str, request: Callable[[StoreClient], T]) -> T:
    """The answer of the store of a path to a request, see `with_retries`."""

    def ask() -> T:
        client = client_of(path)
        with client.errors(path):
            return request(client)

    return with_retries(ask, path)


def with_retries(work: Callable[[], T], path: str) -> T:
    """Calls `work`, and repeats it for `RETRY_SECONDS` while the store of a path does not answer.

    Raises:
        StorageError: the store did not answer for that long.
        Other errors of `work` are passed on.
    """
    began, pause = time.monotonic(), PAUSE
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            tried = time.monotonic() - began
            if tried + pause > RETRY_SECONDS:
                raise StorageError(
                    f"{path}: the store does not answer, tried for {tried:.0f} s ({error}): check that it is up and "
                    "reachable, and run again; finished blocks are not made again"
                ) from None
            log.info("%s: the store does not answer (%s); trying again", path, error)
        # The pause is random, so workers do not all try at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE)


def is_local(path: str) -> bool:
    """True for a path on this machine's disk, False for a path in a store."""
    return "://" not in path


def shortened(name: str) -> str:
    """A file name, cut if it is long, so an ending can be added: names have at most 255 bytes."""
    return os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore")


_LONGEST = 200


class GCSClient:
    """Google Cloud Storage, by google-cloud-storage."""

    def __init__(self, options: "PipelineOptions") -> None:
        from apache_beam.io.gcp import gcsio

        self._gcs = gcsio.create_storage_client(options)

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        import requests
        import urllib3
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        try:
            yield
        except GoogleAPICallError as error:
            raise failed(path, error.code or 500, error) from None
        except InvalidResponse as error:  # of uploads
            raise failed(path, error.response.status_code, error) from None
        except (TransportError, requests.RequestException, urllib3.exceptions.HTTPError, DataCorruption) as error:
            raise StoreUnavailable(str(error)) from None
        except (KeyError, AttributeError) as error:  # the answer is cut; an empty one is b"", not a dict
            raise StoreUnavailable(repr(error)) from None
        except GoogleAuthError as error:
            raise refused(path, error) from None

    def _blob(self, path: str) -> Any:
        bucket, name = bucket_and_name(path)
        return self._gcs.bucket(bucket).blob(name)

    def find(self, path: str) -> ObjectInfo:
        blob = self._blob(path)
        blob.reload(retry=None)
        return _of_gcs(blob)

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        only = None if version is None else int(version)
        # `raw_download`, because the library would decompress objects that are marked as gzip.
        data: bytes = self._blob(path).download_as_bytes(
            start=start, end=stop - 1, raw_download=True, if_generation_match=only, checksum=None, retry=None
        )
        return data

    def put(self, path: str, body: BinaryIO, version: str | None, sha256: str) -> None:
        size, blob = body.seek(0, io.SEEK_END), self._blob(path)
        blob.metadata = {SHA256: sha256}
        try:
            with self.errors(path):
                blob.upload_from_file(
                    body,
                    rewind=True,
                    size=size,
                    checksum="crc32c",
                    if_generation_match=_generation(version),
                    retry=None,
                )
        except FileNotFoundError:
            if size <= _IN_PARTS:
                raise
            # The upload has a session, which exists only when it is complete. It has expired, or its address was cut.
            raise StoreUnavailable("the upload's session is lost, or there is no such bucket") from None

    def copy(self, source: ObjectInfo, path: str, sha256: str, version: str | None) -> None:
        blob, token = self._blob(path), None
        blob.metadata = {SHA256: sha256}
        blob.content_type = "application/octet-stream"
        while True:  # a large object takes several requests
            token, _, _ = blob.rewrite(
                self._blob(source.path),
                token=token,
                if_generation_match=_generation(version),
                if_source_generation_match=int(source.version),
                retry=None,
            )
            if token is None:
                return

    def delete(self, path: str) -> None:
        self._blob(path).delete(retry=None)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, name = bucket_and_name(prefix)
        return map(_of_gcs, self._gcs.list_blobs(bucket, prefix=name, retry=None))


def _generation(version: str | None) -> int | None:
    return None if version == ANY else int(version or 0)  # no object has generation 0


def _of_gcs(blob: Any) -> ObjectInfo:
    path = f"gs://{blob.bucket.name}/{blob.name}"
    sha256 = (blob.metadata or {}).get(SHA256)
    return ObjectInfo(path, int(blob.size), str(blob.generation), blob.crc32c, blob.updated.timestamp(), sha256)


_IN_PARTS = 8 << 20
"""Larger files are uploaded in parts, by both libraries."""

_AGAIN = ("InvalidPart", "NoSuchUpload", "RequestTimeout")
"""Errors of uploads in parts whose answer was cut or lost, and of slow requests."""


class S3Client:
    """S3, by boto3."""

    def __init__(self, options: "PipelineOptions") -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client

        self._s3 = boto3_client.Client(options).client

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        unavailable = exceptions.HTTPClientError, exceptions.ConnectionError
        cut = exceptions.IncompleteReadError, exceptions.FlexibleChecksumError, ResponseParserError
        try:
            yield
        except exceptions.ClientError as error:
            raise _failed(path, error) from None
        except (*unavailable, *cut, KeyError, ValueError) as error:  # the last two: a header is missing or cut
            raise StoreUnavailable(repr(error)) from None
        except exceptions.BotoCoreError as error:  # no credentials
            raise refused(path, error) from None

    def find(self, path: str) -> ObjectInfo:
        bucket, name = bucket_and_name(path)
        return _of_s3(path, self._s3.head_object(Bucket=bucket, Key=name), "ContentLength")

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        bucket, name = bucket_and_name(path)
        only = {} if version is None else {"IfMatch": version}
        found = self._s3.get_object(Bucket=bucket, Key=name, Range=f"bytes={start}-{stop - 1}", **only)
        return bytes(found["Body"].read())

    def put(self, path: str, body: BinaryIO, version: str | None, sha256: str) -> None:
        bucket, name = bucket_and_name(path)
        metadata, size = {SHA256: sha256}, body.seek(0, io.SEEK_END)
        body.seek(0)
        if size > _IN_PARTS and not isinstance(body, io.BytesIO):
            # The parts count only if all arrive. boto3 sets no condition.
            self._s3.upload_fileobj(body, bucket, name, ExtraArgs={"Metadata": metadata})
            return
        wanted = {} if version == ANY else {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            with self.errors(path):
                self._s3.put_object(Bucket=bucket, Key=name, Body=body, Metadata=metadata, **wanted)
        except FileNotFoundError:
            raise (FileNotFoundError if version in (None, ANY) else Changed)(path) from None

    def copy(self, source: ObjectInfo, path: str, sha256: str, version: str | None) -> None:
        (from_bucket, from_name), (bucket, name) = bucket_and_name(source.path), bucket_and_name(path)
        extra = {"MetadataDirective": "REPLACE", "Metadata": {SHA256: sha256}, "CopySourceIfMatch": source.version}
        # A large object is copied in parts, which count only if all are copied.
        self._s3.copy({"Bucket": from_bucket, "Key": from_name}, bucket, name, ExtraArgs=extra)

    def delete(self, path: str) -> None:
        bucket, name = bucket_and_name(path)
        self._s3.delete_object(Bucket=bucket, Key=name)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, name = bucket_and_name(prefix)
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=name):
            _ = page["IsTruncated"]  # the answer is cut if it is not there
            for entry in page.get("Contents", []):
                yield _of_s3(f"s3://{bucket}/{entry['Key']}", entry, "Size")


def _failed(path: str, error: Any) -> Exception:
    response = getattr(error, "response", {})
    if response.get("Error", {}).get("Code") in _AGAIN:
        return StoreUnavailable(str(error))
    return failed(path, response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), error)


def _of_s3(path: str, found: Mapping[str, Any], size: str) -> ObjectInfo:
    etag, updated = found["ETag"], found["LastModified"].timestamp()
    return ObjectInfo(path, int(found[size]), etag, etag, updated, found.get("Metadata", {}).get(SHA256))


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
        return _asked(path, lambda client: client.find(path))
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

    def all_of_it(client: StoreClient) -> bytes:
        data = client.get(path, start, stop, version)
        if len(data) < stop - start:
            raise StoreUnavailable(f"its answer about {path} is incomplete")
        return data

    return _asked(path, all_of_it)


def put(path: str, data: bytes, version: str | None = ANY) -> None:
    """Writes an object, completely or not at all, if it has `version`, as `find` gave it; None: if there is no object.

    A request whose answer was lost is repeated, and fails because the first request succeeded. So after a failure the
    caller must read the object to know who wrote it.

    Raises:
        Changed: the object has another version, exists, or no longer exists.
    """
    _put(path, io.BytesIO(data), version, hashlib.sha256(data).hexdigest())


def _put(path: str, body: BinaryIO, version: str | None, sha256: str) -> None:
    with _bucket_is_there(path):
        _asked(path, lambda client: client.put(path, body, version, sha256))


def upload(path: str, file: str, sha256: str) -> None:
    """Writes an object from a local file, completely or not at all."""
    with open(file, "rb") as body:
        _put(path, body, ANY, sha256)


def copy(source: ObjectInfo, path: str, sha256: str, version: str | None = ANY) -> None:
    """Copies an object to another path of the same store, on the server.

    Args:
        source: the object, as `find` described it.
        path: the path of the copy.
        sha256: the digest of the content.
        version: see `put`. S3 copies in any case.

    Raises:
        Changed, FileNotFoundError: the source was replaced or removed; or see `put`.
    """
    _asked(path, lambda client: client.copy(source, path, sha256, version))


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
            _asked(path, lambda client: client.delete(path))

    paths = list(paths)
    if len(paths) == 1:  # without a thread: a lease is removed when its process ends, which can start none
        remove(paths[0])
        return
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(remove, paths))


def listed(prefix: str) -> list[ObjectInfo]:
    """The objects whose paths begin with a prefix, sorted by path."""
    with _bucket_is_there(prefix):
        found = _asked(prefix, lambda client: list(client.listed(prefix)))
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
        self._at = max(0, (0, self._at, self._found.size)[whence] + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        start = self._at
        stop = self._found.size if size < 0 else min(start + size, self._found.size)
        if stop <= start:
            return b""
        inside = start - self._first
        have = self._window[inside : inside + stop - start] if 0 <= inside < len(self._window) else b""
        if start + len(have) < stop:
            start += len(have)
            end = min(max(stop, start + self._ahead), self._found.size)
            self._window = get(self._found.path, start, end, self._found.version or None)
            self._first = start
            have += self._window[: stop - start]
        self._at = stop
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
