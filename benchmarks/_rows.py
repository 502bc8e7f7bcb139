"""Compares the rows of an output with rows that `datasets` saved, in order, a slice of flat arrays at a time."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import beam_prep
from beam_prep.data.ragged import Array, Ragged
from beam_prep.formats import FORMATS

_SLICE = 50_000  # rows


def compare_rows(output: Path, saved: Path, names: Mapping[str, str], domain: str | None = None) -> dict[str, Any]:
    """Compares all rows, column by column.

    Args:
        output: our output in `bin`; rows of a domain are in input order.
        saved: the folder of `Dataset.save_to_disk`: a row for every line of the input, except lines that ours dropped.
        names: our column -> the peer's column.
        domain: the peer's column of domains; None: our output has one domain.

    Returns:
        `ours`, `peer`, `equal`: numbers of rows; `left_out`: reason -> lines that ours rejected or dropped (rejected
        lines are skipped in the peer's rows); `differ`: first difference (`length`, or a column) -> rows; `first`: the
        first row that differs.
    """
    from datasets import load_from_disk

    theirs = load_from_disk(str(saved)).data
    manifest = beam_prep.open(output).manifest
    lines, reasons = _rejected(output)
    reasons.update(manifest["ledger"]["dropped"])
    kept = np.delete(np.arange(theirs.num_rows), [line - 1 for line in lines])
    found: dict[str, Any] = {"ours": manifest["totals"]["rows"], "peer": theirs.num_rows, "left_out": dict(reasons)}
    equal, differ = 0, Counter[str]()
    places = kept
    if domain is not None:  # both are sorted by domain
        domains = theirs.column(domain).to_pylist()
        kept = np.array(sorted(kept.tolist(), key=domains.__getitem__), np.int64)
        theirs, places = theirs.table.select([*names.values()]).take(pa.array(kept)), np.arange(len(kept))
        borders = Counter(domains[line] for line in kept.tolist())
    same = domain is None or borders == _rows_of_domains(manifest)
    if same and len(kept) == found["ours"]:  # otherwise rows cannot be matched
        at = 0
        for rows in _slices(output, manifest):
            size = len(next(iter(rows.values())))
            part, numbers = places[at : at + size], kept[at : at + size]
            at += size
            differs = np.full(size, "", object)
            for ours, peer in names.items():
                for what, wrong in _differences(rows[ours], _peer_rows(theirs, peer, part), peer):
                    differs[wrong & (differs == "")] = what
            wrong = np.flatnonzero(differs != "")
            equal += size - len(wrong)
            differ.update(differs[wrong].tolist())
            if len(wrong):
                found.setdefault("first", f"{differs[wrong[0]]}, line {numbers[wrong[0]] + 1}")
    return {**found, "equal": equal, "differ": dict(differ)}


def _rejected(output: Path) -> tuple[list[int], Counter[str]]:
    """(rejected lines, from 1; reason -> number of rejects) of our output."""
    rejects = [
        json.loads(line)
        for path in sorted((output / "rejects").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8", errors="surrogatepass").splitlines()
    ]
    return [reject["line"] for reject in rejects], Counter(reject["reason"] for reject in rejects)


def _rows_of_domains(manifest: Mapping[str, Any]) -> Counter[str]:
    found = Counter[str]()
    for shard in manifest["shards"]:
        found[shard["domain"]] += shard["rows"]
    return found


def _slices(output: Path, manifest: Mapping[str, Any]) -> Iterator[dict[str, Ragged]]:
    """Our rows, domain by domain, as columns over mapped files."""
    schema = beam_prep.open(output).schema
    shards = sorted(manifest["shards"], key=lambda shard: shard["domain"])
    number = Counter(shard["domain"] for shard in shards)
    for shard in shards:
        domain = shard["domain"]
        folder = output / manifest["domains"][domain]
        columns = FORMATS["bin"].read(folder, schema, shard["shard"], number[domain]).columns  # type: ignore[attr-defined]
        for start in range(0, shard["rows"], _SLICE):
            yield {name: rows[start : start + _SLICE] for name, rows in columns.items()}


def _peer_rows(table: pa.Table, name: str, places: Array) -> Ragged:
    first, size = int(places[0]), int(places[-1] - places[0]) + 1
    rows = _ragged(table.column(name).slice(first, size).combine_chunks())
    return rows if size == len(places) else rows.take(places - first)


def _ragged(lists: pa.Array) -> Ragged:
    values = lists.flatten()
    inner = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    return Ragged.from_lengths(_ragged(values) if inner else values.to_numpy(), pc.list_value_length(lists).to_numpy())


def _differences(ours: Ragged, peer: Ragged, name: str) -> Iterator[tuple[str, Array]]:
    """(difference, bool [rows]: the rows that have it)."""
    same = ours.lengths == peer.lengths
    left, right = ours.take(same), peer.take(same)
    if isinstance(left.values, Ragged) and isinstance(right.values, Ragged):  # lists, whose lengths may differ
        wrong = Ragged(left.values.lengths != right.values.lengths, left.offsets).sums() > 0
        same[same] = ~wrong
        left, right = left.take(~wrong), right.take(~wrong)
    yield "length", ~same
    wrong = np.zeros(len(same), bool)
    wrong[same] = left.sums(left.flat != right.flat) > 0
    yield name, wrong
