"""Whole processes side by side: `beam-prep run` and Hugging Face `datasets.map`, on the same chat corpora.

    python benchmarks/end_to_end.py --markdown docs/performance.md     # what docs/performance.md shows
    python benchmarks/end_to_end.py --quick                            # one small corpus, one run each

Needs Linux, `pip install datasets`, and the folder of test material (`--shared`). What is measured and what it means
stands in docs/performance.md.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "sft_chat.json"
BEGIN, END = "<!-- end_to_end: begin -->", "<!-- end_to_end: end -->"
LIBRARIES = ("beam-prep", "apache-beam", "datasets", "transformers", "tokenizers", "pyarrow", "numpy")
SAMPLE_SECONDS = 0.2


class BenchmarkError(Exception):
    """What is missing or went wrong, and what to do."""


# Measuring a process and all that it starts


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all its descendants used: seconds, and bytes at the peak."""

    wall: float
    cpu: float
    pss: int
    anonymous: int


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


def measure(command: Sequence[str], log: Path) -> Usage:
    """Runs a command to its end. Its output goes to `log` and `log`.err.

    Raises:
        BenchmarkError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    errors = log.with_suffix(".err")
    with open(log, "wb") as out, open(errors, "wb") as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, env=environment)
        with Watch(psutil.Process(process.pid)) as watch:
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = "\n".join(errors.read_text(errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"exit code {process.returncode} of: {shlex.join(command)}\n{end}")
    # The first misses children that nobody waited for, the second what was used after the last sample.
    cpu = max(usage.ru_utime + usage.ru_stime, watch.cpu)
    return Usage(wall, cpu, watch.pss, watch.anonymous)


# The two tools


@dataclass(frozen=True, slots=True)
class Written:
    """What a run wrote. `left_out`: records dropped or rejected."""

    rows: int
    tokens: int
    trained: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one tool; `tool` is its name and how it ran."""

    tool: str
    usage: Usage
    written: Written


def run_ours(corpus: Path, tokenizer: Path, work: Path) -> Run:
    """`beam-prep run` as a user calls it, its runner not named."""
    output = work / "ours"
    clear(output, work / ".beam_prep")
    command = [sys.executable, "-m", "beam_prep.cli", "run", str(corpus), "-o", str(output)]
    command += ["-c", str(CONFIG), "--tokenizer_path", str(tokenizer)]
    usage = measure(command, work / "ours.log")
    how = json.loads((output / "run.json").read_bytes())["how"].removeprefix("runner: ")
    manifest = json.loads((output / "manifest.json").read_bytes())
    totals, ledger = manifest["totals"], manifest["ledger"]
    left_out = sum(ledger["dropped"].values()) + sum(ledger["rejected"].values())
    written = Written(totals["rows"], totals["tokens"]["sequence"], totals["trained"]["loss_mask"], left_out)
    clear(output, work / ".beam_prep")
    return Run(f"beam-prep, {how}", usage, written)


def run_peer(script: Path, corpus: Path, tokenizer: Path, processes: int, work: Path) -> Run:
    """Hugging Face `datasets.map` and `save_to_disk`."""
    output, log = work / "peer", work / "peer.log"
    clear(output)
    command = [sys.executable, str(script), str(corpus), str(output), str(tokenizer), str(processes)]
    usage = measure(command, log)
    result = json.loads(log.read_text().splitlines()[-1])
    clear(output)
    written = Written(result["rows"], result["tokens"], result["label_tokens"])
    return Run(f"datasets.map, {processes} processes", usage, written)


