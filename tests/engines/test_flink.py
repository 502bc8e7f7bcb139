"""A real Flink cluster gives the bytes that this process gives, and says what went wrong as clearly."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from beam_prep.errors import RunError
from tests.conftest import TOKENIZER_PATH, tree
from tests.engines.flink import Cluster, Flink
from tests.engines.jobs import JOBS, run
from tests.engines.processes import await_

CHAT = JOBS["chat, bin + tfrecord"]
HERE = ["--runner=FnApiRunner"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    return CHAT.write_input(folder)


@pytest.fixture(scope="module")
def here(folder: Path, source: Path) -> dict[str, bytes]:
    """Every file that this process makes."""
    run(CHAT.config, source, folder / "here", HERE)
    return tree(folder / "here")


def test_too_many_rejects_end_in_our_own_words_and_publish_nothing(
    flink: Flink, external: list[str], folder: Path, source: Path
) -> None:
    bad = folder / "bad.jsonl"
    bad.write_bytes(source.read_bytes() + b"{\n" * 50)
    said = []
    for output, options in ((folder / "bad_here", HERE), (folder / "bad_flink", [*flink.options, *external])):
        with pytest.raises(RunError) as error:
            run(CHAT.config, bad, output, options)
        assert not output.exists()
        said.append(str(error.value).replace(str(output), "OUT"))
    assert "bad_json" in said[0]
    assert said[1] == said[0]
    assert tree(folder / "bad_flink.failed") == tree(folder / "bad_here.failed")


def test_a_killed_task_manager_costs_time_and_nothing_else(
    flink: Flink, process: list[str], folder: Path, source: Path, here: dict[str, bytes]
) -> None:
    """One of two, with -9, in the middle of blocks; what its finished tasks had written is lost with it, too."""
    cluster = flink.cluster
    (survivor,) = cluster.names()
    victim = cluster.add_task_manager()
    cluster.wait_for_slots(4)
    halted: list[int] = []

    def halt() -> bool:
        """Halts the SDK workers of the victim that have done a block; whether there was one."""
        assert not job.done(), job.result()
        for path in folder.glob(".beam_prep/*/*/progress/*"):
            pid = int(path.name.rpartition("-")[2])
            with contextlib.suppress(ProcessLookupError):  # one that has ended
                if pid not in halted and os.getsid(pid) == victim.process.pid:
                    os.kill(pid, signal.SIGSTOP)
                    halted.append(pid)
        return bool(halted)

    with ThreadPoolExecutor() as pool:
        job = pool.submit(run, CHAT.config, source, folder / "killed", [*flink.options, *process])
        try:
            await_(halt, "the second TaskManager to tokenise a block")
            (number,) = (one["jid"] for one in cluster.get("/jobs/overview")["jobs"] if one["state"] == "RUNNING")
            before = tokenising(cluster, number)
            victim.kill()
            for pid in halted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)  # it may go on, as a worker does that was cut off
            manifest = job.result(timeout=250)
        finally:
            victim.stop()
            cluster.task_managers.remove(victim)
    lost = [index for index, task in enumerate(before) if task["taskmanager-id"] != survivor]
    assert lost
    after = tokenising(cluster, number)
    assert {after[index]["taskmanager-id"] for index in lost} == {survivor}
    assert all(after[index]["attempt"] > before[index]["attempt"] for index in lost)
    assert manifest["ledger"]["lines"] == manifest["ledger"]["kept"] == len(source.read_bytes().splitlines())
    assert tree(folder / "killed") == here
    cluster.wait_for_slots(2)


def tokenising(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    """The subtasks of the task that tokenises, as Flink describes them: `attempt`, `status`, `taskmanager-id`."""
    (task,) = (one["id"] for one in cluster.get(f"/jobs/{job}")["vertices"] if "{ReadJSONL, Prepare" in one["name"])
    return list(cluster.get(f"/jobs/{job}/vertices/{task}")["subtasks"])


# The launcher ends, and its job does not


class Launch:
    """`beam-prep run` as a process, whose SDK workers are halted in the middle of the job."""

    def __init__(self, source: Path, output: Path, options: list[str]) -> None:
        config = output.parent / f"{output.name}.json"
        config.write_text(json.dumps(CHAT.config))
        self.command = [sys.executable, "-m", "beam_prep.cli", "run", "-o", str(output), "-c", str(config)]
        self.command += ["--tokenizer_path", str(TOKENIZER_PATH), "--block_bytes=65536", "--overwrite"]
        self.process = subprocess.Popen([*self.command, str(source), *options], stderr=subprocess.PIPE, text=True)
        self._output = output
        self._halted: set[int] = set()
        await_(self._halt, "a worker to tokenise a block")

    def _halt(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        for path in self._output.parent.glob(f".beam_prep/{self._output.name}-*/*/progress/*"):
            pid = int(path.name.rpartition("-")[2])
            os.kill(pid, signal.SIGSTOP)
            self._halted.add(pid)
        return bool(self._halted)

    def go_on(self) -> None:
        for pid in self._halted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def state_of(cluster: Cluster, before: set[str]) -> str:
    """The state of the one job that was not there before."""
    (found,) = (job["state"] for job in cluster.get("/jobs/overview")["jobs"] if job["jid"] not in before)
    return str(found)


def jobs_of(cluster: Cluster) -> set[str]:
    return {job["jid"] for job in cluster.get("/jobs/overview")["jobs"]}


def test_a_job_whose_launcher_was_killed_never_replaces_a_newer_output(
    flink: Flink, external: list[str], folder: Path, source: Path
) -> None:
    newer, output = folder / "newer.jsonl", folder / "stale"
    newer.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:200]))
    run(CHAT.config, newer, folder / "newer", HERE)
    before = jobs_of(flink.cluster)
    stale = Launch(source, output, [*flink.options, *external])
    try:
        stale.process.kill()
        stale.process.communicate()
        second = [*stale.command, str(newer), "--runner=FnApiRunner"]
        refused = subprocess.run(second, capture_output=True, text=True)
        assert refused.returncode == 6
        assert f"another job is writing {output}: pid {stale.process.pid} on " in refused.stderr
        assert f"http://{flink.cluster.address}" in refused.stderr
        claim = Path(refused.stderr.strip().rpartition("type: rm ")[2])
        claim.unlink()
        done = subprocess.run(second, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert tree(output) == tree(folder / "newer")
    finally:
        stale.go_on()
    await_(lambda: state_of(flink.cluster, before) in ("FAILED", "FINISHED", "CANCELED"), "the stale job to end")
    assert state_of(flink.cluster, before) == "FAILED"
    assert tree(output) == tree(folder / "newer")


def test_a_stopped_launcher_cancels_its_job(flink: Flink, external: list[str], folder: Path, source: Path) -> None:
    before = jobs_of(flink.cluster)
    launch = Launch(source, folder / "stopped", [*flink.options, *external])
    try:
        launch.process.terminate()
        _, said = launch.process.communicate(timeout=120)
    finally:
        launch.go_on()
    assert launch.process.returncode == 143
    assert "the job was cancelled on its runner" in said
    assert said.splitlines()[-1].startswith("beam-prep: stopped by SIGTERM")
    assert "Traceback" not in said
    await_(lambda: state_of(flink.cluster, before) not in ("RUNNING", "CANCELLING"), "the job to end")
    assert state_of(flink.cluster, before) == "CANCELED"
    assert not (folder / "stopped").exists()
