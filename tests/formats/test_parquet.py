"""`parquet`, read back by pandas, DuckDB, datasets and pyarrow, and by its own reader."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.errors import FormatError
from beam_prep.formats.parquet import Parquet
from tests.formats.shards import ALL, SEQUENCE, cut, joined, random_rows, read_as, write_as

write, read = partial(write_as, "parquet"), partial(read_as, "parquet")


# Others read it.


def test_duckdb_reads_a_folder(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    parts = [random_rows(1200, 1), random_rows(7, 2)]
    for shard, part in enumerate(parts):
        write(tmp_path, ALL, cut(part, [0, 5, len(part["rewards"])]), shard)
    glob, wanted = str(tmp_path / "*.parquet"), joined(parts)
    rows = duckdb.sql(
        f"select * from read_parquet('{glob}', file_row_number = true) order by filename, file_row_number"
    )
    names = [column.name for column in ALL]
    found = rows.project(", ".join(names)).fetchall()
    assert found == [tuple(wanted[name][index] for name in names) for index in range(1207)]
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    assert [types[name] for name in names] == ["INTEGER[]", "BOOLEAN[]", "USMALLINT[][]", "BOOLEAN[][]", "FLOAT[]"]
    (trained,) = duckdb.sql(f"select sum(list_sum(loss_mask::int[])) from '{glob}'").fetchall()
    assert trained == (sum(map(sum, wanted["loss_mask"])),)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    reader = read(tmp_path, [SEQUENCE])
    path.unlink()
    with pytest.raises(FormatError, match=r"shard_0000\.parquet: row group 0 is damaged"):
        reader.row(0)


def test_pages_are_compressed_and_have_crcs_and_the_schema_that_of_arrow(tmp_path: Path) -> None:
    path = write(tmp_path, ALL, [random_rows(20)])
    file = pq.ParquetFile(path)
    chunk = file.metadata.row_group(0).column(0)
    assert (chunk.compression, {*chunk.encodings}, chunk.has_dictionary_page) == ("ZSTD", {"PLAIN", "RLE"}, False)
    assert chunk.statistics is None
    features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert features["sequence"] == {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"}
    assert file.schema_arrow.types == [
        pa.list_(pa.int32()),
        pa.list_(pa.bool_()),
        pa.list_(pa.list_(pa.uint16())),
        pa.list_(pa.list_(pa.bool_())),
        pa.list_(pa.float32()),
    ]


# The bytes.


def test_after_an_exception_nothing_more_is_written(tmp_path: Path) -> None:
    """pyarrow writes the footer when its writer is freed: a cut shard would look complete."""
    with open(tmp_path / "file", "xb") as file:
        writer = Parquet().writer(lambda path: file, [SEQUENCE], 0, 1)
        writer.write({"sequence": Ragged.from_lists([[1]])})
        with pytest.raises(ValueError, match="found columns"):
            writer.write({})
        del writer
    assert (tmp_path / "file").read_bytes() == b""


# What it refuses.


def test_nulls_are_refused(tmp_path: Path) -> None:
    for rows in ([[1], None], [[1, None]]):
        pq.write_table(pa.table({"sequence": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "shard_0000.parquet")
        with pytest.raises(FormatError, match=r"row \d is damaged: it has nulls"):
            read(tmp_path, [SEQUENCE]).row(-1)