def clear(*folders: Path) -> None:
    """Nothing of an earlier run is there to be used again."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Case:
    """All runs of both tools on one corpus with one tokenizer.

    Attributes:
        size: of the corpus, in bytes.
        encoding: CPU seconds of the tokenizer alone; only where it was measured.
    """

    tokenizer: str
    size: int
    ours: list[Run]
    peer: list[Run]
    encoding: float | None = None

    @property
    def mb(self) -> str:
        return f"{self.size / 1e6:,.0f}"


def compare(corpus: Path, tokenizer: Path, repeats: int, tools: Sequence[Callable[..., Run]], work: Path) -> Case:
    """Runs the tools in turns: ours, peer, ours, peer, ...

    Raises:
        BenchmarkError: a run failed, or the tools do not agree about the rows.
    """
    runs: list[list[Run]] = [[] for _ in tools]
    for repeat in range(repeats):
        for tool, done in zip(tools, runs, strict=True):
            prepare_disk(corpus)
            run = tool(corpus=corpus, tokenizer=tokenizer, work=work)
            done.append(run)
            note = f"{run.usage.wall:.1f} s, {run.usage.pss / 1e6:,.0f} MB at the peak"
            say(f"{tokenizer.name}, {corpus.name}, run {repeat + 1} of {repeats}: {run.tool}: {note}")
            check_agreement(runs)
    return Case(tokenizer.name, corpus.stat().st_size, runs[0], runs[1] if len(runs) > 1 else [])


def prepare_disk(corpus: Path) -> None:
    """What earlier runs wrote is on the disk, and the corpus is in the page cache: the same start for all."""
    os.sync()
    with open(corpus, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def check_agreement(runs: Sequence[Sequence[Run]]) -> None:
    """Every run of a tool wrote the same, and both tools account for the same number of rows."""
    for done in runs:
        if len({run.written for run in done}) > 1:
            raise BenchmarkError(f"{done[0].tool}: two runs differ: {sorted({str(run.written) for run in done})}")
    if len({done[-1].written.rows + done[-1].written.left_out for done in runs if done}) > 1:
        raise BenchmarkError("the tools disagree: " + "; ".join(f"{d[-1].tool}: {d[-1].written}" for d in runs if d))


def encoding_seconds(corpus: Path, tokenizer: Path) -> float:
    """CPU seconds that the Rust tokenizer takes for the contents of all messages, called as beam-prep calls it.

    Without what the template puts around them, and with no second process beside it: not more than it takes in a run.
    """
    from tokenizers import Tokenizer

    say(f"{tokenizer.name}, {corpus.name}: the tokenizer alone")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    encoder.no_padding()
    encoder.no_truncation()
    seconds = 0.0
    with open(corpus, "rb") as lines:
        while rows := [json.loads(line) for line in itertools.islice(lines, 2000)]:
            texts = [message["content"] for row in rows for message in row["messages"]]
            started = time.process_time()
            for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
                encoding.ids  # noqa: B018  (asking makes the list)
            seconds += time.process_time() - started
    return seconds


# Corpora


def make_corpus(script: Path, megabytes: float, cache: Path) -> Path:
    """A chat corpus of that size, made unless it is there."""
    path = cache / f"chat_{megabytes:g}mb.jsonl"
    # It ends with the line that reaches the size.
    if path.exists() and megabytes * 1e6 <= path.stat().st_size < megabytes * 1e6 + 1e6:
        return path
    say(f"making {path}")
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        subprocess.run([sys.executable, script, "chat", f"{megabytes:g}", part], check=True, stdout=subprocess.DEVNULL)
        part.replace(path)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"{script} failed with exit code {error.returncode}") from None
    finally:
        part.unlink(missing_ok=True)
    return path


# The report


def report(cases: Sequence[Case], arguments: Sequence[str]) -> str:
    """All that was measured, as Markdown."""
    parts = [machine(), usage_table(cases)]
    if any(case.peer for case in cases):
        parts.append(ratio_table([case for case in cases if case.peer]))
    if findings := growth(cases) + encoding_share(cases):
        parts.append("\n".join(findings))
    parts += [rows_table(cases), f"Command: `{shlex.join(['python', 'benchmarks/end_to_end.py', *arguments])}`"]
    return "\n\n".join(parts)


def machine() -> str:
    """When, on what and with what it was measured."""
    cores = len(os.sched_getaffinity(0))
    versions = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    total = psutil.virtual_memory().total / 1e9
    return (
        f"{datetime.date.today()}: {cpu_model()}, {cores} cores, {total:.1f} GB memory, Linux {platform.release()}; "
        f"{', '.join(versions)}."
    )


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def usage_table(cases: Sequence[Case]) -> str:
    header = ["tokenizer", "MB", "tool", "wall s, median (min-max)", "MB/s", "CPU s", "peak PSS MB", "anonymous MB"]
    rows = []
    for case in cases:
        for runs in filter(None, (case.ours, case.peer)):
            walls = [run.usage.wall for run in runs]
            wall = statistics.median(walls)
            spread = f"{wall:.1f} ({min(walls):.1f}-{max(walls):.1f})"
            numbers = [f"{case.size / 1e6 / wall:.1f}", f"{median(runs, 'cpu'):.1f}"]
            numbers += [f"{median(runs, name) / 1e6:,.0f}" for name in ("pss", "anonymous")]
            rows.append([case.tokenizer, case.mb, runs[0].tool, spread, *numbers])
    return table(header, rows, left=(0, 2))


def median(runs: Sequence[Run], name: str) -> float:
    """Of one field of `Usage`."""
    return float(statistics.median(getattr(run.usage, name) for run in runs))


def ratio_table(cases: Sequence[Case]) -> str:
    """How many times what beam-prep takes the peer takes."""
    names = ("wall", "cpu", "pss", "anonymous")
    header = ["tokenizer", "MB", *(f"peer / beam-prep: {name}" for name in ("wall", "CPU", "peak PSS", "anonymous"))]
    rows = [
        [case.tokenizer, case.mb, *(f"{median(case.peer, name) / median(case.ours, name):.2f}" for name in names)]
        for case in cases
    ]
    return table(header, rows, left=(0,))


def growth(cases: Sequence[Case]) -> list[str]:
    """Per tokenizer: beam-prep's peak memory on the largest corpus over that on the smallest."""
    lines = []
    for tokenizer in dict.fromkeys(case.tokenizer for case in cases):
        mine = sorted((case for case in cases if case.tokenizer == tokenizer), key=lambda case: case.size)
        if len(mine) > 1:
            small, large = mine[0], mine[-1]
            ratio = median(large.ours, "pss") / median(small.ours, "pss")
            lines.append(
                f"* {tokenizer}: peak PSS of beam-prep at {large.mb} MB over that at {small.mb} MB: {ratio:.2f}"
            )
    return lines


