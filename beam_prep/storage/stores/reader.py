"""Objects as files."""

from collections.abc import Iterator
from pathlib import Path

from beam_prep.formats.range_file import RangeFile
from beam_prep.storage.paths import is_local
from beam_prep.storage.stores.client import Changed, ObjectInfo
from beam_prep.storage.stores.objects import find, get, tail

_PART = 8 << 20


class Reader(RangeFile):
    """An object as a file.

    Args:
        found: the object. No other version of it is read.
        ahead: the least number of bytes in a request.

    Raises:
        Changed, FileNotFoundError: (when read) the object was replaced or removed.
    """

    def __init__(self, found: ObjectInfo, ahead: int = 256 * 1024) -> None:
        super().__init__(found.size)
        self._found, self._ahead = found, ahead
        self._first, self._window = 0, b""

    @classmethod
    def from_end(cls, path: str, size: int = 64 * 1024) -> "Reader":
        """A reader that has read the end of the object already, in one request.

        Raises:
            FileNotFoundError: there is none.
        """
        data, total = tail(path, size)
        # Such an object is written once, so every version is right.
        reader = cls(ObjectInfo(path, total, "", "", 0.0), 0)
        reader._first, reader._window = total - len(data), data
        return reader

    def read_range(self, start: int, stop: int) -> bytes:
        inside = start - self._first
        have = self._window[inside : inside + stop - start] if 0 <= inside < len(self._window) else b""
        if start + len(have) < stop:
            start += len(have)
            end = min(max(stop, start + self._ahead), self._found.size)
            self._window = get(self._found.path, start, end, self._found.version or None)
            self._first = start
            have += self._window[: stop - start]
        return have


def parts(found: ObjectInfo) -> Iterator[bytes]:
    """An object's content, in parts.

    Raises:
        Changed, FileNotFoundError: the object was replaced or removed.
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
    found = read_version(path)
    if found is None:
        raise FileNotFoundError(path)
    return found[0]


def read_version(path: str) -> tuple[bytes, str] | None:
    """(content, version) of an object; None if there is none."""
    while (found := find(path)) is not None:
        try:
            return get(path, 0, found.size, found.version), found.version
        except (Changed, FileNotFoundError):
            continue  # replaced meanwhile
    return None
