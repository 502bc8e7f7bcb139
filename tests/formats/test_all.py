"""What every format keeps: rows come back, files are complete or refused. What its bytes are has a file of its own."""

import multiprocessing
import os
import pickle
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.config import FORMAT_NAMES
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError, FormatError
from beam_prep.formats import FORMATS
from beam_prep.formats.cached_block import ROWS, encode_block, read_rows
from beam_prep.formats.megatron import CODES
from beam_prep.shards.layout import store_as
from beam_prep.tokens.rows import to_labels
from tests.conftest import Folders, Patch
from tests.formats.shards import (
    ALL,
    DTYPES,
    MASK,
    REWARDS,
    SEQUENCE,
    files,
    limited,
    plain,
    random_rows,
    read_as,
    rows_from,
    rows_in,
    rows_of,
    sft,
    write_as,
)
from tests.tokens.batches import made_of, masked_rows

LIBRARIES = {"h5": "h5py", "array_record": "array_record"}
# An Example has no float64: test_tfrecord.py.
STORED = {"megatron": [*CODES], **dict.fromkeys(("tfrecord", "array_record"), DTYPES[:-1])}
PIECES = ("array_record", "h5", "npy", "tfrecord")
"""Formats that write in pieces. The borders of batches are in the files of arrow and parquet: test_tables.py."""


