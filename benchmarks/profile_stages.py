"""Where the time of the chat job goes: seconds and shares of each stage, and of Beam itself.

    python benchmarks/profile_stages.py                                      # 200 MB
    python benchmarks/profile_stages.py --size 20 --markdown docs/performance.md

The real job, in this process alone: `beam_prep.Pipeline` on the in-process runner, one thread. The functions that its
steps call are timed from outside. Start-up is apart: the same job first runs on a few records, which loads the
tokenizer and all that is imported late.
"""

import argparse
import functools
import importlib
import inspect
import itertools
import os
import shlex
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _measure import ROOT, BenchmarkError, check_material, make_corpus, prepare_disk, say
from _page import machine, shown, split_at_markers, table, write_markdown

MARKER = "profile"
BOUND = 0.10
"""Beam's own share must stay below, at 200 MB."""

STAGES = {
    "read": ("reading.blocks:read_blocks", "reading.blocks:RawBlock.origin", "storage.token_cache:TokenCache.find"),
    "parse": ("reading.records:parse",),
    "render": ("chat.chat_format:chat_format_of", "chat.apply:apply_template"),
    "encode": ("tokens.tokenize:tokenize",),
    "mask": ("tokens.mask:build_mask",),
    "truncate, labels": ("tokens.rows:truncate", "tokens.rows:to_labels", "shards.layout:finalize_columns"),
    "token cache": ("storage.token_cache:TokenCache.write",),
    "plan, write": (
        "shards.receipts:pack_receipts",
        "shards.plan:make_plan",
        "storage.publish:write_shard",
        "storage.publish:write_rejects",
        "storage.publish:Publisher.publish",
    ),
}
"""Stage -> what the pipeline's steps call for it, below `beam_prep`."""


class Clock:
    """Seconds and calls of each stage. What a stage takes inside another one counts for itself only. One thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._inner: list[float] = []

    def timed(self, stage: str, call: Callable[[], Any]) -> Any:
        """Calls, and gives what that gives."""
        self._inner.append(0.0)
        started = time.perf_counter()
        try:
            return call()
        finally:
            took = time.perf_counter() - started
            self.seconds[stage] += took - self._inner.pop()
            self.calls[stage] += 1
            if self._inner:
                self._inner[-1] += took

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed; a generator from item to item."""
        end = object()

        @functools.wraps(function)
        def generator(*args: Any, **named: Any) -> Iterator[Any]:
            items = function(*args, **named)
            while (item := self.timed(stage, lambda: next(items, end))) is not end:
                yield item

        @functools.wraps(function)
        def plain(*args: Any, **named: Any) -> Any:
            return self.timed(stage, lambda: function(*args, **named))

        return generator if inspect.isgeneratorfunction(function) else plain


def watch(clock: Clock) -> None:
    """Puts the clock around every function of `STAGES`, for the rest of this process.

    In every module that has the name: Beam pickles functions by module and name, and must find the timed one there.

    Raises:
        BenchmarkError: there is no such function any more.
    """
    from beam_prep.transforms.block_step import BlockStep

    for stage, places in STAGES.items():
        for place in places:
            module_name, _, path = place.partition(":")
            try:
                owner: Any = importlib.import_module(f"beam_prep.{module_name}")
                *classes, name = path.split(".")
                for each in classes:
                    owner = getattr(owner, each)
                function = getattr(owner, name)
            except (ImportError, AttributeError) as error:
                raise BenchmarkError(f"no beam_prep.{place}: mend STAGES in {Path(__file__).name} ({error})") from None
            timed = clock.around(stage, function)
            setattr(owner, name, timed)
            for module in [module for key, module in sys.modules.items() if key.split(".")[0] == "beam_prep"]:
                for key in [key for key, value in vars(module).items() if value is function]:
                    setattr(module, key, timed)
            for kind in [kind for kind in BlockStep.__subclasses__() if vars(kind).get("work") is function]:
                kind.work = timed


