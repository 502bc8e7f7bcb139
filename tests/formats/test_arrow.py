"""`arrow`, read back by datasets and by pyarrow alone, and by its own reader."""

import json
import os
import pickle
import subprocess
import sys
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
from beam_prep.formats import arrow, batches
from beam_prep.formats.arrow import Arrow, ArrowReader
from beam_prep.formats.manifest import ShardReceipt

SEQUENCE = Column("sequence", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="sequence")
RESPONSES = Column("responses", "uint16", 2, "ids")
MASKS_OF = Column("responses_mask", "bool", 2, "mask", of="responses")
REWARDS = Column("rewards", "float32", 1, "value")
ALL = [SEQUENCE, MASK, RESPONSES, MASKS_OF, REWARDS]

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets")


def write(
    folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0, shards: int = 1
) -> Path:
    """Writes a shard; gives the path of its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:

        def open_file(path: str) -> BinaryIO:
            return opened.enter_context(open(folder / path, "xb"))

        writer = Arrow().writer(open_file, columns, shard, shards)
        for rows in slices:
            writer.write(rows)
        writer.close()
    return folder / f"data-{shard:05d}-of-{shards:05d}.arrow"


def read(folder: Path, columns: Sequence[Column], shard: int = 0, shards: int = 1) -> ArrowReader:
    return Arrow().read(folder, columns, shard, shards)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_lists() if isinstance(value, Ragged) else value.tolist() for name, value in row.items()}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


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
        "responses_mask": Ragged.from_lengths(Ragged.from_lengths(rng.random(len(responses)) < 0.5, inner), lists),
        "rewards": Ragged.from_lengths(rng.random(lists.sum(), np.float32), lists),
    }


def cut(rows: dict[str, Ragged], borders: Sequence[int]) -> list[dict[str, Ragged]]:
    return [{name: ragged[a:b] for name, ragged in rows.items()} for a, b in pairwise(borders)]


def joined(parts: Sequence[dict[str, Ragged]]) -> dict[str, list[Any]]:
    return {name: [row for part in parts for row in part[name].to_lists()] for name in parts[0]}


SEQUENCES = [[5, 6, 7], [], [-1, 2**31 - 1]]
MASKS = [[False, True, True], [], [True, False]]


def sft() -> dict[str, Ragged]:
    return {"sequence": Ragged.from_lists(SEQUENCES), "loss_mask": Ragged.from_lists(MASKS, bool)}


# datasets opens it.


def test_datasets_opens_a_domain_of_several_shards_memory_mapped(datasets: Any, tmp_path: Path) -> None:
    parts = [random_rows(2500, 1), random_rows(0, 2), random_rows(7, 3)]
    # In parallel, that is in any order.
    paths = [
        write(tmp_path, ALL, cut(parts[shard], [0, 1, 1, 6, len(parts[shard]["rewards"])]), shard, 3)
        if len(parts[shard]["rewards"])
        else write(tmp_path, ALL, [], shard, 3)
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
    assert [rows[index]["sequence"] for index in (0, 999, 1000, 2499, 2500)] == [
        wanted["sequence"][index] for index in (0, 999, 1000, 2499, 2500)
    ]


def test_features_are_as_declared(datasets: Any, tmp_path: Path) -> None:
    columns = [*ALL, *(Column(f"a_{dtype}", dtype, 1, "value") for dtype in DTYPES)]
    some = {column.name: Ragged.from_lists([[]], column.dtype) for column in columns[len(ALL) :]}
    write(tmp_path, columns, [random_rows(1) | some])
    rows = datasets.load_from_disk(str(tmp_path))
    for column in columns:
        feature = rows.features[column.name]
        for _ in range(column.depth):
            assert type(feature) in (datasets.List, datasets.Sequence)
            feature = feature.feature
        assert feature == datasets.Value(column.dtype)
    # What datasets reads out of the file itself is the same.
    (name,) = [file["filename"] for file in rows.cache_files]
    assert datasets.Dataset.from_file(name).features == rows.features


def test_numpy_rows_have_the_values(datasets: Any, tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(50)])
    rows = datasets.load_from_disk(str(tmp_path)).with_format("numpy", dtype=None)
    reader = read(tmp_path, ALL)
    for index in range(50):
        ours, theirs = reader.row(index), rows[index]
        for name in ("sequence", "loss_mask", "rewards"):
            np.testing.assert_array_equal(theirs[name], ours[name])
        assert [list(item) for item in theirs["responses"]] == plain(ours)["responses"]
    assert rows[:]["loss_mask"][0].dtype == bool


def test_map_of_one_domain_never_gets_the_cache_of_another(datasets: Any, tmp_path: Path) -> None:
    """Both have the same columns, shards and file names, and shard 0 the same rows: all that its writer knows."""
    for domain, last in (("code", [[1]]), ("wiki", [[2]])):
        write(tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists([[0]])}], 0, 2)
        write(tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists(last)}], 1, 2)
    write(tmp_path / "first", [SEQUENCE], [{"sequence": Ragged.from_lists([[9]])}])
    first, code, wiki = (datasets.load_from_disk(str(tmp_path / name)) for name in ("first", "code", "wiki"))
    assert code._fingerprint != wiki._fingerprint
    assert code._fingerprint == datasets.load_from_disk(str(tmp_path / "code"))._fingerprint
    for part, wanted in ((code, [[9], [0], [1]]), (wiki, [[9], [0], [2]])):
        mixed = datasets.concatenate_datasets([first, part])
        assert list(mixed.map(lambda row: {"same": row["sequence"]})["same"]) == wanted


def receipt(domain: str, shard: int, split: str | None = None) -> ShardReceipt:
    return ShardReceipt(domain, shard, 3, {}, {}, None, (), split=split)


def describe(folder: Path, shards: Sequence[ShardReceipt]) -> list[str]:
    """Writes what describes the shards; gives the names of the files."""
    domains = {shard.domain: f"of_{shard.domain}" for shard in shards}
    described = Arrow().described([SEQUENCE, MASK], domains, shards)
    found = {name: json.loads(text) for name, text in described.items()}
    for name, content in found.items():
        (folder / name).write_text(json.dumps(content))
    return list(found)


def test_an_output_opens_as_a_dict_of_its_domains(datasets: Any, tmp_path: Path) -> None:
    for domain in ("web", "wiki-1"):
        write(tmp_path / f"of_{domain}", [SEQUENCE, MASK], [sft()])
    assert describe(tmp_path, [receipt("web", 0), receipt("wiki-1", 0)]) == ["dataset_dict.json"]
    domains = datasets.load_from_disk(str(tmp_path))
    assert {name: list(rows["sequence"]) for name, rows in domains.items()} == {
        "of_web": SEQUENCES,
        "of_wiki-1": SEQUENCES,
    }


def test_an_output_with_splits_opens_as_a_dict_of_them(datasets: Any, tmp_path: Path) -> None:
    shards = [receipt("a", 0, "train"), receipt("b", 0, "train"), receipt("b", 1, "train"), receipt("b", 0, "test")]
    for place, (folder, shard, count) in enumerate([("train/of_a", 0, 1), ("train/of_b", 0, 2), ("train/of_b", 1, 2)]):
        rows = Ragged.from_lists([[place]], "int32"), Ragged.from_lists([[True]], "bool")
        write(
            tmp_path / folder, [SEQUENCE, MASK], [dict(zip(("sequence", "loss_mask"), rows, strict=True))], shard, count
        )
    write(tmp_path / "test" / "of_b", [SEQUENCE, MASK], [sft()])
    names = [f"{split}/{name}" for split in ("train", "test") for name in ("state.json", "dataset_info.json")]
    assert describe(tmp_path, shards) == ["dataset_dict.json", *names]
    splits = datasets.load_from_disk(str(tmp_path))
    assert {name: list(rows["sequence"]) for name, rows in splits.items()} == {
        "train": [[0], [1], [2]],
        "test": SEQUENCES,
    }
    assert splits["train"].features == splits["test"].features
    of_domain = datasets.load_from_disk(str(tmp_path / "train" / "of_b"))
    assert list(of_domain["sequence"]) == [[1], [2]]


def test_what_datasets_saves_has_the_same_files(datasets: Any, tmp_path: Path) -> None:
    write(tmp_path / "ours", [SEQUENCE, RESPONSES], cut(some_of([SEQUENCE, RESPONSES]), [0, 5]))
    rows = datasets.load_from_disk(str(tmp_path / "ours"))
    rows.save_to_disk(str(tmp_path / "theirs"))
    ours, theirs = files(tmp_path / "ours"), files(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    our_state, their_state = (json.loads(found["state.json"]) for found in (ours, theirs))
    assert our_state | {"_fingerprint": None} == their_state | {"_fingerprint": None}
    assert json.loads(ours["dataset_info.json"]).keys() >= {"features"}
    name = "data-00000-of-00001.arrow"
    schemas = [pa.ipc.open_stream(found[name]).schema for found in (ours, theirs)]
    assert schemas[0] == schemas[1]
    assert [list(schema.metadata) for schema in schemas] == [[b"huggingface"]] * 2


def some_of(columns: Sequence[Column]) -> dict[str, Ragged]:
    rows = random_rows(5)
    return {column.name: rows[column.name] for column in columns}


# The bytes.


def test_files_describe_the_domain_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, RESPONSES], [], 0, 2)
    assert json.loads((tmp_path / "state.json").read_text()) == {
        "_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}],
        "_fingerprint": None,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    # The older form: datasets 2 and 3 know no "List".
    features = {
        "sequence": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"},
        "responses": {
            "feature": {"feature": {"dtype": "uint16", "_type": "Value"}, "_type": "Sequence"},
            "_type": "Sequence",
        },
    }
    assert json.loads((tmp_path / "dataset_info.json").read_text())["features"] == features
    schema = pa.ipc.open_stream((tmp_path / "data-00000-of-00002.arrow").read_bytes()).schema
    assert json.loads(schema.metadata[b"huggingface"]) == {"info": {"features": features}}


def test_shards_but_the_first_are_one_file(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()], 12345, 200_000)
    assert list(files(tmp_path)) == ["data-12345-of-200000.arrow"]
    assert len(read(tmp_path, [SEQUENCE, MASK], 12345, 200_000)) == 3


def test_the_stream_is_the_one_that_pyarrow_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_ROWS", 2)
    found = write(tmp_path, ALL, [random_rows(5)]).read_bytes()
    sink = pa.BufferOutputStream()
    with pa.ipc.open_stream(found) as stream, pa.ipc.new_stream(sink, stream.schema) as copy:
        batches = list(stream)
        for batch in batches:
            batch.validate(full=True)
            copy.write_batch(batch)
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert sink.getvalue() == found
    assert pa.Table.from_batches(batches).to_pydict() == joined([random_rows(5)])


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
        patch.setattr(arrow, "BATCH_ROWS", most[0])
        patch.setattr(arrow, "BATCH_BYTES", most[1])
        path = write(once, ALL, [whole])
        write(many, ALL, cut(whole, borders))
    assert files(once) == files(many)
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        batches = list(stream)
    sizes = np.cumsum([0, *(batch.num_rows for batch in batches)])
    row_bytes = np.sum([ragged.flat_lengths * ragged.flat.itemsize for ragged in whole.values()], axis=0)
    for a, b in pairwise(sizes.tolist()):
        assert b - a <= most[0]
        assert b - a == 1 or row_bytes[a:b].sum() <= most[1]
        # No more would have fitted.
        assert b == rows or b - a == most[0] or row_bytes[a : b + 1].sum() > most[1]
    reader = read(many, ALL)
    wanted = joined([whole])
    assert [plain(reader.row(index)) for index in range(len(reader))] == [
        {name: wanted[name][index] for name in wanted} for index in range(rows)
    ]


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([1, 2]))
def test_every_dtype_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str, depth: int
) -> None:
    if dtype == "bool":
        items: st.SearchStrategy[Any] = st.booleans()
    elif dtype.startswith("float"):
        items = st.floats(width=int(dtype[5:]))  # type: ignore[arg-type]
    else:
        items = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    lists: st.SearchStrategy[Any] = st.lists(items, max_size=10)
    rows = Ragged.from_lists(
        data.draw(st.lists(lists if depth == 1 else st.lists(lists, max_size=3), max_size=5)), dtype, depth
    )
    column = Column("v", dtype, depth, "value")
    folder = tmp_path_factory.mktemp("any")
    write(folder, [column], [{"v": rows}])
    reader = read(folder, [column])
    assert len(reader) == len(rows)
    for index in range(len(rows)):
        found, wanted = reader.row(index)["v"], rows[index]
        if isinstance(wanted, Ragged):
            assert isinstance(found, Ragged)
            assert found.offsets.dtype == np.int64
            assert found.offsets.tolist() == wanted.offsets.tolist()
            found, wanted = found.flat, wanted.flat
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, wanted)


SCRIPT = """
import sys
from pathlib import Path
from tests.formats.test_arrow import ALL, random_rows, write
write(Path(sys.argv[1]), ALL, [random_rows(1500)])
"""


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "here", ALL, cut(random_rows(1500), [0, 3, 1400, 1500]))
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": root, "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "there")], check=True, env=environment)
    assert files(tmp_path / "here") == files(tmp_path / "there")


def test_values_may_be_views_and_are_cast_where_the_dtype_differs(tmp_path: Path) -> None:
    array = pa.array([[9], [1, 2], [], [3]], pa.list_(pa.int32()))[1:]
    over_arrow = Ragged(array.flatten().to_numpy(), array.offsets.to_numpy() - array.offsets[0].as_py())
    strided = Ragged.from_lengths(np.arange(6, dtype=np.int64)[::2], [2, 0, 1])
    big_endian = Ragged.from_lengths(np.array([1, 2, 3], ">u4"), [2, 0, 1])
    columns = [SEQUENCE, Column("strided", "int16", 1, "value"), Column("swapped", "uint32", 1, "value")]
    write(tmp_path, columns, [{"sequence": over_arrow, "strided": strided, "swapped": big_endian}])
    reader = read(tmp_path, columns)
    assert [plain(reader.row(index)) for index in range(3)] == [
        {"sequence": [1, 2], "strided": [0, 2], "swapped": [1, 2]},
        {"sequence": [], "strided": [], "swapped": []},
        {"sequence": [3], "strided": [4], "swapped": [3]},
    ]


def test_values_are_not_kept_after_the_call(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int32)
    path = tmp_path / "file"
    with open(path, "wb") as file:
        writer = Arrow().writer(lambda name: file, [SEQUENCE], 1, 2)
        writer.write({"sequence": Ragged.from_lengths(values, [2, 4])})
        values[:] = 0
        writer.close()
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        assert stream.read_all().to_pydict() == {"sequence": [[0, 1], [2, 3, 4, 5]]}


def test_memory_and_writes_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_BYTES", 4000)
    sizes: list[int] = []

    class File:
        def write(self, data: memoryview) -> None:
            sizes.append(len(data))

        def close(self) -> None:
            pass

    writer = Arrow().writer(lambda path: File(), [SEQUENCE], 1, 2)  # type: ignore[arg-type, return-value]
    for _ in range(5):
        writer.write({"sequence": Ragged.from_lengths(np.full(10_300, 9, np.int32), [*[100] * 100, 5, 200, 95])})
        # What is not written yet is one batch at most.
        assert sum(part["sequence"].flat.nbytes for part in writer._batches._parts) <= 4000
    writer.close()
    assert max(sizes) < 5000
    assert sum(sizes) > 5 * 4 * 10_300


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


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_a_reader_keeps_no_file_descriptor(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(10)])
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(tmp_path, ALL) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(readers[4].row(9)) == len(ALL)


def test_some_of_the_columns_in_any_order_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, ALL, [random_rows(3)])
    for columns in ([MASK], [REWARDS, SEQUENCE]):
        assert list(read(tmp_path, columns).row(0)) == [column.name for column in columns]
        assert plain(read(tmp_path, columns).row(1))[columns[-1].name] == random_rows(3)[columns[-1].name].to_lists()[1]


def test_a_reader_pickles_as_its_path(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    reader = read(tmp_path, [SEQUENCE])
    assert len(reader.row(0)["sequence"]) == 100_000
    dumped = pickle.dumps(reader)
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


@pytest.mark.parametrize("slices", [[], [random_rows(0)], [random_rows(0), random_rows(0)]])
def test_a_shard_without_rows_reads_back(datasets: Any, tmp_path: Path, slices: list[dict[str, Ragged]]) -> None:
    write(tmp_path, ALL, slices)
    assert len(read(tmp_path, ALL)) == 0
    assert len(datasets.load_from_disk(str(tmp_path))) == 0


def test_empty_rows_alone_read_back(datasets: Any, tmp_path: Path) -> None:
    empty = {column.name: Ragged.from_lists([[], []], column.dtype, column.depth) for column in ALL}
    write(tmp_path, ALL, [empty])
    reader = read(tmp_path, ALL)
    wanted: dict[str, list[Any]] = {column.name: [] for column in ALL}
    assert [plain(reader.row(index)) for index in range(2)] == [wanted, wanted]
    assert list(datasets.load_from_disk(str(tmp_path))) == [wanted, wanted]


# What it refuses.


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


def test_a_row_beyond_the_borders_of_arrow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_VALUES", 10)
    with pytest.raises(ValueError, match="a row of 11 values: a list of Arrow holds up to 10"):
        write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 11])}])


def test_a_shard_that_is_not_closed_leaves_no_description(tmp_path: Path) -> None:
    with ExitStack() as opened:
        writer = Arrow().writer(lambda path: opened.enter_context(open(tmp_path / path, "xb")), [SEQUENCE], 0, 1)
        writer.write({"sequence": Ragged.from_lists([[1]])})
    assert list(files(tmp_path)) == ["data-00000-of-00001.arrow"]
    with pytest.raises(FormatError, match="its end is missing"):
        read(tmp_path, [SEQUENCE])


def test_close_closes_every_file(tmp_path: Path) -> None:
    opened: list[BinaryIO] = []

    def open_file(path: str) -> BinaryIO:
        opened.append(open(tmp_path / path, "xb"))  # noqa: SIM115
        return opened[-1]

    Arrow().writer(open_file, [SEQUENCE, MASK], 0, 1).close()
    assert [file.closed for file in opened] == [True, True, True]


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two batches, where the values before look like the end of a stream."""
    monkeypatch.setattr(arrow, "BATCH_ROWS", 1)
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[7], [3, 4, -1, 0], [5]])}])
    whole = path.read_bytes()
    assert plain(read(tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3, 4, -1, 0]}
    assert whole.count(b"\xff\xff\xff\xff\0\0\0\0") == 2
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"data-00000-of-00001\.arrow"):
            read(tmp_path, [SEQUENCE])
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match="its end is missing"):
        read(tmp_path, [SEQUENCE])


