"""From the receipts of blocks to the shards to write: deduplication, the plan, and the merges of a shuffle."""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np

from beam_prep.data.ragged import Aligned, Array, changes
from beam_prep.errors import ConfigError, EngineError
from beam_prep.progress import report
from beam_prep.reading.keys import DUPLICATE
from beam_prep.shards.compose import Splits, view_receipt
from beam_prep.shards.plan import Plan, make_plan, with_merged
from beam_prep.shards.receipts import BlockReceipt, Copies, Receipts, pack_receipts
from beam_prep.shards.runs import MergedShards, RunCounts, RunGroup, Runs, SampleCounts
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.publish import Publisher, first_rejects, samples
from beam_prep.storage.token_cache import TokenCache

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
    token_cache.options.activate()
    if not receipt.kept:
        return
    (row_index,) = token_cache.row_indexes([receipt["name"]])
    if DUPLICATE not in row_index.digests:
        raise ConfigError("Shard deduplicates, and the blocks have no digests: put KeyRecords(duplicate=...) first")
    count = len(row_index.line)
    file, start = (np.full(count, number, np.int64) for number in (receipt["file"], receipt["start"]))
    yield Digests(row_index.digests[DUPLICATE], file, start, row_index.line.astype(np.int64), row_index.offset)


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
    first = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(len(found.line))))
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
    token_cache.options.activate()
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
    splits: Splits | None,
    buckets: int | None,
) -> beam.PCollection[BlockReceipt]:
    """The receipts of blocks -> the receipts for the plan: by split, and without copies of earlier records.

    Args:
        receipts: of the blocks.
        token_cache, scratch: the folders of blocks and of copies.
        splits: see `Compose`.
        buckets: number of buckets of digests, to find equal ones; None: no deduplication.
    """
    see = beam.Map(view_block, token_cache, scratch, splits).with_output_types(BlockReceipt)
    if buckets is None:
        return receipts | "View" >> see
    copies = (
        receipts
        | "Digests" >> beam.FlatMap(digests, token_cache).with_output_types(Digests)
        | "Many" >> beam.BatchElements(_MOST, _MOST, element_size_fn=len)
        | "Bucket" >> beam.FlatMap(by_bucket, buckets).with_output_types(tuple[int, Digests])
        | "Buckets" >> beam.GroupByKey()
        | "Copies" >> beam.FlatMap(find_copies).with_output_types(tuple[BlockKey, Copies])
    )
    by_block = receipts | "ByBlock" >> beam.Map(_by_block).with_output_types(tuple[BlockKey, BlockReceipt])
    return {"receipts": by_block, "copies": copies} | "Join" >> beam.CoGroupByKey() | "View" >> see


def _by_block(receipt: BlockReceipt) -> tuple[BlockKey, BlockReceipt]:
    return (receipt["file"], receipt["start"]), receipt


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
    token_cache.options.activate()
    report(progress, plans=1)
    blobs = (blob for part in range(PARTS) for group in parts[part] for blob in group)
    receipts = Receipts(blobs, lengths_by_block=max_items is not None)
    plan = make_plan(receipts, token_cache.row_indexes, max_tokens, max_items, compose, scratch.copies)
    plan = dataclasses.replace(plan, first_rejects=first_rejects(plan, token_cache))
    if publisher.max_reject_chars:
        plan = dataclasses.replace(plan, samples=samples(plan, arranger))
    earlier = publisher.earlier()
    goes_on = publisher.prepare(plan)
    if goes_on:
        last = token_cache.single_use and receipts.distinct and not compose.composes
        report(progress, planned=plan.ledger.kept)
        shards = (dataclasses.replace(shard, last=last, cut=plan.cut) for shard in plan.shards)
        yield from publisher.keyed(shards, arranger, plan.columns, earlier)
    yield from plan.rejects
    # The counts tell `publish` which shards there must be.
    small = dataclasses.replace(plan, shards=(), rejects=(), first_rejected=(), groups=())
    if plan.runs is None or not goes_on:
        yield beam.pvalue.TaggedOutput("plan", dataclasses.replace(small, runs=None))
    else:
        yield from (beam.pvalue.TaggedOutput("groups", group) for group in plan.groups)
        yield beam.pvalue.TaggedOutput("unsorted", small)


# The merges of a shuffle


def survey(group: RunGroup, arranger: Arranger) -> Iterable[SampleCounts]:
    """The blocks of a run -> number of tokens for each sample key, if there is a mix."""
    arranger.token_cache.options.activate()
    if group.runs.parts.wanted:
        yield arranger.survey(group)


def make_run(group: RunGroup, counts: SampleCounts, arranger: Arranger) -> RunCounts:
    """The blocks of a run -> a file with their rows, sorted; returns its counts."""
    arranger.token_cache.options.activate()
    return arranger.write_run(group, counts.limits(group.runs.parts))


def second_level(plan: Plan, counts: RunCounts) -> Iterable[tuple[Runs, int, int]]:
    """The plan -> the merges of the second level, when all runs are written."""
    assert plan.runs is not None
    if counts.runs != plan.runs.runs:
        raise EngineError(f"the runner gave {counts.runs} runs of {plan.runs.runs} that were planned: run again")
    for group, wide in plan.runs.tasks():
        yield plan.runs, group, wide


def merge_runs(task: tuple[Runs, int, int], arranger: Arranger) -> int:
    """Merges a wide range of keys of some runs."""
    arranger.token_cache.options.activate()
    arranger.merge_runs(*task)
    return 1


def plan_shards(
    plan: Plan, samples: SampleCounts, counts: RunCounts, merged: int, arranger: Arranger, publisher: Publisher
) -> Iterable[Any]:
    """The plan -> the shards to write, and (tagged `plan`) the plan with these shards, for `publish`."""
    arranger.token_cache.options.activate()
    runs = plan.runs
    assert runs is not None
    tasks = sum(1 for _ in runs.tasks())
    if merged != tasks:
        raise EngineError(f"the runner merged {merged} ranges of runs of {tasks} that were planned: run again")
    shards = MergedShards.of(runs, counts, samples.limits(runs.parts))
    if publisher.problem(plan) is None:
        plans = (dataclasses.replace(shard, cut=plan.cut) for shard in shards.plans())
        yield from publisher.keyed(plans, arranger, plan.columns, publisher.earlier())
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
    no_samples, no_runs = SampleCounts(), RunCounts()
    surveyed = groups | "Survey" >> beam.FlatMap(survey, arranger)
    samples = beam.pvalue.AsSingleton(surveyed | "Samples" >> beam.CombineGlobally(partial(sum, start=no_samples)))
    made = groups | "Runs" >> beam.Map(make_run, samples, arranger)
    counts = beam.pvalue.AsSingleton(made | "Counts" >> beam.CombineGlobally(partial(sum, start=no_runs)))
    merged = beam.pvalue.AsSingleton(
        plans
        | "SecondLevel" >> beam.FlatMap(second_level, counts)
        | "SpreadMerges" >> beam.Reshuffle()
        | "Merge" >> beam.Map(merge_runs, arranger)
        | "Merged" >> beam.CombineGlobally(sum)
    )
    shards = beam.FlatMap(plan_shards, samples, counts, merged, arranger, publisher)
    return plans | "Shards" >> shards.with_outputs("plan", main="work")
