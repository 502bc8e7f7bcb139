"""`beam-prep inspect` and `beam-prep cat`: rows of an output."""

import dataclasses
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from rich.text import Text

from beam_prep.data.block import drawn
from beam_prep.data.ragged import Array, Ragged
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.inspect.left_out import LeftOut, left_out_text
from beam_prep.inspect.page import LEFT_OUT, ROWS, Head, check_page, write_page
from beam_prep.inspect.picture import Screen, legend, stop_when_reader_closes
from beam_prep.inspect.rows import ShownRow, display_of, title_of
from beam_prep.inspect.selection import EXTREMES, Selection, extremes
from beam_prep.inspect.sequences import VISIBLE, percent
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.open import ALL, open_dataset
from beam_prep.readers.source import InputLines, source_lines
from beam_prep.reading.keys import DUPLICATE
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import place_at
from beam_prep.shards.mix import NOT_SAMPLED, mix_lines


def inspect(
    output: str | os.PathLike[str],
    record: int | None = None,
    count: int | None = None,
    domain: str | None = None,
    *,
    split: str | None = None,
    random: int | None = None,
    seed: int | None = None,
    shortest: bool = False,
    longest: bool = False,
    grep: str | None = None,
    reason: str | None = None,
    ids: bool = False,
    html: str | os.PathLike[str] | None = None,
    pager: bool = False,
    source: bool = False,
) -> None:
    """Prints records of an output, decoded: the first, the shortest, the longest, and a few that are drawn.

    They are the same each time. If there are many shards, only some are searched for the shortest and the longest.
    Memory is that of a shard and of a row, whatever the size of the output.

    Args:
        output: an output directory.
        record, count, domain, split, random, seed, shortest, longest, grep, reason: other records, see `Selection`.
        ids: print each token's id in front of it.
        html: write a page for a browser to this file instead. Unless records are chosen, it has 1,000 rows that are
            drawn (all, if there are no more), and of each reason the first rejects.
        pager: in a terminal, give the text to `$PAGER`, or to `less -R`.
        source: instead of the record, print the line of the input that it was made of; of a packed row, all of them.

    Raises:
        BeamPrepError: there is no such output, domain, split, record or reason; or two arguments exclude each other; or
            the line of a record is not known, or not to be had.
    """
    selection = Selection(
        record=record,
        count=count,
        domain=domain,
        split=split,
        random=random,
        seed=seed,
        shortest=shortest,
        longest=longest,
        grep=grep,
        reason=reason,
    )
    if source and (record is None or html is not None):
        raise BeamPrepError("--source shows the line that one record was made of, as text; type: --record N --source")
    if html is not None:
        check_page(html)
    dataset = open_dataset(output, split=ALL)
    if source:
        Screen(pager).show(_source_texts(_view(dataset, selection), selection))
        return
    if html is None:
        screen = Screen(pager)
        totals = _totals(dataset, screen.marks)
        if selection.reason is not None:
            texts = _left_out_texts(dataset, selection)
        else:
            texts = _row_texts(_view(dataset, selection), selection, screen, ids)
        screen.show(itertools.chain([totals], texts))
        return
    entries, chosen = _entries(dataset, selection)
    lines = _totals(dataset, True).plain.split("\n")[:-1]
    written = write_page(html, entries, lambda: Head(str(dataset.path), chosen, _numbers(dataset), lines))
    print(f"{html}: {written:,} record{'s' * (written != 1)} ({chosen}); open it in a browser")


def _view(dataset: Dataset, selection: Selection) -> Dataset:
    """The rows of a split, or of a domain, or of both."""
    rows = dataset if selection.split is None else dataset.split(selection.split)
    if selection.domain is None:
        return rows
    if selection.split is None and len(dataset.splits) > 1:
        return open_dataset(dataset.path, [selection.domain], split=ALL)
    return rows.domain(selection.domain)


def _row_texts(rows: Dataset, selection: Selection, screen: Screen, ids: bool) -> Iterable[Text]:
    """The rows that are asked for as texts."""
    texts = (shown.text(screen, ids, selection.pattern) for shown in _rows(rows, selection))
    return texts if selection.grep is None else or_nothing(texts, f"{len(rows):,} rows", selection)