def test_a_flipped_bit_is_refused_or_changes_values_only(tmp_path: Path) -> None:
    path = write(tmp_path, ALL, [random_rows(4)])
    whole = path.read_bytes()
    refused = []
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x80
        path.write_bytes(damaged)
        try:
            reader = read(tmp_path, ALL)
            for row in map(reader.row, range(len(reader))):
                found = [value.flat if isinstance(value, Ragged) else value for value in row.values()]
                assert [values.dtype.name for values in found] == [column.dtype for column in ALL]
        except FormatError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all(str(path) in message for message in refused)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"data-00000-of-00001\.arrow: no such file"):
        read(tmp_path, [SEQUENCE])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("sequences", "int32", 1, "ids"), "'sequences': found none, not list<item: int32>"),
        (Column("sequence", "int64", 1, "ids"), "'sequence': found list<item: int32>, not list<item: int64>"),
        (Column("sequence", "int32", 2, "ids"), "not list<item: list<item: int32>>"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, column: Column, message: str) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path, [column])
    assert str(path) in str(raised.value)


def test_a_million_rows_take_little_time(tmp_path: Path) -> None:
    start = time.perf_counter()
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lengths(np.zeros(3_000_000, np.int32), np.full(10**6, 3))}])
    reader = read(tmp_path, [SEQUENCE])
    assert len(reader) == 1_000_000
    assert plain(reader.row(999_999)) == {"sequence": [0, 0, 0]}
    assert time.perf_counter() - start < 10
