"""`beam-prep verify` on outputs in object stores: the same findings as on a local disk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import cli
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.objects import read_bytes
from tests.conftest import ROOT
from tests.engines.stores import Store, gcs_server, s3_server
from tests.test_verify import CHAT, chats


@pytest.fixture(scope="module", params=[s3_server, gcs_server], ids=["s3", "gs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    before = FileSystems._pipeline_options
    with request.param(tmp_path_factory.mktemp("store")) as store:
        FileSystems.set_options(PipelineOptions(list(store.options)))
        yield store
    FileSystems.set_options(before)


@pytest.fixture(scope="module")
def output(server: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output that a job made there."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "in.jsonl").write_bytes(b"\n".join(chats()))
    (folder / "config.json").write_text(json.dumps(CHAT))
    job = [str(folder / "in.jsonl"), "-o", f"{server.url}/out", "-c", str(folder / "config.json")]
    job += ["--tokenizer_path", str(ROOT / "examples" / "tokenizer"), "--max_reject_rate=0.5"]
    assert cli.main(["run", *job, "--runner=FnApiRunner", *server.options]) == 0
    return f"{server.url}/out"


def found(output: str, server: Store, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = cli.main(["verify", output, "--json", *server.options])
    return code, json.loads(capsys.readouterr().out)


def test_an_output_in_a_store_is_checked_and_nothing_is_left_here(
    output: str, server: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, told = found(output, server, capsys)
    assert (code, told["problems"], told["rows"]) == (0, [], 24)
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["verify", output, *server.options]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 24 rows, ")


def test_objects_that_are_gone_changed_or_unlisted_are_named(
    output: str, server: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["far/shard_0000.tfrecord", "near/shard_0001/sequence.bin", "features.json", "near/shard_0099.tfrecord"]
    paths = [f"{output}/{name}" for name in names]
    sound = {path: read_bytes(path) for path in paths[:3]}
    data = sound[paths[0]]
    objects.put(paths[0], data[:-1] + bytes([data[-1] ^ 1]))
    objects.put(paths[1], sound[paths[1]] + b"0000")
    objects.delete([paths[2]])
    objects.put(paths[3], b"old")
    code, told = found(output, server, capsys)
    size = len(sound[paths[1]])
    assert code == 1
    wanted = [
        "near/shard_0099.tfrecord: found, though manifest.json does not list it: remove it",
        f"near/shard_0001/sequence.bin: found {size + 4} bytes, manifest.json says {size}",
        "features.json: no such file, though manifest.json lists it",
    ]
    assert told["problems"][0] == wanted[0]
    assert told["problems"][1].startswith("far/shard_0000.tfrecord is damaged: found sha256 ")
    assert told["problems"][2:] == wanted[1:]
    for path, data in sound.items():
        objects.put(path, data)
    objects.delete(paths[3:])
    assert found(output, server, capsys)[1]["problems"] == []
