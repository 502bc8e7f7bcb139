"""Jobs on gs:// and s3://, on real servers: the same bytes, nothing half, and what happens when a store is gone."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.errors import ConfigError, InputError, OutputError, RunError, StorageError, TokenizerError
from beam_prep.formats.manifest import UNLISTED
from beam_prep.pipeline import Pipeline, Result
from beam_prep.storage import inputs as inputs_module
from beam_prep.storage import stores
from beam_prep.storage.inputs import digest_of_input
from beam_prep.storage.stores import Changed, read_bytes
from tests.conftest import ROOT, tree
from tests.engines.stores import Store, gcs_server, s3_server
from tests.test_resume import CONFIG, KB, changed, chat

LOCAL = ["--runner=FnApiRunner"]


@pytest.fixture(scope="module", params=[s3_server, gcs_server], ids=["s3", "gs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with request.param(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(server: Store, request: pytest.FixtureRequest) -> Iterator["Folder"]:
    """A folder of its own in a store, for one test."""
    before = FileSystems._pipeline_options
    FileSystems.set_options(PipelineOptions(list(server.options)))
    yield Folder(server, f"{server.url}/{request.node.name.partition('[')[0]}")
    FileSystems.set_options(before)


class Folder:
    """A folder in a store, and jobs in it."""

    def __init__(self, server: Store, url: str) -> None:
        self.server, self.url = server, url
        self.options = PipelineOptions(list(server.options))

    def path(self, name: str) -> str:
        FileSystems.set_options(self.options)  # a job in between may have set others
        return f"{self.url}/{name}"

    def put(self, name: str, data: bytes) -> str:
        stores.put(self.path(name), data)
        return self.path(name)

    def names(self, name: str = "") -> list[str]:
        base = self.path(name).rstrip("/") + "/"
        return [found.path[len(base) :] for found in stores.listed(base)]

    def tree(self, name: str = "out") -> dict[str, bytes]:
        found = {each: read_bytes(self.path(f"{name}/{each}")) for each in self.names(name)}
        return {each: data for each, data in found.items() if each not in UNLISTED}

    def json(self, name: str) -> Any:
        return json.loads(read_bytes(self.path(name)))

    def run(
        self,
        tokenizer: str,
        *inputs: str,
        output: str = "out",
        config: Any = CONFIG,
        options: Any = LOCAL,
        **given: Any,
    ) -> Result:
        if isinstance(config, dict):
            config = PipelineConfig.from_dict(config)
        given = {"block_bytes": 64 * KB, "max_reject_rate": 0.2, **given}
        options = [*self.server.options, *options]
        return Pipeline(config, inputs, self.path(output), tokenizer, beam_options=options, **given).run()


def local(tmp_path: Path, tokenizer: str, *inputs: str, config: Any = CONFIG, rejects: float = 0.2) -> dict[str, bytes]:
    """The files of the same job, all on the local disk."""
    made = PipelineConfig.from_dict(config)
    job = Pipeline(made, inputs, tmp_path / "local", tokenizer, block_bytes=64 * KB, max_reject_rate=rejects)
    job.run(LOCAL)
    return tree(tmp_path / "local")


def without_paths(files: dict[str, bytes]) -> dict[str, bytes]:
    """A tree with the names of the inputs, of which manifest and rejects tell, left out."""
    files = dict(files)
    manifest = json.loads(files["manifest.json"])
    for entry in manifest["inputs"]:
        entry["path"] = entry["path"].rpartition("/")[2]
    for file in manifest["rejects"]:
        lines = [json.loads(line) for line in files[file["path"]].splitlines()]
        for line in lines:
            line["file"] = line["file"].rpartition("/")[2]
        files[file["path"]] = json.dumps(lines).encode()
        file.update(bytes=0, sha256="")
    files["manifest.json"] = json.dumps(manifest).encode()
    return files


def write(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


# The same bytes


def test_everything_in_a_store_gives_the_same_bytes(store: Folder, tmp_path: Path, tokenizer_path: str) -> None:
    """Forked workers share the launcher's memory, but must not share its connections."""
    folder = store
    template = (ROOT / "examples" / "tokenizer" / "chat_template.jinja").read_bytes()
    config = changed(input__chat_template="chat.jinja")
    names = {"data/a.jsonl": chat(300), "data/b.jsonl.gz": gzip.compress(chat(80, "two"), mtime=0), "data/c.jsonl": b""}
    (tmp_path / "data").mkdir()
    for name, data in {**names, "chat.jinja": template, "config.json": json.dumps(config).encode()}.items():
        folder.put(name, data)
        write(tmp_path, name, data)
    for path in Path(tokenizer_path).iterdir():
        folder.put(f"tokenizer/{path.name}", path.read_bytes())
    given: dict[str, Any] = {"block_bytes": 64 * KB, "max_reject_rate": 0.2}
    Pipeline(tmp_path / "config.json", str(tmp_path / "data/*"), tmp_path / "out", tokenizer_path, **given).run(LOCAL)

    made = folder.run(
        folder.path("tokenizer"),
        folder.path("data/*"),
        config=folder.path("config.json"),
        cache_dir=folder.path("token_cache"),
        options=["--direct_num_workers=2"],
    )
    assert made.manifest is not None
    assert len(made.manifest["inputs"]) == 3
    assert len(made.manifest["shards"]) > 2
    assert made.manifest["rejects"]
    assert without_paths(folder.tree()) == without_paths(tree(tmp_path / "out"))
    assert folder.names(".beam_prep") == []  # nothing is left of what was staged
    assert folder.names("token_cache")  # but what was asked for


