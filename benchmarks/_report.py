"""The log of runs, and the tables that are made of it."""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _jobs import JOBS, LIMIT, MAP, OURS, PACKED, TEXT_MAP, Done, Job, Written
from _measure import BenchmarkError, Usage, say
from _page import shown, table, write_markdown


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. `megabytes`: the size that was asked for; `size`: of the corpus in bytes."""

    job: str
    megabytes: float
    size: int
    tool: str
    done: Done


@dataclass
class Log:
    """What one or more invocations left.

    Attributes:
        sessions: `machine` and `command` of each invocation.
        runs: in the order in which they ended.
        rows: (job, megabytes) -> what `compare_rows` found.
    """

    sessions: list[dict[str, str]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    rows: dict[tuple[str, float], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "Log":
        """The lines of several files.

        Raises:
            BenchmarkError: a file is missing, or no log.
        """
        log = cls()
        for path in paths:
            try:
                for line in path.read_text(encoding="utf-8").splitlines():
                    log.add(json.loads(line))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BenchmarkError(f"{path} is no log of this benchmark: {error}") from None
        return log

    def add(self, line: dict[str, Any]) -> None:
        """A line of a log."""
        if "session" in line:
            self.sessions.append(line["session"])
        elif "rows" in line:
            self.rows[line["job"], line["megabytes"]] = line["rows"]
        else:
            run = line["run"]
            done = run["done"]
            usage, written = Usage(**done.pop("usage")), Written(**done.pop("written"))
            self.runs.append(Run(**{**run, "done": Done(usage, written, **done)}))

    def of(self, job: str, megabytes: float, tool: str) -> list[Run]:
        """The runs of a tool on a corpus."""
        return [run for run in self.runs if (run.job, run.megabytes, run.tool) == (job, megabytes, tool)]

    def sizes(self, job: str) -> list[float]:
        """Of the corpora on which a job ran."""
        return sorted({run.megabytes for run in self.runs if run.job == job})


def run_line(run: Run) -> dict[str, Any]:
    """A finished run as a line of a log."""
    return {"run": asdict(run)}


# What must be shown


@dataclass(frozen=True, slots=True)
class Value:
    """A number of each run of a tool: `wall`, `pss`, `wall_per_mb`, or one of its notes."""

    job: str
    megabytes: float
    tool: str
    name: str = "wall"

    def of(self, log: Log) -> list[float]:
        return [self._of(run) for run in log.of(self.job, self.megabytes, self.tool)]

    def _of(self, run: Run) -> float:
        usage = run.done.usage
        if self.name == "wall_per_mb":
            return usage.wall / (run.size / 1e6)
        return float(run.done.notes[self.name] if self.name in run.done.notes else getattr(usage, self.name))


@dataclass(frozen=True, slots=True)
class Bound:
    """A ratio of two values with its limit; `most` false: it must be at least that."""

    what: str
    limit: float
    above: Value
    below: Value
    most: bool = False

    def row(self, log: Log) -> list[str]:
        asked = f"{'at most' if self.most else 'at least'} {self.limit:g}"
        above, below = self.above.of(log), self.below.of(log)
        if not above or not below:
            return [self.what, asked, "not measured", ""]
        ratio = statistics.median(above) / statistics.median(below)
        each = [one / other for one, other in zip(above, below, strict=False)]  # the i-th runs
        held = ratio <= self.limit if self.most else ratio >= self.limit
        return [self.what, asked, f"{ratio:.2f} ({min(each):.2f}-{max(each):.2f})", "yes" if held else "**no**"]


FLAT = 1.05
"""Times per MB are called flat up to this ratio: more than the medians of a quiet machine differ."""


def bounds() -> Iterator[Bound]:
    """Every bound of the speed and memory table."""
    for job, megabytes, least, peer in (
        ("chat_last", 200, 17, MAP),
        ("chat_last", 800, 28, MAP),
        ("chat_trl", 200, 18, PACKED),
        ("text", 200, 12, TEXT_MAP),
        ("text", 800, 12, TEXT_MAP),
    ):
        tool = JOBS[job].tools[0]
        text = f"{job}, {megabytes} MB: time of `{peer}` / ours"
        yield Bound(text, least, Value(job, megabytes, peer), Value(job, megabytes, tool))
    for megabytes, share in ((200, 0.45), (800, 0.65), (4000, 0.75)):
        call = Value("text_limit", megabytes, LIMIT, "encode_files_s")
        text = f"text, {megabytes} MB: time of the call `encode_files` / ours, whole process"
        yield Bound(text, share, call, Value("text_limit", megabytes, "beam-prep text"))
    for job, megabytes, other, limit in (
        ("chat_role", 200, "chat_role", 1.1),
        ("chat_role", 800, "chat_role", 1.1),
        ("chat_tfrecord", 200, "chat_tfrecord", 1.25),
    ):
        first = Value(job, megabytes, "beam-prep chat_last")
        text = f"{other}, {megabytes} MB: time over that of chat_last"
        yield Bound(text, limit, Value(job, megabytes, f"beam-prep {other}"), first, most=True)
    for job, peer in (("chat_last", MAP), ("chat_trl", PACKED), ("text", TEXT_MAP)):
        for size in JOBS[job].sizes:
            mine, theirs = Value(job, size, JOBS[job].tools[0], "pss"), Value(job, size, peer, "pss")
            yield Bound(f"{job}, {size:g} MB: peak memory of ours / `{peer}`", 1, mine, theirs, most=True)
    for job, large, small, limit, name, text in (
        ("chat_growth", 800, 100, 1.15, "pss", "peak memory"),
        ("text_limit", 800, 200, 1.15, "pss", "peak memory"),
        ("chat_growth", 200, 100, FLAT, "wall_per_mb", "time per MB"),
        ("chat_growth", 800, 200, FLAT, "wall_per_mb", "time per MB"),
    ):
        above, below = (Value(job, size, JOBS[job].tools[0], name) for size in (large, small))
        yield Bound(f"{job}: {text} of ours at {large} MB / at {small} MB", limit, above, below, most=True)


def bounds_table(log: Log) -> str:
    """Asked and measured."""
    rows = [bound.row(log) for bound in bounds()]
    for name, job in JOBS.items():
        if job.same_rows:
            rows += [_rows_bound(log, name, size) for size in job.sizes]
    return table(["bound", "asked", "measured: ratio of medians (min-max)", "held"], rows, left=(0, 1, 2, 3))


def _rows_bound(log: Log, job: str, megabytes: float) -> list[str]:
    what = f"{job}, {megabytes:g} MB: rows equal to `{JOBS[job].tools[1]}`'s"
    found = log.rows.get((job, megabytes))
    if found is None:
        return [what, "all", "not measured", ""]
    held = found["equal"] == found["ours"] == found["peer"]
    return [what, "all", f"{found['equal']:,} of {found['peer']:,}", "yes" if held else "**no**"]


# The report


def report(log: Log) -> str:
    """All that was measured, as Markdown."""
    parts = list(dict.fromkeys(session["machine"] for session in log.sessions))
    parts += ["### Asked and measured", bounds_table(log)]
    for name, job in JOBS.items():
        if log.sizes(name):
            parts += [f"### `{name}`", job.caption, usage_table(log, name, job), written_table(log, name, job)]
            if notes := [*_row_notes(log, name), *_tool_notes(log, name, job)]:
                parts.append("\n".join(notes))
    commands = "\n".join(dict.fromkeys(f"    {shown(session['command'])}" for session in log.sessions))
    return "\n\n".join([*parts, f"### Commands\n\n{commands}"])


def _cases(log: Log, name: str, job: Job) -> Iterator[list[Run]]:
    for megabytes in log.sizes(name):
        for tool in job.tools:
            if runs := log.of(name, megabytes, tool):
                yield runs


def usage_table(log: Log, name: str, job: Job) -> str:
    """Time and memory."""
    header = ["MB", "tool", "how", "runs", "wall s, median (min-max)", "MB/s", "CPU s", "peak PSS MB", "anonymous MB"]
    rows = []
    for runs in _cases(log, name, job):
        walls = [run.done.usage.wall for run in runs]
        wall = statistics.median(walls)
        numbers = [
            str(len(runs)),
            f"{wall:.1f} ({min(walls):.1f}-{max(walls):.1f})",
            _speed(runs[0].size / 1e6 / wall),
        ]
        numbers += [f"{_median(runs, 'cpu'):.1f}", *(f"{_median(runs, of) / 1e6:,.0f}" for of in ("pss", "anonymous"))]
        rows.append([f"{runs[0].megabytes:g}", f"`{runs[0].tool}`", runs[-1].done.how, *numbers])
    return table(header, rows, left=(1, 2))


def _speed(value: float) -> str:
    """One decimal; where that would say 0.0, one digit that says more."""
    return f"{value:.1f}" if value >= 0.1 else f"{value:.1g}"


def _median(runs: Sequence[Run], name: str) -> float:
    return float(statistics.median(getattr(run.done.usage, name) for run in runs))


def written_table(log: Log, name: str, job: Job) -> str:
    """What each tool wrote."""
    header = ["MB", "tool", "records", "left out", "rows", "tokens", "trained tokens"]
    rows = []
    for runs in _cases(log, name, job):
        done = runs[-1].done.written
        counts = [done.documents, done.left_out, done.rows, done.tokens, done.trained]
        rows.append([f"{runs[0].megabytes:g}", f"`{runs[0].tool}`", *(f"{count:,}" for count in counts)])
    return table(header, rows, left=(1,))


def _row_notes(log: Log, name: str) -> Iterator[str]:
    """How the rows of two tools compare."""
    for megabytes in log.sizes(name):
        if (name, megabytes) in log.rows:
            found = log.rows[name, megabytes]
            text = f"* {megabytes:g} MB: {found['equal']:,} rows equal, of {found['ours']:,} (ours) and "
            text += f"{found['peer']:,} (the peer's)"
            for what in ("left_out", "differ"):
                if found[what]:
                    text += f"; {what.replace('_', ' ')}: {', '.join(f'{n:,} {key}' for key, n in found[what].items())}"
            yield text + (f"; the first: {found['first']}" if "first" in found else "")


def _tool_notes(log: Log, name: str, job: Job) -> Iterator[str]:
    """The time of gigatoken's call alone, and what our runs say about themselves."""
    for runs in _cases(log, name, job):
        head, last = f"* {runs[0].megabytes:g} MB, `{runs[0].tool}`: ", runs[-1].done.notes
        if runs[0].tool == LIMIT:
            calls = [run.done.notes["encode_files_s"] for run in runs]
            spread = f"{statistics.median(calls):.2f} s ({min(calls):.2f}-{max(calls):.2f})"
            yield f"{head}the call `encode_files` alone {spread}"
        elif runs[0].tool in OURS and last:
            yield head + ", ".join(f"{key}: {json.dumps(value)}" for key, value in last.items())


def program(
    name: str,
    given: argparse.Namespace,
    marker: str,
    check: Callable[[], None],
    measure: Callable[[], None],
    report: Callable[[Log], str],
) -> int:
    """Measures, or takes what was measured, and tells it. Gives the exit code.

    Args:
        name: of the program.
        given: its arguments: `report`, logs that are told in place of a run; `log`; `markdown`, a page to write into.
        marker: of the part of that page.
        check: raises BenchmarkError where what it needs is not there.
        measure: runs all, and adds each run to the log.
        report: what is told of a log.
    """
    try:
        check()
        if not given.report:
            say(f"log: {given.log}")
            measure()
        text = report(Log.read(given.report or [given.log]))
        print(text)
        if given.markdown is not None:
            write_markdown(given.markdown, marker, text)
            say(f"written into {given.markdown}")
    except BenchmarkError as error:
        say(f"{name}: {error}")
        return 1
    except KeyboardInterrupt:  # what was running is killed already
        say(f"{name}: interrupted; finished runs are in {given.log}")
        return 130
    return 0
