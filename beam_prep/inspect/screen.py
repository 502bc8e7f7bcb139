"""Prints texts to a terminal, a pager, a file or a pipe; and the styles of trained and other tokens."""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

OPEN, CLOSE = "⟦", "⟧"
TRAINED, UNTRAINED, CAPTION, FOUND = "bold green", "dim", "cyan", "black on bright_yellow"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1 when the reader closes the pipe."""
        raise BrokenPipeError


class Screen:
    """The terminal, file or pipe on which texts are printed.

    Args:
        pager: in a terminal, pass the texts to `$PAGER`, or to `less -R`.

    Attributes:
        marks: True without colours: then trained tokens are put between `⟦` and `⟧`.
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
            with contextlib.suppress(BrokenPipeError):  # the reader left the pager
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
                pager.communicate()  # closes its input, and waits until the reader leaves it

    def _print(self, texts: Iterable[Text], console: Console) -> None:
        for text in texts:
            if self.marks:
                console.file.write(f"{text.plain}\n\n")  # rich would expand the tabs
            else:
                console.print(text, end="\n\n", soft_wrap=True)


def _started_pager() -> "subprocess.Popen[str] | None":
    """Starts `$PAGER`, or `less -R`. None if `$PAGER` is empty or `cat`, or the program is not there."""
    words = shlex.split(os.environ.get("PAGER", "less"))
    if not words or words == ["cat"]:
        return None
    if words == ["less"]:
        words = ["less", "-R"]
    settings = {"LESS": "FRX", **os.environ}  # as in git: less prints a text of one screen, and ends
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
