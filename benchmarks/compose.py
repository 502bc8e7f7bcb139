"""What a shuffle, splits, deduplication and a mix cost, beside the same job without them, in turns.

    python benchmarks/compose.py --markdown docs/compose.md          # some 40 minutes; needs 20 GB of disk
    python benchmarks/compose.py --quick                             # a smoke test
    python benchmarks/compose.py --limit 2 --sizes 4000              # in a cgroup of 2 GB, as root: see there

Chats of `make_corpus.py` of the shared folder, the job `chat_role`. `duplicate` has 10 % copies of records before them.
The peer is `peer_shuffle.py`: `datasets` with map, shuffle, flatten_indices and save_to_disk, from the same file.
Ratios are of neighbouring runs. Memory is the peak of the sum of all processes (PSS).
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _measure import ROOT, BenchmarkError, Usage, check_material, make_corpus, measure, prepare_disk, say
from _page import machine, split_at_markers, table, write_markdown

HERE = Path(__file__).resolve().parent
MARKER = "compose"
PLAIN, PEER = "plain", "datasets"
SPLITS = {"train": 0.98, "validation": 0.01, "test": 0.01}
# name: changes of the config
JOBS: dict[str, dict[str, dict[str, Any]]] = {
    PLAIN: {},
    "shuffle": {"output": {"shuffle": {"seed": 17}}},
    "splits": {"output": {"splits": SPLITS}},
    "deduplicate": {"preprocessing": {"deduplicate": {"by": ["messages"]}}},
    "all": {
        "preprocessing": {"deduplicate": {"by": ["messages"]}},
        "output": {"shuffle": {"seed": 17}, "splits": SPLITS, "mix": {"__default__": {"epochs": 1.5}}},
    },
}


def with_copies(corpus: Path) -> Path:
    """The corpus with a copy of a record before it in place of every tenth line, made unless it is there."""
    found = corpus.with_name(f"{corpus.stem}_copies.jsonl")
    if found.exists():
        return found
    say(f"making {found}")
    rng, kept = random.Random(17), [b""] * 10_000
    part = found.with_suffix(".part")
    with open(corpus, "rb") as source, open(part, "wb") as target:
        for number, line in enumerate(source):
            known = kept[rng.randrange(len(kept))]
            copied = number % 10 == 9 and known
            target.write(known if copied else line)
            kept[number % len(kept)] = line
    part.replace(found)
    return found


def run(name: str, corpus: Path, given: argparse.Namespace, work: Path) -> Usage:
    """Runs a job."""
    output = work / "out"
    try:
        prepare_disk(corpus)
        if name == PEER:
            words = [sys.executable, str(HERE / "peer_shuffle.py"), str(corpus), str(output), str(given.tokenizer)]
            return measure([*words, str(given.peer_processes)], work / "peer.log")
        config = json.loads((HERE / "configs" / "chat_role.json").read_bytes())
        for part, fields in JOBS[name].items():
            config[part] |= fields
        (work / "config.json").write_text(json.dumps(config))
        words = [sys.executable, "-m", "beam_prep.cli", "run", str(corpus), "-o", str(output)]
        words += ["-c", str(work / "config.json"), "--tokenizer_path", str(given.tokenizer)]
        return measure([*limited(given.limit), *words], work / "ours.log")
    finally:
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(work / ".beam_prep", ignore_errors=True)


def limited(gigabytes: float | None) -> list[str]:
    """The words before a command that put it into a cgroup with so much memory and no swap; needs root.

    Raises:
        BenchmarkError: there is no cgroup to write to.
    """
    if gigabytes is None:
        return []
    for folder, limit, swap in (
        (Path("/sys/fs/cgroup/memory/beam_prep"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        (Path("/sys/fs/cgroup/beam_prep"), "memory.max", "memory.swap.max"),
    ):
        if (folder.parent / limit).exists() or (folder.parent / "cgroup.subtree_control").exists():
            try:
                if limit == "memory.max":
                    (folder.parent / "cgroup.subtree_control").write_text("+memory")
                folder.mkdir(exist_ok=True)
                (folder / limit).write_text(str(int(gigabytes * 2**30)))
                if (folder / swap).exists():
                    (folder / swap).write_text("0" if limit == "memory.max" else str(int(gigabytes * 2**30)))
            except OSError as error:
                raise BenchmarkError(f"{folder}: {error}: run it as root, where cgroups can be written") from None
            return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$0" "$@"']
    raise BenchmarkError("there is no cgroup with a limit of memory here")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    shared = os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--jobs", nargs="+", choices=[*JOBS, PEER], default=[*JOBS, PEER], metavar="JOB")
    add("--sizes", type=float, nargs="+", default=[100.0, 800.0], metavar="MB", help="default: 100 800")
    add("--repeats", type=int, default=3, help="rounds, each with a run of every job (default: %(default)s)")
    add("--peer_repeats", type=int, default=1, help="of these, with a run of the peer (default: %(default)s)")
    add("--peer_processes", type=int, default=2)
    add("--limit", type=float, metavar="GB", help="memory that a job may have, page cache included")
    add("--tokenizer", type=Path, metavar="DIR", help="default: tokenizers/qwen2.5 of the shared folder")
    add("--shared", type=Path, default=Path(shared), metavar="DIR", help="the test material")
    cache = Path(tempfile.gettempdir(), "beam_prep_benchmarks")
    add("--cache", type=Path, default=cache, metavar="DIR", help="corpora and outputs (default: %(default)s)")
    add("--markdown", type=Path, metavar="FILE", help=f"put the tables into FILE, after <!-- {MARKER}: begin -->")
    add("--quick", action="store_true", help="a smoke test: 2 and 4 MB, once")
    given = parser.parse_args(arguments)
    if given.quick:
        given.sizes, given.repeats = [2.0, 4.0], 1
    given.shared, given.cache = given.shared.resolve(), given.cache.resolve()
    given.tokenizer = (given.tokenizer or given.shared / "tokenizers" / "qwen2.5").resolve()
    return given


Found = dict[tuple[str, float], list[Usage]]


def measured(given: argparse.Namespace) -> Found:
    """(job, megabytes) -> its runs."""
    found: Found = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="compose-", dir=given.cache) as work:
        for repeat in range(given.repeats):
            for megabytes in given.sizes:
                corpus = with_copies(make_corpus(given.shared, "chat", megabytes, given.cache))
                for name in given.jobs:
                    if name == PEER and (repeat >= given.peer_repeats or megabytes != max(given.sizes)):
                        continue
                    usage = run(name, corpus, given, Path(work))
                    found[name, megabytes].append(usage)
                    say(f"{name}, {megabytes:g} MB: {usage.wall:.1f} s, {usage.pss / 1e6:,.0f} MB")
    return found


def report(found: Found) -> str:
    """What was measured, as a table."""
    rows = []
    smallest = min(megabytes for _, megabytes in found)
    for (name, megabytes), runs in found.items():
        plain = found.get((PLAIN, megabytes), [])
        ratios = [mine.wall / theirs.wall for mine, theirs in zip(runs, plain, strict=False)]
        first = found.get((name, smallest), [])
        memory = statistics.median(each.pss for each in runs)
        grown = f"{memory / statistics.median(each.pss for each in first):.2f}" if first else ""
        rows.append(
            [
                name,
                f"{megabytes:g}",
                f"{statistics.median(each.wall for each in runs):.1f}",
                f"{statistics.median(each.cpu for each in runs):.1f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "",
                f"{memory / 1e6:,.0f}",
                grown,
                str(len(runs)),
            ]
        )
    header = ["job", "MB", "wall s", "CPU s", f"wall / {PLAIN}", "peak MB", f"/ at {smallest:g} MB", "runs"]
    return table(header, rows, left=(0,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    try:
        if given.markdown is not None:
            split_at_markers(given.markdown, MARKER)
        check_material(given.shared, given.tokenizer)
        given.cache.mkdir(parents=True, exist_ok=True)
        text = f"{machine()}\n\n{report(measured(given))}"
    except BenchmarkError as error:
        say(f"compose: {error}")
        return 1
    print(text)
    if given.markdown is not None:
        write_markdown(given.markdown, MARKER, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
