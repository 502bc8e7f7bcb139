"""`ds.packed(...)` beside TRL's `pack_dataset`: what each takes until the first packed row can be trained on.

    python benchmarks/packed_view.py documents.jsonl --rows 10000000 --texts TEXTS.jsonl
    beam-prep run documents.jsonl -c benchmarks/configs/packed_view.json -o OUTPUT --tokenizer_path TOKENIZER
    python benchmarks/packed_view.py OUTPUT --python .venv-trainers/bin/python

OUTPUT has the formats `bin` and `arrow`. Each tool runs in a process of its own, in turns, best-fit decreasing, with
packed rows of 2,048 tokens: ours plans over the `bin` files, TRL packs the `arrow` files and writes what it packed, as
`SFTTrainer` lets it. The time ends when the first packed row has been read. Then both read the same number of packed
rows at drawn places. `--python` needs trl and beam-prep: `make test-trainers` builds such an environment.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 2048
READ = 2_000
TOOLS = ("beam_prep, all rows", "beam_prep, all rows, a seed", "TRL, 1,000 rows a group", "TRL, all rows")


class BenchmarkError(Exception):
    """What is missing or went wrong."""


def write_documents(texts: Path, target: Path, rows: int) -> None:
    """Cuts texts into documents of 250 characters in the mean, log-normal."""
    source = "\n".join(json.loads(line)["text"] for line in texts.open(encoding="utf-8"))
    drawn = np.random.default_rng(17)
    with target.open("w", encoding="utf-8") as file:
        for first in range(0, rows, 100_000):
            count = min(100_000, rows - first)
            sizes = drawn.lognormal(np.log(250) - 0.5, 1, count).clip(5, 20_000).astype(int).tolist()
            places = drawn.integers(0, len(source) - 20_000, count).tolist()
            file.writelines(
                json.dumps({"text": source[place : place + size]}, ensure_ascii=False) + "\n"
                for place, size in zip(places, sizes, strict=True)
            )


def measure(tool: str, output: Path) -> dict[str, Any]:
    """What is measured of one tool, in this process."""
    start = time.perf_counter()
    if tool.startswith("beam_prep"):
        import beam_prep as bp

        packed: Any = bp.open(output).packed(LENGTH, seed=1 if tool.endswith("seed") else None)
    else:
        from datasets import disable_progress_bars, load_from_disk
        from trl.data_utils import pack_dataset

        disable_progress_bars()
        rows = load_from_disk(str(output))["__default__"]
        group = len(rows) if tool.endswith("all rows") else 1_000
        options = {"batch_size": group, "load_from_cache_file": False, "writer_batch_size": 1_000}
        packed = pack_dataset(rows.select_columns(["sequence"]), LENGTH, "bfd", options).with_format("numpy")
    first = np.asarray(packed[0]["sequence"])
    seconds = time.perf_counter() - start
    places = np.random.default_rng(2).integers(0, len(packed), READ).tolist()
    start = time.perf_counter()
    tokens = sum(len(packed[place]["sequence"]) for place in places)
    return {
        "until the first packed row, s": seconds,
        "packed rows": len(packed),
        "fill, %": 100 * tokens / (READ * LENGTH),
        "drawn rows/s": READ / (time.perf_counter() - start),
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "first": len(first),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the output; or the file of documents to write")
    parser.add_argument("--rows", type=int, help="write so many documents to PATH")
    parser.add_argument("--texts", type=Path, help="JSONL with `text`, of which documents are cut")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tool", choices=TOOLS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rows is not None:
        if given.texts is None:
            raise BenchmarkError("--rows without --texts: wanted the JSONL file of which documents are cut")
        write_documents(given.texts, given.path, given.rows)
        return 0
    if given.tool is not None:
        print(json.dumps(measure(given.tool, given.path)))
        return 0
    found: dict[str, list[dict[str, Any]]] = {tool: [] for tool in TOOLS}
    for _ in range(given.rounds):
        for tool, rounds in found.items():
            done = subprocess.run(
                [given.python, __file__, str(given.path), "--tool", tool], capture_output=True, text=True
            )
            if done.returncode:
                raise BenchmarkError(f"{tool}: {done.stderr[-2000:]}")
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
            print(tool, rounds[-1], file=sys.stderr)
    names = [name for name in found[TOOLS[0]][0] if name != "first"]
    print("| | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names), sep="\n")
    for tool, rounds in found.items():
        cells = [f"{statistics.median(each[name] for each in rounds):,.1f}" for name in names]
        print(f"| {tool} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(str(error))
