"""What a MB more costs: CPU ms of `beam-prep run`, beside `datasets.map`, for agents, calls, chats and text.

    python benchmarks/marginal.py                                       # everything, at 80 and 240 MB: an hour
    python benchmarks/marginal.py --rows agents calls --peer-small 8 --peer-large 24
    git worktree add /tmp/before COMMIT
    python benchmarks/marginal.py --beside /tmp/before --skip_peer --rounds 3
    python benchmarks/marginal.py --report last.jsonl other.jsonl       # the table of logs, nothing is run

Each tool works on two corpora, of which the larger begins with the smaller. The cost of a MB is the difference of the
CPU seconds over the difference of the sizes: what a run costs once (start, imports, the tokenizer) is not in it. CPU
seconds are user and system time of the process and all that it starts, the least of the rounds: others on the machine
only add to them. Take both sizes below 33 MB, which ours works on in one process, or both above: else the start of its
workers counts, too, and the table says so. The peer's cost grows evenly, so smaller corpora do for it.

The corpora are those of invented.py. Needs `pip install datasets psutil`. Where the test material is absent,
examples/tokenizer stands for qwen2.5, and the row of mistral-v3 is skipped.
"""

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import _corpora
from _jobs import Place, Tool, ours
from _measure import BenchmarkError, prepare_disk, say
from _page import machine, shown, split_at_markers, table
from _report import Log, Run, program
from _tokenizers import sample
from end_to_end import keep
from shapes import ANY_REJECTS, IDS, LABELS, MAP, OURS, SHAPES, Shape, add_places, peer, remove, told

MARKER = "marginal"
OTHER = "beam-prep, beside"
FIRST = 8.0
"""MB of a run of each tool that is not counted: its files come into the page cache, its tokenizer into ours."""

ROWS = {
    **{name: SHAPES[name] for name in ("agents", "agents-strings", "agents-mistral-v3", "calls")},
    "chats": Shape("chats", "qwen2.5", "chat_role", "chats", LABELS),
    "text": Shape("documents", "qwen2.5", "text", "documents", IDS),
}


def tokenizer_of(shape: Shape, given: argparse.Namespace) -> Path | None:
    """The folder; None: the material has to have it, and has not."""
    folder: Path = given.shared / "tokenizers" / shape.tokenizer
    if folder.is_dir():
        return folder
    return sample(given.cache) if shape.tokenizer == "qwen2.5" else None


def run_row(name: str, given: argparse.Namespace, place: Place) -> None:
    """All tools in turns: on the smaller corpora, then on the larger ones, in each round.

    Raises:
        BenchmarkError: a run failed, or the runs do not agree about the records.
    """
    shape = ROWS[name]
    tools: dict[str, tuple[Tool, tuple[float, float]]] = {}
    tools[OURS] = ours(shape.config, ANY_REJECTS), (given.small, given.large)
    if given.beside is not None:
        tools[OTHER] = ours(shape.config, ANY_REJECTS, code=given.beside), (given.small, given.large)
    if not given.skip_peer:
        tools[MAP] = peer(shape), (given.peer_small, given.peer_large)
    output, runs = place.work / "output", list[Run]()

    def finished(tool: str, run: Tool, megabytes: float) -> Run:
        corpus = _corpora.make(shape.corpus, given.shared, megabytes, given.cache)
        prepare_disk(corpus)
        done = run(corpus, output, place)
        remove(output, place.work / ".beam_prep")
        return Run(name, megabytes, corpus.stat().st_size, tool, done)

    for tool, (run, sizes) in tools.items():
        finished(tool, run, min(FIRST, sizes[0]))
    for turn in range(given.rounds):
        for which in (0, 1):
            for tool, (run, sizes) in tools.items() if turn % 2 == 0 else reversed(tools.items()):
                runs.append(finished(tool, run, sizes[which]))
                told([run for run in runs if run.megabytes == sizes[which]], given.log)


