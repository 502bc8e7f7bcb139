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

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column, metadata_value
from beam_prep.inspect.draw import rendered
from beam_prep.inspect.output import numbers_of, stated
from beam_prep.inspect.row import RowKind, ShownRow, beginning, percent
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.sources import place_in
from beam_prep.shards.compose import NOT_SAMPLED
from beam_prep.shards.receipts import BORDERS, quantile
from beam_prep.shards.report import how_made
from beam_prep.tokens.tokenizer import Tokenizer

_WORDS = {DUPLICATE: "equal to an earlier record", NOT_SAMPLED: "left out by output.mix"}
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
    text = rendered(
        "report_page.html",
        title=title,
        manifest=manifest,
        run=run,
        report=report,
        made=_day(run.get("finished")),
        how_made=how_made(run).capitalize(),
        totals=numbers_of(manifest),
        reasons=_WORDS,
        domains=_domains(manifest),
        lengths=_lengths(uncut, kept),
        quantiles=_quantiles(uncut),
        samples=list(_samples(report.get("samples", ()), config, tokenizer)),
        config=json.dumps(config, indent=1, ensure_ascii=False),
        n="{:,}".format,
        percent=percent,
        stated=stated,
        place_in=place_in,
        beginning=beginning,
    )
    return text.encode("utf-8", "replace")


def _day(seconds: float | None) -> str:
    return "?" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _domains(manifest: Mapping[str, Any]) -> list[tuple[tuple[str, str], Counter[str]]]:
    """((split, domain), counts), split by split, the largest first; the split is "" if there are none."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for shard in manifest["shards"]:
        part = found.setdefault((shard.get("split") or "", shard["domain"]), Counter())
        part.update({name: sum(shard[name].values()) for name in ("tokens", "trained")}, shards=1, rows=shard["rows"])
        part.update(bytes=sum(file["bytes"] for file in shard["files"]))
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
