"""Parquet and Arrow files as blocks: every row once, digests of the file, one error for what is no table."""

import json
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given

from beam_prep.data.block import InputFile, Origin, Split
from beam_prep.data.hashing import CHUNK, tree_digest
from beam_prep.errors import InputError
from beam_prep.reading.records import RawBlock
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import blocks_of, digest_of_input, first_records, split_file
from beam_prep.storage.stores import ANY
from tests.conftest import Folders
from tests.storage.memory import MemoryStore


def table(rows: int, size: int = 50) -> pa.Table:
    """Of texts that no codec makes smaller."""
    chance = np.random.default_rng(rows)
    texts = [chance.bytes(int(count)).hex() for count in chance.integers(1, size, rows)]
    return pa.table({"number": list(range(rows)), "text": pa.array(texts, pa.string())})


def parquet(path: Path, rows: pa.Table, group: int = 100) -> str:
    pq.write_table(rows, path, row_group_size=group, write_page_checksum=True)
    return str(path)


def arrow(path: Path, rows: pa.Table, batch: int = 100) -> str:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=batch)
    return str(path)


WRITERS = {"parquet": parquet, "arrow": arrow}
BOTH = pytest.mark.parametrize("kind", WRITERS)


def blocks(source: InputFile, block_bytes: int = CHUNK) -> list[tuple[RawBlock, Origin]]:
    splits = list(split_file((0, source), block_bytes))
    return [block for split in splits for block in blocks_of(split, block_bytes)]


def numbers(found: list[tuple[RawBlock, Origin]]) -> list[int]:
    return [json.loads(line)["number"] for raw, _ in found for line in raw.data.splitlines()]


def one(path: str) -> InputFile:
    (source,) = list_inputs(path)
    return source


@given(
    st.integers(0, 3000),
    st.integers(1, 4000),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([10, 50, 800]),
    st.sampled_from([*WRITERS]),
)
@example(0, 1, 1, 10, "parquet")
@example(0, 1, 1, 10, "arrow")
def test_blocks_have_every_row_once_and_the_digests_of_the_file(
    tmp_path_factory: Folders, rows: int, group: int, chunks: int, size: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    path = WRITERS[kind](folder / f"a.{kind}", table(rows, size), group)
    source = one(path)
    found = blocks(source, chunks * CHUNK)
    assert found
    assert (first_records(Split(0, source, 0, -1)) is None) == (rows == 0)
    assert numbers(found) == list(range(rows))
    assert [origin.start for _, origin in found] == np.cumsum([0, *(origin.size for _, origin in found)])[:-1].tolist()
    assert sum(origin.size for _, origin in found) == rows
    assert tree_digest(node for _, origin in found for node in origin.nodes) == digest_of_input(source)
    # But for the end of an Arrow stream, of 8 bytes, behind its last rows.
    assert not rows or 0 <= source.size - sum(origin.stored for _, origin in found) <= 8
    # As large as asked for, but for the last one of a split.
    assert all(len(raw.data) < chunks * CHUNK + 2 * size + 60 for raw, _ in found)


def digests(path: str) -> list[str]:
    """Of the blocks of a file."""
    return [origin.digest for _, origin in blocks(one(path))]


def test_a_file_that_grows_keeps_the_blocks_of_its_first_row_groups(tmp_path: Path) -> None:
    rows = table(4000, 200)
    before, after = (digests(parquet(tmp_path / f"{count}.parquet", rows[:count], 100)) for count in (3000, 4000))
    assert before[:-1] == after[: len(before) - 1]
    assert len(after) > len(before) > 3


def test_only_the_block_of_a_row_that_changed_has_another_digest(tmp_path: Path) -> None:
    rows = table(2000, 200)
    changed = rows.set_column(1, "text", pa.array([*rows["text"].to_pylist()[:-1], "other"]))
    before, after = (digests(parquet(tmp_path / "a.parquet", each, 10**6)) for each in (rows, changed))
    assert len(before) > 1
    assert (after[:-1], after[-1] == before[-1]) == (before[:-1], False)


def test_a_row_group_without_rows_is_passed_over(tmp_path: Path) -> None:
    rows = table(20)
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema) as writer:
        for part in (rows[:0], rows[:7], rows[:0], rows[7:], rows[:0]):
            writer.write_table(part)
    assert numbers(blocks(one(str(tmp_path / "a.parquet")))) == list(range(20))