def profile(corpus: Path, config: Path, tokenizer: Path, cache: Path) -> tuple[Clock, float, dict[str, float]]:
    """(stages, seconds of the whole run, seconds of what comes before it, by name).

    Raises:
        BenchmarkError: what the run called is not what is timed.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in a worker process
    started = time.perf_counter()
    from beam_prep.pipeline import Pipeline

    start_up = {"imports": time.perf_counter() - started}
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="profile-", dir=cache) as work:
        few = Path(work, "few.jsonl")
        with open(corpus, "rb") as lines:
            few.write_bytes(b"".join(itertools.islice(lines, 100)))

        def job(source: Path, name: str) -> Pipeline:
            return Pipeline(config, [source], Path(work, name), tokenizer)

        def run(it: Pipeline) -> float:
            before = time.perf_counter()
            it.run(["--direct_running_mode=in_memory"])
            return time.perf_counter() - before

        started = time.perf_counter()
        first = job(few, "few")
        start_up["the job, with its tokenizer"] = time.perf_counter() - started
        start_up["a run over 100 records"] = run(first)
        measured = job(corpus, "out")
        # Only now, as a job reads and encodes some records when it is made.
        watch(clock)
        prepare_disk(corpus)
        say(f"running over {corpus}")
        whole = run(measured)
    if absent := [stage for stage in STAGES if not clock.calls[stage]]:
        raise BenchmarkError(f"the run called nothing of {', '.join(absent)}: mend STAGES in {Path(__file__).name}")
    return clock, whole, start_up


def report(clock: Clock, whole: float, start_up: dict[str, float], size: int, command: str) -> str:
    """The profile as Markdown."""
    beam = whole - sum(clock.seconds.values())
    rows = [
        [stage, f"{seconds:.2f}", f"{seconds / whole:.1%}", f"{calls:,}" if calls else ""]
        for stage, seconds, calls in (
            *((stage, clock.seconds[stage], clock.calls[stage]) for stage in STAGES),
            ("Beam itself", beam, 0),
            ("all", whole, 0),
        )
    ]
    held = "yes" if beam / whole < BOUND else "**no**"
    before = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in start_up.items())
    return "\n\n".join(
        [
            machine(),
            table(["stage", "s", "share", "calls"], rows, left=(0,)),
            f"{size / 1e6:,.0f} MB in one process, {size / 1e6 / whole:.1f} MB/s. Beam's own share, with what the "
            f"launcher does around it: {beam / whole:.1%}; under {BOUND:.0%}: {held}. Not in the table, start-up: "
            f"{before}.",
            f"Command: `{shown(command)}`",
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Gives the exit code."""
    shared = os.environ.get("BEAM_PREP_SHARED", str(ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", type=float, default=200, metavar="MB", help="of the corpus (default: %(default)s)")
    add("--config", type=Path, default=ROOT / "benchmarks" / "configs" / "chat_last.json", metavar="FILE")
    add("--tokenizer", type=Path, metavar="DIR", help="default: tokenizers/qwen2.5 of the shared folder")
    add("--shared", type=Path, default=Path(shared), metavar="DIR", help=f"the test material (now {shared})")
    add("--cache", type=Path, default=Path(tempfile.gettempdir(), "beam_prep_benchmarks"), metavar="DIR")
    add("--markdown", type=Path, metavar="FILE", help=f"also put the table into FILE, after <!-- {MARKER}: begin -->")
    given = parser.parse_args(arguments)
    tokenizer = (given.tokenizer or given.shared / "tokenizers" / "qwen2.5").resolve()
    try:
        if given.markdown is not None:
            split_at_markers(given.markdown, MARKER)
        check_material(given.shared, tokenizer)
        corpus = make_corpus(given.shared.resolve(), "chat", given.size, given.cache.resolve())
        clock, whole, start_up = profile(corpus, given.config.resolve(), tokenizer, given.cache.resolve())
        command = shlex.join(["python", "benchmarks/profile_stages.py", *arguments])
        text = report(clock, whole, start_up, corpus.stat().st_size, command)
        print(text)
        if given.markdown is not None:
            write_markdown(given.markdown, MARKER, text)
    except BenchmarkError as error:
        say(f"profile_stages: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
