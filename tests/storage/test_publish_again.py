"""Engines run the last step again when it failed. Whatever an attempt left, the next one gives the same."""

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_prep.errors import RunError
from beam_prep.storage import output as output_module
from beam_prep.storage import stores
from beam_prep.storage.output import LocalOutput, Staging, StoredOutput
from beam_prep.storage.publish import Publisher
from beam_prep.storage.stores import read_bytes
from tests.conftest import Patch, run_job, text_config, tree, write_lines
from tests.storage.memory import MemoryStore

OUTPUT = {"storage_format": ["bin", "arrow"], "max_tokens_per_shard": 30}
CONFIG = text_config(preprocessing={"min_chars": 1}, output=OUTPUT)


class Killed(BaseException):
    pass


class Attempts:
    """Kills the nth attempt of the last step before its nth change, until an attempt comes to its end."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.kills, self.working = True, False
        self.made = self.changes = 0
        publish = Publisher.publish

        def published(*given: Any) -> str:
            for self.made in itertools.count(1):
                self.changes, self.working = 0, self.kills
                try:
                    return publish(*given)
                except Killed:
                    pass
                finally:
                    self.working = False
            raise AssertionError

        monkeypatch.setattr(Publisher, "publish", published)

    def before(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            if self.working:
                self.changes += 1
                if self.changes == self.made:
                    raise Killed
            return change(*given, **named)

        return wrapped


@pytest.fixture
def attempts(monkeypatch: Patch, store: MemoryStore) -> Attempts:
    found = Attempts(monkeypatch)
    changing: list[tuple[Any, tuple[str, ...]]] = [
        (os, ("rename", "replace", "unlink", "link", "rmdir", "makedirs")),
        (shutil, ("rmtree", "copytree")),
        (output_module, ("_exchanged",)),
        (LocalOutput, ("check_claim",)),
        (StoredOutput, ("check_claim",)),
        (store, ("put", "copy", "delete")),
    ]
    for owner, names in changing:
        for name in names:
            monkeypatch.setattr(owner, name, found.before(getattr(owner, name)))
    return found


@pytest.fixture
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    """(output, the folder of unfinished files)."""
    if request.param == "store":
        yield f"mem://bucket/{tmp_path.parent.name}/out", None
    elif request.param == "disk":
        yield str(tmp_path / "out"), None
    else:
        if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second disk at /dev/shm")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield str(tmp_path / "out"), folder


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    texts = {"old": ["one", "two"] * 9, "new": ["some more", "and others"] * 8}
    rows = {name: [{"text": text} for text in given] for name, given in texts.items()}
    return {name: write_lines(tmp_path / f"{name}.jsonl", given) for name, given in rows.items()}


def run(output: str, inputs: Path, **options: Any) -> None:
    run_job(CONFIG, inputs, output, overwrite=True, **options)


def digests(folder: str) -> dict[str, str]:
    if "://" in folder:
        named = {found.path[len(folder) + 1 :]: read_bytes(found.path) for found in stores.listed(f"{folder}/")}
    else:
        named = tree(folder, ())
    # What says when and how a run was made differs between two runs; the folder of launches is not the output.
    return {
        name: hashlib.sha256(data).hexdigest()
        for name, data in named.items()
        if not name.endswith(("run.json", "report.html")) and ".beam_prep/" not in name
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("output", "keep_versions"), [("disk", 1), ("other_disk", None), ("store", None), ("store", 1)], indirect=["output"]
)
def test_an_attempt_gives_the_same_output_whatever_an_earlier_one_left(
    output: tuple[str, str | None], inputs: dict[str, Path], keep_versions: int | None, attempts: Attempts
) -> None:
    path, staging = output
    names = ("old", "new")
    options = [{"keep_versions": keep_versions, "version_name": name} if keep_versions else {} for name in names]
    with pytest.MonkeyPatch.context() as calm:
        calm.setattr(attempts, "kills", False)
        for made in (f"{path}_calm", path):
            run(made, inputs["old"], staging=staging, **options[0])
        run(f"{path}_calm", inputs["new"], staging=staging, **options[1])
    run(path, inputs["new"], staging=staging, **options[1])
    assert attempts.made > 3
    wanted = digests(f"{path}_calm")
    assert len(wanted) > 10
    assert digests(path) == wanted


def test_an_output_that_a_killed_launch_moved_aside_comes_back(tmp_path: Path, inputs: dict[str, Path]) -> None:
    """Where directories cannot be exchanged (NFS), there is a moment at which nothing is at the output's path."""
    output = tmp_path / "out"
    run(str(output), inputs["old"])
    before = digests(str(output))
    launch = Staging.beside(str(output)).path()
    os.makedirs(launch)
    os.rename(output, f"{launch}/out.replaced")
    inputs["new"].write_text("{\n")
    with pytest.raises(RunError):
        run(str(output), inputs["new"])
    assert digests(str(output)) == before
