"""A row as an SVG picture, for a page, a notebook or a slide.

Trained tokens have a colour, and are bold and underlined for readers who cannot see the colour. Special tokens are
reversed. The picture has a light and a dark background: the viewer's setting chooses.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from beam_prep.errors import BeamPrepError
from beam_prep.hints import VISIBLE
from beam_prep.inspect.draw import RowText, console_of, legend
from beam_prep.inspect.output import shown_row
from beam_prep.inspect.row import ShownRow, counts_of
from beam_prep.readers.dataset import Dataset

LIGHT = {"paper": "#ffffff", "ink": "#59636e", "trained": "#0a3069", "marker": "#cfe3ff", "line": "#0969da"}
DARK = {"paper": "#0d1117", "ink": "#9198a1", "trained": "#dbeaff", "marker": "#123a6b", "line": "#58a6ff"}
"""Names -> colours. `trained` is the text on `marker`, `ink` all other text; `line` is for charts."""

_STYLES = {
    "trained": f"bold underline {LIGHT['trained']} on {LIGHT['marker']}",
    "trained.special": f"bold underline {LIGHT['marker']} on {LIGHT['trained']}",
    "other": LIGHT["ink"],
    "other.special": f"{LIGHT['paper']} on {LIGHT['ink']}",
    "caption": f"bold {LIGHT['ink']}",
}
_SCALE, _MARGIN = 0.64, 25  # in pixels of rich: a character is 12.2 wide, a line 24.4 high
_FORMAT = "\0".join(["{styles}", "{backgrounds}", "{matrix}", "{terminal_height}", "{char_width}"])


def picture(dataset: Dataset, index: int, columns: int = 88, lines: int = 60, title: str | None = None) -> str:
    r"""The SVG of one row, with its sequences (documents, sides of a pair) one below the other.

    In a notebook: `IPython.display.SVG(picture(ds, 0))`.

    Args:
        dataset: an output that keeps its tokenizer, or a view of one.
        index: the row; a negative index counts from the end.
        columns: characters of a line.
        lines: most lines of text; the picture tells how many more there are.
        title: the first line; default: the row's number and its counts.

    Raises:
        IndexError: there is no such row.
        BeamPrepError: the output has no tokenizer or no ids, or `columns` or `lines` is too small.

    >>> from beam_prep.inspect.picture import picture
    >>> svg = picture(bp.open("out/chat"), 0)
    >>> svg[:4], "record 0: 87 tokens, 36 trained (41.4%)" in svg
    ('<svg', True)
    """
    if columns < 8 or lines < 1:
        raise BeamPrepError(f"columns is {columns} and lines is {lines}, wanted at least 8 and 1")
    row = shown_row(dataset, index)
    if dataset.tokenizer is None or not row.sequences:
        raise BeamPrepError(f"{dataset.path} keeps no tokenizer, or has no column of ids: there is no text to show")
    title = f"record {index % len(dataset)}: {counts_of(row.sequences)}" if title is None else title
    title = title.translate(VISIBLE)
    shown = lines_of(row, columns, lines)
    return _svg(title, [Text(title, "caption"), *shown, Text(), legend(False)], columns)


def lines_of(row: ShownRow, columns: int, most: int) -> list[Text]:
    """The text of a row, in lines of up to `columns` cells. After `most` lines it says how many more there are."""
    found = RowText().body(row).wrap(Console(width=columns), columns, overflow="fold", tab_size=4)
    if len(found) <= most:
        return list(found)
    return [*found[:most], Text(f"... {len(found) - most:,} more lines", "caption")]


def _svg(title: str, lines: Sequence[Text], columns: int) -> str:
    colours: Any = {"force_terminal": True, "color_system": "truecolor", "no_color": False}
    console = console_of(_STYLES, record=True, width=columns, file=io.StringIO(), **colours)
    for line in lines:
        console.print(line, style=LIGHT["ink"], soft_wrap=True)
    paper, ink = (Color.parse(LIGHT[name]).get_truecolor() for name in ("paper", "ink"))
    theme = TerminalTheme(paper, ink, [ink] * 8)
    styles, backgrounds, texts, high, cell = console.export_svg(theme=theme, code_format=_FORMAT).split("\0")
    texts = re.sub(r' clip-path="[^"]*"|<text [^>]*>\n</text>', "", texts)  # texts have a length, and need no clip
    width, height = columns * float(cell) + 2 * _MARGIN, float(high) + 2 * _MARGIN
    dark = styles
    for name, colour in LIGHT.items():
        dark = dark.replace(f"fill: {colour}", f"fill:{DARK[name]}")
        dark += f'.beam-prep rect[fill="{colour}"]{{fill:{DARK[name]}}}'
    font = "font:20px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width * _SCALE:.0f}" \
height="{height * _SCALE:.0f}" class="beam-prep" role="img" aria-label="{escape(title)}">
<style>.beam-prep text{{{font}}}{styles}@media(prefers-color-scheme:dark){{{dark}}}</style>
<rect fill="{LIGHT["paper"]}" width="{width:.0f}" height="{height:.0f}" rx="9"/>
<g transform="translate({_MARGIN},{_MARGIN})">{backgrounds}{texts}</g>
</svg>
"""
