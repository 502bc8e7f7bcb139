"""Reads an output in an object store. It copies the files to this machine, one shard at a time."""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from beam_prep.errors import FormatError
from beam_prep.formats.manifest import FAILURE, MANIFEST, is_outside
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import Changed, ObjectInfo
from beam_prep.storage.stores.objects import parts


class StoredFiles:
    """The files of an output, see `verify.OutputFiles`. The objects are listed once, when this is made.

    Args:
        output: a path on `gs://` or `s3://`.

    Raises:
        FormatError: there is no output.
        StorageError: the store does not answer, or refuses.
    """

    def __init__(self, output: str) -> None:
        base = output.rstrip("/")
        found = {each.path[len(base) + 1 :]: each for each in objects.listed(f"{base}/")}
        # The consoles of stores make "folders": empty objects with a name that ends with "/".
        self._found = {name: each for name, each in found.items() if not name.endswith("/") and name}
        if MANIFEST not in self._found:
            raise no_output(base)

    def manifest(self) -> bytes:
        """The manifest's text."""
        with self.local([MANIFEST]) as folder:
            return (folder / MANIFEST).read_bytes()

    def names(self) -> Iterable[str]:
        """See `verify.OutputFiles`."""
        return self._found

    @contextlib.contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:
        """See `verify.OutputFiles`. The copies are in the folder of temporary files (`TMPDIR`).

        Raises:
            FormatError: a file was replaced or removed meanwhile.
        """
        with tempfile.TemporaryDirectory(prefix="beam_prep-") as folder:
            for name in names:
                if name in self._found and not is_outside(name):
                    copied(self._found[name], Path(folder, name))
            yield Path(folder)


def copied(found: ObjectInfo, path: Path) -> str:
    """Copies an object of an output to this machine. Returns the sha256 of the copy.

    Raises:
        FormatError: the object was replaced or removed since it was listed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with path.open("wb") as copy:
            for part in parts(found):
                digest.update(part)
                copy.write(part)
    except (Changed, FileNotFoundError):
        raise FormatError(f"{found.path} changed while it was read: a job is writing this output") from None
    return digest.hexdigest()


def no_output(url: str) -> FormatError:
    """The error for a path in a store without a manifest."""
    if objects.find(failure := f"{url}/{FAILURE}") is not None:
        return FormatError(f"{url} is what a failed run left, not an output: the reason is in {failure}")
    if objects.find(failure := f"{url}.failed/{FAILURE}") is not None:
        return FormatError(f"{url} holds no output, its run failed: the reason is in {failure}")
    return FormatError(f"{url} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again")
