"""`report.html`: the outcome of a run's records, for people. The counts come from the run.

It is made from a manifest and a `run.json`, and needs nothing else: no network, no scripts.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, Template

from beam_prep.data.metadata import metadata_value
from beam_prep.data.ragged import Ragged
from beam_prep.data.receipts import BORDERS, quantile
from beam_prep.data.schema import Column
from beam_prep.inspect.rows import runs_of
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, parts_of, percent
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.sources import place_in
from beam_prep.shards.compose import NOT_SAMPLED
from beam_prep.shards.report import how_made
from beam_prep.tokens.tokenizer import Tokenizer


def _samples(
    samples: Sequence[Mapping[str, Any]], config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> Iterator[dict[str, Any]]:
    """The rows that `run.json` has as samples: `domain`, `parts`, and whether they are `cut`."""
    for sample in samples:
        display = RowDisplay(tuple(Column(**column) for column in sample["columns"]), tokenizer, config)
        row = {column.name: _array(sample["row"][column.name], column) for column in display.schema}
        parts = [part for column in display.schema for part in parts_of(column, display, row)]
        yield {"domain": sample["domain"], "parts": parts, "cut": sample["cut"]}


def _array(values: list[Any], column: Column) -> Any:
    dtype = np.dtype(column.dtype)
    if column.metadata:
        return metadata_value(column, np.asarray(values, dtype))
    return np.asarray(values, dtype) if column.depth == 1 else Ragged.from_lists(values, dtype)


_MOST = 100  # rows of a table
_WORDS = {
    DUPLICATE: "equal to an earlier record",
    NOT_SAMPLED: "left out by output.mix",
}
"""The meaning of reasons that do not come from a rule on single records."""
_FIRST = (
    "ReadJSONL", "KeyRecords", "CountBadAnswers", "KeepFields", "AdaptRecords", "FilterByChars", "FilterRecords",
    "MapRecords", "Decontaminate",
    "ApplyTemplate", "FromTokens", "FromRollouts", "Tokenize", "BuildMask", "SplitPrompt", "Truncate", "Labels",
    "Shift", "Pad",
)  # fmt: skip
_LAST = ("TokenCache", "Write")


def page(manifest: Mapping[str, Any], run: Mapping[str, Any], tokenizer: Tokenizer | None, title: str) -> bytes:
    """The report of an output, as HTML.

    Args:
        manifest, run: the contents of `manifest.json` and `run.json`.
        tokenizer: of the output; None: tokens are shown as ids.
        title: the name of the output.
    """
    found = _found(manifest, run, tokenizer) | {"title": title}
    return _template().render(found).encode("utf-8", "replace")


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, finalize=_visible)
    environment.globals |= {"n": "{:,}".format, "percent": percent, "place_in": place_in, "runs_of": runs_of}
    return environment.from_string(files(__package__).joinpath("report_page.html").read_text(encoding="utf-8"))


def _visible(value: Any) -> Any:
    """A text of the data, with visible control and bidirectional characters."""
    return value.translate(VISIBLE) if type(value) is str else value


def _found(manifest: Mapping[str, Any], run: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    report = run.get("report", {})
    config = manifest.get("config", {})
    uncut, kept = (tuple(report.get("lengths", {}).get(name, ())) for name in ("uncut", "kept"))
    roles = _roles(manifest)
    domains = _domains(manifest)
    spent = run.get("seconds", {})
    seconds = {step: spent[step] for step in sorted(spent, key=_place)}
    found = {
        "made": _day(run.get("finished")),
        "how": run.get("how"),
        "version": manifest.get("versions", {}).get("beam_prep", "?"),
        "numbers": list(_numbers(manifest)),
        "warnings": run.get("warnings", []),
        "flow": list(_flow(manifest["ledger"])),
        "lines": manifest["ledger"]["lines"],
        "after": list(_after(manifest)),
        "counters": sorted(manifest["counters"].items()),
        "roles": roles[:_MOST],
        "more_roles": max(0, len(roles) - _MOST),
        "untold": any(not tokens for _, _, tokens, _ in roles),
        "all_tokens": sum(manifest["totals"]["tokens"].values()),
        "splits": list(_splits(manifest)),
        "mix": list(_mix(manifest)),
        "domains": domains[:_MOST],
        "more_domains": max(0, len(domains) - _MOST),
        "lengths": _lengths(uncut, kept),
        "quantiles": _quantiles(uncut),
        "most": max((*uncut, *kept), default=0),
        "seconds": list(seconds.items()),
        "slowest": max(seconds.values(), default=0),
        "time": list(_time(run)),
        "rejected": list(_left_out("rejected", manifest, report)),
        "dropped": list(_left_out("dropped", manifest, report)),
        "rejects_file": next((file["path"] for file in manifest["rejects"]), None),
        "tokenizer": tokenizer,
        "samples": list(_samples(report.get("samples", ()), config, tokenizer)),
        "config": json.dumps(config, indent=1, ensure_ascii=False),
    }
    parts = {"records": "Records", "trained": "Trained", "domains": "Domains", "lengths": "Lengths", "time": "Time"}
    parts |= {"left_out": "Left out", "samples": "Rows", "config": "Config"}
    there = {"lengths": found["lengths"], "time": seconds, "samples": found["samples"]}
    there["left_out"] = found["rejected"] or found["dropped"]
    found["parts"] = [(name, words) for name, words in parts.items() if there.get(name, True)]
    return found


def _day(seconds: float | None) -> str:
    return "?" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _numbers(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    totals = manifest["totals"]
    yield f"{totals['rows']:,}", "rows"
    for name, count in totals["tokens"].items():
        yield f"{count:,}", f"tokens in {name}"
    of = {column["name"]: column["of"] for column in manifest["columns"]}
    for name, count in totals["trained"].items():
        yield f"{count:,}", f"trained in {name} ({percent(count, totals['tokens'][of[name]])})"
    yield f"{len(manifest['shards']):,}", f"shards ({', '.join(manifest['formats'])})"
    size = sum(file["bytes"] for shard in manifest["shards"] for file in shard["files"])
    yield f"{size / 1e6:,.1f} MB", "in shards"
    if (packing := totals.get("packing")) is not None:
        yield f"{packing['fill_rate']:.2%}", f"of {packing['packs']:,} packed rows filled"


def _flow(ledger: Mapping[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    """(step, reason, lines, kind), in the order of the steps."""
    yield "lines of the input", "", ledger["lines"], "total"
    if ledger["not_read"]:
        yield "not read", "max_items was reached", ledger["not_read"], "out"
    if ledger["blank"]:
        yield "blank", "", ledger["blank"], "out"
    for kind in ("rejected", "dropped"):
        counts = sorted(ledger[kind].items(), key=lambda entry: -entry[1])
        for reason, count in counts[:_MOST]:
            yield kind, f"{reason} ({_WORDS[reason]})" if reason in _WORDS else reason, count, "out"
        if more := counts[_MOST:]:
            yield kind, f"{len(more):,} more reasons", sum(count for _, count in more), "out"
    yield "kept", "", ledger["kept"], "total"


def _after(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The outcome of kept records."""
    totals, kept = manifest["totals"], manifest["ledger"]["kept"]
    if (repeated := manifest.get("repeated", 0)) > 0:
        yield f"Repeated for the mix: {repeated:,} rows more than records."
    if (chunks := totals.get("chunks")) is not None:
        yield "Cut into chunks: " + ", ".join(f"{name} {count:,}" for name, count in chunks.items()) + "."
    if (packing := totals.get("packing")) is not None:
        yield "Packed: " + ", ".join(f"{name} {count:,}" for name, count in packing.items()) + "."
    yield f"{kept:,} records became {totals['rows']:,} rows."