def test_an_output_in_every_format_of_sorted_runs_is_that_of_the_local_disk(
    store: Folder, tmp_path: Path, tokenizer_path: str
) -> None:
    """The runs of a shuffle lie in the store with the token cache, until they are read."""
    source = write(tmp_path, "a.jsonl", chat(150) + chat(20))
    config = changed(output__storage_format=list(FORMAT_NAMES), preprocessing__deduplicate={"by": ["messages"]})
    config["preprocessing"] |= {"padding": "max_length", "max_seq_len": 256}
    config["output"] |= {"shuffle": {"seed": 3}, "splits": {"train": 0.9, "test": 0.1}}
    config["output"]["mix"] = {"one": {"epochs": 1.5}}
    manifest = store.run(tokenizer_path, source, config=config).manifest
    assert manifest is not None
    assert manifest["ledger"]["dropped"]["duplicate"] == 20
    assert store.tree() == local(tmp_path, tokenizer_path, source, config=config)
    assert not [name for name in store.names() if "scratch" in name]


def test_a_second_run_does_nothing(store: Folder, tokenizer_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.put("a.jsonl", chat(150))
    assert not store.run(tokenizer_path, source).up_to_date
    reads: list[str] = []
    read = digest_of_input

    def noted(file: Any) -> Any:
        reads.append(file.path)
        return read(file)

    monkeypatch.setattr(inputs_module, "digest_of_input", noted)
    assert store.run(tokenizer_path, source).up_to_date
    assert reads == []  # the store's checksums are the same
    # Written again with the same content; another version in the store, perhaps.
    store.put("a.jsonl", chat(150))
    assert store.run(tokenizer_path, source).up_to_date
    # Of the same size, and different.
    store.put("a.jsonl", chat(150).replace(b"Answer 149", b"answer 149"))
    with pytest.raises(OutputError, match="holds an output of other inputs or settings"):
        store.run(tokenizer_path, source)
    assert reads == [source]


def test_other_objects_are_not_written_over(store: Folder, tmp_path: Path, tokenizer_path: str) -> None:
    source = write(tmp_path, "a.jsonl", chat(50))
    store.put("out/precious.txt", b"mine")
    with pytest.raises(OutputError, match="is no output of beam_prep"):
        store.run(tokenizer_path, source, overwrite=True)
    assert store.names("out") == ["precious.txt"]


# Runs that fail


def test_a_run_that_fails_leaves_the_rejects(store: Folder, tmp_path: Path, tokenizer_path: str) -> None:
    source = write(tmp_path, "a.jsonl", chat(150))
    with pytest.raises(RunError, match=r"nothing was published, see .+/out\.failed/rejects"):
        store.run(tokenizer_path, source, max_reject_rate=0.0)
    with pytest.raises(RunError):
        local(tmp_path, tokenizer_path, source, rejects=0.0)
    failed, wanted = store.tree("out.failed"), tree(tmp_path / "local.failed")
    assert {name: data for name, data in failed.items() if name != "failure.json"}
    assert failed == wanted
    assert store.names("out") == []
    store.run(tokenizer_path, source)
    assert store.names("out.failed") == []  # this run made it good


def test_what_is_not_there_is_named(store: Folder, tmp_path: Path, tokenizer_path: str) -> None:
    source = write(tmp_path, "a.jsonl", chat(50))
    with pytest.raises(InputError, match=r"no such input: '.+/none\*\.jsonl'"):
        store.run(tokenizer_path, store.path("none*.jsonl"))
    with pytest.raises(TokenizerError, match=r"no tokenizer folder '.+/none'"):
        store.run(store.path("none"), source)
    with pytest.raises(ConfigError, match=r"/none\.json: the config cannot be read"):
        store.run(tokenizer_path, source, config=store.path("none.json"))
    store.put("broken/tokenizer.json", b"{}")
    with pytest.raises(TokenizerError, match=r"no tokenizer in '[gs3]+://bucket/.+/broken'"):
        store.run(store.path("broken"), source)
    nowhere = f"{store.url.partition('://')[0]}://no-such-bucket/out"
    with pytest.raises(StorageError, match=r"no-such-bucket"):
        Pipeline(PipelineConfig.from_dict(CONFIG), source, nowhere, tokenizer_path).run([*store.server.options, *LOCAL])


# What is done with outputs in a store


def test_an_output_is_verified_and_read_through_a_cache(
    store: Folder, tokenizer_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, source = store.path("out"), store.put("a.jsonl", chat(150))
    store.run(tokenizer_path, source, config=changed(output__storage_format=["bin", "tfrecord"]))

    def verified() -> tuple[int, list[str]]:
        capsys.readouterr()
        code = cli.main(["verify", output, "--json", *store.server.options])
        return code, json.loads(capsys.readouterr().out)["problems"]

    assert verified() == (0, [])
    for name, data in store.tree().items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(data)
    wanted, dataset = bp.open(tmp_path / "local"), bp.open(output, cache=tmp_path / "cache")
    assert [row["sequence"].tolist() for row in dataset] == [row["sequence"].tolist() for row in wanted]
    assert dataset.decode(0) == wanted.decode(0)
    before = len(store.server.requests())
    assert len(list(bp.open(output, cache=tmp_path / "cache"))) == len(wanted)
    assert len(store.server.requests()) - before < 8  # latest.json, the manifest

    name = dataset.manifest["shards"][0]["files"][0]["path"]
    store.put(f"out/{name}", store.tree()[name] + b"0000")
    store.put("out/one/shard_0099.tfrecord", b"old")
    stores.delete([f"{output}/features.json"])
    code, problems = verified()
    assert code == 1
    for said in (f"{name}: found ", "shard_0099.tfrecord: found, though", "features.json: no such file"):
        assert any(said in problem for problem in problems), problems


def test_a_copy_is_of_the_version_that_was_found(store: Folder) -> None:
    """Shards that did not change are copied by the store."""
    if store.url.startswith("gs://"):
        pytest.skip("this server ignores preconditions")
    path = store.put("a", b"one")
    found = stores.find(path)
    assert found is not None
    stores.copy(found, store.path("copy"), "digest")
    copied = stores.find(store.path("copy"))
    assert copied is not None
    assert (stores.get(store.path("copy"), 0, 3), copied.sha256) == (b"one", "digest")
    store.put("a", b"two")
    with pytest.raises(Changed):
        stores.copy(found, store.path("other"), "digest")
    assert stores.find(store.path("other")) is None


def test_shards_of_the_latest_version_are_copied(store: Folder, tokenizer_path: str) -> None:
    first, second = store.put("a.jsonl", chat(300)), store.put("b.jsonl", chat(100, "two"))
    config = changed(output={"max_tokens_per_shard": 4000, "storage_format": ["arrow", "bin"]})
    common: dict[str, Any] = {"config": config, "cache_dir": store.path("token_cache"), "keep_versions": 3}
    store.run(tokenizer_path, first, version_name="g1", **common)
    store.run(tokenizer_path, first, second, version_name="g2", **common)
    assert store.json("out/g2/run.json")["shards_linked"] > 2
    store.run(tokenizer_path, first, second, config=config, output="scratch")
    assert store.tree("out/g2") == store.tree("scratch")