def encoding_share(cases: Sequence[Case]) -> list[str]:
    """How much of beam-prep's CPU time is the tokenizer's."""
    return [
        f"* {case.tokenizer}: the tokenizer alone takes {case.encoding:.1f} CPU s for the messages of {case.mb} MB, "
        f"{case.encoding / median(case.ours, 'cpu'):.0%} of the CPU time of beam-prep"
        for case in cases
        if case.encoding is not None
    ]


def rows_table(cases: Sequence[Case]) -> str:
    """What each tool wrote."""
    header = ["tokenizer", "MB", "tool", "rows", "left out", "tokens", "trained tokens"]
    rows = []
    for case in cases:
        for run in (runs[-1] for runs in (case.ours, case.peer) if runs):
            done = run.written
            counts = [f"{count:,}" for count in (done.rows, done.left_out, done.tokens, done.trained)]
            rows.append([case.tokenizer, case.mb, run.tool.partition(",")[0], *counts])
    return table(header, rows, left=(0, 2))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """A Markdown table that also reads well as plain text; columns not in `left` are aligned right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if column in left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(line(cells) for cells in (header, rule, *rows))


def split_at_markers(path: Path) -> tuple[str, str]:
    """What stands before and after the part that is rewritten.

    Raises:
        BenchmarkError: it cannot be found.
    """
    if not path.is_file():
        raise BenchmarkError(f"--markdown {path}: no such file")
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkError(f"--markdown {path}: the lines {BEGIN} and {END} are not in it: add them where it belongs")
    return before, after


def write_markdown(path: Path, text: str) -> None:
    """Puts `text` between the markers of a file."""
    before, after = split_at_markers(path)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


# The command line


def _size(text: str) -> tuple[float, int | None]:
    """`800` or `800:1`: megabytes, and how often that size is run."""
    megabytes, _, repeats = text.partition(":")
    return float(megabytes), int(repeats) if repeats else None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    shared = os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--sizes",
        type=_size,
        nargs="+",
        default=[(100, None), (200, None), (800, None)],
        metavar="MB[:N]",
        help="default: 100 200 800; 800:1 runs that size once",
    )
    add("--repeats", type=int, default=3, metavar="N", help="runs of each tool on each corpus (default: 3)")
    add("--tokenizer", type=Path, nargs="+", metavar="DIR", help="default: tokenizers/mm_chatml of the shared folder")
    add(
        "--shared",
        type=Path,
        default=Path(shared),
        metavar="DIR",
        help=f"the test material (default: BEAM_PREP_SHARED, or beside the project; now {shared})",
    )
    add(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir(), "beam_prep_benchmarks"),
        metavar="DIR",
        help="corpora are kept here, and the outputs while they are measured (default: %(default)s)",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    add("--peer_processes", type=int, default=cores, metavar="N", help=f"default: one a core, as ours ({cores})")
    add("--skip_peer", action="store_true", help="measure beam-prep alone")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the report into FILE, behind {BEGIN}")
    add("--quick", action="store_true", help="a smoke test: --sizes 20 --repeats 1")
    given = parser.parse_args(arguments)
    if given.quick:
        given.sizes, given.repeats = [(20, None)], 1
    if given.repeats < 1 or given.peer_processes < 1 or min(given.sizes)[0] <= 0:
        parser.error("--sizes, --repeats and --peer_processes must be positive")
    given.shared, given.cache = given.shared.resolve(), given.cache.resolve()
    given.tokenizer = [path.resolve() for path in given.tokenizer or [given.shared / "tokenizers" / "mm_chatml"]]
    return given


def check(given: argparse.Namespace) -> None:
    """Finds what is missing before anything is measured.

    Raises:
        BenchmarkError: with what to do.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise BenchmarkError("memory is read from /proc/PID/smaps_rollup, which this system has not: run it on Linux")
    if not (given.shared / "bench" / "make_corpus.py").is_file():
        raise BenchmarkError(
            f"no test material at {given.shared} (wanted {given.shared / 'bench' / 'make_corpus.py'}): "
            "pass --shared DIR, or set BEAM_PREP_SHARED"
        )
    for tokenizer in given.tokenizer:
        if not (tokenizer / "tokenizer.json").is_file():
            raise BenchmarkError(f"--tokenizer {tokenizer}: no tokenizer.json there; give a tokenizer's folder")
    if not given.skip_peer and importlib.util.find_spec("datasets") is None:
        raise BenchmarkError(
            "the peer needs `datasets`, which is not installed; type\n"
            f"  {shlex.quote(sys.executable)} -m pip install datasets\n"
            "or pass --skip_peer to measure beam-prep alone"
        )
    if given.markdown is not None:
        split_at_markers(given.markdown)


