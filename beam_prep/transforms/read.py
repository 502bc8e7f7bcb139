"""ReadJSONL: files -> blocks of parsed records."""

import dataclasses
import time
from collections.abc import Iterable, Sequence

import apache_beam as beam

from beam_prep.core.data.block import InputFile, Split
from beam_prep.core.data.hashing import CHUNK
from beam_prep.core.reading.blocks import MAX_LINE_BYTES
from beam_prep.core.reading.records import Records
from beam_prep.storage.files import list_inputs
from beam_prep.storage.splits import BLOCK_BYTES, pack_files, read_split, split_files
from beam_prep.storage.spool import Spool


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadSplits(beam.DoFn):
    """Splits -> their blocks: see `read_split`."""

    block_bytes: int
    spool: Spool | None
    max_line_bytes: int = MAX_LINE_BYTES

    def setup(self) -> None:
        if self.spool is not None:
            self.spool.options.activate()

    def process(self, split: Split) -> Iterable[Records]:
        blocks = iter(read_split(split, self.block_bytes, self.spool, self.max_line_bytes))
        while True:
            started = time.perf_counter()
            block = next(blocks, None)
            if block is None:
                return
            block.spent("ReadJSONL", time.perf_counter() - started)
            yield block


@dataclasses.dataclass(eq=False)
class ReadJSONL(beam.PTransform):
    """Files -> `Records`, every line of them exactly once, in blocks that are the same on every runner.

    Plain files, and Parquet (`.parquet`) by its row groups, are split by byte ranges. `.gz`, `.bz2` and `.zst` files,
    `.json` files that hold one list of records, and Arrow streams (`.arrow`, or the folder of a dataset) are read as
    streams, in blocks too. A line that is not a JSON object is rejected, a blank line is counted.
    The files are listed when the pipeline is built.

    Attributes:
        inputs: paths and globs.
        block_bytes: bytes of input in a block; a multiple of 65536, so that digests of inputs do not depend on it.
        spool: the folder of blocks of earlier runs, which are reused; for launchers.
        max_line_bytes: a longer line is rejected (`line_too_long`), and is not kept in memory.
        workers: that there will be, about: so many share a large compressed file.

    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL("examples/data/text.jsonl") | bp.testing.rows()
    ...     _ = records | beam.combiners.Count.Globally() | beam.Map(print)
    72
    """

    inputs: Sequence[str | InputFile]
    block_bytes: int = BLOCK_BYTES
    spool: Spool | None = None
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
        # Beam puts this into the graph, and its own would name every file.
        return f"ReadJSONL of {len(self.inputs)} files"

    def expand(self, start: beam.pvalue.PBegin) -> beam.PCollection[Records]:
        packed = pack_files(self.inputs)  # type: ignore[arg-type]
        read = ReadSplits(block_bytes=self.block_bytes, spool=self.spool, max_line_bytes=self.max_line_bytes)
        return (
            start
            | "Once" >> beam.Impulse()
            | "Splits" >> beam.FlatMap(split_files, packed, self.block_bytes, self.workers).with_output_types(Split)
            # Without this, one process would do all blocks.
            | "Spread" >> beam.Reshuffle()
            | "Blocks" >> beam.ParDo(read).with_output_types(Records)
        )
