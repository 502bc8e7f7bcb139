"""Finds the latest version of an output, and tells whether a reader holds a version: see `readers.lease`."""

import json
import os
import platform
import re
import time
from pathlib import Path

HIDDEN = ".beam_prep"
LATEST = "latest"
READERS = "readers"
LEASE = 24 * 3600.0
"""Seconds that a reader's lease lasts."""


def is_name(name: str) -> bool:
    """True if a version can have this name."""
    return name != LATEST and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def followed(folder: Path) -> Path:
    """The latest version below a folder; the folder itself if it has none."""
    link = folder / LATEST
    return folder / os.readlink(link) if link.is_symlink() else folder


def is_held(lease: bytes) -> bool:
    """True if a reader's lease has not ended. A damaged lease counts as ended."""
    try:
        found = json.loads(lease)
        if found["until"] < time.time():
            return False
        return found["host"] != platform.node() or _lives(found["pid"])
    except (ValueError, KeyError, TypeError):
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True
