"""Prints texts with colours, or with marks where there are no colours."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

OPEN, CLOSE = "⟦", "⟧"
TRAINED, UNTRAINED, CAPTION = "bold green", "dim", "cyan"
VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
)
"""For `str.translate`. Text must not control the terminal: control and bidirectional characters are made visible."""


class Screen:
    """The terminal, file or pipe on which texts are printed.

    Attributes:
        marks: there are no colours, so trained tokens are put between `⟦` and `⟧`.
        width: characters of a line.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self.marks = self._console.color_system is None or self._console.no_color
        self.width = self._console.width

    def show(self, texts: Iterable[Text]) -> None:
        """Prints texts with a blank line after each."""
        with stop_when_reader_closes():
            for text in texts:
                if self.marks:
                    self._console.file.write(f"{text.plain}\n\n")  # rich would expand the tabs
                else:
                    self._console.print(text, end="\n\n", soft_wrap=True)


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
