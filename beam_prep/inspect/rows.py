"""A row as text: a header, then its sequences, one below the other or side by side."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from beam_prep.formats import Row
from beam_prep.inspect.screen import CAPTION, CLOSE, FOUND, OPEN, TRAINED, UNTRAINED, Screen
from beam_prep.inspect.sequences import (
    VISIBLE,
    RowDisplay,
    TokenSequence,
    counts_of,
    lengths_of,
    parts_of,
    pieces_of,
    positions_of,
    special_ids,
)
from beam_prep.readers.dataset import Dataset
from beam_prep.shards.pack import STRATEGIES, cuts_rows
from beam_prep.tokens.tokenizer import Tokenizer

SIDE_BY_SIDE = 100
"""In a terminal with at least this many columns, the sides of a preference pair are side by side."""
_RULE = 72  # characters of the line above a document


def render(dataset: Dataset, index: int, marks: bool = False, width: int = 80, why: str = "") -> Text:
    """One record: a header, then each output under its name, values as numbers.

    Args:
        dataset: an output, or a view of one.
        index: the row; a negative index counts from the end.
        marks: put trained tokens between `⟦` and `⟧`, for text without colours.
        width: characters of a line; only preference pairs are wrapped.
        why: why the row is shown, for the header.

    Raises:
        IndexError: there is no such row.
        FormatError: the row is damaged, or a mask has another length than its ids.
    """
    display = dataclasses.replace(display_of(dataset), marks=marks, width=width)
    return render_row(display, dataset[index], title_of(dataset, index, why))


def display_of(dataset: Dataset) -> RowDisplay:
    """The display settings for rows of an output."""
    return RowDisplay(dataset.schema, dataset.tokenizer, dataset.manifest.get("config", {}), str(dataset.path))


def title_of(dataset: Dataset, index: int, why: str = "") -> list[str]:
    """The beginning of a row's header: `record 7`, why the row is shown, its split and domain."""
    split = dataset.split_of(index)
    places = ["" if split is None else f"split {split}", f"domain {dataset.domain_of(index)}"]
    title = [f"record {index % len(dataset)}", why, *places]
    return [part for part in title if part]


@dataclass(frozen=True)
class ShownRow:
    """A row to show.

    Attributes:
        display, row: see `render_row`.
        title, notes: the beginning and the end of its header.
        domain: its domain.
        role_names: names of roles; the first has number 1.
    """

    display: RowDisplay
    row: Row
    title: Sequence[str]
    domain: str
    notes: Sequence[str] = ()
    role_names: Sequence[str] = ()

    def text(self, screen: Screen, ids: bool = False, found: re.Pattern[str] | None = None) -> Text:
        """The row for a terminal. Matches of `found` are highlighted in colour."""
        display = dataclasses.replace(self.display, marks=screen.marks, width=screen.width, ids=ids)
        text = render_row(display, self.row, self.title, self.notes)
        if found is not None:
            text.highlight_regex(found, FOUND)
        return text

    def contains(self, pattern: re.Pattern[str]) -> bool:
        """True if a regular expression matches in the text of a sequence, or in a line."""
        tokenizer = self.display.tokenizer
        for part in row_parts(self.display, self.row).parts:
            if isinstance(part, str):
                text = part
            else:
                text = (
                    "".join(pieces_of(part.ids.tolist(), None))
                    if tokenizer is None
                    else tokenizer.decode(part.ids.tolist())
                )
            if pattern.search(text):
                return True
        return False


@dataclass(frozen=True)
class RowParts:
    """A row, ready to show.

    Attributes:
        parts: its sequences of tokens and its lines of text, in order.
        notes: notes on all sequences.
        packed: the sequences are documents of one packed row.
    """

    parts: list[TokenSequence | str]
    notes: list[str]
    packed: bool

    @property
    def sequences(self) -> list[TokenSequence]:
        return [part for part in self.parts if isinstance(part, TokenSequence)]


