"""`beam-prep inspect OUTPUT` and `beam-prep cat`: show rows of an output."""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from rich.text import Text

from beam_prep.data.ragged import Array, Ragged
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.inspect.left_out import LeftOut
from beam_prep.inspect.page import LEFT_OUT
from beam_prep.inspect.rows import ShownRow, display_of, title_of
from beam_prep.inspect.screen import Screen, stop_when_reader_closes
from beam_prep.inspect.selection import Selection
from beam_prep.inspect.sequences import VISIBLE, percent
from beam_prep.inspect.show import row_number, show
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.open import ALL, open_dataset
from beam_prep.readers.source import InputLines, source_lines
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import place_at
from beam_prep.shards.mix import NOT_SAMPLED, mix_lines


def inspect(
    output: str | os.PathLike[str],
    *,
    ids: bool = False,
    html: str | os.PathLike[str] | None = None,
    pager: bool = False,
    source: bool = False,
    **chosen: Any,
) -> None:
    """Prints records of an output, decoded: the first, the shortest, the longest, and a few that are drawn.

    Each call shows the same records. If there are many shards, only some are searched for the shortest and the longest
    row. Memory holds one shard and one row, for any size of the output.

    Args:
        output: an output directory.
        ids: print each token's id before the token.
        html: write a page for a browser to this file instead. By default it has 1,000 rows that are drawn (or all, if
            there are fewer), and the first rejects of each reason.
        pager: in a terminal, pass the text to `$PAGER`, or to `less -R`.
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
        rows.check()
        show(rows, selection, ids, html, pager)


class OutputRows:
    """The rows of an output, or of one domain or split of an output, see `RowSource`."""

    about = ""

    def __init__(self, dataset: Dataset, chosen: Selection) -> None:
        self._dataset, self.rows, self._chosen = dataset, _view(dataset, chosen), chosen
        self._display = display_of(self.rows)
        near = os.path.relpath(dataset.path)
        self.title = str(dataset.path) if near.startswith(os.pardir) else near
        self.unit = " in bytes" if FORMATS[dataset.format].sizes_in == "bytes" else ""

    def check(self) -> None:
        """Raises BeamPrepError if there is no text to search."""
        chosen, columns = self._chosen, self._display.schema
        searched = chosen.grep is not None and chosen.reason is None
        if searched and self._display.tokenizer is None and any(column.role == "ids" for column in columns):
            raise BeamPrepError(
                f"--grep: {self.title} keeps no tokenizer, so there is no text to search; --count N shows ids"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def shown(self, number: int, why: str = "") -> Iterator[ShownRow]:
        """See `RowSource.shown`."""
        rows = self.rows
        yield ShownRow(self._display, rows[number], title_of(rows, number, why), rows.domain_of(number))

    def first(self, count: int) -> Iterator[ShownRow]:
        """See `RowSource.first`."""
        return (row for number in range(min(count, len(self))) for row in self.shown(number))

    def sizes_by_shard(self) -> Iterator[tuple[Array, Array]]:
        """See `RowSource.sizes_by_shard`."""
        return self.rows.sizes_by_shard()

    def sizes(self) -> tuple[Array, Array, str]:
        """See `RowSource.sizes`. If there are many shards, only some are searched."""
        none = np.zeros(0, np.int64)
        known, sizes = map(np.concatenate, zip((none, none), *self.rows.sizes_by_shard(_SHARDS), strict=True))
        return known, sizes, f" of {_SHARDS} shards" if len(known) < len(self) else ""

    def counts(self) -> dict[str, dict[str, int]]:
        """See `RowSource.counts`."""
        ledger, marked = self._dataset.manifest["ledger"], self._dataset.manifest.get("counters", {}).get(CONTAMINATED)
        kinds = {kind: dict(ledger[kind]) for kind in ("rejected", "dropped")}
        return {**kinds, "marked": {CONTAMINATED: marked} if marked else {}}

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        """See `RowSource.left_out`. With `--reason duplicate`, both lines of a copy are read from the inputs."""
        if kind == "rejected":
            return map(LeftOut.of_reject, self._dataset.rejects())
        if kind == "marked":
            return map(LeftOut.of_mark, self._dataset.marked())
        inputs = None if self._chosen.reason is None else InputLines(self._dataset.manifest.get("inputs", []))
        drops = (drop for drop in self._dataset.drops() if inputs is None or self._chosen.says(kind, drop["reason"]))
        return (LeftOut.of_drop(drop, inputs) for drop in drops)

    def problems(self) -> Iterator[LeftOut]:
        """See `RowSource.problems`: none, because the manifest counts them."""
        return iter(())

    def head(self) -> Text:
        """See `RowSource.head`: the totals of the entire output."""
        return _totals(self._dataset)

    def remarks(self, chosen: Selection) -> list[str]:
        """See `RowSource.remarks`: about records that are not shown. An output keeps only the first of each reason."""
        found = []
        if chosen.reason is not None:
            counts = self.counts()
            marked = sum(count for reason, count in counts["marked"].items() if chosen.says("marked", reason))
            if marked:
                found.append(
                    f"marked, and kept: {marked:,} {CONTAMINATED}; an output has the places of the first {LEFT_OUT}"
                )
            if any(chosen.says("dropped", reason) for reason in counts["dropped"]):
                found.append(_about_drops(self._dataset, chosen))
        return found

    def report(self) -> None:
        """See `RowSource.report`: none, because an output has `report.html`."""

    def numbers(self) -> list[tuple[str, str, int, str]]:
        """See `RowSource.numbers`: the numbers of the manifest."""
        return _numbers(self._dataset)


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
        yield (
            Text()
            .append(f"━━ record {number} · {place_at(line.path, line.offset)}".translate(VISIBLE), "bold")
            .append(f"\n{line.text.translate(VISIBLE)}")
        )


def _about_drops(dataset: Dataset, selection: Selection) -> str:
    dropped = dataset.manifest["ledger"]["dropped"].items()
    reasons = {reason: count for reason, count in dropped if selection.says("dropped", reason)}
    said = [f"dropped: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"]
    if reasons.keys() - {NOT_SAMPLED}:
        said.append(f"an output keeps the first {LEFT_OUT} of each reason")
    if NOT_SAMPLED in reasons:
        said.append(f"output.mix left out the records of {NOT_SAMPLED}; their places are not kept")
    if not reasons.keys() - {NOT_SAMPLED, DUPLICATE}:
        return "; ".join(said)
    inputs = [str(each["path"]) for each in dataset.manifest.get("inputs", [])]
    files = shlex.join(inputs) if 0 < len(inputs) <= _INPUTS_SHOWN else "FILES"
    return (
        f"{'; '.join(said)}. To see others, among the first records and at places farther on, type: beam-prep inspect "
        f"{files} -c CONFIG --tokenizer_path TOKENIZER --reason {shlex.quote(str(selection.reason))}"
    )


_INPUTS_SHOWN = 3


def _numbers(dataset: Dataset) -> list[tuple[str, str, int, str]]:
    """The numbers of an output's manifest, for the head of a page."""
    totals, ledger = dataset.manifest["totals"], dataset.manifest["ledger"]
    ids_of = {column.name: column.of for column in dataset.schema}
    found = [("rows", "rows", totals["rows"], "")]
    found += [(f"tokens.{name}", f"tokens of {name}", tokens, "") for name, tokens in totals["tokens"].items()]
    for name, trained in totals["trained"].items():
        share = percent(trained, totals["tokens"][ids_of[name]])
        found.append((f"trained.{name}", f"trained by {name}", trained, share))
    found.append(("read", "records read", ledger["read"], ""))
    for kind in ("dropped", "rejected"):
        found += [(f"{kind}.{reason}", f"{kind}: {reason}", count, "") for reason, count in ledger[kind].items()]
    return found


