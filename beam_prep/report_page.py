"""`report.html`: the outcome of a run's records, for people. The counts come from the run.

It is made from a manifest and a `run.json`, and needs nothing else: no network, no scripts.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np

from beam_prep.data.metadata import metadata_value
from beam_prep.data.ragged import Ragged
from beam_prep.data.receipts import BORDERS, quantile
from beam_prep.data.schema import Column
from beam_prep.inspect.output import totals_of
from beam_prep.inspect.page import templates
from beam_prep.inspect.row import RowKind, ShownRow, beginning, percent
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.sources import place_in
from beam_prep.shards.mix import NOT_SAMPLED
from beam_prep.shards.report import how_made
from beam_prep.tokens.tokenizer import Tokenizer

_MOST = 100  # rows of a table
_WORDS = {
    DUPLICATE: "equal to an earlier record",
    NOT_SAMPLED: "left out by output.mix",
}
"""The meaning of reasons that do not come from a rule on single records."""


def page(manifest: Mapping[str, Any], run: Mapping[str, Any], tokenizer: Tokenizer | None, title: str) -> bytes:
    """The report of an output, as HTML.

    Args:
        manifest, run: the contents of `manifest.json` and `run.json`.
        tokenizer: of the output; None: tokens are shown as ids.
        title: the name of the output.
    """
    report, config = run.get("report", {}), manifest.get("config", {})
    uncut, kept = (tuple(report.get("lengths", {}).get(name, ())) for name in ("uncut", "kept"))
    found = {
        "manifest": manifest,
        "run": run,
        "made": _day(run.get("finished")),
        "how_made": how_made(run).capitalize(),
        "numbers": list(_numbers(manifest)),
        "flow": list(_flow(manifest["ledger"])),
        "roles": sorted(manifest.get("roles", {}).items(), key=lambda entry: (-entry[1]["messages"], entry[0])),
        "domains": _domains(manifest),
        "lengths": _lengths(uncut, kept),
        "quantiles": _quantiles(uncut),
        "most": max((*uncut, *kept), default=0),
        "most_of_table": _MOST,
        "time": sorted(run.get("seconds", {}).items(), key=lambda entry: -entry[1]),
        "left_out": [each for kind in ("rejected", "dropped") for each in _left_out(kind, manifest, report)],
        "samples": list(_samples(report.get("samples", ()), config, tokenizer)),
        "config": json.dumps(config, indent=1, ensure_ascii=False),
    }
    words = {"n": "{:,}".format, "percent": percent, "place_in": place_in, "beginning": beginning}
    text = templates().get_template("report_page.html").render(found, **words, title=title)
    return text.encode("utf-8", "replace")


def _day(seconds: float | None) -> str:
    return "?" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _numbers(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for _, label, value, note in totals_of(manifest):
        yield f"{value:,}", f"{label} ({note})" if note else label
    yield f"{len(manifest['shards']):,}", f"shards ({', '.join(manifest['formats'])})"
    size = sum(file["bytes"] for shard in manifest["shards"] for file in shard["files"])
    yield f"{size / 1e6:,.1f} MB", "in shards"
    if (packing := manifest["totals"].get("packing")) is not None:
        yield f"{packing['fill_rate']:.2%}", f"of {packing['packs']:,} packed rows filled"


def _flow(ledger: Mapping[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    """(step, reason, lines, kind), in the order of the steps."""
    yield "lines of the input", "", ledger["lines"], "total"
    for kind, reason in (("not_read", "max_items was reached"), ("blank", "")):
        if ledger[kind]:
            yield kind.replace("_", " "), reason, ledger[kind], "out"
    for kind in ("rejected", "dropped"):
        counts = sorted(ledger[kind].items(), key=lambda entry: -entry[1])
        for reason, count in counts[:_MOST]:
            yield kind, f"{reason} ({_WORDS[reason]})" if reason in _WORDS else reason, count, "out"
        if more := counts[_MOST:]:
            yield kind, f"{len(more):,} more reasons", sum(count for _, count in more), "out"
    yield "kept", "", ledger["kept"], "total"


def _domains(manifest: Mapping[str, Any]) -> list[tuple[tuple[str, str], Counter[str]]]:
    """((split, domain), counts), split by split, the largest first; the split is "" if there are none."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for shard in manifest["shards"]:
        part = found.setdefault((shard.get("split") or "", shard["domain"]), Counter())
        part.update({name: sum(shard[name].values()) for name in ("tokens", "trained")}, shards=1, rows=shard["rows"])
    place = {name: number for number, name in enumerate(manifest.get("splits", ()))}
    return sorted(found.items(), key=lambda each: (place.get(each[0][0], 0), -each[1]["tokens"], each[0][1]))


def _lengths(uncut: Sequence[int], kept: Sequence[int]) -> list[tuple[str, int, int]]:
    """(class, rows before truncation, rows as kept), from the first class with rows to the last."""
    counts = list(zip_longest(uncut, kept, fillvalue=0))
    first = next((place for place, rows in enumerate(counts) if any(rows)), len(counts))
    found = []
    for place, (before, after) in enumerate(counts[first:], start=first):
        last = BORDERS[place + 1] - 1
        found.append((f"{BORDERS[place]:,}" + (f" to {last:,}" if last > BORDERS[place] else ""), before, after))
    return found


def _quantiles(uncut: Sequence[int]) -> str:
    shares = (("half", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("all", 1.0))
    return ", ".join(f"{name} of the rows: at most {quantile(uncut, share):,} tokens" for name, share in shares)


def _left_out(
    kind: str, manifest: Mapping[str, Any], report: Mapping[str, Any]
) -> Iterator[tuple[str, str, int, list[Mapping[str, Any]]]]:
    """(kind, reason, count, the first records) for each reason, the most frequent first."""
    for reason, count in sorted(manifest["ledger"][kind].items(), key=lambda entry: -entry[1]):
        if first := [entry for entry in report.get(kind, ()) if entry["reason"] == reason]:
            yield kind, reason, count, first


def _samples(
    samples: Sequence[Mapping[str, Any]], config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> Iterator[tuple[ShownRow, bool]]:
    """(row, whether it is cut) of the samples in `run.json`."""
    for sample in samples:
        kind = RowKind(tuple(Column(**column) for column in sample["columns"]), tokenizer, config)
        row = {column.name: _array(sample["row"][column.name], column) for column in kind.schema}
        yield ShownRow(kind, row, (), sample["domain"]), sample["cut"]


def _array(values: list[Any], column: Column) -> Any:
    dtype = np.dtype(column.dtype)
    if column.metadata:
        return metadata_value(column, np.asarray(values, dtype))
    return np.asarray(values, dtype) if column.depth == 1 else Ragged.from_lists(values, dtype)