def _source_texts(rows: Dataset, selection: Selection) -> Iterator[Text]:
    """The lines that a row was made of."""
    assert selection.record is not None
    number = _number(rows, selection.record, selection)
    for line in source_lines(rows, number):
        yield (
            Text()
            .append(f"━━ record {number} · {place_at(line.path, line.offset)}".translate(VISIBLE), "bold")
            .append(f"\n{line.text.translate(VISIBLE)}")
        )


def or_nothing(texts: Iterable[Text], where: str, selection: Selection) -> Iterator[Text]:
    """The texts of what was searched for; if there are none, a line that says so."""
    found = False
    for text in texts:
        found = True
        yield text
    if not found:
        yield Text(f"--grep {selection.grep!r} finds nothing in {where}".translate(VISIBLE))


def _rows(rows: Dataset, selection: Selection) -> Iterator[ShownRow]:
    """The rows that are asked for, one after the other.

    Raises:
        BeamPrepError: there is no such record, or there is no text to search.
    """
    display = display_of(rows)
    if selection.pattern is None:
        chosen = _chosen(rows, selection)
        return (ShownRow(display, rows[n], title_of(rows, n, why), rows.domain_of(n)) for n, why in chosen)
    if display.tokenizer is None and any(column.role == "ids" for column in display.schema):
        raise BeamPrepError(
            f"--grep: {rows.path} keeps no tokenizer, so there is no text to search; --count N shows ids"
        )
    shown = (ShownRow(display, row, title_of(rows, number), rows.domain_of(number)) for number, row in enumerate(rows))
    pattern = selection.pattern
    return itertools.islice((row for row in shown if row.contains(pattern)), selection.count)


def _chosen(rows: Dataset, selection: Selection) -> Iterable[tuple[int, str]]:
    """(number, why it is shown) of each row that is asked for."""
    unit = " in bytes" if FORMATS[rows.format].sizes_in == "bytes" else ""
    if selection.record is not None:
        return [(_number(rows, selection.record, selection), "")]
    if selection.random is not None:
        return ((number, "drawn") for number in drawn(len(rows), selection.random, seed=selection.seed or 0).tolist())
    if selection.shortest or selection.longest:
        count = EXTREMES if selection.count is None else selection.count
        name = "longest" if selection.longest else "shortest"
        ranks = enumerate(extremes(rows.sizes_by_shard(), count, selection.longest), start=1)
        return ((number, f"number {rank:,} of the {name}{unit}") for rank, (number, _) in ranks)
    if selection.count is not None:
        return ((number, "") for number in range(min(selection.count, len(rows))))
    known, sizes = rows.sizes(_SHARDS)
    some = f" of {_SHARDS} shards" if len(known) < len(rows) else ""
    return rows_to_show(known, sizes, len(rows), unit + some).items()


def _left_out_texts(dataset: Dataset, selection: Selection) -> Iterable[Text]:
    """The rejects and drops that are asked for as texts, and what is known of other drops."""
    counts = _counts_of_reason(dataset, selection)
    texts = map(left_out_text, _left_out(dataset, selection))
    found = texts if selection.grep is None else or_nothing(texts, f"{sum(counts.values()):,} records", selection)
    if counts["marked"]:
        about = f"marked, and kept: {counts['marked']:,} {CONTAMINATED}; an output says of the first {LEFT_OUT} where"
        found = itertools.chain(found, [Text(about)])
    if not counts["dropped"]:
        return found
    return itertools.chain(found, [Text(_about_drops(dataset, selection).translate(VISIBLE))])


def _counts_of_reason(dataset: Dataset, selection: Selection) -> dict[str, int]:
    """How many records were `dropped`, `rejected` and `marked` for the reason that is asked for.

    Raises:
        BeamPrepError: none was; the message lists the reasons that there are.
    """
    ledger = dataset.manifest["ledger"]
    kinds = {kind: dict(ledger[kind]) for kind in ("dropped", "rejected")}
    marked = dataset.manifest.get("counters", {}).get(CONTAMINATED)
    kinds["marked"] = {CONTAMINATED: marked} if marked else {}
    counts = {
        kind: sum(count for reason, count in reasons.items() if selection.says(kind, reason))
        for kind, reasons in kinds.items()
    }
    if not any(counts.values()):
        raise no_reason(str(dataset.path), selection, kinds)
    return counts