def row_parts(display: RowDisplay, row: Row) -> RowParts:
    """The parts of a row. A note on all sequences appears only once.

    Raises:
        FormatError: a mask has another length than its ids, or the lengths of documents do not add up to the row.
    """
    parts = [part for column in display.schema for part in parts_of(column, display, row)]
    sequences = [part for part in parts if isinstance(part, TokenSequence)]
    shared = [note for one in sequences[:1] for note in one.notes if all(note in other.notes for other in sequences)]
    own = [
        dataclasses.replace(part, notes=tuple(note for note in part.notes if note not in shared))
        if isinstance(part, TokenSequence)
        else part
        for part in parts
    ]
    return RowParts(own, [*shared, *_layout_notes(display, row)], lengths_of(display, row) is not None)


def render_row(display: RowDisplay, row: Row, title: Sequence[str], notes: Sequence[str] = ()) -> Text:
    """A row, below a header that begins with `title` and ends with `notes`.

    Raises:
        FormatError: see `row_parts`.
    """
    found = row_parts(display, row)
    header = [*title, counts_of(found.sequences), *found.notes, *notes]
    text = Text().append(f"━━ {' · '.join(header)}".translate(VISIBLE), "bold")
    return text.append_text(_body(found.parts, display, found.packed))


def _body(parts: Sequence["TokenSequence | str"], display: RowDisplay, packed: bool) -> Text:
    """The text below the header."""
    text = Text()
    pair = [part for part in parts if isinstance(part, TokenSequence)]
    beside = display.width >= SIDE_BY_SIDE and is_pair(display, pair)
    if beside:
        text.append_text(_side_by_side(pair[0], pair[1], display))
    for part in parts:
        if isinstance(part, str):
            text.append(f"\n── {part}", CAPTION)
        elif not beside:
            if packed:
                text.append("\n" + f"{_caption(part)} ".ljust(_RULE, "─"), CAPTION)
            elif len(parts) > 1:
                text.append(f"\n{_caption(part)}", CAPTION)
            text.append("\n").append_text(tokens_text(part, display)).append_text(padding_text(part, display))
    return text


def _caption(sequence: TokenSequence) -> str:
    return f"── {', '.join([f'{sequence.name}: {counts_of([sequence])}', *sequence.notes])}"


def _layout_notes(display: RowDisplay, row: Row) -> Iterator[str]:
    """Notes on the entire row: its documents, its positions."""
    if (lengths := lengths_of(display, row)) is not None:
        strategy = display.config.get("preprocessing", {}).get("packing_strategy")
        parts = " or parts of some" if strategy in STRATEGIES and not cuts_rows(strategy) else ""
        yield f"{len(lengths):,} document{'s' * (len(lengths) != 1)}{parts}"
    for column in display.schema:
        if column.role == "position" and (summary := positions_of(column, display, row)) is not None:
            yield f"positions: {summary}"


def is_pair(display: RowDisplay, sequences: Sequence[TokenSequence]) -> bool:
    """True if a row has exactly two sequences, both with trained tokens, and neither in a list."""
    ids = [column for column in display.schema if column.role == "ids"]
    return (
        len(ids) == len(sequences) == 2
        and all(column.depth == 1 for column in ids)
        and not any(column.role in ("lengths", "attention") for column in display.schema)
        and all(one.trained is not None and one.trained.any() for one in sequences)
    )


def _side_by_side(left: TokenSequence, right: TokenSequence, display: RowDisplay) -> Text:
    """Two sequences in two columns. Their common beginning is above them, once."""
    common = alike(left, right)
    text = Text()
    if common:
        text.append(f"\n── both begin with {common:,} tokens", CAPTION)
        text.append("\n").append_text(tokens_text(left, display, stop=common))
    width = (display.width - 3) // 2
    console = Console(width=display.width)
    sides = []
    for side in (left, right):
        column = Text.assemble((_caption(side), CAPTION), "\n", tokens_text(side, display, start=common))
        column.rstrip()
        sides.append(column.wrap(console, width, overflow="fold"))
    for one, other in itertools.zip_longest(*sides, fillvalue=Text()):
        other.rstrip()
        text.append("\n").append_text(one).append(" " * (width - one.cell_len))
        text.append(" │", CAPTION).append(" " * bool(other)).append_text(other)
    return text


