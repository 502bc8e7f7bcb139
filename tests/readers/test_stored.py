"""`bp.open` of an output in a store: what is fetched when, checked, kept and removed."""

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.errors import BeamPrepError, FormatError, StorageError
from beam_prep.storage.stores import ANY
from beam_prep.storage.versions import Versions
from tests.readers.conftest import IDS, MASK, Make, documents, split_up
from tests.storage.conftest import store as store
from tests.storage.memory import MemoryStore

URL = "mem://bucket/out"


def read(store: MemoryStore) -> list[str]:
    """What was read, within the output."""
    return [path.removeprefix(f"{URL}/") for path in store.read]


def upload(folder: Path, store: MemoryStore, url: str = URL) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes(), ANY, None)


def ids(rows: Any) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in rows]


def kept(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache / path.relative_to(cache).parts[0])) for path in cache.glob("*-*/**/*.*"))


PARTS = {"a": [documents([50])] * 3, "b": [documents([7, 9], first=500)]}
ROWS = 5


@pytest.mark.parametrize("formats", ["bin", "tfrecord", "arrow", "h5"])
def test_rows_are_those_of_the_output_and_each_file_is_fetched_once(
    formats: str, output: Make, store: MemoryStore, tmp_path: Path
) -> None:
    folder = output([IDS, MASK], PARTS, formats)
    upload(folder, store)
    dataset = bp.open(URL, cache=tmp_path / "cache")
    assert (len(dataset), dataset.domains, dataset.path) == (ROWS, ("a", "b"), URL)
    assert read(store) == ["manifest.json"]
    store.read.clear()
    assert dataset[3]["input_ids"].tolist() == documents([7], first=500)[0]["input_ids"]
    assert {name.split("/")[0] for name in read(store)} == {"b"}
    assert ids(dataset) == ids(bp.open(folder))
    assert sorted(read(store)) == sorted({*read(store)})
    store.read.clear()
    again = bp.open(URL, cache=tmp_path / "cache")
    assert ids(again) == ids(dataset) == ids(dataset.packed(1000, None, "simple"))
    assert read(store) == ["manifest.json"]


def test_a_copy_that_was_cut_is_fetched_again(output: Make, store: MemoryStore, tmp_path: Path) -> None:
    upload(output([IDS, MASK], PARTS), store)
    wanted = ids(bp.open(URL, cache=tmp_path / "cache"))
    for path in (tmp_path / "cache").glob("*-*/**/*.bin"):
        path.write_bytes(path.read_bytes()[:-1])
    assert ids(bp.open(URL, cache=tmp_path / "cache")) == wanted


def test_of_a_split_only_its_shards_are_fetched(output: Make, store: MemoryStore, tmp_path: Path) -> None:
    train, test = documents([5, 6]), documents([3], first=100)
    folder = output([IDS, MASK], {"train/a": [train, train], "train/b": [train], "test/a": [test]})
    split_up(folder)
    upload(folder, store)
    with pytest.raises(BeamPrepError, match=r"mem://bucket/out has the splits 'train' \(6 rows\), 'test' \(1 rows\): "):
        bp.open(URL, cache=tmp_path / "cache")
    dataset = bp.open(URL, split="test", cache=tmp_path / "cache")
    assert (dataset.domains, dataset.splits) == (("a",), ("test",))
    assert ids(dataset) == ids(pickle.loads(pickle.dumps(dataset))) == [test[0]["input_ids"]]
    assert {name.split("/")[0] for name in read(store)} == {"manifest.json", "test"}
    assert ids(bp.open(URL, split="all", cache=tmp_path / "cache")) == ids(bp.open(folder, split="all"))


def test_a_damaged_object_is_named_with_its_sha256(output: Make, store: MemoryStore, tmp_path: Path) -> None:
    upload(output([IDS, MASK], PARTS), store)
    path = f"{URL}/b/input_ids.bin"
    sound = store._objects[path][0]
    store.put(path, bytes([sound[0] ^ 1]) + sound[1:], ANY, None)
    dataset = bp.open(URL, cache=tmp_path / "cache")
    with pytest.raises(FormatError, match=rf"{path} is damaged: found sha256 [0-9a-f]{{64}}, manifest.json says "):
        dataset[4]
    assert kept(tmp_path / "cache") == []
    store.delete(path)
    with pytest.raises(FormatError, match=f"{path}: no such object, though manifest.json lists it"):
        dataset[4]
    store.put(path, sound, ANY, None)
    assert len(dataset[4]["input_ids"]) == 9


