"""`h5`, read back by a few lines of h5py, and by its own reader."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from tests.formats.shards import MASK, MASKS, RESPONSES, REWARDS, SEQUENCE, SEQUENCES, read_as, sft, write_as

write, read = partial(write_as, "h5"), partial(read_as, "h5")


h5py = pytest.importorskip("h5py")


def foreign(path: Path) -> dict[str, list[Any]]:
    """Somebody else's reader: rows of every key, flat."""
    rows = {}
    with h5py.File(path) as file:
        for key in file:
            if isinstance(file[key], h5py.Dataset):
                rows[key] = [file[key][a:b].tolist() for a, b in pairwise(file["offsets"][key][:])]
    return rows


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
        found = {name: file[f"{name}/responses"][:].tolist() for name in file if name != "responses"}
    wanted = {"inner_offsets": [0, 2, 2, 3, 3, 4], "list_offsets": [0, 3, 3, 4, 5]}
    assert found == {"offsets": [0, 3, 3, 3, 4], **wanted}
    assert foreign(path) == {"responses": [[1, 2, 3], [], [], [65535]]}


# Its reader.


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


# What it refuses.


@pytest.mark.parametrize(
    ("name", "borders", "message"),
    [
        ("offsets/sequence", [0, 3, 3, 4], "offsets must run from 0 to 5"),
        ("offsets/sequence", [1, 3, 3, 5], "offsets must run from 0 to 5"),
        ("offsets/sequence", [0, 4, 3, 5], "offsets must not fall"),
        ("offsets/responses", [0, 2, 3, 3], "list_offsets and inner_offsets give other rows than offsets"),
        ("offsets/loss_mask", [0, 5], r"columns of different row counts: {'sequence': 3, 'loss_mask': 1"),
    ],
)
def test_damaged_borders_are_refused(tmp_path: Path, name: str, borders: list[int], message: str) -> None:
    responses = Ragged.from_lists([[[1]], [[2]], [[3]]], np.uint16, depth=2)
    columns = [SEQUENCE, MASK, RESPONSES]
    path = write(tmp_path, columns, [sft() | {"responses": responses}])
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = borders
    with pytest.raises(FormatError, match=message):
        read(tmp_path, columns)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard_0000.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("sequence", data=np.arange(5, dtype=np.int32), chunks=(2,))
        file["offsets/sequence"] = np.array([0, 5])
        file["rewards"] = np.float32(0)
        file["kind"] = np.dtype("int32")
    with pytest.raises(FormatError, match="sequence: its values do not lie in one piece"):
        read(tmp_path, [SEQUENCE])
    with pytest.raises(FormatError, match=r"rewards: found <HDF5 dataset .* shape \(\)"):
        read(tmp_path, [REWARDS])
    with pytest.raises(FormatError, match="kind: found <HDF5 named type"):
        read(tmp_path, [Column("kind", "int32", 1, "ids")])
    path.write_bytes(b"hello")
    with pytest.raises(FormatError, match=r"shard_0000\.h5: not a complete shard"):
        read(tmp_path, [SEQUENCE])
