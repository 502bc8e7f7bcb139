"""Whether the rows of an output are exactly those that `datasets` saved, in order. Flat arrays, a slice at a time."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import beam_prep
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.formats import FORMATS

_SLICE = 50_000  # rows


def compare_rows(output: Path, saved: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """Every row of both, column by column.

    Args:
        output: one of ours, in `bin`, of one domain, so that its rows are in input order.
        saved: what `Dataset.save_to_disk` left: a row for every line of the input.
        names: our column -> the peer's.

    Returns:
        `ours`, `peer`, `equal`: rows; `left_out`: the lines that ours rejected, by reason, which are passed over in the
        peer's; `differ`: rows by what differs first (`length`, or a column); `first`: where and how the first one does.
    """
    from datasets import load_from_disk

    theirs = load_from_disk(str(saved)).data
    manifest = beam_prep.open(output).manifest
    lines, reasons = _rejected(output)
    reasons.update(manifest["ledger"]["dropped"])
    kept = np.delete(np.arange(theirs.num_rows), [line - 1 for line in lines])
    found: dict[str, Any] = {"ours": manifest["totals"]["rows"], "peer": theirs.num_rows, "left_out": dict(reasons)}
    equal, differ = 0, Counter[str]()
    if len(kept) == found["ours"]:  # else nobody knows which row belongs to which
        at = 0
        for rows in _slices(output, manifest):
            size = len(next(iter(rows.values())))
            places = kept[at : at + size]
            at += size
            differs = np.full(size, "", object)
            for ours, peer in names.items():
                for what, wrong in _differences(rows[ours], _peer_rows(theirs, peer, places), peer):
                    differs[wrong & (differs == "")] = what
            wrong = np.flatnonzero(differs != "")
            equal += size - len(wrong)
            differ.update(differs[wrong].tolist())
            if len(wrong):
                found.setdefault("first", f"{differs[wrong[0]]}, line {places[wrong[0]] + 1}")
    return {**found, "equal": equal, "differ": dict(differ)}


def _rejected(output: Path) -> tuple[list[int], Counter[str]]:
    """Lines (from 1) that ours rejected, and how many for which reason."""
    rejects = [
        json.loads(line)
        for path in sorted((output / "rejects").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8", errors="surrogatepass").splitlines()
    ]
    return [reject["line"] for reject in rejects], Counter(reject["reason"] for reject in rejects)


def _slices(output: Path, manifest: Mapping[str, Any]) -> Iterator[dict[str, Ragged]]:
    """Our rows in order, as columns over mapped files."""
    schema, shards = beam_prep.open(output).schema, manifest["shards"]
    for shard in shards:
        folder = output / manifest["domains"][shard["domain"]]
        columns = FORMATS["bin"].read(folder, schema, shard["shard"], len(shards)).columns  # type: ignore[attr-defined]
        for start in range(0, shard["rows"], _SLICE):
            yield {name: rows[start : start + _SLICE] for name, rows in columns.items()}


def _peer_rows(table: pa.Table, name: str, places: Array) -> Ragged:
    first, size = int(places[0]), int(places[-1] - places[0]) + 1
    lists = table.column(name).slice(first, size).combine_chunks()
    rows = Ragged.from_lengths(lists.flatten().to_numpy(), pc.list_value_length(lists).to_numpy())
    return rows if size == len(places) else rows.take(places - first)


def _differences(ours: Ragged, peer: Ragged, name: str) -> Iterator[tuple[str, Array]]:
    """(what, bool [rows]: the rows in which it differs)."""
    same = ours.lengths == peer.lengths
    yield "length", ~same
    left, right = ours.take(same), peer.take(same)
    wrong = np.zeros(len(same), bool)
    wrong[same] = left.sums(left.flat != right.flat) > 0
    yield name, wrong
