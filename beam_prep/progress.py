"""Progress of a run: bars in a terminal, plain lines in a log.

Workers append a line to a report for each block and each shard; the launcher adds them up. If workers
share no folder with the launcher, their runner's own page shows the job's counters, and nothing is shown here.
"""

import contextlib
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from beam_prep.data.block import InputFile

if TYPE_CHECKING:
    from rich.progress import Task

log = logging.getLogger("beam_prep")

EVERY_LOG, FIRST_LOG = 30.0, 5.0
_EVERY_LOOK = 0.5
"""Seconds between two looks at the reports."""
_WINDOW = 60.0
"""Seconds over which the remaining time is estimated: blocks in the token cache take no time."""
_UNTIL_ENDED = 2.0
"""Seconds that the end of a run waits for a terminal that does not take output."""

_LARGEST = ("plans", "planned")
"""Counts of a step that an engine may repeat."""


def report(folder: str | None, **counts: int) -> None:
    """Appends a line to the report of this process, which the launcher reads.

    Args:
        folder: the folder of the reports; None: nobody reads them.
        counts: of a block: `lines`, `rejected`, `stored` (bytes of the input, compressed or not) and `tokens` (of kept
            records); of a new block with a mask also `trained` and `maybe_trained`. Of the plan: `plans`, 1 when it
            begins, and `planned` rows. Of a shard: `written` rows.
    """
    if folder is None:
        return
    # A late retry may come after the launcher removed the folder, or the launcher is on another machine.
    name = f"{platform.node()}-{os.getpid()}"
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "ab") as file:
        file.write(orjson.dumps(counts) + b"\n")


def reported(folder: str) -> Counter[str]:
    """The sums of all reports."""
    found: Counter[str] = Counter()
    for path in Path(folder).glob("*"):
        with contextlib.suppress(OSError):  # the folder is removed at the end
            for line in path.read_bytes().split(b"\n")[:-1]:  # the last one may be incomplete
                with contextlib.suppress(ValueError):  # the worker was killed while it wrote the line
                    for name, count in orjson.loads(line).items():
                        found[name] = max(found[name], count) if name in _LARGEST else found[name] + count
    return found


@contextlib.contextmanager
def reports_folder(shared: str | None, here: bool) -> Iterator[str | None]:
    """The folder of the workers' reports; None: they share no folder with this process.

    Args:
        shared: a folder on a shared disk.
        here: True: the workers are processes of this machine, so a temporary folder is enough.
    """
    if shared is not None or not here:
        yield shared
        return
    with tempfile.TemporaryDirectory(prefix="beam_prep-progress-", ignore_cleanup_errors=True) as folder:
        yield folder


def lasting(seconds: float) -> str:
    """A duration for people.

    >>> lasting(42.4), lasting(205), lasting(7320)
    ('42 s', '3 min 25 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """Shows the workers' reports during a run. A context manager. Its errors never fail the run.

    Args:
        folder: the folder of the workers' reports.
        inputs: the sum of their sizes, as stored, is the goal.
        limited: True: the output may end before the input does.
        clock: returns seconds.
    """

    def __init__(
        self,
        folder: str,
        inputs: Sequence[InputFile],
        limited: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich import progress
        from rich.console import Console

        self._folder = folder
        self._goal = sum(file.size for file in inputs)
        self._limited = limited
        self._clock = clock
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="beam_prep-progress")
        console = Console(file=sys.stderr)
        is_terminal = sys.stderr.isatty() and not console.is_dumb_terminal
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.fields[phase]:8}"),
            progress.BarColumn(20),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.description}"),
            console=console,
            speed_estimate_period=_WINDOW,
            transient=True,
            redirect_stderr=False,  # the runner hides what threads of Beam write there
            get_time=clock,
            disable=not is_terminal,
        )
        self._task = self._begun("tokenise")

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._thread.join(_UNTIL_ENDED)

    def line(self) -> str:
        """Looks at the reports, and moves the bars. Returns the state of the run in a line."""
        counts = reported(self._folder)
        phase = "tokenise" if not counts["plans"] else "write" if counts["planned"] else "plan"
        if phase != self._task.fields["phase"]:
            self._end()
            self._task = self._begun(phase)
        elapsed = self._task.elapsed or 0.0
        done, goal, words = 0, None, f"{counts['lines']:,} records, for {lasting(elapsed)}"
        if phase == "tokenise":
            goal = None if self._limited else self._goal
            done, words = counts["stored"], self._of_tokenising(counts, elapsed)
        elif phase == "write":
            done, goal = min(counts["written"], counts["planned"]), counts["planned"]
            words = f"{done:,} of {goal:,} rows"
        self._bars.update(self._task.id, total=goal, completed=done, description=words)
        share = "" if goal is None else f" {self._task.percentage:.0f}%"
        left = self._task.time_remaining
        return f"{phase}{share}: {words}{'' if left is None else f', about {lasting(left)} left'}"

    def _begun(self, phase: str) -> "Task":
        self._bars.add_task("", total=None, phase=phase)
        return self._bars.tasks[-1]

    def _end(self) -> None:
        """Ends the phase, with a line in the log if it was long."""
        took = self._task.elapsed or 0.0
        self._bars.update(self._task.id, total=1, completed=1, description=f"done in {lasting(took)}")
        if self._bars.disable and took >= FIRST_LOG:
            log.info("%s: done in %s", self._task.fields["phase"], lasting(took))

    def _of_tokenising(self, counts: Counter[str], elapsed: float) -> str:
        if not counts["lines"]:
            return f"no block is done yet, for {lasting(elapsed)}"
        seconds = max(elapsed, 0.001)
        digits = 0 if self._goal >= 10e6 else 1
        of = "" if self._limited else f" of {self._goal / 1e6:,.{digits}f}"
        parts = [
            f"{counts['stored'] / 1e6:,.{digits}f}{of} MB",
            f"{counts['lines']:,} records",
            f"{counts['stored'] / 1e6 / seconds:.1f} MB/s",
        ]
        if counts["tokens"]:
            parts.append(f"{counts['tokens'] / seconds:,.0f} tokens/s")
        if counts["maybe_trained"]:
            parts.append(f"{counts['trained'] / counts['maybe_trained']:.1%} trained")
        if counts["rejected"]:
            parts.append(f"{counts['rejected']:,} rejects")
        return ", ".join(parts)

    def _watch(self) -> None:
        """Shows the state soon, then every half minute, and bars all the time."""
        due = self._clock() + FIRST_LOG
        with contextlib.suppress(OSError, ValueError), self._bars:  # a closed terminal must not disturb the run
            while not self.stopped.wait(_EVERY_LOOK):
                line = self.line()
                if self._bars.disable and self._clock() >= due:
                    log.info("%s", line)
                    due = self._clock() + EVERY_LOG
