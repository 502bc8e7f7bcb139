"""Runs jobs whose changes to files are counted, and which are killed, or meet an error, at the N-th of them."""

import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

import psutil

SOURCE = Path(__file__).with_name("events.c")
Fault = Literal["none", "kill all", "kill one", "disk full", "input/output error", "SIGINT", "SIGTERM"]
_ACTIONS: tuple[Fault, ...] = get_args(Fault)  # in the order of events.c
_STATE = struct.Struct("@lll")
_SECONDS = 60
"""A job of the harness takes one or two."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended.

    Attributes:
        code: its exit code; below zero: the signal that killed it.
        changes: changes of files below the root, of all its processes.
        words: what it wrote to standard error.
        memory: bytes of its largest process, at most.
    """

    code: int
    changes: int
    words: str
    memory: int


class Jobs:
    """Runs jobs below a folder, one at a time.

    Args:
        root: changes below it are counted.
        work: for the library, the counter, and what jobs print; not below the root.
        modules: imported once for all jobs.
    """

    def __init__(self, root: Path, work: Path, modules: Sequence[str] = ()) -> None:
        self.root = root
        self._state, self._work = work / "state", work
        library = work / "events.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
        self._state.write_bytes(_STATE.pack(0, 0, 0))
        added = {"LD_PRELOAD": str(library), "FAULTS_STATE": str(self._state), "FAULTS_ROOT": os.path.realpath(root)}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **added},
            text=True,
        )
        self._answer()

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.communicate()

    def run(self, *arguments: str, fault: Fault = "none", at: int = 0) -> Ended:
        """Runs `beam-prep` with these arguments; the fault is at the N-th change, from 1."""
        self._state.write_bytes(_STATE.pack(0, at if fault != "none" else 0, _ACTIONS.index(fault)))
        job = {"arguments": arguments, "stdout": str(self._work / "stdout"), "stderr": str(self._work / "stderr")}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = self._answer()
        _wait_for_group(int(answer["group"]))
        changes, *_ = _STATE.unpack(self._state.read_bytes())
        return Ended(int(answer["code"]), changes, (self._work / "stderr").read_text(), int(answer["memory"]))

    def kill(self) -> None:
        """Kills all processes of the job that runs."""
        for child in psutil.Process(self._server.pid).children():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _answer(self) -> dict[str, int]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError("the server of jobs has ended")
        return dict(json.loads(line))


def _wait_for_group(group: int) -> None:
    """Waits until no process of a job is left.

    Raises:
        AssertionError: one is left after a minute.
    """
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)  # nothing tells of the end of a process that is not one's child
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    raise AssertionError("a worker is left though its launcher is gone")


def contents(folder: Path) -> dict[str, str]:
    """Path -> sha256 of the files below a folder, links followed; not of what tells times."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("run.json", "report.html")
    }


def names(folder: Path) -> set[str]:
    """All that lies in a folder, however deep, folders too; not what a killed writer left for `gc`."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not re.search(r"\.[0-9a-f]{32}$", path.name)}


def restore(folder: Path, saved: Path) -> None:
    """Makes a folder what it was when it was saved."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder, symlinks=True)
