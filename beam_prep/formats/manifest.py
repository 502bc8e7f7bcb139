"""`manifest.json`: what an output holds and what it was made from.

It has no times, hosts, output paths, block sizes or worker counts, so it is the same on every runner. Readers trust
only the manifest. It is written last.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import NO_LOSS, Column
from beam_prep.errors import FormatError, RunError
from beam_prep.hints import RENAMED_KEYS, RENAMED_OPTIONS, rename_keys
from beam_prep.shards.domains import part_of

if TYPE_CHECKING:
    from beam_prep.shards.plan import Plan

MANIFEST = "manifest.json"
RUN = "run.json"
REPORT = "report.html"
SLICES = ".slices.json"
"""The keys of all shards (`storage.publish`), for the run that replaces the output. They depend on the block size.
The name is hidden: no domain has such a name, and no trainer reads it."""
UNLISTED = (RUN, REPORT, SLICES)
"""Files of an output that no manifest lists: they differ between runs of one job."""
FAILURE = "failure.json"
"""The report of a failed run, in `OUTPUT.failed`. It is written last."""
FEATURES = "features.json"
DATASET_DICT = "dataset_dict.json"
TOKENIZER = "tokenizer"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of an output: path relative to the output, size, digest."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """A shard as written.

    Attributes:
        domain, shard: the domain, and the number of the shard in it.
        rows: how many rows it has.
        tokens: column of ids -> tokens.
        trained: column of masks or labels -> trained tokens.
        packing: statistics of packing, see `PackPlan.stats`; None without packing.
        files: its files in all formats.
        chunks: statistics of chunks, see `Chunking.rows`; None without chunks.
        split: the name of its split; None without splits.
        turns: `rows`: records that came in, `turns`: rows that they became; None without such records.
    """

    domain: str
    shard: int
    rows: int
    tokens: dict[str, int]
    trained: dict[str, int]
    packing: dict[str, int] | None
    files: tuple[WrittenFile, ...]
    chunks: dict[str, int] | None = None
    split: str | None = None
    turns: dict[str, int] | None = None

    @property
    def part(self) -> str:
        """Its domain, or `split/domain`."""
        return part_of(self.split, self.domain)

    def as_dict(self) -> dict[str, Any]:
        """The entry in a manifest. Optional fields that are None are left out."""
        found = {name: getattr(self, name) for name in self.__slots__}  # `asdict` would copy every value
        found["files"] = [{name: getattr(file, name) for name in file.__slots__} for file in self.files]
        return {
            name: each for name, each in found.items() if name not in ("chunks", "split", "turns") or each is not None
        }


def build_manifest(
    plan: "Plan",
    shards: Sequence[ShardReceipt],
    rejects: Sequence[WrittenFile],
    others: Sequence[WrittenFile],
    formats: Sequence[str],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest as an object.

    Args:
        plan: the plan (its shards do not matter here).
        shards: all shards, in order of domain and number.
        rejects: the files of rejected records.
        others: files that describe shards to other libraries (`features.json`), and the tokenizer's files.
        formats: the formats of each shard.
        facts: config, tokenizer, versions, options: everything else that the output depends on.

    Raises:
        RunError: the counts do not add up.
    """
    splits = {name: sum_shards([shard for shard in shards if shard.split == name]) for name in plan.splits}
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        **facts,
        "formats": list(formats),
        "columns": [asdict(column) for column in plan.columns],
        "inputs": plan.inputs,
        "ledger": plan.ledger.as_dict(),
        "counters": plan.counters,
        **({"roles": plan.roles} if plan.roles else {}),
        "totals": sum_shards(shards),
        **({"splits": splits} if splits else {}),
        **({"mix": plan.mix, "repeated": plan.repeated} if plan.mix else {}),
        "domains": plan.domains,
        "shards": [shard.as_dict() for shard in shards],
        "rejects": [asdict(file) for file in rejects],
        "files": [asdict(file) for file in others],
    }
    if wrong := "; ".join(sum_problems(manifest)):
        raise RunError(f"the counts of this run do not add up, which is a bug of beam_prep; no output is made: {wrong}")
    return manifest


