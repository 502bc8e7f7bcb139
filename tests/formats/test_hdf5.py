"""`h5`, read back by a few lines of h5py, and by its own reader."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import Format, hdf5
from beam_prep.formats.flat import FlatReader
from beam_prep.formats.hdf5 import HDF5

h5py = pytest.importorskip("h5py")

SEQUENCE = Column("sequence", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="sequence")
RESPONSES = Column("responses", "uint16", 2, "ids")
REWARDS = Column("rewards", "float32", 1, "value")
ALL = [SEQUENCE, MASK, RESPONSES, REWARDS]

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]


def write_as(
    kind: Format, folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int, shards: int
) -> None:
    with ExitStack() as opened:

        def open_file(path: str) -> BinaryIO:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            return opened.enter_context(open(folder / path, "xb"))

        writer = kind.writer(open_file, columns, shard, shards)
        for rows in slices:
            writer.write(rows)
        writer.close()


def write(folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0) -> Path:
    """Writes a shard; gives its path."""
    write_as(HDF5(), folder, columns, slices, shard, 20_000)
    return folder / f"shard_{shard:04d}.h5"


def read(folder: Path, columns: Sequence[Column], shard: int = 0) -> FlatReader:
    return HDF5().read(folder, columns, shard, 20_000)


def foreign(path: Path) -> dict[str, list[Any]]:
    """Somebody else's reader: rows of every key, flat."""
    rows = {}
    with h5py.File(path) as file:
        for key in file:
            if isinstance(file[key], h5py.Dataset):
                rows[key] = [file[key][a:b].tolist() for a, b in pairwise(file["offsets"][key][:])]
    return rows


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_lists() if isinstance(value, Ragged) else value.tolist() for name, value in row.items()}


def random_rows(rows: int, seed: int = 0) -> dict[str, Ragged]:
    """Rows of `ALL`."""
    rng = np.random.default_rng(seed)
    lengths, lists = rng.integers(0, 9, rows), rng.integers(0, 4, rows)
    inner = rng.integers(0, 5, lists.sum())
    ids = rng.integers(-(2**31), 2**31, lengths.sum()).astype(np.int32)
    responses = rng.integers(0, 2**16, inner.sum()).astype(np.uint16)
    return {
        "sequence": Ragged.from_lengths(ids, lengths),
        "loss_mask": Ragged.from_lengths(rng.random(len(ids)) < 0.5, lengths),
        "responses": Ragged.from_lengths(Ragged.from_lengths(responses, inner), lists),
        "rewards": Ragged.from_lengths(rng.random(lists.sum(), np.float32), lists),
    }


def cut(rows: dict[str, Ragged], borders: Sequence[int]) -> list[dict[str, Ragged]]:
    return [{name: ragged[a:b] for name, ragged in rows.items()} for a, b in pairwise(borders)]


SEQUENCES = [[5, 6, 7], [], [-1, 2**31 - 1]]
MASKS = [[False, True, True], [], [True, False]]


def sft() -> dict[str, Ragged]:
    return {"sequence": Ragged.from_lists(SEQUENCES), "loss_mask": Ragged.from_lists(MASKS, bool)}


# h5py reads it.


def test_a_dataset_per_key_and_its_offsets(tmp_path: Path) -> None:
    for shard, name in ((0, "shard_0000.h5"), (3, "shard_0003.h5"), (12345, "shard_12345.h5")):
        path = write(tmp_path, [SEQUENCE, MASK], [sft()], shard)
        assert path.name == name
        assert foreign(path) == {"sequence": SEQUENCES, "loss_mask": MASKS}
    with h5py.File(path) as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        assert {name: (item.dtype.name, item.shape) for name, item in found.items()} == {
            "sequence": ("int32", (5,)),
            "loss_mask": ("bool", (5,)),
            "offsets/sequence": ("int64", (4,)),
            "offsets/loss_mask": ("int64", (4,)),
        }
        assert not any(item.chunks or item.compression or list(item.attrs) for item in found.values())


