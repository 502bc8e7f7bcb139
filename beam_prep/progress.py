"""Progress of a run: a line that changes in a terminal, lines in a log.

Workers append a line to a report for each block and each shard; the launcher adds them up. If workers share no folder
with the launcher, their runner's own page shows the job's counters, and nothing is shown here.
"""

import contextlib
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import orjson

from beam_prep.data.block import InputFile

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
            records). Of the plan: `plans`, 1 when it begins, and `planned` rows. Of a shard: `written` rows.
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

    >>> lasting(42.4), lasting(7320)
    ('0:00:42', '2:02:00')
    """
    return str(timedelta(seconds=round(seconds)))


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
        from rich.console import Console

        self._folder = folder
        self._goal = sum(file.size for file in inputs)
        self._limited = limited
        self._clock = clock
        self._begin("tokenise")
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="beam_prep-progress")
        self._console = Console(file=sys.stderr)
        self._in_terminal = sys.stderr.isatty() and not self._console.is_dumb_terminal

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._thread.join(_UNTIL_ENDED)

    def line(self) -> str:
        """Looks at the reports. Returns the state of the run in a line."""
        counts = reported(self._folder)
        phase = "tokenise" if not counts["plans"] else "write" if counts["planned"] else "plan"
        if phase != self._phase:
            took = self._clock() - self._began
            if not self._in_terminal and took >= FIRST_LOG:
                log.info("%s: done in %s", self._phase, lasting(took))
            self._begin(phase)
        elapsed = self._clock() - self._began
        if phase == "plan":
            return f"plan: {counts['lines']:,} records, for {lasting(elapsed)}"
        if phase == "write":
            done, goal = min(counts["written"], counts["planned"]), counts["planned"]
            return f"write {self._share(done, goal, f'{done:,} of {goal:,} rows')}"
        words = self._of_tokenising(counts, elapsed)
        return f"tokenise: {words}" if self._limited else f"tokenise {self._share(counts['stored'], self._goal, words)}"

    def _begin(self, phase: str) -> None:
        self._phase, self._began = phase, self._clock()
        self._seen: deque[tuple[float, int]] = deque()

    def _share(self, done: int, goal: int, words: str) -> str:
        """The share that is done, and the time that is left by the speed of the last minute."""
        now = self._clock()
        self._seen.append((now, done))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        began, less = self._seen[0]
        left = f", about {lasting((goal - done) * (now - began) / (done - less))} left" if done > less else ""
        return f"{100 * done / max(goal, 1):.0f}%: {words}{left}"

    def _of_tokenising(self, counts: Counter[str], elapsed: float) -> str:
        if not counts["lines"]:
            return f"no block is done yet, for {lasting(elapsed)}"
        seconds = max(elapsed, 0.001)
        of = "" if self._limited else f" of {self._goal / 1e6:,.1f}"
        parts = [
            f"{counts['stored'] / 1e6:,.1f}{of} MB",
            f"{counts['lines']:,} records",
            f"{counts['stored'] / 1e6 / seconds:.1f} MB/s",
        ]
        if counts["tokens"]:
            parts.append(f"{counts['tokens'] / seconds:,.0f} tokens/s")
        if counts["rejected"]:
            parts.append(f"{counts['rejected']:,} rejects")
        return ", ".join(parts)

    def _watch(self) -> None:
        """Shows the state soon, then every half minute; in a terminal all the time."""
        from rich.live import Live
        from rich.spinner import Spinner

        spinner, due = Spinner("dots"), self._clock() + FIRST_LOG
        # The runner hides what threads of Beam write to stderr.
        shown = Live(spinner, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False)
        # A closed terminal must not disturb the run.
        with contextlib.suppress(OSError, ValueError), shown if self._in_terminal else contextlib.nullcontext():
            while not self.stopped.wait(_EVERY_LOOK):
                line = self.line()
                spinner.update(text=line)
                if not self._in_terminal and self._clock() >= due:
                    log.info("%s", line)
                    due = self._clock() + EVERY_LOG
