"""Every shape of records, and every family of tokenizers: `beam-prep run` beside `datasets.map`, in turns.

    python benchmarks/shapes.py --mb 200 --markdown docs/performance.md     # everything: some hours
    python benchmarks/shapes.py --only chats-mistral-v1 rollouts --rounds 5
    python benchmarks/shapes.py --skip_peer --log last.jsonl                # ours alone
    python benchmarks/shapes.py --cores 1,2,4,8,16 --mb 800                 # ours on some cores: chats and documents
    python benchmarks/shapes.py --report last.jsonl other.jsonl             # the tables of parts, nothing is run

Whole processes; medians of rounds. Of the first round, all rows of both are compared. Every finished run is a line of
the log at once. Tokenizers that the test material has not are trained at first use, into `--cache`. Needs what
end_to_end.py needs.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import _corpora
from _jobs import Done, Place, Tool, Written, marking, ours, run_script
from _measure import ROOT, check_material, prepare_disk, say
from _page import machine, shown, split_at_markers, table
from _report import Log, Run, program, run_line
from _tokenizers import TRAINED, trained
from end_to_end import check_agreement, keep

MARKER = "shapes"
OURS, MAP = "beam-prep", "datasets.map"
LABELS = {"input_ids": "input_ids", "labels": "labels"}
ANY_REJECTS = "--max_reject_rate=1"
"""What is rejected is left out, and told with the result."""

IDS = {"sequence": "input_ids"}
PAIR = {name: name for name in ("chosen", "chosen_mask", "rejected", "rejected_mask")}
ROLLOUTS = {name: name for name in ("prompts", "responses", "masks", "rewards")}


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table.

    Attributes:
        corpus: a kind of `_corpora`.
        tokenizer: a folder of the test material, or one of `TRAINED`.
        config: a file of configs/.
        peer: a function of peer_shapes.py.
        same: our column -> the peer's: rows that are compared. Empty: only the tokens are counted.
        longest: tokens of a row, where the peer cuts: as in the config.
        domain: the peer's column of domains; None: ours has one domain.
    """

    corpus: str
    tokenizer: str
    config: str
    peer: str
    same: Mapping[str, str] = field(default_factory=dict)
    longest: int = 2048
    domain: str | None = None


SHAPES = {
    "chats": Shape("sgd", "qwen2.5", "chat_role", "chats", LABELS),
    "chats-llama3": Shape("sgd", "llama3-like", "chat_role", "chats", LABELS),
    "chats-gemma": Shape("sgd", "gemma-like", "chat_role", "chats", LABELS),
    "chats-mistral-v1": Shape("sgd", "mistral-v1", "chat_role", "chats", LABELS),
    "chats-mistral-v3": Shape("sgd", "mistral-v3", "chat_role", "chats", LABELS),
    "tools": Shape("tools", "qwen2.5", "shapes/tools", "tools", LABELS, longest=4096),
    "agents": Shape("agents", "qwen2.5", "shapes/tools", "tools", LABELS, longest=4096),
    "agents-strings": Shape("agents_strings", "qwen2.5", "shapes/tools", "tools", LABELS, longest=4096),
    # Its template leaves out the words beside calls, which is a reject by default.
    "agents-mistral-v3": Shape("agents", "mistral-v3", "shapes/tools_kept", "tools", LABELS, longest=4096),
    "calls": Shape("calls", "qwen2.5", "shapes/tools", "tools", LABELS, longest=4096),
    "sharegpt": Shape("sharegpt", "qwen2.5", "shapes/sharegpt", "sharegpt", LABELS),
    "alpaca": Shape("alpaca", "qwen2.5", "shapes/alpaca", "alpaca", LABELS),
    "prompt_completion": Shape("prompt_completion", "qwen2.5", "shapes/prompt_completion", "prompt_completion", LABELS),
    "prompt_completion_chat": Shape(
        "prompt_completion_chat", "qwen2.5", "shapes/prompt_completion_chat", "prompt_completion_chat", LABELS
    ),
    "preference": Shape("preference", "qwen2.5", "shapes/preference", "preference", PAIR),
    "rollouts": Shape("rollouts", "qwen2.5", "shapes/rollouts", "rollouts", ROLLOUTS),
    "sections": Shape("sections", "qwen2.5", "shapes/sections", "sections", LABELS),
    "domains": Shape("domains", "qwen2.5", "shapes/domains", "domains", LABELS, domain="domain"),
    "packed_tfrecord": Shape("chat", "qwen2.5", "shapes/packed_tfrecord", "packed"),
    "documents": Shape("text", "qwen2.5", "text", "documents", IDS),
    "documents-chars": Shape("text", "qwen2.5", "shapes/chars", "chars", IDS),
    "documents-chinese": Shape("text_zh", "qwen2.5", "text", "documents", IDS),
    "documents-russian": Shape("text_ru", "qwen2.5", "text", "documents", IDS),
    "documents-mistral-v1": Shape("text", "mistral-v1", "text", "documents", IDS),
    "documents-t5": Shape("text", "t5-small", "shapes/text_alone", "documents_alone", IDS),
    "documents-bert": Shape("text", "bert-like", "shapes/text_alone", "documents_alone", IDS),
}
ON_CORES = ("chats", "documents")
"""The rows that `--cores` measures, unless it is told others."""


