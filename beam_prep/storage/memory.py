"""How much memory a process may use."""

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Bytes: what the machine has, or the container's limit, if that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _LIMITS):
        text = path.read_text().strip() if path.exists() else ""
        if text.isdecimal():
            found = min(found, int(text))
    return found
