"""A job on gs:// or s3:// of which one request is dropped, cut, refused or delayed, or which is killed there.

Whatever the request is: the job ends well, or with one line that says why; a reader who trusts the manifest sees
complete outputs alone, and with versions always one; the next run gives the bytes of a run that nothing disturbed,
and leaves nothing else. `make faults` tries every request; without `FAULTS=all`, some are drawn, others by each commit.
"""

import hashlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.formats.manifest import UNLISTED
from beam_prep.storage import stores
from beam_prep.storage.claims import LEASE
from beam_prep.storage.output import listed_files
from beam_prep.storage.stores import Changed, read_bytes, read_version
from tests.conftest import ROOT, commit
from tests.engines.stores import Store, gcs_server, s3_server
from tests.faults.harness import Jobs
from tests.faults.proxy import Disturbance, Proxy, proxy_before
from tests.faults.test_local import CONFIG, EVERY, RUNNERS, chats

CASES_DRAWN, TRIALS_DRAWN = 5, 2
"""Cases for each store that are tried where not all are, and trials of each."""
STEP = 12
PASSING: tuple[Disturbance, ...] = ("drop", "cut request", "lose answer", "cut body", "503", "delay")
"""What a job survives. In one trial each `STEP`-th request is disturbed, so that `STEP` trials disturb each of them."""
VERSIONS = ("--keep_versions", "2")
OPTIONS = {
    "new": (),
    "overwrite": ("--overwrite",),
    "version_name": (*VERSIONS, "--version_name", "new"),
    "keep_versions": VERSIONS,
}
CASES = [(name, runner) for name in OPTIONS for runner in RUNNERS]
if not EVERY:
    CASES = sorted(random.Random(commit()).sample(CASES, CASES_DRAWN), key=CASES.index)
_TIME = re.compile(r"\d{8}T\d{6}Z")


class Place:
    """A storage server, a proxy before it, and jobs that reach it through the proxy."""

    def __init__(self, server: Store, proxy: Proxy, jobs: Jobs, folder: Path) -> None:
        self.server, self.proxy, self.jobs, self.folder = server, proxy, jobs, folder
        proxy.kill = jobs.kill
        self.options = [each.replace(str(server.port), str(proxy.port)) for each in server.options]
        self._numbers = iter(range(10**9))

    def new_folder(self) -> str:
        return f"{self.server.url}/{next(self._numbers)}"


