"""`bp.open`: opens an output. If there is none, the error says what is there instead."""

import os
from collections.abc import Sequence
from pathlib import Path

from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.formats.manifest import MANIFEST, followed, load
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.lease import ReaderLease
from beam_prep.readers.stored import CACHE_BYTES, Stored, default_folder, no_output
from beam_prep.storage.stores.client import StoreOptions
from beam_prep.storage.stores.objects import read_bytes

ALL = "all"
"""In place of the name of a split: the rows of all splits."""


def open_dataset(
    path: str | os.PathLike[str],
    domains: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    *,
    split: str | None = None,
) -> Dataset:
    """Opens an output. It reads the manifest; a shard is opened when one of its rows is read.

    If the output has versions, the latest is opened. It is not removed while the reader holds it (by a lease, which
    lasts a day and is renewed when shards are opened).

    If the output is in a store (`gs://`, `s3://`), a shard is copied to this machine, and checked by its sha256, when
    one of its rows is first read. Processes share the copies. boto3 and google-cloud-storage find credentials and
    endpoints by themselves.

    >>> ds = bp.open("out/chat")
    >>> len(ds), ds.columns
    (260, ('input_ids', 'labels'))

    If the output has splits, give `split`. There is no default, so test data cannot get into training unnoticed. "all"
    gives the rows of all splits, one split after the other.

    Args:
        path: the output.
        domains: only the rows of these domains, in the order of the output; default: all.
        cache: the folder of the copies; default: `outputs` in this user's cache folder of beam_prep.
        cache_bytes: most bytes of copies. The least recently used copies are removed first, but none that this process
            has open.
        split: only the rows of this split; "all": all rows, also if there are no splits.

    Raises:
        FormatError: there is no output; the message says what is there instead.
        BeamPrepError: the output has no such domain or split, or it has splits and `split` is not given.
        StorageError: the store does not answer, or refuses.
    """
    if isinstance(domains, str):
        raise BeamPrepError(f"domains is {domains!r}, wanted a list: domains=[{domains!r}]")
    is_stored = "://" in os.fspath(path)
    if is_stored:
        from beam_prep.storage.versions import Versions  # imported here: it imports Arrow, which is slow

        root = os.fspath(path).rstrip("/")
        versions = Versions(root)
        where = root if (latest := versions.latest()) is None else versions.path(latest)
        copies = default_folder() if cache is None else Path(os.path.abspath(cache))
        files: Path | Stored = Stored(where, copies, cache_bytes, StoreOptions.current())
    else:
        root = os.path.abspath(path)
        files = followed(Path(root))
        where = str(files)
    lease = None if where == root else ReaderLease(where)
    try:
        manifest = load(read_bytes(f"{where}/{MANIFEST}"), f"{where}/{MANIFEST}")
    except (FileNotFoundError, NotADirectoryError):
        above = [] if is_stored else [each for each in Path(where).parents[:3] if (each / MANIFEST).is_file()]
        if above:
            raise FormatError(f"{path} is a part of an output: open {above[0]}") from None
        raise no_output(where if os.path.isdir(where) else root) from None
    try:
        if split is None and manifest.get("splits"):
            counts = ", ".join(f"{name!r} ({found['rows']:,} rows)" for name, found in manifest["splits"].items())
            first = next(iter(manifest["splits"]))
            raise BeamPrepError(
                f"{where} has the splits {counts}: say which, split={first!r}, or split={ALL!r} for all rows"
            )
        return Dataset(files, manifest, lease, domains, None if split == ALL else split)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{where}/{MANIFEST} is damaged ({error!r}): make the output again") from None
