"""Whether a ratio has fallen: a few rows of shapes.py and the reader, beside the last entries of history.jsonl.

    python benchmarks/check.py                                   # make bench-check: some ten minutes
    python benchmarks/check.py --record                          # also adds to the history, and draws it anew
    python benchmarks/check.py --log today.jsonl                 # keeps the runs, so that
    python benchmarks/check.py --report today.jsonl --record     # they can be recorded later; nothing is run

Exit code 1 if a ratio is more than 10 % below the last entry of the same row on as many cores. Times differ from
machine to machine, and from day to day; ratios of runs in turns much less. Measure on a machine that does nothing else.
The row `reader` is the time of `datasets` over ours to read the rows of the same documents in a random order.
"""

import argparse
import datetime
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import _corpora
import readers
from _history import Entry, Machine, append, compare, facts_of, picture, read
from _jobs import Done, Place, Written, ours
from _measure import ROOT, BenchmarkError, Usage, check_material, say
from _page import cpu_model, machine, memory_gb
from _report import Log, Run
from end_to_end import keep
from shapes import MAP, OURS, SHAPES, add_places, ratio_of, run_shape, tokenizer_of, told

from beam_prep import runners

READER = "reader"
TOOLS = {"chats": (OURS, MAP), "documents": (OURS, MAP), "chats-mistral-v1": (OURS, MAP), READER: (OURS, "datasets")}
"""The rows, and whose times are compared."""

_READS = {OURS: "beam_prep", "datasets": "datasets"}
HISTORY = ROOT / "benchmarks" / "history.jsonl"
PICTURE = ROOT / "docs" / "history.svg"


def run_reader(given: argparse.Namespace, place: Place) -> None:
    """Rows in a random order, by ours and by `datasets`, each in a process of its own, in turns.

    Raises:
        BenchmarkError: a process failed, or the two read other ids.
    """
    shape = SHAPES["documents"]
    corpus = _corpora.make(shape.corpus, given.shared, given.mb, given.cache)
    place = replace(place, tokenizer=tokenizer_of(shape, place))
    output, flat, saved = (place.work / name for name in ("read", "flat", "saved"))
    written = ours(shape.config)(corpus, output, place).written
    readers.flat(output, flat)
    readers.make("datasets", flat, saved)
    runs: list[Run] = []
    counts = set()
    for _ in range(given.rounds):
        for tool, name in _READS.items():
            words = (str(output), "--work", str(saved), "--only", "random", "--tool", name)
            found = json.loads(readers.run(sys.executable, *words))
            counts.add((found["tokens"], found["sum"]))
            usage = Usage(found["seconds"], found["seconds"], 0, 0)
            done = Done(usage, Written(written.documents, written.rows, written.tokens, written.trained), "random rows")
            runs.append(Run(READER, given.mb, corpus.stat().st_size, tool, done))
            told(runs, given.log)
    if len(counts) > 1:
        raise BenchmarkError(f"ours and datasets read other ids: {counts}")
    for folder in (output, flat, saved, place.work / ".beam_prep"):
        shutil.rmtree(folder)


def facts() -> dict[str, Any]:
    """The day, the commit and the machine of a session."""
    found = Machine(cpu_model(), runners.cores(), round(memory_gb(), 1))
    return {"date": str(datetime.date.today()), "commit": commit(), "machine": asdict(found)}


def commit() -> str:
    """Of the code that is measured; `+` if it was changed since.

    Raises:
        BenchmarkError: nobody can tell.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        code = ("beam_prep", "benchmarks", ":!benchmarks/history.jsonl")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchmarkError(
            f"no commit to name in the history ({error}): run this in a clone of the project"
        ) from None


def entries_of(log: Log) -> list[Entry]:
    """What a log measured, one entry a row.

    Raises:
        BenchmarkError: it is no log of this program, or rows differ from the peer's.
    """
    date, sha, on = facts_of(log.sessions)
    found = []
    for row, tools in TOOLS.items():
        for megabytes in log.sizes(row):
            rows: Mapping[str, Any] = log.rows.get((row, megabytes), {})
            if rows and not rows["equal"] == rows["ours"] == rows["peer"]:
                raise BenchmarkError(f"{row}, {megabytes:g} MB: rows differ from the peer's: {dict(rows)}")
            if (ratio := ratio_of(log, row, megabytes, tools)) is not None:
                seconds = round(ratio.ours, 3), round(ratio.peer, 3)
                found.append(Entry(date, sha, on, row, megabytes, round(ratio.ratio, 3), *seconds))
    if not found:
        raise BenchmarkError("the log has no row of which both times are known")
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="ROW", help=f"some of {', '.join(TOOLS)}")
    add("--mb", type=float, default=60, help="of each corpus (default: %(default)s); each size is a row of its own")
    add("--rounds", type=int, default=3, metavar="N", help="runs of each tool (default: %(default)s)")
    add("--record", action="store_true", help="add what was measured to the history, and draw it anew")
    add("--draw", action="store_true", help="measure nothing, draw the history anew")
    add("--history", type=Path, default=HISTORY, metavar="FILE", help="default: benchmarks/history.jsonl")
    add("--picture", type=Path, default=PICTURE, metavar="FILE", help="default: docs/history.svg")
    add("--log", type=Path, metavar="FILE", help="finished runs are added to it (default: a new one in --cache)")
    add("--report", type=Path, nargs="+", metavar="FILE", help="run nothing: compare what these logs have")
    add_places(parser)
    given = parser.parse_args(arguments)
    if min(given.mb, given.rounds) <= 0:
        parser.error("--mb and --rounds must be positive")
    given.shared, given.cache, given.skip_peer = given.shared.resolve(), given.cache.resolve(), False
    given.log = given.log or given.cache / time.strftime("check-%Y%m%d-%H%M%S.jsonl")
    return given


def measure_rows(given: argparse.Namespace, command: str) -> None:
    """Runs the rows, into the log."""
    check_material(given.shared, given.shared / "tokenizers" / "qwen2.5")
    given.cache.mkdir(parents=True, exist_ok=True)
    say(f"log: {given.log}")
    keep(given.log, {"session": {"machine": machine(), "command": command, "facts": facts()}})
    with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
        place = Place(given.shared, Path(), given.cache, None, 2, Path(work))
        for row in given.only:
            if row == READER:
                run_reader(given, place)
            else:
                run_shape(row, given, place)


def main(arguments: Sequence[str]) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    try:
        history = read(given.history)
        fallen: list[Entry] = []
        if not given.draw:
            if not given.report:
                measure_rows(given, shlex.join(["python", "benchmarks/check.py", *arguments]))
            measured = entries_of(Log.read(given.report or [given.log]))
            lines, fallen = compare(history, measured)
            print("\n".join(lines))
        if given.record and not given.draw:
            append(given.history, measured)
            history += measured
            say(f"{len(measured)} entries added to {given.history}")
        if given.record or given.draw:
            given.picture.write_text(picture(history), encoding="utf-8")
    except (BenchmarkError, readers.BenchmarkError) as error:
        say(f"check: {error}")
        return 2
    except KeyboardInterrupt:  # what was running is killed already
        say(f"check: interrupted; finished runs are in {given.log}")
        return 130
    if fallen:
        say(f"check: fell by more than 10 %: {'; '.join(entry.name for entry in fallen)}")
    return int(bool(fallen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
