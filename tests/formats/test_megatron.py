"""`megatron`, read back by a few lines of numpy, and by its own reader. Megatron's own library: tests/trainers."""

import struct
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import megatron
from beam_prep.formats.megatron import CODES
from tests.formats.shards import (
    MASK,
    MASKS,
    SEQUENCE,
    SEQUENCES,
    Slices,
    files,
    read_as,
    rows_of,
    write_as,
)

write, read = partial(write_as, "megatron"), partial(read_as, "megatron")


NAMES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def foreign(prefix: Path) -> tuple[str, list[list[list[Any]]]]:
    """Somebody else's reader: the dtype, and every document's sequences."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:17] == b"MMIDIDX\0\0" + struct.pack("<Q", 1)
    dtype = np.dtype(NAMES[index[17]])
    sequences, borders = struct.unpack("<QQ", index[18:34])
    assert len(index) == 34 + 12 * sequences + 8 * borders
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, "<i8", borders, 34 + 12 * sequences)
    data = Path(f"{prefix}.bin").read_bytes()
    rows = [np.frombuffer(data, dtype, size, at).tolist() for at, size in zip(pointers, lengths, strict=True)]
    return dtype.name, [rows[a:b] for a, b in pairwise(documents.tolist())]


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "float16"])
def test_a_dtype_without_a_code_is_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"column 'v': the format megatron has no {dtype}; it has uint8, int8, int16"):
        write(tmp_path, [SEQUENCE, Column("v", dtype, 1, "value")], [])
    assert files(tmp_path) == {}


def test_a_sequence_that_its_length_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(megatron, "MAX_LENGTH", 2)
    with pytest.raises(ValueError, match="'sequence': a sequence of 3 values, megatron's index holds up to 2"):
        write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists(SEQUENCES)}])


def test_pairs_of_different_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists(SEQUENCES)}])
    write(tmp_path, [MASK], [{"loss_mask": Ragged.from_lists(MASKS[1:], bool)}])
    with pytest.raises(FormatError, match="shard 0: columns of different row counts"):
        read(tmp_path, [SEQUENCE, MASK])


@given(rows_of(list(CODES)))
def test_others_find_the_rows_whatever_they_are(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[list[Column], dict[str, Ragged], Slices]
) -> None:
    columns, rows, _ = drawn
    folder = tmp_path_factory.mktemp("shard")
    write(folder, columns, [rows])
    stored = "uint8" if columns[0].dtype == "bool" else columns[0].dtype
    for name, wanted in rows.items():
        wanted = wanted.with_flat(wanted.flat.astype(stored))
        documents = wanted.to_lists() if name == "responses" else [[row] for row in wanted.to_lists()]
        # A NaN equals itself.
        assert repr(foreign(folder / f"shard_0000-{name}")) == repr((stored, documents))
