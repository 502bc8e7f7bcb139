"""Measures reading: random rows and one pass over an output, compared with `datasets` on the same rows.

    python benchmarks/readers.py OUTPUT --rows 4000 --rounds 5

OUTPUT is a `bin` output with one column of ids (`-c benchmarks/configs/text.json`). `datasets` writes its rows once, to
a temporary folder. Then both read in turns. The table has medians of rows and tokens a second. The benchmark stops if
the number or the sum of ids differs. Files are in the page cache.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import say
from _page import machine, table

import beam_prep


def read(rows: Any, name: str, places: Any) -> tuple[float, int, int]:
    """Reads some rows and touches every id: (seconds, tokens, sum of the ids)."""
    started, tokens, total = time.perf_counter(), 0, 0
    for place in places:
        ids = rows[int(place)][name]
        tokens += len(ids)
        total += int(ids.sum(dtype=np.int64))
    return time.perf_counter() - started, tokens, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, default=4000, help="number of random rows (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    given = parser.parse_args()
    import datasets

    ours = beam_prep.open(given.output)
    (name,) = ours.columns
    places = {
        "random rows": np.random.default_rng(1).integers(0, len(ours), given.rows),
        "one pass": np.arange(len(ours)),
    }
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory(prefix="readers-") as folder:
        features = datasets.Features({name: datasets.List(datasets.Value("int32"))})
        made = datasets.Dataset.from_generator(lambda: iter(ours), features=features, cache_dir=folder)
        readers = {"beam_prep": ours, "datasets": made.with_format("numpy")}
        for _ in range(given.rounds):
            for order, numbers in places.items():
                sums = set()
                for tool, rows in readers.items():
                    seconds, tokens, total = read(rows, name, numbers)
                    found.setdefault((order, tool), []).append((seconds, tokens))
                    sums.add((tokens, total))
                if len(sums) > 1:
                    say(f"readers: {order}: the tools read different ids: {sums}")
                    return 1
    lines = []
    for order, numbers in places.items():
        for tool in readers:
            seconds = statistics.median(took for took, _ in found[order, tool])
            tokens = found[order, tool][0][1]
            other = statistics.median(took for took, _ in found[order, "datasets"])
            lines.append(
                [order, tool, f"{len(numbers) / seconds:,.0f}", f"{tokens / seconds:,.0f}", f"{other / seconds:.1f}"]
            )
    print(f"{machine()}\n\n{table(['order', 'reader', 'rows/s', 'tokens/s', 'over datasets'], lines, left=(0, 1))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