def no_reason(where: str, selection: Selection, kinds: Mapping[str, Mapping[str, int]]) -> BeamPrepError:
    """The error for a reason for which no record was left out."""
    there = [
        f"{kind}: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"
        for kind, reasons in kinds.items()
        if reasons
    ]
    found = f"there are {'; '.join(there)}" if there else "all were kept"
    return BeamPrepError(f"no record of {where} was left out for the reason {selection.reason!r}; {found}")


def _about_drops(dataset: Dataset, selection: Selection) -> str:
    dropped = dataset.manifest["ledger"]["dropped"].items()
    reasons = {reason: count for reason, count in dropped if selection.says("dropped", reason)}
    said = [f"dropped: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"]
    if reasons.keys() - {NOT_SAMPLED}:
        said.append(f"an output keeps the first {LEFT_OUT} of each reason")
    if NOT_SAMPLED in reasons:
        said.append(f"{NOT_SAMPLED} are the records that output.mix left out, whose places are not kept")
    if not reasons.keys() - {NOT_SAMPLED, DUPLICATE}:
        return "; ".join(said)
    inputs = [str(each["path"]) for each in dataset.manifest.get("inputs", [])]
    files = shlex.join(inputs) if 0 < len(inputs) <= _INPUTS_SHOWN else "FILES"
    return (
        f"{'; '.join(said)}. To see others, among the first records and at places farther on, type: beam-prep inspect "
        f"{files} -c CONFIG --tokenizer_path TOKENIZER --reason {shlex.quote(str(selection.reason))}"
    )


_INPUTS_SHOWN = 3


def _left_out(dataset: Dataset, selection: Selection) -> Iterator[LeftOut]:
    """Rejects, then drops, then marked records, of the reason that is asked for."""
    records = itertools.chain(
        map(LeftOut.of_reject, dataset.rejects()),
        _drops(dataset, selection),
        map(LeftOut.of_mark, dataset.marked()),
    )
    found = (
        record
        for record in records
        if selection.says(record.kind, record.reason)
        and (selection.pattern is None or selection.pattern.search(record.text))
    )
    return itertools.islice(found, selection.count)


def _entries(dataset: Dataset, selection: Selection) -> tuple[Iterable[ShownRow | LeftOut], str]:
    """The entries of a page, and in words which they are."""
    if selection.reason is not None:
        counts = _counts_of_reason(dataset, selection)
        limit = ROWS if selection.count is None else selection.count
        words = f"{sum(counts.values()):,} records that were left out ({selection.reason}), {limit:,} at most"
        if counts["dropped"]:
            words += f"; {_about_drops(dataset, selection)}"
        return _left_out(dataset, dataclasses.replace(selection, count=limit)), words
    rows = _view(dataset, selection)
    words = f"{len(rows):,} row{'s' * (len(rows) != 1)}{selection.where}"
    if selection.narrows:
        if selection.pattern is not None and selection.count is None:
            selection = dataclasses.replace(selection, count=ROWS)
        return _rows(rows, selection), f"{words}: {_in_words(selection)}"
    first = list(itertools.islice(_first_left_out(dataset), ROWS)) if not selection.where else []
    if len(rows) > ROWS:
        selection = dataclasses.replace(selection, random=ROWS, seed=0)
        words += f": {_in_words(selection)}"
    else:
        selection = dataclasses.replace(selection, count=ROWS)
    total = sum(sum(dataset.manifest["ledger"][kind].values()) for kind in ("rejected", "dropped"))
    if first:
        words += f", and {len(first):,} of {total:,} records that were left out: of each reason the first {LEFT_OUT}"
    return itertools.chain(_rows(rows, selection), first), words


