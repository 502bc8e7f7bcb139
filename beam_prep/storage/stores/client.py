"""The contract of a client of an object store, and its errors.

Beam, of whose options clients are made, is imported when a store is used: readers of local outputs do without.
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
    """What `FileSystems.set_options` was given in this process. Beam has no public name for it."""
    from apache_beam.io.filesystems import FileSystems

    given: PipelineOptions | None = FileSystems._pipeline_options
    return given


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores. The workers of a pool and of the local runner do not get them from Beam.

    Pickling and unpickling them changes nothing in a process. What uses a store on a worker calls `activate` first: the
    `setup` of a DoFn, or `TokenizerFolder.fetch`.
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
        """Makes these the options of this process, if they are not yet. Beam's FileSystems uses them, too.

        Beam keeps one set of options for each process, so this is for workers, which work for one job.
        """
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions

        here = dict(StoreOptions.current().given) if self.given else {}  # slow in Beam
        if any(here.get(name) != value for name, value in self.given):
            FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(self.given)}))


SHA256 = "sha256"
"""The key of an object's metadata under which we keep its digest."""
CONNECTIONS = 16
ANY = "any"
"""In place of a version: there may be an object of any, or none."""


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

    def put(self, path: str, data: bytes, version: str | None, sha256: str | None) -> None:
        """Writes an object, completely or not at all; and only if it has this version, `ANY` or none (None).

        Otherwise `PreconditionFailed`.

        Servers that ignore preconditions (gcp-storage-emulator) always write. On S3 the version is a digest of the
        content: the same content written again is the same version.
        """
        ...

    def upload(self, path: str, file: str, sha256: str, version: str | None) -> None:
        """Writes an object from a local file, completely or not at all; and only if it has this version, see `put`.

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


log = logging.getLogger("beam_prep")

RETRY_SECONDS = 60.0
"""Seconds that a store may be unavailable in the middle of a run."""

PAUSE, LONGEST_PAUSE = 0.25, 8.0

T = TypeVar("T")


def with_retries(work: Callable[[], T], path: str) -> T:
    """Calls `work`, again while the store of a path does not answer, for `RETRY_SECONDS` seconds.

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
        # Random, so that workers do not all try at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE)


def is_local(path: str) -> bool:
    """Tells a path on this machine's disk from one in a store."""
    return "://" not in path


def shortened(name: str) -> str:
    """A name of a file with room for an ending: names have 255 bytes at most. Only long ones are cut."""
    return os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore")


_LONGEST = 200
