"""The bytes of `npy`, by numpy and gzip. OLMo-core reads it: tests/trainers/test_olmo.py."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from tests.formats.shards import SEQUENCE, files, plain, read_as, sft, write_as

write, read = partial(write_as, "npy"), partial(read_as, "npy")


WIDE_MASK = Column("loss_mask", "int32", 1, "mask", of="sequence")


def test_ids_are_a_raw_array_and_masks_bools_with_a_line_for_each_row(tmp_path: Path) -> None:
    mask = sft()["loss_mask"]
    rows = {"sequence": Ragged.from_lists([[5, 6, 7], [], [8, 70_000]])}
    write(tmp_path, [SEQUENCE, WIDE_MASK], [rows | {"loss_mask": mask.with_flat(mask.flat.astype(np.int64))}], 3)
    assert files(tmp_path).keys() == {
        f"{name}/shard_0003.{ending}" for name in ("loss_mask", "sequence") for ending in ("csv.gz", "npy")
    }
    found = files(tmp_path)
    assert np.frombuffer(found["sequence/shard_0003.npy"], "<u4").tolist() == [5, 6, 7, 8, 70_000]
    assert found["loss_mask/shard_0003.npy"] == bytes([0, 1, 1, 1, 0])
    assert gzip.decompress(found["sequence/shard_0003.csv.gz"]) == b"0,3\n3,3\n3,5\n"
    reader = read(tmp_path, [SEQUENCE, WIDE_MASK], 3)
    assert plain(reader.row(0)) == {"sequence": [5, 6, 7], "loss_mask": [0, 1, 1]}
    assert reader.row(0)["loss_mask"].dtype == reader.rows(0, 2)["loss_mask"].flat.dtype == np.int32


# What it refuses.


def test_a_mask_of_more_than_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'loss_mask': 256 does not fit int8"):
        write(tmp_path, [WIDE_MASK], [{"loss_mask": Ragged.from_lists([[256]])}])
