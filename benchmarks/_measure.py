"""Measuring a process and all that it starts. Linux only: memory is read from /proc."""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.2


class BenchmarkError(Exception):
    """What is missing or went wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all its descendants used: seconds, and bytes at the peak.

    Attributes:
        own: CPU seconds of the process itself, without its descendants.
    """

    wall: float
    cpu: float
    pss: int
    anonymous: int
    own: float = 0.0


@dataclass
class Watch:
    """Samples a process and its descendants in a thread, as a context manager.

    Attributes:
        pss: the highest sum of proportional set sizes, in bytes: a shared page counts once.
        anonymous: the highest sum of the part of it that is no page of a file.
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
        """CPU seconds of all processes, as last seen of each."""
        return sum(self._cpu.values())

    def _watch(self) -> None:
        self._sample()
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        pss = anonymous = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error, OSError):  # it may have ended meanwhile
                times = process.cpu_times()
                self._cpu[process] = times.user + times.system
                sizes = memory(process.pid)
                pss, anonymous = pss + sizes["Pss"], anonymous + sizes["Pss_Anon"]
        self.pss, self.anonymous = max(self.pss, pss), max(self.anonymous, anonymous)

    def _processes(self) -> set[psutil.Process]:
        """The tree, and those seen earlier: a child whose parent has ended is no longer found in the tree."""
        found = {process for process in self._cpu if process.is_running()} | {self.root}
        with contextlib.suppress(psutil.Error):
            found.update(self.root.children(recursive=True))
        return found


def memory(pid: int) -> dict[str, int]:
    """`Pss` and `Pss_Anon` of a process in bytes; zeros for a zombie, which has none."""
    sizes = {"Pss": 0, "Pss_Anon": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes


def measure(command: Sequence[str], log: Path, cores: Collection[int] = (), code: Path | None = None) -> Usage:
    """Runs a command to its end. Its output goes to `log` and `log`.err.

    Args:
        cores: numbers of the processors that it may use; none: those of this process.
        code: another checkout of the project, whose `beam_prep` it is to import.

    Raises:
        BenchmarkError: it failed.
    """
    # As users have it: modules are compiled once.
    left_out = ("TOKENIZERS_PARALLELISM", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    if code is not None:
        environment["PYTHONPATH"] = str(code)
    errors = log.with_suffix(".err")
    with open(log, "wb") as out, open(errors, "wb") as err:
        started = time.perf_counter()
        with _bound_to(cores):
            process = subprocess.Popen(command, stdout=out, stderr=err, cwd=code or ROOT, env=environment)
        with Watch(psutil.Process(process.pid)) as watch:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            wall = time.perf_counter() - started
            own = watch.root.cpu_times()  # of one that has ended, and is not yet forgotten
            _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = "\n".join(errors.read_text(errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"exit code {process.returncode} of: {shlex.join(command)}\n{end}")
    # The first misses children that nobody waited for, the second what was used after the last sample.
    cpu = max(usage.ru_utime + usage.ru_stime, watch.cpu)
    return Usage(wall, cpu, watch.pss, watch.anonymous, own.user + own.system)


@contextlib.contextmanager
def _bound_to(cores: Collection[int]) -> Iterator[None]:
    """What is started within may use these processors alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def prepare_disk(corpus: Path, cold: bool = False) -> None:
    """What earlier runs wrote is on the disk, and the corpus is in the page cache, or not: the same start for all."""
    os.sync()
    with open(corpus, "rb", buffering=0) as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return
        while file.read(1 << 24):
            pass


def make_corpus(shared: Path, kind: str, megabytes: float, cache: Path) -> Path:
    """A `chat` or `text` corpus of that size, made unless it is there."""
    path = cache / f"{kind}_{megabytes:g}mb.jsonl"
    # It ends with the line that reaches the size.
    if path.exists() and megabytes * 1e6 <= path.stat().st_size < megabytes * 1e6 + 1e6:
        return path
    say(f"making {path}")
    cache.mkdir(parents=True, exist_ok=True)
    script = shared / "bench" / "make_corpus.py"
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        subprocess.run([sys.executable, script, kind, f"{megabytes:g}", part], check=True, stdout=subprocess.DEVNULL)
        part.replace(path)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"{script} failed with exit code {error.returncode}") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def check_material(shared: Path, tokenizer: Path) -> None:
    """Finds what is missing before anything is measured.

    Raises:
        BenchmarkError: with what to do.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise BenchmarkError("memory is read from /proc/PID/smaps_rollup, which this system has not: run it on Linux")
    script = shared / "bench" / "make_corpus.py"
    if not script.is_file():
        raise BenchmarkError(
            f"no test material at {shared} (wanted {script}): pass --shared DIR, or set BEAM_PREP_SHARED"
        )
    if not (tokenizer / "tokenizer.json").is_file():
        raise BenchmarkError(f"--tokenizer {tokenizer}: no tokenizer.json there; give a tokenizer's folder")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
