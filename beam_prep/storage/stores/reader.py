"""An object as a file."""

import io
from collections.abc import Iterator
from pathlib import Path

from beam_prep.storage.paths import is_local
from beam_prep.storage.stores.client import ObjectInfo
from beam_prep.storage.stores.objects import find, get, tail

_PART = 8 << 20


class Reader(io.RawIOBase):
    """An object as a file.

    Args:
        found: the object; another version of it is never read.
        ahead: bytes to ask for at a time, at least.

    Raises:
        Changed, FileNotFoundError: (when read) it is no longer there as it was.
    """

    def __init__(self, found: ObjectInfo, ahead: int = 256 * 1024) -> None:
        self._found, self._ahead = found, ahead
        self._at = 0
        self._first, self._window = 0, b""

    @classmethod
    def from_end(cls, path: str, size: int = 64 * 1024) -> "Reader":
        """One that has the end of an object already, in one request.

        Raises:
            FileNotFoundError: there is none.
        """
        data, whole = tail(path, size)
        # Written once, so any version is the one.
        reader = cls(ObjectInfo(path, whole, "", "", 0.0), 0)
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


def parts(found: ObjectInfo) -> Iterator[bytes]:
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