def sum_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    """One line for each count of the plan that differs from what was written. Sums of shards are made, not compared."""
    ledger, totals = manifest["ledger"], manifest["totals"]
    left_out = sum(ledger["dropped"].values()) + sum(ledger["rejected"].values())
    if ledger["lines"] != (lines := ledger["blank"] + ledger["kept"] + left_out + ledger["not_read"]):
        yield f"the ledger says lines {ledger['lines']}, but blank + kept + dropped + rejected + not_read are {lines}"
    # Turns and chunks cut records, packing joins them. Each counts the rows that it was given.
    given, where = ledger["kept"] + manifest.get("repeated", 0), "the ledger says kept (and repeated)"
    for kind in ("turns", "chunks", "packing"):
        if kind in totals:
            if totals[kind]["rows"] != given:
                yield f"totals say {kind}: rows {totals[kind]['rows']}, {where} {given}"
            left = "packs" if kind == "packing" else kind
            given = totals[kind][left] - totals[kind].get("chunks_untrained", 0)
            where = f"they say {kind}: {left} that are written"
    if totals["rows"] != given:
        yield f"totals say rows {totals['rows']}, {where} {given}"


def folder_of_shard(manifest: Mapping[str, Any], domain: str, split: str | None) -> str:
    """The folder of a domain's shards, below the folder of the split if there is one."""
    folder: str = manifest["domains"][domain]
    return folder if split is None else f"{split}/{folder}"


def count_tokens(columns: Sequence[Column], rows: Mapping[str, Ragged | Array]) -> dict[str, dict[str, int]]:
    """`tokens` and `trained` of a `ShardReceipt`, for some rows.

    Args:
        columns: the columns of `rows`.
        rows: one row or several.
    """
    counts: dict[str, dict[str, int]] = {"tokens": {}, "trained": {}}
    for column in columns:
        data = rows[column.name]
        values = data.flat if isinstance(data, Ragged) else data
        if column.role == "ids":
            counts["tokens"][column.name] = len(values)
        elif column.role in ("mask", "labels"):
            counts["trained"][column.name] = int(np.count_nonzero(values != NO_LOSS[column.role]))
    return counts


def sum_shards(shards: Sequence[ShardReceipt]) -> dict[str, Any]:
    """The manifest's `totals`."""
    totals: dict[str, Any] = {
        "rows": sum(shard.rows for shard in shards),
        "tokens": _sum(shard.tokens for shard in shards),
        "trained": _sum(shard.trained for shard in shards),
    }
    for kind in ("packing", "chunks", "turns"):
        counts = [found for shard in shards if (found := getattr(shard, kind)) is not None]
        if counts:
            totals[kind] = _sum(counts)
        if counts and kind == "packing":
            stats, capacity = totals[kind], counts[0]["capacity"]
            filled = stats["packs"] * capacity
            stats |= {"capacity": capacity, "fill_rate": round(stats["tokens"] / filled, 6) if filled else 0.0}
    return totals


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)


def dump(found: Mapping[str, Any]) -> bytes:
    """JSON as bytes. The same object gives the same bytes."""
    return (json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "surrogatepass")


def parsed(text: bytes | str | None) -> dict[str, Any]:
    """The JSON object of a text; {} if it holds none."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def load(text: bytes | str, path: str) -> dict[str, Any]:
    """Reads a manifest. Old names, from earlier versions, become new names.

    Raises:
        FormatError: the text is no manifest, or a manifest of a later version.
    """
    manifest = parsed(text)
    if "manifest_version" not in manifest:
        raise FormatError(no_manifest(path))
    if manifest["manifest_version"] > MANIFEST_VERSION:
        raise FormatError(f"{path} was written by a later version of beam_prep: pip install --upgrade beam-prep")
    rename_keys(manifest.get("config", {}), RENAMED_KEYS)
    rename_keys(manifest, {f"options.{old}": f"options.{new}" for old, new in RENAMED_OPTIONS.items()})
    return manifest


_KEYS = {"manifest_version", "inputs", "ledger", "shards", "rejects", "files"}


def is_manifest(text: bytes | str | None) -> bool:
    """True for a manifest of beam_prep. Web pages and browser extensions have files of that name, too."""
    return parsed(text).keys() >= _KEYS


def no_manifest(path: str) -> str:
    """The message of `run`, `verify` and readers for a file that is no manifest."""
    return (
        f"{path} is damaged, or is another program's file: if an output of beam_prep was here, remove its folder and "
        "make it again, else choose another folder"
    )


def is_outside(path: str) -> bool:
    """True if a path leads out of the output."""
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts


def output_columns(manifest: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns of an output."""
    return tuple(Column(**column) for column in manifest["columns"])


def receipts_of(manifest: Mapping[str, Any]) -> list[ShardReceipt]:
    """The shards of an output."""
    shards = manifest["shards"]
    return [
        ShardReceipt(**{**shard, "files": tuple(WrittenFile(**file) for file in shard["files"])}) for shard in shards
    ]


# Versions of an output

HIDDEN = ".beam_prep"
LATEST = "latest"
READERS = "readers"


def is_name(name: str) -> bool:
    """True if a version can have this name."""
    return name != LATEST and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None