def size_of(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.glob("*-*/**/*.*"))


def test_of_a_full_cache_the_least_recently_used_goes_first(output: Make, store: MemoryStore, tmp_path: Path) -> None:
    parts = {"a": [documents([100], first=1000 * number) for number in range(8)]}
    folder, cache = output([IDS, MASK], parts), tmp_path / "cache"
    upload(folder, store)
    shard = sum(file["bytes"] for file in json.loads((folder / "manifest.json").read_text())["shards"][0]["files"])
    most = 3 * shard + shard // 2
    wanted = ids(bp.open(folder))
    dataset = bp.open(URL, cache=cache, cache_bytes=most)
    for index in (0, 1, 2, 0, 3, 7, 6, 5, 4, 3, 2, 1, 0):  # kept open as long as there is room
        assert dataset[index]["input_ids"].tolist() == wanted[index]
        assert size_of(cache) <= most
    assert ids(dataset) == wanted
    assert dataset[list(range(8))]["input_ids"].to_lists() == wanted
    assert size_of(cache) <= most
    del dataset

    oldest, *others = sorted(name for name in kept(cache) if name.endswith("meta.json"))
    for path in cache.glob(f"*-*/{oldest}"):
        os.utime(path.parents[1], (0, 0))
    missing = next(index for index in range(8) if f"shard_{index:04d}/meta.json" not in (oldest, *others))
    _ = bp.open(URL, cache=cache, cache_bytes=most)[missing]
    assert {name for name in kept(cache) if name.endswith("meta.json")} == {f"shard_{missing:04d}/meta.json", *others}
    with pytest.raises(StorageError, match=f"cache_bytes is 10, too small for a shard of {shard} bytes: give"):
        bp.open(URL, cache=tmp_path / "small", cache_bytes=10)[0]


def test_the_latest_version_is_followed_and_held(output: Make, store: MemoryStore, tmp_path: Path) -> None:
    for name, first in (("one", 0), ("two", 100)):
        upload(output([IDS], {"a": [documents([3], first=first)]}), store, f"{URL}/{name}")
        Versions(URL).point(name)
    store.clock = time.time
    dataset = bp.open(URL, cache=tmp_path / "cache")
    assert dataset.path == f"{URL}/two"
    assert dataset[0]["input_ids"].tolist() == [100, 101, 102]
    assert Versions(URL).is_held("two")
    assert not Versions(URL).is_held("one")
    del dataset
    assert not Versions(URL).is_held("two")
    assert ids(bp.open(f"{URL}/one", cache=tmp_path / "cache")) == [[0, 1, 2]]


def test_what_is_no_output_is_told(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"{URL} has no manifest.json: not an output of beam_prep"):
        bp.open(URL, cache=tmp_path)
    store.put(f"{URL}.failed/failure.json", b"{}", ANY, None)
    for path in (f"{URL}/", f"{URL}.failed"):
        with pytest.raises(FormatError, match=f"holds no output, its run failed: the reason is in {URL}.failed/fail"):
            bp.open(path, cache=tmp_path)


@pytest.mark.parametrize("outside", ["../../../stolen", "/stolen", "elsewhere"])
@pytest.mark.parametrize("where", ["a file of a shard", "the folder of a domain", "both"])
def test_what_a_manifest_lists_elsewhere_is_not_fetched(
    where: str, outside: str, output: Make, store: MemoryStore, tmp_path: Path
) -> None:
    """What a store says is copied to this disk: a path out of the cache would be a way to any file."""
    folder = output([IDS, MASK], PARTS)
    manifest = json.loads((folder / "manifest.json").read_text())
    if where != "a file of a shard":
        manifest["domains"]["a"] = outside
    if where != "the folder of a domain":
        manifest["shards"][0]["files"][0]["path"] = outside if where == "a file of a shard" else f"{outside}/x"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    upload(folder, store)
    dataset = bp.open(URL, cache=tmp_path / "cache")
    with pytest.raises(FormatError):
        dataset[0]
    assert [name for name in read(store) if outside in name] == []
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []
