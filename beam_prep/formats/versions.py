"""How a reader finds the latest version of an output, and holds it. Needs no Beam.

A reader that has opened a version leaves a lease, `OUT/.beam_prep/readers/<version_name>/<number>.json`, which says
until when; as long as it lasts the version is not removed. The reader renews it while it opens shards.
"""

import contextlib
import json
import os
import platform
import re
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

HIDDEN = ".beam_prep"
LATEST = "latest"
READERS = "readers"
LEASE = 24 * 3600.0
"""Seconds."""


def is_name(name: str) -> bool:
    """True if a version can have this name."""
    return name != LATEST and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None


def followed(folder: Path) -> Path:
    """The latest version below a folder; the folder itself if it has none."""
    link = folder / LATEST
    return folder / os.readlink(link) if link.is_symlink() else folder


def is_held(lease: bytes) -> bool:
    """True if a reader's lease lasts. A file that says nothing holds nothing."""
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
        pass  # another user's
    return True


class ReaderLease:
    """The lease of a reader on a version. It ends with this object. Without the right to write there is none.

    Args:
        folder: the version.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder.parent / HIDDEN / READERS / folder.name / f"{uuid.uuid4().hex}.json"
        self._renewed = 0.0
        self.renew()
        weakref.finalize(self, _remove, self._path, os.getpid())

    def renew(self) -> None:
        """Renews the lease if an hour has passed."""
        if self._renewed and time.monotonic() - self._renewed < 3600:
            return
        self._renewed = time.monotonic()
        content: dict[str, Any] = {"host": platform.node(), "pid": os.getpid(), "until": time.time() + LEASE}
        with contextlib.suppress(OSError):  # a mount that is for reading only
            self._path.parent.mkdir(parents=True, exist_ok=True)
            made = self._path.with_suffix(".new")
            made.write_text(json.dumps(content))
            os.replace(made, self._path)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a process that was forked from the reader's
        with contextlib.suppress(OSError):
            path.unlink()
            for folder in list(path.parents)[:3]:
                folder.rmdir()
