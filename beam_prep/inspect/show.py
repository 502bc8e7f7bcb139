"""Which rows `beam-prep inspect` shows, of an output or of a sample before a run, and where they are drawn."""

import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from rich.text import Text

from beam_prep.data.block import drawn
from beam_prep.data.ragged import Array
from beam_prep.errors import BeamPrepError
from beam_prep.inspect.draw import Entry, Head, Number, RowText, check_page, draw
from beam_prep.inspect.row import LeftOut, ShownRow

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
        if chosen.count is None and (chosen.grep is not None or chosen.reason is not None):
            chosen = replace(chosen, count=ROWS)
    entries = _entries(rows, chosen, page=html is not None)
    words = f"{len(rows):,} row{'s' * (len(rows) != 1)}{rows.about}"
    words = ": ".join(filter(None, [words, chosen.options]))
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
    there = [f"{kind}: {counted(counts[kind])}" for kind in _KINDS if counts[kind]]
    said = f"there are {'; '.join(there)}" if there else "all were kept"
    raise BeamPrepError(f"no record of {rows.title} was left out for the reason {chosen.reason!r}; {said}")


def counted(counts: Mapping[str, int]) -> str:
    """`2 empty, 1 too_long`."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


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
