"""Whole processes side by side: `beam-prep run` and its peers, on the same corpora, in turns.

    python benchmarks/end_to_end.py --markdown docs/performance.md      # everything: an hour or two
    python benchmarks/end_to_end.py --quick                             # a smoke test: small corpora, one run each
    python benchmarks/end_to_end.py --jobs chat_last --log last.jsonl   # a part
    python benchmarks/end_to_end.py --report last.jsonl other.jsonl     # the tables of parts, nothing is run

Every finished run is a line of the log at once. Needs Linux, `pip install datasets psutil gigatoken`, and the folder of
test material (`--shared`); TRL gets an environment of its own, in `--cache`. What is measured and what it means stands
in docs/performance.md.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _jobs import JOBS, LIMIT, OURS, PACKED, TOOLS, Job, Place, marking, trl_python
from _measure import ROOT, BenchmarkError, check_material, make_corpus, prepare_disk, say
from _page import machine, split_at_markers
from _report import Run, program, report, run_line

MARKER = "end_to_end"
QUICK = 2.0  # MB


def run_job(name: str, given: argparse.Namespace, place: Place) -> None:
    """Runs a job's tools in turns, on each of its corpora in turns: ours, peer, ours, peer, ...

    Raises:
        BenchmarkError: a run failed, or the runs do not agree about the rows.
    """
    job = JOBS[name]
    place = marking(place) if job.marked else place
    tools = [tool for tool in job.tools if tool in OURS or not given.skip_peers]
    sizes = given.sizes or job.sizes
    corpora = {megabytes: make_corpus(given.shared, job.corpus, megabytes, given.cache) for megabytes in sizes}
    runs: list[Run] = []
    repeats = given.repeats or job.repeats
    for repeat, (megabytes, corpus) in itertools.product(range(repeats), corpora.items()):
        outputs = {tool: place.work / f"output_{number}" for number, tool in enumerate(tools)}
        for tool, output in outputs.items():
            prepare_disk(corpus, job.cold)
            run = Run(name, megabytes, corpus.stat().st_size, tool, TOOLS[tool](corpus, output, place))
            runs.append(run)
            keep(given.log, run_line(run))
            usage = run.done.usage
            note = f"{run.done.how}: {usage.wall:.1f} s, {usage.pss / 1e6:,.0f} MB at the peak"
            say(f"{name}, {corpus.name}, run {repeat + 1} of {repeats}: {tool}, {note}")
            check_agreement([run for run in runs if run.megabytes == megabytes])
        if repeat == 0 and job.same_rows and len(tools) > 1:
            compare(name, job, megabytes, [outputs[tool] for tool in tools[:2]], given.log)
        # Nothing of a run is there to be used by the next.
        for output in (*outputs.values(), place.work / ".beam_prep"):
            shutil.rmtree(output, ignore_errors=True)


def compare(name: str, job: Job, megabytes: float, outputs: Sequence[Path], log: Path) -> None:
    """Compares the rows of the first two tools."""
    from _rows import compare_rows

    say(f"{name}, {megabytes:g} MB: comparing rows")
    found = compare_rows(outputs[0], outputs[1] / "data", job.same_rows)
    keep(log, {"job": name, "megabytes": megabytes, "rows": found})
    say(f"{name}, {megabytes:g} MB: {json.dumps(found)}")


def check_agreement(runs: Sequence[Run]) -> None:
    """Every run of a tool wrote the same, and all tools account for the same number of records."""
    first = {run.tool: run.done.written for run in reversed(runs)}
    last = runs[-1]
    if last.done.written != first[last.tool]:
        raise BenchmarkError(f"{last.tool}: two runs differ: {first[last.tool]}, {last.done.written}")
    if len({written.documents + written.left_out for written in first.values()}) > 1:
        raise BenchmarkError("the tools disagree: " + "; ".join(f"{tool}: {first[tool]}" for tool in first))


def keep(log: Path, line: dict[str, Any]) -> None:
    """Puts a line into the log, and the log on the disk."""
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


# The command line


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    shared = os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help=f"some of {', '.join(JOBS)}")
    add("--sizes", type=float, nargs="+", metavar="MB", help="of the corpora, in place of each job's own")
    add("--repeats", type=int, metavar="N", help="runs of each tool, in place of each job's own number")
    add("--tokenizer", type=Path, metavar="DIR", help="default: tokenizers/qwen2.5 of the shared folder")
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
        help="corpora, TRL and logs are kept here, and the outputs while they are measured (default: %(default)s)",
    )
    add("--peer_processes", type=int, default=2, metavar="N", help="default: %(default)s")
    add("--peer_python", type=Path, metavar="FILE", help="of an environment with TRL; default: one in --cache")
    add("--skip_peers", action="store_true", help="measure beam-prep alone")
    add("--log", type=Path, metavar="FILE", help="finished runs are added to it (default: a new one in --cache)")
    add("--report", type=Path, nargs="+", metavar="FILE", help="run nothing: the tables of these logs")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the tables into FILE, after <!-- {MARKER}: begin -->")
    add("--quick", action="store_true", help=f"a smoke test: --sizes {QUICK:g} --repeats 1")
    given = parser.parse_args(arguments)
    if given.quick:
        given.sizes, given.repeats = [QUICK], 1
    if min([given.peer_processes, *(given.sizes or []), 1 if given.repeats is None else given.repeats]) <= 0:
        parser.error("--sizes, --repeats and --peer_processes must be positive")
    given.shared, given.cache = given.shared.resolve(), given.cache.resolve()
    given.tokenizer = (given.tokenizer or given.shared / "tokenizers" / "qwen2.5").resolve()
    given.log = given.log or given.cache / time.strftime("runs-%Y%m%d-%H%M%S.jsonl")
    return given


def check(given: argparse.Namespace) -> None:
    """Finds what is missing before anything is measured.

    Raises:
        BenchmarkError: with what to do.
    """
    if given.markdown is not None:
        split_at_markers(given.markdown, MARKER)
    if given.report:
        return
    check_material(given.shared, given.tokenizer)
    peers = set() if given.skip_peers else {tool for job in given.jobs for tool in JOBS[job].tools} - OURS.keys()
    wanted = {"gigatoken"} if LIMIT in peers else set()
    wanted |= {"datasets"} if peers else set()
    if missing := sorted(name for name in wanted if importlib.util.find_spec(name) is None):
        raise BenchmarkError(
            f"the peers need {' and '.join(missing)}, not installed here; type\n"
            f"  {shlex.quote(sys.executable)} -m pip install {' '.join(missing)}\n"
            "or pass --skip_peers to measure beam-prep alone"
        )
    if PACKED in peers and given.peer_python is None:
        trl_python(given.cache)


def measure_jobs(given: argparse.Namespace, command: str) -> None:
    """Runs the jobs, into the log."""
    given.cache.mkdir(parents=True, exist_ok=True)
    keep(given.log, {"session": {"machine": machine(), "command": command}})
    with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
        place = Place(given.shared, given.tokenizer, given.cache, given.peer_python, given.peer_processes, Path(work))
        for name in given.jobs:
            run_job(name, given, place)


def main(arguments: Sequence[str]) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    command = shlex.join(["python", "benchmarks/end_to_end.py", *arguments])
    return program("end_to_end", given, MARKER, lambda: check(given), lambda: measure_jobs(given, command), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
