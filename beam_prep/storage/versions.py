"""Versions of an output: `OUT/<version_name>/`, each complete, and `OUT/latest`, which names one of them.

A trainer that opens OUT follows `latest` once, and keeps the version that it opened. A new version is made beside it.
When the new version is complete, `latest` moves: on a disk it is a link that is replaced by a rename, in a store it is
the object `latest.json`. Versions are ordered by name.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from beam_prep.errors import ConfigError, OutputError
from beam_prep.formats.manifest import HIDDEN, LATEST, MANIFEST, READERS, dump, is_held, is_name
from beam_prep.storage.files import exists, join, listed, read_version, remove_folder, write_if
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import is_local
from beam_prep.storage.stores.objects import read_bytes

_POINTER = "latest.json"
_Pointer = tuple[str | None, list[str]]
"""(latest version, all versions)."""


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
        if not is_local(self.root):
            return self._pointer()[0]
        try:
            name = os.readlink(join(self.root, LATEST))
        except OSError:
            return None
        return name if is_name(name) else None

    def names(self) -> list[str]:
        """The names of all complete versions, oldest first."""
        if not is_local(self.root):
            return sorted(self._pointer()[1])
        if not os.path.isdir(self.root):
            return []
        return sorted(
            name for name in os.listdir(self.root) if is_name(name) and os.path.isfile(join(self.root, name, MANIFEST))
        )

    def has(self, name: str) -> bool:
        """True if a version is complete. `latest` may not name it yet."""
        return exists(join(self.path(name), MANIFEST))

    def problem(self) -> str | None:
        """The reason why no version may be made here, or None."""
        if not is_local(self.root):
            if exists(join(self.root, MANIFEST)):
                return f"{self.root} holds an output without versions: choose another -o for --keep_versions"
            return None
        if not os.path.lexists(self.root):
            return None
        if not os.path.isdir(self.root):
            return f"{self.root} is a file: choose another -o"
        if os.path.lexists(join(self.root, MANIFEST)):
            return f"{self.root} holds an output without versions: choose another -o for --keep_versions"
        # Only complete versions may be here. A folder without a manifest may be a version that another machine makes.
        others = sorted(name for name in os.listdir(self.root) if name not in (LATEST, _NEW_LINK, HIDDEN))
        foreign = next((name for name in others if not os.path.isfile(join(self.root, name, MANIFEST))), None)
        if foreign is not None:
            return f"{self.root} is no folder of versions, it holds {foreign!r}: choose another -o"
        return None

    def point(self, name: str) -> bool:
        """Moves `latest` to a complete version, in one step, unless `latest` names a later one.

        Returns:
            True if `latest` names this version now.
        """
        if not is_local(self.root):
            latest, _ = self._change_pointer(
                lambda latest, names: (latest if latest in names and latest > name else name, sorted({*names, name}))
            )
            return latest == name
        found = self.latest()
        if found is not None and found > name and found in self.names():
            return False
        if found != name:
            made = join(self.root, _NEW_LINK)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)
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
                self._remove(name)
        self.clean()

    def clean(self) -> None:
        """Removes leftovers of versions that were removed."""
        if is_local(self.root):
            hidden = Path(self.root, HIDDEN)
            shutil.rmtree(hidden / _REMOVED, ignore_errors=True)
            for folder in (hidden / READERS).glob("*"):
                if not os.path.isdir(join(self.root, folder.name)):
                    shutil.rmtree(folder, ignore_errors=True)
            for folder in (hidden / READERS, hidden):
                with contextlib.suppress(OSError):  # it is not there, or not empty
                    folder.rmdir()

    def remove_unfinished(self, name: str) -> None:
        """Removes the files of a version without a manifest, which a killed launch left. Only in a store."""
        if not is_local(self.root) and not self.has(name):
            remove_folder(self.path(name))

    def _remove(self, name: str) -> None:
        if is_local(self.root):
            # The rename comes first, so a reader sees the complete version or none.
            removed = join(self.root, HIDDEN, _REMOVED)
            os.makedirs(removed, exist_ok=True)
            os.rename(self.path(name), join(removed, f"{name}.{uuid.uuid4().hex}"))
            return
        objects.delete([join(self.path(name), MANIFEST)])
        remove_folder(self.path(name))
        remove_folder(join(self.root, HIDDEN, READERS, name))
        self._change_pointer(lambda latest, names: (latest, [each for each in names if each != name]))

    def is_held(self, name: str) -> bool:
        """True if a reader holds a version in a store."""
        leases = listed(join(self.root, HIDDEN, READERS, name))
        return any(is_held(read_bytes(found.path)) for found in leases if found.path.endswith(".json"))

    def _pointer(self) -> _Pointer:
        """(latest version, all versions) in a store. `latest.json` lists them: a store would list every shard."""
        return self._read_pointer()[0]

    def _read_pointer(self) -> tuple[_Pointer, str | None]:
        """(pointer, version of its object)."""
        found = read_version(join(self.root, _POINTER))
        if found is None:
            return (None, []), None
        try:
            said = json.loads(found[0])
            return (said["generation"], list(said["generations"])), found[1]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{join(self.root, _POINTER)} is not ours: choose another -o, or remove it") from None

    def _change_pointer(self, change: Callable[[str | None, list[str]], _Pointer]) -> _Pointer:
        """Changes the pointer by `change`. If another launch was faster, it tries again with the new pointer."""
        while True:
            there, version = self._read_pointer()
            wanted = change(*there)
            if wanted == there:
                return wanted
            path, text = join(self.root, _POINTER), dump({"generation": wanted[0], "generations": wanted[1]})
            if write_if(path, text, version):  # False: another was faster, or an answer was lost
                return wanted


_REMOVED = "removed"
_NEW_LINK = f"{HIDDEN}.{LATEST}"
