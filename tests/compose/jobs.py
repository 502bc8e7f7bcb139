"""Jobs without Beam: rows in blocks of a real token cache, planned and read as the steps do it, in milliseconds."""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.data.block import ALIVE, InputFile, Ledger, Origin
from beam_prep.data.hashing import Node
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import IGNORE_INDEX, Column
from beam_prep.reading.keys import DUPLICATE, SPLIT
from beam_prep.shards.compose import Compose, DomainMix, RunSizes, Splits
from beam_prep.shards.layout import LOST
from beam_prep.shards.plan import Plan, make_plan, with_merged
from beam_prep.shards.receipts import BlockReceipt, Receipts, pack_receipts, placed
from beam_prep.shards.runs import MergedShards, RunCounts, RunGroup, Runs
from beam_prep.shards.slices import ShardPlan
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.batch import Batch
from beam_prep.transforms.shard import by_bucket, digests, find_copies, view_block
from tests.compose.naive import Job, Part, Row

LINE_BYTES = 10
CUT = 3
"""A row lost `id % CUT` tokens."""
Files = Sequence[Sequence[Row | None]]

COLUMNS = (
    Column("sequence", "int32", 1, "ids"),
    Column("labels", "int32", 1, "labels", "sequence"),
    Column("mask", "bool", 1, "mask", "sequence"),
    Column("scores", "float32", 1, "value"),
    Column("turns", "int32", 2, "ids"),
)


def values_of(row: Row) -> dict[str, Any]:
    """What a row has in each column: all of it depends on its id."""
    ids = [row.id] * row.tokens
    return {
        "sequence": ids,
        "labels": [token if (row.id + place) % 3 else IGNORE_INDEX for place, token in enumerate(ids)],
        "mask": [(row.id * place) % 2 == 1 for place in range(row.tokens)],
        "scores": [row.id / 2] * (row.id % 3),
        "turns": [[row.id] * length for length in range(row.id % 4)],
    }


