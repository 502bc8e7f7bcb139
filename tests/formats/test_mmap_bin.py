"""`bin`, read back by numpy.memmap and json alone, and by its own reader."""

import json
import pickle
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
from beam_prep.formats import FORMATS
from beam_prep.formats.flat import FlatReader

SEQUENCE = Column("sequence", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="sequence")
RESPONSES = Column("responses", "uint16", 2, "ids")


def write(
    folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0, shards: int = 1
) -> None:
    with ExitStack() as opened:

        def open_file(path: str) -> BinaryIO:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            return opened.enter_context(open(folder / path, "xb"))

        writer = FORMATS["bin"].writer(open_file, columns, shard, shards)
        for rows in slices:
            writer.write(rows)
        writer.close()


def read(folder: Path, columns: Sequence[Column], shard: int = 0, shards: int = 1) -> FlatReader:
    reader = FORMATS["bin"].read(folder, columns, shard, shards)
    assert isinstance(reader, FlatReader)
    return reader


def foreign(folder: Path) -> dict[str, list[Any]]:
    """Somebody else's reader: rows of every key, flat."""
    rows = {}
    for key, entry in json.loads((folder / "meta.json").read_text()).items():
        (size,), path = entry["shape"], folder / f"{key}.bin"
        values = np.memmap(path, np.dtype(entry["dtype"]), "r", shape=(size,)) if size else np.zeros(0)
        borders = entry["offsets"]
        rows[key] = [values[a:b].tolist() for a, b in pairwise(borders)]
    return rows


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_lists() if isinstance(value, Ragged) else value.tolist() for name, value in row.items()}


SEQUENCES = [[5, 6, 7], [], [-1, 2**31 - 1]]
MASKS = [[False, True, True], [], [True, False]]


def sft() -> dict[str, Ragged]:
    return {"sequence": Ragged.from_lists(SEQUENCES), "loss_mask": Ragged.from_lists(MASKS, bool)}


