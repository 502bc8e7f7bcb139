"""The numbers of a manifest: whether they add up."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_prep.core.shards.plan import LedgerTotals
from beam_prep.formats.manifest import MANIFEST, ShardReceipt, sum_shards


def count_problems(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
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
