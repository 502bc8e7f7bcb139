"""Exact deduplication, and the views of blocks: the steps between the token cache and the plan."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_prep.data.ragged import Aligned, Array, changes
from beam_prep.data.receipts import BlockReceipt
from beam_prep.errors import ConfigError
from beam_prep.reading.keys import DUPLICATE
from beam_prep.shards.compose import Splits, view_receipt
from beam_prep.shards.row_index import Copies
from beam_prep.storage.arrange import Scratch
from beam_prep.storage.token_cache import TokenCache

_MOST = 500_000
"""Most digests that a bundle holds before it passes them on."""


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


@dataclasses.dataclass(eq=False)
class ReadDigests(beam.DoFn):
    """Receipts -> (bucket, digests of records). Equal digests are in one bucket."""

    token_cache: TokenCache
    buckets: int

    def setup(self) -> None:
        self.token_cache.options.activate()

    def start_bundle(self) -> None:
        self._held: list[Digests] = []

    def process(self, receipt: BlockReceipt) -> Iterable[tuple[int, Digests]]:
        if not receipt.kept:
            return
        (row_index,) = self.token_cache.row_indexes([receipt["name"]])
        if DUPLICATE not in row_index.digests:
            raise ConfigError("Shard deduplicates, and the blocks have no digests: put KeyRecords(duplicate=...) first")
        count = len(row_index.line)
        file, start = (np.full(count, number, np.int64) for number in (receipt["file"], receipt["start"]))
        found = Digests(row_index.digests[DUPLICATE], file, start, row_index.line.astype(np.int64), row_index.offset)
        self._held.append(found)
        if sum(len(each.line) for each in self._held) >= _MOST:
            yield from self._passed_on()

    def finish_bundle(self) -> Iterable[WindowedValue]:
        if self._held:
            for each in self._passed_on():
                yield GlobalWindows.windowed_value(each)

    def _passed_on(self) -> Iterable[tuple[int, Digests]]:
        found = Digests.concat(self._held)
        self._held = []
        bucket = (found.digest[:, 0] % np.uint64(self.buckets)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        first = changes(bucket[order])
        for here in np.split(order, first[1:]):
            yield int(bucket[here[0]]), found.take(here)


BlockKey = tuple[int, int]
"""The index of a block's file, and the block's offset there."""


class FindCopies(beam.DoFn):
    """(bucket, digests) -> (block, its copies). Of equal records, all but the first in input order are copies."""

    def process(self, element: tuple[int, Iterable[Digests]]) -> Iterable[tuple[BlockKey, Copies]]:
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


@dataclasses.dataclass(eq=False)
class ViewBlock(beam.DoFn):
    """A receipt, or (block, its receipt and copies) -> the receipt for the plan."""

    token_cache: TokenCache
    scratch: Scratch
    splits: Splits | None

    def setup(self) -> None:
        self.token_cache.options.activate()

    def process(self, element: BlockReceipt | tuple[BlockKey, Mapping[str, Iterable[Any]]]) -> Iterable[BlockReceipt]:
        if isinstance(element, BlockReceipt):
            receipt, copies = element, Copies()
        else:
            (receipt,) = element[1]["receipts"]
            copies = Copies.concat([Copies(), *element[1]["copies"]])
            copies = copies.take(np.argsort(copies.line))
        if self.splits is None and not len(copies):
            yield receipt
            return
        (row_index,) = self.token_cache.row_indexes([receipt["name"]])
        yield view_receipt(receipt, row_index, copies, self.scratch.write_copies(copies), self.splits)


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
    see = beam.ParDo(ViewBlock(token_cache, scratch, splits)).with_output_types(BlockReceipt)
    if buckets is None:
        return receipts | "View" >> see
    read = beam.ParDo(ReadDigests(token_cache, buckets)).with_output_types(tuple[int, Digests])
    copies = (
        receipts
        | "Digests" >> read
        | "Buckets" >> beam.GroupByKey()
        | "Copies" >> beam.ParDo(FindCopies()).with_output_types(tuple[BlockKey, Copies])
    )
    by_block = receipts | "ByBlock" >> beam.Map(_by_block).with_output_types(tuple[BlockKey, BlockReceipt])
    return {"receipts": by_block, "copies": copies} | "Join" >> beam.CoGroupByKey() | "View" >> see


def _by_block(receipt: BlockReceipt) -> tuple[BlockKey, BlockReceipt]:
    return (receipt["file"], receipt["start"]), receipt