def _in_words(selection: Selection) -> str:
    count = selection.count
    if selection.record is not None:
        return f"record {selection.record}"
    if selection.random is not None:
        return f"{selection.random:,} that are drawn (--seed {selection.seed or 0})"
    if selection.shortest or selection.longest:
        return f"the {EXTREMES if count is None else count:,} {'longest' if selection.longest else 'shortest'}"
    return f"the first {count:,}" + (f" with {selection.grep!r}" if selection.grep is not None else "")


def _first_left_out(dataset: Dataset) -> Iterator[LeftOut]:
    """The first rejects and drops of each reason. Files are read as far as it takes."""
    yield from _first_rejects(dataset)
    yield from map(LeftOut.of_drop, dataset.drops())


def _drops(dataset: Dataset, selection: Selection) -> Iterator[LeftOut]:
    """The first drops of the reason that is asked for."""
    inputs = InputLines(dataset.manifest.get("inputs", []))
    for drop in dataset.drops():
        if selection.says("dropped", drop["reason"]):
            yield LeftOut.of_drop(drop, inputs)


def _first_rejects(dataset: Dataset) -> Iterator[LeftOut]:
    left = {reason: min(count, LEFT_OUT) for reason, count in dataset.manifest["ledger"]["rejected"].items()}
    if not left:
        return
    for reject in dataset.rejects():
        if left.get(reject["reason"], 0) > 0:
            left[reject["reason"]] -= 1
            yield LeftOut.of_reject(reject)
            if not any(left.values()):
                return


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


_SHARDS = 16  # searched for the shortest and the longest row
_DRAWN = 3


def rows_to_show(numbers: Array, sizes: Array, rows: int, some: str = "") -> dict[int, str]:
    """Row -> why it is shown: the first, the shortest, the longest, and a few that are drawn, always the same ones.

    Args:
        numbers: int64, the rows whose size is known.
        sizes: int64, their sizes.
        rows: how many there are.
        some: added to the reason of the shortest and the longest.
    """
    if not rows:
        return {}
    why: dict[int, list[str]] = {0: ["the first"]}
    for name, place in (("shortest", np.argmin(sizes)), ("longest", np.argmax(sizes))):
        why.setdefault(int(numbers[place]), []).append(f"the {name}{some}")
    others = [number for number in drawn(rows, _DRAWN + len(why)).tolist() if number not in why]
    why |= {number: ["drawn"] for number in others[:_DRAWN]}
    return {number: ", ".join(reasons) for number, reasons in why.items()}


def cat(
    output: str | os.PathLike[str], count: int | None = None, domain: str | None = None, split: str | None = None
) -> None:
    """Prints rows as JSON lines: {"domain": ..., column: [...], ...}; of an output with splits {"split": ..., ...}.

    NaN and infinite values are null in JSON. A column of texts has strings in place of its bytes.

    Args:
        output: an output directory.
        count: the most rows to print; default: all.
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
        return value.tobytes().decode(errors="replace") if key in texts else value  # strings are strings already

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
        BeamPrepError: it is negative.
    """
    if count < 0:
        raise BeamPrepError(f"--count is {count}, wanted 0 or more")
    return count


def _number(rows: Dataset, record: int, selection: Selection) -> int:
    if not -len(rows) <= record < len(rows):
        numbers = f", numbered 0 to {len(rows) - 1}" if len(rows) else ""
        where = selection.where.removeprefix(" of ")
        where = f"{where} of {rows.path}" if where else str(rows.path)
        raise BeamPrepError(f"no record {record}: {where} has {len(rows):,}{numbers}")
    return record % len(rows)


def _totals(dataset: Dataset, marks: bool) -> Text:
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
    return text.append_text(legend(marks))


def columns_line(names: Iterable[str], shifted: bool | None) -> str:
    """The names of the columns, and whether labels are shifted; None: there are no labels."""
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
    bare = stats.get("packs_untrained", 0)  # outputs of earlier versions do not say
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['packs']:,} rows of {stats['capacity']:,} tokens at most",
            f"{stats['fill_rate']:.1%} full",
            *(f"{count:,} {what}" for what, count in lost.items() if count),
            *([f"{bare:,} row{'s' * (bare != 1)} without a trained token"] if bare else []),
        ]
    )
