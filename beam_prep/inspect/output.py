"""`beam-prep inspect OUTPUT` and `beam-prep cat`: show rows of an output."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from rich.text import Text

from beam_prep.data.ragged import Array
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.hints import VISIBLE
from beam_prep.inspect.draw import Number, Screen, stop_when_reader_closes
from beam_prep.inspect.row import LeftOut, RowKind, ShownRow, percent
from beam_prep.inspect.show import LEFT_OUT, RowSource, Selection, counted, row_number, show
from beam_prep.readers.dataset import ALL, Dataset, open_dataset
from beam_prep.readers.source import InputLines, source_lines
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import place_at
from beam_prep.shards.compose import NOT_SAMPLED, mix_lines


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
        totals, shards = manifest["totals"], len(manifest["shards"])
        labels = [column.shifted for column in dataset.schema if column.role == "labels"]
        lines = [
            ", ".join(f"{label}: {value:,}{f' ({note})' * bool(note)}" for label, value, note in self.numbers()),
            f"shards: {shards:,} ({', '.join(manifest['formats'])}), domains: {len(dataset.domains):,}",
            columns_line(dataset.columns, any(labels) if labels else None),
        ]
        for name, found in manifest.get("splits", {}).items():
            lines.append(f"split {name}: {found['rows']:,} rows, {sum(found['tokens'].values()):,} tokens")
        lines += mix_lines(manifest)
        for kind in ("chunks", "packing"):
            if kind in totals:
                lines.append(f"{kind}: {stated(totals[kind])}")
        lines += [f"{kind}: {counted(counts)}" for kind, counts in self.counts().items() if counts]
        if dataset.tokenizer is None:
            lines.append("no tokenizer is kept in the output: tokens are shown as ids")
        return Text.assemble((self.title, "bold"), *(f"\n{line}".translate(VISIBLE) for line in lines), "\n")

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
    kind = RowKind(dataset.schema, dataset.tokenizer, dataset.manifest.get("config", {}), str(dataset.path))
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
    selection = Selection(count=count, domain=domain, split=split)
    dataset = _view(open_dataset(output, split=ALL), selection)
    texts = {column.name for column in dataset.schema if column.role == "text"}

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS  # Ragged is a dataclass
    left = len(dataset) if count is None else min(count, len(dataset))
    with stop_when_reader_closes():
        for rows in _parts(dataset):
            names = {"split": rows.split_of(0), "domain": rows.domain_of(0)}
            known = {key: name for key, name in names.items() if name is not None}
            for row in rows[:left]:
                said = {name: row[name].tobytes().decode(errors="replace") for name in texts}
                line = orjson.dumps({**known, **row, **said}, default=list, option=option)
                sys.stdout.write(f"{line.decode()}\n")
                left -= 1


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """The rows of each domain, split by split."""
    for rows in [dataset.split(name) for name in dataset.splits] or [dataset]:
        yield from map(rows.domain, rows.domains)
