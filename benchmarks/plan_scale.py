"""The plan of 10 TB: seconds, memory and bytes of all that lies between the last block and the manifest.

    python benchmarks/plan_scale.py                              # 1,200,000 receipts: some minutes
    python benchmarks/plan_scale.py --small                      # a smoke test
    python benchmarks/plan_scale.py --receipts 200000 --runner   # the same steps as a pipeline, on the FnApiRunner

No input is read and no shard is written. Blocks of 8 MB are drawn from some that went through the spool's own code,
with their real receipts and sidecars, under names and digests of their own. A sidecar takes `--delay` seconds to come,
as from an object store, and its real bytes are decoded. Each step runs in a process of its own, so that the peak of
its memory (`VmHWM`) is its own:

* `collect`: receipts -> `CollectReceipts`, a bundle at a time, each accumulator through its coder, then merged.
* `plan`: blobs -> `MakePlan`; each element that it hands on goes through the coder that Beam would take.
* `publish`: a receipt of every planned shard -> the manifest, and the manifest read back.

"Own" seconds are wall time without the simulated waits.
"""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import multiprocessing
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import coders
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.combiners import ToListCombineFn

from beam_prep.core.batch import Batch
from beam_prep.core.block import BlockReceipt, InputFile, Ledger, Origin
from beam_prep.core.hashing import Node
from beam_prep.core.plan import Plan, RejectsPlan, ShardPlan, SpoolReceipt
from beam_prep.core.ragged import Ragged
from beam_prep.core.schema import Column
from beam_prep.formats.manifest import ShardReceipt, WrittenFile, build_manifest, dump, load
from beam_prep.formats.spool import SIDECAR, Rows, encode_block, read_sidecar
from beam_prep.transforms._spool import Spool
from beam_prep.transforms.shard import CollectReceipts, MakePlan

SEED = 20250811
BLOCK_BYTES = 8 * 1024 * 1024
COLUMNS = (Column("sequence", "int32", 1, "ids"), Column("loss_mask", "uint8", 1, "mask"))
DOMAINS = ("chat/en", "chat/other", "code", "papers", "web", "wiki")
SETS = (DOMAINS[:1], DOMAINS[2:3], DOMAINS[3:6], DOMAINS[:4])
"""A file comes from one source: it has one domain, or a few."""
MEANS = (290, 950)
"""Mean tokens of a record: the chats and the texts of `end_to_end.py`, both with some 4.2 bytes of input a token."""
FAMILIES = tuple(itertools.product(MEANS, SETS))
KINDS = 8
"""Different blocks of each family."""


@functools.cache
def block(family: int, kind: int) -> tuple[BlockReceipt, bytes]:
    """(receipt, sidecar) of a block of 8 MB. Lengths are log-normal; one block in three has rejects."""
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
    batch.count("truncated_rows", (tokens > 2048).astype(np.int64))
    receipt, files = encode_block(batch, 0)
    return receipt, bytes(files[SIDECAR])


@dataclass(frozen=True, slots=True)
class Job:
    """An input that nobody has.

    Attributes:
        receipts: its blocks.
        files: files that they come from.
    """

    receipts: int
    files: int

    def blocks(self, start: int, stop: int) -> Iterator[SpoolReceipt]:
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
            receipt, _ = block(digest[1], digest[2])
            origin = Origin(file, source, place * BLOCK_BYTES, place and content[1], BLOCK_BYTES, nodes, digest.hex())
            name = SPOOL.name(digest.hex())
            yield SpoolReceipt(origin, name, False, receipt, {"encoded_by_gigatoken": receipt.kept})


@dataclass(frozen=True, slots=True)
class SimulatedSpool(Spool):
    """Sidecars that take their time; `Spool.sidecars` fetches them as ever.

    Attributes:
        delay: seconds of each.
        rounds: how many each call fetched.
    """

    delay: float = 0.0
    rounds: list[int] = field(default_factory=list)

    def sidecars(self, names: Sequence[str]) -> list[Rows]:
        self.rounds.append(len(names))
        return Spool.sidecars(self, names)

    def _sidecar(self, name: str) -> Rows:
        time.sleep(self.delay)
        _, sidecar = block(*bytes.fromhex(name[3:7]))
        return read_sidecar(pa.py_buffer(sidecar), name)


