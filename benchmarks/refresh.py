"""Measures a nightly refresh: unchanged old files, a new file, and the token cache and output of the last run.

    python benchmarks/refresh.py chat.jsonl --old 4000 --new 40 --work /fast/disk --tokenizer examples/tokenizer

It makes the inputs from copies of a corpus (`chat.jsonl`, of `{"id", "messages"}`). Each copy has other ids, so no
block occurs twice. It runs the job on the old files from scratch, adds the new file, and runs the job again with
`--overwrite`. It prints both times, their ratio, and how much the second run reused. `--compare` also makes the second
output from scratch, and compares all bytes. The disk needs about four times the bytes of the old files.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MB = 1_000_000
FILE = 200 * MB


def make_inputs(corpus: Path, folder: Path, name: str, size: int) -> None:
    """Writes files of complete lines, each of at most `FILE` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    number = written = 0
    while written < size:
        most = min(FILE, size - written)
        with corpus.open("rb") as source, (folder / f"{name}{number:03d}.jsonl").open("wb") as target:
            for line in source:
                line = line.replace(b'{"id": "', b'{"id": "%s%d-' % (name.encode(), number), 1)
                if target.tell() + len(line) > most:
                    break
                target.write(line)
            if not target.tell():
                return
            written += target.tell()
        number += 1


def run(inputs: Path, output: Path, given: argparse.Namespace, *options: str) -> tuple[float, dict[str, Any]]:
    """Runs a job: (seconds, content of `run.json`)."""
    files = [str(path) for path in sorted(inputs.iterdir())]
    command = [sys.executable, "-m", "beam_prep.cli", "run", *files, "-o", str(output), "-c", str(given.config)]
    started = time.monotonic()
    subprocess.run(
        [*command, "--tokenizer_path", str(given.tokenizer), *options], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.monotonic() - started
    found: dict[str, Any] = json.loads((output / "run.json").read_bytes())
    return seconds, found


def digest(path: Path) -> str:
    return hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()  # it lists the sha256 of every file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--old", type=int, default=400, help="MB of files that do not change")
    parser.add_argument("--new", type=int, default=4, help="MB of the file that is added")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder; its files are not removed")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=HERE.parent / "configs" / "sft_chat.json")
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    inputs, output, cache_dir = (given.work / name for name in ("in", "out", "cache_dir"))
    make_inputs(given.corpus, inputs, "old", given.old * MB)
    scratch, _ = run(inputs, output, given, "--cache_dir", str(cache_dir))
    make_inputs(given.corpus, inputs, "zz-new", given.new * MB)
    refresh, told = run(inputs, output, given, "--cache_dir", str(cache_dir), "--overwrite")
    print("| old | new | from scratch | refresh | ratio | blocks reused | shards linked |")
    print("|---|---|---|---|---|---|---|")
    shards = told["shards_linked"] + told["shards_written"]
    print(
        f"| {given.old:,} MB | {given.new:,} MB | {scratch:.1f} s | {refresh:.1f} s | {refresh / scratch:.3f} "
        f"| {told['blocks_reused']} of {told['blocks']} | {told['shards_linked']} of {shards} |"
    )
    if given.compare:
        run(inputs, given.work / "again", given)
        same = digest(output) == digest(given.work / "again")
        print("the bytes are those of a run from scratch" if same else "THE BYTES DIFFER")
        return not same
    return 0


if __name__ == "__main__":
    sys.exit(main())