def test_a_single_shard_lies_in_the_domains_folder(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    assert files(tmp_path) == {
        "sequence.bin": np.array([5, 6, 7, -1, 2**31 - 1], "<i4").tobytes(),
        "loss_mask.bin": bytes([0, 1, 1, 1, 0]),
        "meta.json": b'{"sequence": {"shape": [5], "dtype": "int32", "offsets": [0, 3, 3, 5]}, '
        b'"loss_mask": {"shape": [5], "dtype": "bool", "offsets": [0, 3, 3, 5]}}',
    }
    assert foreign(tmp_path) == {"sequence": SEQUENCES, "loss_mask": MASKS}


def test_one_of_several_shards_has_its_own_folder(tmp_path: Path) -> None:
    for shard, name in ((3, "shard_0003"), (12345, "shard_12345")):
        write(tmp_path, [SEQUENCE, MASK], [sft()], shard, 20000)
        assert foreign(tmp_path / name) == {"sequence": SEQUENCES, "loss_mask": MASKS}
        assert plain(read(tmp_path, [SEQUENCE], shard, 20000).row(0)) == {"sequence": [5, 6, 7]}


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
    assert reader.columns["sequence"].flat.dtype == np.int32
    assert reader.columns["sequence"].to_lists() == SEQUENCES


def test_a_reader_pickles_as_its_path(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    dumped = pickle.dumps(read(tmp_path, [SEQUENCE]))
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


def test_lists_of_lists_keep_both_borders_and_read_flat(tmp_path: Path) -> None:
    rows: list[list[list[int]]] = [[[1, 2], [], [3]], [], [[]], [[65535]]]
    write(tmp_path, [RESPONSES], [{"responses": Ragged.from_lists(rows, np.uint16, depth=2)}])
    assert json.loads((tmp_path / "meta.json").read_text()) == {
        "responses": {
            "shape": [4],
            "dtype": "uint16",
            "offsets": [0, 3, 3, 3, 4],
            "inner_offsets": [0, 2, 2, 3, 3, 4],
            "list_offsets": [0, 3, 3, 4, 5],
        }
    }
    assert foreign(tmp_path) == {"responses": [[1, 2, 3], [], [], [65535]]}
    reader = read(tmp_path, [RESPONSES])
    assert [plain(reader.row(index))["responses"] for index in range(4)] == rows


@pytest.mark.parametrize("slices", [[], [{"sequence": Ragged.from_lists([]), "loss_mask": Ragged.from_lists([])}]])
def test_a_shard_without_rows_reads_back(tmp_path: Path, slices: list[dict[str, Ragged]]) -> None:
    write(tmp_path, [SEQUENCE, MASK], slices)
    assert foreign(tmp_path) == {"sequence": [], "loss_mask": []}
    assert len(read(tmp_path, [SEQUENCE, MASK])) == 0


def test_empty_rows_alone_read_back(tmp_path: Path) -> None:
    write(
        tmp_path,
        [SEQUENCE, RESPONSES],
        [{"sequence": Ragged.from_lists([[]]), "responses": Ragged.from_lists([[[]]], depth=2)}],
    )
    reader = read(tmp_path, [SEQUENCE, RESPONSES])
    assert plain(reader.row(0)) == {"sequence": [], "responses": [[]]}
    assert reader.columns["sequence"].flat.dtype == np.int32


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
]


@given(st.data(), st.sampled_from(DTYPES))
def test_slices_of_any_size_give_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str
) -> None:
    column, lists = Column("value", dtype, 1, "value"), Column("lists", dtype, 2, "value")
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=12))
    inner = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=len(lengths), max_size=len(lengths)))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))

    def draw(size: int) -> Any:
        return (rng.random(size) < 0.5) if dtype == "bool" else (rng.random(size) * 127).astype(dtype)

    values = Ragged.from_lengths(draw(sum(lengths)), lengths)
    nested = Ragged.from_lengths(draw(sum(map(sum, inner))), [size for row in inner for size in row])
    whole = {"value": values, "lists": Ragged.from_lengths(nested, [len(row) for row in inner])}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    parts = [
        {name: rows[a:b] for name, rows in whole.items()}
        for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)
    ]
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    write(once, [column, lists], [whole])
    write(many, [column, lists], parts)
    assert files(once) == files(many)
    meta = (once / "meta.json").read_text()
    assert meta == json.dumps(json.loads(meta))
    assert foreign(once)["value"] == values.to_lists()
    reader = read(many, [column, lists])
    assert reader.columns["lists"].to_lists() == whole["lists"].to_lists()
    assert reader.columns["value"].flat.dtype == np.dtype(dtype)


def test_values_may_be_views_and_are_cast_where_the_dtype_differs(tmp_path: Path) -> None:
    arrow = pa.array([[9], [1, 2], [], [3]], pa.list_(pa.int32()))[1:]
    over_arrow = Ragged(arrow.flatten().to_numpy(), arrow.offsets.to_numpy() - arrow.offsets[0].as_py())
    strided = Ragged.from_lengths(np.arange(6, dtype=np.int64)[::2], [2, 0, 1])
    big_endian = Ragged.from_lengths(np.array([1, 2, 3], ">u4"), [2, 0, 1])
    columns = [SEQUENCE, Column("strided", "int16", 1, "value"), Column("swapped", "uint32", 1, "value")]
    write(tmp_path, columns, [{"sequence": over_arrow, "strided": strided, "swapped": big_endian}])
    assert foreign(tmp_path) == {
        "sequence": [[1, 2], [], [3]],
        "strided": [[0, 2], [], [4]],
        "swapped": [[1, 2], [], [3]],
    }


def test_close_closes_every_file(tmp_path: Path) -> None:
    opened: list[BinaryIO] = []

    def open_file(path: str) -> BinaryIO:
        opened.append(open(tmp_path / path, "xb"))  # noqa: SIM115
        return opened[-1]

    FORMATS["bin"].writer(open_file, [SEQUENCE, MASK], 0, 1).close()
    assert [file.closed for file in opened] == [True, True, True]


def test_contiguous_values_are_not_copied() -> None:
    values = np.arange(1000, dtype=np.int32)
    seen = []

    class File:
        def write(self, data: memoryview) -> None:
            seen.append(np.shares_memory(np.frombuffer(data, np.int32), values))

    FORMATS["bin"].writer(lambda path: File(), [SEQUENCE], 0, 1).write(  # type: ignore[arg-type, return-value]
        {"sequence": Ragged.from_lengths(values, [600, 400])[1:]}
    )
    assert seen == [True]


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
def test_a_value_that_does_not_fit_its_dtype_is_refused(tmp_path: Path, dtype: str, values: Any) -> None:
    with pytest.raises(ValueError, match=f"column 'v': {values[1]} does not fit {dtype}"):
        write(tmp_path, [Column("v", dtype, 1, "value")], [{"v": Ragged.from_lengths(values, [2])}])


