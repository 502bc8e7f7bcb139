"""FromRecords: a collection of dicts -> blocks of records."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from beam_prep.core.reading.collection import MOST_BUCKETS, blocks, bucket_of, encode_record, line_size
from beam_prep.core.reading.records import Records
from beam_prep.errors import ConfigError
from beam_prep.storage.splits import BLOCK_BYTES


def _keyed(element: Any, buckets: int) -> tuple[int, bytes]:
    encoded = encode_record(element)
    return bucket_of(encoded, buckets), encoded


def _sized(keyed: tuple[int, bytes]) -> tuple[int, int]:
    return keyed[0], line_size(keyed[1])


def _blocks(
    group: tuple[int, Iterable[bytes]], sizes: Mapping[int, int], buckets: int, block_bytes: int
) -> Iterable[Records]:
    return blocks(*group, sizes, buckets, block_bytes)


@dataclasses.dataclass(eq=False)
class FromRecords(beam.PTransform):
    """A collection of dicts, or of Rows -> `Records`, in place of ReadJSONL: BigQuery, Iceberg, a read of your own.

    A collection has no order, so records are put in that of their digests (keys sorted). Equal records all stay. The
    output is the same for any order of arrival, any `buckets` and `block_bytes`, and on every runner. In the manifest
    and in rejects the file is `records`; lines and byte offsets are those of the records as JSON in that order.

    Dates, times, `Decimal` and `UUID` become text; named tuples become objects, tuples and arrays of numpy lists. What
    JSON cannot hold is a reject: `not_json` (bytes, sets, NaN, a key that is no string ...), `not_an_object` (the
    element is neither dict nor Row), `bad_text`, `bad_number`, `too_deep`, `line_too_long`.

    Windows and timestamps are ignored: a bounded collection is one output.

    Attributes:
        buckets: a power of 2, up to 65536. A worker holds one bucket in memory, and sorts it: all records as JSON,
            divided by `buckets`, should be a tenth of its memory or less. 256 do for 100 GB in workers of 4 GB.
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
                "write the stream to a table or to files, and read a snapshot of these"
            )
        keyed = (
            records
            | "OneWindow" >> beam.WindowInto(GlobalWindows())
            | "Encode" >> beam.Map(_keyed, self.buckets).with_output_types(tuple[int, bytes])
        )
        sizes = (
            keyed
            | "Size" >> beam.Map(_sized).with_output_types(tuple[int, int])
            | "Sizes" >> beam.CombinePerKey(sum).with_output_types(tuple[int, int])
        )
        return (
            keyed
            | "Buckets" >> beam.GroupByKey()
            | "Blocks"
            >> beam.FlatMap(_blocks, beam.pvalue.AsDict(sizes), self.buckets, self.block_bytes).with_output_types(
                Records
            )
        )
