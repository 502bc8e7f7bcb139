"""Composed jobs at their edges: nothing, one record, copies alone, odd sources, and a run that failed half-way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_prep.errors import RunError
from beam_prep.shards.runs import MergedShards
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.transforms import shard
from tests.compose.test_jobs import EVERYTHING, SPLITS, config, ids, naive_of, records, run, small, write
from tests.conftest import tree

__all__ = ["small"]
ALL: dict[str, Any] = config({"shuffle": {"seed": 1}, "splits": SPLITS}, {"deduplicate": {"by": ["text"]}})


def test_one_record_and_copies_alone(tmp_path: Path) -> None:
    (one,) = records(1)
    nothing = write(tmp_path / "nothing.jsonl", [])
    copies = write(tmp_path / "copies.jsonl", [{**one, "id": number} for number in range(50)])
    manifest = run(ALL, [nothing, copies], tmp_path / "out")
    assert [shard for shards in ids(tmp_path / "out", manifest).values() for shard in shards] == [[0]]
    assert manifest["ledger"]["dropped"] == {"duplicate": 49}
    assert sum(split["rows"] for split in manifest["splits"].values()) == 1
    assert [*manifest["splits"]] == [*SPLITS]


def test_nothing_at_all_says_what_it_says_without_a_shuffle(tmp_path: Path) -> None:
    files = [write(tmp_path / "nothing.jsonl", []), write(tmp_path / "blank.jsonl", ["", " "])]
    said = []
    for number, given in enumerate((config({}), ALL)):
        with pytest.raises(RunError) as error:
            run(given, files, tmp_path / str(number))
        said.append(str(error.value).replace(str(tmp_path / str(number)), "OUT"))
    assert said[0] == said[1]


def test_records_without_the_split_key_are_rejected_or_in_one_split(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", rows := records(60))]
    given = config({"shuffle": {"seed": 1}, "splits": SPLITS, "split_key": "user"})
    manifest = run(given, files, tmp_path / "out")
    missing = sum(row["user"] is None for row in rows)
    assert manifest["ledger"]["rejected"] == {"no_split_key": missing}
    (file,) = (tmp_path / "out" / "rejects").iterdir()
    first = json.loads(file.read_text().splitlines()[0])
    assert first["message"] == "the record has no 'user', which decides its split"
    given["output"]["split_missing"] = "test"
    manifest = run(given, files, tmp_path / "named")
    assert ids(tmp_path / "named", manifest) == naive_of(given, files).shards
    users: dict[str, set[str | None]] = {}
    for (split, _), shards in ids(tmp_path / "named", manifest).items():
        for shard_ in shards:
            for id_ in shard_:
                users.setdefault(rows[id_]["user"], set()).add(split)
    assert all(len(splits) == 1 for splits in users.values())


@pytest.mark.long
def test_the_same_records_as_a_table_or_compressed_are_the_same_rows(tmp_path: Path, small: None) -> None:
    """But for the digests of entire records: the fields of a table have nulls."""
    rows = records(400, filler=200)
    lines = [write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[:100])]
    tables = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, of in zip(tables, (rows, rows[:100]), strict=True):
        pq.write_table(pa.Table.from_pylist(of), path, row_group_size=70)
    packed = [write(tmp_path / "a.jsonl.gz", rows), write(tmp_path / "b.jsonl.gz", rows[:100])]
    given = json.loads(json.dumps(EVERYTHING))
    del given["output"]["provenance"]
    given["output"]["mix"] = {"web": {"epochs": 1.5}}
    given["preprocessing"]["max_items"] = 250
    found = []
    for name, files in (("lines", lines), ("tables", tables), ("packed", packed)):
        manifest = run(given, files, tmp_path / name, block_bytes=65536)
        found.append(ids(tmp_path / name, manifest))
        assert manifest["ledger"]["dropped"]["duplicate"] >= 100 or manifest["ledger"]["not_read"]
    assert all(each == found[0] == naive_of(given, lines).shards for each in found)


def test_in_input_order_with_splits_and_copies(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", records(300, filler=400)), write(tmp_path / "b.jsonl", records(200, 1))]
    given = config(
        {"splits": SPLITS, "split_key": "text", "split_seed": 3, "provenance": True},
        {"deduplicate": {"by": ["text", "user"]}, "max_items": 300},
    )
    manifest = run(given, files, tmp_path / "out", block_bytes=65536)
    assert ids(tmp_path / "out", manifest) == naive_of(given, files).shards
    run(given, files, tmp_path / "other")
    assert tree(tmp_path / "other") == tree(tmp_path / "out")


def test_domains_with_the_names_of_files_of_datasets_have_folders_of_their_own(tmp_path: Path) -> None:
    rows = records(40)
    for row in rows:
        row["domain"] = ["state.json", "dataset_info.json", "train", "rejects", "index.json"][row["id"] % 5]
    files = [write(tmp_path / "a.jsonl", rows)]
    for splits in ({"splits": {"train": 1.0}}, {}):
        output = tmp_path / f"out{len(splits)}"
        manifest = run(config({**splits, "storage_format": ["arrow", "parquet"]}), files, output)
        assert sum(len(shard) for shards in ids(output, manifest).values() for shard in shards) == 40
        assert all((output / file["path"]).is_file() for shard in manifest["shards"] for file in shard["files"])
        assert (manifest["domains"]["state.json"] == "state.json") == (not splits)


class Broken(Exception):
    """What a test raises."""


def failing(wrapped: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Fails at its n-th call and at all after."""
    calls = 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= times:
            raise Broken(f"call {calls}")
        return wrapped(*given, **named)

    return call


PLACES: list[tuple[Any, str, int, str]] = [
    (Arranger, "write_run", 2, "half of the runs"),
    (Arranger, "merge_runs", 2, "half of the second level"),
    (MergedShards, "of", 1, "all runs, no shard"),
    (shard, "write_shard", 3, "two shards"),
    (Scratch, "write_copies", 2, "one file of copies"),
]
DEFAULT = {"all runs, no shard", "two shards"}


@pytest.mark.parametrize(
    ("holder", "name", "times"),
    [pytest.param(*case[:3], id=case[3], marks=[] if case[3] in DEFAULT else pytest.mark.long) for case in PLACES],
)
@pytest.mark.parametrize(
    "kept", [pytest.param(True, marks=pytest.mark.long, id="cache_dir"), pytest.param(False, id="no token cache")]
)
def test_a_run_after_one_that_failed_publishes_the_same_bytes(
    holder: Any, name: str, times: int, kept: bool, tmp_path: Path, small: None
) -> None:
    files = [write(tmp_path / "a.jsonl", records(300, filler=300)), write(tmp_path / "b.jsonl", records(200, 1))]
    cache_dir = {"cache_dir": str(tmp_path / "token_cache")} if kept else {}
    output = tmp_path / "there" / "out"
    output.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, failing(getattr(holder, name), times))
        with pytest.raises(Exception, match=f"call {times}"):
            run(ALL, files, output, block_bytes=65536, **cache_dir)
    assert not output.exists()
    run(ALL, files, output, block_bytes=65536, **cache_dir)
    run(ALL, files, tmp_path / "other")
    assert tree(output) == tree(tmp_path / "other")
    left = {path.name for path in output.parent.rglob("*") if path.is_file() and output not in path.parents}
    assert left <= {"lock", "lock.name", "claim.json.lock"}, left