def test_columns_that_are_not_as_declared_are_refused(tmp_path: Path) -> None:
    one, two = Ragged.from_lists([[1]]), Ragged.from_lists([[1], [2]])
    cases: list[tuple[str, dict[str, Ragged]]] = [
        ("found columns", {"sequence": one}),
        ("found columns", {"sequence": one, "loss_mask": one, "more": one}),
        ("different row counts", {"sequence": one, "loss_mask": two}),
        ("depth", {"sequence": one, "loss_mask": Ragged.from_lengths(one, [1])}),
    ]
    for index, (message, rows) in enumerate(cases):
        with pytest.raises(ValueError, match=message):
            write(tmp_path / str(index), [SEQUENCE, MASK], [rows])


def test_a_shard_without_meta_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sequence.bin").write_bytes(b"")
    with pytest.raises(FormatError, match=r"meta\.json: no such file"):
        read(tmp_path, [SEQUENCE])


def damage_meta(folder: Path, old: str, new: str) -> None:
    path = folder / "meta.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("}}", "}", "not the JSON of a shard"),
        ('"sequence"', '"sequences"', "'sequence': no such key"),
        ("[5]", "5", "shape is missing or no list of integers"),
        ("[5]", "[5, 1]", "wanted one size"),
        ("[5]", "[4]", r"sequence\.bin: found 20 bytes, wanted 16"),
        ("int32", "int64", "found dtype int64, wanted int32"),
        ("[0, 3, 3, 5]", "[0, 3, 3, 4]", "offsets do not rise from 0 to 5"),
        ("[0, 3, 3, 5]", "[0, 3, 2, 5]", "offsets do not rise from 0 to 5"),
        ("[0, 3, 3, 5]", "[1, 3, 3, 5]", "offsets do not rise from 0 to 5"),
        ("[0, 3, 3, 5]", "[0, 3.0, 3, 5]", "offsets is missing or no list of integers"),
        ("[0, 3, 3, 5]", "[0, [3], 3, 5]", "not the JSON of a shard"),
        ("[0, 3, 3, 5]", "[]", "offsets is missing or no list of integers"),
        ("[0, 3, 3, 5]", "[0, 3, 5]", "different row counts"),
        (', "offsets": [0, 3, 3, 5]', "", "offsets is missing or no list of integers"),
    ],
)
def test_a_damaged_meta_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    damage_meta(tmp_path, old, new)
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path, [SEQUENCE, MASK])
    assert str(tmp_path) in str(raised.value)


def test_inner_borders_that_contradict_the_outer_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [RESPONSES], [{"responses": Ragged.from_lists([[[1], [2]], [[3]]], depth=2)}])
    damage_meta(tmp_path, '"offsets": [0, 2, 3]', '"offsets": [0, 1, 3]')
    with pytest.raises(FormatError, match="give other rows than offsets"):
        read(tmp_path, [RESPONSES])


def test_a_cut_or_missing_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    path = tmp_path / "loss_mask.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"loss_mask\.bin: found 4 bytes, wanted 5"):
        read(tmp_path, [SEQUENCE, MASK])
    path.unlink()
    with pytest.raises(FormatError, match=r"loss_mask\.bin: no such file"):
        read(tmp_path, [SEQUENCE, MASK])


def test_a_million_rows_take_little_time(tmp_path: Path) -> None:
    start = time.perf_counter()
    rows = Ragged.from_lengths(np.zeros(3_000_000, np.int32), np.full(1_000_000, 3))
    write(tmp_path, [SEQUENCE], [{"sequence": rows}])
    reader = read(tmp_path, [SEQUENCE])
    assert len(reader) == 1_000_000
    assert (tmp_path / "meta.json").stat().st_size < 9_000_100
    assert plain(reader.row(999_999)) == {"sequence": [0, 0, 0]}
    assert time.perf_counter() - start < 10