def outcome_of(line: int) -> tuple[str, str]:
    """(kind, reason) of a line of a block that gives no row."""
    return (("blank", ""), ("dropped", "short"), ("rejected", ("bad", "worse")[line // 3 % 2]))[line % 3]


def batch_of(rows: Sequence[Row | None], origin: Origin) -> Batch:
    """The rows of a block; in place of None are lines that are dropped, rejected or blank."""
    starts = np.arange(len(rows), dtype=np.int64) * LINE_BYTES
    ledger = Ledger(b"x" * LINE_BYTES * len(rows), starts, starts + LINE_BYTES - 1)
    for line, row in enumerate(rows):
        if row is None:
            kind, reason = outcome_of(line)
            if kind == "blank":
                ledger.blank(np.array([line]))
            elif kind == "dropped":
                ledger.drop(line, reason)
            else:
                ledger.reject(line, reason, "message")
    alive = np.flatnonzero(ledger.status == ALIVE).astype(np.int32)
    kept = [row for row in rows if row is not None]
    ledger.digests[SPLIT] = np.zeros(len(rows), np.uint64)
    ledger.digests[SPLIT][alive] = np.array([row.digest for row in kept], np.uint64)
    ledger.digests[DUPLICATE] = np.zeros((len(rows), 2), np.uint64)
    for line, row in zip(alive.tolist(), kept, strict=True):
        digest = hashlib.blake2b(repr(row.same).encode(), digest_size=16).digest()
        ledger.digests[DUPLICATE][line] = np.frombuffer(digest, np.uint64)
    batch = Batch(origin, ledger, alive, domain=[row.domain for row in kept])
    for column in COLUMNS:
        found = [values_of(row)[column.name] for row in kept]
        dtype = "uint8" if column.dtype == "bool" else column.dtype
        batch.columns[column.name] = Ragged.from_lists(found, dtype, column.depth)
        batch.schema[column.name] = column
    batch.count("odd", np.array([row.id % 2 for row in kept], np.int64))
    batch.count("truncated_tokens", np.array([row.id % CUT for row in kept], np.int64))
    return batch


@dataclass
class Blocks:
    """Files whose rows are cut into blocks anyhow.

    Attributes:
        files: the rows.
        folder: of token cache and scratch.
        cuts: of each file, how many lines each block has; the last one has the rest.
        packed: receipts that travel together.
    """

    files: Files
    folder: Path
    cuts: Sequence[Sequence[int]] = ()
    packed: int = 3
    receipts: list[BlockReceipt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token_cache = TokenCache(str(self.folder / "token_cache"), "recipe" * 3)
        self.scratch = Scratch(str(self.folder / "scratch"))
        for number, rows in enumerate(self.files):
            source = InputFile(f"in/{number}.jsonl", len(rows) * LINE_BYTES, 0.0)
            first = 0
            for place, count in enumerate(_counts(len(rows), self.cuts[number] if number < len(self.cuts) else ())):
                self._add(number, source, place, first, rows[first : first + count])
                first += count

    def _add(self, file: int, source: InputFile, place: int, first: int, rows: Sequence[Row | None]) -> None:
        digest = hashlib.sha256(repr(list(rows)).encode()).hexdigest()  # equal blocks are one file
        size = len(rows) * LINE_BYTES
        origin = Origin(file, source, first * LINE_BYTES, 0, size, (Node(place, 0, bytes(32)),), digest)
        batch = batch_of(rows, origin)
        receipt = self.token_cache.write(batch, batch.tokens, 100)
        self.receipts.append(placed(receipt, origin, self.token_cache.name(digest), False))


def _counts(lines: int, cuts: Iterable[int]) -> list[int]:
    found: list[int] = []
    for count in cuts:
        if count < lines - sum(found):
            found.append(count)
    return [*found, lines - sum(found)]


def compose_of(job: Job, buckets: int = 4) -> Compose:
    """The same in our words."""
    splits = None if job.splits is None else Splits.of(job.splits, job.split_seed, job.split_missing)
    mix = tuple((domain, DomainMix(**each)) for domain, each in job.mix.items())
    return Compose(job.shuffle, splits, mix, job.deduplicate, buckets)


@dataclass
class Made:
    """What a job made: its plan, its shards, and where their rows are read."""

    plan: Plan
    shards: list[ShardPlan]
    arranger: Arranger
    runs: Runs | None = None
    groups: tuple[RunGroup, ...] = ()

    def rows(self, shard: ShardPlan) -> list[dict[str, Any]]:
        """The rows of a shard, as lists."""
        found = []
        for rows in self.arranger.rows(shard):
            lists = {name: values.to_lists() for name, values in rows.items() if name != LOST}
            found += [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
        assert len(found) == shard.rows
        return found

    def ids(self) -> dict[Part, list[list[int]]]:
        """Of each part, the ids of the rows of each shard. All that is in the rows was checked."""
        found: dict[Part, list[list[int]]] = {}
        for shard in self.shards:
            rows = self.rows(shard)
            part = found.setdefault((shard.split, shard.domain), [])
            assert shard.shard == len(part)
            part.append([row["sequence"][0] for row in rows])
            for row in rows:
                assert row == values_of(Row(row["sequence"][0], tokens=len(row["sequence"])))
        for (split, domain), shards in found.items():
            assert self.plan.shards_of[domain if split is None else f"{split}/{domain}"] == len(shards)
        return found


def made(blocks: Blocks, job: Job, sizes: RunSizes | None = None, buckets: int = 4) -> Made:
    """Plans a job and arranges its rows."""
    compose = compose_of(job, buckets)
    compose = compose if sizes is None else replace(compose, sizes=sizes)
    shutil.rmtree(blocks.scratch.folder, ignore_errors=True)
    arranger = Arranger(blocks.token_cache, blocks.scratch, compose)
    found = viewed(blocks, compose)
    parts = [found[first :: blocks.packed][::-1] for first in range(blocks.packed)]
    receipts = Receipts.of([pack_receipts(part) for part in parts])
    fetch, copies = blocks.token_cache.row_indexes, blocks.scratch.copies
    plan = make_plan(receipts, fetch, job.max_tokens, job.max_items, compose, copies)
    shards = list(plan.shards)
    runs, groups = plan.runs, tuple(plan.groups)
    if runs is not None:
        plan, shards = merged(replace(plan, groups=groups), arranger)
    return Made(plan, shards, arranger, runs, groups)


def viewed(blocks: Blocks, compose: Compose) -> list[BlockReceipt]:
    """The receipts as the plan sees them: what `view_blocks` does."""
    if not compose.views:
        return blocks.receipts
    copies: dict[Any, list[Any]] = {}
    if compose.deduplicate:
        found = [each for receipt in blocks.receipts for each in digests(receipt, blocks.token_cache)]
        buckets: dict[int, list[Any]] = {}
        for bucket, of_bucket in by_bucket(found, compose.buckets):
            buckets.setdefault(bucket, []).append(of_bucket)
        for element in buckets.items():
            for block, of_block in find_copies(element):
                copies.setdefault(block, []).append(of_block)
    result: list[BlockReceipt] = []
    for receipt in blocks.receipts:
        key = receipt["file"], receipt["start"]
        seen = {"receipts": [receipt], "copies": copies.get(key, [])}
        result.append(view_block((key, seen), blocks.token_cache, blocks.scratch, compose.splits))
    return result


def merged(plan: Plan, arranger: Arranger) -> tuple[Plan, list[ShardPlan]]:
    """Sorts and merges the runs of a plan: what `merge_shards` does."""
    runs = plan.runs
    assert runs is not None
    groups = list(plan.groups)
    assert len(groups) == runs.runs
    samples = sum((arranger.survey(group) for group in groups if runs.parts.wanted), RunCounts())
    limits = samples.limits(runs.parts)
    counts = sum((arranger.write_run(group, samples) for group in groups[::-1]), RunCounts())
    for group, wide in runs.tasks():
        arranger.merge_runs(runs, group, wide)
    shards = MergedShards.of(runs, counts, limits)
    plans = list(shards.plans())
    return with_merged(plan, shards), plans
