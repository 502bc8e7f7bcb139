"""The plan of 10 TB: seconds, memory and bytes of all steps between the last block and the manifest.

    python benchmarks/plan_scale.py --markdown docs/scale.md     # 1,200,000 receipts: some minutes
    python benchmarks/plan_scale.py --small                      # a smoke test
    python benchmarks/plan_scale.py --compose                    # with a shuffle, splits and a mix
    python benchmarks/plan_scale.py --receipts 200000 --runner   # the same steps as a pipeline, on the FnApiRunner
    python benchmarks/plan_scale.py --flink                      # the same, on a Flink cluster of this machine

No input is read and no shard is written. A few blocks of 8 MB are encoded by the code of the token cache. Simulated
blocks reuse their block statistics (receipts) and row indexes under new names and digests. Reading a row index takes
`--delay` seconds, as from an object store, and decodes real bytes. Each step runs in its own process, so its peak
memory (`VmHWM`) does not include other steps:

* `pack`: receipts -> `packed`, some at a time -> grouped by parts. Many workers do this.
* `plan`: the parts -> `plan_output`; each element of the result goes through Beam's coder. One worker does this.
* `shards` (with `--compose`): the counts of all runs -> `plan_shards`. One worker does this. Before it, many workers
  sort and merge rows, which is not measured here.
* `publish`: a receipt of every planned shard -> the manifest, and the manifest read back. One worker does this.

"Own" seconds are wall time without the simulated waits.

For `--flink`, `make engines` builds the cluster: one TaskManager of two slots with the memory of `TASK_MANAGER`, and a
worker pool, whose workers have the code of this checkout. The peak is that of the largest worker.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import itertools
import multiprocessing
import pickle
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import psutil
import pyarrow as pa
from _measure import ROOT, BenchmarkError, say
from _page import machine, split_at_markers, table, write_markdown
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_prep.data.block import InputFile, Ledger, Origin, Split
from beam_prep.data.hashing import Node
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.formats.cached_block import ROW_INDEX, encode_block, read_rejects, read_row_index
from beam_prep.formats.manifest import ShardReceipt, WrittenFile, build_manifest, dump, load
from beam_prep.shards.compose import Compose, DomainMix, Splits, view_receipt
from beam_prep.shards.plan import Plan
from beam_prep.shards.receipts import BlockReceipt, Copies, RowIndex, placed
from beam_prep.shards.runs import RunCounts, Runs
from beam_prep.shards.slices import RejectsPlan
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.publish import KeyedShard, Publisher, WrittenShard
from beam_prep.storage.token_cache import AT_ONCE, TokenCache
from beam_prep.tokens.batch import Batch
from beam_prep.transforms.shard import PARTS, RECEIPTS, Shard, packed, plan_output, plan_shards

SEED = 20250811
BLOCK_BYTES = 8 * 1024 * 1024
COLUMNS = (Column("sequence", "int32", 1, "ids"), Column("loss_mask", "uint8", 1, "mask"))
DOMAINS = ("chat/en", "chat/other", "code", "papers", "web", "wiki")
SETS = (DOMAINS[:1], DOMAINS[2:3], DOMAINS[3:6], DOMAINS[:4])
"""The domains of a file: a file has one domain, or a few."""
MEANS = (290, 950)
"""Mean tokens of a record, for chats and for texts. Both have about 4.2 bytes of input a token."""
FAMILIES = tuple(itertools.product(MEANS, SETS))
KINDS = 8
"""Different blocks of each family."""


@functools.cache
def block(family: int, kind: int) -> tuple[BlockReceipt, bytes]:
    """(receipt, row index) of a block of 8 MB. Lengths are log-normal; one block in three has rejects."""
    mean, domains = FAMILIES[family]
    rng = np.random.default_rng([SEED, family, kind])
    rows = int(BLOCK_BYTES / 4.2 / mean * rng.uniform(0.9, 1.1))
    tokens = rng.lognormal(np.log(mean) - 0.32, 0.8, rows).clip(1, 30_000).astype(np.int64)
    starts = np.linspace(0, BLOCK_BYTES, rows + 12, endpoint=False).astype(np.int64)
    ledger = Ledger(b" " * BLOCK_BYTES, starts, starts + 1)
    gone = rng.choice(len(starts), 12, replace=False)
    ledger.blank(gone[:4])
    ledger.drop(gone[4:], "empty")
    for line in gone[: rng.integers(1, 5) if rng.random() < 1 / 3 else 0].tolist():
        ledger.reject(line, "bad_json", "line is no JSON")
    origin = Origin(0, InputFile("", BLOCK_BYTES, 0.0), 0, 0, BLOCK_BYTES, (), "")
    alive = np.setdiff1d(np.arange(len(starts)), gone).astype(np.int32)
    batch = Batch(origin, ledger, alive, domain=rng.choice(domains, rows).tolist())
    for column in COLUMNS:
        batch.columns[column.name] = Ragged.from_lengths(np.zeros(tokens.sum(), column.dtype), tokens)
        batch.schema[column.name] = column
    ledger.digests["split"] = rng.integers(0, 2**63, len(starts)).astype(np.uint64)
    batch.count("truncated_rows", (tokens > 2048).astype(np.int64))
    receipt, files = encode_block(batch, batch.tokens, 0, "simulated")
    return receipt, b"".join(files[ROW_INDEX])


COMPOSE = Compose(
    shuffle=17,
    splits=Splits.of({"train": 0.98, "validation": 0.01, "test": 0.01}),
    mix=(("web", DomainMix(share=0.1, repeat=True)), ("code", DomainMix(epochs=2)), ("papers", DomainMix(tokens=1e9))),
)


@functools.cache
def viewed(family: int, kind: int) -> BlockReceipt:
    """The receipt of a block's view with `COMPOSE`."""
    receipt, index = block(family, kind)
    row_index = read_row_index(pa.BufferReader(index), "simulated")
    return view_receipt(receipt, row_index, Copies(), "", COMPOSE.splits)


