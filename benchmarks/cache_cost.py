"""What the checksums of the token cache cost: CPU time of making and of proving them.

    python benchmarks/cache_cost.py CORPUS.jsonl --config benchmarks/configs/chat_last.json --tokenizer DIR

The job runs twice in this process, on one thread and with a token cache that is kept, so that the second run finds all
blocks. A job over a few records runs before, so that start-up is not counted.
"""

import argparse
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
from _page import machine, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    for name in ("config", "tokenizer"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in a worker process
    from beam_prep.formats import sealed
    from beam_prep.pipeline import Pipeline

    logging.getLogger("beam_prep").setLevel(logging.ERROR)
    spent: defaultdict[str, float] = defaultdict(float)
    inside: list[str] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if inside:  # one calls the other
                return function(*args, **named)
            inside.append(name)
            began = time.process_time()
            try:
                return function(*args, **named)
            finally:
                spent[name] += time.process_time() - began
                inside.pop()

        return call

    rows = []
    with tempfile.TemporaryDirectory(prefix="cache_cost-") as work:
        few = Path(work, "few.jsonl")
        with open(given.corpus, "rb") as lines:
            few.write_bytes(b"".join(itertools.islice(lines, 100)))

        def run(source: Path, name: str) -> float:
            job = Pipeline(
                given.config, [source], Path(work, name), given.tokenizer, cache_dir=str(Path(work, "cache_dir"))
            )
            began = time.process_time()
            job.run(["--direct_running_mode=in_memory"])
            return time.process_time() - began

        run(few, "few")
        sealed.seal = timed("seal", sealed.seal)
        for name in ("__init__", "part"):
            setattr(sealed.Sealed, name, timed("prove", getattr(sealed.Sealed, name)))
        for name in ("first", "again"):
            spent.clear()
            whole = run(given.corpus, name)
            run_json = json.loads(Path(work, name, "run.json").read_bytes())
            parts = [f"{spent[kind]:.3f} ({spent[kind] / whole:.2%})" for kind in ("seal", "prove")]
            rows.append([f"{run_json['blocks_reused']} of {run_json['blocks']}", f"{whole:.2f}", *parts])
        size = sum(path.stat().st_size for path in Path(work, "cache_dir").rglob("*.arrow"))
    print(machine())
    print(
        f"\n{given.corpus.name}, {given.config.stem}: {size / 1e6:,.0f} MB of token cache for "
        f"{given.corpus.stat().st_size / 1e6:,.0f} MB; crc32c: {google_crc32c.implementation}\n"
    )
    print(table(["blocks reused", "CPU s, all", "to seal", "to prove"], rows, left=()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
