"""`mds`, read back by a few lines of json and numpy, and by its own reader. `StreamingDataset`: tests/trainers."""

import json
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
from beam_prep.formats import mds
from tests.formats.shards import (
    DTYPES,
    MASK,
    SEQUENCE,
    Slices,
    read_as,
    rows_of,
    sft,
    write_as,
)

write, read = partial(write_as, "mds"), partial(read_as, "mds")


def foreign(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Somebody else's reader: the description, and every row's arrays."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[-1] == len(data)
    described = json.loads(data[4 * (count + 2) : offsets[0]])
    names = described["column_names"]
    rows = []
    for begin, end in pairwise(offsets):
        known = described["column_sizes"]  # of numbers; of others each row says it
        given = iter(struct.unpack_from(f"<{known.count(None)}I", data, begin))
        place, row = begin + 4 * known.count(None), {}
        for name, encoding, fixed in zip(names, described["column_encodings"], known, strict=True):
            size = next(given) if fixed is None else fixed
            field, place = data[place : place + size], place + size
            if fixed is not None:
                row[name] = np.frombuffer(field, encoding)
                continue
            width = 1 << (field[0] & 3)
            assert field[0] >> 2 == 1
            row[name] = np.frombuffer(field[1 + width :], encoding.removeprefix("ndarray:"))
            assert len(row[name]) == int.from_bytes(field[1 : 1 + width], "little")
        assert place == end
        rows.append(row)
    return described, rows


@pytest.mark.parametrize("length", [65_535, 65_536])
def test_a_length_takes_as_many_bytes_as_it_needs(length: int, tmp_path: Path) -> None:
    values = np.arange(length, dtype=np.int32)
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lengths(values, [length])}])
    assert foreign(path)[1][0]["sequence"].tolist() == values.tolist()
    assert read(tmp_path, [SEQUENCE]).row(0)["sequence"].tolist() == values.tolist()


def test_a_shard_that_its_offsets_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = write(tmp_path, [SEQUENCE, MASK], [sft()]).stat().st_size
    monkeypatch.setattr(mds, "MAX_BYTES", size)
    write(tmp_path, [SEQUENCE, MASK], [sft()], shard=1)
    monkeypatch.setattr(mds, "MAX_BYTES", size - 1)
    with pytest.raises(ValueError, match=r"more than .* lower output\.max_tokens_per_shard"):
        write(tmp_path, [SEQUENCE, MASK], [sft()], shard=2)


@given(rows_of(DTYPES))
def test_others_find_the_rows_whatever_they_are(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[list[Column], dict[str, Ragged], Slices]
) -> None:
    columns, rows, _ = drawn
    found = foreign(write(tmp_path_factory.mktemp("shard"), columns, [rows]))[1]
    assert len(found) == len(rows["sequence"])
    for index, theirs in enumerate(found):
        row: Any = {name: each[index] for name, each in rows.items()}
        assert row["sequence"].tobytes() == theirs["sequence"].tobytes()
        assert row["responses"].flat.tobytes() == theirs["responses"].tobytes()
        assert row["responses"].lengths.tolist() == theirs["responses/lengths"].tolist()
