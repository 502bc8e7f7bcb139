"""`manifest.json`: what an output holds and what it was made from.

Only what the output is a function of: no times, hosts, paths of the output, block sizes or worker counts, so that
it is itself the same on every runner. Readers trust nothing but a manifest; it is written last.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from beam_prep.core.plan import Plan
from beam_prep.core.schema import Column
from beam_prep.errors import FormatError

MANIFEST = "manifest.json"
RUN = "run.json"
FEATURES = "features.json"
TOKENIZER = "tokenizer"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of the output: path relative to it, size, digest."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """A shard as written.

    Attributes:
        domain, shard: which one.
        rows: how many.
        tokens: of the first column of ids.
        trained: per column of masks or labels, the tokens that are trained.
        files: in every format.
    """

    domain: str
    shard: int
    rows: int
    tokens: int
    trained: dict[str, int]
    files: tuple[WrittenFile, ...]


def build_manifest(
    plan: Plan,
    shards: Sequence[ShardReceipt],
    rejects: Sequence[WrittenFile],
    others: Sequence[WrittenFile],
    formats: Sequence[str],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest as an object.

    Args:
        plan: the plan (its shards do not matter here).
        shards: every shard, in order of domain and number.
        rejects: files of rejected records.
        others: `features.json` and the tokenizer's files.
        formats: in which every shard is written.
        facts: config, tokenizer, versions, options: what else the output is a function of.
    """
    trained: dict[str, int] = {}
    for shard in shards:
        for column, count in shard.trained.items():
            trained[column] = trained.get(column, 0) + count
    return {
        "manifest_version": MANIFEST_VERSION,
        **facts,
        "formats": list(formats),
        "columns": [asdict(column) for column in plan.columns],
        "inputs": plan.inputs,
        "ledger": plan.ledger.as_dict(),
        "counters": plan.counters,
        "totals": {
            "rows": sum(shard.rows for shard in shards),
            "tokens": sum(shard.tokens for shard in shards),
            "trained": trained,
        },
        "domains": plan.domains,
        "shards": [asdict(shard) for shard in shards],
        "rejects": [asdict(file) for file in rejects],
        "files": [asdict(file) for file in others],
    }


def dump(manifest: Mapping[str, Any]) -> bytes:
    """Canonical bytes: the same object gives the same bytes."""
    return (json.dumps(manifest, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "surrogatepass")


def load(text: bytes | str, path: str) -> dict[str, Any]:
    """Reads a manifest.

    Raises:
        FormatError: it is none, or of a later version.
    """
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON ({error}): the output is damaged, make it again") from None
    if not isinstance(manifest, dict) or "manifest_version" not in manifest:
        raise FormatError(f"{path} is not a manifest of beam_prep")
    if manifest["manifest_version"] > MANIFEST_VERSION:
        raise FormatError(f"{path} was written by a later version of beam_prep: pip install --upgrade beam-prep")
    return manifest


def columns_of(manifest: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns of an output."""
    return tuple(Column(**column) for column in manifest["columns"])
