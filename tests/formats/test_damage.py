"""What is damaged in a file is named, and what a format cannot hold. That every damage is found: test_all.py.

Readers of others for `mds`, `megatron` and `npy`: tests/trainers.
"""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from tests.formats.shards import MASK, RESPONSES, SEQUENCE, files, read_as, rows_in, sft, write_as

Change = Callable[[bytes], bytes]


def put(place: int, value: bytes) -> Change:
    return lambda data: data[:place] + value + data[place + len(value) :]


def in_row(place: int, value: bytes) -> Change:
    """In the first row of MDS, whose place is in its head."""
    return lambda data: put(struct.unpack_from("<I", data, 4)[0] + place, value)(data)


def swap(old: str, new: str) -> Change:
    return lambda data: data.replace(old.encode(), new.encode(), 1)


def lines(text: str) -> Change:
    return lambda data: gzip.compress(text.encode())


OFFSETS, RISE = "[0, 3, 3, 5]", "offsets must not fall, those of row 1 are 3 and 2"
SEQUENCES = "do not begin where the one before ends"
NO_ARRAY = "row 0 is damaged: 'loss_mask' is no array of one dimension, or has another length"
MDS = "not a complete shard of these columns: "
FOLLOW = "its rows do not follow each other"
FILES = {
    "bin": "meta.json",
    "megatron": "shard_0000-sequence.idx",
    "mds": "shard.00000.mds",
    "npy": "sequence/shard_0000.csv.gz",
}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bin", swap("}}", "}"), "not a complete shard of these columns: Expecting"),
        ("bin", swap('"sequence"', '"sequences"'), "not a complete shard of these columns: missing: 'sequence'"),
        ("bin", swap("[5]", "5"), "not a complete shard of these columns: "),
        ("bin", swap("[5]", "[5, 1]"), "not a complete shard of these columns: too many values"),
        ("bin", swap("[5]", "[4]"), r"sequence\.bin has 20 bytes, wanted 16"),
        ("bin", swap("int32", "int64"), r"meta\.json says dtype int64, wanted int32"),
        ("bin", swap(OFFSETS, "[0, 3, 2, 5]"), RISE),
        ("bin", swap(OFFSETS, "[0, 3, 5]"), "different row counts"),
        ("bin", swap(f', "offsets": {OFFSETS}', ""), "missing: 'offsets'"),
        ("megatron", lambda data: data[:33], "unpack_from requires a buffer of at least 34 bytes"),
        ("megatron", lambda data: data[:-1], "idx has 101 bytes, wanted 102: 3 sequences, 4 borders"),
        ("megatron", put(9, b"\2"), r"idx begins with \[b'MMIDIDX.*, 2, 4\], wanted \[b'MMIDIDX.*, 1, 4\]"),
        ("megatron", put(17, b"\5"), r", 1, 5\], wanted .* \(code of int32\)"),
        ("megatron", put(18, b"\xff" * 8), "idx has 102 bytes, wanted "),
        ("megatron", put(46, struct.pack("<q", 4)), SEQUENCES),
        ("megatron", put(42, struct.pack("<i", 3)), r"sequence\.bin has 20 bytes, wanted 24 \(6 of int32"),
        ("megatron", put(70, struct.pack("<q", 1)), "offsets must run from 0 to 3"),
        ("megatron", put(78, struct.pack("<q", 2)), "a row has other than one sequence"),
        ("mds", lambda data: b"", MDS + "the offsets of 0 rows do not rise"),
        ("mds", lambda data: data[:15], MDS),
        ("mds", put(4, b"\1"), MDS + "the offsets of 3 rows do not rise to the end of the file"),
        ("mds", put(8, b"\xff\xff"), MDS + "the offsets of 3 rows do not rise to the end of the file"),
        ("mds", put(20, b"["), MDS + "Expecting"),
        ("mds", swap("int32", "int64"), MDS + "found .*int64.*, wanted .*int32"),
        ("mds", in_row(0, b"\6"), NO_ARRAY),
        ("mds", in_row(0, b"\x13\0\0\0\0"), NO_ARRAY),
        ("mds", in_row(8, b"\x08"), NO_ARRAY),
        ("mds", in_row(9, b"\x04"), NO_ARRAY),
        ("npy", lines("0,3\n3,4\n"), r"npy has 20 bytes, wanted 16 \(4 of int32\)"),
        ("npy", lines("0,3\n4,5\n"), FOLLOW),
        ("npy", lines("0,three\n"), "not a complete shard of these columns: "),
        ("npy", lines("0,\n"), "not a complete shard of these columns: "),
        ("npy", lines("0,5\n"), "columns of different row counts"),
    ],
)
def test_what_is_damaged_is_named(name: str, change: Change, message: str, tmp_path: Path) -> None:
    write_as(name, tmp_path, [SEQUENCE, MASK], [sft()])
    path = tmp_path / FILES[name]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=message) as raised:
        rows_in(read_as(name, tmp_path, [SEQUENCE, MASK]))
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        ("bin", "meta.json", swap('"list_offsets": [0, 2]', '"list_offsets": [0, 1]'), "from 0 to 2"),
        ("npy", "responses/shard_0000.csv.gz", lines("0,3,2 2\n"), "its lists do not add up"),
    ],
)
def test_so_are_damaged_lists(name: str, file: str, change: Change, message: str, tmp_path: Path) -> None:
    rows = {"responses": Ragged.from_lists([[[1, 2], [3]]], np.uint16, depth=2)}
    write_as(name, tmp_path, [RESPONSES], [rows])
    before = (tmp_path / file).read_bytes()
    assert change(before) != before
    (tmp_path / file).write_bytes(change(before))
    with pytest.raises(FormatError, match=message):
        rows_in(read_as(name, tmp_path, [RESPONSES]))


@pytest.mark.parametrize("name", ["megatron", "npy"])
def test_columns_of_different_rows_are_refused(name: str, tmp_path: Path) -> None:
    write_as(name, tmp_path, [SEQUENCE], [{"sequence": sft()["sequence"]}])
    write_as(name, tmp_path, [MASK], [{"loss_mask": Ragged.from_lists([[True]], bool)}])
    with pytest.raises(FormatError, match="columns of different row counts"):
        read_as(name, tmp_path, [SEQUENCE, MASK])


# What cannot be written


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "float16"])
def test_a_dtype_without_a_code_of_megatron_is_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"column 'v': the format megatron has no {dtype}"):
        write_as("megatron", tmp_path, [SEQUENCE, Column("v", dtype, 1, "value")], [])
    assert files(tmp_path) == {}


def test_a_shard_that_the_offsets_of_mds_cannot_count_is_refused(tmp_path: Path) -> None:
    size = write_as("mds", tmp_path, [SEQUENCE, MASK], [sft()]).stat().st_size
    write_as("mds", tmp_path, [SEQUENCE, MASK], [sft()], shard=1, most_bytes=size)
    with pytest.raises(ValueError, match=r"more than .* lower output\.max_tokens_per_shard"):
        write_as("mds", tmp_path, [SEQUENCE, MASK], [sft()], shard=2, most_bytes=size - 1)
