"""`parquet`: one file a shard, `<domain>/shard_0000.parquet`, `shard_0001.parquet` ...

    pandas.read_parquet("out/wiki")
    duckdb.sql("select len(sequence) from 'out/wiki/*.parquet'")
    datasets.load_dataset("parquet", data_files="out/wiki/*.parquet")

* Columns are lists (depth 2: lists of lists) without nulls, in Arrow types. The file holds the Arrow schema with the
  features of `datasets`.
* A row group holds the next `batch_rows` rows, or fewer if their values exceed `batch_bytes`, so row groups depend only
  on the rows. The file has no times. **The bytes depend on pyarrow's version**: it is stored in the file, and another
  version may compress in another way.
* Every page has a crc, which our reader checks.

Compression is zstd, level 1, of plain values. Among the encodings and levels that were tried on ids and masks, it gave
the smallest files for its time.

For random rows `bin` and `arrow` are better: to read a row, `parquet` reads its whole row group.

Source: parquet.apache.org/docs/file-format.
"""

import io
from itertools import accumulate
from typing import Any

import pyarrow as pa

from beam_prep.errors import FormatError
from beam_prep.formats import Format
from beam_prep.formats.arrow import BatchReader, BatchWriter, check_types


class ParquetWriter(BatchWriter):
    """Writes each record batch as a row group."""

    def __init__(self, *given: Any) -> None:
        import pyarrow.parquet as pq

        super().__init__(*given)
        # pyarrow writes to memory, not to the file: after an exception it would still write a footer.
        self._waiting = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._waiting,
            self._schema,
            version="2.6",
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,  # useless for token ids
            write_page_checksum=True,
        )

    def _put(self, batch: pa.RecordBatch) -> None:
        self._writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
        self._pass_on()

    def _pass_on(self) -> None:
        self._file.write(self._waiting.getvalue())
        self._waiting.seek(0)
        self._waiting.truncate()

    def close(self) -> None:
        """Writes the last row group and the footer, and closes the file."""
        self._flush()
        self._writer.close()
        self._pass_on()
        self._file.close()


class ParquetReader(BatchReader):
    """Rows of one shard. To read a row it reads the whole row group, and keeps the last row group in memory.

    The file is open only during a call.
    """

    _last: tuple[int, pa.RecordBatch] | None = None

    def _open(self) -> None:
        import pyarrow.parquet as pq

        self._metadata = pq.read_metadata(str(self._path))
        check_types(self._metadata.schema.to_arrow_schema(), self._columns)
        sizes = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        self._starts = list(accumulate(sizes, initial=0))

    def _batch(self, group: int) -> pa.RecordBatch:
        if self._last is None or self._last[0] != group:
            self._last = group, self._read(group)
        return self._last[1]

    def _read(self, group: int) -> pa.RecordBatch:
        import pyarrow.parquet as pq

        rows = self._starts[group + 1] - self._starts[group]
        names = [column.name for column in self._columns]
        try:
            with pa.memory_map(str(self._path)) as source:
                file = pq.ParquetFile(source, metadata=self._metadata, page_checksum_verification=True)
                table = file.read_row_group(group, names, use_threads=False).select(names)
            (batch,) = table.combine_chunks().to_batches()
            batch.validate()
            if batch.num_rows != rows:
                raise ValueError(f"found {batch.num_rows} rows of {rows}")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{self._path}: row group {group} is damaged: {error}") from None
        return batch


class Parquet(Format):
    """The format `parquet`; see the module."""

    name = "parquet"
    file_name = "shard_{shard:04d}.parquet"
    writes = ParquetWriter
    reads = ParquetReader
    batch_rows = 10_000
    """Most rows of a row group."""
    batch_bytes = 1 << 23
    """Most bytes of the values of a row group (a bool counts as one byte). A larger row gets a row group of its own."""