@BOTH
@given(share=st.floats(0, 0.99999))
def test_a_file_that_is_cut_anywhere_is_one_error(kind: str, share: float, tmp_path_factory: Folders) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = WRITERS[kind](folder / f"a.{kind}", table(1000), 100)
    os.truncate(path, int(os.path.getsize(path) * share))
    with pytest.raises(InputError, match=r"a\.(parquet|arrow)' (cannot be read|is empty|has no end)"):
        blocks(one(path))


def test_an_arrow_file_that_was_cut_between_two_batches_is_an_error(tmp_path: Path) -> None:
    path = arrow(tmp_path / "a.arrow", table(1000), 100)
    os.truncate(path, os.path.getsize(path) - 8)
    with pytest.raises(InputError, match="has no end: it is cut"):
        blocks(one(path))


@BOTH
@given(st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_an_error_or_changes_only_values(kind: str, tmp_path_factory: Folders, changes: Any) -> None:
    """Arrow ends the process where some fields of a footer are wrong: we do not look at these."""
    path = Path(WRITERS[kind](tmp_path_factory.mktemp("bad") / f"a.{kind}", table(60), 20))
    data = bytearray(path.read_bytes())
    for share, byte in changes:
        data[int(share * len(data))] = byte
    path.write_bytes(data)
    try:
        found = blocks(one(str(path)))
    except InputError:
        return
    assert sum(len(raw.data.splitlines()) for raw, _ in found) == 60


@BOTH
def test_a_table_in_a_store(kind: str, store: MemoryStore, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path / f"a.{kind}", table(3000, 100), 700)
    store.put(f"mem://b/a.{kind}", Path(path).read_bytes(), ANY, None)
    source = one(f"mem://b/a.{kind}")
    stored, local = blocks(source), blocks(one(path))
    assert [(raw, origin.nodes, origin.digest) for raw, origin in stored] == [
        (raw, origin.nodes, origin.digest) for raw, origin in local
    ]
    assert digest_of_input(source) == digest_of_input(one(path))
    store.put(f"mem://b/a.{kind}", b"other", ANY, None)
    with pytest.raises(InputError, match="changed while the job ran"):
        blocks(source)


# Folders of `datasets`


def saved(folder: Path, state: Any = None, **files: pa.Table) -> str:
    folder.mkdir()
    for file, rows in files.items():
        arrow(folder / f"{file}.arrow", rows)
    names = [{"filename": f"{file}.arrow"} for file in files]
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_split": None, **(state or {})}))
    return str(folder)


def test_datasets_itself_saves_such_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"number": number, "text": str(number)} for number in range(50)])
    shuffled = data.shuffle(seed=3).select(range(40))
    shuffled.save_to_disk(tmp_path / "set", num_shards=3)
    found = [number for file in list_inputs(str(tmp_path / "set")) for number in numbers(blocks(file))]
    assert found == shuffled["number"][:]
    datasets.DatasetDict(train=data, test=shuffled).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"is a dataset with splits: name the folder of one, for .*both/train"):
        list_inputs(str(tmp_path / "both"))
    assert len(list_inputs([str(tmp_path / "both/train"), str(tmp_path / "both/test")])) == 2


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "does not name .arrow files with all its rows"),
        ({"_data_files": [{"filename": "../secret.arrow"}]}, "does not name .arrow files with all its rows"),
        ({"_data_files": []}, "does not name .arrow files with all its rows"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "cannot read .*gone.arrow.: No such file"),
    ],
)
def test_a_folder_that_cannot_be_read_as_it_is_is_refused(state: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        list_inputs(saved(tmp_path / "set", state, a=table(3)))


@pytest.mark.parametrize("text", ["[]", "\xff"])
def test_a_damaged_state_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"state\.json .*save it again"):
        list_inputs(str(tmp_path))


def test_a_datasets_folder_in_a_store(store: MemoryStore, tmp_path: Path) -> None:
    for path in Path(saved(tmp_path / "set", b=table(10), a=table(20))).iterdir():
        store.put(f"mem://b/set/{path.name}", path.read_bytes(), ANY, None)
    for name in ("mem://b/set", "mem://b/set/"):
        files = list_inputs(name)
        assert [file.path for file in files] == ["mem://b/set/b.arrow", "mem://b/set/a.arrow"]
    assert numbers(blocks(files[1])) == list(range(20))
    store.delete("mem://b/set/a.arrow")
    with pytest.raises(InputError, match=r"no such input: .*a\.arrow"):
        list_inputs("mem://b/set")
    with pytest.raises(InputError, match="no such input"):
        list_inputs("mem://b/none")