def tools_of(given: argparse.Namespace) -> Iterator[Callable[..., Run]]:
    yield run_ours
    if not given.skip_peer:
        script = given.shared / "bench" / "peer_hf_datasets.py"
        yield lambda **job: run_peer(script, processes=given.peer_processes, **job)


def benchmark(given: argparse.Namespace) -> list[Case]:
    """Measures every tokenizer on every corpus."""
    given.cache.mkdir(parents=True, exist_ok=True)
    script = given.shared / "bench" / "make_corpus.py"
    corpora = [(make_corpus(script, megabytes, given.cache), times) for megabytes, times in given.sizes]
    tools = list(tools_of(given))
    with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
        cases = [
            compare(corpus, tokenizer, repeats or given.repeats, tools, Path(work))
            for tokenizer in given.tokenizer
            for corpus, repeats in corpora
        ]
    smallest = min((corpus for corpus, _ in corpora), key=lambda corpus: corpus.stat().st_size)
    for number, (tokenizer, (corpus, _)) in enumerate(itertools.product(given.tokenizer, corpora)):
        if corpus == smallest:
            cases[number] = replace(cases[number], encoding=encoding_seconds(corpus, tokenizer))
    return cases


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    try:
        check(given)
        text = report(benchmark(given), sys.argv[1:] if arguments is None else arguments)
        print(text)
        if given.markdown is not None:
            write_markdown(given.markdown, text)
            say(f"written into {given.markdown}")
    except BenchmarkError as error:
        say(f"end_to_end: {error}")
        return 1
    except KeyboardInterrupt:  # what was running is killed already
        say("end_to_end: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
