"""Packing 1,000,000 rows: seconds and fill rate, beside TRL's `pack_dataset`.

    python benchmarks/packing.py                                       # beam-prep alone
    python benchmarks/packing.py --trl_python /tmp/trl/bin/python      # beside TRL

TRL is no dependency of this project. Make it an environment of its own; it packs without torch:

    python3.11 -m venv /tmp/trl
    /tmp/trl/bin/pip install datasets transformers
    /tmp/trl/bin/pip install --no-deps trl==1.16.0 accelerate

What is measured: strategy `bfd`, one column of one byte a token on both sides (ids of four bytes would be more copying
for both, and more than small machines hold). "plan" decides what goes where, from the lengths; "all" also moves the
tokens. TRL does both in one call; its time includes `datasets.map`, which collects the output in memory. Every pack of
both must have the same documents, by their lengths, or the benchmark stops.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This file also runs in TRL's environment, which has numpy and pyarrow, but not this project.
import numpy as np

SEED = 20250811
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], Any]] = {
    # sigma 1; a mean of 300 before the cut
    "log-normal, mean 300": lambda rng, rows, capacity: rng.lognormal(np.log(300) - 0.5, 1, rows).clip(1, capacity),
    "uniform": lambda rng, rows, capacity: rng.integers(1, capacity + 1, rows),
}


class BenchmarkError(Exception):
    """What is missing or went wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What one tool did with one set of rows.

    Attributes:
        tool: its name.
        plan: seconds of each run for deciding only; empty where a tool does not do it apart.
        all: seconds of each run for the whole.
        packs, tokens: in the output.
        digest: of the lengths of all documents in all packs.
    """

    tool: str
    plan: list[float]
    all: list[float]
    packs: int
    tokens: int
    digest: str


def digest(packs: Any, lengths: Any) -> str:
    """Of the documents in each pack [packs], and the length of each [documents]."""
    found = hashlib.sha256(np.asarray(packs, np.int64).tobytes())
    found.update(np.asarray(lengths, np.int64).tobytes())
    return found.hexdigest()


def pack_here(lengths: Any, group: int, capacity: int, repeats: int) -> Packed:
    """By beam_prep."""
    from beam_prep.data.ragged import Ragged
    from beam_prep.shards.pack import pack_columns, plan_packs

    rows = Ragged.from_lengths(np.ones(lengths.sum(), np.int8), lengths)
    starts = range(0, len(lengths), group)
    plan_seconds, all_seconds = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        plans = [plan_packs(lengths[start : start + group], "bfd", capacity) for start in starts]
        plan_seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        for start in starts:
            part = rows[start : start + group]
            pack_columns({"input_ids": part}, plan_packs(part.lengths, "bfd", capacity))
        all_seconds.append(time.perf_counter() - started)
    pieces = np.concatenate([plan.piece_lengths for plan in plans])
    packs = np.concatenate([np.diff(plan.packs) for plan in plans])
    return Packed("beam-prep", plan_seconds, all_seconds, len(packs), int(pieces.sum()), digest(packs, pieces))


def pack_there(python: Path, lengths: Any, group: int, capacity: int, repeats: int) -> Packed:
    """By TRL, in its own environment.

    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "lengths.npy"), lengths)
        numbers = [str(number) for number in (group, capacity, repeats)]
        command = [str(python), __file__, "--in_trl", str(Path(folder, "lengths.npy")), *numbers]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise BenchmarkError(f"--trl_python {python}: {error.strerror}") from None
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise BenchmarkError(f"TRL failed in {python} (see the top of this file for how to install it):\n{last}")
    return Packed(**json.loads(done.stdout.splitlines()[-1]))


def pack_in_trl(path: str, group: int, capacity: int, repeats: int) -> Packed:
    """What `pack_there` starts."""
    import pyarrow as pa
    import trl
    from datasets import Dataset, disable_progress_bars
    from trl.data_utils import pack_dataset

    disable_progress_bars()
    lengths = np.load(path)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.array(np.ones(offsets[-1], np.int8))
    dataset = Dataset(pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), tokens)}))
    how = {"batch_size": group, "keep_in_memory": True, "load_from_cache_file": False}
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        packed = pack_dataset(dataset, capacity, "bfd", how)
        seconds.append(time.perf_counter() - started)
    column = packed.data.column("seq_lengths").combine_chunks()
    sizes, pieces = column.value_lengths().to_numpy(), column.flatten().to_numpy()
    tokens_out = sum(len(chunk.flatten()) for chunk in packed.data.column("input_ids").chunks)
    return Packed(f"TRL {trl.__version__}", [], seconds, len(packed), tokens_out, digest(sizes, pieces))


def compare(lengths: Any, group: int, given: argparse.Namespace) -> list[Packed]:
    """What each tool did.

    Raises:
        BenchmarkError: TRL failed, or the tools do not agree.
    """
    done = [pack_here(lengths, group, given.capacity, given.repeats)]
    if given.trl_python is not None:
        done.append(pack_there(given.trl_python, lengths, group, given.capacity, given.repeats))
        if len({(packed.packs, packed.tokens, packed.digest) for packed in done}) > 1:
            raise BenchmarkError(f"the tools disagree: {done[0]} and {done[1]}")
    return done


def benchmark(given: argparse.Namespace) -> str:
    """All that was measured, as a table."""
    from _page import machine, table

    header = ["lengths", "rows a group", "tool", "plan s, median (min-max)", "all s, median (min-max)", "packs", "fill"]
    rows = []
    for name, draw in DISTRIBUTIONS.items():
        lengths = draw(np.random.default_rng(SEED), given.rows, given.capacity).astype(np.int64)
        for group in given.groups:
            shown = "all" if group == 0 else f"{group:,}"
            say(f"{name}, groups of {shown}")
            for packed in compare(lengths, group or len(lengths), given):
                fill = f"{packed.tokens / (packed.packs * given.capacity):.2%}"
                times = [spread(packed.plan), spread(packed.all)]
                rows.append([name, shown, packed.tool, *times, f"{packed.packs:,}", fill])
    return f"{machine()} {given.rows:,} rows, capacity {given.capacity:,}.\n\n{table(header, rows, left=(0, 2))}"


def spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--capacity", type=int, default=2048, help="tokens")
    parser.add_argument("--groups", type=int, nargs="+", default=[1000, 5000, 0], help="rows; 0: all rows are one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl_python", type=Path, help="the Python of an environment with TRL; without: not measured")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--in_trl"]:
        group, capacity, repeats = map(int, arguments[2:])
        packed = pack_in_trl(arguments[1], group, capacity, repeats)
        print(json.dumps({name: getattr(packed, name) for name in Packed.__slots__}))
        return 0
    given = parse(arguments)
    if given.trl_python is None:
        say("TRL is not measured: give --trl_python, the Python of an environment that has it (--help says how)")
    try:
        print(benchmark(given))
    except BenchmarkError as error:
        say(f"packing: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
