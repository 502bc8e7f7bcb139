"""Both tokenizer backends and both renderers on one corpus: the same files, how long each takes, and what did the work.

    python benchmarks/four_ways.py CORPUS.jsonl --tokenizer DIR [--config benchmarks/configs/chat_last.json]

Exits with 1 where any file but run.json differs, the manifest included.
"""

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from beam_prep.formats.manifest import UNLISTED

HERE = Path(__file__).resolve().parent


def digest(folder: Path) -> str:
    """sha256 over the names and the sha256 of all files but run.json."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in UNLISTED:
            with open(path, "rb") as file:
                total.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer's folder")
    parser.add_argument("--config", default=str(HERE / "configs" / "chat_last.json"))
    given = parser.parse_args()
    digests = set()
    with tempfile.TemporaryDirectory(prefix="four_ways-") as work:
        for backend, render in itertools.product(("gigatoken", "transformers"), ("auto", "jinja")):
            output = Path(work, f"{backend}-{render}")
            job = ["run", str(given.corpus), "-o", str(output), "-c", given.config, "--tokenizer_path", given.tokenizer]
            ways = ["--tokenizer_backend", backend, "--render", render]
            started = time.monotonic()
            subprocess.run([sys.executable, "-m", "beam_prep.cli", *job, *ways], check=True, stdout=subprocess.DEVNULL)
            seconds = time.monotonic() - started
            run = json.loads((output / "run.json").read_bytes())
            counts = {name: run[name] for name in run if name.startswith(("encoded_", "rendered_", "blocks_"))}
            digests.add(digest(output))
            print(f"{backend:12} {render:5} {seconds:6.1f} s  {digest(output)[:16]}  {counts}", flush=True)
    print("all files are the same" if len(digests) == 1 else "THE FILES DIFFER")
    return len(digests) - 1 and 1


if __name__ == "__main__":
    sys.exit(main())
