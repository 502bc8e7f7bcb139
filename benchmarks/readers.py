"""Readers of the same rows, side by side: opening, random rows, one pass with 0 and 2 workers, batches of random rows,
going on after a stop; and opening a million rows in ten thousand shards.

    python benchmarks/readers.py OUTPUT --work DIR --python .venv-trainers/bin/python \
        --litdata .venv-litdata/bin/python --streaming .venv-streaming/bin/python

OUTPUT is a `bin` output of one column of ids (`-c benchmarks/configs/text.json`). Each library writes its rows once, in
its own layout, to DIR. Then each reads, in a process of its own, in turns; the table has the medians. Every process
prints the number and the sum of the ids it read: if two differ, the benchmark stops. The second table has our rates
over those of others in the same turn: the median of the turns, the lowest and the highest. Files are in memory when a
process starts, but not in its page table. The output of ten thousand shards is made here, by `beam-prep run`, of rows
of about 12 tokens.

`make test-trainers` builds an environment with torch, torchdata, datasets, grain and array_record, which `--python`
takes, and the one for `--streaming`. litdata needs one of its own: `pip install litdata==0.2.76 torch beam-prep`. A
library whose Python is not given is left out. "memory map" is a numpy memory map without a library: the limit. Its rows
are views; in batches of random rows they are copied, as all others' are.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
RANDOM_ROWS = 4_000
LARGE_BATCH, LARGE_BATCHES = 256, 160
MANY_ROWS, MANY_TOKENS = 1_000_000, 1_220
"""Of the output of many shards: rows, and tokens of a shard."""
HERE = Path(__file__).resolve().parent
MAPPED = ("memory map", "beam_prep", "datasets")
"""Those that are map-style data sets, which a DataLoader of torch takes as they are."""
TOOLS = (*MAPPED, "grain + ArrayRecord", "litdata", "mosaicml-streaming")

RANDOM, ONE_PASS, BATCHES = "random rows/s", "one pass, M tokens/s, {} workers", f"batches of {LARGE_BATCH}, rows/s"
RATES = (RANDOM, ONE_PASS.format(0), ONE_PASS.format(2), BATCHES)


class BenchmarkError(Exception):
    """What is missing or went wrong."""


def count(rows: Iterable[Any]) -> tuple[int, int]:
    """Tokens and the sum of the ids of a batch: every id is touched, none is copied to a rectangle."""
    tokens = total = 0
    for row in rows:
        ids = np.asarray(next(iter(row.values())) if isinstance(row, dict) else row)
        tokens += len(ids)
        total += int(ids.sum(dtype=np.int64))
    return tokens, total


class Rows:
    """Rows in a flat memory map."""

    def __init__(self, folder: Path) -> None:
        self.ids = np.memmap(folder / "ids.bin", np.int32, "r")
        self.borders = np.load(folder / "borders.npy")

    def __len__(self) -> int:
        return len(self.borders) - 1

    def __getitem__(self, index: int) -> Any:
        return self.ids[self.borders[index] : self.borders[index + 1]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [np.array(self[index]) for index in indices]


class Decode:
    """Bytes of a record -> ids."""

    def __call__(self, record: bytes) -> Any:
        return np.frombuffer(record, np.int32)


def plain(source: Any, workers: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(source, batch_size=BATCH, num_workers=workers, collate_fn=count)


def stateful(source: Any, workers: int) -> Any:
    """The loader whose state can be saved. It starts more slowly."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(source, batch_size=BATCH, num_workers=workers, collate_fn=count)


def flat(output: Path, folder: Path) -> None:
    """Writes the rows of an output as two arrays, from which the other libraries' layouts are made."""
    import beam_prep as bp

    rows = bp.open(output)
    (name,) = rows.columns
    folder.mkdir(parents=True)
    with (folder / "ids.bin").open("wb") as file:
        for row in rows:
            row[name].astype(np.int32).tofile(file)
    np.save(folder / "borders.npy", np.cumsum([0, *rows.lengths(name)]))


