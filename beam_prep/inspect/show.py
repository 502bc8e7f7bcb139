"""`beam-prep inspect` for any source of rows: an output, or a sample before a run."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from rich.text import Text

from beam_prep.data.block import drawn
from beam_prep.data.ragged import Array
from beam_prep.errors import BeamPrepError
from beam_prep.inspect.left_out import LeftOut, left_out_text
from beam_prep.inspect.page import LEFT_OUT, ROWS, Head, check_page, write_page
from beam_prep.inspect.rows import ShownRow
from beam_prep.inspect.screen import Screen, legend
from beam_prep.inspect.selection import EXTREMES, Selection, extremes
from beam_prep.inspect.sequences import VISIBLE

KINDS = ("rejected", "dropped", "marked")
"""The kinds of records that are shown for a reason. Marked records are kept."""

_DRAWN = 3

Entry = ShownRow | LeftOut


class RowSource(Protocol):
    """Rows, and the records that became no row.

    Attributes:
        title: the output, or the inputs.
        about: a remark on the rows for the head of a page; "" for none.
        unit: the unit of sizes if it is not tokens: ` in bytes`.
    """

    title: str
    about: str
    unit: str

    def __len__(self) -> int: ...

    def shown(self, number: int, why: str = "") -> Iterable[ShownRow]:
        """A row; several if a record was cut into chunks. `why`: why the row is shown."""
        ...

    def first(self, count: int) -> Iterator[Entry]:
        """The first rows."""
        ...

    def sizes_by_shard(self) -> Iterable[tuple[Array, Array]]:
        """int64 [rows] each: numbers of rows, and their sizes, shard by shard."""
        ...

    def sizes(self) -> tuple[Array, Array, str]:
        """(numbers, sizes, remark) of some rows, to find the shortest and longest; remark: which rows, if not all."""
        ...

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """For each of `KINDS`: reason -> records."""
        ...

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        """The known records of a kind."""
        ...

    def problems(self) -> Iterator[LeftOut]:
        """Records that are shown after the default rows."""
        ...

    def head(self) -> Text:
        """The lines above the rows."""
        ...

    def remarks(self, chosen: Selection) -> Sequence[str]:
        """Remarks after the rows were shown."""
        ...

    def report(self) -> Text | None:
        """The text at the end, or None."""
        ...

    def numbers(self) -> Sequence[tuple[str, str, int, str]]:
        """The numbers in the head of a page, see `Head.numbers`."""
        ...


def show(
    rows: RowSource,
    chosen: Selection,
    ids: bool = False,
    html: str | os.PathLike[str] | None = None,
    pager: bool = False,
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
    if html is not None:
        check_page(html)
        entries, words = _page_entries(rows, chosen)
        words = f"{rows.about}{words}"
        written = write_page(html, entries, lambda: Head(rows.title, words, rows.numbers(), _lines(rows, chosen)))
        print(f"{html}: {written:,} record{'s' * (written != 1)} ({words}); open it in a browser")
        return
    screen = Screen(pager)
    texts: Iterator[Text] = (text_of(entry, screen, ids, chosen) for entry in entries_of(rows, chosen))
    if chosen.grep is not None:
        texts = _or_nothing(texts, rows, chosen)
    head = Text().append_text(rows.head()).append_text(legend(screen.marks))
    screen.show(itertools.chain([head], texts, _below(rows, chosen)))


def text_of(entry: Entry, screen: Screen, ids: bool = False, chosen: Selection | None = None) -> Text:
    """A row, or a record that was left out, for a terminal."""
    if isinstance(entry, LeftOut):
        return left_out_text(entry)
    return entry.text(screen, ids, None if chosen is None else chosen.pattern)


def _below(rows: RowSource, chosen: Selection) -> Iterator[Text]:
    yield from (Text(remark.translate(VISIBLE)) for remark in rows.remarks(chosen))
    if (report := rows.report()) is not None:
        yield report


def _lines(rows: RowSource, chosen: Selection) -> list[str]:
    """The lines of a page's head."""
    report = rows.report()
    lines = [*rows.head().plain.splitlines(), *rows.remarks(chosen)]
    return lines if report is None else [*lines, *report.plain.splitlines()]


def _or_nothing(texts: Iterable[Text], rows: RowSource, chosen: Selection) -> Iterator[Text]:
    """The texts that `--grep` found; a line that says so if there are none."""
    found = False
    for text in texts:
        found = True
        yield text
    if not found:
        where = f"{len(rows):,} rows" if chosen.reason is None else f"{sum(_asked(rows, chosen).values()):,} records"
        yield Text(f"--grep {chosen.grep!r} finds nothing in {where}".translate(VISIBLE))


def entries_of(rows: RowSource, chosen: Selection) -> Iterator[Entry]:
    """The chosen rows, or the chosen records that were left out.

    Raises:
        BeamPrepError: there is no such record or reason.
    """
    pattern = chosen.pattern
    if chosen.reason is not None:
        kinds = _asked(rows, chosen)
        records = (record for kind in kinds for record in rows.left_out(kind) if chosen.says(kind, record.reason))
        found = (record for record in records if pattern is None or pattern.search(record.text))
        return itertools.islice(found, chosen.count)
    if pattern is not None:
        every = (row for number in range(len(rows)) for row in rows.shown(number))
        return itertools.islice((row for row in every if row.contains(pattern)), chosen.count)
    if chosen.narrows and chosen.count is not None and not chosen.searches:
        return rows.first(chosen.count)
    numbers = _numbers(rows, chosen)
    shown = (row for number, why in numbers for row in rows.shown(number, why))
    return shown if chosen.narrows else itertools.chain(shown, rows.problems())


