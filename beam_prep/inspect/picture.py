"""A row as a picture: SVG, for a page, a notebook or a slide. `beam_prep.inspect.rows` writes rows as text.

What is trained has a colour, and is underlined and bold, for those who do not see the colour. Special tokens are in
boxes. The picture has its own background, in two versions: the viewer's light or dark setting chooses one.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.cells import cell_len

from beam_prep.errors import BeamPrepError
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, TokenSequence, counts_of, parts_of
from beam_prep.readers.dataset import Dataset
from beam_prep.tokens.tokenizer import Tokenizer

LIGHT = {"paper": "#ffffff", "ink": "#59636e", "trained": "#0a3069", "marker": "#cfe3ff", "line": "#0969da"}
DARK = {"paper": "#0d1117", "ink": "#9198a1", "trained": "#dbeaff", "marker": "#123a6b", "line": "#58a6ff"}
"""Names -> colours. `trained` is the text on `marker`, with `line` below it; `ink` is all other text."""

_CELL, _LINE, _MARGIN = 7.8, 21, 16  # pixels: a character, a line, around all
# XML has no sign for these; a tab would be as wide as the viewer likes.
_SHOWN = {**VISIBLE, 0xFFFE: "\ufffd", 0xFFFF: "\ufffd", 0x09: "    "}


class Run(NamedTuple):
    """Text of one line that is shown in one way."""

    text: str
    trained: bool
    special: bool


def picture(dataset: Dataset, index: int, columns: int = 88, lines: int = 60, title: str | None = None) -> str:
    r"""The SVG of one row: its sequences (documents, sides of a pair), one below the other.

    In a notebook: `IPython.display.SVG(picture(ds, 0))`.

    Args:
        dataset: an output that keeps its tokenizer, or a view of one.
        index: the row; negative: from the end.
        columns: characters of a line.
        lines: the most lines of text; what is left out is counted.
        title: the first line; default: the row's number and its counts.

    Raises:
        IndexError: there is no such row.
        BeamPrepError: the output has no tokenizer, or no ids, or `columns` or `lines` is too small.

    >>> from beam_prep.inspect.picture import picture
    >>> svg = picture(bp.open("out/chat"), 0)
    >>> svg[:4], "record 0: 87 tokens, 36 trained (41.4%)" in svg
    ('<svg', True)
    """
    if columns < 8 or lines < 1:
        raise BeamPrepError(f"columns is {columns} and lines is {lines}, wanted at least 8 and 1")
    row = dataset[index]
    if dataset.tokenizer is None:
        raise BeamPrepError(f"{dataset.path} keeps no tokenizer: its tokens cannot be shown as text")
    display = RowDisplay(dataset.schema, dataset.tokenizer, dataset.manifest.get("config", {}), str(dataset.path))
    parts = (part for column in dataset.schema for part in parts_of(column, display, row))
    sequences = [part for part in parts if isinstance(part, TokenSequence)]
    if not sequences:
        raise BeamPrepError(f"{dataset.path} has no column of ids to show")
    title = f"record {index % len(dataset)}: {counts_of(sequences)}" if title is None else title
    return _drawn(title, sequences, dataset.tokenizer, columns, lines)


def lines_of(sequence: TokenSequence, tokenizer: Tokenizer, columns: int) -> list[list[Run]]:
    """The text of a sequence, broken into lines of at most `columns` cells, after a space if there is one.

    A trained line end ends its line with ↵. If nothing is known of what is trained, nothing is shown as trained.
    """
    special = tokenizer.special_ids
    trained = [False] * len(sequence.ids) if sequence.trained is None else sequence.trained.tolist()
    ids = sequence.ids.tolist()
    lines: list[list[Run]] = [[]]
    for piece, is_trained, number in zip(tokenizer.pieces(ids), trained, ids, strict=True):
        for text in piece.translate(_SHOWN).splitlines(keepends=True):
            shown = text.rstrip("\n") + ("↵" if is_trained and text.endswith("\n") else "")
            lines[-1].append(Run(shown, is_trained, number in special))
            if text.endswith("\n"):
                lines.append([])
    return [_joined(part) for line in lines if line is not lines[-1] or line for part in _wrapped(line, columns)]


def _wrapped(line: Sequence[Run], columns: int) -> Iterator[list[Run]]:
    """A line as lines of at most `columns` cells. A word that is longer than a line is broken anywhere."""
    taken: list[Run] = []  # of one character each
    width = 0
    for one in (Run(character, run.trained, run.special) for run in line for character in run.text):
        size = cell_len(one.text)
        if width + size > columns:
            space = next((place for place in range(len(taken), 0, -1) if taken[place - 1].text == " "), len(taken))
            yield taken[:space]
            taken = taken[space:]
            width = sum(cell_len(run.text) for run in taken)
        taken.append(one)
        width += size
    yield taken


def _joined(line: Sequence[Run]) -> list[Run]:
    """Neighbours that are shown in one way, as one."""
    groups = itertools.groupby(line, lambda run: run[1:])
    return [Run("".join(run.text for run in runs), *shown) for shown, runs in groups]


def _drawn(title: str, sequences: Sequence[TokenSequence], tokenizer: Tokenizer, columns: int, most: int) -> str:
    """The picture; see `picture`."""
    body: list[str] = []
    line = 0.0

    def add(runs: Sequence[Run], kind: str = "") -> None:
        nonlocal line
        body.extend(_line(runs, _MARGIN + line * _LINE, kind))
        line += 1

    add([Run(title, False, False)], "title")
    line += 0.3
    left_out = 0
    for sequence in sequences:
        found = lines_of(sequence, tokenizer, columns)
        if most and len(sequences) > 1:
            line += 0.3
            add([Run(f"{sequence.name}: {counts_of([sequence])}", False, False)], "title")
        for runs in found[:most]:
            add(runs)
        left_out += max(0, len(found) - most)
        most = max(0, most - len(found))
    if left_out:
        add([Run(f"... {left_out:,} more lines", False, False)], "title")
    line += 0.5
    gap = Run("    ", False, False)
    legend = [
        Run("trained", True, False),
        gap,
        Run("not trained", False, False),
        gap,
        Run("special token", False, True),
    ]
    add(legend)
    width, height = round(columns * _CELL + 2 * _MARGIN), round(line * _LINE + 2 * _MARGIN)
    label = escape(title.translate(_SHOWN), {'"': "&quot;"})
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'class="beam-prep" role="img" aria-label="{label}">',
            f"<style>{_style()}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def _line(runs: Sequence[Run], top: float, kind: str) -> Iterator[str]:
    """The shapes of a line, then its text. Each text is as wide as its cells, whatever font the viewer has."""
    shapes, texts = [], []
    left = float(_MARGIN)
    for run in runs:
        width = cell_len(run.text) * _CELL
        place = f'x="{left:.1f}" width="{width:.1f}"'
        if run.trained:
            shapes.append(f'<rect class="marker" {place} y="{top + 1:.1f}" height="{_LINE - 2}"/>')
            shapes.append(f'<rect class="below" {place} y="{top + _LINE - 3:.1f}" height="2"/>')
        if run.special:
            box = f'x="{left + 0.5:.1f}" width="{max(width - 1, 0):.1f}"'
            shapes.append(f'<rect class="box" {box} y="{top + 1.5:.1f}" height="{_LINE - 4}" rx="3"/>')
        if run.text.strip():
            name = "trained" if run.trained else kind
            attributes = f'x="{left:.1f}" y="{top + 14.5:.1f}" textLength="{width:.1f}" xml:space="preserve"'
            texts.append(f'<text class="{name or "plain"}" {attributes}>{escape(run.text)}</text>')
        left += width
    yield from shapes
    yield from texts


def _style() -> str:
    """CSS of both versions. A notebook puts the picture into its page, whose own names these must not be."""
    inside = ".beam-prep "

    def colours(of: dict[str, str]) -> str:
        return (
            f"{inside}.paper{{fill:{of['paper']}}}{inside}text{{fill:{of['ink']}}}"
            f"{inside}.trained{{fill:{of['trained']}}}{inside}.marker{{fill:{of['marker']}}}"
            f"{inside}.below{{fill:{of['line']}}}{inside}.box{{stroke:{of['ink']}}}"
        )

    font = "font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre"
    return (
        f"{inside}text{{{font}}}{inside}.trained,{inside}.title{{font-weight:bold}}{inside}.box{{fill:none}}"
        f"{colours(LIGHT)}@media(prefers-color-scheme:dark){{{colours(DARK)}}}"
    )
