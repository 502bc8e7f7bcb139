"""All formats beside each other: the same rows, whichever one is read."""

from pathlib import Path

import pytest

from beam_prep.config import FORMAT_NAMES
from beam_prep.data.ragged import Ragged
from beam_prep.formats import FORMATS, ShardReader
from tests.formats.test_hdf5 import ALL, cut, plain, random_rows, write_as


@pytest.mark.parametrize("seed", range(3))
def test_all_formats_agree_on_every_row(tmp_path: Path, seed: int) -> None:
    shards = [random_rows(rows, seed) for rows in (1200, 0, 1, 40)]
    readers: dict[str, list[ShardReader]] = {}
    for kind in FORMATS.values():
        for number, rows in enumerate(shards):
            count = len(rows["sequence"])
            write_as(kind, tmp_path, ALL, cut(rows, [0, count // 3, count]), number, len(shards))
        # One folder for all: their files do not meet.
        readers[kind.name] = [kind.read(tmp_path, ALL, number, len(shards)) for number in range(len(shards))]
    assert list(readers) == list(FORMATS) == list(FORMAT_NAMES)
    for number, rows in enumerate(shards):
        wanted = {name: ragged.to_lists() for name, ragged in rows.items()}
        for name, opened in readers.items():
            assert len(opened[number]) == len(rows["sequence"]), name
            for index in range(len(opened[number])):
                row = opened[number].row(index)
                assert plain(row) == {key: values[index] for key, values in wanted.items()}, (name, number, index)
                flat = {key: value.flat if isinstance(value, Ragged) else value for key, value in row.items()}
                assert {key: value.dtype.name for key, value in flat.items()} == {
                    column.name: column.dtype for column in ALL
                }


def test_what_is_no_format_is_not_registered() -> None:
    with pytest.raises(TypeError, match="the format 'mine' is a object, wanted an object of a subclass of Format"):
        FORMATS["mine"] = object()  # type: ignore[assignment]
    assert "mine" not in FORMATS