def _numbers(rows: RowSource, chosen: Selection) -> Iterable[tuple[int, str]]:
    """(number, why it is shown) of each chosen row."""
    if chosen.record is not None:
        return [(row_number(rows, chosen), "")]
    if chosen.random is not None:
        return ((number, "drawn") for number in drawn(len(rows), chosen.random, seed=chosen.seed or 0).tolist())
    if chosen.shortest or chosen.longest:
        name = "longest" if chosen.longest else "shortest"
        count = EXTREMES if chosen.count is None else chosen.count
        ranks = enumerate(extremes(rows.sizes_by_shard(), count, chosen.longest), start=1)
        return ((number, f"number {rank:,} of the {name}{rows.unit}") for rank, (number, _) in ranks)
    numbers, sizes, some = rows.sizes()
    return _rows_to_show(numbers, sizes, len(rows), rows.unit + some).items()


def row_number(rows: RowSource, chosen: Selection) -> int:
    """The number of the chosen record, from 0.

    Raises:
        BeamPrepError: there is no such record.
    """
    record = chosen.record or 0
    if not -len(rows) <= record < len(rows):
        numbers = f", numbered 0 to {len(rows) - 1}" if len(rows) else ""
        where = chosen.where.removeprefix(" of ")
        where = f"{where} of {rows.title}" if where else rows.title
        raise BeamPrepError(f"no record {record}: {where} has {len(rows):,}{numbers}")
    return record % len(rows)


def _rows_to_show(numbers: Array, sizes: Array, rows: int, some: str) -> dict[int, str]:
    """Row -> why it is shown: the first, the shortest, the longest, and a few that are drawn, always the same.

    Args:
        numbers: int64, the rows whose size is known.
        sizes: int64, their sizes.
        rows: the number of all rows.
        some: a remark on the shortest and the longest row.
    """
    if not rows:
        return {}
    why: dict[int, list[str]] = {0: ["the first"]}
    for name, place in (("shortest", np.argmin(sizes)), ("longest", np.argmax(sizes))):
        why.setdefault(int(numbers[place]), []).append(f"the {name}{some}")
    others = [number for number in drawn(rows, _DRAWN + len(why)).tolist() if number not in why]
    why |= {number: ["drawn"] for number in others[:_DRAWN]}
    return {number: ", ".join(reasons) for number, reasons in why.items()}


def _asked(rows: RowSource, chosen: Selection) -> dict[str, int]:
    """Kind -> number of records with the chosen reason, without kinds that have none.

    Raises:
        BeamPrepError: no record has this reason; the message lists the reasons that occur.
    """
    counts = rows.counts()
    found = {kind: sum(count for reason, count in counts[kind].items() if chosen.says(kind, reason)) for kind in KINDS}
    if any(found.values()):
        return {kind: count for kind, count in found.items() if count}
    there = [
        f"{kind}: {', '.join(f'{count:,} {reason}' for reason, count in counts[kind].items())}"
        for kind in ("dropped", "rejected", "marked")
        if counts[kind]
    ]
    said = f"there are {'; '.join(there)}" if there else "all were kept"
    raise BeamPrepError(f"no record of {rows.title} was left out for the reason {chosen.reason!r}; {said}")


def first_of_each(rows: RowSource, count: int) -> Iterator[LeftOut]:
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


def _page_entries(rows: RowSource, chosen: Selection) -> tuple[Iterable[Entry], str]:
    """(entries of a page, words that say which they are)."""
    if (chosen.grep is not None or chosen.reason is not None) and chosen.count is None:
        chosen = dataclasses.replace(chosen, count=ROWS)
    if chosen.reason is not None:
        there = sum(_asked(rows, chosen).values())
        return entries_of(
            rows, chosen
        ), f"{there:,} records that were left out ({chosen.reason}), {chosen.count:,} at most"
    words = f"{len(rows):,} row{'s' * (len(rows) != 1)}{chosen.where}"
    if chosen.narrows:
        return entries_of(rows, chosen), f"{words}: {_in_words(chosen)}"
    numbers = drawn(len(rows), ROWS).tolist()
    if len(rows) > ROWS:
        words += f": {_in_words(Selection(random=ROWS))}"
    first = [] if chosen.where else list(itertools.islice(first_of_each(rows, LEFT_OUT), ROWS))
    if first:
        counts = rows.counts()
        total = sum(sum(counts[kind].values()) for kind in ("rejected", "dropped"))
        words += f", and {len(first):,} of {total:,} records that were left out"
        words += f": of each reason the first {LEFT_OUT}" if len(first) < total else ""
    return itertools.chain((row for number in numbers for row in rows.shown(number)), first), words


def _in_words(chosen: Selection) -> str:
    count = chosen.count
    if chosen.record is not None:
        return f"record {chosen.record}"
    if chosen.random is not None:
        return f"{chosen.random:,} that are drawn (--seed {chosen.seed or 0})"
    if chosen.shortest or chosen.longest:
        return f"the {EXTREMES if count is None else count:,} {'longest' if chosen.longest else 'shortest'}"
    return f"the first {count:,}" + (f" with {chosen.grep!r}" if chosen.grep is not None else "")
