"""Compares an output with its manifest: every file, every count. Needs no Beam and no tokenizer library.

Each file is read once for its sha256, and the shards once more, by the readers of their formats, for the counts. The
tokenizer's fingerprint is computed again. What the output does not contain cannot be checked: the inputs, and the
counters of what happened to kept rows.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from beam_prep.core.data.schema import Column
from beam_prep.core.encoding import tokenizer_cache
from beam_prep.core.encoding.resolver import fingerprint_of
from beam_prep.core.shards.plan import LedgerTotals
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import (
    MANIFEST,
    RUN,
    TOKENIZER,
    ShardReceipt,
    WrittenFile,
    count_tokens,
    load,
    output_columns,
    receipts_of,
    sum_shards,
)


class OutputFiles(Protocol):
    """The files of an output, on a disk or in a store."""

    def names(self) -> Iterable[str]:
        """Every file that is there, relative to the output; "/" separates."""
        ...

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """A folder on this machine with those of these files that exist. It is there as long as the context."""
        ...


class LocalFiles:
    """An output on this machine's disk."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def names(self) -> Iterator[str]:
        """See `OutputFiles.names`."""
        for folder, _, names in os.walk(self._folder):
            yield from (Path(folder, name).relative_to(self._folder).as_posix() for name in names)

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """See `OutputFiles.local`."""
        return nullcontext(self._folder)


def numbers(text: bytes) -> dict[str, Any]:
    """The few numbers of an output that a scheduler passes on.

    Args:
        text: the bytes of its manifest.

    Returns:
        `manifest_sha256`; `shards` and `rows`; `tokens` and `trained`, by column; `read`, the records looked at, and
        `rejected`, by reason.
    """
    manifest = load(text, MANIFEST)
    totals, ledger = manifest["totals"], manifest["ledger"]
    return {
        "manifest_sha256": hashlib.sha256(text).hexdigest(),
        "shards": len(manifest["shards"]),
        **{key: totals[key] for key in ("rows", "tokens", "trained")},
        **{key: ledger[key] for key in ("read", "rejected")},
    }


def problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Every difference between an output and its manifest, one line each: the file, what is found, what is wanted.

    Hidden files (the name or a folder begins with a dot) are ignored. Any other file that the manifest does not list is
    a problem: a trainer that takes `*.tfrecord` would read it.

    Raises:
        FormatError: the manifest is damaged.
    """
    try:
        yield from _problems(files, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{MANIFEST} is damaged ({error!r}): make the output again") from None


def _problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    shards = receipts_of(manifest)
    others = [WrittenFile(**file) for file in [*manifest["rejects"], *manifest["files"]]]
    listed = [*(file for shard in shards for file in shard.files), *others]
    outside = sorted(file.path for file in listed if _is_outside(file.path))
    if outside:
        yield from (f"{MANIFEST}: lists {name!r}, which is not a path in the output" for name in outside)
        return
    found = {name for name in files.names() if not any(part.startswith(".") for part in name.split("/"))}
    for name in sorted(found - {file.path for file in listed} - {MANIFEST, RUN}):
        yield f"{name}: found, though {MANIFEST} does not list it: remove it"
    yield from _sums(manifest, shards)
    columns = output_columns(manifest)
    of_domain = Counter(shard.domain for shard in shards)
    for shard in shards:
        with files.local([file.path for file in shard.files]) as folder:
            damaged = [problem for file in shard.files for problem in _file(folder, file)]
            yield from damaged
            place = manifest["domains"][shard.domain]
            for name in manifest["formats"]:
                for problem in _shard(folder / place, name, columns, shard, of_domain[shard.domain], bool(damaged)):
                    yield f"{place}: shard {shard.shard} ({name}): {problem}"
    reasons: Counter[str] = Counter()
    rejects = {file["path"] for file in manifest["rejects"]}
    for file in others:
        with files.local([file.path]) as folder:
            damaged = list(_file(folder, file))
            yield from damaged
            if file.path in rejects and (folder / file.path).is_file():
                yield from _rejects(folder, file.path, reasons)
    yield from _tokenizer(files, manifest)
    wanted = manifest["ledger"]["rejected"]
    for reason in sorted({*reasons, *wanted}):
        if reasons[reason] != wanted.get(reason, 0):
            yield f"rejects: found {reasons[reason]} lines of {reason!r}, the ledger says {wanted.get(reason, 0)}"


def _tokenizer(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Compares the tokenizer in the output with the one that made it."""
    names = [file["path"] for file in manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
    if not names or "tokenizer" not in manifest:  # a chain written by hand
        return
    wanted = manifest["tokenizer"]["fingerprint"]
    with files.local(names) as folder:
        try:
            found = fingerprint_of(tokenizer_cache.read(folder / TOKENIZER))
        except OSError:
            found = None
    if found is None:
        yield f"{TOKENIZER}: found files that are not a tokenizer's, {MANIFEST} says fingerprint {wanted}"
    elif found != wanted:
        yield f"{TOKENIZER}: found fingerprint {found}, {MANIFEST} says {wanted}"


def _is_outside(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts


def _file(folder: Path, file: WrittenFile) -> Iterator[str]:
    """Compares the size and the sha256 of a file."""
    path = folder / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
            yield f"{file.path}: found {size} bytes, {MANIFEST} says {file.bytes}"
            return
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        yield f"{file.path}: no such file, though {MANIFEST} lists it"
    except OSError as error:
        yield f"{file.path}: cannot be read: {error.strerror}"
    else:
        if digest != file.sha256:
            yield f"{file.path} is damaged: found sha256 {digest}, {MANIFEST} says {file.sha256}"


def _sums(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """Checks that the manifest's own numbers add up."""
    totals, counts = manifest["totals"], dict(manifest["ledger"])
    read = counts.pop("read")
    ledger = LedgerTotals(**counts)
    if ledger.read != read:
        yield f"{MANIFEST}: the ledger says read {read}, but kept + dropped + rejected are {ledger.read}"
    if (lines := ledger.blank + ledger.read + ledger.not_read) != ledger.lines:
        yield (
            f"{MANIFEST}: the ledger says lines {ledger.lines}, "
            f"but blank + kept + dropped + rejected + not_read are {lines}"
        )
    for key, wanted in sum_shards(shards).items():
        if totals.get(key) != wanted:
            yield f"{MANIFEST}: totals say {key} {totals.get(key)}, the shards add up to {wanted}"
    # Packing joins records, and counts those that it was given.
    rows, where = (totals["packing"]["rows"], "packing: rows") if "packing" in totals else (totals["rows"], "rows")
    if rows != ledger.kept:
        yield f"{MANIFEST}: totals say {where} {rows}, the ledger says kept {ledger.kept}"
    numbers: dict[str, list[int]] = {}
    for shard in shards:
        numbers.setdefault(shard.domain, []).append(shard.shard)
    for domain, found in numbers.items():
        if sorted(found) != list(range(len(found))):
            yield f"{MANIFEST}: the shards of {domain!r} are numbered {sorted(found)}, wanted 0 to {len(found) - 1}"


def _shard(
    folder: Path, name: str, columns: Sequence[Column], shard: ShardReceipt, shards: int, damaged: bool
) -> Iterator[str]:
    """Compares the rows and tokens of a shard, in one format, with the manifest.

    Args:
        folder: the folder of the domain.
        name: the format.
        columns: the columns of every row.
        shard: the shard, as the manifest has it.
        shards: the number of shards of the domain.
        damaged: a file of the shard differs, which has been reported: then it is no news that it cannot be read.
    """
    if name not in FORMATS:
        yield "this version cannot read the format: pip install --upgrade beam-prep"
        return
    found = {"tokens": dict.fromkeys(shard.tokens, 0), "trained": dict.fromkeys(shard.trained, 0)}
    untrained = 0
    try:
        reader = FORMATS[name].read(folder, columns, shard.shard, shards)
        for index in range(rows := len(reader)):
            counted = count_tokens(columns, reader.row(index))
            untrained += not all(counted["trained"].values())
            for kind, counts in counted.items():
                for column, count in counts.items():
                    found[kind][column] = found[kind].get(column, 0) + count
    except (FormatError, ImportError) as error:
        if not damaged:
            yield str(error)
        return
    if rows != shard.rows:
        yield f"found {rows} rows, {MANIFEST} says {shard.rows}"
    if shard.packing is not None and untrained != (untrained_listed := shard.packing.get("packs_untrained", untrained)):
        yield f"found {untrained} packed rows without a trained token, {MANIFEST} says {untrained_listed}"
    for kind, listed in (("tokens", shard.tokens), ("trained", shard.trained)):
        for column, count in found[kind].items():
            if count != listed.get(column):
                yield f"found {kind} {count} of {column!r}, {MANIFEST} says {listed.get(column)}"


def _rejects(folder: Path, name: str, reasons: Counter[str]) -> Iterator[str]:
    """Counts the reasons in a file of rejects. Yields a problem for each line that is not a reject."""
    with (folder / name).open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                reasons[json.loads(line)["reason"]] += 1
            except (ValueError, KeyError, TypeError):
                yield f"{name}: line {number} is no reject: {line[:60]!r}"