def alike(one: TokenSequence, other: TokenSequence) -> int:
    """How many first tokens both sides of a pair share, up to the last untrained one, so that no answer is cut."""
    assert one.trained is not None
    assert other.trained is not None
    size = min(len(one.ids), len(other.ids))
    same = (one.ids[:size] == other.ids[:size]) & (one.trained[:size] == other.trained[:size])
    first = size if same.all() else int(np.argmin(same))
    untrained = np.flatnonzero(~one.trained[:first])
    return int(untrained[-1]) + 1 if len(untrained) else 0


class Run(NamedTuple):
    """Neighbouring tokens with the same style.

    Attributes:
        trained: True if the tokens are trained; None: not known.
        special: True if the tokens are special tokens.
        tokens: (id, text) of each token, with control characters made visible.
    """

    trained: bool | None
    special: bool
    tokens: list[tuple[int, str]]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.tokens)


def runs_of(
    sequence: TokenSequence, tokenizer: Tokenizer | None, start: int = 0, stop: int | None = None
) -> Iterator[Run]:
    """The tokens [start, stop) as runs of text (of ids, without a tokenizer)."""
    ids, special = sequence.ids.tolist(), special_ids(tokenizer)
    trained = [None] * len(ids) if sequence.trained is None else sequence.trained.tolist()
    tokens = list(zip(trained, ids, pieces_of(ids, tokenizer), strict=True))[start:stop]
    for (is_trained, is_special), run in itertools.groupby(tokens, lambda token: (token[0], token[1] in special)):
        yield Run(is_trained, is_special, [(token, piece.translate(VISIBLE)) for _, token, piece in run])


def tokens_text(sequence: TokenSequence, display: RowDisplay, start: int = 0, stop: int | None = None) -> Text:
    """The text (without a tokenizer, the ids) of tokens [start, stop). Neighbouring trained tokens are one part."""
    text = Text()
    runs = runs_of(sequence, display.tokenizer, start, stop)
    for is_trained, members in itertools.groupby(runs, lambda run: run.trained):
        style = {True: TRAINED, False: UNTRAINED, None: ""}[is_trained]
        part = Text()
        for run in members:
            shown = f"{style} reverse" if run.special else style
            if display.ids and display.tokenizer is not None:
                for token, piece in run.tokens:
                    part.append(f"‹{token}›", CAPTION).append(piece, shown)
            else:
                part.append(run.text, shown)
        if is_trained:
            part = Text.assemble(OPEN, part, CLOSE) if display.marks else _show_outer_newlines(part, style)
        text.append_text(part)
    return text


def padding_text(sequence: TokenSequence, display: RowDisplay) -> Text:
    """`+ 57 x <|pad|>`, below the text."""
    text = Text()
    for token, run in itertools.groupby(sequence.padding):
        style = f"{UNTRAINED} reverse" if token in special_ids(display.tokenizer) else UNTRAINED
        piece = pieces_of([token], display.tokenizer)[0].strip(" ")
        text.append(f"\n+ {len(list(run)):,} x ", UNTRAINED).append(piece.translate(VISIBLE), style)
    return text


def _show_outer_newlines(run: Text, style: str) -> Text:
    """Adds a visible sign to newlines at the ends of a trained run, because colour does not show them."""
    body = run.plain.strip("\n")
    before = len(run.plain) - len(run.plain.lstrip("\n")) if body else 0
    after = len(run.plain) - before - len(body)
    return Text.assemble(("↵\n" * before, style), run[before : before + len(body)], ("↵\n" * after, style))
