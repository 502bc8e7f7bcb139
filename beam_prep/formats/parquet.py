"""`parquet`: one file a shard, `<domain>/shard_0000.parquet`, `shard_0001.parquet` ...

    pandas.read_parquet("out/wiki")
    duckdb.sql("select len(sequence) from 'out/wiki/*.parquet'")
    datasets.load_dataset("parquet", data_files="out/wiki/*.parquet")

* Columns are lists (depth 2: lists of lists) without nulls, in Arrow types. The file holds the Arrow schema with the
  features of `datasets`.
* A row group holds the next `group_rows` rows, or fewer if their values exceed `group_bytes`, so row groups depend only
  on the rows. The file has no times. **The bytes depend on pyarrow's version**: it is stored in the file, and another
  version may compress in another way.
* Every page has a crc, which our reader checks.

Compression is zstd, level 1, of plain values. Among the encodings and levels that were tried on ids and masks, it gave
the smallest files for its time.

For random rows `bin` and `arrow` are better: to read a row, `parquet` reads its whole row group.

Source: parquet.apache.org/docs/file-format.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.batches import Batches, BatchReader, check_types
from beam_prep.formats.contract import FileFormat, OpenFile

__all__ = ["Parquet", "ParquetReader", "ParquetWriter"]


class Parquet(FileFormat):
    """The format `parquet`; see the module."""

    name = "parquet"
    file_name = "shard_{shard:04d}.parquet"
    group_rows = 10_000
    """Most rows of a row group."""
    group_bytes = 1 << 23
    """Most bytes of the values of a row group (a bool counts as one byte). A larger row gets a row group of its own."""

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "ParquetWriter":
        """See `Format.writer`."""
        return ParquetWriter(self, open_file, columns, self.file(shard, shards))

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "ParquetReader":
        """See `Format.read`. Reads the footer; a row group is read when one of its rows is read."""
        return ParquetReader(folder / self.file(shard, shards), columns)


class ParquetWriter:
    """Writes each row group when it is full; at most one is in memory. See `ShardWriter`."""

    def __init__(self, format: Parquet, open_file: OpenFile, columns: Sequence[Column], name: str) -> None:
        import pyarrow.parquet as pq

        self._batches = Batches(columns, format.group_rows, format.group_bytes, self._put)
        self._file = open_file(name)
        # pyarrow writes to memory, not to the file: after an exception it would still write a footer.
        self._waiting = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._waiting,
            self._batches.schema,
            version="2.6",
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,  # useless for token ids
            write_page_checksum=True,
        )

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        self._batches.add(columns)

    def _put(self, batch: pa.RecordBatch) -> None:
        self._writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
        self._pass_on()

    def _pass_on(self) -> None:
        self._file.write(self._waiting.getvalue())
        self._waiting.seek(0)
        self._waiting.truncate()

    def close(self) -> None:
        """Writes the last row group and the footer, and closes the file."""
        self._batches.flush()
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
        if self._starts[-1] != self._metadata.num_rows:
            raise ValueError(f"its row groups have {self._starts[-1]} rows of {self._metadata.num_rows}")

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
