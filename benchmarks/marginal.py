"""The cost of one more MB: CPU ms of `beam-prep run` and of `datasets.map`, for each shape of records.

    python benchmarks/marginal.py                                       # all rows, at 80 and 240 MB: some hours
    python benchmarks/marginal.py --rows agents calls --peer-small 8 --peer-large 24
    python benchmarks/marginal.py --rows documents --tokenizer ../shared/tokenizers/t5-small
    git worktree add /tmp/before COMMIT
    python benchmarks/marginal.py --beside /tmp/before --skip_peer --rounds 3
    taskset -c 0 python benchmarks/marginal.py --rows chats --skip_peer --large 800     # on one core

Each tool runs on two corpora; the larger begins with the smaller. The cost of a MB is the difference of CPU seconds
divided by the difference of sizes, so costs of the start (imports, the tokenizer) are not included. CPU seconds are the
user and system time of the process and its descendants. The least of all rounds counts, because other programs only add
time. Choose both sizes below 64 MB (beam-prep then runs in one process), or both above; otherwise the start of workers
counts, too, and the table says so. The peer's cost grows linearly, so smaller corpora are enough. Wall seconds and
memory (the highest sum over all processes, a shared page counted once) are those of the larger corpus.

Before the measurement, each tool runs on a small corpus, and all rows of both are compared.

invented.py makes the corpora. Needs `pip install datasets psutil`. Without the test material, examples/tokenizer
replaces qwen2.5, and the row of mistral-v3 is skipped.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import invented
from _measure import ROOT, BenchmarkError, Usage, measure, read_whole, say
from _page import machine, shown, split_at_markers, table, write_markdown

MARKER = "marginal"
OURS, MAP, OTHER = "ours", "`datasets.map`", "other checkout"
HERE = Path(__file__).resolve().parent
FIRST = 8.0
"""MB of the corpus of the first run, which fills the page cache and our tokenizer cache."""

LABELS = {"input_ids": "input_ids", "labels": "labels"}
PAIR = {name: name for name in ("chosen", "chosen_mask", "rejected", "rejected_mask")}
ROLLOUTS = {name: name for name in ("prompts", "responses", "masks", "rewards")}


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table.

    Attributes:
        corpus: a kind of invented.py.
        config: a file in benchmarks/configs/.
        peer: a function of peer_datasets.py.
        same: our column -> the peer's column, for the comparison of rows. Empty: rows are not compared, because packs
            differ at the ends of blocks.
        tokenizer: a folder of the test material.
        longest: tokens to which the peer cuts rows, as in the config.
        domain: the peer's column of domains; None: our output has one domain.
    """

    corpus: str
    config: str
    peer: str
    same: Mapping[str, str] = field(default_factory=lambda: LABELS)
    tokenizer: str = "qwen2.5"
    longest: int = 2048
    domain: str | None = None


