"""`bp.open`: finds an output, and says what is there instead if there is none."""

import os
from pathlib import Path

from beam_prep.errors import FormatError
from beam_prep.formats.generation import ReaderLease, followed
from beam_prep.formats.manifest import FAILURE, MANIFEST, load
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.output import OpenOutput


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Opens an output directory. Reads its manifest; shards are opened when their rows are asked for.

    Of an output with generations the latest is opened, and kept: it is not removed as long as it is in use (a lease,
    which lasts a day and is renewed as shards are opened).

    >>> ds = bp.open("out/chat")
    >>> len(ds), ds.columns
    (260, ('input_ids', 'labels'))

    Raises:
        FormatError: there is no output; the message says what is there instead.
    """
    folder, lease = Path(os.path.abspath(path)), None
    if (latest := followed(folder)) != folder:
        folder, lease = latest, ReaderLease(latest)
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(_why_not(path, folder)) from None
    manifest = load(text, str(folder / MANIFEST))
    try:
        output = OpenOutput(folder, manifest, lease)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{folder / MANIFEST} is damaged ({error!r}): make the output again") from None
    return Dataset(output, range(output.starts[-1]))


def _why_not(path: str | os.PathLike[str], folder: Path) -> str:
    """Says why a path without a manifest is not an output, and what to type."""
    failed = Path(f"{folder}.failed")
    if "://" in os.fspath(path):
        return (
            f"{path}: only local directories can be opened; copy it to this machine first: {_copying(os.fspath(path))}"
        )
    if (folder / FAILURE).is_file():
        return f"{path} is what a failed run left, not an output: the reason is in {folder / FAILURE}"
    if (failed / FAILURE).is_file():
        return f"{path} holds no output, its run failed: the reason is in {failed / FAILURE}"
    if not folder.exists():
        return f"{path}: no such directory; give the directory that `beam-prep run` made with -o"
    if above := next((parent for parent in folder.parents[:3] if (parent / MANIFEST).is_file()), None):
        return f"{path} is a part of an output: open {above}"
    if not folder.is_dir():
        return f"{path} is a file; give the directory that `beam-prep run` made with -o"
    return f"{path} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again"


def _copying(path: str) -> str:
    """The command that copies an output from a store into this directory."""
    path = path.rstrip("/")
    if path.startswith("s3://"):
        return f"aws s3 cp --recursive {path} {path.rpartition('/')[2]}"
    return f"gcloud storage cp --recursive {path} ." if path.startswith("gs://") else "with the tools of its store"