@dataclass(frozen=True, slots=True)
class Job:
    """A simulated input.

    Attributes:
        receipts: the number of blocks.
        files: the number of files.
        compose: the receipts are those of views with `COMPOSE`.
    """

    receipts: int
    files: int
    compose: bool = False

    def blocks(self, start: int, stop: int) -> Iterator[BlockReceipt]:
        """The receipts of blocks [start, stop)."""
        for number in range(start, stop):
            file = number * self.files // self.receipts
            first, end = (-(-place * self.receipts // self.files) for place in (file, file + 1))
            source = InputFile(f"gs://bucket/corpus/part-{file:06d}.jsonl", (end - first) * BLOCK_BYTES, 1.7e9)
            content = hashlib.sha256(number.to_bytes(8)).digest()
            digest = bytes([content[0], file % len(FAMILIES), content[2] % KINDS]) + content[3:]
            place = number - first
            # The 128 chunks of an aligned block are one subtree.
            nodes = (Node(place, 7, content),)
            receipt = viewed(digest[1], digest[2]) if self.compose else block(digest[1], digest[2])[0]
            origin = Origin(file, source, place * BLOCK_BYTES, place and content[1], BLOCK_BYTES, nodes, digest.hex())
            name = CACHE.name(digest.hex())
            yield placed(receipt, origin, name, False, {"encoded_by_gigatoken": receipt.kept})


@dataclass(frozen=True, slots=True)
class SimulatedTokenCache(TokenCache):
    """A token cache whose reads are delayed. `TokenCache.row_indexes` reads row indexes as usual.

    Attributes:
        delay: seconds of each read.
        rounds: how many row indexes each call read.
    """

    delay: float = 0.0
    rounds: list[int] = field(default_factory=list)

    def row_indexes(self, names: Sequence[str]) -> list[RowIndex]:
        self.rounds.append(len(names))
        return TokenCache.row_indexes(self, names)

    def _row_index(self, name: str) -> RowIndex:
        time.sleep(self.delay)
        return read_row_index(self._small(name), "simulated")

    def rows(self, name: str, domain: int, rows: slice | Array, last: bool = False) -> dict[str, Ragged]:
        time.sleep(self.delay)
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return {each.name: Ragged.from_lengths(np.zeros(300 * count, each.dtype), [300] * count) for each in COLUMNS}

    def _rejects(self, name: str) -> list[dict[str, Any]]:
        time.sleep(self.delay)
        return read_rejects(self._small(name), "simulated")

    def _small(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(block(*bytes.fromhex(name[3:7]))[1])


CACHE = TokenCache("gs://bucket/token_cache", "0123456789abcdef")
CODER = coders.registry.get_coder(Any)
"""Beam's coder for elements without a declared type, as here."""


def warm() -> None:
    """Makes the blocks before the measurement."""
    for family, kind in itertools.product(range(len(FAMILIES)), range(KINDS)):
        block(family, kind)


class Clock:
    """Measures wall and CPU seconds of named parts."""

    def __init__(self) -> None:
        self.found: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        started, cpu = time.perf_counter(), time.process_time()
        yield
        self.found[f"{name} s"] += time.perf_counter() - started
        self.found[f"{name} CPU s"] += time.process_time() - cpu


def peak(process: int | str = "self") -> int:
    """Peak memory of a process in bytes. (`ru_maxrss` would also count the process that started it.)"""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0]) * 1024


def pack(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The step `pack`: receipts -> the parts that the plan reads."""
    clock = Clock()
    job = Job(given.receipts, given.files, given.compose)
    warm()
    sent: dict[int, list[bytes]] = {}
    splits = []
    for start in range(0, given.receipts, given.bundle):
        receipts = list(job.blocks(start, min(start + given.bundle, given.receipts)))
        with clock.part("pack"):
            made = [packed(receipts[first : first + RECEIPTS]) for first in range(0, len(receipts), RECEIPTS)]
        # Splits are shuffled, too, and are larger than the receipts.
        splits += [len(CODER.encode(split_of(receipt))) for receipt in receipts]
        for part, blob in made:
            sent.setdefault(part, []).append(blob)
    (folder / "parts").write_bytes(pickle.dumps(sent))
    sizes = [len(blob) for blobs in sent.values() for blob in blobs]
    return {
        **clock.found,
        "splits": len(splits),
        "splits bytes": sum(splits),
        "splits largest": max(splits),
        "packed": len(sizes),
        "packed bytes": sum(sizes),
        "packed largest": max(sizes),
        "parts": len(sent),
        "parts bytes": sum(sizes),
        "parts largest": max(sum(map(len, blobs)) for blobs in sent.values()),
        "pack peak": peak(),
    }


def split_of(receipt: BlockReceipt) -> Split:
    """The split of a block."""
    file, path, size, start = (receipt[name] for name in ("file", "path", "path_size", "start"))
    return Split(file, InputFile(path, size, 1.7e9), start, start + receipt["size"])


def plan(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The step `plan`: the parts -> the elements of the plan."""
    clock = Clock()
    cache_dir = SimulatedTokenCache(CACHE.folder, CACHE.recipe, delay=given.delay)
    warm()
    before = peak()
    sent = pickle.loads((folder / "parts").read_bytes())
    parts = {part: [sent.get(part, [])] for part in range(PARTS)}
    make = maker(cache_dir, given, folder)
    sizes: dict[str, list[int]] = {"shards": [], "rejects": [], "runs": []}
    shards = []
    with clock.part("plan"):
        for element in plan_output(b"", parts, *make, given.max_tokens, None, None):
            if isinstance(element, beam.pvalue.TaggedOutput) and element.tag == "groups":
                sizes["runs"].append(len(CODER.encode(element.value)))
            elif isinstance(element, beam.pvalue.TaggedOutput):
                (folder / "plan").write_bytes(CODER.encode(element.value))
            elif isinstance(element, KeyedShard):
                sizes["shards"].append(len(CODER.encode(element)))
                shards.append(
                    (
                        element.plan.domain,
                        element.plan.shard,
                        element.plan.folder,
                        element.plan.split,
                        element.plan.rows,
                    )
                )
            else:
                sizes["rejects"].append(len(CODER.encode(element)))
    (folder / "shards").write_bytes(pickle.dumps(shards))
    found = {
        "waits": sum(-(-reads // AT_ONCE) for reads in cache_dir.rounds) * given.delay,
        "rounds": len(cache_dir.rounds),
        "reads": sum(cache_dir.rounds),
        "side input bytes": (folder / "plan").stat().st_size,
        "plan peak before": before,
        "plan peak": peak(),
    }
    for name, each in sizes.items():
        found |= {name: len(each), f"{name} bytes": sum(each), f"{name} largest": max(each, default=0)}
    return {**clock.found, **found}


def maker(token_cache: TokenCache, given: argparse.Namespace, folder: Path) -> tuple[Arranger, Publisher]:
    """The arranger and the publisher of the job."""
    compose = COMPOSE if given.compose else Compose()
    arranger = Arranger(token_cache, Scratch("gs://bucket/scratch"), compose)
    publisher = Shard(str(folder / "out"), compose=compose).publisher
    return arranger, publisher


def shards(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The step `shards`: counts of runs -> shards. Rows are spread equally over the shards of each part."""
    clock = Clock()
    found: Plan = CODER.decode(Path(folder, "plan").read_bytes())
    runs = found.runs
    assert runs is not None
    samples, counts = drawn_counts(runs)
    make = maker(CACHE, given, folder)
    sizes, listed = [], []
    with clock.part("shards"):
        merged = sum(1 for _ in runs.tasks())
        for element in plan_shards(found, samples, counts, merged, *make):
            if isinstance(element, beam.pvalue.TaggedOutput):
                (folder / "plan").write_bytes(CODER.encode(element.value))
            else:
                sizes.append(len(CODER.encode(element)))
                listed.append(
                    (
                        element.plan.domain,
                        element.plan.shard,
                        element.plan.folder,
                        element.plan.split,
                        element.plan.rows,
                    )
                )
    (folder / "shards").write_bytes(pickle.dumps(listed))
    (folder / "plan").stat()
    named = {"shards": len(sizes), "shards bytes": sum(sizes), "shards largest": max(sizes)}
    return {**clock.found, **named, "side input bytes": (folder / "plan").stat().st_size, "shards peak": peak()}


def drawn_counts(runs: Runs) -> tuple[RunCounts, RunCounts]:
    """Simulated counts of runs, with rows spread equally over all keys."""
    rng = np.random.default_rng(SEED)
    samples, rows, sums, border = {}, {}, {}, {}
    for part, (count, tokens) in enumerate(zip(runs.parts.rows.tolist(), runs.parts.tokens.tolist(), strict=True)):
        ranges = int(runs.parts.ranges[part])
        rows[part] = np.diff(np.arange(ranges + 1) * count // ranges)  # adds up to `count`, as the ledger says
        sums[part] = np.array([tokens, 0], np.int64)
        taken = runs.parts.taken().get(part)
        if taken is not None and taken.most is not None:
            samples[part] = np.full(1 << 16, max(1, tokens >> 16))
    counted = RunCounts(samples=samples)
    for part, limit in counted.limits(runs.parts).items():
        many = max(1, int(runs.parts.rows[part]) >> 16)
        keys = rng.integers(limit.first, limit.last, many, np.uint64, endpoint=True)
        sizes = np.full(many, max(1, int(runs.parts.tokens[part]) // max(1, int(runs.parts.rows[part]))), np.uint64)
        border[part] = np.stack([keys, sizes, rng.integers(0, int(runs.parts.ranges[part]), many, np.uint64)], axis=1)
    return counted, RunCounts(runs.runs, {}, rows, sums, border)


def publish(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The step `publish`: receipts of shards -> the manifest, written and read."""
    clock = Clock()
    found: Plan = CODER.decode(Path(folder, "plan").read_bytes())
    written = [receipt_of(*each) for each in pickle.loads(Path(folder, "shards").read_bytes())]
    sent = [CODER.encode(receipt) for receipt in written]
    size = sum(map(len, sent))
    with clock.part("publish"):
        text = manifest_of(found, [*map(CODER.decode, sent)])
    with clock.part("load"):
        load(text, "manifest.json")
    return {**clock.found, "written bytes": size, "manifest bytes": len(text), "publish peak": peak()}


def receipt_of(domain: str, shard: int, folder: str, split: str | None, rows: int) -> WrittenShard:
    """The result of `write_shard` for the format `bin`."""
    digest = hashlib.sha256(f"{domain} {shard}".encode()).hexdigest()
    names = (f"{folder}/shard_{shard:04d}/{name}" for name in ("loss_mask.bin", "meta.json", "sequence.bin"))
    files = tuple(WrittenFile(name, 400_000_000, digest) for name in names)
    receipt = ShardReceipt(domain, shard, rows, {"sequence": 10**8}, {"loss_mask": 10**8}, None, files, None, split)
    return WrittenShard(receipt, digest[:40], "written")


def written_of(work: KeyedShard | RejectsPlan) -> WrittenShard | WrittenFile:
    """The result of `write` for a shard or a file of rejects."""
    if isinstance(work, KeyedShard):
        return receipt_of(work.plan.domain, work.plan.shard, work.plan.folder, work.plan.split, work.plan.rows)
    return WrittenFile(f"rejects/rejects-{work.index:05d}.jsonl", 10**6, "")


def manifest_of(found: Plan, written: list[WrittenShard | WrittenFile]) -> bytes:
    """The manifest that `publish` would write."""
    shards = [each.receipt for each in written if isinstance(each, WrittenShard)]
    rejects = [each for each in written if isinstance(each, WrittenFile)]
    return dump(build_manifest(found, shards, rejects, [], ["bin"], {}))


TASK_MANAGER = {"taskmanager.memory.process.size": "2000m", "taskmanager.memory.task.off-heap.size": "512m"}


def on_flink(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Runs all steps as a pipeline on a Flink cluster, which is started for it."""
    sys.path.append(str(ROOT))
    from tests.engines import flink
    from tests.engines.processes import free_port, listens, serving

    port = free_port()
    pool = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    found = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": f"{Path(__file__).parent}:{ROOT}"}
    with (
        flink.running(folder / "flink", TASK_MANAGER) as cluster,
        serving(pool, folder / "pool.log", lambda: listens(port), found) as workers,
    ):
        where = ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]
        measured = on_runner(given, folder, [*cluster.options, *where, "--execution_mode_for_batch=BATCH_FORCED"])
        peaks = [peak(worker.pid) for worker in psutil.Process(workers.process.pid).children(recursive=True)]
        task_manager = cluster.cluster.task_managers[0].process.pid
        return measured | {"worker peak": max(peaks), "task manager peak": peak(task_manager)}


def on_runner(given: argparse.Namespace, folder: Path, options: Sequence[str] = ()) -> dict[str, float]:
    """Runs all steps as a pipeline, connected as in `Shard`; by default in one process."""
    job, clock = Job(given.receipts, given.files), Clock()
    warm()
    before = peak()
    cache_dir = SimulatedTokenCache(CACHE.folder, CACHE.recipe, delay=given.delay)
    make = maker(cache_dir, given, folder)
    bundles = [(n, min(n + given.bundle, given.receipts)) for n in range(0, given.receipts, given.bundle)]
    with clock.part("run"), beam.Pipeline(None if options else FnApiRunner(), PipelineOptions([*options])) as pipeline:
        parts = (
            pipeline
            | beam.Create(bundles)
            | beam.FlatMapTuple(job.blocks).with_output_types(BlockReceipt)
            | beam.BatchElements(RECEIPTS, RECEIPTS)
            | beam.Map(packed).with_output_types(tuple[int, bytes])
            | beam.GroupByKey()
        )
        once = pipeline | beam.Impulse()
        plan = beam.FlatMap(plan_output, beam.pvalue.AsMultiMap(parts), *make, given.max_tokens, None, None)
        planned = once | plan.with_outputs("plan", "unsorted", "groups", main="work")
        written = planned.work | beam.Reshuffle() | "Write" >> beam.Map(written_of)
        manifest = planned.plan | "Manifest" >> beam.Map(manifest_of, beam.pvalue.AsList(written))
        _ = manifest | "Save" >> beam.Map(save, folder)
    manifest = load(Path(folder, "manifest.json").read_bytes(), "manifest.json")
    return {**clock.found, "shards": len(manifest["shards"]), "run peak before": before, "run peak": peak()}


def save(text: bytes, folder: Path) -> None:
    Path(folder, "manifest.json").write_bytes(text)


Step = Callable[..., dict[str, float]]
STEPS: list[Step] = [pack, plan, publish]
COMPOSED_STEPS: list[Step] = [pack, plan, shards, publish]


def report(given: argparse.Namespace, found: dict[str, float]) -> str:
    """The results as two tables."""
    rows = []
    for name, what, waits in (
        ("pack", "many workers together", 0),
        ("plan", "one worker; all row indexes, all elements", found["waits"]),
        *([("shards", "one worker", 0)] if given.compose else []),
        ("publish", "one worker", 0),
        ("load", "reading the manifest", 0),
    ):
        seconds = [found[f"{name} s"], found[f"{name} s"] - waits, found[f"{name} CPU s"]]
        memory = f"{found[f'{name} peak'] / 1e6:,.0f}" if f"{name} peak" in found else ""
        rows.append([name, what, *(f"{each:.1f}" for each in seconds), memory])
    steps = table(["step", "whose", "wall s", "own s", "CPU s", "peak MB"], rows, left=(0, 1))
    elements: list[tuple[str, str, float, float]] = [
        ("splits to read", "splits", found["splits"], found["splits largest"]),
        ("receipts, packed", "packed", found["packed"], found["packed largest"]),
        ("receipts, by part", "parts", found["parts"], found["parts largest"]),
        *([("blocks of a run", "runs", found["runs"], found["runs largest"])] if given.compose else []),
        ("shards to write", "shards", found["shards"], found["shards largest"]),
        ("files of rejects to write", "rejects", found["rejects"], found["rejects largest"]),
        ("side input of Publish", "side input", 1, found["side input bytes"]),
        ("all shards' receipts", "written", 1, found["written bytes"]),
    ]
    rows = [
        [name, f"{count:,}", f"{found[f'{key} bytes'] / 1e6:,.1f}", f"{largest / 1e6:,.4f}"]
        for name, key, count, largest in elements
    ]
    sizes = table(["elements", "how many", "MB", "largest, MB"], rows, left=(0,))
    return "\n\n".join(
        (
            machine(),
            f"{given.receipts:,} receipts of {given.files:,} files, {given.bundle:,} a bundle; shards of "
            f"{given.max_tokens:,} tokens. {found['reads']:,} row indexes in {found['rounds']:,} rounds, {AT_ONCE} at "
            f"a time, {given.delay * 1000:g} ms each: {found['waits']:.1f} s of waits. A process that has loaded "
            f"Beam and the benchmark's blocks, and does nothing, has {found['plan peak before'] / 1e6:,.0f} MB. "
            f"The manifest has {found['manifest bytes'] / 1e6:,.1f} MB.",
            steps,
            sizes,
        )
    )


def report_runner(given: argparse.Namespace, found: dict[str, float]) -> str:
    """The result of the pipeline as a table."""
    peaks = {"worker peak": "largest worker, MB", "task manager peak": "TaskManager, MB"}
    if not given.flink:
        peaks = {"run peak": "peak MB", "run peak before": "of it before the run"}
    header = ["receipts", "shards", "wall s", *peaks.values()]
    row = [f"{given.receipts:,}", f"{found['shards']:,}", f"{found['run s']:.1f}"]
    return f"{machine()}\n\n{table(header, [[*row, *(f'{found[name] / 1e6:,.0f}' for name in peaks)]], left=())}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--receipts", type=int, default=1_200_000, help="number of blocks of 8 MB")
    parser.add_argument("--files", type=int, default=10_000, help="number of input files")
    parser.add_argument("--bundle", type=int, default=200, help="receipts in a bundle")
    parser.add_argument("--max_tokens", type=int, default=100_000_000, help="tokens of a shard")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds to read a row index")
    parser.add_argument("--small", action="store_true", help="20,000 receipts of 200 files, row indexes without delay")
    parser.add_argument("--compose", action="store_true", help="with a shuffle, splits and a mix")
    parser.add_argument("--runner", action="store_true", help="as a pipeline of one process on the FnApiRunner")
    parser.add_argument("--flink", action="store_true", help="as a pipeline on a Flink cluster of this machine")
    parser.add_argument("--markdown", type=Path, help="write the tables between the markers of this page")
    given = parser.parse_args(arguments)
    if given.small:
        given.receipts, given.files, given.delay = 20_000, 200, 0.0
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    given = parse(arguments)
    name, steps = ("plan_compose", COMPOSED_STEPS) if given.compose else ("plan_scale", STEPS)
    if given.flink or given.runner:
        name, steps = ("plan_flink", [on_flink]) if given.flink else ("plan_runner", [on_runner])
    this = importlib.import_module(Path(__file__).stem)  # workers of Flink find its functions by this name
    processes = multiprocessing.get_context("spawn")
    try:
        if given.markdown is not None:
            split_at_markers(given.markdown, name)  # fails before the measurement
        found: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="plan_scale-") as folder:
            for step in steps:
                say(step.__name__)
                with processes.Pool(1) as pool:
                    found |= pool.apply(getattr(this, step.__name__), (given, Path(folder)))
        text = report(given, found) if "plan s" in found else report_runner(given, found)
        if given.markdown is not None:
            write_markdown(given.markdown, name, text)
    except BenchmarkError as error:
        say(f"plan_scale: {error}")
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