def _roles(manifest: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """(role, messages, tokens, trained), the most frequent first."""
    roles = manifest.get("roles", {}).items()
    found = [(role, each["messages"], each["tokens"], each["trained"]) for role, each in roles]
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))


class _Domain(NamedTuple):
    """A domain, or its part in a split. `trained` is None without masks and labels."""

    split: str | None
    name: str
    shards: int
    rows: int
    tokens: int
    trained: int | None


def _domains(manifest: Mapping[str, Any]) -> list[_Domain]:
    """The domains, split by split, the largest first."""
    counts: dict[tuple[str | None, str], Counter[str]] = {}
    for shard in manifest["shards"]:
        more = {"shards": 1, "rows": shard["rows"], "tokens": sum(shard["tokens"].values())}
        part = counts.setdefault((shard.get("split"), shard["domain"]), Counter())
        part.update(more | {"trained": sum(shard["trained"].values())})
    known = bool(manifest["totals"]["trained"])
    found = [
        _Domain(*part, each["shards"], each["rows"], each["tokens"], each["trained"] if known else None)
        for part, each in counts.items()
    ]
    place = {name: number for number, name in enumerate(manifest.get("splits", ()))}
    return sorted(found, key=lambda each: (place.get(each.split or "", 0), -each.tokens, each.name))


