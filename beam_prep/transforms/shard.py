"""Shard: batches -> an output directory, in four phases: token cache, plan, write, publish.

The plan goes from the receipts of blocks to the shards to write: deduplication, the plan, and the merges of a shuffle.
"""

import dataclasses
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from beam_prep.data.block import AnyPath, of_this_run
from beam_prep.data.ragged import Aligned, Array, changes
from beam_prep.errors import ConfigError, OutputError, check_planned
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import WrittenFile
from beam_prep.hints import check_least, check_settings
from beam_prep.progress import report
from beam_prep.reading.keys import DUPLICATE
from beam_prep.shards.compose import Compose, Splits, view_receipt
from beam_prep.shards.layout import Layout
from beam_prep.shards.plan import Plan, make_plan, with_merged
from beam_prep.shards.receipts import DIGEST, BlockReceipt, Copies, Receipts, pack_receipts, placed
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, check_rates
from beam_prep.shards.runs import MergedShards, RunCounts, RunGroup, Runs
from beam_prep.shards.slices import RejectsPlan
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.output import Staging, normalise_path
from beam_prep.storage.publish import KeyedShard, Publisher, WrittenShard, samples, write_rejects
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import RowsWithoutLoss
from beam_prep.tokens.tokenizer import Tokenizer

# Deduplication, and the views of blocks

_MOST = 500_000
"""Most digests that are passed on together, if a block has not more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Digests(Aligned):
    """Records and their digests.

    Attributes:
        digest: uint64 [records, 2].
        file, start: int64 [records]: the block of each record: index of its file, and its offset there.
        line, offset: int64 [records]: line and byte offset of each record, from the block's first line.
    """

    digest: Array
    file: Array
    start: Array
    line: Array
    offset: Array


def digests(receipt: BlockReceipt, token_cache: TokenCache) -> Iterable[Digests]:
    """A block -> the digests of its records."""
    if not receipt.kept:
        return
    (row_index,) = token_cache.row_indexes([receipt["name"]])
    if (found := row_index.rows.get(DIGEST + DUPLICATE)) is None:
        raise ConfigError("Shard deduplicates, and the blocks have no digests: put KeyRecords(duplicate=...) first")
    line = row_index["line"].astype(np.int64)
    file = np.full(len(line), receipt["file"], np.int64)
    start = np.full(len(line), receipt["start"], np.int64)
    yield Digests(found, file, start, line, row_index["offset"])


def by_bucket(batch: list[Digests], buckets: int) -> Iterable[tuple[int, Digests]]:
    """Digests of many blocks -> (bucket, digests). Equal digests are in one bucket."""
    if not batch:  # the first block was larger than a batch
        return
    found = Digests.concat(batch)
    bucket = (found.digest[:, 0] % np.uint64(buckets)).astype(np.int64)
    order = np.argsort(bucket, kind="stable")
    first = changes(bucket[order])
    for here in np.split(order, first[1:]):
        yield int(bucket[here[0]]), found.take(here)


BlockKey = tuple[int, int]
"""The index of a block's file, and the block's offset there."""


def find_copies(element: tuple[int, Iterable[Digests]]) -> Iterable[tuple[BlockKey, Copies]]:
    """(bucket, digests) -> (block, its copies). Of equal records, all but the first in input order are copies."""
    found = Digests.concat(element[1])
    found = found.take(np.lexsort((found.line, found.start, found.file, *found.digest.T)))
    same = (found.digest[1:] == found.digest[:-1]).all(axis=1)
    copies = np.flatnonzero(same) + 1
    if not len(copies):
        return
    begins = np.where(np.append(False, same), 0, np.arange(len(found.line)))
    first = np.maximum.accumulate(begins)  # of those with the same digest
    copy, kept = found.take(copies), found.take(first[copies])
    order = np.lexsort((copy.line, copy.start, copy.file))
    copy, kept = copy.take(order), kept.take(order)
    borders = changes(copy.file, copy.start)
    for here in np.split(np.arange(len(copies)), borders[1:]):
        line = copy.line[here].astype(np.int32)
        block = int(copy.file[here[0]]), int(copy.start[here[0]])
        yield block, Copies(line, kept.file[here], kept.start[here], kept.line[here], kept.offset[here])


def view_block(
    element: BlockReceipt | tuple[BlockKey, Mapping[str, Iterable[Any]]],
    token_cache: TokenCache,
    scratch: Scratch,
    splits: Splits | None,
) -> BlockReceipt:
    """A receipt, or (block, its receipt and copies) -> the receipt for the plan."""
    if isinstance(element, BlockReceipt):
        receipt, copies = element, Copies()
    else:
        (receipt,) = element[1]["receipts"]
        copies = Copies.concat([Copies(), *element[1]["copies"]])
        copies = copies.take(np.argsort(copies.line))
    if splits is None and not len(copies):
        return receipt
    (row_index,) = token_cache.row_indexes([receipt["name"]])
    return view_receipt(receipt, row_index, copies, scratch.write_copies(copies), splits)


def view_blocks(
    receipts: beam.PCollection[BlockReceipt],
    token_cache: TokenCache,
    scratch: Scratch,
    compose: Compose,
) -> beam.PCollection[BlockReceipt]:
    """The receipts of blocks -> the receipts for the plan: by split, and without copies of earlier records.

    Args:
        receipts: of the blocks.
        token_cache, scratch: the folders of blocks and of copies.
        compose: see `Compose`.
    """
    see = beam.Map(view_block, token_cache, scratch, compose.splits).with_output_types(BlockReceipt)
    if not compose.deduplicate:
        return receipts | "View" >> see
    copies = (
        receipts
        | "Digests" >> beam.FlatMap(digests, token_cache).with_output_types(Digests)
        | "Many" >> beam.BatchElements(_MOST, _MOST, element_size_fn=len)
        | "Bucket" >> beam.FlatMap(by_bucket, compose.buckets).with_output_types(tuple[int, Digests])
        | "Buckets" >> beam.GroupByKey()
        | "Copies" >> beam.FlatMap(find_copies).with_output_types(tuple[BlockKey, Copies])
    )
    by_block = beam.WithKeys(lambda receipt: (receipt["file"], receipt["start"]))
    by_block = receipts | "ByBlock" >> by_block.with_output_types(tuple[BlockKey, BlockReceipt])
    return {"receipts": by_block, "copies": copies} | "Join" >> beam.CoGroupByKey() | "View" >> see


# The plan

PARTS, RECEIPTS = 32, 2_000
"""Parts that the plan reads one by one, and receipts that travel as one element.