SPOOL = Spool("gs://bucket/spool", "0123456789abcdef")
CODER = coders.registry.get_coder(Any)
"""What Beam takes for elements without a declared type, which these are."""


def warm() -> None:
    """Makes the blocks, so that this is not measured."""
    for family, kind in itertools.product(range(len(FAMILIES)), range(KINDS)):
        block(family, kind)


class Clock:
    """Seconds and CPU seconds of named parts."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        started, cpu = time.perf_counter(), time.process_time()
        yield
        self.found[f"{name} s"] = time.perf_counter() - started
        self.found[f"{name} CPU s"] = time.process_time() - cpu


def peak() -> int:
    """Bytes of this process at its peak. (`ru_maxrss` would also count the process that started it.)"""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024


def collect(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Receipts -> blobs."""
    fn, clock = CollectReceipts(), Clock()
    coder = fn.get_accumulator_coder()
    job = Job(given.receipts, given.files)
    warm()
    encoded, seconds = [], 0.0
    for start in range(0, given.receipts, given.bundle):
        receipts = list(job.blocks(start, min(start + given.bundle, given.receipts)))
        started = time.perf_counter()
        accumulator = fn.create_accumulator()
        for receipt in receipts:
            accumulator = fn.add_input(accumulator, receipt)
        encoded.append(coder.encode(fn.compact(accumulator)))
        seconds += time.perf_counter() - started
    before = peak()
    with clock.part("merge"):
        # A runner hands over what it has as it decodes it.
        blobs = fn.extract_output(fn.merge_accumulators(coder.decode(each) for each in encoded))
    Path(folder, "blobs").write_bytes(pickle.dumps(blobs))
    return {
        "bundles": len(encoded),
        "add s": seconds,
        "shuffled bytes": sum(map(len, encoded)),
        "largest accumulator bytes": max(map(len, encoded)),
        **clock.found,
        "blobs": len(blobs),
        "blobs bytes": sum(map(len, blobs)),
        "peak before merge": before,
        "peak": peak(),
    }


