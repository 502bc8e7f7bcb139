"""The lease of a reader on the version of an output that it has opened, on a disk or in a store.

A lease is a file, `OUT/.beam_prep/readers/<version_name>/<id>.json`, with its end. Until then the version is not
removed. The reader renews its lease when it opens shards.
"""

import contextlib
import json
import os
import platform
import time
import uuid
import weakref
from pathlib import Path

from beam_prep.errors import BeamPrepError
from beam_prep.formats.manifest import HIDDEN, LEASE, READERS
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import is_local


class ReaderLease:
    """The lease of a reader on a version. It ends with this object. A reader that may not write has no lease.

    Args:
        version: the path of the version, or its URL.
    """

    def __init__(self, version: str) -> None:
        root, _, name = version.rpartition("/")
        self._path = f"{root}/{HIDDEN}/{READERS}/{name}/{uuid.uuid4().hex}.json"
        self._renewed = 0.0
        self.renew()
        weakref.finalize(self, _remove, self._path, os.getpid())

    def renew(self) -> None:
        """Renews the lease if an hour has passed."""
        if self._renewed and time.monotonic() - self._renewed < 3600:
            return
        self._renewed = time.monotonic()
        said = {"host": platform.node(), "pid": os.getpid(), "until": time.time() + LEASE}
        content = json.dumps(said).encode()
        with contextlib.suppress(OSError, BeamPrepError):  # no right to write
            if not is_local(self._path):
                objects.put(self._path, content)
                return
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_suffix(".new")
            made.write_bytes(content)
            os.replace(made, path)


def _remove(path: str, pid: int) -> None:
    if os.getpid() != pid:  # a process that the reader's process forked
        return
    with contextlib.suppress(OSError, BeamPrepError):
        if not is_local(path):
            objects.delete([path])
            return
        Path(path).unlink()
        for folder in list(Path(path).parents)[:3]:
            folder.rmdir()
