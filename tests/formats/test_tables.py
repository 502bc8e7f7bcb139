"""`arrow` and `parquet`: batches of rows as large as they may be, read back by datasets, DuckDB and pyarrow alone."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.errors import FormatError
from beam_prep.formats import arrow
from beam_prep.formats.parquet import Parquet
from tests.conftest import Folders
from tests.formats.shards import ALL, SEQUENCE, cut, files, joined, plain, random_rows, read_as, rows_in, write_as


def rows_of_batches(path: Path) -> list[int]:
    if path.suffix == ".arrow":
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            return [batch.num_rows for batch in stream]
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@pytest.mark.parametrize("name", ["arrow", "parquet"])
@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    most=st.sampled_from([(3, 1 << 22), (1000, 60), (5, 90), (1000, 1), (1000, 1 << 22)]),
)
def test_batches_are_as_large_as_they_may_be_however_the_rows_came(
    tmp_path_factory: Folders, name: str, rows: int, seed: int, cuts: list[int], most: tuple[int, int]
) -> None:
    whole = random_rows(rows, seed)
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    limits = {"batch_rows": most[0], "batch_bytes": most[1]}
    path = write_as(name, once, ALL, [whole], **limits)
    write_as(name, many, ALL, cut(whole, [0, *sorted(min(border, rows) for border in cuts), rows]), **limits)
    assert files(once) == files(many)
    sizes = np.cumsum([0, *rows_of_batches(path)])
    row_bytes = np.sum([ragged.flat_lengths * ragged.flat.itemsize for ragged in whole.values()], axis=0)
    for a, b in pairwise(sizes.tolist()):
        assert b - a <= most[0]
        assert b - a == 1 or row_bytes[a:b].sum() <= most[1]
        # No more would have fitted.
        assert b == rows or b - a == most[0] or row_bytes[a : b + 1].sum() > most[1]
    reader = read_as(name, many, ALL)
    assert joined([whole]) == {key: [row[key] for row in rows_in(reader)] for key in whole}
    assert reader.sizes().tolist() == sum((ragged.flat_lengths for ragged in whole.values()), np.zeros(rows)).tolist()


def test_strings_without_borders_are_no_rows() -> None:
    texts = pa.Array.from_buffers(pa.string(), 0, [None, None, pa.py_buffer(b"")])
    assert arrow.rows_of(pa.record_batch({"text": texts}))["text"].to_lists() == []


# arrow


def test_datasets_opens_a_domain_of_several_shards_memory_mapped(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = [random_rows(2500, 1), random_rows(0, 2), random_rows(7, 3)]
    # In parallel, that is in any order.
    paths = [
        write_as("arrow", tmp_path, ALL, cut(parts[shard], [0, 1, 1, 6, len(parts[shard]["rewards"])]), shard, 3)
        if len(parts[shard]["rewards"])
        else write_as("arrow", tmp_path, ALL, [], shard, 3)
        for shard in (2, 0, 1)
    ]
    assert sorted(files(tmp_path)) == [
        "data-00000-of-00003.arrow",
        "data-00001-of-00003.arrow",
        "data-00002-of-00003.arrow",
        "dataset_info.json",
        "state.json",
    ]
    before = pa.total_allocated_bytes()
    rows = datasets.load_from_disk(str(tmp_path))
    assert pa.total_allocated_bytes() - before < 10_000
    assert [file["filename"] for file in rows.cache_files] == [str(path) for path in sorted(paths)]
    assert len(rows) == 2507
    assert rows.column_names == [column.name for column in ALL]
    wanted = joined(parts)
    for name in wanted:
        assert list(rows[name]) == wanted[name], name
    assert rows[2506] == {name: values[-1] for name, values in wanted.items()}
    for index in (0, 999, 1000, 2499, 2500):
        assert rows[index]["sequence"] == wanted["sequence"][index]


def test_map_of_one_domain_never_gets_the_cache_of_another(tmp_path: Path) -> None:
    """Both have the same columns, shards and file names, and shard 0 the same rows: all that its writer knows."""
    datasets = pytest.importorskip("datasets")
    for domain, last in (("code", [[1]]), ("wiki", [[2]])):
        write_as("arrow", tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists([[0]])}], 0, 2)
        write_as("arrow", tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists(last)}], 1, 2)
    write_as("arrow", tmp_path / "first", [SEQUENCE], [{"sequence": Ragged.from_lists([[9]])}])
    first, code, wiki = (datasets.load_from_disk(str(tmp_path / name)) for name in ("first", "code", "wiki"))
    assert code._fingerprint != wiki._fingerprint
    assert code._fingerprint == datasets.load_from_disk(str(tmp_path / "code"))._fingerprint
    for part, wanted in ((code, [[9], [0], [1]]), (wiki, [[9], [0], [2]])):
        mixed = datasets.concatenate_datasets([first, part])
        assert list(mixed.map(lambda row: {"same": row["sequence"]})["same"]) == wanted


def test_an_arrow_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Also between two batches, where the values before look like the end of a stream."""
    rows = {"sequence": Ragged.from_lists([[7], [3, 4, -1, 0], [5]])}
    path = write_as("arrow", tmp_path, [SEQUENCE], [rows], batch_rows=1)
    whole = path.read_bytes()
    assert plain(read_as("arrow", tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3, 4, -1, 0]}
    assert whole.count(b"\xff\xff\xff\xff\0\0\0\0") == 2
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"data-00000-of-00001\.arrow"):
            read_as("arrow", tmp_path, [SEQUENCE])
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match="its end is missing"):
        read_as("arrow", tmp_path, [SEQUENCE])


