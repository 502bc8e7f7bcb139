"""The CPU time of one job with the code of two folders, in turns: medians, and the ratio of each pair.

    git archive COMMIT | tar -x -C OLD
    python benchmarks/side_by_side.py OLD . --config benchmarks/configs/chat_last.json --corpus CORPUS.jsonl \
        --tokenizer DIR --pairs 11

Whole processes (`beam-prep run`, with its workers), user and system time: on a machine that others use as well, wall
time says little.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def seconds(code: Path, words: list[str]) -> float:
    """CPU seconds of a run, and of all processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(code)}
    command = [sys.executable, "-m", "beam_prep.cli", "run", *words]
    subprocess.run(command, check=True, cwd=code, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path, metavar="FOLDER", help="the code before, and after")
    for name in ("config", "corpus", "tokenizer"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=11)
    given = parser.parse_args()
    times: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="side_by_side-") as work:
        output = Path(work, "out")
        words = [str(given.corpus.resolve()), "-o", str(output), "-c", str(given.config.resolve())]
        words += ["--tokenizer_path", str(given.tokenizer.resolve())]
        for pair in range(-1, given.pairs):  # the first is not counted: its files come into the cache
            for place in (0, 1) if pair % 2 else (1, 0):
                took = seconds(given.folders[place].resolve(), words)
                shutil.rmtree(output)
                if pair >= 0:
                    times[place].append(took)
    medians = [statistics.median(each) for each in times]
    ratios = sorted(after / before for before, after in zip(*times, strict=True))
    print(
        f"{given.corpus.name}, {given.config.stem}: CPU s {medians[0]:.2f} before, {medians[1]:.2f} after, medians of "
        f"{given.pairs}; ratio of medians {medians[1] / medians[0]:.3f}, of pairs {statistics.median(ratios):.3f} "
        f"({ratios[0]:.3f}-{ratios[-1]:.3f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
