"""Compares an output with its manifest: every file, every count, every row.

Each file is read once for its sha256, and the shards once more, by the readers of their formats: for the counts, and to
see whether the rows are possible. docs/formats.md lists what is checked, and what cannot be.
"""

import hashlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from beam_prep.core.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.manifest import (
    MANIFEST,
    REPORT,
    RUN,
    ShardReceipt,
    WrittenFile,
    folder_of_shard,
    is_outside,
    load,
    output_columns,
    receipts_of,
)
from beam_prep.verify.counts import count_problems, cut_problems
from beam_prep.verify.described import arrow_problems, described_problems, unlisted
from beam_prep.verify.files import LocalFiles, OutputFiles, file_problems
from beam_prep.verify.promises import Promises, promises_of
from beam_prep.verify.rejects import Rejects
from beam_prep.verify.shard import FoundShard, content_problems, read_shard, shard_problems
from beam_prep.verify.tokenizer import find_tokenizer


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
    outside = sorted(file.path for file in listed if is_outside(file.path))
    if outside:
        yield from (f"{MANIFEST}: lists {name!r}, which is not a path in the output" for name in outside)
        return
    if isinstance(files, LocalFiles):
        yield from files.folder_problems()
    found = {name for name in files.names() if not any(part.startswith(".") for part in name.split("/"))}
    for name in sorted(found - {file.path for file in listed} - {MANIFEST, RUN, REPORT}):
        yield f"{name}: found, though {MANIFEST} does not list it: remove it"
    yield from count_problems(manifest, shards)
    tokenizer = find_tokenizer(files, manifest)
    columns = output_columns(manifest)
    promises = promises_of(manifest, columns, tokenizer.vocabulary)
    yield from unlisted(manifest, shards, columns)
    full: int | None = 0
    shards_of = Counter(shard.part for shard in shards)
    for shard in shards:
        longest = yield from _shard(files, manifest, columns, promises, shard, shards_of[shard.part])
        full = None if full is None or longest is None else full + longest
    if promises.counts_cut and full is not None:
        yield from cut_problems(manifest, full)
    reasons: Counter[str] = Counter()
    rejects = Rejects(manifest)
    for file in others:
        with files.local([file.path]) as folder:
            damaged = list(file_problems(folder, file))
            yield from damaged
            if (folder / file.path).is_file():
                if file.path in rejects.names:
                    yield from rejects.problems(folder, file.path, reasons)
                elif not damaged:
                    yield from described_problems(folder, file.path, manifest, columns)
    yield from tokenizer.problems
    wanted = manifest["ledger"]["rejected"]
    for reason in sorted({*reasons, *wanted}):
        if reasons[reason] != wanted.get(reason, 0):
            yield f"rejects: found {reasons[reason]} lines of {reason!r}, the ledger says {wanted.get(reason, 0)}"


def _shard(
    files: OutputFiles,
    manifest: Mapping[str, Any],
    columns: Sequence[Column],
    promises: Promises,
    shard: ShardReceipt,
    shards: int,
) -> Generator[str, None, int | None]:
    """The problems of one of the `shards` of a domain (in a split).

    Returns:
        How many rows are as long as rows may be; None: it could not be read.
    """
    place, formats = folder_of_shard(manifest, shard.domain, shard.split), manifest["formats"]
    full: int | None = None
    good: tuple[str, FoundShard] | None = None
    with files.local([file.path for file in shard.files]) as folder:
        damaged = [problem for file in shard.files for problem in file_problems(folder, file)]
        yield from damaged
        for name in formats:
            try:
                found = read_shard(folder / place, name, columns, shard.shard, shards, promises, formats)
                problems = list(shard_problems(found, shard))
                full = found.checks.full if full is None else full
                if not problems and good is not None:
                    problems = list(content_problems(found, good[1], good[0]))
                elif not problems:
                    good = name, found
            except (FormatError, ImportError) as error:
                # Of a damaged file it is no news that it cannot be read.
                problems = [] if damaged else [str(error)]
            yield from (f"{place}: shard {shard.shard} ({name}): {problem}" for problem in problems)
        if shard.shard == 0 and "arrow" in formats and not damaged:
            yield from arrow_problems(folder, place, columns, shards)
    return full
