"""Rows as text in styles, and the terminal, pager, file or pipe on which texts are printed.

Trained tokens are bold green, the others dim, special tokens reversed. Without colours (a file, a pipe, NO_COLOR),
trained tokens are between `⟦` and `⟧`. Packed rows are shown document by document, padding as a count, preference
pairs side by side if the line is long enough.
"""

import contextlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from beam_prep.inspect.row import VISIBLE, LeftOut, RowKind, ShownRow, TokenSequence

OPEN, CLOSE = "⟦", "⟧"
STYLES = {
    "trained": "bold green",
    "trained.special": "bold green reverse",
    "other": "dim",
    "other.special": "dim reverse",
    "unknown": "none",
    "unknown.special": "reverse",
    "caption": "cyan",
    "found": "black on bright_yellow",
}
"""Name -> style in a terminal."""

SIDE_BY_SIDE = 100
"""In a terminal with at least this many columns, the sides of a preference pair are side by side."""
_RULE = 72  # characters of the line above a document
_RECORD = 200  # most characters of a record that was left out
_NAMES = {True: "trained", False: "other", None: "unknown"}

Entry = ShownRow | LeftOut


@dataclass(frozen=True)
class RowText:
    """Draws rows, and records that were left out, as text.

    Attributes:
        marks: put trained tokens between `⟦` and `⟧`, for text without colours.
        width: characters of a line; only preference pairs are wrapped.
        ids: show each token's id before the token: `‹9906›Hello`.
        found: matches of this regular expression are highlighted.
    """

    marks: bool = False
    width: int = 80
    ids: bool = False
    found: re.Pattern[str] | None = None

    def of(self, entry: Entry) -> Text:
        """A header, and below it each sequence of tokens under its name; or why a record was left out, and its text.

        Raises:
            FormatError: see `ShownRow`.
        """
        if isinstance(entry, LeftOut):
            header = f"━━ {entry.place} · {entry.kind}: {entry.reason}".translate(VISIBLE)
            text = Text.assemble((header, "bold red"), f"\n{entry.message}".translate(VISIBLE) if entry.message else "")
            for line in entry.lines(_RECORD):
                text.append(f"\n── {line}".translate(VISIBLE), "dim")
            return text
        text = Text().append(f"━━ {' · '.join([*entry.title, *entry.header])}".translate(VISIBLE), "bold")
        text.append_text(self.body(entry))
        if self.found is not None:
            text.highlight_regex(self.found, "found")
        return text

    def body(self, row: ShownRow) -> Text:
        """The text below the header."""
        text = Text()
        pair = row.pair if self.width >= SIDE_BY_SIDE else None
        for part in row.parts:
            if isinstance(part, str):
                text.append(f"\n── {part}".translate(VISIBLE), "caption")
            elif pair is not None and part is pair[0]:
                text.append_text(self._side_by_side(row, *pair))
            elif pair is None or part is not pair[1]:
                caption = f"── {row.caption(part)}"
                if row.packed:
                    text.append("\n" + f"{caption} ".ljust(_RULE, "─"), "caption")
                elif len(row.parts) > 1:
                    text.append(f"\n{caption}", "caption")
                text.append("\n").append_text(self.tokens(row.kind, part)).append_text(_padding(row.kind, part))
        return text

    def _side_by_side(self, row: ShownRow, left: TokenSequence, right: TokenSequence, common: int) -> Text:
        """Two sequences in two columns. Their common beginning is above them, once."""
        text = Text()
        if common:
            text.append(f"\n── both begin with {common:,} tokens", "caption")
            text.append("\n").append_text(self.tokens(row.kind, left, stop=common))
        width = (self.width - 3) // 2
        sides = []
        for side in (left, right):
            caption = (f"── {row.caption(side)}", "caption")
            column = Text.assemble(caption, "\n", self.tokens(row.kind, side, start=common))
            column.rstrip()
            sides.append(column.wrap(Console(width=self.width), width, overflow="fold"))
        for one, other in itertools.zip_longest(*sides, fillvalue=Text()):
            other.rstrip()
            text.append("\n").append_text(one).append(" " * (width - one.cell_len))
            text.append(" │", "caption").append(" " * bool(other)).append_text(other)
        return text

    def tokens(self, kind: RowKind, sequence: TokenSequence, start: int = 0, stop: int | None = None) -> Text:
        """The text (without a tokenizer, the ids) of tokens [start, stop). Neighbouring trained tokens are one part."""
        text = Text()
        for is_trained, runs in itertools.groupby(kind.runs(sequence, start, stop), lambda run: run.trained):
            style, part = _NAMES[is_trained], Text()
            for run in runs:
                shown = run.text
                if self.ids and kind.tokenizer is not None:
                    shown = "".join(f"‹{token}›{piece}" for token, piece in run.tokens)
                if is_trained and not self.marks:
                    shown = shown.replace("\n", "↵\n")  # at the end of a line, colour shows no newline
                part.append(shown, f"{style}.special" if run.special else style)
            text.append_text(Text.assemble(OPEN, part, CLOSE) if is_trained and self.marks else part)
        return text


def _padding(kind: RowKind, sequence: TokenSequence) -> Text:
    """`+ 57 x <|pad|>`, below the text."""
    text = Text()
    for token, count in sequence.padding:
        style = "other.special" if token in kind.special else "other"
        piece = kind.pieces([token])[0].strip(" ")
        text.append(f"\n+ {count:,} x ", "other").append(piece.translate(VISIBLE), style)
    return text


def legend(marks: bool) -> Text:
    """Explains how trained tokens are shown."""
    if marks:
        return Text(f"what is trained is between {OPEN} and {CLOSE}")
    return Text("  ").join(
        [Text("trained", "trained"), Text("not trained", "other"), Text("special token", "other.special")]
    )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1 when the reader closes the pipe."""
        raise BrokenPipeError


def console_of(styles: dict[str, str], **settings: Any) -> Console:
    """A console that knows the names of `styles`."""
    return _Console(highlight=False, theme=Theme(styles), **settings)


class Screen:
    """The terminal, file or pipe on which texts are printed.

    Args:
        pager: in a terminal, pass the texts to `$PAGER`, or to `less`.

    Attributes:
        marks: True without colours: then trained tokens are put between `⟦` and `⟧`.
        width: characters of a line.
    """

    def __init__(self, pager: bool = False) -> None:
        self._console = console_of(STYLES)
        self.marks = self._console.color_system is None or self._console.no_color
        self.width = self._console.width
        self._pager = pager and sys.stdout.isatty() and not self._console.is_dumb_terminal

    def show(self, texts: Iterable[Text]) -> None:
        """Prints texts with a blank line after each."""
        pager, console = _started_pager() if self._pager else None, self._console
        if pager is not None:
            colours: Any = None if self.marks else "truecolor"
            console = console_of(STYLES, file=pager.stdin, force_terminal=True, color_system=colours, width=self.width)
        with stop_when_reader_closes():
            try:
                for text in texts:
                    if self.marks:
                        console.file.write(f"{text.plain}\n\n")  # rich would expand the tabs
                    else:
                        console.print(text, end="\n\n", soft_wrap=True)
            finally:
                if pager is not None:
                    pager.communicate()  # closes its input, and waits until the reader leaves it


def _started_pager() -> "subprocess.Popen[str] | None":
    """Starts `$PAGER`, or `less`. None if `$PAGER` is empty or `cat`, or the program is not there."""
    words = shlex.split(os.environ.get("PAGER", "less"))
    if words in ([], ["cat"]):
        return None
    settings = {"LESS": "FRX", **os.environ}  # as in git: less shows colours, and ends after a text of one screen
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