@pytest.fixture(params=FORMATS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if found in LIBRARIES:
        pytest.importorskip(LIBRARIES[found])
    return found


def test_a_config_knows_every_format() -> None:
    assert list(FORMATS) == list(FORMAT_NAMES)


# Rows come back.


@given(st.data(), st.sampled_from([1, 200, 1 << 20]))
def test_slices_and_pieces_of_any_size_give_the_same_files_and_the_rows_come_back(
    name: str, tmp_path_factory: Folders, data: st.DataObject, piece: int
) -> None:
    columns, rows, slices = data.draw(rows_of(STORED.get(name, DTYPES)))
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    write_as(name, once, columns, [rows])
    limits = {"piece": piece} if name in PIECES else {}
    write_as(name, many, columns, slices, **limits)
    assert files(once) == files(many)
    reader = read_as(name, many, columns)
    sizes = reader.sizes()
    assert len(reader) == len(sizes) == len(rows["sequence"])
    for index in reversed(range(len(reader))):
        found = reader.row(index)
        assert list(found) == list(rows)
        for column, ragged in rows.items():
            wanted, given = ragged[index], found[column]
            if isinstance(wanted, Ragged):
                assert isinstance(given, Ragged)
                assert given.offsets.tolist() == wanted.offsets.tolist()
                wanted, given = wanted.flat, given.flat
            assert isinstance(given, np.ndarray)
            assert given.dtype == wanted.dtype
            np.testing.assert_array_equal(given, wanted)


def test_values_may_be_views_and_are_cast_where_the_dtype_differs(name: str, tmp_path: Path) -> None:
    array = pa.array([[9], [1, 2], [], [3]], pa.list_(pa.int32()))[1:]
    rows = {
        "sequence": Ragged(array.flatten().to_numpy(), array.offsets.to_numpy() - array.offsets[0].as_py()),
        "strided": Ragged.from_lengths(np.arange(600, dtype=np.int64)[::200], [2, 0, 1]),
        "swapped": Ragged.from_lengths(np.array([1, 2, 3], ">u4"), [2, 0, 1]),
        "floats": Ragged.from_lengths(np.array([1.5, 2, 3], ">f8"), [2, 0, 1]),
        "inner": Ragged.from_lists([[[9]], [[1], []], [], [[200, 3]]], depth=2)[1:],
    }
    dtypes = {"strided": "int16", "swapped": "int64", "floats": "float32"}
    columns = [Column(key, dtypes.get(key, "int32"), 1 + (key == "inner"), "value") for key in rows]
    write_as(name, tmp_path, columns, [rows])
    assert rows_in(read_as(name, tmp_path, columns)) == [
        {"sequence": [1, 2], "strided": [0, 200], "swapped": [1, 2], "floats": [1.5, 2.0], "inner": [[1], []]},
        {"sequence": [], "strided": [], "swapped": [], "floats": [], "inner": []},
        {"sequence": [3], "strided": [400], "swapped": [3], "floats": [3.0], "inner": [[200, 3]]},
    ]


def test_values_are_not_kept_after_the_call(name: str, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int32)
    rows = {"sequence": Ragged.from_lengths(values, [2, 4])}

    def slices() -> Any:
        yield rows
        values[:] = 0

    write_as(name, tmp_path, [SEQUENCE], slices())
    assert rows_in(read_as(name, tmp_path, [SEQUENCE])) == [{"sequence": [0, 1]}, {"sequence": [2, 3, 4, 5]}]


def test_rows_are_read_from_the_end_too_and_some_of_the_columns_in_any_order(name: str, tmp_path: Path) -> None:
    write_as(name, tmp_path, ALL, [random_rows(3)])
    columns = ALL if name == "mds" else [REWARDS, SEQUENCE]  # a sample of MDS is read whole
    reader = read_as(name, tmp_path, columns)
    assert list(reader.row(0)) == [column.name for column in columns]
    wanted = [{column.name: row[column.name] for column in columns} for row in rows_from(random_rows(3))]
    assert [plain(reader.row(index)) for index in (-1, -3, 1)] == [wanted[2], wanted[0], wanted[1]]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            reader.row(index)


@pytest.mark.parametrize("name", ["arrow", "bin", "h5", "megatron", "npy"])
def test_rows_are_views_of_the_file(name: str, tmp_path: Path) -> None:
    pytest.importorskip(LIBRARIES.get(name, "numpy"))
    write_as(name, tmp_path, [SEQUENCE, MASK], [sft()])
    row = read_as(name, tmp_path, [SEQUENCE, MASK]).row(0)["sequence"]
    assert not row.flags.owndata
    assert not row.flags.writeable


# Files, and what holds them.


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_a_reader_pickles_as_its_path_and_keeps_no_file_descriptor(name: str, tmp_path: Path) -> None:
    """But a reader of ArrayRecord does: test_tfrecord.py."""
    write_as(name, tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    before = len(os.listdir("/proc/self/fd"))
    readers = [read_as(name, tmp_path, [SEQUENCE]) for _ in range(5)]
    assert len(readers[4].row(0)["sequence"]) == 100_000
    assert name == "array_record" or len(os.listdir("/proc/self/fd")) == before
    dumped = pickle.dumps(readers[0])
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


def test_a_reader_crosses_a_fork(name: str, tmp_path: Path) -> None:
    write_as(name, tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read_as(name, tmp_path, [SEQUENCE, MASK])
    reader.row(0)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(rows_in(reader)))
    process.start()
    assert ours.poll(20)
    assert ours.recv() == rows_from(sft())
    process.join()


@pytest.mark.parametrize(
    ("name", "limit", "largest"),
    [("arrow", "batch_bytes", 1500), ("tfrecord", "piece", 1300), *((each, "piece", 1000) for each in LIBRARIES)],
)
def test_writes_are_bounded_and_temporary_files_go(
    name: str, limit: str, largest: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    pytest.importorskip(LIBRARIES.get(name, "numpy"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sizes: list[int] = []

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))

        def close(self) -> None:
            sizes.append(0)

    format = limited(name, **{limit: 1000})
    writer = format.writer(lambda path: File(), [SEQUENCE], 1, 2)  # type: ignore[arg-type, return-value]
    values = np.random.default_rng(0).integers(0, 2**31, 10_300).astype(np.int32)
    for _ in range(5):
        writer.write({"sequence": Ragged.from_lengths(values, [*[100] * 100, 5, 200, 95])})
    writer.close()
    assert max(sizes) <= largest
    assert sum(sizes) > 4 * 10_300
    assert sizes[-1] == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="found columns"):
        FORMATS[name].writer(lambda path: File(), ALL, 0, 1).write({})  # type: ignore[arg-type, return-value]
    assert list(tmp_path.iterdir()) == []


# What is refused.


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"sequence": [[1]]}, "found columns"),
        ({"sequence": [[1]], "loss_mask": [[1]], "more": [[1]]}, "found columns"),
        ({"sequence": [[1]], "loss_mask": [[1], [0]]}, "different row counts"),
        ({"sequence": [[1]], "loss_mask": [[[1]]]}, "depth"),
    ],
)
def test_columns_not_as_declared_are_refused(name: str, tmp_path: Path, rows: dict[str, Any], message: str) -> None:
    slices = {key: Ragged.from_lists(lists, depth=2 if lists == [[[1]]] else 1) for key, lists in rows.items()}
    with pytest.raises(ValueError, match=message):
        write_as(name, tmp_path, [SEQUENCE, MASK], [slices])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int16", np.array([0, 70000], np.int32)),
        ("uint8", np.array([0, -1], np.int32)),
        ("bool", np.array([0, 2], np.uint8)),
        ("int32", np.array([0, 1.5])),
        ("int32", np.array([0, np.nan])),
        ("int64", np.array([0, 2**63], np.uint64)),
    ],
)
def test_a_value_that_does_not_fit_its_dtype_is_refused(name: str, tmp_path: Path, dtype: str, values: Any) -> None:
    with pytest.raises(ValueError, match=f"column 'v': {values[1]} does not fit {dtype}"):
        write_as(name, tmp_path, [Column("v", dtype, 1, "value")], [{"v": Ragged.from_lengths(values, [2])}])