# The report


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a tool.

    Attributes:
        sizes: the MB that were asked for; and how each ran, where that differs.
        left_out: the share of the larger one's records.
    """

    ms_a_mb: float
    sizes: str
    left_out: float

    def __str__(self) -> str:
        return f"{self.ms_a_mb:.1f}" + (f" ({self.left_out:.0%} left out)" if self.left_out else "")


def cost_of(log: Log, name: str, tool: str) -> Cost | None:
    """From the smallest and the largest corpus of the log; None: there are not two."""
    found = [log.of(name, megabytes, tool) for megabytes in log.sizes(name)]
    found = [runs for runs in found if runs]
    if len(found) < 2:
        return None
    small, large = found[0], found[-1]
    cpu = [min(run.done.usage.cpu for run in runs) for runs in (small, large)]
    written, how = large[0].done.written, dict.fromkeys(runs[0].done.how for runs in (small, large))
    return Cost(
        1e9 * (cpu[1] - cpu[0]) / (large[0].size - small[0].size),
        f"{small[0].megabytes:g}-{large[0].megabytes:g}" + (f" ({', '.join(how)})" if len(how) > 1 else ""),
        written.left_out / (written.documents + written.left_out),
    )


def report(log: Log) -> str:
    """All that was measured, as Markdown."""
    header = ["row", "MB", "ours, CPU ms a MB", "peer's MB", "`datasets.map`, CPU ms a MB", "peer / ours"]
    parts = list(dict.fromkeys(session["machine"] for session in log.sessions))
    parts.append(table([*header, "other checkout, CPU ms a MB", "ours / other"], list(_rows(log)), left=(0,)))
    commands = "\n".join(dict.fromkeys(f"    {shown(session['command'])}" for session in log.sessions))
    return "\n\n".join([*parts, f"Commands:\n\n{commands}"])


def _rows(log: Log) -> Iterator[list[str]]:
    for name in ROWS:
        mine, theirs, other = (cost_of(log, name, tool) for tool in (OURS, MAP, OTHER))
        if mine is None:
            continue
        row = [name, mine.sizes, str(mine)]
        row += [theirs.sizes, str(theirs), f"{theirs.ms_a_mb / mine.ms_a_mb:.1f}"] if theirs else [""] * 3
        yield row + ([str(other), f"{mine.ms_a_mb / other.ms_a_mb:.2f}"] if other else [""] * 2)


# The command line


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME", help=f"some of {', '.join(ROWS)}")
    add("--small", type=float, default=80, metavar="MB", help="default: %(default)s")
    add("--large", type=float, default=240, metavar="MB", help="default: %(default)s")
    add("--peer-small", type=float, metavar="MB", help="of the peer's corpora (default: --small)")
    add("--peer-large", type=float, metavar="MB", help="default: --large")
    add("--rounds", type=int, default=1, metavar="N", help="the least CPU time counts (default: %(default)s)")
    add("--beside", type=Path, metavar="DIR", help="another checkout, whose beam_prep runs in turns with this one's")
    add("--skip_peer", action="store_true", help="measure beam-prep alone")
    add_places(parser)
    add("--peer_processes", type=int, default=2, metavar="N", help="default: %(default)s")
    add("--log", type=Path, metavar="FILE", help="finished runs are added to it (default: a new one in --cache)")
    add("--report", type=Path, nargs="+", metavar="FILE", help="run nothing: the table of these logs")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the table into FILE, after <!-- {MARKER}: begin -->")
    given = parser.parse_args(arguments)
    given.peer_small, given.peer_large = given.peer_small or given.small, given.peer_large or given.large
    if not (0 < given.small < given.large and 0 < given.peer_small < given.peer_large):
        parser.error("--small must be positive and below --large, and --peer-small below --peer-large")
    if min(given.rounds, given.peer_processes) <= 0:
        parser.error("--rounds and --peer_processes must be positive")
    given.shared, given.cache = given.shared.resolve(), given.cache.resolve()
    given.beside = given.beside and given.beside.resolve()
    given.log = given.log or given.cache / time.strftime("marginal-%Y%m%d-%H%M%S.jsonl")
    return given


def check(given: argparse.Namespace) -> None:
    """Raises BenchmarkError where the page or the other checkout is not what is wanted."""
    if given.markdown is not None:
        split_at_markers(given.markdown, MARKER)
    if given.beside is not None and not (given.beside / "beam_prep" / "cli.py").is_file():
        raise BenchmarkError(f"--beside {given.beside}: no beam_prep/cli.py there; give a checkout of the project")


def measure_rows(given: argparse.Namespace, command: str) -> None:
    """Runs the rows, into the log."""
    given.cache.mkdir(parents=True, exist_ok=True)
    keep(given.log, {"session": {"machine": machine(), "command": command}})
    with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
        for name in given.rows:
            tokenizer = tokenizer_of(ROWS[name], given)
            if tokenizer is None:
                say(f"{name}: skipped, as there is no {ROWS[name].tokenizer} in {given.shared}")
                continue
            place = Place(given.shared, tokenizer, given.cache, None, given.peer_processes, Path(work))
            run_row(name, given, place)


def main(arguments: Sequence[str]) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    command = shlex.join(["python", "benchmarks/marginal.py", *arguments])
    return program("marginal", given, MARKER, lambda: check(given), lambda: measure_rows(given, command), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
