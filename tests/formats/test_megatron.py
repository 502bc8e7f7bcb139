"""`megatron`, read back by a few lines of numpy, and by its own reader. Megatron's own library: tests/trainers."""

from functools import partial
from pathlib import Path

import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import megatron
from tests.formats.shards import (
    MASK,
    MASKS,
    SEQUENCE,
    SEQUENCES,
    files,
    read_as,
    write_as,
)

write, read = partial(write_as, "megatron"), partial(read_as, "megatron")


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