def tokenizer_of(shape: Shape, place: Place) -> Path:
    if shape.tokenizer in TRAINED:
        return trained(shape.tokenizer, place.shared, place.cache)
    return place.shared / "tokenizers" / shape.tokenizer


def peer(shape: Shape) -> Tool:
    """`datasets.map`, with a template that says where the assistant speaks, where there is one."""

    def run(corpus: Path, output: Path, place: Place) -> Done:
        if (place.tokenizer / "chat_template_generation.jinja").exists():
            place = marking(place)
        script = [sys.executable, str(ROOT / "benchmarks" / "peer_shapes.py"), shape.peer, str(corpus), str(output)]
        script += [str(place.tokenizer), str(place.processes), "--longest", str(shape.longest)]
        usage, found = run_script(script, place)
        packed = shape.peer == "packed"
        left_out = 0 if packed else found["rows_in"] - found["rows"]
        counts = (found["rows_in"] - left_out, found["rows"], found["tokens"], found["label_tokens"], left_out)
        return Done(usage, Written(*counts), f"{place.processes} processes", found)

    return run


def run_shape(name: str, given: argparse.Namespace, place: Place) -> None:
    """Both tools in turns, in each round.

    Raises:
        BenchmarkError: a run failed, or the runs do not agree about the records.
    """
    shape = SHAPES[name]
    corpus = _corpora.make(shape.corpus, given.shared, given.mb, given.cache)
    place = replace(place, tokenizer=tokenizer_of(shape, place))
    tools = {OURS: ours(shape.config, ANY_REJECTS)} | ({} if given.skip_peer else {MAP: peer(shape)})
    outputs = {tool: place.work / f"output_{number}" for number, tool in enumerate(tools)}
    runs: list[Run] = []
    for turn in range(given.rounds):
        for tool, run in tools.items():
            prepare_disk(corpus)
            runs.append(Run(name, given.mb, corpus.stat().st_size, tool, run(corpus, outputs[tool], place)))
            told(runs, given.log)
        if turn == 0 and len(tools) > 1 and shape.same:
            from _rows import compare_rows

            found = compare_rows(outputs[OURS], outputs[MAP] / "data", shape.same, shape.domain)
            keep(given.log, {"job": name, "megabytes": given.mb, "rows": found})
            say(f"{name}: {json.dumps(found)}")
        remove(*outputs.values(), place.work / ".beam_prep")


def run_on_cores(name: str, given: argparse.Namespace, place: Place) -> None:
    """Ours with as many worker processes as cores, on each number of cores, in turns.

    Raises:
        BenchmarkError: a run failed, or two of them wrote different numbers of rows.
    """
    shape, cores = SHAPES[name], sorted(os.sched_getaffinity(0))
    corpus = _corpora.make(shape.corpus, given.shared, given.mb, given.cache)
    place = replace(place, tokenizer=tokenizer_of(shape, place))
    output, runs = place.work / "output", list[Run]()
    for _ in range(given.rounds):
        for number in given.cores:
            run = ours(shape.config, f"--direct_num_workers={number}", cores=cores[:number])
            prepare_disk(corpus)
            runs.append(Run(name, given.mb, corpus.stat().st_size, on_cores(number), run(corpus, output, place)))
            told(runs, given.log)
            remove(output, place.work / ".beam_prep")


