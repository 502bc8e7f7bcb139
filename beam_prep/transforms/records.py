"""Sources of a chain: they make blocks of records from files, collections of dicts, and groups of files."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_prep.data.block import InputFile, Split
from beam_prep.data.hashing import CHUNK
from beam_prep.errors import ConfigError
from beam_prep.reading.collection import MOST_BUCKETS, blocks, bucket_of, encode_record, line_size
from beam_prep.reading.records import MAX_LINE_BYTES, Records
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import BLOCK_BYTES, pack_files, read_split, split_files
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.batch import Batch
from beam_prep.transforms.steps import BlockStep, timed


def read(split: Split, block_bytes: int, token_cache: TokenCache | None, max_line_bytes: int) -> Iterable[Records]:
    """A split -> its blocks: see `read_split`. They note how long they took."""
    started = time.perf_counter()
    for block in read_split(split, block_bytes, token_cache, max_line_bytes):
        block.spent("ReadJSONL", time.perf_counter() - started)
        yield block
        started = time.perf_counter()


@dataclasses.dataclass(eq=False)
class ReadJSONL(beam.PTransform):
    """Files -> `Records`: every line exactly once, in blocks that are the same on every runner.

    Plain files are split by byte ranges, Parquet files (`.parquet`) by their row groups. `.gz`, `.bz2` and `.zst`
    files, `.json` files with one list of records, and Arrow streams (`.arrow`, or the folder of a dataset) are read as
    streams, in blocks too. A line that is not a JSON object is rejected, a blank line is counted.
    The files are listed when the pipeline is built.

    Attributes:
        inputs: paths and globs.
        block_bytes: bytes of input in a block; a multiple of 65536, so that digests of inputs do not depend on it.
        token_cache: the cache of blocks of earlier runs, which are reused; for launchers.
        max_line_bytes: a longer line is rejected (`line_too_long`), and is not kept in memory.
        workers: expected number of workers: as many share a large compressed file.

    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL("examples/data/text.jsonl") | bp.testing.rows()
    ...     _ = records | beam.combiners.Count.Globally() | beam.Map(print)
    72
    """

    inputs: Sequence[str | InputFile]
    block_bytes: int = BLOCK_BYTES
    token_cache: TokenCache | None = None
    max_line_bytes: int = MAX_LINE_BYTES
    workers: int = 1

    def __post_init__(self) -> None:
        super().__init__()
        if not CHUNK <= self.block_bytes < 1 << 31 or self.block_bytes % CHUNK:
            raise ValueError(f"block_bytes is {self.block_bytes}, wanted a multiple of {CHUNK} below 2 GiB")
        if not 1 <= self.max_line_bytes < 1 << 31:
            raise ValueError(f"max_line_bytes is {self.max_line_bytes}, wanted 1 or more, below 2 GiB")
        if not self.inputs or not isinstance(self.inputs[0], InputFile):
            self.inputs = list_inputs(self.inputs)  # type: ignore[arg-type]

    def __str__(self) -> str:
        # Beam writes this into the graph; its default would name every file.
        return f"ReadJSONL of {len(self.inputs)} files"

    def expand(self, start: beam.pvalue.PBegin) -> beam.PCollection[Records]:
        packed = pack_files(self.inputs)  # type: ignore[arg-type]
        made = beam.FlatMap(read, self.block_bytes, self.token_cache, self.max_line_bytes)
        return (
            start
            | "Once" >> beam.Impulse()
            | "Splits" >> beam.FlatMap(split_files, packed, self.block_bytes, self.workers).with_output_types(Split)
            # Otherwise one process would read all blocks.
            | "Spread" >> beam.Reshuffle()
            | "Blocks" >> made.with_output_types(Records)
        )


Step = Callable[[Any], Any]


class ByGroup(BlockStep):
    """`Records` -> `Batch`: applies to each block the steps of its file's group.

    One step for all groups: if Beam separated and joined the blocks, it would need several times their memory.

    Attributes:
        steps: the steps of each group, in order; the last step of each group makes a `Batch`.
    """

    steps: Sequence[Sequence[BlockStep]]

    gives = Batch

    def step(self) -> Callable[[Records], Batch]:
        return partial(_by_group, groups=tuple(tuple(map(timed, each)) for each in self.steps))

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        return blocks | "Blocks" >> beam.Map(self.step()).with_output_types(Batch)  # the steps note their times


def _by_group(records: Records, groups: tuple[tuple[Step, ...], ...]) -> Batch:
    source = records.origin.source
    if source.group is None or source.group >= len(groups):
        raise ConfigError(
            f"{source.path!r} is of no group: the config has input.groups, whose files only beam-prep run and "
            "Pipeline read; in a chain of your own, write one Prepare for each group"
        )
    block: Any = records
    for step in groups[source.group]:
        block = step(block)
    made: Batch = block
    return made


def _keyed(element: Any, buckets: int) -> tuple[int, bytes]:
    encoded = encode_record(element)
    return bucket_of(encoded, buckets), encoded


def _blocks(
    group: tuple[int, Iterable[bytes]], sizes: Mapping[int, int], buckets: int, block_bytes: int
) -> Iterable[Records]:
    return blocks(*group, sizes, buckets, block_bytes)


def _sized(bucket: int, encoded: bytes) -> tuple[int, int]:
    return bucket, line_size(encoded)


@dataclasses.dataclass(eq=False)
class FromRecords(beam.PTransform):
    """A collection of dicts, or of Rows -> `Records`, in place of ReadJSONL: from BigQuery, Iceberg, your own read.

    A collection has no order, so records are ordered by their digests (of sorted keys). Equal records all stay. The
    output is the same for any order of arrival, any `buckets` and `block_bytes`, and on every runner. In the manifest
    and in rejects, the file is `records`; lines and byte offsets are those of the ordered records as JSON.

    Dates, times, `Decimal` and `UUID` become text; named tuples become objects; tuples and numpy arrays become lists.
    Values that JSON cannot hold reject the record: `not_json` (bytes, sets, NaN, a key that is no string ...),
    `not_an_object` (the element is neither dict nor Row), `bad_text`, `bad_number`, `too_deep`, `line_too_long`.

    Windows and timestamps are ignored: a bounded collection is one output.

    Attributes:
        buckets: a power of 2, up to 65536. A worker holds and sorts one bucket in memory: all records as JSON, divided
            by `buckets`, should be at most a tenth of its memory. 256 buckets are enough for 100 GB with 4 GB workers.
        block_bytes: bytes of JSON in a block; steps hold one block at a time.

    Raises:
        ValueError: `buckets` or `block_bytes` is out of range.
        ConfigError: the collection is unbounded.
        InputError: (when run) the source gave other records when a part of the job ran again.

    >>> rows = [{"text": "One."}, {"text": "Two."}, {"text": "Two."}, {"text": b"Three."}]
    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | beam.Create(rows) | bp.FromRecords() | bp.testing.rows()
    ...     _ = records | beam.combiners.Count.Globally() | beam.Map(print)
    3
    """

    buckets: int = 256
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        super().__init__()
        if type(self.buckets) is not int or not 1 <= self.buckets <= MOST_BUCKETS or self.buckets.bit_count() > 1:
            raise ValueError(f"buckets is {self.buckets!r}, wanted a power of 2 from 1 to {MOST_BUCKETS}")
        if type(self.block_bytes) is not int or not 1 <= self.block_bytes < 1 << 31:
            raise ValueError(f"block_bytes is {self.block_bytes!r}, wanted 1 or more, below 2 GiB")

    def expand(self, records: beam.PCollection[Any]) -> beam.PCollection[Records]:
        if not records.is_bounded:
            raise ConfigError(
                "FromRecords was given an unbounded collection (a stream), wanted one that ends: "
                "write the stream to a table or to files, and read a snapshot of them"
            )
        keyed = (
            records
            | "OneWindow" >> beam.WindowInto(GlobalWindows())
            | "Encode" >> beam.Map(_keyed, self.buckets).with_output_types(tuple[int, bytes])
        )
        sizes = (
            keyed
            | "Size" >> beam.MapTuple(_sized).with_output_types(tuple[int, int])
            | "Sizes" >> beam.CombinePerKey(sum).with_output_types(tuple[int, int])
        )
        made = beam.FlatMap(_blocks, beam.pvalue.AsDict(sizes), self.buckets, self.block_bytes)
        return keyed | "Buckets" >> beam.GroupByKey() | "Blocks" >> made.with_output_types(Records)
