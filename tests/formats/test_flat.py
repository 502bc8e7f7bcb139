"""`bin` and `npy`, read by numpy, json and gzip alone. The bytes of `bin` are goldens."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from tests.formats.shards import RESPONSES, SEQUENCE, files, plain, read_as, sft, write_as

WIDE_MASK = Column("loss_mask", "int32", 1, "mask", of="sequence")


def test_lists_of_lists_keep_both_borders_and_read_flat(tmp_path: Path) -> None:
    rows: list[list[list[int]]] = [[[1, 2], [], [3]], [], [[]], [[65535]]]
    write_as("bin", tmp_path, [RESPONSES], [{"responses": Ragged.from_lists(rows, np.uint16, depth=2)}])
    meta = json.loads((tmp_path / "meta.json").read_text())["responses"]
    assert (meta["inner_offsets"], meta["list_offsets"]) == ([0, 2, 2, 3, 3, 4], [0, 3, 3, 4, 5])
    values = np.memmap(tmp_path / "responses.bin", meta["dtype"], "r", shape=tuple(meta["shape"]))
    assert [values[a:b].tolist() for a, b in pairwise(meta["offsets"])] == [[1, 2, 3], [], [], [65535]]


# npy


def test_ids_are_a_raw_array_and_masks_bools_with_a_line_for_each_row(tmp_path: Path) -> None:
    mask = sft()["loss_mask"]
    rows = {"sequence": Ragged.from_lists([[5, 6, 7], [], [8, 70_000]])}
    rows["loss_mask"] = mask.with_flat(mask.flat.astype(np.int64))
    write_as("npy", tmp_path, [SEQUENCE, WIDE_MASK], [rows], 3)
    assert files(tmp_path).keys() == {
        f"{name}/shard_0003.{ending}" for name in ("loss_mask", "sequence") for ending in ("csv.gz", "npy")
    }
    found = files(tmp_path)
    assert np.frombuffer(found["sequence/shard_0003.npy"], "<u4").tolist() == [5, 6, 7, 8, 70_000]
    assert found["loss_mask/shard_0003.npy"] == bytes([0, 1, 1, 1, 0])
    assert gzip.decompress(found["sequence/shard_0003.csv.gz"]) == b"0,3\n3,3\n3,5\n"
    reader = read_as("npy", tmp_path, [SEQUENCE, WIDE_MASK], 3)
    assert plain(reader.row(0)) == {"sequence": [5, 6, 7], "loss_mask": [0, 1, 1]}
    assert reader.row(0)["loss_mask"].dtype == reader.rows(0, 2)["loss_mask"].flat.dtype == np.int32


def test_a_mask_of_more_than_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'loss_mask': 256 does not fit int8"):
        write_as("npy", tmp_path, [WIDE_MASK], [{"loss_mask": Ragged.from_lists([[256]])}])
