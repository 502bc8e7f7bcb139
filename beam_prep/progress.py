"""Progress of a run: a bar in a terminal, plain lines in a log."""

import contextlib
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType

from beam_prep.core.data.block import InputFile

log = logging.getLogger("beam_prep")

_EVERY_TERMINAL, _EVERY_LOG = 0.5, 15.0


class Progress:
    """Shows what the workers report while a run lasts, one line for each block. A context manager.

    Args:
        folder: the folder of the workers' reports.
        inputs: the sum of their sizes is the goal, unless one is compressed.
    """

    def __init__(self, folder: str, inputs: Sequence[InputFile]) -> None:
        self._folder = Path(folder)
        plain = all(file.compression is None for file in inputs)
        self._goal = sum(file.size for file in inputs) if plain else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def counts(self) -> tuple[int, int, int]:
        """(bytes, lines, rejects) of the blocks that are done."""
        done = reported(str(self._folder))
        return done.bytes, done.lines, done.rejects

    def _watch(self) -> None:
        if sys.stderr.isatty():
            self._watch_terminal()
        else:
            while not self._stop.wait(_EVERY_LOG):
                log.info("%s", self._line())

    def _line(self) -> str:
        size, lines, rejects = self.counts()
        goal = f" of {self._goal / 1e6:,.0f}" if self._goal is not None else ""
        rate = size / 1e6 / max(time.monotonic() - self._started, 0.001)
        return f"{size / 1e6:,.0f}{goal} MB read, {lines:,} records, {rate:.1f} MB/s, {rejects:,} rejects"

    def _watch_terminal(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=self._goal)
            while not self._stop.wait(_EVERY_TERMINAL):
                bar.update(task, completed=self.counts()[0], description=self._line())


@dataclass(slots=True)
class Counts:
    """What was done to blocks: to one, or to all that were reported.

    Attributes:
        bytes, lines, rejects: of the input.
        blocks_made, bytes_made: those that were not in the spool already.
        spooled: bytes written to the spool.
        output_ratio: bytes of output for each byte in the spool; 0: not known.
    """

    bytes: int = 0
    lines: int = 0
    rejects: int = 0
    blocks_made: int = 0
    bytes_made: int = 0
    spooled: int = 0
    output_ratio: float = 0.0


def report_block(folder: str, done: Counts) -> None:
    """Appends a short line to the report of this process, which the launcher reads."""
    # A late retry may come when the launcher has removed the folder; or the launcher is on another machine.
    name = f"{platform.node()}-{os.getpid()}"
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "a") as file:
        file.write(" ".join(map(str, astuple(done))) + "\n")


def reported(folder: str) -> Counts:
    """The sums of all reports; of ratios, the smallest."""
    total, ratios = [0] * 6, list[float]()
    for path in Path(folder).glob("*"):
        for line in path.read_text().splitlines():
            fields = line.split()
            if len(fields) == len(total) + 1:  # the last line may be incomplete
                total = [one + int(other) for one, other in zip(total, fields[:-1], strict=True)]
                ratios += [float(fields[-1])] if float(fields[-1]) else []
    found = Counts(*total)
    found.output_ratio = min(ratios, default=0.0)
    return found