def plan(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Blobs -> what is handed on."""
    clock = Clock()
    spool = SimulatedSpool(SPOOL.folder, SPOOL.recipe, given.delay)
    warm()
    before = peak()
    blobs = pickle.loads(Path(folder, "blobs").read_bytes())
    sizes: dict[str, list[int]] = {"shard": [], "rejects": []}
    shards = []
    with clock.part("all"):
        for element in MakePlan(spool, given.max_tokens, None, 0.01).process(blobs):
            if isinstance(element, beam.pvalue.TaggedOutput):
                Path(folder, "plan").write_bytes(CODER.encode(element.value))
            else:
                kind = "shard" if isinstance(element, ShardPlan) else "rejects"
                sizes[kind].append(len(CODER.encode(element)))
                if kind == "shard":
                    shards.append((element.domain, element.shard, element.folder))
    Path(folder, "shards").write_bytes(pickle.dumps(shards))
    return {
        **clock.found,
        "rounds": len(spool.rounds),
        "reads": sum(spool.rounds),
        "most reads a round": max(spool.rounds, default=0),
        "shards": len(shards),
        **{f"{kind} elements bytes": sum(found) for kind, found in sizes.items()},
        **{f"largest {kind} element bytes": max(found, default=0) for kind, found in sizes.items()},
        "rejects files": len(sizes["rejects"]),
        "side input bytes": Path(folder, "plan").stat().st_size,
        "peak before": before,
        "peak": peak(),
    }


def publish(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Receipts of shards -> the manifest, written and read."""
    clock = Clock()
    found: Plan = CODER.decode(Path(folder, "plan").read_bytes())
    written = [receipt_of(*each) for each in pickle.loads(Path(folder, "shards").read_bytes())]
    fn = ToListCombineFn()
    with clock.part("collect"):
        accumulator = fn.create_accumulator()
        for receipt in written:
            accumulator = fn.add_input(accumulator, CODER.decode(CODER.encode(receipt)))
        size = len(CODER.encode(fn.extract_output(accumulator)))
    with clock.part("manifest"):
        text = manifest_of(written, found)
    with clock.part("load"):
        load(text, "manifest.json")
    return {**clock.found, "written element bytes": size, "manifest bytes": len(text), "peak": peak()}


def receipt_of(domain: str, shard: int, folder: str) -> ShardReceipt:
    """As `write_shard` gives it for the format `bin`."""
    digest = hashlib.sha256(f"{domain} {shard}".encode()).hexdigest()
    names = (f"{folder}/shard_{shard:04d}/{name}" for name in ("loss_mask.bin", "meta.json", "sequence.bin"))
    files = tuple(WrittenFile(name, 400_000_000, digest) for name in names)
    return ShardReceipt(domain, shard, 100_000, {"sequence": 10**8}, {"loss_mask": 10**8}, None, files)


def written_of(work: ShardPlan | RejectsPlan) -> ShardReceipt | WrittenFile:
    """What `Write` would give."""
    if isinstance(work, ShardPlan):
        return receipt_of(work.domain, work.shard, work.folder)
    return WrittenFile(f"rejects/rejects-{work.index:05d}.jsonl", 10**6, "")


def manifest_of(written: list[ShardReceipt | WrittenFile], found: Plan) -> bytes:
    """What `Publish` would write."""
    shards = [each for each in written if isinstance(each, ShardReceipt)]
    rejects = [each for each in written if isinstance(each, WrittenFile)]
    return dump(build_manifest(found, shards, rejects, [], ["bin"], {}))


def on_runner(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it as a pipeline in one process, wired as `Shard` wires it."""
    job, clock = Job(given.receipts, given.files), Clock()
    warm()
    before = peak()
    make = MakePlan(SimulatedSpool(SPOOL.folder, SPOOL.recipe, given.delay), given.max_tokens, None, 0.01)
    bundles = [(n, min(n + given.bundle, given.receipts)) for n in range(0, given.receipts, given.bundle)]
    with clock.part("run"), beam.Pipeline(FnApiRunner()) as pipeline:
        planned = (
            pipeline
            | beam.Create(bundles)
            | beam.FlatMapTuple(job.blocks).with_output_types(SpoolReceipt)
            | beam.CombineGlobally(CollectReceipts()).without_defaults()
            | beam.ParDo(make).with_outputs("plan", main="work")
        )
        (
            planned.work
            | beam.Reshuffle()
            | "Write" >> beam.Map(written_of)
            | beam.CombineGlobally(ToListCombineFn())
            | "Manifest" >> beam.Map(manifest_of, beam.pvalue.AsSingleton(planned.plan))
            | "Save" >> beam.Map(save, folder)
        )
    manifest = load(Path(folder, "manifest.json").read_bytes(), "manifest.json")
    return {**clock.found, "shards": len(manifest["shards"]), "peak before": before, "peak": peak()}


def save(text: bytes, folder: Path) -> None:
    Path(folder, "manifest.json").write_bytes(text)


STEPS = {"collect": collect, "plan": plan, "publish": publish}
ON_RUNNER = {"runner": on_runner}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--receipts", type=int, default=1_200_000, help="blocks of 8 MB")
    parser.add_argument("--files", type=int, default=10_000, help="files that they come from")
    parser.add_argument("--bundle", type=int, default=200, help="receipts of each accumulator")
    parser.add_argument("--max_tokens", type=int, default=100_000_000, help="of a shard")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds to read a sidecar")
    parser.add_argument("--runner", action="store_true", help="as a pipeline of one process on the FnApiRunner")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives the exit code."""
    given = parse(arguments)
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="plan_scale-") as folder:
        for name, step in (ON_RUNNER if given.runner else STEPS).items():
            with processes.Pool(1) as pool:
                print(name, json.dumps(pool.apply(step, (given, Path(folder))), indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
