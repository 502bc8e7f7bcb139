"""Compares an output with its manifest: every file, every count. Needs no Beam and no tokenizer library.

Each file is read once for its sha256, and the shards once more, by the readers of their formats, for the counts. The
tokenizer's fingerprint is computed again. What the output does not contain cannot be checked: the inputs, and the
counters of what happened to kept rows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from beam_prep.errors import FormatError
from beam_prep.formats.manifest import MANIFEST, RUN, WrittenFile, load, output_columns, receipts_of
from beam_prep.verify.counts import count_problems
from beam_prep.verify.files import OutputFiles, file_problems, is_outside
from beam_prep.verify.rejects import reject_problems
from beam_prep.verify.shard import shard_problems
from beam_prep.verify.tokenizer import tokenizer_problems


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
    found = {name for name in files.names() if not any(part.startswith(".") for part in name.split("/"))}
    for name in sorted(found - {file.path for file in listed} - {MANIFEST, RUN}):
        yield f"{name}: found, though {MANIFEST} does not list it: remove it"
    yield from count_problems(manifest, shards)
    columns = output_columns(manifest)
    of_domain = Counter(shard.domain for shard in shards)
    for shard in shards:
        with files.local([file.path for file in shard.files]) as folder:
            damaged = [problem for file in shard.files for problem in file_problems(folder, file)]
            yield from damaged
            place = manifest["domains"][shard.domain]
            for name in manifest["formats"]:
                for problem in shard_problems(
                    folder / place, name, columns, shard, of_domain[shard.domain], bool(damaged)
                ):
                    yield f"{place}: shard {shard.shard} ({name}): {problem}"
    reasons: Counter[str] = Counter()
    rejects = {file["path"] for file in manifest["rejects"]}
    for file in others:
        with files.local([file.path]) as folder:
            damaged = list(file_problems(folder, file))
            yield from damaged
            if file.path in rejects and (folder / file.path).is_file():
                yield from reject_problems(folder, file.path, reasons)
    yield from tokenizer_problems(files, manifest)
    wanted = manifest["ledger"]["rejected"]
    for reason in sorted({*reasons, *wanted}):
        if reasons[reason] != wanted.get(reason, 0):
            yield f"rejects: found {reasons[reason]} lines of {reason!r}, the ledger says {wanted.get(reason, 0)}"
