"""A run that replaces an output: what did not change is linked, and the bytes are those of a run from scratch."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.formats.manifest import output_columns
from beam_prep.pipeline import Pipeline
from beam_prep.storage import publish
from tests.conftest import Log, Patch, flip, run_of, text_config, tree

pytestmark = pytest.mark.long

BLOCK = 65536
CONFIG = text_config(output={"storage_format": ["bin", "tfrecord", "h5"], "max_tokens_per_shard": 15_000})


def texts(word: str, count: int) -> str:
    rows = ({"text": f"{word} {number} " + "the cat sat on the mat " * 8} for number in range(count))
    return "".join(json.dumps(row) + "\n" for row in rows)


class Jobs:
    """Runs of one job on a folder of inputs."""

    def __init__(self, folder: Path, tokenizer_path: str) -> None:
        self.folder, self.tokenizer_path = folder, tokenizer_path
        self.inputs = folder / "in"
        self.inputs.mkdir()
        (self.inputs / "a.jsonl").write_text(texts("first", 1200))

    def job(self, name: str = "out", config: dict[str, Any] = CONFIG, **options: Any) -> Pipeline:
        given: Any = {"cache_dir": str(self.folder / "token_cache"), "overwrite": True, "block_bytes": BLOCK} | options
        files = sorted(str(path) for path in self.inputs.iterdir())
        made = PipelineConfig.from_dict(config)
        return Pipeline(made, files, self.folder / name, tokenizer_path=self.tokenizer_path, **given)

    def run(self, name: str = "out", config: dict[str, Any] = CONFIG, **options: Any) -> dict[str, Any]:
        """What `run.json` says."""
        return run_of(self.job(name, config, **options).run(["--runner=FnApiRunner"]).output)

    def is_as_from_scratch(self) -> bool:
        self.run("scratch", cache_dir=None)
        return tree(self.folder / "out") == tree(self.folder / "scratch")

    def inodes(self) -> dict[str, int]:
        out = self.folder / "out"
        return {str(path.relative_to(out)): path.stat().st_ino for path in out.rglob("*") if path.is_file()}


@pytest.fixture
def jobs(tmp_path: Path, tokenizer_path: str) -> Jobs:
    return Jobs(tmp_path, tokenizer_path)


def test_shards_that_did_not_change_are_linked(jobs: Jobs) -> None:
    first = jobs.run()
    assert first["shards_linked"] == 0
    assert first["shards_written"] > 3
    before = jobs.inodes()
    (jobs.inputs / "b.jsonl").write_text(texts("second", 900))
    second = jobs.run()
    assert second["shards_linked"] == first["shards_written"] - 1  # the last one has more rows now
    same = {name for name, inode in jobs.inodes().items() if before.get(name) == inode}
    assert {f"__default__/shard_000{name}" for name in ("0.tfrecord", "2.h5", "1/sequence.bin")} <= same
    assert jobs.is_as_from_scratch()


def test_a_damaged_file_is_not_carried_on(jobs: Jobs, caplog: Log) -> None:
    jobs.run()
    flip(jobs.folder / "out" / "__default__" / "shard_0001.tfrecord")
    (jobs.inputs / "b.jsonl").write_text(texts("second", 100))
    found = jobs.run()
    assert found["shards_damaged"] == 1
    assert "written anew" in caplog.text
    assert jobs.is_as_from_scratch()


def test_where_no_link_can_be_made_shards_are_written(jobs: Jobs, monkeypatch: Patch) -> None:
    jobs.run()

    def refused(*_: object, **named: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (jobs.inputs / "b.jsonl").write_text(texts("second", 100))
    found = jobs.run()
    assert (found["shards_linked"], "shards_damaged" in found) == (0, False)
    assert jobs.is_as_from_scratch()


@pytest.mark.parametrize("name", [".slices.json", "manifest.json"])
def test_keys_that_are_not_of_this_manifest_are_not_used(jobs: Jobs, name: str) -> None:
    jobs.run()
    path = jobs.folder / "out" / name
    path.write_text('{"keys": 1}' if name == ".slices.json" else path.read_text().replace('"rows"', ' "rows"'))
    (jobs.inputs / "b.jsonl").write_text(texts("second", 100))
    assert jobs.run()["shards_linked"] == 0
    assert jobs.is_as_from_scratch()


@pytest.mark.parametrize(("output", "options"), [({"dtype": {"sequence": "int64"}}, {}), ({}, {"check": "full"})])
def test_what_changes_the_bytes_or_the_trust_links_nothing(jobs: Jobs, output: Any, options: Any) -> None:
    jobs.run()
    (jobs.inputs / "b.jsonl").write_text(texts("second", 10))
    assert jobs.run(config={**CONFIG, "output": CONFIG["output"] | output}, **options)["shards_linked"] == 0


def test_every_format_names_its_files(jobs: Jobs) -> None:
    jobs.run(config={**CONFIG, "output": {"storage_format": list(FORMAT_NAMES), "max_tokens_per_shard": 15_000}})
    manifest = json.loads((jobs.folder / "out" / "manifest.json").read_bytes())
    columns = output_columns(manifest)
    for shard in manifest["shards"]:
        named = publish.files_named(manifest["formats"], columns, shard["shard"], len(manifest["shards"]))
        assert named is not None
        assert sorted(f"__default__/{name}" for name in named) == sorted(file["path"] for file in shard["files"])
        for name, content in named.items():
            assert content in (None, (jobs.folder / "out" / "__default__" / name).read_bytes())


def test_a_version_is_linked_from_the_latest_one(jobs: Jobs) -> None:
    options: dict[str, Any] = {"keep_versions": 2, "overwrite": False}
    jobs.run("many", version_name="g1", **options)
    (jobs.inputs / "b.jsonl").write_text(texts("second", 900))
    assert jobs.run("many", version_name="g2", **options)["shards_linked"] > 2
    first, second = (jobs.folder / "many" / name / "__default__" / "shard_0000.tfrecord" for name in ("g1", "g2"))
    assert first.stat().st_ino == second.stat().st_ino
    jobs.run("scratch", cache_dir=None)
    assert tree(jobs.folder / "many" / "g2") == tree(jobs.folder / "scratch")
    (jobs.inputs / "c.jsonl").write_text(texts("third", 100))
    jobs.run("many", version_name="g3", **options)
    assert not (jobs.folder / "many" / "g1").exists()
    assert tree(jobs.folder / "many" / "g2") == tree(jobs.folder / "scratch")
