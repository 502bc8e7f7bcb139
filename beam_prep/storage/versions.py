"""Versions of an output: `OUT/<version_name>/`, each complete, and `OUT/latest`, which names one of them.

A trainer that opens OUT follows `latest` once, and keeps the version that it opened. A new version is made beside it.
When the new version is complete, `latest` moves: on a disk it is a link that is replaced by a rename, in a store it is
the object `latest.json`. Versions are ordered by name.
"""

import contextlib
import json
import os
import time
from pathlib import Path

from beam_prep.errors import ConfigError, OutputError
from beam_prep.formats.manifest import HIDDEN, LATEST, MANIFEST, READERS, dump, is_name
from beam_prep.storage.files import delete, exists, join, listed, names_in, remove_folder, write_file, write_if
from beam_prep.storage.stores import is_local, read_version

_POINTER = "latest.json"


def new_name() -> str:
    """The name of a version that is made now: the time in UTC, to the second."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def check_name(name: str) -> None:
    """Checks the name of a version.

    Raises:
        ConfigError: a version cannot have this name.
    """
    if not is_name(name):
        raise ConfigError(
            f"version_name is {name!r}, wanted up to 100 letters, digits, '.', '_' or '-', the first a letter or "
            f"digit, and not {LATEST!r}, which names the latest one"
        )


class Versions:
    """The versions below a folder, on a disk or in a store.

    Args:
        root: the folder.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """The path of a version."""
        return join(self.root, name)

    def latest(self) -> str | None:
        """The name of the latest version; None if there is none."""
        return self._pointer()[0]

    def names(self) -> list[str]:
        """The names of all complete versions, oldest first."""
        return sorted(name for name in names_in(self.root) if is_name(name) and self.has(name))

    def has(self, name: str) -> bool:
        """True if a version is complete. `latest` may not name it yet."""
        return exists(join(self.path(name), MANIFEST))

    def problem(self, made: str) -> str | None:
        """The reason why the version `made` may not be made here, or None."""
        if exists(join(self.root, MANIFEST)):
            return f"{self.root} holds an output without versions: choose another -o for --keep_versions"
        if is_local(self.root) and os.path.lexists(self.root):
            if not os.path.isdir(self.root):
                return f"{self.root} is a file: choose another -o"
            # Only complete versions may be here. A folder without a manifest may be a version that another machine
            # makes.
            if not os.path.islink(latest := join(self.root, LATEST)) and os.path.lexists(latest):
                return f"{latest} is a file or a folder, wanted a link to a version: remove it, and run again"
            marked = names_in(join(self.root, HIDDEN, _REMOVED)) - {made}  # a later run removes what is marked
            others = sorted({*os.listdir(self.root)} - {LATEST, _NEW_LINK, HIDDEN, *self.names(), *marked})
            if others:
                return f"{self.root} is no folder of versions, it holds {others[0]!r}: choose another -o"
        # A folder of outputs, each of its own, looks the same, and the oldest versions are removed.
        if self.latest() is None and (others := sorted({*self.names()} - {made})):
            link = f"if these are versions, type: ln -sfn {others[-1]} {self.root}/{LATEST}"
            return f"{self.root} holds {others[-1]!r}, which no `{LATEST}` makes a version: choose another -o; {link}"
        return None

    def point(self, name: str) -> None:
        """Moves `latest` to a complete version, in one step, unless `latest` names a later one."""
        is_moved = False
        while not is_moved:  # another launch may be faster, or an answer may be lost
            found, there = self._pointer()
            if found == name or (found is not None and found > name and self.has(found)):
                return
            is_moved = self._move(name, there)

    def _pointer(self) -> tuple[str | None, str | None]:
        """(the latest version, the version of the object that names it)."""
        if is_local(self.root):
            try:
                name = os.readlink(join(self.root, LATEST))
            except OSError:
                return None, None
            return (name if is_name(name) else None), None
        text, there = read_version(join(self.root, _POINTER)) or (None, None)
        try:
            return (None if text is None else json.loads(text)["generation"]), there
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{join(self.root, _POINTER)} is not ours: choose another -o, or remove it") from None

    def _move(self, name: str, there: str | None) -> bool:
        if not is_local(self.root):
            return write_if(join(self.root, _POINTER), dump({"generation": name}), there)
        made = join(self.root, _NEW_LINK)
        Path(made).unlink(missing_ok=True)
        os.symlink(name, made)
        os.replace(made, join(self.root, LATEST))
        return True

    def remove_old(self, keep: int, made: str) -> None:
        """Removes all but the newest versions, and leftovers of versions that a killed launch was removing.

        A version that a reader holds stays, and the version that `latest` names, too.

        Args:
            keep: how many versions stay.
            made: the version that was just made; it stays, too.
        """
        names = self.names()
        for name in names[:-keep]:
            if name not in (made, self.latest()) and not self.is_held(name):
                write_file(join(self.root, HIDDEN, _REMOVED, name), b"")
        self.clean()

    def clean(self) -> None:
        """Removes the versions that are marked as removed, and the leases of versions that are gone."""
        hidden = join(self.root, HIDDEN)
        for name in names_in(join(hidden, _REMOVED)):
            delete([join(self.path(name), MANIFEST)])  # first, so a reader sees the complete version or none
            remove_folder(self.path(name))
            if not (is_local(self.root) and os.path.lexists(self.path(name))):  # the next run tries again
                delete([join(hidden, _REMOVED, name)])
        for name in names_in(join(hidden, READERS)):
            if not self.has(name):
                remove_folder(join(hidden, READERS, name))
        for folder in (_REMOVED, READERS, ""):
            with contextlib.suppress(OSError):  # it is not there, in a store, or not empty
                os.rmdir(os.path.join(hidden, folder))

    def is_held(self, name: str) -> bool:
        """True if a reader holds a version in a store."""
        leases = listed(join(self.root, HIDDEN, READERS, name))
        return any(time.time() - found.updated < _LEASE for found in leases)


_LEASE = 24 * 3600.0
"""Seconds that a reader's lease lasts after it was written."""
_REMOVED = "removed"
_NEW_LINK = f"{HIDDEN}.{LATEST}"
