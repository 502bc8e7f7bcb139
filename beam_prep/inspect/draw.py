"""Rows, and records that were left out, drawn as text for a terminal, a pager, a file or a pipe; or as a page.

As text, trained tokens are bold green, the others dim, special tokens reversed. Without colours (a file, a pipe,
NO_COLOR), trained tokens are between `⟦` and `⟧`. Packed rows are shown document by document, padding as a count.

A page is one HTML file for a browser, which needs no network. Rows are JSON data in it; `page.js` builds the rows that
are on the screen. A token is an index into a table of the page: (id, text, 1 if special).
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from beam_prep.data.block import AnyPath
from beam_prep.errors import BeamPrepError
from beam_prep.hints import VISIBLE, counted
from beam_prep.inspect.row import LeftOut, RowKind, ShownRow, TokenSequence, repeats, totals_of

OPEN, CLOSE = "⟦", "⟧"
_NO_MARKS = str.maketrans({OPEN: "\\u27e6", CLOSE: "\\u27e7"})
"""These characters in a text must not look like marks."""
STYLES = {
    "trained": "bold green",
    "trained.special": "bold green reverse",
    "other": "dim",
    "other.special": "dim reverse",
    "caption": "cyan",
    "found": "black on bright_yellow",
}
"""Name -> style in a terminal."""

_RULE = 72  # characters of the line above a document
_RECORD = 200  # most characters of a record that was left out, in a terminal
_TEXT = 1_000  # and on a page
_MARK = b"<!-- beam-prep inspect -->"

Entry = ShownRow | LeftOut


Number = tuple[str, int, str]
"""A total of an output, or of a sample: (label, value, note)."""


@dataclass(frozen=True)
class Head:
    """What stands around rows.

    Attributes:
        title: the output, or the inputs.
        words: which rows are shown.
        numbers: totals, for a page.
        above, below: lines above the rows, and remarks below them; on a page, details in its head.
    """

    title: str
    words: str
    numbers: Sequence[Number] = ()
    above: Text = field(default_factory=Text)
    below: Sequence[Text] = ()


@dataclass(frozen=True)
class RowText:
    """Draws rows, and records that were left out, as text.

    Attributes:
        marks: put trained tokens between `⟦` and `⟧`, for text without colours.
        ids: show each token's id before the token: `‹9906›Hello`.
        found: matches of this regular expression are highlighted.
    """

    marks: bool = False
    ids: bool = False
    found: re.Pattern[str] | None = None

    def of(self, entry: Entry) -> Text:
        """A header, and below it each sequence of tokens under its name; or why a record was left out, and its text."""
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
        for part in row.parts:
            if isinstance(part, str):
                text.append(f"\n── {part}".translate(VISIBLE), "caption")
                continue
            caption = f"── {row.caption(part)}"
            if row.packed:
                text.append("\n" + f"{caption} ".ljust(_RULE, "─"), "caption")
            elif len(row.parts) > 1:
                text.append(f"\n{caption}", "caption")
            text.append("\n").append_text(self.tokens(row.kind, part)).append_text(_padding(row.kind, part))
        return text

    def tokens(self, kind: RowKind, sequence: TokenSequence) -> Text:
        """The text of a sequence (without a tokenizer, the ids). Neighbouring trained tokens are one part."""
        text = Text()
        for is_trained, runs in itertools.groupby(kind.runs(sequence), lambda run: run.trained):
            style, part = "trained" if is_trained else "other", Text()
            for run in runs:
                shown = run.text
                if self.ids and kind.tokenizer is not None:
                    shown = "".join(f"‹{token}›{piece}" for token, piece in run.tokens)
                if self.marks:
                    shown = shown.translate(_NO_MARKS)
                elif is_trained:
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
    """

    def __init__(self, pager: bool = False) -> None:
        self._console = console_of(STYLES)
        self.marks = self._console.color_system is None or self._console.no_color
        self._pager = pager and sys.stdout.isatty() and not self._console.is_dumb_terminal

    def show(self, texts: Iterable[Text]) -> None:
        """Prints texts with a blank line after each."""
        pager, console = _started_pager() if self._pager else None, self._console
        if pager is not None:
            colours: Any = None if self.marks else "truecolor"
            console = console_of(
                STYLES, file=pager.stdin, force_terminal=True, color_system=colours, width=console.width
            )
        try:
            for text in texts:
                if console.is_terminal:
                    console.print(text, end="\n\n")  # wraps between words
                else:
                    console.file.write(f"{text.plain}\n\n")
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


def check_page(path: AnyPath, command: str = "inspect", option: str = "--html", begins: bytes = _MARK) -> None:
    """Checks that a page can be written there.

    Args:
        path: where the page will be.
        command, option: that make it.
        begins: bytes near the beginning of each page of this command.

    Raises:
        BeamPrepError: another file is there.
    """
    file = Path(path)
    if not file.exists():
        return
    if file.is_file():
        with file.open("rb") as page:
            if begins in page.read(100):
                return
    raise BeamPrepError(
        f"{option} {path}: this is there already, and is no page of beam-prep {command}; give another name"
    )


