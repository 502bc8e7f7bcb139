"""`megatron`, read back by a few lines of numpy, and by its own reader. Megatron's own library: tests/trainers."""

import struct
from collections.abc import Callable
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
    sft,
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


def put(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + value + data[place + len(value) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:33], "found 33 bytes, too few for an index"),
        (lambda data: data[:-1], "found 101 bytes, wanted 102: 3 sequences, 4 borders"),
        (put(9, b"\2"), "not an index of Megatron, version 1"),
        (put(17, b"\5"), r"found dtype code 5, wanted 4 \(int32\)"),
        (put(18, b"\xff" * 8), "found 102 bytes, wanted "),
        (put(34, struct.pack("<ii", 4, -1)), "do not begin where the one before ends"),
        (put(46, struct.pack("<q", 4)), "do not begin where the one before ends"),
        (put(42, struct.pack("<i", 3)), r"sequence\.bin: found 20 bytes, wanted 24 \(6 of int32, says its index\)"),
        (put(70, struct.pack("<q", 1)), "borders of documents do not rise from 0 to 3"),
        (put(94, struct.pack("<q", 2)), "borders of documents do not rise from 0 to 3"),
        (put(78, struct.pack("<q", 3)), "borders of documents do not rise from 0 to 3"),
        (put(78, struct.pack("<q", 2)), "found documents of several sequences, wanted one each"),
    ],
)
def test_a_damaged_index_is_refused(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    path = tmp_path / "shard_0000-sequence.idx"
    assert len(path.read_bytes()) == 102
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path, [SEQUENCE, MASK])
    assert str(tmp_path) in str(raised.value)


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