def on_cores(number: int) -> str:
    """The name of the tool in the log."""
    return f"{OURS}, cores: {number}"


def told(runs: Sequence[Run], log: Path) -> None:
    """Keeps the last run, says how long it took, and looks whether it is about the same records as the others."""
    last = runs[-1]
    keep(log, run_line(last))
    say(f"{last.job}, {last.megabytes:g} MB: {last.tool}, {last.done.how}: {last.done.usage.wall:.1f} s")
    check_agreement(runs)


def remove(*outputs: Path) -> None:
    """Nothing of a run is there to be used by the next."""
    for output in outputs:
        shutil.rmtree(output, ignore_errors=True)


# The report


@dataclass(frozen=True, slots=True)
class Ratio:
    """Medians of both tools in seconds, the ratio of these, and the smallest and largest ratio of a round."""

    ours: float
    peer: float
    ratio: float
    least: float
    most: float


def ratio_of(log: Log, name: str, megabytes: float, tools: tuple[str, str] = (OURS, MAP)) -> Ratio | None:
    """The times of the second tool over those of the first; None: not both were measured."""
    mine, theirs = ([run.done.usage.wall for run in log.of(name, megabytes, tool)] for tool in tools)
    if not mine or not theirs:
        return None
    each = [other / one for one, other in zip(mine, theirs, strict=False)]
    first, second = statistics.median(mine), statistics.median(theirs)
    return Ratio(first, second, second / first, min(each), max(each))


def report(log: Log) -> str:
    """All that was measured, as Markdown."""
    parts = list(dict.fromkeys(session["machine"] for session in log.sessions))
    header = ["row", "MB", "tokenizer", "records", "ours, s", "`datasets.map`, s", "ratio (min-max)", "rows equal"]
    if rows := list(_rows(log)):
        parts.append(table([*header, "how ours was made"], rows, left=(0, 2, 8)))
    header = [
        "row",
        "MB",
        "cores",
        "how",
        "s (min-max)",
        "one core / this",
        "CPU s",
        "launcher's own CPU s",
        "its share",
    ]
    if rows := list(_rows_on_cores(log)):
        parts.append(table(header, rows, left=(0, 3)))
    commands = "\n".join(dict.fromkeys(f"    {shown(session['command'])}" for session in log.sessions))
    return "\n\n".join([*parts, f"Commands:\n\n{commands}"])


def _rows(log: Log) -> Iterator[list[str]]:
    for name, shape in SHAPES.items():
        for megabytes in log.sizes(name):
            if not (runs := log.of(name, megabytes, OURS)):
                continue
            found, theirs = ratio_of(log, name, megabytes), log.of(name, megabytes, MAP)
            mine = statistics.median(run.done.usage.wall for run in runs)
            row = [name, f"{megabytes:g}", shape.tokenizer, f"{runs[-1].done.written.documents:,}", f"{mine:.1f}"]
            row += (
                [f"{found.peer:.1f}", f"{found.ratio:.1f} ({found.least:.1f}-{found.most:.1f})"] if found else ["", ""]
            )
            row.append(_equal(log, name, megabytes, runs[-1], theirs[-1]) if theirs else "")
            notes = runs[-1].done.notes
            made = [f"{key} {notes[key]:,}" for key in sorted(notes) if key.startswith(("encoded_", "rendered_"))]
            yield [*row, ", ".join(made)]


def _equal(log: Log, name: str, megabytes: float, mine: Run, theirs: Run) -> str:
    """How many rows are equal; of rows that are not compared, whether the tokens are as many."""
    found = log.rows.get((name, megabytes))
    if found is None:
        counts = [(run.done.written.tokens, run.done.written.trained) for run in (mine, theirs)]
        return f"counts {'equal' if counts[0] == counts[1] else f'differ: {counts}'}"
    text = "all" if found["equal"] == found["ours"] == found["peer"] else f"{found['equal']:,} of {found['peer']:,}"
    for what in ("left_out", "differ"):
        text += "".join(f", {number:,} {key}" for key, number in found[what].items())
    return text