def write_page(path: AnyPath, entries: Iterable[Entry], head: Head) -> int:
    """Writes a page. It gets its name when it is complete.

    Args:
        path: the file.
        entries: rows, and records that were left out.
        head: what the page says above them.

    Returns:
        The number of entries.

    Raises:
        BeamPrepError: see `check_page`; or the file cannot be written.
    """
    from beam_prep.storage.files import write_file

    check_page(path)
    tables = _Tables()
    rows = [tables.row(entry) if isinstance(entry, ShownRow) else _left_out(entry) for entry in entries]
    lines = [text.plain for text in (head.above, *head.below)]
    said = {
        "title": head.title,
        "chosen": head.words,
        "numbers": head.numbers,
        "lines": lines,
        "roles": list(tables.roles),
    }
    parts = {"row-data": _json(rows), "tokens": _json(list(tables.tokens)), "head": _json(said)}
    try:
        write_file(os.path.realpath(path), rendered("inspect/page.html", parts=parts).encode())
    except OSError as error:
        raise BeamPrepError(f"--html {path}: cannot be written: {error.strerror}") from None
    return len(rows)


def rendered(template: str, **values: Any) -> str:
    """A page of this package. What it prints of data has visible control and bidirectional characters."""
    from jinja2 import Environment, PackageLoader  # the import takes longer than printing a row

    environment = Environment(autoescape=True, finalize=visible, loader=PackageLoader("beam_prep", "."))
    return environment.get_template(template).render(values)


def visible(value: Any) -> Any:
    """A value with visible control and bidirectional characters in its texts."""
    if type(value) is str:
        return value.translate(VISIBLE)
    if isinstance(value, dict):
        return {key: visible(each) for key, each in value.items()}
    return [visible(each) for each in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    """JSON that can stand in a `<script>`."""
    return orjson.dumps(visible(value)).decode().replace("<", "\\u003c").replace("&", "\\u0026")


def _left_out(record: LeftOut) -> dict[str, Any]:
    return {**asdict(record), "title": record.place, "text": "\n".join(record.lines(_TEXT))}


class _Tables:
    """The tables of tokens and roles that the rows of a page share."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, str, int], int] = {}
        self.roles: dict[str, int] = {}

    def row(self, row: ShownRow) -> dict[str, Any]:
        tokens, trained = totals_of(row.sequences)
        parts: list[dict[str, Any]] = [
            {"line": part} if isinstance(part, str) else self._sequence(row, part) for part in row.parts
        ]
        found = {
            "title": " · ".join(row.title),
            "domain": row.domain,
            "tokens": tokens,
            "trained": trained,
            "notes": row.header,
            "parts": parts,
            "packed": row.packed,
        }
        sides = [row.parts.index(part) for part in row.sequences if part.trained.any()]
        if len(sides) == 2 and not row.packed:
            found["pair"] = sides  # of a preference pair: they are beside each other
        return found

    def _sequence(self, row: ShownRow, part: TokenSequence) -> dict[str, Any]:
        tokens = self._tokens(row, part.ids.tolist())
        trained = [[int(value), size] for value, size in repeats(part.trained)]
        found: dict[str, Any] = {"name": part.name, "caption": row.caption(part), "t": tokens, "m": trained}
        if part.roles is not None and part.roles.any():
            names = [-1, *(self.roles.setdefault(name, len(self.roles)) for name in row.role_names)]
            found["r"] = [[names[value], size] for value, size in repeats(part.roles)]
        if part.padding:
            found["padding"] = [[*self._tokens(row, [int(token)]), size] for token, size in part.padding]
        return found

    def _tokens(self, row: ShownRow, ids: Sequence[int]) -> list[int]:
        """The places of tokens in the table."""
        special, tokens = row.kind.special, self.tokens
        pieces = zip(ids, row.kind.pieces(ids), strict=True)
        return [tokens.setdefault((token, piece, int(token in special)), len(tokens)) for token, piece in pieces]


def draw(
    head: Head, entries: Iterator[Entry], style: RowText, html: AnyPath | None = None, pager: bool = False
) -> None:
    """Prints rows, and records that were left out, or writes a page of them."""
    if html is not None:
        count = write_page(html, entries, head)
        print(f"{html}: {counted(count, 'record')} ({head.words}); open it in a browser")
        return
    screen = Screen(pager)
    texts = map(replace(style, marks=screen.marks).of, entries)
    first = next(texts, Text(f"nothing found: {head.words}".translate(VISIBLE)))
    above = Text().append_text(head.above).append_text(legend(screen.marks))
    screen.show(itertools.chain([above, first], texts, head.below))
