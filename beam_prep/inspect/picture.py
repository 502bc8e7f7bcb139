"""A row as a picture: SVG, for a page, a notebook or a slide. `beam_prep.inspect.rows` writes rows as text.

What is trained has a colour, and is underlined and bold, for those who do not see the colour. Special tokens are in
boxes. The picture has its own background, in two versions: the viewer's light or dark setting chooses one.
"""

import contextlib
import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from beam_prep.errors import BeamPrepError
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, TokenSequence, counts_of, parts_of
from beam_prep.readers.dataset import Dataset
from beam_prep.tokens.tokenizer import Tokenizer

OPEN, CLOSE = "⟦", "⟧"
TRAINED, UNTRAINED, CAPTION, FOUND = "bold green", "dim", "cyan", "black on bright_yellow"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1 where a reader has seen enough."""
        raise BrokenPipeError


class Screen:
    """The terminal, file or pipe on which texts are printed.

    Args:
        pager: in a terminal, give the texts to `$PAGER`, or to `less -R`.

    Attributes:
        marks: there are no colours, so trained tokens are put between `⟦` and `⟧`.
        width: characters of a line.
    """

    def __init__(self, pager: bool = False) -> None:
        self._console = _Console(highlight=False)
        self.marks = self._console.color_system is None or self._console.no_color
        self.width = self._console.width
        self._pager = pager and sys.stdout.isatty() and not self._console.is_dumb_terminal

    def show(self, texts: Iterable[Text]) -> None:
        """Prints texts with a blank line after each."""
        pager = _started_pager() if self._pager else None
        if pager is None:
            with stop_when_reader_closes():
                self._print(texts, self._console)
            return
        try:
            with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
                console = _Console(
                    file=pager.stdin,
                    force_terminal=True,
                    color_system=None if self.marks else "truecolor",
                    width=self.width,
                    highlight=False,
                )
                self._print(texts, console)
        finally:
            with contextlib.suppress(BrokenPipeError):
                pager.communicate()  # closes its input and waits: it holds the terminal until it is left

    def _print(self, texts: Iterable[Text], console: Console) -> None:
        for text in texts:
            if self.marks:
                console.file.write(f"{text.plain}\n\n")  # rich would expand the tabs
            else:
                console.print(text, end="\n\n", soft_wrap=True)


def _started_pager() -> "subprocess.Popen[str] | None":
    """`$PAGER`, or `less -R`, as a process that reads texts; None if it is set to nothing, or there is none."""
    words = shlex.split(os.environ.get("PAGER", "less"))
    if not words or words == ["cat"]:
        return None
    if words == ["less"]:
        words = ["less", "-R"]
    settings = {"LESS": "FRX", **os.environ}  # as git has it: a text of one screen is printed, and less ends
    try:
        return subprocess.Popen(words, env=settings, stdin=subprocess.PIPE, encoding="utf-8", errors="replace")
    except OSError:
        return None


@contextlib.contextmanager
def stop_when_reader_closes() -> Iterator[None]:
    """Stops printing without an error when the reader closes the pipe (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout when it exits, and would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def legend(marks: bool) -> Text:
    """Explains how trained tokens are shown."""
    if marks:
        return Text(f"what is trained is between {OPEN} and {CLOSE}")
    return Text.assemble(
        ("trained", TRAINED), "  ", ("not trained", UNTRAINED), "  ", ("special token", f"{UNTRAINED} reverse")
    )


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
