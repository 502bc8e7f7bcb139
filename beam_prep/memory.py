"""How much memory a process may use, and what it has freed."""

import contextlib
import ctypes
import os
from pathlib import Path, PurePosixPath


def memory_limit(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes: what the machine has, or the limit of the process's control group, or of one above it, if that is less.

    Args:
        root: where the limits of groups are.
        groups: the groups of the process.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        limits, name = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        # In a container the group's own path may not be there, but its limit is at the root.
        group = PurePosixPath(path)
        for each in (group, *group.parents):
            limit = limits / str(each).lstrip("/") / name
            text = limit.read_text().strip() if limit.exists() else ""
            if text.isdecimal():
                found = min(found, int(text))
    return found


def give_back_memory() -> None:
    """Gives freed memory back to the system, where the C library can.

    Loading a tokenizer leaves 100 MB of it, and a worker keeps some from each block for the next one.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
