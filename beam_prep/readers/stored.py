"""An output in a store: its manifest is read from there, a shard is copied to a cache when it is first asked for.

Our clients of stores need Beam, which is imported when an output in a store is opened.
"""

import contextlib
import hashlib
import json
import os
import platform
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.formats.manifest import FAILURE, MANIFEST
from beam_prep.formats.versions import HIDDEN, LEASE, READERS
from beam_prep.readers.cache import Cache

if TYPE_CHECKING:
    from beam_prep.storage.stores.client import StoreOptions


class Stored:
    """The files of an output in a store. Can be pickled: the other process uses the same cache.

    Args:
        url: of the output.
        cache: the folder of the cache.
        most: bytes that it may hold.
        options: of Beam, for the store.
    """

    def __init__(self, url: str, cache: Path, most: int, options: "StoreOptions") -> None:
        self.url, self._given = url, (cache, most, options)
        self._cache = Cache(cache, most)

    def __reduce__(self) -> tuple[type["Stored"], tuple[Any, ...]]:
        return Stored, (self.url, *self._given)

    def fetched(self, files: Sequence[Mapping[str, Any]], inside: str) -> Path:
        """See `Cache.fetched`."""
        return self._cache.fetched(files, inside, self._fetch)

    def bytes_of(self, name: str) -> bytes:
        """The content of a file that is not in the manifest; it is not kept.

        Raises:
            FileNotFoundError: there is none.
        """
        from beam_prep.storage.stores.objects import read_bytes

        self._given[2].activate()
        return read_bytes(f"{self.url}/{name}")

    def _fetch(self, file: Mapping[str, Any], path: Path) -> None:
        from beam_prep.storage.stores import objects
        from beam_prep.storage.stores.client import Changed
        from beam_prep.storage.stores.objects import parts

        self._given[2].activate()
        url, digest = f"{self.url}/{file['path']}", hashlib.sha256()
        found = objects.find(url)
        if found is None:
            raise FormatError(f"{url}: no such object, though {MANIFEST} lists it")
        try:
            with path.open("wb") as copy:
                for part in parts(found):
                    digest.update(part)
                    copy.write(part)
        except (Changed, FileNotFoundError):
            raise FormatError(f"{url} changed while it was read: a job is writing this output") from None
        if digest.hexdigest() != file["sha256"]:
            raise FormatError(f"{url} is damaged: found sha256 {digest.hexdigest()}, {MANIFEST} says {file['sha256']}")


class StoredLease:
    """The lease of a reader on a version in a store: see `formats.versions.ReaderLease`."""

    def __init__(self, version_name: str) -> None:
        root, _, name = version_name.rpartition("/")
        self._url = f"{root}/{HIDDEN}/{READERS}/{name}/{uuid.uuid4().hex}.json"
        self._renewed = 0.0
        self.renew()
        weakref.finalize(self, _delete, self._url, os.getpid())

    def renew(self) -> None:
        """Renews the lease if an hour has passed."""
        if self._renewed and time.monotonic() - self._renewed < 3600:
            return
        from beam_prep.storage.stores import objects

        self._renewed = time.monotonic()
        content = {"host": platform.node(), "pid": os.getpid(), "until": time.time() + LEASE}
        with contextlib.suppress(BeamPrepError):  # no right to write
            objects.put(self._url, json.dumps(content).encode())


def _delete(url: str, pid: int) -> None:
    if os.getpid() == pid:
        from beam_prep.storage.stores import objects

        with contextlib.suppress(BeamPrepError):
            objects.delete([url])


def open_stored(url: str, cache: Path, most: int) -> tuple[Stored, bytes, StoredLease | None]:
    """The files of an output in a store, its manifest, and the lease on it if it is a version.

    Raises:
        FormatError: there is no output.
        StorageError: the store does not answer, or refuses.
    """
    from beam_prep.storage.stores import objects
    from beam_prep.storage.stores.client import StoreOptions
    from beam_prep.storage.stores.objects import read_version
    from beam_prep.storage.versions import Versions

    url = url.rstrip("/")
    versions, lease = Versions(url), None
    if (latest := versions.latest()) is not None:
        url = versions.path(latest)
        lease = StoredLease(url)
    found = read_version(f"{url}/{MANIFEST}")
    if found is None:
        if objects.find(failure := f"{url}.failed/{FAILURE}") is not None:
            raise FormatError(f"{url} holds no output, its run failed: the reason is in {failure}")
        raise FormatError(
            f"{url} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again"
        )
    return Stored(url, cache, most, StoreOptions.current()), found[0], lease
