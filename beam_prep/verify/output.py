"""Compares an output with its manifest: every file, every count, every row.

Each file is read once for its sha256, and the shards once more, by the readers of their formats: for the counts, and to
see whether the rows are possible. docs/formats.md lists what is checked, and what cannot be.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_prep.data.schema import Column
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
)
from beam_prep.tokens import tokenizer_cache
from beam_prep.tokens.resolver import expected_files
from beam_prep.verify.counts import count_problems, cut_problems
from beam_prep.verify.files import LocalFiles, OutputFiles, file_problems
from beam_prep.verify.rows import Promises, Vocabulary, promises_of
from beam_prep.verify.shard import FoundShard, content_problems, read_shard, shard_problems


@dataclass(frozen=True, slots=True)
class FoundTokenizer:
    """What the files in `tokenizer/` are.

    Attributes:
        vocabulary: None: they are not those of the tokenizer that made the output, or there are none.
        problems: one line each.
    """

    vocabulary: Vocabulary | None
    problems: tuple[str, ...] = ()


def find_tokenizer(files: OutputFiles, manifest: Mapping[str, Any]) -> FoundTokenizer:
    """Compares the tokenizer in the output with the one that made it."""
    names = [file["path"] for file in manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
    said = manifest.get("tokenizer")  # a chain written by hand does not say
    if not names:
        if said is None:
            return FoundTokenizer(None)
        return FoundTokenizer(None, (f"{TOKENIZER}: {MANIFEST} lists no files, but says {_fingerprint(said)}",))
    with files.local(names) as folder:
        found = _read(folder)
    # What transformers would read besides, whatever its digest is.
    wanted_names = {f"{TOKENIZER}/{name}" for name in tokenizer_cache.FILES}
    problems = [f"{name}: is none of a tokenizer's files: remove it" for name in names if name not in wanted_names]
    wanted = expected_files(found)
    if wanted is None:
        said_too = "" if said is None else f", {MANIFEST} says {_fingerprint(said)}"
        return FoundTokenizer(None, (*problems, f"{TOKENIZER}: found files that are not a tokenizer's{said_too}"))
    facts = json.loads(wanted[tokenizer_cache.FACTS_FILE])
    if said is not None and facts["fingerprint"] != said["fingerprint"]:
        problem = f"{TOKENIZER}: found fingerprint {facts['fingerprint']}, {MANIFEST} says {said['fingerprint']}"
        return FoundTokenizer(None, (*problems, problem))
    problems += _differences(found, wanted)
    if said is not None:
        problems += _special_tokens(facts["special_tokens"], said["special_tokens"])
    return FoundTokenizer(
        Vocabulary(facts["max_id"], _pad_id(facts["special_tokens"], json.loads(wanted["tokenizer.json"]))),
        tuple(problems),
    )


def _read(folder: Path) -> dict[str, bytes]:
    try:
        return tokenizer_cache.read(folder / TOKENIZER)
    except OSError:
        return {}


def _fingerprint(said: Mapping[str, Any]) -> str:
    return f"fingerprint {said['fingerprint']}"


def _differences(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> Iterator[str]:
    """Files that the fingerprint does not cover, and that transformers or we read all the same."""
    for name in tokenizer_cache.FILES:
        if name != "tokenizer.json" and _content(found.get(name)) != _content(wanted.get(name)):
            yield f"{TOKENIZER}/{name}: found another content than tokenizer.json and the special tokens give"


def _content(text: bytes | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _special_tokens(found: Mapping[str, str], said: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*found, *said}):
        if found.get(name) != said.get(name):
            yield f"{TOKENIZER}: found {name} {found.get(name)!r}, {MANIFEST} says {said.get(name)!r}"


def _pad_id(special_tokens: Mapping[str, str], tokenizer: Mapping[str, Any]) -> int | None:
    """See `Tokenizer.pad_id`; of a parsed tokenizer.json."""
    found = (_id_of(special_tokens[name], tokenizer) for name in ("pad_token", "eos_token") if name in special_tokens)
    return next((token for token in found if token is not None), None)


def _id_of(token: str, tokenizer: Mapping[str, Any]) -> int | None:
    """The id of a token in a parsed tokenizer.json."""
    for added in tokenizer["added_tokens"]:
        if added["content"] == token:
            return int(added["id"])
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab.get(token)
    return next((place for place, entry in enumerate(vocab) if entry[0] == token), None)


KEYS = ("file", "offset", "line", "reason", "message", "text")


class Rejects:
    """The rejects of an output, whose files are given in order.

    Args:
        manifest: the manifest.

    Attributes:
        names: the files.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.names = {file["path"] for file in manifest["rejects"]}
        self._inputs = {entry["path"]: place for place, entry in enumerate(manifest["inputs"])}
        self._most = manifest.get("options", {}).get("max_reject_chars")
        self._last = (-1, -1, -1)

    def problems(self, folder: Path, name: str, reasons: Counter[str]) -> Iterator[str]:
        """Counts the reasons in a file. Yields a problem for each line that is not a reject, or not in its place."""
        with (folder / name).open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    found = json.loads(line)
                    reasons[found["reason"]] += 1
                except (ValueError, KeyError, TypeError):
                    yield f"{name}: line {number} is no reject: {line[:60]!r}"
                    continue
                if problem := self._problem(found):
                    yield f"{name}: line {number}: {problem}"

    def _problem(self, found: Mapping[str, Any]) -> str:
        if found.keys() != {*KEYS}:
            return f"found {', '.join(found)}, wanted {', '.join(KEYS)}"
        if found["file"] not in self._inputs:
            return f"found the file {found['file']!r}, which is none of the inputs"
        place = self._inputs[found["file"]], found["offset"], found["line"]
        if not isinstance(found["offset"], int) or not isinstance(found["line"], int) or min(place) < 0:
            return f"found offset {found['offset']!r} and line {found['line']!r}, wanted numbers"
        before, self._last = self._last, place
        # Both grow with each line of a file.
        if place <= before or (place[0] == before[0] and place[2] <= before[2]):
            return f"found offset {place[1]}, line {place[2]} of {found['file']}, which is not after the line before"
        if self._most is not None and len(found["text"] or "") > self._most:
            return f"found {len(found['text'])} characters of text, options say max_reject_chars {self._most}"
        return ""


