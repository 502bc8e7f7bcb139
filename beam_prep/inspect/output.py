"""The rows of an output, or of a sample before a run: which are shown, and where. And `report.html`.

A report is made from a manifest and a `run.json`, and needs nothing else: no network, no scripts.
"""

import itertools
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import orjson
from rich.text import Text

from beam_prep.data.block import DROPPED, AnyPath, drawn
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import DEFAULT_DOMAIN
from beam_prep.data.schema import Column, metadata_value
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.hints import VISIBLE, counted, listed, some
from beam_prep.inspect.draw import Entry, Head, Number, RowText, Screen, draw, rendered
from beam_prep.inspect.row import InputLines, LeftOut, RowKind, ShownRow, beginning, percent, source_lines
from beam_prep.readers.dataset import ALL, Dataset, open_dataset
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import place_at, place_in
from beam_prep.shards import report
from beam_prep.shards.compose import NOT_SAMPLED, mix_lines
from beam_prep.shards.receipts import BORDERS, quantile
from beam_prep.tokens.tokenizer import Tokenizer

ROWS = 1_000
"""How many rows a page has, without `--count` or `--random`."""

LEFT_OUT = 20
"""How many records that were left out a page has for each reason, without `--reason`."""

_EXTREMES = 10  # how many rows `--shortest` and `--longest` show without `--count`
_DRAWN = 3
_KINDS = ("dropped", "rejected", "marked")  # marked records are kept


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows to show. By default: the first, the shortest, the longest, and a few that are drawn.

    Attributes:
        record: the number of one row (negative: from the end); with `domain` or `split`, its number there.
        count: most rows; without other options, the first rows.
        domain: only rows of this domain.
        split: only rows of this split.
        random: draws so many rows.
        seed: the seed of `random`; the same seed draws the same rows. Default: 0.
        shortest, longest: the shortest (longest) rows, the shortest (longest) first.
        grep: rows whose text matches this regular expression.
        reason: instead of rows, the records that were left out for this reason; `dropped`, `rejected`: for any reason.

    Raises:
        BeamPrepError: options exclude each other, or a value is wrong; the message says what to type.
    """

    record: int | None = None
    count: int | None = None
    domain: str | None = None
    split: str | None = None
    random: int | None = None
    seed: int | None = None
    shortest: bool = False
    longest: bool = False
    grep: str | None = None
    reason: str | None = None
    pattern: "re.Pattern[str] | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("count", "random", "seed"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise BeamPrepError(f"--{name} is {value}, wanted 0 or more")
        given = self._given()
        for names in _EXCLUSIVE:
            both = [f"--{name}" for name in names if name in given]
            if len(both) > 1:
                raise BeamPrepError(f"{' and '.join(both)} exclude each other; leave out all but one of them")
        if self.seed is not None and self.random is None:
            raise BeamPrepError(f"--seed without --random; type: --random 10 --seed {self.seed}")
        if self.grep is not None:
            try:
                object.__setattr__(self, "pattern", re.compile(self.grep))
            except re.error as error:
                raise BeamPrepError(
                    f"--grep {self.grep!r} is no regular expression ({error}); to find it as it is, type: "
                    f"--grep {shlex.quote(re.escape(self.grep))}"
                ) from None

    def _given(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    @property
    def options(self) -> str:
        """The options, as they are typed."""
        words = (
            (f"--{name}",) if value is True else (f"--{name}", str(value)) for name, value in self._given().items()
        )
        return shlex.join(itertools.chain.from_iterable(words))

    def says(self, kind: str, reason: str) -> bool:
        """True if the option `reason` chooses a record that was left out."""
        return self.reason in (kind, reason)


_EXCLUSIVE = (
    ("record", "random", "shortest", "longest", "grep"),
    ("record", "random", "shortest", "longest", "reason"),
    ("record", "count"),
    ("random", "count"),
    ("reason", "domain"),
    ("reason", "split"),
)


class RowSource(Protocol):
    """Rows, and the records that became no row.

    Attributes:
        title: the output, or the inputs.
        about: a remark on the rows; "" for none.
        unit: the unit of sizes if it is not tokens: ` in bytes`.
        problems: how many records that were left out are shown after the default rows, or the first rows.
    """

    title: str
    about: str = ""
    unit: str = ""
    problems: int = 0

    def __len__(self) -> int:
        """The number of rows."""

    def shown(self, number: int, why: str = "") -> Iterable[ShownRow]:
        """A row; several if a record was cut into chunks. `why`: why the row is shown."""

    def sizes(self, most: int | None = None) -> Iterable[tuple[Array, Array]]:
        """int64 [rows] each: numbers of rows, and their sizes, shard by shard; of at most `most` shards."""

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """For `dropped`, `rejected` and `marked`: reason -> records."""

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        """The known records of a kind."""

    def head(self) -> Text:
        """The lines above the rows."""

    def below(self) -> Sequence[Text]:
        """Remarks below the rows."""

    def numbers(self) -> Sequence[Number]:
        """The numbers in the head of a page."""


def show(
    rows: RowSource, chosen: Selection, ids: bool = False, html: AnyPath | None = None, pager: bool = False
) -> None:
    """Prints rows, or writes a page of them.

    Args:
        rows: the source of rows.
        chosen: which rows to show.
        ids: print each token's id before the token.
        html: the page to write; None: print.
        pager: in a terminal, pass the text to a pager.

    Raises:
        BeamPrepError: there is no such record or reason; or the page cannot be written.
    """
    if html is not None and chosen.count is None and (chosen.grep is not None or chosen.reason is not None):
        chosen = replace(chosen, count=ROWS)
    entries = _entries(rows, chosen, page=html is not None)
    words = ": ".join(filter(None, [f"{counted(len(rows), 'row')}{rows.about}", chosen.options]))
    numbers = list(rows.numbers())
    for kind, counts in rows.counts().items():
        numbers += [(f"{kind}: {reason}", count, "") for reason, count in counts.items()]
    head = Head(rows.title, words, numbers, rows.head(), rows.below())
    draw(head, entries, RowText(ids=ids, found=chosen.pattern), html, pager)


def _entries(rows: RowSource, chosen: Selection, page: bool) -> Iterator[Entry]:
    """The chosen rows, or records that were left out.

    Raises:
        BeamPrepError: there is no such record or reason.
    """
    count, pattern = chosen.count, chosen.pattern
    if chosen.reason is not None:
        kinds = _kinds_of(rows, chosen)
        records = (record for kind in kinds for record in rows.left_out(kind) if chosen.says(kind, record.reason))
        return itertools.islice((each for each in records if pattern is None or pattern.search(each.text)), count)
    if pattern is not None:
        every = (row for number in range(len(rows)) for row in rows.shown(number))
        return itertools.islice((row for row in every if row.contains(pattern)), count)
    shown = (row for number, why in _numbers(rows, chosen, page) for row in rows.shown(number, why))
    if chosen.record is not None or chosen.random is not None or chosen.shortest or chosen.longest:
        return shown
    if not page or count is not None:
        return itertools.chain(shown, itertools.islice(_first_of_each(rows, 1), rows.problems))
    everywhere = chosen.domain is None and chosen.split is None
    return itertools.chain(shown, itertools.islice(_first_of_each(rows, LEFT_OUT), ROWS if everywhere else 0))


def _numbers(rows: RowSource, chosen: Selection, page: bool) -> Iterable[tuple[int, str]]:
    """(number, why it is shown) of each chosen row."""
    count = chosen.count
    if chosen.record is not None:
        return [(row_number(rows, chosen), "")]
    if chosen.shortest or chosen.longest:
        name = "longest" if chosen.longest else "shortest"
        found = extremes(rows.sizes(), _EXTREMES if count is None else count, chosen.longest)
        return ((row, f"number {rank:,} of the {name}{rows.unit}") for rank, row in enumerate(found, start=1))
    if chosen.random is not None:
        return ((row, "drawn") for row in drawn(len(rows), chosen.random, seed=chosen.seed or 0).tolist())
    if count is not None:
        return ((row, "") for row in range(min(count, len(rows))))
    if page:
        return ((row, "drawn" if len(rows) > ROWS else "") for row in drawn(len(rows), ROWS).tolist())
    return _rows_to_show(rows).items()


def row_number(rows: RowSource, chosen: Selection) -> int:
    """The number of the chosen record, from 0.

    Raises:
        BeamPrepError: there is no such record.
    """
    record = chosen.record or 0
    if not -len(rows) <= record < len(rows):
        found = f"{rows.title} has {len(rows):,}, numbered from 0"
        raise BeamPrepError(f"no record {record}: {found} ({chosen.options})")
    return record % len(rows)


def _rows_to_show(rows: RowSource) -> dict[int, str]:
    """Row -> why it is shown: the first, the shortest, the longest, and a few that are drawn, always the same."""
    if not len(rows):
        return {}
    parts = list(rows.sizes(_SHARDS))
    some = f" of {_SHARDS} shards" if sum(len(numbers) for numbers, _ in parts) < len(rows) else ""
    why = {0: ["the first"]}
    for name in ("shortest", "longest"):
        (number,) = extremes(parts, 1, name == "longest")
        why.setdefault(number, []).append(f"the {name}{rows.unit}{some}")
    others = [number for number in drawn(len(rows), _DRAWN + len(why)).tolist() if number not in why]
    return {number: ", ".join(said) for number, said in why.items()} | dict.fromkeys(others[:_DRAWN], "drawn")


_SHARDS = 16  # most shards that are searched for the shortest and the longest row


def extremes(parts: Iterable[tuple[Array, Array]], count: int, longest: bool) -> list[int]:
    """The shortest or the longest rows, in order of size; equal rows in order of their numbers.

    Args:
        parts: int64 [rows] each: numbers of rows, ascending over all parts, and their sizes.
        count: how many rows. Memory holds one part and these rows.
        longest: the longest rows; False: the shortest.
    """
    numbers, sizes = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for more, found in parts:
        numbers, sizes = np.concatenate([numbers, more]), np.concatenate([sizes, found])
        order = np.lexsort((numbers, -sizes if longest else sizes))[:count]
        numbers, sizes = numbers[order], sizes[order]
    return numbers.tolist()


def _kinds_of(rows: RowSource, chosen: Selection) -> list[str]:
    """The kinds of records that have the chosen reason.

    Raises:
        BeamPrepError: no record has it; the message lists the reasons that occur.
    """
    counts = rows.counts()
    found = [kind for kind in _KINDS if any(chosen.says(kind, reason) for reason in counts[kind])]
    if found:
        return found
    there = [f"{kind}: {listed(counts[kind])}" for kind in _KINDS if counts[kind]]
    said = f"there are {'; '.join(there)}" if there else "all were kept"
    raise BeamPrepError(f"no record of {rows.title} was left out for the reason {chosen.reason!r}; {said}")


def _first_of_each(rows: RowSource, count: int) -> Iterator[LeftOut]:
    """The first `count` records that were left out for each reason. Files are read only as far as needed."""
    counts = rows.counts()
    for kind in ("rejected", "dropped"):
        left = Counter({reason: min(there, count) for reason, there in counts[kind].items()})
        for record in rows.left_out(kind) if left.total() else ():
            if left[record.reason] > 0:
                left[record.reason] -= 1
                yield record
                if not left.total():
                    break


# Of an output.


def inspect(
    output: AnyPath,
    *,
    ids: bool = False,
    html: AnyPath | None = None,
    pager: bool = False,
    source: bool = False,
    **chosen: Any,
) -> None:
    """Prints records of an output, decoded: the first, the shortest, the longest, and a few that are drawn.

    Each call shows the same records. If there are many shards, only some are searched for the shortest and the longest
    row. Printing holds one shard and one row in memory, for any size of the output.

    Args:
        output: an output directory.
        ids: print each token's id before the token.
        html: write a page for a browser to this file instead. By default it has 1,000 rows that are drawn (or all, if
            there are fewer), and the first rejects of each reason.
        pager: in a terminal, pass the text to `$PAGER`, or to `less`.
        source: print the input line of the record instead; for a packed row, the lines of all documents.
        chosen: arguments of `Selection`, to show other records.

    Raises:
        BeamPrepError: there is no such output, domain, split, record or reason; or two arguments exclude each other; or
            the line of a record is not known or cannot be read.
    """
    selection = Selection(**chosen)
    if source and (selection.record is None or html is not None):
        raise BeamPrepError("--source shows the line that one record was made of, as text; type: --record N --source")
    rows = OutputRows(open_dataset(output, split=ALL), selection)
    if source:
        Screen(pager).show(_source_texts(rows, selection))
    else:
        show(rows, selection, ids, html, pager)


class OutputRows(RowSource):
    """The rows of an output, or of one domain or split of an output."""

    def __init__(self, dataset: Dataset, chosen: Selection) -> None:
        self._dataset, self.rows, self._chosen = dataset, _view(dataset, chosen), chosen
        self.title = str(dataset.path)
        self.unit = " in bytes" if FORMATS[dataset.format].sizes_in == "bytes" else ""

    def __len__(self) -> int:
        return len(self.rows)

    def shown(self, number: int, why: str = "") -> list[ShownRow]:
        return [shown_row(self.rows, number, why)]

    def sizes(self, most: int | None = None) -> Iterator[tuple[Array, Array]]:
        return self.rows.sizes_by_shard(most)

    def counts(self) -> dict[str, Mapping[str, int]]:
        manifest = self._dataset.manifest
        marked = {name: count for name, count in manifest.get("counters", {}).items() if name == CONTAMINATED}
        return {"dropped": manifest["ledger"]["dropped"], "rejected": manifest["ledger"]["rejected"], "marked": marked}

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        """With `--reason duplicate`, both lines of a copy are read from the inputs."""
        dataset = self._dataset
        if kind == "rejected":
            return (LeftOut.of_output(record, kind) for record in dataset.rejects())
        inputs = InputLines(dataset.manifest.get("inputs", [])) if self._chosen.says(kind, DUPLICATE) else None
        records = dataset.drops() if kind == "dropped" else dataset.marked()
        return (LeftOut.of_output(record, kind, inputs) for record in records)

    def head(self) -> Text:
        """The totals of the entire output."""
        dataset, manifest = self._dataset, self._dataset.manifest
        labels = [column.shifted for column in dataset.schema if column.role == "labels"]
        lines = summary(self.title, manifest)
        lines.append(f"  records read: {manifest['ledger']['read']:,}")
        lines.append(f"  {columns_line(dataset.columns, any(labels) if labels else None)}")
        for kind in ("chunks", "packing"):
            if kind in manifest["totals"]:
                lines.append(f"  {kind}: {stated(manifest['totals'][kind])}")
        if dataset.tokenizer is None:
            lines.append("  no tokenizer is kept in the output: tokens are shown as ids")
        return Text("\n".join(lines).translate(VISIBLE) + "\n")

    def below(self) -> list[Text]:
        """What the output does not have of the records that were left out."""
        reason, manifest = self._chosen.reason, self._dataset.manifest
        if reason is None or reason == "rejected" or reason in manifest["ledger"]["rejected"]:
            return []
        text = f"an output keeps the places of the first {LEFT_OUT} of each reason, and none of {NOT_SAMPLED}"
        if reason not in (DUPLICATE, NOT_SAMPLED):
            inputs = [str(each["path"]) for each in manifest.get("inputs", [])]
            files = shlex.join(inputs) if 0 < len(inputs) <= _INPUTS_SHOWN else "FILES"
            text += f". To see others, type: beam-prep inspect {files} -c CONFIG --tokenizer_path TOKENIZER "
            text += f"--reason {shlex.quote(reason)}"
        return [Text(text.translate(VISIBLE))]

    def numbers(self) -> list[Number]:
        return numbers_of(self._dataset.manifest)


_INPUTS_SHOWN = 3
_DOMAINS_NAMED = 12


def summary(output: str, manifest: Mapping[str, Any]) -> list[str]:
    """What an output holds, and what became of its records, in a few lines of text."""
    ledger, totals = manifest["ledger"], manifest["totals"]
    lines = []
    ids_of = {column["name"]: column["of"] for column in manifest["columns"]}
    for column, trained in totals["trained"].items():
        of = totals["tokens"][ids_of[column]]
        lines.append(f"{column}: {trained:,} trained tokens ({percent(trained, of)} of {ids_of[column]})")
    lines += report.lines(manifest, report.ConfigView.of(manifest.get("config")))
    for name, found in manifest.get("splits", {}).items():
        tokens = sum(found["tokens"].values())
        lines.append(f"split {name}: {counted(found['rows'], 'row')}, {counted(tokens, 'token')}")
    names = [*manifest["domains"]]
    if names != [DEFAULT_DOMAIN]:
        lines.append(f"{counted(len(names), 'domain')}: {some(names, _DOMAINS_NAMED)}".translate(VISIBLE))
    lines += mix_lines(manifest)
    lines += [f"{kind}: {listed(ledger[kind])}" for kind in ("dropped", "rejected") if ledger[kind]]
    lines += [f"{name} lines: {ledger[name]:,}" for name in ("blank", "not_read") if ledger.get(name)]
    if manifest["counters"]:
        lines.append(", ".join(f"{name}: {count:,}" for name, count in manifest["counters"].items()))
    if manifest["rejects"]:
        lines.append(f"rejects: {output}/{manifest['rejects'][0]['path']}")
    size = f"{size_of(totals, len(manifest['shards']))} ({', '.join(manifest['formats'])})"
    return [f"{output}: {size}", *(f"  {line}" for line in lines)]


def size_of(totals: Mapping[str, Any], shards: int) -> str:
    """`3 rows, 40 tokens in 1 shard`."""
    tokens = sum(totals["tokens"].values())
    return f"{counted(totals['rows'], 'row')}, {counted(tokens, 'token')} in {counted(shards, 'shard')}"


def numbers_of(manifest: Mapping[str, Any]) -> list[Number]:
    """Records read, rows, tokens and trained tokens."""
    totals, ids_of = manifest["totals"], {column["name"]: column["of"] for column in manifest["columns"]}
    found = [("records read", manifest["ledger"]["read"], ""), ("rows", totals["rows"], "")]
    found += [(f"tokens in {name}", tokens, "") for name, tokens in totals["tokens"].items()]
    for name, trained in totals["trained"].items():
        found.append((f"trained in {name}", trained, percent(trained, totals["tokens"][ids_of[name]])))
    return found


def stated(totals: Mapping[str, float]) -> str:
    """Totals of packing or chunks, without those that are 0: `packs 3, fill rate 85.0%`."""
    found = ((name.replace("_", " "), x) for name, x in totals.items() if x)
    return ", ".join(f"{name} {x:.1%}" if isinstance(x, float) else f"{name} {x:,}" for name, x in found)


def columns_line(names: Iterable[str], shifted: bool | None) -> str:
    """A line with the names of the columns; `shifted`: labels are shifted; None: there are no labels."""
    labels = {None: "nothing is shifted", True: "labels: shifted by one", False: "labels: unshifted"}[shifted]
    return f"columns: {', '.join(names)}; {labels}"


def shown_row(dataset: Dataset, index: int, why: str = "") -> ShownRow:
    """A row of an output, or of a view of one. A negative index counts from the end.

    Raises:
        IndexError: there is no such row.
    """
    kind = RowKind(dataset.schema, dataset.tokenizer, dataset.manifest.get("config", {}))
    split, domain = dataset.split_of(index), dataset.domain_of(index)
    title = [f"record {index % len(dataset)}", why, f"split {split}" if split else "", f"domain {domain}"]
    return ShownRow(kind, dataset[index], list(filter(None, title)), domain)


def _view(dataset: Dataset, selection: Selection) -> Dataset:
    """The rows of a split, or of a domain, or of both."""
    rows = dataset if selection.split is None else dataset.split(selection.split)
    if selection.domain is None:
        return rows
    if selection.split is None and len(dataset.splits) > 1:
        return open_dataset(dataset.path, [selection.domain], split=ALL)
    return rows.domain(selection.domain)


def _source_texts(rows: OutputRows, selection: Selection) -> Iterator[Text]:
    """The input lines of a row."""
    number = row_number(rows, selection)
    for line in source_lines(rows.rows, number):
        place = f"━━ record {number} · {place_at(line.path, line.offset)}".translate(VISIBLE)
        yield Text.assemble((place, "bold"), f"\n{line.text.translate(VISIBLE)}")


_ESCAPED = {code: json.dumps(chr(code))[1:-1] for code in VISIBLE}
"""In JSON, escapes keep the value, and do not control the terminal."""


def cat(output: AnyPath, count: int | None = None, domain: str | None = None, split: str | None = None) -> None:
    """Prints rows as JSON lines: {"domain": ..., column: [...], ...}; with splits {"split": ..., "domain": ..., ...}.

    NaN and infinite values are null in JSON. A column of texts has strings instead of bytes.

    Args:
        output: an output directory.
        count: most rows to print; default: all.
        domain: only rows of this domain.
        split: only rows of this split.

    Raises:
        BeamPrepError: there is no such output, domain or split.
    """
    selection = Selection(count=count, domain=domain, split=split)
    dataset = _view(open_dataset(output, split=ALL), selection)
    texts = {column.name for column in dataset.schema if column.role == "text"}

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS  # Ragged is a dataclass
    for number, row in enumerate(dataset[:count]):
        names = {"split": dataset.split_of(number), "domain": dataset.domain_of(number)}
        known = {key: name for key, name in names.items() if name is not None}
        said = {name: row[name].tobytes().decode(errors="replace") for name in texts}
        line = orjson.dumps({**known, **row, **said}, default=list, option=option)
        sys.stdout.write(f"{line.decode().translate(_ESCAPED)}\n")


# The report of an output.


def report_page(manifest: Mapping[str, Any], run: Mapping[str, Any], tokenizer: Tokenizer | None, title: str) -> bytes:
    """The report of an output, as HTML.

    Args:
        manifest, run: the contents of `manifest.json` and `run.json`.
        tokenizer: of the output; None: tokens are shown as ids.
        title: the name of the output.
    """
    told, config = run.get("report", {}), manifest.get("config", {})
    uncut, kept = (tuple(told.get("lengths", {}).get(name, ())) for name in ("uncut", "kept"))
    text = rendered(
        "report_page.html",
        title=title,
        manifest=manifest,
        run=run,
        report=told,
        made=_day(run.get("finished")),
        how_made=report.how_made(run).capitalize(),
        totals=numbers_of(manifest),
        reasons=DROPPED,
        domains=_domains(manifest),
        lengths=_lengths(uncut, kept),
        quantiles=_quantiles(uncut),
        samples=list(_samples(told.get("samples", ()), config, tokenizer)),
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
        tokens = {name: sum(shard[name].values()) for name in ("tokens", "trained")}
        part.update(tokens, shards=1, rows=shard["rows"])
        part.update(bytes=sum(file["bytes"] for file in shard["files"]))
    place = {name: number for number, name in enumerate(manifest.get("splits", ()))}

    def order(each: tuple[tuple[str, str], Counter[str]]) -> tuple[int, int, str]:
        (split, domain), counts = each
        return place.get(split, 0), -counts["tokens"], domain

    return sorted(found.items(), key=order)


def _lengths(uncut: Sequence[int], kept: Sequence[int]) -> list[tuple[str, int, int]]:
    """(class, rows before truncation, rows as kept), from the first class with rows to the last."""
    counts = list(zip_longest(uncut, kept, fillvalue=0))
    first = next((place for place, rows in enumerate(counts) if any(rows)), len(counts))
    found = []
    for place, (before, after) in enumerate(counts[first:], start=first):
        least, most = BORDERS[place], BORDERS[place + 1] - 1
        name = f"{least:,}"
        if most > least:
            name += f" to {most:,}"
        found.append((name, before, after))
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