@pytest.fixture(scope="module", params=[s3_server, gcs_server], ids=["s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("stores")
    (folder / "root").mkdir()
    (folder / "old.jsonl").write_text(chats(60, "old"))
    (folder / "other.jsonl").write_text(chats(50, "other"))
    (folder / "new.jsonl").write_text(chats(150, "new"))
    config = {**CONFIG, "output": {**CONFIG["output"], "max_tokens_per_shard": 200_000}}  # type: ignore[dict-item]
    (folder / "config.json").write_text(json.dumps(config))
    before = FileSystems._pipeline_options
    with request.param(folder) as server, proxy_before(server.port, preconditions=server.url.startswith("gs")) as proxy:
        FileSystems.set_options(PipelineOptions(list(server.options)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{proxy.port}")
            patch.setenv("AWS_MAX_ATTEMPTS", "1")  # boto3's own retries, with pauses of their own, hide ours
            jobs = Jobs(folder / "root", folder, ["tests.faults.impatient"])
        with jobs:
            yield Place(server, proxy, jobs, folder)
    FileSystems.set_options(before)


def read(path: str) -> bytes | None:
    try:
        return read_bytes(path)
    except (FileNotFoundError, Changed):
        return None


def listing(folder: str) -> dict[str, bytes]:
    """All that lies below a folder of a store but the content of what no manifest lists."""
    paths = [found.path for found in stores.listed(f"{folder}/")]
    return {path.removeprefix(f"{folder}/"): b"" if path.endswith(UNLISTED) else read(path) or b"" for path in paths}


def without_times(found: dict[str, bytes]) -> dict[str, bytes]:
    """A listing in which the names of versions that are times are alike."""
    texts = {
        name: _TIME.sub("TIME", data.decode()).encode() if name.endswith("latest.json") else data
        for name, data in found.items()
    }
    return {_TIME.sub("TIME", name): data for name, data in texts.items()}


class Reader:
    """Someone who trusts `latest.json` and manifests, and looks all the time."""

    def __init__(self, output: str, keep_versions: bool) -> None:
        self._output, self._versions = output, keep_versions
        self.problems: list[str] = []
        self.looks = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            problem = self.look()
            if problem is not None:
                self.problems.append(problem)
            self.looks += 1
            self._done.wait(0.1)

    def look(self) -> str | None:
        """What is wrong with what a reader sees, or None."""
        folder, pointer = self._output, None
        if self._versions:
            pointer = read(f"{folder}/latest.json")
            if pointer is None:
                return "there is no latest.json"
            folder = f"{folder}/{json.loads(pointer)['generation']}"
        text = read(f"{folder}/manifest.json")
        if text is None:
            gap = self._versions and read(f"{self._output}/latest.json") == pointer
            return f"{pointer!r} names what is not there" if gap else None
        for file in listed_files(json.loads(text)):
            data = read(f"{folder}/{file['path']}")
            if data is None or hashlib.sha256(data).hexdigest() != file["sha256"]:
                same = read(f"{folder}/manifest.json") == text
                if same and (pointer is None or read(f"{self._output}/latest.json") == pointer):
                    return f"{file['path']} is not what {folder}/manifest.json says"
                return None  # it was replaced while this reader read it
        return None


class Case:
    """A job, from a folder in which older outputs are, or none."""

    def __init__(self, place: Place, name: str, runner: str = "in-process") -> None:
        self.place, self.name, self.runner = place, name, runner
        self.keep_versions = name in ("version_name", "keep_versions")
        self.before: dict[str, bytes] = {}
        if name != "new":
            folder = place.new_folder()
            for old in ("old", "other") if self.keep_versions else ("old",):
                more = [*VERSIONS, "--version_name", f"1-{old}"] if self.keep_versions else []
                source = str(place.folder / f"{old}.jsonl")
                ended = place.jobs.run("run", source, *self._common(folder), *more)
                assert ended.code == 0, ended.words
            for found in stores.listed(f"{folder}/"):
                self.before[found.path.removeprefix(f"{folder}/")] = read_bytes(found.path)
        folder = self.folder()
        place.proxy.arm()
        ended = place.jobs.run(*self.arguments(folder))
        assert ended.code == 0, ended.words
        self.requests, self.wanted = place.proxy.count, without_times(listing(folder))

    def _common(self, folder: str) -> list[str]:
        given = ["-o", f"{folder}/out", "-c", str(self.place.folder / "config.json")]
        given += ["--tokenizer_path", str(ROOT / "examples" / "tokenizer"), "--block_bytes", "65536"]
        return [*given, "--max_reject_rate", "1", *RUNNERS[self.runner], *self.place.options]

    def arguments(self, folder: str) -> list[str]:
        return ["run", str(self.place.folder / "new.jsonl"), *self._common(folder), *OPTIONS[self.name]]

    def folder(self) -> str:
        """A new folder with the older outputs."""
        folder = self.place.new_folder()
        for name, data in self.before.items():
            stores.put(f"{folder}/{name}", data)
        return folder

    def trials(self) -> list[tuple[Disturbance, int, int]]:
        """(disturbance, first request, and then every so many)."""
        found: list[tuple[Disturbance, int, int]] = [("kill", at, 0) for at in range(1, self.requests + 1)]
        found += [("503", at, 1) for at in range(1, self.requests + 1, 4)]  # the store goes, and does not come back
        if self.runner == "in-process" and self.name != "keep_versions":
            found += [(kind, at, STEP) for kind in PASSING for at in range(1, STEP + 1)]
        return found

    def try_it(self, kind: Disturbance, number: int, every: int) -> None:
        folder, proxy, jobs = self.folder(), self.place.proxy, self.place.jobs
        with Reader(f"{folder}/out", self.keep_versions) as reader:
            proxy.arm(kind, number, every)
            ended = jobs.run(*self.arguments(folder))
            proxy.settle()
            where = f"{self.name}, {kind} at request {number} of {self.requests}, {every} ({', '.join(proxy.seen[:3])})"
            proxy.arm()
            if kind != "kill":
                codes = (5,) if every == 1 else (0,)
                assert ended.code in codes, f"{where}: exit code {ended.code}: {ended.words}"
                assert "Traceback" not in ended.words, f"{where}: {ended.words}"
            if ended.code > 0:
                assert ended.words.splitlines()[-1].startswith("beam-prep: "), f"{where}: {ended.words}"
            began = time.monotonic()
            again = jobs.run(*self.arguments(folder))
            assert again.code == 0, f"{where}, and then: {again.words}"
            assert time.monotonic() - began < LEASE, f"{where}: the next run waits for the end of the lease"
        assert not reader.problems, f"{where}: {reader.problems[0]}"
        assert reader.looks
        found = without_times(listing(folder))
        names = found.keys() ^ self.wanted.keys()
        assert not names, f"{where}: left, or missing, after the next run: {sorted(names)}"
        differ = [name for name in found if found[name] != self.wanted[name]]
        assert not differ, f"{where}: the next run gives other bytes: {differ}"
        stores.delete(each.path for each in stores.listed(f"{folder}/"))


@pytest.mark.parametrize(("name", "runner"), CASES)
def test_no_disturbance_loses_or_shows_a_part(place: Place, name: str, runner: str) -> None:
    case = Case(place, name, runner)
    trials = case.trials()
    if not EVERY:
        seed = f"{commit()} {place.server.url} {name} {runner}"
        trials = random.Random(seed).sample(trials, TRIALS_DRAWN if runner == "in-process" else 1)
    for trial in trials:
        case.try_it(*trial)


@pytest.fixture
def through(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder to which the requests of this process go through the proxy, too."""
    before = FileSystems._pipeline_options
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{place.proxy.port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(stores, "PAUSE", 0.02)
    monkeypatch.setattr(stores, "RETRY_SECONDS", 3.0)
    FileSystems.set_options(PipelineOptions(place.options))
    stores.client_for.cache_clear()
    yield place.new_folder()
    FileSystems.set_options(before)
    stores.client_for.cache_clear()


@pytest.mark.parametrize("kind", PASSING)
def test_each_request_to_a_store_may_be_disturbed(
    place: Place, through: str, tmp_path: Path, kind: Disturbance
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"small")
    large.write_bytes(os.urandom(9 << 20))
    path = f"{through}/object"

    def put_if(data: bytes, version: str | None) -> bytes:
        with suppress(Changed):  # the answer was lost
            stores.put(path, data, version)
        return read_bytes(path)

    def replaced() -> bytes:
        found = read_version(path)
        assert found is not None
        return put_if(b"third", found[1])

    def uploaded(file: Path) -> tuple[str | None, str]:
        stores.upload(path, str(file), "1" * 64)
        described = stores.find(path)
        assert described is not None
        return described.sha256, hashlib.sha256(read_bytes(path)).hexdigest()

    # (what is there before, step, its result)
    steps: list[tuple[bytes | None, Callable[[], object], object]] = [
        (None, lambda: stores.find(path), None),
        (None, lambda: put_if(b"first", None), b"first"),
        (b"first", replaced, b"third"),
        (None, lambda: stores.put(path, b"second"), None),
        (b"third", lambda: stores.get(path, 1, 4), b"hir"),
        (b"third", lambda: [found.path for found in stores.listed(f"{through}/")], [path]),
        (b"third", lambda: uploaded(small), ("1" * 64, hashlib.sha256(b"small").hexdigest())),
        (None, lambda: uploaded(large), ("1" * 64, hashlib.sha256(large.read_bytes()).hexdigest())),
        (b"third", lambda: stores.delete([path]), None),
    ]
    for number, (before, step, wanted) in enumerate(steps):
        at = 0
        while at == 0 or place.proxy.seen:
            at += 1
            place.proxy.arm()
            stores.delete([path]) if before is None else stores.put(path, before)
            place.proxy.arm(kind, at)
            assert step() == wanted, f"step {number}, {kind} at request {at}: {place.proxy.seen}"
        assert at > 1
