"""`bin`, read back by numpy.memmap and json alone, and by its own reader."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.data.ragged import Ragged
from tests.formats.shards import MASK, MASKS, RESPONSES, SEQUENCE, SEQUENCES, files, read_as, sft, write_as

write, read = partial(write_as, "bin"), partial(read_as, "bin")


def foreign(folder: Path) -> dict[str, list[Any]]:
    """Somebody else's reader: rows of every key, flat."""
    rows = {}
    for key, entry in json.loads((folder / "meta.json").read_text()).items():
        (size,), path = entry["shape"], folder / f"{key}.bin"
        values = np.memmap(path, np.dtype(entry["dtype"]), "r", shape=(size,)) if size else np.zeros(0)
        borders = entry["offsets"]
        rows[key] = [values[a:b].tolist() for a, b in pairwise(borders)]
    return rows


def test_a_single_shard_lies_in_the_domains_folder(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    assert files(tmp_path) == {
        "sequence.bin": np.array([5, 6, 7, -1, 2**31 - 1], "<i4").tobytes(),
        "loss_mask.bin": bytes([0, 1, 1, 1, 0]),
        "meta.json": b'{"sequence": {"shape": [5], "dtype": "int32", "offsets": [0, 3, 3, 5]}, '
        b'"loss_mask": {"shape": [5], "dtype": "bool", "offsets": [0, 3, 3, 5]}}',
    }
    assert foreign(tmp_path) == {"sequence": SEQUENCES, "loss_mask": MASKS}


def test_lists_of_lists_keep_both_borders_and_read_flat(tmp_path: Path) -> None:
    rows: list[list[list[int]]] = [[[1, 2], [], [3]], [], [[]], [[65535]]]
    write(tmp_path, [RESPONSES], [{"responses": Ragged.from_lists(rows, np.uint16, depth=2)}])
    meta = json.loads((tmp_path / "meta.json").read_text())["responses"]
    assert (meta["inner_offsets"], meta["list_offsets"]) == ([0, 2, 2, 3, 3, 4], [0, 3, 3, 4, 5])
    assert foreign(tmp_path) == {"responses": [[1, 2, 3], [], [], [65535]]}