def _rows_on_cores(log: Log) -> Iterator[list[str]]:
    for name in SHAPES:
        for megabytes in log.sizes(name):
            tools = {run.tool for run in log.runs if run.job == name and run.tool.startswith(f"{OURS},")}
            one: float | None = None
            for number in sorted(int(tool.split()[-1]) for tool in tools):
                if not (runs := log.of(name, megabytes, on_cores(number))):
                    continue
                usages, last = [run.done.usage for run in runs], runs[-1].done
                wall = statistics.median(usage.wall for usage in usages)
                cpu, own = (statistics.median(getattr(usage, of) for usage in usages) for of in ("cpu", "own"))
                one = wall if number == 1 else one
                spread = f"{wall:.1f} ({min(u.wall for u in usages):.1f}-{max(u.wall for u in usages):.1f})"
                row = [name, f"{megabytes:g}", str(number), last.how, spread, f"{one / wall:.2f}" if one else ""]
                # In one process, the launcher does all of the work.
                alone = last.how == "in-process"
                yield [*row, f"{cpu:.1f}", "" if alone else f"{own:.2f}", "" if alone else f"{own / cpu:.1%}"]


# The command line


def numbers(text: str) -> list[int]:
    return sorted({int(word) for word in text.split(",")})


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", choices=SHAPES, metavar="NAME", help=f"some of {', '.join(SHAPES)}")
    add("--mb", type=float, default=60, help="of each corpus (default: %(default)s)")
    add("--rounds", type=int, default=3, metavar="N", help="runs of each tool (default: %(default)s)")
    add("--cores", type=numbers, metavar="N,N", help="ours alone, on that many cores, with a worker process on each")
    add("--skip_peer", action="store_true", help="measure beam-prep alone")
    add_places(parser)
    add("--peer_processes", type=int, default=2, metavar="N", help="default: %(default)s")
    add("--log", type=Path, metavar="FILE", help="finished runs are added to it (default: a new one in --cache)")
    add("--report", type=Path, nargs="+", metavar="FILE", help="run nothing: the tables of these logs")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the tables into FILE, after <!-- {MARKER}: begin -->")
    given = parser.parse_args(arguments)
    if min(given.mb, given.rounds, given.peer_processes, *(given.cores or [1])) <= 0:
        parser.error("--mb, --rounds, --peer_processes and --cores must be positive")
    given.shared, given.cache = given.shared.resolve(), given.cache.resolve()
    given.log = given.log or given.cache / time.strftime("shapes-%Y%m%d-%H%M%S.jsonl")
    return given


def add_places(parser: argparse.ArgumentParser) -> None:
    """Where the test material is, and where things are kept."""
    shared = Path(os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared")))
    cache = Path(tempfile.gettempdir(), "beam_prep_benchmarks")
    text = "the test material (default: BEAM_PREP_SHARED, or beside the project; now %(default)s)"
    parser.add_argument("--shared", type=Path, default=shared, metavar="DIR", help=text)
    text = "corpora, tokenizers and logs are kept here, and the outputs while they are measured (default: %(default)s)"
    parser.add_argument("--cache", type=Path, default=cache, metavar="DIR", help=text)


def measure_shapes(given: argparse.Namespace, command: str) -> None:
    """Runs the rows, into the log."""
    given.cache.mkdir(parents=True, exist_ok=True)
    keep(given.log, {"session": {"machine": machine(), "command": command}})
    have = len(os.sched_getaffinity(0))
    for number in given.cores or ():
        if number > have:
            say(f"--cores {number}: skipped, as this machine has {have}")
    names = given.only or (ON_CORES if given.cores else SHAPES)
    with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
        place = Place(given.shared, Path(), given.cache, None, given.peer_processes, Path(work))
        for name in names:
            if given.cores:
                given.cores = [number for number in given.cores if number <= have]
                run_on_cores(name, given, place)
            else:
                run_shape(name, given, place)


def check(given: argparse.Namespace) -> None:
    """Raises BenchmarkError where the page or the test material is not what is wanted."""
    if given.markdown is not None:
        split_at_markers(given.markdown, MARKER)
    if not given.report:
        check_material(given.shared, given.shared / "tokenizers" / "qwen2.5")


def main(arguments: Sequence[str]) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    command = shlex.join(["python", "benchmarks/shapes.py", *arguments])
    return program("shapes", given, MARKER, lambda: check(given), lambda: measure_shapes(given, command), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
