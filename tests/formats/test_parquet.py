"""`parquet`, read back by pandas, DuckDB, datasets and pyarrow, and by its own reader."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import parquet
from beam_prep.formats.parquet import Parquet, ParquetReader
from tests.formats.test_arrow import ALL, DTYPES, MASK, SEQUENCE, cut, joined, plain, random_rows, sft
from tests.formats.test_hdf5 import write_as


def write(folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0) -> Path:
    """Writes a shard; gives its path."""
    write_as(Parquet(), folder, columns, slices, shard, 20_000)
    return folder / f"shard_{shard:04d}.parquet"


def read(folder: Path, columns: Sequence[Column], shard: int = 0) -> ParquetReader:
    return Parquet().read(folder, columns, shard, 20_000)


def two_shards(folder: Path) -> tuple[str, dict[str, list[Any]]]:
    """A glob of the files, and the rows."""
    parts = [random_rows(1200, 1), random_rows(7, 2)]
    for shard, rows in enumerate(parts):
        write(folder, ALL, cut(rows, [0, 5, len(rows["rewards"])]), shard)
    return str(folder / "*.parquet"), joined(parts)


# Others read it.


def test_pandas_reads_a_folder(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    _, wanted = two_shards(tmp_path)
    frame = pandas.read_parquet(tmp_path)
    assert list(frame.columns) == [column.name for column in ALL]
    for name, values in wanted.items():
        found = [[item.tolist() if isinstance(item, np.ndarray) else item for item in row] for row in frame[name]]
        assert found == values, name
    assert (frame["sequence"][0].dtype, frame["loss_mask"][0].dtype) == (np.int32, bool)


def test_duckdb_reads_a_folder(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    glob, wanted = two_shards(tmp_path)
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


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_the_files(tmp_path: Path, streaming: bool) -> None:
    datasets = pytest.importorskip("datasets")
    glob, wanted = two_shards(tmp_path / "out")
    rows = datasets.load_dataset(
        "parquet", data_files=glob, split="train", cache_dir=str(tmp_path / "cache"), streaming=streaming
    )
    assert list(rows) == [{name: values[index] for name, values in wanted.items()} for index in range(1207)]
    for column in ALL:
        feature = rows.features[column.name]
        for _ in range(column.depth):
            assert type(feature) in (datasets.List, datasets.Sequence)
            feature = feature.feature
        assert feature == datasets.Value(column.dtype)


def test_grain_reads_a_file(tmp_path: Path) -> None:
    """As MaxText does with `grain_file_type: parquet`."""
    grain = pytest.importorskip("grain")
    rows = random_rows(300, 3)
    path = write(tmp_path, ALL, [rows])
    found = list(grain.experimental.ParquetIterDataset(str(path)))
    assert [row["sequence"].tolist() for row in found] == rows["sequence"].to_lists()


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


@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    most=st.sampled_from([(3, 1 << 22), (1000, 60), (5, 90), (1000, 1), (1000, 1 << 22)]),
)
def test_slices_of_any_size_give_the_same_file_and_the_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int, cuts: list[int], most: tuple[int, int]
) -> None:
    whole = random_rows(rows, seed)
    borders = [0, *sorted(min(border, rows) for border in cuts), rows]
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "GROUP_ROWS", most[0])
        patch.setattr(parquet, "GROUP_BYTES", most[1])
        path = write(once, ALL, [whole])
        assert write(many, ALL, cut(whole, borders)).read_bytes() == path.read_bytes()
    metadata = pq.read_metadata(path)
    groups = np.cumsum([0, *(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))])
    row_bytes = np.sum([ragged.flat_lengths * ragged.flat.itemsize for ragged in whole.values()], axis=0)
    for a, b in pairwise(groups.tolist()):
        assert b - a <= most[0]
        assert b - a == 1 or row_bytes[a:b].sum() <= most[1]
        # No more would have fitted.
        assert b == rows or b - a == most[0] or row_bytes[a : b + 1].sum() > most[1]
    reader = read(many, ALL)
    wanted = joined([whole])
    assert pq.read_table(path).to_pydict() == wanted
    assert len(reader) == rows
    assert reader.sizes().tolist() == sum((ragged.flat_lengths for ragged in whole.values()), np.zeros(rows)).tolist()
    for index in reversed(range(rows)):
        assert plain(reader.row(index)) == {name: wanted[name][index] for name in wanted}


@given(seed=st.integers(0, 100), dtype=st.sampled_from(DTYPES), depth=st.sampled_from([1, 2]))
def test_every_dtype_comes_back(tmp_path_factory: pytest.TempPathFactory, seed: int, dtype: str, depth: int) -> None:
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 256, 64).astype(np.uint8).view(bool if dtype == "bool" else dtype)
    flat = (flat.view(np.uint8) % 2).astype(bool) if dtype == "bool" else flat
    values = Ragged.from_lengths(flat[:8], [3, 0, 1, 4])
    rows = {"v": values if depth == 1 else Ragged.from_lengths(values, [0, 3, 1])}
    folder, columns = tmp_path_factory.mktemp("dtype"), [Column("v", dtype, depth, "value")]
    write(folder, columns, [rows])
    found = [read(folder, columns).row(index)["v"] for index in range(len(rows["v"]))]
    joined_flat = np.concatenate([row.flat if isinstance(row, Ragged) else row for row in found])
    assert joined_flat.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(joined_flat, rows["v"].flat)
    assert [len(row) for row in found] == rows["v"].lengths.tolist()


SCRIPT = """
import sys
from pathlib import Path
from tests.formats.test_parquet import ALL, random_rows, write
write(Path(sys.argv[1]), ALL, [random_rows(1500)])
"""


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    ours = write(tmp_path / "here", ALL, cut(random_rows(1500), [0, 3, 1400, 1500]))
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "there")], check=True, env=environment)
    assert (tmp_path / "there" / ours.name).read_bytes() == ours.read_bytes()


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 4000)
    sizes: list[int] = []

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))

        def close(self) -> None:
            sizes.append(0)

    writer = Parquet().writer(lambda path: File(), [SEQUENCE], 0, 1)  # type: ignore[arg-type, return-value]
    values = np.random.default_rng(0).integers(0, 2**31, 10_300).astype(np.int32)
    for number in range(5):
        writer.write({"sequence": Ragged.from_lengths(values, [*[100] * 100, 5, 200, 95])})
        # What is not written yet is one row group at most.
        assert sum(sizes) > (number + 1) * values.nbytes - 4000 - 200
    writer.close()
    assert sizes[-1] == 0


def test_after_an_exception_nothing_more_is_written(tmp_path: Path) -> None:
    """pyarrow writes the footer when its writer is freed: a cut shard would look complete."""
    with open(tmp_path / "file", "xb") as file:
        writer = Parquet().writer(lambda path: file, [SEQUENCE], 0, 1)
        writer.write({"sequence": Ragged.from_lists([[1]])})
        with pytest.raises(ValueError, match="found columns"):
            writer.write({})
        del writer
    assert (tmp_path / "file").read_bytes() == b"PAR1"


def test_close_closes_the_file(tmp_path: Path) -> None:
    file = open(tmp_path / "file", "xb")  # noqa: SIM115
    Parquet().writer(lambda path: file, [SEQUENCE], 0, 1).close()
    assert file.closed


@pytest.mark.parametrize("slices", [[], [random_rows(0)], [random_rows(0), random_rows(0)]])
def test_a_shard_without_rows_reads_back(tmp_path: Path, slices: list[dict[str, Ragged]]) -> None:
    path = write(tmp_path, ALL, slices)
    assert pq.read_table(path).num_rows == len(read(tmp_path, ALL)) == len(read(tmp_path, ALL).sizes()) == 0


# Its reader.


def test_rows_come_back_from_the_front_and_from_the_end(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read(tmp_path, [SEQUENCE, MASK])
    assert len(reader) == 3
    assert plain(reader.row(-1)) == plain(reader.row(2)) == {"sequence": [-1, 2**31 - 1], "loss_mask": [True, False]}
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            reader.row(index)


def test_some_of_the_columns_can_be_read_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(3)])
    assert list(read(tmp_path, [ALL[4], ALL[0]]).row(0)) == ["rewards", "sequence"]


def test_a_reader_pickles_as_its_path(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    reader = read(tmp_path, [SEQUENCE])
    reader.row(0)
    dumped = pickle.dumps(reader)
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_a_reader_keeps_no_file_descriptor(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(10)])
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(tmp_path, ALL) for _ in range(5)]
    assert len(readers[4].row(9)) == len(ALL)
    assert len(os.listdir("/proc/self/fd")) == before


# What it refuses.


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"shard_0000\.parquet"):
            read(tmp_path, [SEQUENCE, MASK])


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """It is found by the crc of a page, or is in what describes the pages."""
    rows = random_rows(40)
    path = write(tmp_path, ALL, [rows])
    whole = path.read_bytes()
    wanted = joined([rows])
    refused, at_all = [], range(0, len(whole), 5)
    for at in at_all:
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            reader = read(tmp_path, ALL)
            found = [plain(reader.row(index)) for index in range(len(reader))]
        except FormatError as error:
            refused.append(str(error))
            continue
        assert found == [{name: wanted[name][index] for name in wanted} for index in range(40)], at
    assert len(refused) > 0.6 * len(at_all)
    assert all(str(path) in message for message in refused)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shard_0000\.parquet: no such file"):
        read(tmp_path, [SEQUENCE])
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    reader = read(tmp_path, [SEQUENCE])
    path.unlink()
    with pytest.raises(FormatError, match=r"shard_0000\.parquet: row group 0 is damaged"):
        reader.row(0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("sequences", "int32", 1, "ids"), r"'sequences': found none, not list<"),
        (Column("sequence", "int64", 1, "ids"), r"'sequence': found list<\w+: int32>, not list<\w+: int64>"),
        (Column("sequence", "int32", 2, "ids"), r"not list<\w+: list<\w+: int32>>"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, column: Column, message: str) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path, [column])
    assert str(path) in str(raised.value)


def test_nulls_are_refused(tmp_path: Path) -> None:
    for rows in ([[1], None], [[1, None]]):
        pq.write_table(pa.table({"sequence": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "shard_0000.parquet")
        with pytest.raises(FormatError, match=r"row group 0 is damaged: .* or nulls"):
            read(tmp_path, [SEQUENCE]).row(0)


def test_a_value_that_does_not_fit_its_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'v': 70000 does not fit int16"):
        write(tmp_path, [Column("v", "int16", 1, "value")], [{"v": Ragged.from_lists([[70000]])}])
