"""Compares an output with its manifest. `CHECKS` lists every check, its object, and its cost.

Each file is read once for its sha256, and shards once more, by the readers of their formats. `build_manifest` in
`formats.manifest` checks that the counts of a manifest add up. docs/formats.md says what cannot be found.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import (
    MANIFEST,
    REPORT,
    RUN,
    TOKENIZER,
    ShardReceipt,
    WrittenFile,
    folder_of_shard,
    is_outside,
    load,
    output_columns,
    receipts_of,
    sum_problems,
)
from beam_prep.tokens import resolver
from beam_prep.tokens.resolver import expected_files
from beam_prep.verify.files import LocalFiles, OutputFiles, file_is_listed
from beam_prep.verify.rows import (
    FoundShard,
    Limits,
    Rows,
    columns_are_aligned,
    counts_are_listed,
    documents_add_up,
    ids_in_vocabulary,
    labels_are_ids,
    lengths_in_limits,
    limits_of,
    masks_are_bits,
    parts_of,
    positions_count,
    rows_are_possible,
)


@dataclass(frozen=True, slots=True)
class Output:
    """An output that is checked.

    Attributes:
        files: its files.
        manifest: its manifest.
        shards: the shards that the manifest lists.
        facts: facts of its tokenizer (`fingerprint`, `max_id` ...); {} if there is none, or it cannot be read.
        rejected: reason -> number of rejects, once the files of rejects were read.
    """

    files: OutputFiles
    manifest: Mapping[str, Any]
    shards: Sequence[ShardReceipt]
    facts: Mapping[str, Any]
    rejected: Counter[str] = field(default_factory=Counter)


def paths_are_inside(output: Output) -> Iterator[str]:
    """No path that the manifest lists leads out of the output. If one does, no other check is made."""
    for file in _listed(output):
        if is_outside(file.path):
            yield f"{MANIFEST}: lists {file.path!r}, which is not a path in the output"


def no_other_files(output: Output) -> Iterator[str]:
    """There is no file that the manifest does not list, and no link that leads out. Hidden files are allowed."""
    if isinstance(output.files, LocalFiles):
        yield from output.files.folder_problems()
    listed = {*(file.path for file in _listed(output)), MANIFEST, RUN, REPORT}
    found = {name for name in output.files.names() if not any(part.startswith(".") for part in name.split("/"))}
    others = sorted(found - listed)
    if others and isinstance(output.files, LocalFiles):
        others = output.files.unlike(others, listed)
    for name in others:
        yield f"{name}: found, though {MANIFEST} does not list it: remove it"


def counts_add_up(output: Output) -> Iterator[str]:
    """The ledger adds up, the shards to the totals, and both to each other; shards are numbered from 0."""
    for problem in sum_problems(output.manifest, output.shards):
        yield f"{MANIFEST}: {problem}"


def tokenizer_is_the_one(output: Output) -> Iterator[str]:
    """The tokenizer in the output is the tokenizer that the manifest names."""
    said = output.manifest.get("tokenizer", {}).get("fingerprint")  # a chain written by hand has none
    found = output.facts.get("fingerprint")
    if None not in (said, found) and found != said:
        yield f"{TOKENIZER}: found fingerprint {found}, {MANIFEST} says {said}"


def rejects_are_counted(output: Output) -> Iterator[str]:
    """There are as many rejects of each reason as the ledger says."""
    wanted = output.manifest["ledger"]["rejected"]
    for reason in sorted({*output.rejected, *wanted}):
        if output.rejected[reason] != wanted.get(reason, 0):
            found = f"{output.rejected[reason]} lines of {reason!r}"
            yield f"rejects: found {found}, the ledger says {wanted.get(reason, 0)}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        of: the arguments of `find`. `paths`, `output`: an `Output`, before its files are read. `file`: a folder, and a
            file in it that the manifest lists (`WrittenFile`). `rows`: some `Rows` of a shard. `shard`: a `FoundShard`
            and the `ShardReceipt`. `rejects`: an `Output` whose rejects were counted.
        cost: what the check reads.
        find: yields the problems; its docstring says what must hold.
    """

    of: Literal["paths", "output", "file", "rows", "shard", "rejects"]
    cost: str
    find: Callable[..., Iterator[Any]]


_DECODED = "the rows of every shard, in every format"
CHECKS = (
    Check("paths", "the manifest", paths_are_inside),
    Check("output", "a list of the files", no_other_files),
    Check("output", "the manifest", counts_add_up),
    Check("output", "the tokenizer", tokenizer_is_the_one),
    Check("file", "every byte of every file", file_is_listed),
    Check("rows", _DECODED, ids_in_vocabulary),
    Check("rows", _DECODED, masks_are_bits),
    Check("rows", _DECODED, labels_are_ids),
    Check("rows", _DECODED, columns_are_aligned),
    Check("rows", _DECODED, documents_add_up),
    Check("rows", _DECODED, positions_count),
    Check("rows", _DECODED, lengths_in_limits),
    Check("shard", _DECODED, counts_are_listed),
    Check("shard", _DECODED, rows_are_possible),
    Check("rejects", "the files of rejects", rejects_are_counted),
)


