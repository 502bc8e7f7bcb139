"""An output in an object store, for `beam_prep.verify`. Its files are copied to this machine, one shard at a time."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from beam_prep.errors import FormatError
from beam_prep.formats.manifest import FAILURE, MANIFEST
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import Changed, ObjectInfo
from beam_prep.storage.stores.objects import parts


class StoredFiles:
    """See `verify.files.OutputFiles`. The objects are listed once, when this is made.

    Args:
        output: on `gs://` or `s3://`.

    Raises:
        FormatError: there is no output.
        StorageError: the store does not answer, or refuses.
    """

    def __init__(self, output: str) -> None:
        base = output.rstrip("/")
        found = {each.path[len(base) + 1 :]: each for each in objects.listed(f"{base}/")}
        # A console's "folder" is an empty object of such a name.
        self._found = {name: each for name, each in found.items() if not name.endswith("/") and name}
        if MANIFEST not in self._found:
            failure = f"{base}.failed/{FAILURE}"
            if objects.find(failure) is not None:
                raise FormatError(f"{output} holds no output, its run failed: the reason is in {failure}")
            raise FormatError(
                f"{output} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again"
            )

    def manifest(self) -> bytes:
        """The manifest's text."""
        with self.local([MANIFEST]) as folder:
            return (folder / MANIFEST).read_bytes()

    def names(self) -> Iterable[str]:
        """See `verify.files.OutputFiles`."""
        return self._found

    @contextlib.contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:
        """See `verify.files.OutputFiles`. The copies are in the folder of temporary files (`TMPDIR`).

        Raises:
            FormatError: a file was replaced or removed meanwhile.
        """
        with tempfile.TemporaryDirectory(prefix="beam_prep-") as folder:
            for name in names:
                if name in self._found:
                    _copy(self._found[name], Path(folder, name))
            yield Path(folder)


def _copy(found: ObjectInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.writelines(parts(found))
    except (Changed, FileNotFoundError):
        raise FormatError(f"{found.path} changed while it was read: a job is writing this output") from None