@pytest.mark.parametrize(("name", "extra"), [("h5", "hdf5"), ("array_record", "array_record")])
def test_a_library_that_is_missing_is_asked_for(name: str, extra: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    asks = re.escape(f"pip install 'beam-prep[{extra}]'")
    with pytest.raises(ConfigError, match=f"storage_format: .* {asks}"):  # before anything runs
        bp.Shard(str(tmp_path / "out"), formats=["bin", name])
    for use in (lambda: write_as(name, tmp_path, [SEQUENCE], []), lambda: read_as(name, tmp_path, [SEQUENCE])):
        with pytest.raises(ImportError, match=asks):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r": no such file"):
        read_as(name, tmp_path, [SEQUENCE])


@pytest.mark.parametrize("changes", [{"name": "sequences"}, {"dtype": "int64"}, {"depth": 2}])
def test_other_columns_are_refused(name: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    column = replace(SEQUENCE, **changes)
    if name in ("tfrecord", "array_record") and column.dtype == "int64":
        pytest.skip("an Example has int64 alone")
    if name == "megatron" and column.depth == 2:
        pytest.skip("a document of one sequence is a list of one list")
    write_as(name, tmp_path, [SEQUENCE], [{"sequence": sft()["sequence"]}])
    with pytest.raises(FormatError, match=str(tmp_path)):
        read_as(name, tmp_path, [column]).row(0)


def test_a_file_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    """But a TFRecord file that ends behind a record: test_tfrecord.py."""
    write_as(name, tmp_path, [SEQUENCE, MASK], [sft()])
    for path, whole in files(tmp_path).items():
        if path in ("state.json", "dataset_info.json"):
            continue  # for datasets alone
        for size in {*range(0, len(whole), max(1, len(whole) // 200)), len(whole) - 1}:
            (tmp_path / path).write_bytes(whole[:size])
            if name != "tfrecord":
                with pytest.raises(FormatError, match=str(tmp_path)):
                    rows_in(read_as(name, tmp_path, [SEQUENCE, MASK]))
        (tmp_path / path).write_bytes(whole)


def test_a_flipped_bit_is_refused_or_changes_values_only(name: str, tmp_path: Path) -> None:
    """What has a crc gives no other row; most of a small ArrayRecord file is padding."""
    rows = random_rows(40 if name == "parquet" else 5)
    write_as(name, tmp_path, ALL, [rows])
    tried, refused = 0, []
    for path, whole in files(tmp_path).items():
        used = np.flatnonzero(np.frombuffer(whole, np.uint8)) if name == "array_record" else np.arange(len(whole))
        for at in used[:: 1 + len(used) // 300].tolist():
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            (tmp_path / path).unlink()
            (tmp_path / path).write_bytes(damaged)
            tried += 1
            try:
                reader = read_as(name, tmp_path, ALL)
                found = list(map(reader.row, range(len(reader))))
            except FormatError as error:
                refused.append(str(error))
                continue
            if name in ("array_record", "parquet", "tfrecord"):
                assert list(map(plain, found)) == rows_from(rows), at
            for row in found:
                flat = [value.flat if isinstance(value, Ragged) else value for value in row.values()]
                assert [values.dtype.name for values in flat] == [column.dtype for column in ALL]
        (tmp_path / path).write_bytes(whole)
    assert all(str(tmp_path) in message for message in refused)
    assert len(refused) > tried * (0.5 if name in ("array_record", "parquet", "tfrecord") else 0.1)


# Rows that come back from the token cache: all of a block, or a slice. Damage: tests/test_resume.py.


@given(masked_rows(), st.booleans(), st.data())
def test_a_slice_of_a_blocks_rows_is_whole_only_from_its_first_to_its_last(
    rows: tuple[list[list[int]], list[list[int]]], shift: bool, data: st.DataObject
) -> None:
    ids, mask = rows
    batch = to_labels(made_of(ids, mask), shift)
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    if len(batch):
        files = encode_block(store_as(batch, {}), batch.tokens, 100, "a block")[1]
        found, are_all = read_rows(pa.BufferReader(b"".join(files[ROWS])), "a block", 0, slice(start, stop))
        assert {name: part.to_lists() for name, part in found.items()} == {
            name: column.to_lists()[start:stop] for name, column in batch.columns.items()
        }
        assert are_all == (stop - start == len(batch))