1.2 million receipts as objects would take gigabytes. All receipts of 10 TB are 130 MB, and a Flink TaskManager does not
have the memory to send them at once.
"""


def packed(receipts: list[BlockReceipt]) -> tuple[int, bytes]:
    """(part, many receipts as bytes)."""
    blob = pack_receipts(receipts)
    return zlib.crc32(blob) % PARTS, blob


def plan_output(
    _: bytes,
    parts: Mapping[int, Iterable[Iterable[bytes]]],
    arranger: Arranger,
    publisher: Publisher,
    max_tokens: int,
    max_items: int | None,
    progress: str | None,
) -> Iterable[Any]:
    """Receipts -> the shards and rejects to write, and (tagged `plan`) the plan, for `publish`.

    With a shuffle, the shards are not known yet: then the plan is tagged `unsorted`, and the blocks of runs `groups`.
    """
    token_cache, scratch, compose = arranger.token_cache, arranger.scratch, arranger.compose
    report(progress, plans=1)
    blobs = (blob for part in range(PARTS) for group in parts[part] for blob in group)
    receipts = Receipts.of(blobs, lengths_by_block=max_items is not None)
    plan = make_plan(receipts, token_cache.row_indexes, max_tokens, max_items, compose, scratch.copies)
    if publisher.max_reject_chars:
        plan = dataclasses.replace(plan, samples=samples(plan, arranger))
    goes_on = publisher.prepare(plan)
    if goes_on:
        last = token_cache.single_use and receipts.distinct and not compose.composes
        report(progress, planned=plan.ledger.kept)
        yield from publisher.keyed(plan, plan.shards, arranger, last)
    yield from plan.rejects
    # The counts tell `publish` which shards there must be.
    small = dataclasses.replace(plan, shards=(), rejects=(), groups=())
    if plan.runs is None or not goes_on:
        yield beam.pvalue.TaggedOutput("plan", dataclasses.replace(small, runs=None))
    else:
        yield from (beam.pvalue.TaggedOutput("groups", group) for group in plan.groups)
        yield beam.pvalue.TaggedOutput("unsorted", small)


# The merges of a shuffle


def second_level(plan: Plan, counts: RunCounts) -> Iterable[tuple[Runs, int, int]]:
    """The plan -> the merges of the second level, when all runs are written."""
    assert plan.runs is not None
    check_planned("runs", counts.runs, plan.runs.runs)
    for group, wide in plan.runs.tasks():
        yield plan.runs, group, wide


def plan_shards(
    plan: Plan, samples: RunCounts, counts: RunCounts, merged: int, arranger: Arranger, publisher: Publisher
) -> Iterable[Any]:
    """The plan -> the shards to write, and (tagged `plan`) the plan with these shards, for `publish`."""
    runs = plan.runs
    assert runs is not None
    check_planned("merged ranges of runs", merged, sum(1 for _ in runs.tasks()))
    shards = MergedShards.of(runs, counts, samples.limits(runs.parts))
    if publisher.problem(plan) is None:
        yield from publisher.keyed(plan, shards.plans(), arranger)
    yield beam.pvalue.TaggedOutput("plan", with_merged(plan, shards))


def merge_shards(
    plans: beam.PCollection[Plan], groups: beam.PCollection[RunGroup], arranger: Arranger, publisher: Publisher
) -> Any:
    """The plans of a job, and the blocks of its runs -> the shards to write, and the plans with these shards.

    Args:
        plans: the plan, which does not know its shards yet.
        groups: a `RunGroup` for each run.
        arranger: see `Arranger`.
        publisher: of the output.
    """
    groups = groups | "SpreadRuns" >> beam.Reshuffle()
    added = partial(sum, start=RunCounts())
    surveyed = groups | "Survey" >> beam.Map(arranger.survey)
    samples = beam.pvalue.AsSingleton(surveyed | "Samples" >> beam.CombineGlobally(added))
    made = groups | "Runs" >> beam.Map(arranger.write_run, samples)
    counts = beam.pvalue.AsSingleton(made | "Counts" >> beam.CombineGlobally(added))
    merged = beam.pvalue.AsSingleton(
        plans
        | "SecondLevel" >> beam.FlatMap(second_level, counts)
        | "SpreadMerges" >> beam.Reshuffle()
        | "Merge" >> beam.MapTuple(arranger.merge_runs)
        | "Merged" >> beam.combiners.Count.Globally()
    )
    shards = beam.FlatMap(plan_shards, samples, counts, merged, arranger, publisher)
    return plans | "Shards" >> shards.with_outputs("plan", main="work")


_CHECK_EVERY = 20.0
"""Seconds between two checks of the claim by a worker, well below the shortest lease."""


@dataclasses.dataclass(eq=False, kw_only=True)
class CacheBlocks(beam.DoFn):
    """Writes each block to the token cache, and passes on only its receipt."""

    token_cache: TokenCache
    publisher: Publisher
    rows_without_loss: RowsWithoutLoss
    progress: str | None = None
    checked: float = dataclasses.field(init=False, default=float("-inf"))

    def process(self, batch: Batch) -> Iterable[BlockReceipt]:
        started = time.perf_counter()
        if self.publisher.launched and time.monotonic() - self.checked > _CHECK_EVERY:
            self.publisher.target.check_claim()  # raises if the job has lost its claim; otherwise renews the claim
            self.checked = time.monotonic()
        name = self.token_cache.name(self.token_cache.digest(batch.origin))
        receipt, reused = batch.receipt, batch.receipt is not None
        if receipt is None:
            layout, tokenizer = self.publisher.layout, self.publisher.tokenizer
            eos_id = None if tokenizer is None else tokenizer.id_of("eos_token")
            batch = layout.cached(batch, eos_id, self.rows_without_loss)
            receipt = self.token_cache.write(batch, layout.tokens(batch), self.publisher.max_reject_chars)
        else:
            self.token_cache.used(name)
        counts = {
            "stored": batch.origin.stored,
            "lines": receipt["lines"],
            "kept": receipt.kept,
            "rejected": sum(receipt.counts("rejected").values()),
            "tokens": receipt.tokens,
        }
        for counter, count in counts.items():
            Metrics.counter("beam_prep", counter).inc(count)
        report(self.progress, **counts)
        batch.spent("TokenCache", time.perf_counter() - started)
        made = {name: count for name, count in batch.made.items() if of_this_run(name)}
        yield placed(receipt, batch.origin, name, reused, made)


def write(
    work: KeyedShard | RejectsPlan, arranger: Arranger, publisher: Publisher, progress: str | None
) -> WrittenShard | WrittenFile:
    """Writes one shard in every format, or one file of rejects."""
    if not isinstance(work, KeyedShard):
        return write_rejects(work, arranger.token_cache, publisher.target)
    started = time.perf_counter()
    written = publisher.write_shard(work, arranger)
    report(progress, written=work.plan.rows)
    return dataclasses.replace(written, seconds=time.perf_counter() - started)


def publish(plan: Plan, written: list[WrittenShard | WrittenFile], publisher: Publisher) -> str:
    """Publishes the complete output with its manifest, or fails and leaves only the rejects. Returns its path."""
    from beam_prep.inspect.output import report_page  # only one worker needs it, at the end

    shards = [shard for shard in written if isinstance(shard, WrittenShard)]
    files = [file for file in written if isinstance(file, WrittenFile)]
    return publisher.publish(plan, shards, files, report_page)


@dataclasses.dataclass(eq=False)
class Shard(beam.PTransform):
    """`Batch` -> the output's path: cuts rows in input order into shards, writes each once, publishes all at the end.

    Shard borders are those of a sequential program: all domains are flushed when the tokens since the last flush
    reach `max_tokens`. The same input gives the same bytes on every runner, with any number of workers and retries.

    Attributes:
        output: the directory to make: a local path, or one on gs:// or s3://.
        max_tokens: tokens of a shard over all domains, after which it is flushed.
        formats: one or more names of `formats.FORMATS`. Records are tokenised once for all of them.
        max_items: the largest number of kept records.
        pack: how rows are packed or padded, and which position ids they get; by default neither. Its `truncation_mode`
            says whether a row that is too long for a packed row is cut, dropped (`too_long`), or fails the run.
        rows_without_loss: rows without a trained token: `drop`, `keep` or `reject`.
        dtype: column -> dtype, if not the default (ids, masks and labels int32, values float32).
        names: column -> the name under which it is written, in every format. `dtype` uses the column's own name.
        max_reject_rate: a larger share of rejected records fails the run.
        max_no_loss_rate: a larger share of records that are dropped without loss (`empty`, `rows_without_loss`) fails
            the run.
        max_reject_chars: most characters kept of a rejected record; 0: no text.
        tokenizer: kept in the output, so that its rows can be decoded.
        overwrite: replace an earlier output.
        token_cache, staging: the folders of blocks and of unfinished files; by default next to the output. Both are for
            launchers: a launcher that gives `staging` claims the output (`Claims.take`), and removes the folder.
        keep_versions: the output is a version, `OUT/<name>`, and this many versions are kept.
        progress: the folder of the workers' reports; for launchers.
        compose: shuffle, splits, mix and deduplication: see `Compose`.
        facts: other facts that the output depends on, for the manifest.
        run: facts about this run, for `run.json`.

    Raises:
        ConfigError: `names` gives a name that a column cannot have; a library of a format is missing; (when run) a
            column of `names` or `dtype` is not written.
        OutputError: the output exists and `overwrite` is not set, or it is not an output of ours.
        LockedError: (when run) another job is writing the output.
        RunError: (when run) too many rejects or drops, nothing kept, nothing trained. Rejects are in `OUTPUT.failed/`.

    >>> config = bp.PipelineConfig.from_json("configs/pretrain.json")
    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL("examples/data/text.jsonl")
    ...     batches = records | bp.Prepare(config, tokenizer)
    ...     _ = batches | bp.Shard("out/shard", formats=["arrow"], tokenizer=tokenizer)
    >>> len(bp.open("out/shard"))
    69
    """

    output: AnyPath
    max_tokens: int = 100_000_000
    formats: Sequence[str] = ("bin",)
    max_items: int | None = None
    pack: Layout = dataclasses.field(default_factory=Layout)
    rows_without_loss: RowsWithoutLoss = "drop"
    dtype: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_reject_rate: float = MAX_REJECT_RATE
    max_no_loss_rate: float = MAX_NO_LOSS_RATE
    max_reject_chars: int = 1000
    tokenizer: Tokenizer | None = None
    overwrite: bool = False
    token_cache: TokenCache | None = None
    staging: Staging | None = None
    progress: str | None = None
    keep_versions: int | None = None
    compose: Compose = dataclasses.field(default_factory=Compose)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.output = normalise_path(os.fspath(self.output))
        self.formats = (self.formats,) if isinstance(self.formats, str) else tuple(self.formats)
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise ValueError(f"formats are {self.formats!r}, wanted one or more of {', '.join(FORMATS)}")
        for name in self.formats:
            try:
                FORMATS[name].require()
            except ImportError as error:
                raise ConfigError(f"output.storage_format: {error}") from None
        check_rates(self.max_reject_rate, self.max_no_loss_rate)
        check_settings(self)
        least = {"max_tokens": self.max_tokens, "max_items": self.max_items, "keep_versions": self.keep_versions}
        check_least(1, **{name: number for name, number in least.items() if number is not None})
        check_least(0, max_reject_chars=self.max_reject_chars)
        dtype, names = {**self.pack.dtype, **self.dtype}, {**self.pack.names, **self.names}
        self.pack = dataclasses.replace(self.pack, dtype=dtype, names=names)
        self.pack.check_names([*self.pack.names])  # the columns are known only with the first block
        launched = self.staging is not None  # by a launcher, which claims, shows progress and cleans up
        self.staging = self.staging or Staging.beside(self.output)
        if self.token_cache is None:
            # The earlier steps are unknown, so no other run may use these blocks.
            self.token_cache = TokenCache(self.staging.path("token_cache"), uuid.uuid4().hex)
        self.run = {"started": time.time(), **self.run}
        same: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in dataclasses.fields(Publisher)}
        self.publisher = Publisher(**same | {"layout": self.pack, "launched": launched})
        if problem := self.publisher.refusal():
            raise OutputError(problem)

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[str]:
        assert self.token_cache is not None
        assert self.staging is not None
        token_cache = CacheBlocks(
            token_cache=self.token_cache,
            publisher=self.publisher,
            rows_without_loss=self.rows_without_loss,
            progress=self.progress,
        )
        receipts = batches | "TokenCache" >> beam.ParDo(token_cache).with_output_types(BlockReceipt)
        compose, scratch = self.compose, Scratch(self.staging.path("scratch"))
        if compose.views:
            receipts = view_blocks(receipts, self.token_cache, scratch, compose)
        parts = (
            receipts
            | "Batch" >> beam.BatchElements(RECEIPTS, RECEIPTS)
            | "Pack" >> beam.Map(packed).with_output_types(tuple[int, bytes])
            | "Parts" >> beam.GroupByKey()
        )
        arranger, publisher = Arranger(self.token_cache, scratch, compose, self.pack.provenance), self.publisher
        of_job = (arranger, publisher, self.max_tokens, self.max_items, self.progress)
        made = (
            batches.pipeline
            | "Once" >> beam.Impulse()
            | "Plan"
            >> beam.FlatMap(plan_output, beam.pvalue.AsMultiMap(parts), *of_job).with_outputs(
                "plan", "unsorted", "groups", main="work"
            )
        )
        work, plan = made.work, made.plan
        if compose.shuffle is not None:
            merged = merge_shards(made.unsorted, made.groups, arranger, publisher)
            work = (work, merged.work) | "AllWork" >> beam.Flatten()
            plan = (plan, merged.plan) | "OnePlan" >> beam.Flatten()
        written = work | "Spread" >> beam.Reshuffle() | "Write" >> beam.Map(write, arranger, publisher, self.progress)
        return plan | "Publish" >> beam.Map(publish, beam.pvalue.AsList(written), publisher)