# parquet


def test_duckdb_reads_a_folder(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    parts = [random_rows(1200, 1), random_rows(7, 2)]
    for shard, part in enumerate(parts):
        write_as("parquet", tmp_path, ALL, cut(part, [0, 5, len(part["rewards"])]), shard)
    glob, wanted = str(tmp_path / "*.parquet"), joined(parts)
    rows = duckdb.sql(f"from read_parquet('{glob}', file_row_number = true) order by filename, file_row_number")
    names = [column.name for column in ALL]
    found = rows.project(", ".join(names)).fetchall()
    assert found == [tuple(wanted[name][index] for name in names) for index in range(1207)]
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    assert [types[name] for name in names] == ["INTEGER[]", "BOOLEAN[]", "USMALLINT[][]", "BOOLEAN[][]", "FLOAT[]"]
    (trained,) = duckdb.sql(f"select sum(list_sum(loss_mask::int[])) from '{glob}'").fetchall()
    assert trained == (sum(map(sum, wanted["loss_mask"])),)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write_as("parquet", tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    reader = read_as("parquet", tmp_path, [SEQUENCE])
    path.unlink()
    with pytest.raises(FormatError, match=r"shard_0000\.parquet: row group 0 is damaged"):
        reader.row(0)


def test_pages_are_compressed_and_have_crcs_and_the_schema_that_of_arrow(tmp_path: Path) -> None:
    path = write_as("parquet", tmp_path, ALL, [random_rows(20)])
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


def test_after_an_exception_nothing_more_is_written(tmp_path: Path) -> None:
    """pyarrow writes the footer when its writer is freed: a cut shard would look complete."""
    with open(tmp_path / "file", "xb") as file:
        writer = Parquet().writer(lambda path: file, [SEQUENCE], 0, 1)
        writer.write({"sequence": Ragged.from_lists([[1]])})
        with pytest.raises(ValueError, match="found columns"):
            writer.write({})
        del writer
    assert (tmp_path / "file").read_bytes() == b""


def test_nulls_are_refused(tmp_path: Path) -> None:
    for rows in ([[1], None], [[1, None]]):
        pq.write_table(pa.table({"sequence": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "shard_0000.parquet")
        with pytest.raises(FormatError, match=r"row \d is damaged: it has nulls"):
            read_as("parquet", tmp_path, [SEQUENCE]).row(-1)