def many_shards(folder: Path) -> None:
    """Makes an output of a million short rows in ten thousand shards."""
    folder.mkdir(parents=True)
    drawn, said = random.Random(1), ["a", "dog", "and", "his", "boy", "went", "up", "the", "hill", "to", "see", "water"]
    with (folder / "rows.jsonl").open("w") as file:
        for _ in range(MANY_ROWS):
            file.write(json.dumps({"text": " ".join(drawn.choices(said, k=drawn.randrange(5, 16)))}) + "\n")
    config = json.loads((HERE / "configs" / "text.json").read_text())
    config["output"]["max_tokens_per_shard"] = MANY_TOKENS
    (folder / "config.json").write_text(json.dumps(config))
    words = [str(folder / "rows.jsonl"), "-c", str(folder / "config.json"), "-o", str(folder / "output")]
    words += ["--tokenizer_path", str(HERE.parent / "examples" / "tokenizer")]
    subprocess.run([sys.executable, "-m", "beam_prep.cli", "run", *words], check=True, capture_output=True)


def make(tool: str, rows: Path, folder: Path, shards: int | None = None) -> None:
    """Writes rows as a library has them; of `datasets` into a number of shards."""
    shutil.rmtree(folder, ignore_errors=True)
    if tool == "datasets":
        import datasets

        features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
        made = datasets.Dataset.from_generator(Records(rows), features=features, cache_dir=str(folder / "cache"))
        made.save_to_disk(folder / "rows", num_shards=shards)
    elif tool == "grain + ArrayRecord":
        from array_record.python.array_record_module import ArrayRecordWriter

        folder.mkdir(parents=True)
        writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1")
        for record in Records(rows)():
            writer.write(record["input_ids"].tobytes())
        writer.close()
    elif tool == "litdata":
        import litdata

        settings = {"num_workers": 1, "chunk_bytes": "64MB", "keep_data_ordered": True, "verbose": False}
        litdata.optimize(fn=Records(rows), inputs=[0], output_dir=str(folder), **settings)
    else:
        from streaming import MDSWriter

        with MDSWriter(out=str(folder), columns={"input_ids": "ndarray:int32"}) as writer:
            for record in Records(rows)():
                writer.write(record)