def test_lists_of_lists_keep_both_borders_and_read_flat(tmp_path: Path) -> None:
    rows: list[list[list[int]]] = [[[1, 2], [], [3]], [], [[]], [[65535]]]
    path = write(tmp_path, [RESPONSES], [{"responses": Ragged.from_lists(rows, np.uint16, depth=2)}])
    with h5py.File(path) as file:
        assert {name: file[f"{name}/responses"][:].tolist() for name in file if name != "responses"} == {
            "offsets": [0, 3, 3, 3, 4],
            "inner_offsets": [0, 2, 2, 3, 3, 4],
            "list_offsets": [0, 3, 3, 4, 5],
        }
        assert file["responses"].dtype == np.uint16
    assert foreign(path) == {"responses": [[1, 2, 3], [], [], [65535]]}
    reader = read(tmp_path, [RESPONSES])
    assert [plain(reader.row(index))["responses"] for index in range(4)] == rows


@pytest.mark.parametrize("slices", [[], [random_rows(0)], [random_rows(0), random_rows(0)]])
def test_a_shard_without_rows_reads_back(tmp_path: Path, slices: list[dict[str, Ragged]]) -> None:
    path = write(tmp_path, ALL, slices)
    assert foreign(path) == {column.name: [] for column in ALL}
    assert len(read(tmp_path, ALL)) == 0


def test_empty_rows_alone_read_back(tmp_path: Path) -> None:
    write(tmp_path, ALL, [{column.name: Ragged.from_lists([[]], column.dtype, column.depth) for column in ALL}])
    reader = read(tmp_path, ALL)
    assert plain(reader.row(0)) == {column.name: [] for column in ALL}
    assert reader.columns["sequence"].flat.dtype == np.int32


