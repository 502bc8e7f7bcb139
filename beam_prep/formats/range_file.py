"""A file object over anything of a known size that can be read by ranges."""

import io
from typing import Any


class RangeFile(io.RawIOBase):
    """A file object for libraries that want one. A subclass reads the ranges.

    Args:
        size: of the file, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def read_range(self, start: int, stop: int) -> Any:
        """Bytes [start, stop), which are in the file, and at least one."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> Any:
        """The next bytes, as many as asked for unless the file ends."""
        start = self._at
        stop = self._size if size < 0 else min(start + size, self._size)
        if stop <= start:
            return b""
        data = self.read_range(start, stop)
        self._at = stop
        return data
