"""Runners whose workers do not share the launcher's memory, nor its folder for temporary files, nor its current one."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_prep import pipeline
from beam_prep.errors import RunError, TokenizerError
from beam_prep.pipeline import Pipeline
from beam_prep.storage import stores
from beam_prep.storage.shipped import TokenizerFolder, ship
from beam_prep.tokens import resolver as resolve
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT, TOKENIZER_PATH, Patch, tree
from tests.test_worker_processes import wait_for

pytestmark = pytest.mark.long

CHAT = str(ROOT / "examples" / "data" / "chat.jsonl")
CONFIG = str(ROOT / "configs" / "sft_chat.json")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[list[str]]:
    """Options for workers of a pool of Beam's, with a folder for temporary files of their own, as elsewhere."""
    (tmp_path / "worker").mkdir()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    theirs = {"TMPDIR": str(tmp_path / "worker"), "XDG_CACHE_HOME": str(tmp_path / "worker"), "PATH": path}
    here = {**os.environ, **theirs, "PYTHONPATH": str(ROOT)}
    with open(tmp_path / "pool.log", "w") as log:
        there: Any = {"env": here, "cwd": tmp_path / "worker", "start_new_session": True}
        pool = subprocess.Popen(command, stdout=log, stderr=log, **there)
    try:
        wait_for(lambda: answers(port))
        yield [*PORTABLE, "--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pool.pid, signal.SIGKILL)
        pool.wait()


PORTABLE = ["--runner=PortableRunner", "--job_endpoint=embed"]
LOOPBACK = [*PORTABLE, "--environment_type=LOOPBACK"]


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


def job(output: Path, **options: Any) -> Pipeline:
    return Pipeline(CONFIG, [CHAT], output, TOKENIZER_PATH, **options)


def test_relative_paths_are_the_launchers(elsewhere: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CHAT, tmp_path / "chat.jsonl")
    shutil.copytree(TOKENIZER_PATH, tmp_path / "tokenizer")
    for output, options in (("here", ["--runner=FnApiRunner"]), ("there", elsewhere)):
        folders = {"cache_dir": f"{output}-token cache", "staging": "staging"}
        launch = Pipeline(CONFIG, ["*.jsonl"], output, "tokenizer", **folders)
        made = launch.run(options)
        assert made.manifest is not None
        assert [file["path"] for file in made.manifest["inputs"]] == ["chat.jsonl"]
        fingerprint = made.manifest["tokenizer"]["fingerprint"]
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
    copied = list((tmp_path / "worker").glob("beam_prep/tokenizers/*/beam_prep.json"))
    assert [json.loads(path.read_text())["fingerprint"] for path in copied] == [fingerprint]  # once
    there, here = (set(tree(tmp_path / name)) for name in ("there-token cache", "here-token cache"))
    assert there == here != set()


def test_an_error_of_a_worker_comes_as_itself(elsewhere: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": 1}\n' * 10)
    with pytest.raises(RunError, match=r"^10 of 10 records were rejected .+ nothing was published, see "):
        Pipeline(CONFIG, [str(bad)], tmp_path / "out", TOKENIZER_PATH).run(elsewhere)
    report = json.loads((tmp_path / "out.failed" / "failure.json").read_text())
    assert report["ledger"]["read"] == 10


def test_a_launch_that_is_not_waited_for(elsewhere: list[str], tmp_path: Path) -> None:
    job(tmp_path / "here").run(["--runner=FnApiRunner"])
    launched = job(tmp_path / "there").run(elsewhere, wait=False)
    assert (launched.manifest, launched.up_to_date) == (None, False)
    assert launched.job_id
    wait_for((tmp_path / "there" / "manifest.json").exists)
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
    assert list((tmp_path / ".beam_prep").glob("there-*/tokenizers/*"))  # nobody was there to remove it
    # The next launch has nothing to do; a further one, of another job, removes what is old.
    assert job(tmp_path / "there").run(elsewhere).up_to_date


def test_a_tokenizer_that_no_worker_can_read_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    def lose(tokenizer: Tokenizer, folder: str) -> Tokenizer:
        shipped = ship(tokenizer, folder)
        shutil.rmtree(Path(folder, "tokenizers"))
        monkeypatch.setattr(resolve, "cache", lambda: tmp_path / "worker")
        return shipped

    with monkeypatch.context() as patch:
        patch.setattr(stores, "RETRY_SECONDS", 0.5)
        patch.setattr(pipeline, "ship", lose)
        launch = job(tmp_path / "out")
        with pytest.raises(TokenizerError, match=r"the tokenizer's folder .+/tokenizers/\w+ cannot be read on this"):
            launch.run(LOOPBACK)
    assert not (tmp_path / "out").exists()
    assert job(tmp_path / "out").run(LOOPBACK).manifest  # a plain second run ends well


def test_encoders_get_one_thread_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    monkeypatch.setattr(resolve, "cache", lambda: tmp_path / "worker")
    ship(Tokenizer.load(TOKENIZER_PATH), str(tmp_path)).encode(["Hello"], True)
    assert (os.environ.pop("TOKENIZERS_PARALLELISM"), os.environ["RAYON_NUM_THREADS"]) == ("false", "3")


def test_a_folder_with_another_tokenizer_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    tokenizer = Tokenizer.load(TOKENIZER_PATH)
    other = tokenizer.with_template("{{ messages }}").save(tmp_path / "other")
    monkeypatch.setattr(resolve, "cache", lambda: tmp_path / "worker")
    wrong = tokenizer.from_source(TokenizerFolder(other.folder, tuple(other.contents())))
    with pytest.raises(TokenizerError, match=r"the tokenizer in .+other is not the launcher's"):
        wrong.encode(["x"], False)