def _found(of: str, *given: Any) -> Iterator[str]:
    """The problems that the checks of one kind find."""
    for check in CHECKS:
        if check.of == of:
            yield from check.find(*given)


def problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line for every difference between an output and its manifest: the file, found, wanted.

    Raises:
        FormatError: the manifest is damaged.
    """
    try:
        yield from _problems(files, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{MANIFEST} is damaged ({error!r}): make the output again") from None


def _problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    output = Output(files, manifest, receipts_of(manifest), _tokenizer_facts(files))
    if outside := list(_found("paths", output)):
        yield from outside
        return
    yield from _found("output", output)
    limits = limits_of(manifest, output.facts.get("max_id"))
    shards_of = Counter(shard.part for shard in output.shards)
    for shard in output.shards:
        yield from _shard(output, shard, shards_of[shard.part], limits)
    rejects = {file["path"] for file in manifest["rejects"]}
    for file in _written(manifest["rejects"], manifest["files"]):
        with files.local([file.path]) as folder:
            yield from _found("file", folder, file)
            if file.path in rejects and (folder / file.path).is_file():
                yield from _count_rejects(folder, file.path, output.rejected)
    yield from _found("rejects", output)


def _shard(output: Output, shard: ShardReceipt, shards: int, limits: Limits) -> Iterator[str]:
    """The problems of one of the `shards` of a domain (in a split)."""
    place, columns = folder_of_shard(output.manifest, shard.domain, shard.split), output_columns(output.manifest)
    checks = [check.find for check in CHECKS if check.of == "rows"]
    with output.files.local([file.path for file in shard.files]) as folder:
        damaged = [problem for file in shard.files for problem in _found("file", folder, file)]
        yield from damaged
        for name in output.manifest["formats"]:
            found, wrong = FoundShard(), list[str]()
            try:
                if name not in FORMATS:
                    raise ImportError("this version cannot read the format: pip install --upgrade beam-prep")
                for part in parts_of(FORMATS[name].read(folder / place, columns, shard.shard, shards), columns):
                    found.add(Rows(part, columns, limits), checks)
                wrong = list(_found("shard", found, shard))
            except ValueError as error:  # damaged offsets that the reader accepted
                wrong = [f"its rows cannot be read: {error}"]
            except (FormatError, ImportError) as error:
                # The damage of a file was already reported.
                wrong = [] if damaged else [str(error)]
            yield from (f"{place}: shard {shard.shard} ({name}): {problem}" for problem in wrong)


def _tokenizer_facts(files: OutputFiles) -> dict[str, Any]:
    """The facts of the tokenizer, computed from its files without `beam_prep.json`."""
    with files.local([f"{TOKENIZER}/{name}" for name in resolver.FILES]) as folder:
        try:
            found = expected_files(resolver.read(folder / TOKENIZER))
        except OSError:  # `file_is_listed` reports listed files that cannot be read
            found = None
    facts: dict[str, Any] = {} if found is None else json.loads(found[resolver.FACTS_FILE])
    return facts


def _count_rejects(folder: Path, name: str, rejected: Counter[str]) -> Iterator[str]:
    with (folder / name).open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                rejected[json.loads(line)["reason"]] += 1
            except (ValueError, KeyError, TypeError):
                yield f"{name}: line {number} is no reject: {line[:60]!r}"


def _listed(output: Output) -> list[WrittenFile]:
    others = _written(output.manifest["rejects"], output.manifest["files"])
    return [*(file for shard in output.shards for file in shard.files), *others]


def _written(*lists: Sequence[Mapping[str, Any]]) -> list[WrittenFile]:
    return [WrittenFile(**file) for files in lists for file in files]


def numbers(text: bytes) -> dict[str, Any]:
    """A few numbers of an output, for a scheduler.

    Args:
        text: the bytes of its manifest.

    Returns:
        `manifest_sha256`; `shards` and `rows`; `tokens` and `trained`, by column; `read`, the number of records that
        were read, and `rejected`, by reason.
    """
    manifest = load(text, MANIFEST)
    totals, ledger = manifest["totals"], manifest["ledger"]
    return {
        "manifest_sha256": hashlib.sha256(text).hexdigest(),
        "shards": len(manifest["shards"]),
        **{key: totals[key] for key in ("rows", "tokens", "trained")},
        **{key: ledger[key] for key in ("read", "rejected")},
    }