_SHARDS = 16  # most shards that are searched for the shortest and the longest row


def cat(
    output: str | os.PathLike[str], count: int | None = None, domain: str | None = None, split: str | None = None
) -> None:
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
    dataset = open_dataset(output, None if domain is None else [domain], split=ALL if split is None else split)
    texts = {column.name for column in dataset.schema if column.role == "text"}

    def plain(key: str, value: Any) -> Any:
        if isinstance(value, Ragged):
            return [plain(key, one) for one in value]
        return value.tobytes().decode(errors="replace") if key in texts else value  # metadata strings are `str` already

    left = len(dataset) if count is None else min(checked_count(count), len(dataset))
    with stop_when_reader_closes():
        for rows in _parts(dataset):
            names = {"split": rows.split_of(0), "domain": rows.domain_of(0)}
            known = {key: name for key, name in names.items() if name is not None}
            head = json.dumps(known, separators=(",", ":"))[:-1] + ","
            for row in rows[:left]:
                lists = {key: plain(key, value) for key, value in row.items()}
                sys.stdout.write(head + orjson.dumps(lists, option=orjson.OPT_SERIALIZE_NUMPY)[1:].decode() + "\n")
                left -= 1


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """The rows of each domain, split by split."""
    for rows in [dataset.split(name) for name in dataset.splits] or [dataset]:
        yield from map(rows.domain, rows.domains)


