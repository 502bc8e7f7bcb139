"""A kind of input files is one `Source`: what it says is all that listing, reading, splitting and messages need."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_prep.data.block import InputFile, Split
from beam_prep.errors import InputError
from beam_prep.reading import sources
from beam_prep.reading.records import Readable
from beam_prep.reading.source import Source
from beam_prep.reading.sources import refusal
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import first_records, is_stream, line_at, split_file
from tests.conftest import Patch


class Bars(Source):
    """Records with a bar between them."""

    name = "a file with bars"
    endings = (".bars",)
    magic = b"BARS"
    unit = "entry"
    is_seekable = False

    def lines(self, stream: Readable, path: str) -> Readable:
        return io.BytesIO(stream.read(1 << 20).replace(b"BARS|", b"    \n").replace(b"|", b"\n"))


CONTENT = b'BARS|{"text": "a"}|nope|{"text": "c"}'


@pytest.fixture
def bars(monkeypatch: Patch, tmp_path: Path) -> InputFile:
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, Bars()))
    (tmp_path / "x.bars").write_bytes(CONTENT)
    (file,) = list_inputs(str(tmp_path / "x.bars"))
    return file


def test_a_new_kind_is_read_by_its_ending(bars: InputFile) -> None:
    records = first_records(Split(0, bars, 0, -1))
    assert records is not None
    assert records.rows == [{"text": "a"}, {"text": "c"}]
    assert [records.place(line) for line in records.ledger.messages] == [f"{bars.path} (byte offset 19)"]
    assert (is_stream(bars), len(split_file((0, bars), 8))) == (True, 1)
    assert line_at(bars, CONTENT.index(b'{"text": "c"')) == '{"text": "c"}'
    assert sources.place_in(bars.path, 3) == "entry 3"
    assert sources.place_at("a.parquet", 3) == "a.parquet (row 4)"


def test_no_record_begins_behind_the_end(bars: InputFile) -> None:
    with pytest.raises(InputError, match="no record begins there"):
        line_at(bars, len(CONTENT))


@pytest.mark.parametrize("source", [source for source in sources.SOURCES if source.magic])
def test_a_file_under_another_name_is_refused_by_its_first_bytes(source: Source) -> None:
    said = refusal(source.magic + bytes(40), "x.jsonl")
    assert said is not None
    assert said.startswith(f"'x.jsonl' is {source.name}, which is read from a {source.endings[0]} file")
    assert refusal(source.magic + bytes(40), f"x{source.endings[0]}") is None


def test_a_sound_table_that_pyarrow_cannot_read_back_is_not_called_damaged(tmp_path: Path) -> None:
    """It writes a null list of a fixed size, and cannot read it."""
    path = tmp_path / "fixed.parquet"
    pq.write_table(pa.table({"pair": pa.array([[1, 2], None], pa.list_(pa.int64(), 2))}), path)
    with pytest.raises(InputError, match=r"column that pyarrow cannot read back .* write its lists with no fixed size"):
        first_records(Split(0, list_inputs([path])[0], 0, -1))
