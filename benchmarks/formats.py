"""One job in each output format beside the same job in `bin`: wall seconds of whole processes, and bytes written.

    python benchmarks/formats.py CORPUS.jsonl -c benchmarks/configs/text.json --tokenizer_path TOKENIZER --rounds 5

Each round runs every format, with a run of `bin` before each; the ratio is that of the medians. Output and token cache
are on the disk of `--work`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _page import machine, table

from beam_prep.formats import FORMATS


def run(format: str, given: argparse.Namespace, work: Path) -> tuple[float, int]:
    """(seconds, bytes of shards) of a run in one format."""
    config = json.loads(given.config.read_text())
    config["output"]["storage_format"] = format
    path = work / f"{format}.json"
    path.write_text(json.dumps(config))
    words = [str(given.corpus), "-c", str(path), "--tokenizer_path", str(given.tokenizer_path), "-o", str(work / "out")]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "beam_prep.cli", "run", *words], check=True, capture_output=True)
    seconds = time.perf_counter() - start
    manifest = json.loads((work / "out" / "manifest.json").read_bytes())
    shutil.rmtree(work / "out")
    os.sync()  # the next run does not wait for what this one wrote
    return seconds, sum(file["bytes"] for shard in manifest["shards"] for file in shard["files"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--tokenizer_path", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=[name for name in FORMATS if name != "bin"])
    parser.add_argument("--work", type=Path, default=None)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in ("bin", *given.formats)}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="formats-", dir=given.work) as folder:
        run("bin", given, Path(folder))  # its files come into the cache
        for _ in range(given.rounds):
            for name in given.formats:
                for each in ("bin", name):
                    took, sizes[each] = run(each, given, Path(folder))
                    seconds[each].append(took)
    base = statistics.median(seconds["bin"])
    rows = [
        [
            f"`{name}`",
            f"{statistics.median(each):.2f}",
            f"{statistics.median(each) / base:.2f}",
            f"{sizes[name] / 1e6:,.0f}",
        ]
        for name, each in seconds.items()
    ]
    print(f"{machine()}\n\n{table(['format', 'seconds', 'over `bin`', 'MB'], rows, left=(0,))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
