"""The contract of a client of an object store, and its errors.

Clients are made from Beam's options. Beam is imported only when a store is used, not by readers of local
outputs.
"""

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from beam_prep.errors import StorageError

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

    Unpickling does not activate them. Code that uses a store on a worker calls `activate` first, for instance in the
    `setup` of a DoFn, or in `TokenizerFolder.fetch`.
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
    """A store. Each call may raise `StoreUnavailable`, `FileNotFoundError`, and `StorageError` if it is refused."""

    def find(self, path: str) -> ObjectInfo:
        """Describes an object."""
        ...

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        """Bytes [start, stop) of an object. `Changed` if it has another version."""
        ...

    def put(self, path: str, data: bytes, version: str | None, sha256: str) -> None:
        """Writes an object, completely or not at all. `Changed` unless the object has `version`.

        Version None: there must be no object. `ANY`: always writes.

        Servers that ignore preconditions (gcp-storage-emulator) always write. On S3 the version is a digest of the
        content, so the same content written again has the same version.
        """
        ...

    def upload(self, path: str, file: str, sha256: str, version: str | None) -> None:
        """Writes an object from a local file. For `version` see `put`.

        S3 ignores the version if the file is uploaded in parts.
        """
        ...

    def copy(self, source: ObjectInfo, path: str, sha256: str) -> None:
        """Copies an object to another path of the store, on the server. `Changed` if it has another version.

        Servers that ignore preconditions (gcp-storage-emulator) copy any version.
        """
        ...

    def delete(self, path: str) -> None:
        """Removes an object. A missing object is no error."""
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
