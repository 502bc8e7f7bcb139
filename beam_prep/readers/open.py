"""`bp.open`: opens an output. If there is none, the error says what is there instead."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.formats.manifest import FAILURE, MANIFEST, followed, load
from beam_prep.readers.dataset import Dataset, check_split, no_domain
from beam_prep.readers.lease import ReaderLease
from beam_prep.readers.output import OpenOutput
from beam_prep.readers.stored import CACHE_BYTES, Stored, default_folder, open_stored

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
    if "://" in os.fspath(path):
        folder = default_folder() if cache is None else Path(os.path.abspath(cache))
        stored, text, held = open_stored(os.fspath(path), folder, cache_bytes)
        return _opened(stored, text, f"{stored.url}/{MANIFEST}", held, domains, split)
    folder, lease = Path(os.path.abspath(path)), None
    if (latest := followed(folder)) != folder:
        folder, lease = latest, ReaderLease(str(latest))
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(_why_not(path, folder)) from None
    return _opened(folder, text, str(folder / MANIFEST), lease, domains, split)


def _opened(
    files: Path | Stored,
    text: bytes,
    path: str,
    lease: ReaderLease | None,
    domains: Sequence[str] | None,
    split: str | None,
) -> Dataset:
    if isinstance(domains, str):
        raise BeamPrepError(f"domains is {domains!r}, wanted a list: domains=[{domains!r}]")
    manifest = load(text, path)
    try:
        where, only = path.removesuffix(f"/{MANIFEST}"), None if split == ALL else split
        if split is None and manifest.get("splits"):
            raise BeamPrepError(_which_split(where, manifest["splits"]))
        if only is not None:
            check_split(where, manifest, only)
        if domains is not None:
            here = [shard for shard in manifest["shards"] if only in (None, shard.get("split"))]
            known = list(dict.fromkeys(shard["domain"] for shard in here))
            for name in domains:
                if name not in known:
                    raise no_domain(where, name, known)
        output = OpenOutput(files, manifest, lease, None if domains is None else tuple(domains), only)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is damaged ({error!r}): make the output again") from None
    return Dataset(output, range(output.starts[-1]))


def _which_split(path: str, splits: Mapping[str, Any]) -> str:
    rows = ", ".join(f"{name!r} ({found['rows']:,} rows)" for name, found in splits.items())
    return f"{path} has the splits {rows}: say which, split={next(iter(splits))!r}, or split={ALL!r} for all rows"


def _why_not(path: str | os.PathLike[str], folder: Path) -> str:
    """The message for a path without a manifest: what is there, and what to type."""
    failed = Path(f"{folder}.failed")
    if (folder / FAILURE).is_file():
        return f"{path} is what a failed run left, not an output: the reason is in {folder / FAILURE}"
    if (failed / FAILURE).is_file():
        return f"{path} holds no output, its run failed: the reason is in {failed / FAILURE}"
    if not folder.exists():
        return f"{path}: no such directory; give the directory that `beam-prep run` made with -o"
    if above := next((parent for parent in folder.parents[:3] if (parent / MANIFEST).is_file()), None):
        split = folder.relative_to(above).parts[0]
        has = split in load((above / MANIFEST).read_bytes(), str(above / MANIFEST)).get("splits", ())
        return f"{path} is a part of an output: open {above}{f', split={split!r}' * has}"
    if not folder.is_dir():
        return f"{path} is a file; give the directory that `beam-prep run` made with -o"
    return f"{path} has no {MANIFEST}: not an output of beam_prep, or the run did not finish; run it again"