def checked_count(count: int) -> int:
    """Checks `--count`, and returns it.

    Raises:
        BeamPrepError: the count is negative.
    """
    if count < 0:
        raise BeamPrepError(f"--count is {count}, wanted 0 or more")
    return count


def _totals(dataset: Dataset) -> Text:
    """The totals of the entire output."""
    manifest, totals = dataset.manifest, dataset.manifest["totals"]
    shards = len(manifest["shards"])
    text = Text()
    text.append(str(dataset.path), "bold")
    text.append(
        f": {totals['rows']:,} rows, {sum(totals['tokens'].values()):,} tokens, "
        f"{shards:,} shard{'s' * (shards != 1)} ({', '.join(manifest['formats'])}), {len(dataset.domains):,} "
        f"domain{'s' * (len(dataset.domains) != 1)}\n"
    )
    labels = [column.shifted for column in dataset.schema if column.role == "labels"]
    text.append(f"{columns_line(dataset.columns, any(labels) if labels else None)}\n")
    ids_of = {column.name: column.of for column in dataset.schema}
    for name, trained in totals["trained"].items():
        share = percent(trained, totals["tokens"][ids_of[name]])
        text.append(f"{name}: {trained:,} trained tokens ({share} of {ids_of[name]})\n")
    for name, found in manifest.get("splits", {}).items():
        text.append(f"split {name}: {found['rows']:,} rows, {sum(found['tokens'].values()):,} tokens\n")
    for line in mix_lines(manifest):
        text.append(f"{line}\n".translate(VISIBLE))
    if "chunks" in totals:
        text.append(f"chunks: {_chunks(totals['chunks'])}\n")
    if "packing" in totals:
        text.append(f"packing: {_packing(totals['packing'])}\n")
    if dataset.tokenizer is None:
        text.append("no tokenizer is kept in the output: tokens are shown as ids\n")
    return text


def columns_line(names: Iterable[str], shifted: bool | None) -> str:
    """A line with the names of the columns; `shifted`: labels are shifted; None: there are no labels."""
    labels = {None: "nothing is shifted", True: "labels: shifted by one", False: "labels: unshifted"}[shifted]
    return f"columns: {', '.join(names)}; {labels}"


def _chunks(stats: Mapping[str, int]) -> str:
    bare, again = stats["chunks_untrained"], stats["tokens_repeated"]
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['chunks']:,} chunks",
            f"{stats['rows_split']:,} split",
            *([f"{again:,} tokens repeated"] if again else []),
            *([f"{bare:,} without a trained token, left out"] if bare else []),
        ]
    )


def _packing(stats: Mapping[str, Any]) -> str:
    lost = {"cut": stats["rows_cut"], "split": stats["rows_split"]}
    bare = stats.get("packs_untrained", 0)  # outputs of early versions lack it
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['packs']:,} rows of {stats['capacity']:,} tokens at most",
            f"{stats['fill_rate']:.1%} full",
            *(f"{count:,} {what}" for what, count in lost.items() if count),
            *([f"{bare:,} row{'s' * (bare != 1)} without a trained token"] if bare else []),
        ]
    )
