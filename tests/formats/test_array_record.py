"""`array_record`, read back by grain and protobuf, and by its own reader."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError, FormatError
from beam_prep.formats import array_record
from beam_prep.formats.array_record import ArrayRecord, ArrayRecordReader
from tests.formats.test_arrow import ALL, MASK, RESPONSES, SEQUENCE, cut, joined, plain, random_rows, sft
from tests.formats.test_hdf5 import write_as

pytest.importorskip("array_record")


def write(folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0) -> Path:
    """Writes a shard; gives its path."""
    write_as(ArrayRecord(), folder, columns, slices, shard, 20_000)
    return folder / f"shard_{shard:04d}.array_record"


def read(folder: Path, columns: Sequence[Column], shard: int = 0) -> ArrayRecordReader:
    return ArrayRecord().read(folder, columns, shard, 20_000)


# Others read it.


def test_grain_reads_the_records_of_all_shards_in_any_order(tmp_path: Path) -> None:
    """And they are what MaxText's grain pipeline parses: int64 lists of `tf.train.Example`."""
    grain = pytest.importorskip("grain")
    train = pytest.importorskip("tensorflow").train
    parts = [random_rows(300, 1), random_rows(7, 2)]
    paths = [str(write(tmp_path, ALL, [rows], shard)) for shard, rows in enumerate(parts)]
    source = grain.sources.ArrayRecordDataSource(paths)
    wanted = joined(parts)
    assert len(source) == 307
    for index in (306, 0, 299, 300, 17):
        features = train.Example.FromString(source[index]).features.feature
        assert list(features["sequence"].int64_list.value) == wanted["sequence"][index]
        assert list(features["loss_mask"].int64_list.value) == wanted["loss_mask"][index]
        assert list(features["responses/lengths"].int64_list.value) == [len(row) for row in wanted["responses"][index]]
        assert list(features["rewards"].float_list.value) == wanted["rewards"][index]
    shuffled = list(grain.MapDataset.source(source).shuffle(seed=3))
    assert sorted(shuffled) == sorted(source[index] for index in range(307))


# The bytes.


@settings(max_examples=40)
@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_slices_of_any_size_give_the_same_file_and_the_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int, cuts: list[int]
) -> None:
    whole = random_rows(rows, seed)
    borders = [0, *sorted(min(border, rows) for border in cuts), rows]
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    path = write(once, ALL, [whole])
    assert write(many, ALL, cut(whole, borders)).read_bytes() == path.read_bytes()
    reader = read(many, ALL)
    wanted = joined([whole])
    assert len(reader) == len(reader.sizes()) == rows
    for index in reversed(range(rows)):
        assert plain(reader.row(index)) == {name: wanted[name][index] for name in wanted}


SCRIPT = """
import sys
from pathlib import Path
from tests.formats.test_array_record import ALL, random_rows, write
write(Path(sys.argv[1]), ALL, [random_rows(1500)])
"""


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    ours = write(tmp_path / "here", ALL, cut(random_rows(1500), [0, 3, 1400, 1500]))
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "there")], check=True, env=environment)
    assert (tmp_path / "there" / ours.name).read_bytes() == ours.read_bytes()


def test_writes_are_bounded_and_the_temporary_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(array_record, "PIECE", 1000)
    sizes: list[int] = []

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))

        def close(self) -> None:
            sizes.append(0)

    writer = ArrayRecord().writer(lambda path: File(), ALL, 0, 1)  # type: ignore[arg-type, return-value]
    writer.write(random_rows(500))
    assert sizes == []
    writer.close()
    assert max(sizes) == 1000
    assert sum(sizes) % 65536 == sizes[-1] == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="found columns"):
        ArrayRecord().writer(lambda path: File(), ALL, 0, 1).write({})  # type: ignore[arg-type, return-value]
    assert list(tmp_path.iterdir()) == []


def test_close_closes_the_file(tmp_path: Path) -> None:
    file = open(tmp_path / "file", "xb")  # noqa: SIM115
    ArrayRecord().writer(lambda path: file, [SEQUENCE], 0, 1).close()
    assert file.closed


@pytest.mark.parametrize("slices", [[], [random_rows(0)], [random_rows(0), random_rows(0)]])
def test_a_shard_without_rows_reads_back(tmp_path: Path, slices: list[dict[str, Ragged]]) -> None:
    write(tmp_path, ALL, slices)
    assert len(read(tmp_path, ALL)) == len(read(tmp_path, ALL).sizes()) == 0


# Its reader.


def test_rows_come_back_from_the_front_and_from_the_end(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read(tmp_path, [MASK, SEQUENCE])
    assert plain(reader.row(-1)) == plain(reader.row(2)) == {"loss_mask": [True, False], "sequence": [-1, 2**31 - 1]}
    assert list(reader.row(0)) == ["loss_mask", "sequence"]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            reader.row(index)


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


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in range(70):
        write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[shard]])}], shard)
    array_record._opened.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(tmp_path, [SEQUENCE], shard) for shard in range(70)]
    assert [plain(reader.row(0))["sequence"] for reader in readers] == [[shard] for shard in range(70)]
    assert len(os.listdir("/proc/self/fd")) <= before + 64


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    assert plain(read(tmp_path, [SEQUENCE]).row(0)) == {"sequence": [1]}
    path.unlink()
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[2], [3]])}])
    assert plain(read(tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3]}


# What it refuses.


def test_array_record_is_asked_for_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(ConfigError, match=r"storage_format: .* pip install 'beam-prep\[array_record\]'"):
        bp.Shard(str(tmp_path / "out"), formats=["bin", "array_record"])
    with pytest.raises(ImportError, match=r"pip install 'beam-prep\[array_record\]'"):
        write(tmp_path, [SEQUENCE], [])
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """The library says that it has no records."""
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 499), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"shard_0000\.array_record: not a complete ArrayRecord file"):
            read(tmp_path, [SEQUENCE, MASK])


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Most of a small file is padding."""
    path = write(tmp_path, [SEQUENCE, RESPONSES], [{name: random_rows(5)[name] for name in ("sequence", "responses")}])
    whole = path.read_bytes()
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    reader = read(tmp_path, [SEQUENCE, RESPONSES])
    wanted: list[dict[str, Any]] = [plain(reader.row(index)) for index in range(5)]
    refused = 0
    for at in used[::5].tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.unlink()
        path.write_bytes(damaged)
        try:
            reader = read(tmp_path, [SEQUENCE, RESPONSES])
            found = [plain(reader.row(index)) for index in range(len(reader))]
        except FormatError:
            refused += 1
            continue
        assert found == wanted, at
    assert refused > 0.5 * len(used[::5])


def test_missing_files_and_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shard_0000\.array_record: no such file"):
        read(tmp_path, [SEQUENCE])
    write(tmp_path, [SEQUENCE], [{"sequence": sft()["sequence"]}])
    with pytest.raises(FormatError, match=r"row 1 is damaged: not the tf.train.Example .*: no feature 'sequences'"):
        read(tmp_path, [Column("sequences", "int32", 1, "ids")]).row(1)