class Records:
    """The rows as dicts, for libraries that call a function of their own processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, _: int = 0) -> Iterator[dict[str, Any]]:
        rows = Rows(self.folder)
        for index in range(len(rows)):
            yield {"input_ids": np.array(rows[index])}


def reader(tool: str, output: Path, folder: Path) -> tuple[Callable[[], Any], Callable[[Any, int], Any], Any]:
    """A function that opens, one that makes a loader of what is open, one that takes a row of it."""
    if tool in MAPPED:

        def opened() -> Any:
            if tool == "memory map":
                return Rows(folder)
            if tool == "beam_prep":
                import beam_prep as bp

                return bp.open(output)
            import datasets

            return datasets.load_from_disk(str(folder / "rows")).with_format("numpy")

        return opened, plain, _row
    if tool == "grain + ArrayRecord":
        decode = Decode()

        def source_of() -> Any:
            import grain
            from absl import flags

            flags.FLAGS(["readers"], known_only=True)  # grain's processes look at them

            return grain.sources.ArrayRecordDataSource([str(folder / "rows.array_record")])

        def batches(source: Any, workers: int) -> Any:
            import grain

            made = grain.MapDataset.source(source).map(decode).batch(BATCH, batch_fn=count)
            read = made.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            return GrainLoader(read.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else read)

        return source_of, batches, lambda source, index: decode(source[index])
    if tool == "litdata":

        def streaming() -> Any:
            import litdata

            return litdata.StreamingDataset(str(folder), shuffle=False)

        def loader(_: Any, workers: int) -> Any:
            import litdata

            return litdata.StreamingDataLoader(streaming(), batch_size=BATCH, num_workers=workers, collate_fn=count)

        return streaming, loader, _row

    def dataset() -> Any:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        return StreamingDataset(local=str(folder), shuffle=False, batch_size=BATCH)

    def batches_of(source: Any, workers: int) -> Any:
        from streaming import StreamingDataLoader

        # A data set that this process has iterated over hangs in workers.
        rows = dataset() if workers else source
        return StreamingDataLoader(rows, batch_size=BATCH, num_workers=workers, collate_fn=listed)

    return dataset, batches_of, _row


def _row(source: Any, index: int) -> Any:
    return source[index]


def listed(rows: Any) -> list[Any]:
    """`count` for mosaicml-streaming, which counts the samples of a batch by the length of its first value."""
    return [range(len(rows)), *count(rows)]


class GrainLoader:
    """An iterator of grain, with the names that torchdata gives to its state."""

    def __init__(self, dataset: Any) -> None:
        self.iterator = iter(dataset)

    def __iter__(self) -> Any:
        return self.iterator

    def state_dict(self) -> Any:
        return self.iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self.iterator.set_state(state)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = function()
    return time.perf_counter() - start, made


def read(tool: str, output: Path, folder: Path) -> dict[str, Any]:
    """Everything that is measured of one library, in this process."""
    import torch  # a trainer has it

    torch.set_num_threads(1)
    opens, loader, row = reader(tool, output, folder)
    first = timed(opens)[0]  # what it opened is closed: mosaicml-streaming opens nothing twice
    again, source = timed(opens)
    places = np.random.default_rng(1).integers(0, len(source), RANDOM_ROWS).tolist()
    count([row(source, places[0])])
    random_rows, _ = timed(lambda: [count([row(source, place)]) for place in places])
    found: dict[str, float | str] = {
        "open with imports, ms": 1e3 * first,
        "open again, ms": 1e3 * again,
        RANDOM: RANDOM_ROWS / random_rows,
    }
    tokens = total = 0
    for workers in (0, 2):
        start = time.perf_counter()
        batches = [batch[-2:] for batch in loader(source, workers)]
        seconds = time.perf_counter() - start
        tokens, total = (int(sum(column)) for column in zip(*batches, strict=True))
        found[ONE_PASS.format(workers)] = tokens / seconds / 1e6
    if loader is plain:
        drawn = np.random.default_rng(2).integers(0, len(source), (LARGE_BATCHES, LARGE_BATCH)).tolist()
        seconds, _ = timed(lambda: [len(source.__getitems__(indices)) for indices in drawn])
        found[BATCHES] = LARGE_BATCH * LARGE_BATCHES / seconds
    else:
        found[BATCHES] = "-"
    half = len(batches) // 2
    resumable = stateful if loader is plain else loader
    begun = resumable(source, 0)
    going = iter(begun)
    for _ in islice(going, half):
        pass
    state = begun.state_dict()
    wanted = next(going)[-2:]
    source = begun = going = None

    def resumed() -> Any:
        made = resumable(opens(), 0)
        made.load_state_dict(state)
        return next(iter(made))[-2:]

    try:
        seconds, batch = timed(resumed)
        found["go on from the middle, ms"] = 1e3 * seconds if list(batch) == list(wanted) else "another batch"
    except (RuntimeError, ValueError, IndexError, KeyError) as error:
        found["go on from the middle, ms"] = type(error).__name__
    return {"found": found, "tokens": tokens, "sum": total}


def read_random(tool: str, output: Path, folder: Path) -> dict[str, Any]:
    """All rows in random orders, until there were `10 * RANDOM_ROWS`; in this process, without torch."""
    opens, _, row = reader(tool, output, folder)
    source = opens()
    chance, turns = np.random.default_rng(1), -(-10 * RANDOM_ROWS // len(source))
    places = np.concatenate([chance.permutation(len(source)) for _ in range(turns)]).tolist()
    count([row(source, places[0])])
    seconds, (tokens, total) = timed(lambda: count(row(source, place) for place in places))
    return {"seconds": seconds, "tokens": tokens, "sum": total}


def open_many(tool: str, output: Path, folder: Path) -> dict[str, float]:
    """Milliseconds until the last row of many shards is there."""
    import torch  # noqa: F401  # a trainer has it

    opens, _, row = reader(tool, output, folder)

    def last() -> Any:
        source = opens()
        return row(source, len(source) - 1)

    return {"with imports, ms": 1e3 * timed(last)[0], "again, ms": 1e3 * timed(last)[0]}


def run(python: str, *words: str) -> str:
    """A process of this file; gives what it printed last."""
    command = [python, __file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(words[:2])}: {done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="for what the libraries write, and read")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--litdata", help="a Python that has it")
    parser.add_argument("--streaming", help="a Python that has mosaicml-streaming")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("make", "read", "random", "open"), help=argparse.SUPPRESS)
    parser.add_argument("--tool", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "make":
        make(given.tool, given.output, given.work, given.shards)
        return 0
    if given.only:
        work = {"read": read, "random": read_random, "open": open_many}[given.only]
        print(json.dumps(work(given.tool, given.output, given.work)), flush=True)
        return 0
    pythons = dict.fromkeys(TOOLS, given.python)
    pythons |= {"litdata": given.litdata, "mosaicml-streaming": given.streaming}
    tools = [tool for tool in TOOLS if pythons[tool]]
    folders = {tool: given.work / tool.split()[0] for tool in tools}

    def started(only: str, tool: str, source: Path, folder: Path, *words: str) -> str:
        return run(pythons[tool], str(source), "--work", str(folder), "--only", only, "--tool", tool, *words)

    if not folders["memory map"].exists():
        flat(given.output, folders["memory map"])
    for tool in tools[2:]:
        if not folders[tool].exists():
            started("make", tool, folders["memory map"], folders[tool])
    found: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    for turn in range(given.rounds):
        for tool in turned(tools, turn):
            in_memory(given.output if tool == "beam_prep" else folders[tool])
            found[tool].append(json.loads(started("read", tool, given.output, folders[tool])))
            print(tool, found[tool][-1], file=sys.stderr)
    if len({(each["tokens"], each["sum"]) for rounds in found.values() for each in rounds}) != 1:
        raise BenchmarkError(f"the libraries read other ids: {found}")
    figures = {tool: [each["found"] for each in rounds] for tool, rounds in found.items()}
    print(_table(figures), _ratios(figures), sep="\n\n")

    many = given.work / "many"
    if not (output := many / "output").exists():
        shutil.rmtree(many, ignore_errors=True)
        many_shards(many)
    shards = len(json.loads((output / "manifest.json").read_bytes())["shards"])
    plainly = [tool for tool in MAPPED if tool in tools]
    if not (many / "memory").exists():
        flat(output, many / "memory")
    if "datasets" in plainly and not (many / "datasets").exists():
        started("make", "datasets", many / "memory", many / "datasets", "--shards", str(shards))
    opened: dict[str, list[dict[str, Any]]] = {tool: [] for tool in plainly}
    for turn in range(given.rounds):
        for tool in turned(plainly, turn):
            opened[tool].append(json.loads(started("open", tool, output, many / tool.split()[0])))
    print(
        f"\nOpening {MANY_ROWS:,} rows in {shards:,} shards (the memory map: in one file), and reading the last one:\n"
    )
    print(_table(opened))
    return 0


def in_memory(folder: Path) -> None:
    """Reads files, so that none waits for the disk: that of another tool was used since."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


def turned(tools: list[str], turn: int) -> list[str]:
    """Each turn begins with another one."""
    return tools[turn % len(tools) :] + tools[: turn % len(tools)]


def _table(found: dict[str, list[dict[str, Any]]]) -> str:
    measures = list(found["beam_prep"][0])
    lines = ["| | " + " | ".join(measures) + " |", "|---|" + "--:|" * len(measures)]
    for tool, rounds in found.items():
        cells = []
        for measure in measures:
            values = [each[measure] for each in rounds]
            cells.append(values[0] if isinstance(values[0], str) else f"{statistics.median(values):,.1f}")
        lines.append(f"| {tool} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratios(found: dict[str, list[dict[str, Any]]]) -> str:
    """Our rates over those of others, turn by turn: what else the machine did slowed both."""
    lines = ["| ours over | " + " | ".join(RATES) + " |", "|---|" + "--:|" * len(RATES)]
    for tool in (each for each in MAPPED if each in found and each != "beam_prep"):
        cells = []
        for measure in RATES:
            turns = zip(found["beam_prep"], found[tool], strict=True)
            ratios = sorted(ours[measure] / other[measure] for ours, other in turns)
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        lines.append(f"| {tool} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(str(error))
