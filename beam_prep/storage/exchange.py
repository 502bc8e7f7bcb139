"""A directory takes the place of another in one step, so that a reader sees the old one or the new one."""

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of kernels before Linux 3.15, and of file systems that cannot exchange (NFS, a few FUSE ones)."""


def replace_directory(made: str, target: str) -> None:
    """Puts a directory in the place of another, or where nothing is.

    If a directory was there, it is at `made` afterwards, for the caller to remove. On Linux this is one step
    (`renameat2` with `RENAME_EXCHANGE`, man 2 rename). Where the kernel or the file system cannot do that there are two
    renames, and between them nothing is at `target`; a process that is killed there leaves the old version at
    `<made>.replaced`.

    Args:
        made: the new directory, on the same disk.
        target: where it belongs.

    Raises:
        OSError: neither works; `target` is what it was.
    """
    try:
        os.rename(made, target)  # nothing is there, or an empty directory
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchanged(made, target):
        return
    aside = f"{made}.replaced"
    os.rename(target, aside)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(aside, target)
        raise
    os.rename(aside, made)


def _exchanged(one: str, other: str) -> bool:
    """Exchanges two directories; False if that cannot be done here."""
    if (renameat2 := _renameat2()) is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), one, None, other)


@functools.cache
def _renameat2() -> "Callable[[int, bytes, int, bytes, int], int] | None":
    """The function of glibc 2.28 or musl 1.2; None on other systems."""
    with contextlib.suppress(AttributeError, OSError):
        function = ctypes.CDLL(None, use_errno=True).renameat2
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return function
    return None