def described(manifest: Mapping[str, Any], columns: Sequence[Column]) -> Generator[str, None, dict[str, bytes]]:
    """The files that describe the output to other libraries: yields problems, returns name -> content."""
    wanted: dict[str, bytes] = {}
    listed = {file["path"] for file in manifest["files"]}
    for name in filter(FORMATS.__contains__, manifest["formats"]):  # of others `read_shard` says that they are unknown
        try:
            found = FORMATS[name].described(columns, manifest["domains"], receipts_of(manifest))
        except FormatError as error:
            yield str(error)
            continue
        for file in found.keys() - listed:
            yield f"{MANIFEST}: does not list {file}, which describes the shards to other libraries"
        wanted |= found
    return wanted


def _compared(folder: Path, name: str, wanted: Any) -> Iterator[str]:
    try:
        found = json.loads((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        yield f"{name}: cannot be read: {error}"
        return
    if found != wanted:
        parts = [
            key
            for key in {**wanted, **(found if isinstance(found, dict) else {})}
            if _at(found, key) != wanted.get(key)
        ]
        key = parts[0] if parts else ""
        yield f"{name}: found {key!r}: {_at(found, key)!r}, {MANIFEST} gives {wanted.get(key)!r}"


def _at(found: Any, key: str) -> Any:
    return found.get(key) if isinstance(found, dict) else found


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
    describing = yield from described(manifest, columns)
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
                elif not damaged and file.path in describing:
                    yield from _compared(folder, file.path, json.loads(describing[file.path]))
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
            if not damaged and name in FORMATS:
                named = FORMATS[name].files(columns, shard.shard, shards) or {}
                for file, content in named.items():  # what libraries read before the rows
                    if content is not None:
                        yield from _compared(folder, f"{place}/{file}", json.loads(content))
    return full
