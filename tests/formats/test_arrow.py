"""`arrow`, read back by datasets and by pyarrow alone, and by its own reader."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.errors import FormatError
from tests.formats.shards import ALL, SEQUENCE, cut, files, joined, plain, random_rows, read_as, write_as

write, read = partial(write_as, "arrow"), partial(read_as, "arrow")


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets")


# datasets opens it.


def test_datasets_opens_a_domain_of_several_shards_memory_mapped(datasets: Any, tmp_path: Path) -> None:
    parts = [random_rows(2500, 1), random_rows(0, 2), random_rows(7, 3)]
    # In parallel, that is in any order.
    paths = [
        write(tmp_path, ALL, cut(parts[shard], [0, 1, 1, 6, len(parts[shard]["rewards"])]), shard, 3)
        if len(parts[shard]["rewards"])
        else write(tmp_path, ALL, [], shard, 3)
        for shard in (2, 0, 1)
    ]
    assert sorted(files(tmp_path)) == [
        "data-00000-of-00003.arrow",
        "data-00001-of-00003.arrow",
        "data-00002-of-00003.arrow",
        "dataset_info.json",
        "state.json",
    ]
    before = pa.total_allocated_bytes()
    rows = datasets.load_from_disk(str(tmp_path))
    assert pa.total_allocated_bytes() - before < 10_000
    assert [file["filename"] for file in rows.cache_files] == [str(path) for path in sorted(paths)]
    assert len(rows) == 2507
    assert rows.column_names == [column.name for column in ALL]
    wanted = joined(parts)
    for name in wanted:
        assert list(rows[name]) == wanted[name], name
    assert rows[2506] == {name: values[-1] for name, values in wanted.items()}
    assert [rows[index]["sequence"] for index in (0, 999, 1000, 2499, 2500)] == [
        wanted["sequence"][index] for index in (0, 999, 1000, 2499, 2500)
    ]


def test_map_of_one_domain_never_gets_the_cache_of_another(datasets: Any, tmp_path: Path) -> None:
    """Both have the same columns, shards and file names, and shard 0 the same rows: all that its writer knows."""
    for domain, last in (("code", [[1]]), ("wiki", [[2]])):
        write(tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists([[0]])}], 0, 2)
        write(tmp_path / domain, [SEQUENCE], [{"sequence": Ragged.from_lists(last)}], 1, 2)
    write(tmp_path / "first", [SEQUENCE], [{"sequence": Ragged.from_lists([[9]])}])
    first, code, wiki = (datasets.load_from_disk(str(tmp_path / name)) for name in ("first", "code", "wiki"))
    assert code._fingerprint != wiki._fingerprint
    assert code._fingerprint == datasets.load_from_disk(str(tmp_path / "code"))._fingerprint
    for part, wanted in ((code, [[9], [0], [1]]), (wiki, [[9], [0], [2]])):
        mixed = datasets.concatenate_datasets([first, part])
        assert list(mixed.map(lambda row: {"same": row["sequence"]})["same"]) == wanted


# The bytes.


# What it refuses.


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Also between two batches, where the values before look like the end of a stream."""
    rows = {"sequence": Ragged.from_lists([[7], [3, 4, -1, 0], [5]])}
    path = write(tmp_path, [SEQUENCE], [rows], batch_rows=1)
    whole = path.read_bytes()
    assert plain(read(tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3, 4, -1, 0]}
    assert whole.count(b"\xff\xff\xff\xff\0\0\0\0") == 2
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"data-00000-of-00001\.arrow"):
            read(tmp_path, [SEQUENCE])
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match="its end is missing"):
        read(tmp_path, [SEQUENCE])
