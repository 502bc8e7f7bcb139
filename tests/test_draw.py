"""A sample comes from all places of all files, is the same each time, and holds each line once."""

import bz2
import gzip
import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from beam_prep.sample import SAMPLE_BYTES, Drawn, draw
from beam_prep.storage.files import list_inputs
from tests.conftest import Folders


def numbers(drawn: Drawn) -> list[int]:
    return [record["number"] for block in drawn.blocks for record in block.rows]


def lines(start: int, stop: int, size: int = 200) -> str:
    return "".join(json.dumps({"number": number, "text": "x" * size}) + "\n" for number in range(start, stop))


def drawn_of(folder: Path, count: int, size: int = SAMPLE_BYTES) -> Drawn:
    return draw(list_inputs(sorted(map(str, folder.iterdir()))), count, size)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # Up to 12 MB: of more than 8, not all places are read.
    sizes=st.lists(st.integers(0, 1200), min_size=1, max_size=5),
    width=st.integers(0, 2000),
    count=st.integers(1, 1600),
)
def test_a_sample_has_as_many_records_as_asked_for_each_once(
    sizes: list[int], width: int, count: int, tmp_path_factory: Folders
) -> None:
    folder = tmp_path_factory.mktemp("input")
    start = 0
    for place, size in enumerate(sizes):
        (folder / f"{place}.jsonl").write_text("\n" * place + lines(start, start + size, width))
        start += size
    drawn = drawn_of(folder, count)
    found = numbers(drawn)
    assert len(found) == drawn.count == min(count, start)
    assert found == sorted(set(found))  # each once, in the order of the input
    assert drawn.all == (count >= start)
    assert numbers(drawn_of(folder, count)) == found


def test_a_sample_is_not_the_head(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 60_000))  # 14 MB
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(60_000, 90_000).encode(), 1))
    (tmp_path / "c.jsonl.bz2").write_bytes(bz2.compress(lines(90_000, 91_000).encode(), 1))
    rows = "[" + ",\n".join(lines(91_000, 92_000).splitlines()) + "]"
    (tmp_path / "d.json").write_text(rows)
    drawn = drawn_of(tmp_path, 1000)
    found = numbers(drawn)
    assert (len(found), found[0]) == (1000, 0)
    for start, stop in ((0, 20_000), (20_000, 40_000), (40_000, 60_000), (60_000, 90_000)):
        share = sum(start <= number < stop for number in found) / len(found)
        assert share == pytest.approx((stop - start) / 92_000, rel=0.4)
    assert any(number >= 91_000 for number in found)
    assert 80_000 < drawn.about < 105_000
    assert not drawn.all


def test_a_short_last_place_stands_for_more_records(tmp_path: Path) -> None:
    for number in range(130):  # of each file one place of two is read, the last has a tenth of it
        (tmp_path / f"{number:03d}.jsonl").write_text(lines(0, 320))
    assert drawn_of(tmp_path, 60).about == pytest.approx(130 * 320, rel=0.1)


def test_records_longer_than_a_place_are_found_and_fewer_if_they_are_very_long(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(lines(0, 40, 300_000))
    assert len(numbers(drawn_of(tmp_path, 20))) == 20
    drawn = drawn_of(tmp_path, 20, 1 << 20)
    assert drawn.count == len(numbers(drawn)) in (3, 4)
    assert not drawn.all


def test_of_a_large_compressed_file_the_beginning_is_read_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(0, 20_000).encode(), 1))
    drawn = drawn_of(tmp_path, 100, 1 << 17)
    assert drawn.unread == (str(tmp_path / "a.jsonl.gz"),)
    assert max(numbers(drawn)) < 6000
    assert not drawn.all
