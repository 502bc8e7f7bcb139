"""What did not change is copied by the store; and the blocks of a token cache in a store are removed as on a disk."""

from typing import Any

import pytest

from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import Changed
from tests.engines.test_storage import Folder
from tests.engines.test_storage import server as server
from tests.engines.test_storage import store as store
from tests.test_resume import changed, chat

SMALL: dict[str, Any] = changed(output={"max_tokens_per_shard": 4000, "storage_format": ["arrow", "bin"]})


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that are uploaded from here."""
    found: list[str] = []
    upload = objects.upload

    def counted(path: str, file: str, sha256: str, version: str | None) -> None:
        found.append(path)
        upload(path, file, sha256, version)

    monkeypatch.setattr(objects, "upload", counted)
    return found


def test_shards_of_the_latest_version_are_copied_by_the_store(
    store: Folder, tokenizer_path: str, uploads: list[str]
) -> None:
    first, second = store.put("a.jsonl", chat(300)), store.put("b.jsonl", chat(100, "two"))
    common: dict[str, Any] = {"config": SMALL, "cache_dir": store.path("token_cache"), "keep_versions": 3}
    made = store.run(tokenizer_path, first, version_name="g1", **common)
    assert made.manifest is not None
    shards = len(made.manifest["shards"])
    uploads.clear()
    store.run(tokenizer_path, first, second, version_name="g2", **common)
    told = store.json("out/g2/run.json")
    assert told["shards_linked"] >= shards - 2 > 2
    assert 0 < len({path.rpartition("/")[2] for path in uploads if path.endswith(".arrow")}) <= told["shards_written"]
    store.run(tokenizer_path, first, second, config=SMALL, output="scratch")
    assert store.tree("out/g2") == store.tree("scratch")
    for name in store.names("scratch"):
        copy, wanted = objects.find(store.path(f"out/g2/{name}")), objects.find(store.path(f"scratch/{name}"))
        assert copy is not None
        assert wanted is not None
        if "__default__" in name:  # of every shard
            assert copy.sha256 == wanted.sha256 is not None


def test_an_object_that_another_tool_replaced_is_not_copied(store: Folder, tokenizer_path: str) -> None:
    first, second = store.put("a.jsonl", chat(300)), store.put("b.jsonl", chat(100, "two"))
    made = store.run(tokenizer_path, first, config=SMALL)
    assert made.manifest is not None
    file = made.manifest["shards"][0]["files"][0]
    objects.delete([store.path(f"out/{file['path']}")])  # versitygw keeps the metadata of an object that is replaced
    store.put(f"out/{file['path']}", b"x" * file["bytes"])
    store.run(tokenizer_path, first, second, config=SMALL, overwrite=True)
    wanted = store.tree()
    store.run(tokenizer_path, first, second, config=SMALL, output="scratch")
    assert store.tree("scratch") == wanted


def test_a_copy_is_of_the_version_that_was_found(store: Folder) -> None:
    if store.url.startswith("gs://"):
        pytest.skip("this server ignores preconditions")
    path = store.put("a", b"one")
    found = objects.find(path)
    assert found is not None
    objects.copy(found, store.path("copy"), "digest")
    copied = objects.find(store.path("copy"))
    assert copied is not None
    assert (objects.get(store.path("copy"), 0, 3), copied.sha256) == (b"one", "digest")
    store.put("a", b"two")
    with pytest.raises(Changed):
        objects.copy(found, store.path("other"), "digest")
    objects.delete([path])
    with pytest.raises((Changed, FileNotFoundError)):
        objects.copy(found, store.path("other"), "digest")
    assert objects.find(store.path("other")) is None
