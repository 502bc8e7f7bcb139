"""Measures a process and its descendants. Linux only: memory is read from /proc."""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.2


class BenchmarkError(Exception):
    """An error of a benchmark; the message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a process and its descendants: wall and CPU seconds, peak bytes of memory."""

    wall: float
    cpu: float
    pss: int


@dataclass
class Watch:
    """Samples a process and its descendants in a thread, as a context manager.

    Attributes:
        pss: the highest sum of proportional set sizes, in bytes: a shared page counts once.
        anonymous: the highest sum of anonymous memory (no pages of files), in bytes.
    """

    root: psutil.Process
    pss: int = 0
    anonymous: int = 0
    _cpu: dict[psutil.Process, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is not None:
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes, from the last sample of each."""
        return sum(self._cpu.values())

    def _watch(self) -> None:
        self._sample()
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        pss = anonymous = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error, OSError):  # the process may have ended
                times = process.cpu_times()
                self._cpu[process] = times.user + times.system
                sizes = memory(process.pid)
                pss, anonymous = pss + sizes["Pss"], anonymous + sizes["Pss_Anon"]
        self.pss, self.anonymous = max(self.pss, pss), max(self.anonymous, anonymous)

    def _processes(self) -> set[psutil.Process]:
        """The process tree, and processes seen before: the tree lacks a child whose parent has ended."""
        found = {process for process in self._cpu if process.is_running()} | {self.root}
        with contextlib.suppress(psutil.Error):
            found.update(self.root.children(recursive=True))
        return found


def memory(pid: int) -> dict[str, int]:
    """`Pss` and `Pss_Anon` of a process in bytes; 0 for a zombie."""
    sizes = {"Pss": 0, "Pss_Anon": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes


def measure(command: Sequence[str], log: Path, code: Path | None = None) -> Usage:
    """Runs a command to its end. Its output goes to `log` and `log`.err.

    Args:
        command: the command.
        log: the file for its output.
        code: another checkout of the project, whose `beam_prep` the command imports.

    Raises:
        BenchmarkError: the command failed.
    """
    # Modules are compiled once, as for users.
    left_out = ("TOKENIZERS_PARALLELISM", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    if code is not None:
        environment["PYTHONPATH"] = str(code)
    errors = log.with_suffix(".err")
    with open(log, "wb") as out, open(errors, "wb") as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=code or ROOT, env=environment)
        with Watch(psutil.Process(process.pid)) as watch:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            wall = time.perf_counter() - started
            _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = "\n".join(errors.read_text(errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"exit code {process.returncode} of: {shlex.join(command)}\n{end}")
    # `usage` misses children that nobody waited for; `watch` misses the time after the last sample.
    cpu = max(usage.ru_utime + usage.ru_stime, watch.cpu)
    return Usage(wall, cpu, watch.pss)


def read_whole(path: Path) -> None:
    """Flushes earlier writes to the disk, and reads a file into the page cache, so that all tools start alike."""
    os.sync()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