SHAPES = {
    "agents": Shape("agents", "shapes/tools", "tools", longest=4096),
    "agents-strings": Shape("agents_strings", "shapes/tools", "tools", longest=4096),
    # This template leaves out text beside calls. By default such a record is rejected.
    "agents-mistral-v3": Shape("agents", "shapes/tools_kept", "tools", tokenizer="mistral-v3", longest=4096),
    "calls": Shape("calls", "shapes/tools", "tools", longest=4096),
    "chats": Shape("chats", "chat_role", "chats"),
    "domains": Shape("domains", "shapes/domains", "domains", domain="domain"),
    "packed_tfrecord": Shape("chats", "shapes/packed_tfrecord", "packed", {}),
    "alpaca": Shape("alpaca", "shapes/alpaca", "alpaca"),
    "preference": Shape("preference", "shapes/preference", "preference", PAIR),
    "rollouts": Shape("rollouts", "shapes/rollouts", "rollouts", ROLLOUTS),
    "documents": Shape("documents", "text", "documents", {"sequence": "input_ids"}),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a tool.

    Attributes:
        size: bytes of the corpus.
        usage: the resources of the run.
        how: the runner and its processes, as text.
        records, left_out: lines that became rows, and lines that were dropped or rejected.
        tokens, trained: tokens and trained tokens of all rows.
    """

    size: int
    usage: Usage
    how: str
    records: int
    left_out: int
    tokens: int
    trained: int


def run_ours(shape: Shape, corpus: Path, output: Path, tokenizer: Path, code: Path | None = None) -> Run:
    """Runs `beam-prep run` as a user does. Rejected records are left out, and reported in the result."""
    command = [sys.executable, "-m", "beam_prep.cli", "run", str(corpus), "-o", str(output), "--max_reject_rate=1"]
    config = (code or ROOT) / "benchmarks" / "configs" / f"{shape.config}.json"  # keys differ between checkouts
    command += ["-c", str(config), "--tokenizer_path", str(tokenizer)]
    usage = measure(command, output.with_suffix(".log"), code)
    manifest = json.loads((output / "manifest.json").read_bytes())
    totals, ledger = manifest["totals"], manifest["ledger"]
    tokens = sum(totals["tokens"].values())
    left_out = sum(ledger["dropped"].values()) + sum(ledger["rejected"].values())
    trained = sum(totals["trained"].values()) if totals["trained"] else tokens
    how = json.loads((output / "run.json").read_bytes())["how"].removeprefix("runner: ")
    records = totals["packing"]["rows"] if "packing" in totals else totals["rows"]
    return Run(corpus.stat().st_size, usage, how, records, left_out, tokens, trained)


def run_peer(shape: Shape, corpus: Path, output: Path, tokenizer: Path, processes: int) -> Run:
    """Runs `datasets.map`, if possible with a template that marks the assistant's text."""
    log = output.with_suffix(".log")
    script = [sys.executable, str(HERE / "peer_datasets.py"), shape.peer, str(corpus), str(output)]
    script += [str(_marking(tokenizer, output.parent)), str(processes), "--longest", str(shape.longest)]
    usage = measure(script, log)
    found = json.loads(log.read_text().splitlines()[-1])
    records = found["rows_in"] if shape.peer == "packed" else found["rows"]
    counts = (records, found["rows_in"] - records, found["tokens"], found["label_tokens"])
    return Run(corpus.stat().st_size, usage, f"{processes} processes", *counts)


def _marking(tokenizer: Path, work: Path) -> Path:
    """The folder, or a copy with the variant of its template that has `{% generation %}`, if there is one."""
    variant = tokenizer / "chat_template_generation.jinja"
    if not variant.exists():
        return tokenizer
    copy = work / f"{tokenizer.name}-generation"
    shutil.copytree(tokenizer, copy, dirs_exist_ok=True)
    shutil.copyfile(variant, copy / "chat_template.jinja")
    return copy


_SAMPLE_TEMPLATE = """\
{%- if tools -%}
    {{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}
            {{- message['content'] or '' -}}
            {%- for call in message['tool_calls'] or () -%}
                {{- '<tool_call>' + call['function'] | tojson + '</tool_call>' -}}
            {%- endfor -%}
            {{- '<|im_end|>' -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message['content'] + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def tokenizer_of(shape: Shape, given: argparse.Namespace) -> Path | None:
    """The tokenizer's folder; None if it is missing and examples/tokenizer cannot replace it."""
    folder: Path = given.tokenizer or given.shared / "tokenizers" / shape.tokenizer
    if folder.is_dir():
        return folder
    if shape.tokenizer != "qwen2.5":
        return None
    say("no test material: using examples/tokenizer, whose 4,096 entries give more tokens a MB than usual")
    folder = given.cache / "sample_tokenizer"
    shutil.copytree(ROOT / "examples" / "tokenizer", folder, dirs_exist_ok=True)
    plain = re.sub(r"\{%- (end)?generation -%\}", "", _SAMPLE_TEMPLATE)
    (folder / "chat_template.jinja").write_text(plain, encoding="utf-8")
    (folder / "chat_template_generation.jinja").write_text(_SAMPLE_TEMPLATE, encoding="utf-8")
    return folder


def run_row(name: str, given: argparse.Namespace, tokenizer: Path, work: Path) -> list[str]:
    """Runs all tools in turns, in each round on the smaller corpora, then on the larger ones. Returns the table's row.

    Raises:
        BenchmarkError: a run failed, or the tools have different numbers of records.
    """
    shape = SHAPES[name]
    sizes = {OURS: (given.small, given.large)}
    if given.beside is not None:
        sizes[OTHER] = sizes[OURS]
    if not given.skip_peer:
        sizes[MAP] = (given.peer_small, given.peer_large)
    found: dict[tuple[str, float], list[Run]] = {}

    def run(tool: str, megabytes: float) -> Path:
        corpus, output = invented.made(shape.corpus, megabytes, given.cache), work / f"output_{list(sizes).index(tool)}"
        shutil.rmtree(output, ignore_errors=True)  # a run must not reuse files of the run before
        shutil.rmtree(work / ".beam_prep", ignore_errors=True)
        read_whole(corpus)
        if tool == MAP:
            done = run_peer(shape, corpus, output, tokenizer, given.peer_processes)
        else:
            done = run_ours(shape, corpus, output, tokenizer, given.beside if tool == OTHER else None)
        say(f"{name}, {megabytes:g} MB: {tool}, {done.how}: {done.usage.wall:.1f} s, CPU {done.usage.cpu:.1f} s")
        found.setdefault((tool, megabytes), []).append(done)
        return output

    first = min(FIRST, *(small for small, _ in sizes.values()))
    outputs = [run(tool, first) for tool in sizes]
    same = ""
    if MAP in sizes:
        same = _same(shape, outputs[0], outputs[-1], found[OURS, first][0], found[MAP, first][0])
    found.clear()
    for turn in range(given.rounds):
        for which in (0, 1):
            for tool in sizes if turn % 2 == 0 else reversed(sizes):
                run(tool, sizes[tool][which])
    costs = {tool: [found[tool, megabytes] for megabytes in sizes[tool]] for tool in sizes}
    row = [name, f"{given.small:g}-{given.large:g}", _cost(costs[OURS])]
    last = costs[OURS][1]
    row += [f"{statistics.median(run.usage.wall for run in last):.1f}", f"{max(r.usage.pss for r in last) / 1e6:,.0f}"]
    row += [f"{given.peer_small:g}-{given.peer_large:g}", _cost(costs[MAP]), _ratio(costs, MAP)] if same else [""] * 3
    return [*row, same, *([_cost(costs[OTHER]), _ratio(costs, OTHER)] if OTHER in sizes else ["", ""])]


def _same(shape: Shape, ours: Path, peers: Path, mine: Run, theirs: Run) -> str:
    """A text: how many rows are equal; if rows are not compared, whether the numbers of tokens are.

    Raises:
        BenchmarkError: the tools have different numbers of records.
    """
    if mine.records + mine.left_out != theirs.records + theirs.left_out:
        raise BenchmarkError(f"the tools disagree about the records: {mine}, {theirs}")
    if not shape.same:
        counts = [(run.tokens, run.trained) for run in (mine, theirs)]
        return f"counts {'equal' if counts[0] == counts[1] else f'differ: {counts}'}"
    from _rows import compare_rows

    found: dict[str, Any] = compare_rows(ours, peers / "data", shape.same, shape.domain)
    text = "all" if found["equal"] == found["ours"] == found["peer"] else f"{found['equal']:,} of {found['peer']:,}"
    for what in ("left_out", "differ"):
        text += "".join(f", {number:,} {key}" for key, number in found[what].items())
    return text


def _ms(runs: Sequence[Sequence[Run]]) -> float:
    """CPU ms of a MB, from the least CPU seconds on the smaller and on the larger corpus."""
    small, large = (min(run.usage.cpu for run in each) for each in runs)
    return 1e9 * (large - small) / (runs[1][0].size - runs[0][0].size)


def _cost(runs: Sequence[Sequence[Run]]) -> str:
    last, how = runs[1][0], list(dict.fromkeys(each[0].how for each in runs))
    text = f"{_ms(runs):.1f}" + (f" ({', '.join(how)})" if len(how) > 1 else "")
    return text + (f" ({last.left_out / (last.records + last.left_out):.0%} left out)" if last.left_out else "")


def _ratio(costs: Mapping[str, Sequence[Sequence[Run]]], tool: str) -> str:
    return f"{_ms(costs[tool]) / _ms(costs[OURS]):.2f}"


HEADER = ["row", "MB", f"{OURS}, CPU ms a MB", "wall s", "memory MB"]
HEADER += ["peer's MB", f"{MAP}, CPU ms a MB", "over ours", "rows equal", f"{OTHER}, CPU ms a MB", "over ours"]


# The command line


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    shared = Path(os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared")))
    cache = Path(tempfile.gettempdir(), "beam_prep_benchmarks")
    add("--rows", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help=f"of {', '.join(SHAPES)}")
    add("--small", type=float, default=80, metavar="MB", help="size of the smaller corpus (default: %(default)s)")
    add("--large", type=float, default=240, metavar="MB", help="size of the larger corpus (default: %(default)s)")
    add("--peer-small", type=float, metavar="MB", help="size of the peer's smaller corpus (default: --small)")
    add("--peer-large", type=float, metavar="MB", help="size of the peer's larger corpus (default: --large)")
    add("--rounds", type=int, default=1, metavar="N", help="rounds; the least CPU time counts (default: %(default)s)")
    add("--beside", type=Path, metavar="DIR", help="another checkout; its beam_prep runs in turns with this one")
    add("--skip_peer", action="store_true", help="measure only beam-prep")
    add("--tokenizer", type=Path, metavar="DIR", help="the tokenizer for all rows")
    text = "the test material (default: BEAM_PREP_SHARED, or beside the project; now %(default)s)"
    add("--shared", type=Path, default=shared, metavar="DIR", help=text)
    text = "folder for corpora, and for outputs during a run (default: %(default)s)"
    add("--cache", type=Path, default=cache, metavar="DIR", help=text)
    add("--peer_processes", type=int, default=2, metavar="N", help="processes of the peer (default: %(default)s)")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the table into FILE, after <!-- {MARKER}: begin -->")
    given = parser.parse_args(arguments)
    given.peer_small, given.peer_large = given.peer_small or given.small, given.peer_large or given.large
    if not (0 < given.small < given.large and 0 < given.peer_small < given.peer_large):
        parser.error("--small must be positive and below --large, and --peer-small below --peer-large")
    if min(given.rounds, given.peer_processes) <= 0:
        parser.error("--rounds and --peer_processes must be positive")
    for name in ("shared", "cache", "beside", "tokenizer"):
        if (path := getattr(given, name)) is not None:
            setattr(given, name, path.resolve())
    return given


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    given = parse(arguments)
    rows: list[list[str]] = []
    code = 0
    try:
        if given.markdown is not None:
            split_at_markers(given.markdown, MARKER)
        if given.beside is not None and not (given.beside / "beam_prep" / "cli.py").is_file():
            raise BenchmarkError(f"--beside {given.beside}: no beam_prep/cli.py there; give a checkout of the project")
        given.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="run-", dir=given.cache, ignore_cleanup_errors=True) as work:
            for name in given.rows:
                tokenizer = tokenizer_of(SHAPES[name], given)
                if tokenizer is None:
                    say(f"{name}: skipped, as there is no {SHAPES[name].tokenizer} in {given.shared}")
                    continue
                rows.append(run_row(name, given, tokenizer, Path(work)))
    except BenchmarkError as error:
        say(f"marginal: {error}")
        code = 1
    except KeyboardInterrupt:  # `Watch` has killed the running process
        code = 130
    if rows:  # also after an interrupt
        command = shown(shlex.join(["python", "benchmarks/marginal.py", *arguments]))
        text = f"{machine()}\n\n{table(HEADER, rows, left=(0, 8))}\n\n    {command}"
        print(text)
        if given.markdown is not None and not code:
            write_markdown(given.markdown, MARKER, text)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
