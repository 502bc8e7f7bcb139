"""Progress of a run: bars in a terminal, plain lines in a log.

Workers append a line to a report for each block, and while they write shards; the launcher adds them up. If workers
share no folder with the launcher, the launcher asks the runner for the job's counters instead.
"""

import contextlib
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from beam_prep.data.block import InputFile

log = logging.getLogger("beam_prep")

_EVERY_TERMINAL, EVERY_LOG, FIRST_LOG = 0.5, 30.0, 5.0
_EVERY_SHARD = 0.25
"""Seconds between two reports of a worker that writes a shard."""
_WINDOW = 60.0
"""Seconds over which the speed is measured."""
_UNTIL_ENDED = 2.0
"""Seconds that the end of a run waits for a terminal that does not take output."""

Phase = Literal["tokenise", "plan", "write"]
PHASES: tuple[Phase, ...] = ("tokenise", "plan", "write")


@dataclass(slots=True)
class Counts:
    """Progress: of one block, or of all reports.

    Attributes:
        bytes, lines, rejects: of the input's content.
        stored: bytes of the input as stored, compressed or not.
        tokens: of kept records.
        trained, maybe_trained: trained tokens, and all tokens, of newly made blocks with a mask.
        planned: number of rows to write; known when there is a plan.
        written: number of written rows.
        plans: 1 when the plan begins.
    """

    bytes: int = 0
    lines: int = 0
    rejects: int = 0
    stored: int = 0
    tokens: int = 0
    trained: int = 0
    maybe_trained: int = 0
    planned: int = 0
    written: int = 0
    plans: int = 0

    def line(self) -> str:
        """The line of a report."""
        return " ".join(str(getattr(self, name)) for name in _NAMES)


_NAMES = tuple(field.name for field in fields(Counts))


def report_block(folder: str, done: Counts) -> None:
    """Appends a line to the report of this process, which the launcher reads."""
    # A late retry may come after the launcher removed the folder, or the launcher is on another machine.
    name = f"{platform.node()}-{os.getpid()}"
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "a") as file:
        file.write(done.line() + "\n")


@contextlib.contextmanager
def reported_rows(folder: str | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that gets numbers of written rows, and reports them a few times a second."""
    pending, last = 0, time.monotonic()

    def tell(rows: int) -> None:
        nonlocal pending, last
        pending += rows
        if folder is not None and pending and time.monotonic() - last > _EVERY_SHARD:
            report_block(folder, Counts(written=pending))
            pending, last = 0, time.monotonic()

    yield tell
    if folder is not None and pending:
        report_block(folder, Counts(written=pending))


def reported(folder: str) -> Counts:
    """The sums of all reports. Only one plan counts, because an engine may repeat the step."""
    rows = [[0] * len(_NAMES)]
    for path in Path(folder).glob("*"):
        with contextlib.suppress(OSError):  # the folder is removed at the end
            for line in path.read_bytes().split(b"\n")[:-1]:  # the last one may be incomplete
                with contextlib.suppress(ValueError):  # the worker was killed while it wrote the line
                    values = [*map(int, line.split())]
                    rows += [values] if len(values) == len(_NAMES) else []
    lines = np.array(rows, np.int64)
    found, most = Counts(*lines.sum(axis=0).tolist()), Counts(*lines.max(axis=0).tolist())
    return replace(found, planned=most.planned, plans=most.plans)


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


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run, from the reports.

    Attributes:
        phase: the current phase.
        done, goal: of the phase: bytes of the input as stored, or rows. `goal` None: unknown.
        words: a description, without the remaining time.
        left: seconds until the phase ends, at the speed of the last minute; None: unknown.
    """

    phase: Phase
    done: int
    goal: int | None
    words: str
    left: float | None = None

    @property
    def share(self) -> float | None:
        """The finished share, 0 to 1; None: unknown."""
        return min(self.done / self.goal, 1.0) if self.goal else None

    def line(self) -> str:
        """The whole state as a line."""
        share = "" if self.share is None else f" {self.share:.0%}"
        left = "" if self.left is None else f", about {lasting(self.left)} left"
        return f"{self.phase}{share}: {self.words}{left}"


def lasting(seconds: float) -> str:
    """A duration for people.

    >>> lasting(42.4), lasting(205), lasting(7320)
    ('42 s', '3 min 25 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def short(count: float) -> str:
    """A number with a unit, easy to read.

    >>> short(812), short(45_300), short(1_260_000)
    ('812', '45.3k', '1.3M')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


Ask = Callable[[], Mapping[str, int]]
"""Asks a runner for the job's counters: `stored`, `lines`, `rejected`, `tokens`; also `tasks`, and `tasks_done`."""


class Progress:
    """Shows the workers' reports during a run. A context manager. Its errors never fail the run.

    Args:
        folder: the folder of the workers' reports; None: it is not on this machine.
        inputs: the sum of their sizes, as stored, is the goal.
        limited: True: the output may end before the input does.
        clock: returns seconds.
    """

    def __init__(
        self,
        folder: str | None,
        inputs: Sequence[InputFile],
        limited: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._goal = sum(file.size for file in inputs)
        self._limited = limited
        self._clock = clock
        self._ask: Ask | None = None
        self._console: Any = None
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="beam_prep-progress")
        self._began: dict[Phase, float] = {"tokenise": clock()}
        self._seen: dict[Phase, deque[tuple[float, int]]] = {}

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self._thread.join(_UNTIL_ENDED)
        if self._thread.is_alive() and self._console is not None:
            with contextlib.suppress(OSError):
                self._console.show_cursor(True)

    def ask(self, how: Ask) -> None:
        """Sets the way to ask the runner, which is used if there are no reports."""
        self._ask = how

    def state(self) -> State:
        """The current state of the run."""
        counts = Counts() if self._folder is None else reported(self._folder)
        tasks: tuple[int, int] | None = None
        if self._ask is not None and not counts.bytes:
            asked = self._ask()
            counts.stored, counts.lines = asked.get("stored", 0), asked.get("lines", 0)
            counts.rejects, counts.tokens = asked.get("rejected", 0), asked.get("tokens", 0)
            tasks = (asked["tasks_done"], asked["tasks"]) if asked.get("tasks") else None
            counts.plans = int(0 < self._goal <= counts.stored)  # there is no counter of later phases
        phase: Phase = "tokenise"
        if counts.plans:
            phase = "write" if counts.planned else "plan"
        now = self._clock()
        elapsed = now - self._began.setdefault(phase, now)
        if phase == "tokenise":
            goal = None if self._limited or (not counts.stored and self._ask is not None) else self._goal
            done, words = counts.stored, self._of_tokenising(counts, elapsed, tasks)
        elif phase == "plan":
            done, goal, words = 0, None, f"{counts.lines:,} records, for {lasting(elapsed)}"
        else:
            done, goal = min(counts.written, counts.planned), counts.planned
            words = f"{done:,} of {goal:,} rows"
        return State(phase, done, goal, words, self._left(phase, now, done, goal))

    def _left(self, phase: Phase, now: float, done: int, goal: int | None) -> float | None:
        """Seconds until the goal, at the speed of the last minute: blocks in the token cache take no time."""
        seen = self._seen.setdefault(phase, deque([(self._began[phase], 0)]))
        if done > seen[-1][1]:
            seen.append((now, done))
        while len(seen) > 2 and now - seen[1][0] > _WINDOW:
            seen.popleft()
        (since, before), (_, latest) = seen[0], seen[-1]
        if not goal or latest <= before or now <= since:
            return None
        return max(goal - done, 0) * (now - since) / (latest - before)

    def _of_tokenising(self, counts: Counts, elapsed: float, tasks: tuple[int, int] | None) -> str:
        if not counts.lines:
            waited = f"for {lasting(elapsed)}"
            return (
                f"no block is done yet, {waited}"
                if tasks is None
                else f"{tasks[0]} of {tasks[1]} tasks of the job are done, {waited}"
            )
        seconds = max(elapsed, 0.001)
        digits = 0 if self._goal >= 10e6 else 1
        of = "" if self._limited else f" of {self._goal / 1e6:,.{digits}f}"
        parts = [
            f"{counts.stored / 1e6:,.{digits}f}{of} MB",
            f"{counts.lines:,} records",
            f"{counts.stored / 1e6 / seconds:.1f} MB/s",
        ]
        if counts.tokens:
            parts.append(f"{short(counts.tokens / seconds)} tokens/s")
        if counts.maybe_trained:
            parts.append(f"{counts.trained / counts.maybe_trained:.1%} trained")
        if counts.rejects:
            parts.append(f"{counts.rejects:,} rejects")
        return ", ".join(parts)

    def _watch(self) -> None:
        # Errors of a runner's answer, or of a closed terminal, must not disturb the run.
        with contextlib.suppress(Exception):
            if sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown"):
                self._watch_terminal()
            else:
                self.watch_log()

    def watch_log(self) -> None:
        """Logs a line soon, then one every half minute, and one when a long phase has ended."""
        wait, phase = FIRST_LOG, PHASES[0]
        due = self._clock() + wait
        while not self.stopped.wait(min(_EVERY_TERMINAL, max(due - self._clock(), 0.0))):
            if self._ask is not None and self._clock() < due:
                continue  # ask a runner no more often than needed
            state = self.state()
            if state.phase != phase:
                took = self._began[state.phase] - self._began[phase]
                if took >= FIRST_LOG:
                    log.info("%s: done in %s", phase, lasting(took))
                phase = state.phase
            if self._clock() >= due:
                log.info("%s", state.line())
                due = self._clock() + EVERY_LOG

    def _watch_terminal(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(),
            TextColumn("{task.fields[phase]:8}"),
            BarColumn(20),
            TextColumn("{task.description}"),
        )
        self._console = Console(stderr=True)
        with Bars(*columns, console=self._console, transient=True) as bars:
            shown: dict[Phase, Any] = {}
            while True:
                state = self.state()
                for phase in shown:
                    if phase != state.phase:
                        took = lasting(self._began[state.phase] - self._began[phase])
                        bars.update(shown[phase], total=1, completed=1, description=f"done in {took}")
                if state.phase not in shown:
                    shown[state.phase] = bars.add_task("", total=None, phase=state.phase)
                left = (
                    "" if state.left is None else f"{lasting(state.left)} left, "
                )  # first: a narrow window cuts the end
                bars.update(
                    shown[state.phase],
                    total=state.goal,
                    completed=min(state.done, state.goal or 0),
                    description=left + state.words,
                )
                if self.stopped.wait(_EVERY_TERMINAL if self._ask is None else FIRST_LOG):
                    return
