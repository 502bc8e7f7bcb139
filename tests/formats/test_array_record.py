"""`array_record`, read back by grain and protobuf, and by its own reader."""

import os
from functools import partial
from pathlib import Path

import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.formats import array_record
from tests.formats.shards import ALL, SEQUENCE, joined, plain, random_rows, read_as, write_as

write, read = partial(write_as, "array_record"), partial(read_as, "array_record")


pytest.importorskip("array_record")


# Others read it.


def test_grain_reads_the_records_of_all_shards_in_any_order(tmp_path: Path) -> None:
    """And they are what MaxText's grain pipeline parses: int64 lists of `tf.train.Example`."""
    grain = pytest.importorskip("grain")
    train = pytest.importorskip("tensorflow").train
    parts = [random_rows(300, 1), random_rows(7, 2)]
    paths = [str(write(tmp_path, ALL, [rows], shard)) for shard, rows in enumerate(parts)]
    source = grain.sources.ArrayRecordDataSource(paths)
    wanted = joined(parts)
    assert len(source) == 307
    for index in (306, 0, 299, 300, 17):
        features = train.Example.FromString(source[index]).features.feature
        assert list(features["sequence"].int64_list.value) == wanted["sequence"][index]
        assert list(features["loss_mask"].int64_list.value) == wanted["loss_mask"][index]
        assert list(features["responses/lengths"].int64_list.value) == [len(row) for row in wanted["responses"][index]]
        assert list(features["rewards"].float_list.value) == wanted["rewards"][index]
    shuffled = list(grain.MapDataset.source(source).shuffle(seed=3))
    assert sorted(shuffled) == sorted(source[index] for index in range(307))


# Its reader.


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in range(70):
        write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[shard]])}], shard)
    array_record.opened_file.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(tmp_path, [SEQUENCE], shard) for shard in range(70)]
    assert [plain(reader.row(0))["sequence"] for reader in readers] == [[shard] for shard in range(70)]
    assert len(os.listdir("/proc/self/fd")) <= before + 64


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    assert plain(read(tmp_path, [SEQUENCE]).row(0)) == {"sequence": [1]}
    path.unlink()
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[2], [3]])}])
    assert plain(read(tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3]}