def test_values_larger_than_a_piece_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait on disk."""
    monkeypatch.setattr(hdf5, "PIECE", 1000)
    rows = random_rows(5000)
    path = write(tmp_path, ALL, cut(rows, [0, 1, 2500, 5000]))
    assert foreign(path)["sequence"] == rows["sequence"].to_lists()
    assert read(tmp_path, ALL).columns["responses"].to_lists() == rows["responses"].to_lists()


# The bytes.


@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 30),
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    piece=st.sampled_from([1, 64, 1 << 20]),
)
def test_slices_of_any_size_give_the_same_file_and_the_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, rows: int, seed: int, cuts: list[int], piece: int
) -> None:
    whole = random_rows(rows, seed)
    whole["v"] = whole["sequence"].with_flat((whole["sequence"].flat % 100).astype(dtype))
    columns = [*ALL, Column("v", dtype, 1, "value")]
    borders = [0, *sorted(min(border, rows) for border in cuts), rows]
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    path = write(once, columns, [whole])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "PIECE", piece)
        assert write(many, columns, cut(whole, borders)).read_bytes() == path.read_bytes()
    found = foreign(path)
    reader = read(once, columns)
    assert len(reader) == rows
    for column in columns:
        assert reader.columns[column.name].to_lists() == whole[column.name].to_lists()
        assert reader.columns[column.name].flat.dtype == np.dtype(column.dtype)
        flat = Ragged.from_lengths(whole[column.name].flat, whole[column.name].flat_lengths)
        assert found[column.name] == flat.to_lists()


SCRIPT = """
import sys
from pathlib import Path
from tests.formats.test_hdf5 import ALL, h5py, random_rows, write
h5py.get_config().track_order = True
write(Path(sys.argv[1]), ALL, [random_rows(1500)])
"""


def test_another_process_writes_the_same_bytes_later(tmp_path: Path) -> None:
    """HDF5 can keep seconds."""
    ours = write(tmp_path / "here", ALL, cut(random_rows(1500), [0, 3, 1400, 1500]))
    time.sleep(1)
    root = str(Path(__file__).resolve().parents[2])
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": root, "TMPDIR": str(tmp_path / "temporary")}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "there")], check=True, env=environment)
    assert (tmp_path / "there" / ours.name).read_bytes() == ours.read_bytes()


def test_values_may_be_views_and_are_cast_where_the_dtype_differs(tmp_path: Path) -> None:
    array = pa.array([[9], [1, 2], [], [3]], pa.list_(pa.int32()))[1:]
    over_arrow = Ragged(array.flatten().to_numpy(), array.offsets.to_numpy() - array.offsets[0].as_py())
    strided = Ragged.from_lengths(np.arange(6, dtype=np.int64)[::2], [2, 0, 1])
    big_endian = Ragged.from_lengths(np.array([1, 2, 3], ">u4"), [2, 0, 1])
    columns = [SEQUENCE, Column("strided", "int16", 1, "value"), Column("swapped", "uint32", 1, "value")]
    path = write(tmp_path, columns, [{"sequence": over_arrow, "strided": strided, "swapped": big_endian}])
    assert foreign(path) == {
        "sequence": [[1, 2], [], [3]],
        "strided": [[0, 2], [], [4]],
        "swapped": [[1, 2], [], [3]],
    }


def test_memory_and_writes_stay_bounded_and_temporary_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hdf5, "PIECE", 1000)
    sizes: list[int] = []

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))

        def close(self) -> None:
            sizes.append(0)

    writer = HDF5().writer(lambda path: File(), [SEQUENCE], 0, 1)  # type: ignore[arg-type, return-value]
    for _ in range(5):
        writer.write({"sequence": Ragged.from_lengths(np.full(10_300, 9, np.int32), [*[100] * 100, 5, 200, 95])})
    assert sizes == []
    writer.close()
    assert max(sizes) == 1000
    assert sum(sizes) > 5 * 4 * 10_300
    assert sizes[-1] == 0
    assert list(tmp_path.iterdir()) == []


# Its reader.


def test_rows_come_back_as_views_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read(tmp_path, [SEQUENCE, MASK])
    assert len(reader) == 3
    assert [plain(reader.row(index)) for index in range(3)] == [
        {"sequence": sequence, "loss_mask": mask} for sequence, mask in zip(SEQUENCES, MASKS, strict=True)
    ]
    assert plain(reader.row(-1)) == plain(reader.row(2))
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            reader.row(index)
    row = reader.row(0)["sequence"]
    assert isinstance(row, np.ndarray)
    assert not row.flags.owndata
    assert not row.flags.writeable


def test_every_dataset_is_aligned(tmp_path: Path) -> None:
    """Not at odd bytes behind the masks."""
    for count in range(1, 9):
        columns = [Column(f"mask_{size}", "bool", 1, "mask") for size in range(count)]
        columns += [Column("wide", "float64", 1, "value")]
        rows = {column.name: Ragged.from_lists([[1] * 3001], column.dtype) for column in columns}
        path = write(tmp_path / str(count), columns, [rows])
        with h5py.File(path) as file:
            names = [*rows, *(f"offsets/{name}" for name in rows)]
            assert [file[name].id.get_offset() % 8 for name in names] == [0] * len(names)
        assert read(path.parent, columns).columns["wide"].flat.flags.aligned


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_a_reader_keeps_no_file_descriptor(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(10)])
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(tmp_path, ALL) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(readers[4].row(9)) == len(ALL)


def test_some_of_the_columns_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(3)])
    assert list(read(tmp_path, [REWARDS, SEQUENCE]).row(0)) == ["rewards", "sequence"]


def test_a_reader_pickles_as_its_path(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    dumped = pickle.dumps(read(tmp_path, [SEQUENCE]))
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


def test_a_reader_crosses_a_fork(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read(tmp_path, [SEQUENCE, MASK])
    reader.row(0)
    ours, theirs = multiprocessing.Pipe()

    def child() -> None:
        theirs.send([plain(reader.row(index)) for index in range(3)])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert ours.poll(20)
    assert ours.recv() == [plain(reader.row(index)) for index in range(3)]
    process.join()


# What it refuses.


def test_h5py_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install 'beam-prep\[hdf5\]'"):
        write(tmp_path, [SEQUENCE], [])
    with pytest.raises(ImportError, match=r"pip install 'beam-prep\[hdf5\]'"):
        read(tmp_path, [SEQUENCE])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["offsets", "list_offsets", "inner_offsets"])
def test_a_column_with_the_name_of_a_group_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"groups of its own named {name}: rename"):
        write(tmp_path, [SEQUENCE, Column(name, "int32", 1, "value")], [])
    assert list(tmp_path.iterdir()) == []


def test_columns_that_are_not_as_declared_are_refused(tmp_path: Path) -> None:
    one, two = Ragged.from_lists([[1]]), Ragged.from_lists([[1], [2]])
    cases: list[tuple[str, dict[str, Ragged]]] = [
        ("found columns", {"sequence": one}),
        ("different row counts", {"sequence": one, "loss_mask": two}),
        ("depth", {"sequence": one, "loss_mask": Ragged.from_lengths(one, [1])}),
    ]
    for index, (message, rows) in enumerate(cases):
        with pytest.raises(ValueError, match=message):
            write(tmp_path / str(index), [SEQUENCE, MASK], [rows])


def test_a_value_that_does_not_fit_its_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'v': 70000 does not fit int16"):
        write(tmp_path, [Column("v", "int16", 1, "value")], [{"v": Ragged.from_lists([[70000]])}])


def test_close_closes_the_file(tmp_path: Path) -> None:
    file = open(tmp_path / "file", "xb")  # noqa: SIM115
    HDF5().writer(lambda path: file, [SEQUENCE], 0, 1).close()
    assert file.closed


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 40), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"shard_0000\.h5"):
            read(tmp_path, [SEQUENCE, MASK])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shard_0000\.h5: no such file"):
        read(tmp_path, [SEQUENCE])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("sequences", "int32", 1, "ids"), "sequences: found dtype None, shape None, wanted a list of int32"),
        (Column("sequence", "int64", 1, "ids"), r"sequence: found dtype int32, shape \(5,\), wanted a list of int64"),
        (Column("sequence", "int32", 2, "ids"), "inner_offsets/sequence: found dtype None"),
        (Column("offsets", "int64", 1, "value"), "offsets: found dtype None"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, column: Column, message: str) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path, [column])
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "borders", "message"),
    [
        ("offsets/sequence", [0, 3, 3, 4], "column 'sequence': offsets do not rise from 0 to 5"),
        ("offsets/sequence", [1, 3, 3, 5], "column 'sequence': offsets do not rise from 0 to 5"),
        ("offsets/sequence", [0, 4, 3, 5], "column 'sequence': offsets do not rise from 0 to 5"),
        ("offsets/responses", [0, 2, 3, 3], "list_offsets and inner_offsets give other rows than offsets"),
    ],
)
def test_damaged_borders_are_refused(tmp_path: Path, name: str, borders: list[int], message: str) -> None:
    responses = Ragged.from_lists([[[1]], [[2]], [[3]]], np.uint16, depth=2)
    path = write(tmp_path, [SEQUENCE, RESPONSES], [{"sequence": sft()["sequence"], "responses": responses}])
    with h5py.File(path, "r+") as file:
        file[name][:] = borders
    with pytest.raises(FormatError, match=message):
        read(tmp_path, [SEQUENCE, RESPONSES])


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard_0000.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("sequence", data=np.arange(5, dtype=np.int32), chunks=(2,))
        file["offsets/sequence"] = np.array([0, 5])
        file["loss_mask"] = np.zeros(5, bool)
        file["offsets/loss_mask"] = np.array([0, 2, 5])
        file["rewards"] = np.float32(0)
    with pytest.raises(FormatError, match="sequence: its values do not lie in one piece"):
        read(tmp_path, [SEQUENCE])
    with pytest.raises(FormatError, match=r"rewards: found dtype float32, shape \(\)"):
        read(tmp_path, [REWARDS])
    path.write_bytes(b"hello")
    with pytest.raises(FormatError, match=r"shard_0000\.h5: not a complete HDF5 file"):
        read(tmp_path, [SEQUENCE])


def test_different_row_counts_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    with h5py.File(path, "r+") as file:
        del file["offsets/loss_mask"]
        file.create_dataset("offsets/loss_mask", data=np.array([0, 5]))
    with pytest.raises(FormatError, match=r"columns of different row counts: \{'sequence': 3, 'loss_mask': 1\}"):
        read(tmp_path, [SEQUENCE, MASK])


def test_a_million_rows_take_little_time(tmp_path: Path) -> None:
    start = time.perf_counter()
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lengths(np.zeros(3_000_000, np.int32), np.full(10**6, 3))}])
    reader = read(tmp_path, [SEQUENCE])
    assert len(reader) == 1_000_000
    assert plain(reader.row(999_999)) == {"sequence": [0, 0, 0]}
    assert time.perf_counter() - start < 10
