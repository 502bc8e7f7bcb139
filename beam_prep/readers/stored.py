"""An output in a store: its manifest is read from there, a shard is copied to a cache when it is first asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_prep.errors import FormatError
from beam_prep.formats.manifest import MANIFEST
from beam_prep.readers.cache import Cache
from beam_prep.readers.lease import ReaderLease
from beam_prep.storage.stored import copied, no_output
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import StoreOptions
from beam_prep.storage.stores.objects import read_bytes, read_version


class Stored:
    """The files of an output in a store. Can be pickled: the other process uses the same cache.

    Args:
        url: of the output.
        cache: the folder of the cache.
        most: bytes that it may hold.
        options: of Beam, for the store.
    """

    def __init__(self, url: str, cache: Path, most: int, options: StoreOptions) -> None:
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
        self._given[2].activate()
        return read_bytes(f"{self.url}/{name}")

    def _fetch(self, file: Mapping[str, Any], path: Path) -> None:
        self._given[2].activate()
        url = f"{self.url}/{file['path']}"
        found = objects.find(url)
        if found is None:
            raise FormatError(f"{url}: no such object, though {MANIFEST} lists it")
        if (digest := copied(found, path)) != file["sha256"]:
            raise FormatError(f"{url} is damaged: found sha256 {digest}, {MANIFEST} says {file['sha256']}")


def open_stored(url: str, cache: Path, most: int) -> tuple[Stored, bytes, ReaderLease | None]:
    """The files of an output in a store, its manifest, and the lease on it if it is a version.

    Raises:
        FormatError: there is no output.
        StorageError: the store does not answer, or refuses.
    """
    from beam_prep.storage.versions import Versions  # imports Arrow, for which readers of local outputs do not wait

    url = url.rstrip("/")
    versions, lease = Versions(url), None
    if (latest := versions.latest()) is not None:
        url = versions.path(latest)
        lease = ReaderLease(url)
    found = read_version(f"{url}/{MANIFEST}")
    if found is None:
        raise no_output(url)
    return Stored(url, cache, most, StoreOptions.current()), found[0], lease