def _splits(manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int | None]]:
    """(split, rows, tokens, trained), in the order of the config."""
    for name, found in manifest.get("splits", {}).items():
        trained = sum(found["trained"].values()) if manifest["totals"]["trained"] else None
        yield name, found["rows"], sum(found["tokens"].values()), trained


def _mix(manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """(domain, tokens wanted, tokens written, records, rows)."""
    for domain, found in manifest.get("mix", {}).items():
        yield domain, found["wanted_tokens"], found["tokens"], found["records"], found["rows"]


def _lengths(uncut: Sequence[int], kept: Sequence[int]) -> list[tuple[str, int, int]]:
    """(class, rows before truncation, rows as kept), from the first class with rows to the last."""
    counts = list(zip_longest(uncut, kept, fillvalue=0))
    first = next((place for place, rows in enumerate(counts) if any(rows)), len(counts))
    found = []
    for place, (before, after) in enumerate(counts[first:], start=first):
        last = BORDERS[place + 1] - 1
        found.append((f"{BORDERS[place]:,}" + (f" to {last:,}" if last > BORDERS[place] else ""), before, after))
    return found


def _place(step: str) -> int:
    """The index of a step in a chain."""
    steps = (*_FIRST, "", *_LAST)
    return steps.index(step if step in steps else "")


def _quantiles(uncut: Sequence[int]) -> str:
    shares = (("half", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("all", 1.0))
    return ", ".join(f"{name} of the rows: at most {quantile(uncut, share):,} tokens" for name, share in shares)


def _time(run: Mapping[str, Any]) -> Iterator[str]:
    if "started" in run and "finished" in run:
        yield f"From start to end: {run['finished'] - run['started']:,.1f} s; {run.get('blocks', 0):,} blocks."
    if run.get("blocks_reused"):
        yield "Blocks that were in the token cache took no time again."
    yield how_made(run).capitalize() + "."
    for encoder in run.get("encoders", {}):
        yield f"Encoder: {encoder}."


def _left_out(
    kind: str, manifest: Mapping[str, Any], report: Mapping[str, Any]
) -> Iterable[tuple[str, str, int, list[Mapping[str, Any]]]]:
    """(kind, reason, count, the first records) for each reason, the most frequent first."""
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in report.get(kind, ()):
        entries.setdefault(entry["reason"], []).append(entry)
    counts = manifest["ledger"][kind]
    found = [(kind, reason, counts.get(reason, len(first)), first) for reason, first in entries.items()]
    return sorted(found, key=lambda entry: -entry[2])
