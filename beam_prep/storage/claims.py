"""The claim of a launch on its output: one job at a time makes an output, and a job that lost its claim stops.

A claim is a small file next to the output. It names the launch, its process, and a lease: as long as the launch lives,
its launcher or its workers renew the claim. The claim of a launch that is gone ends with its lease, so that a killed
launch blocks nobody for longer. It is made and taken over by writes that happen only if the claim is still what was
read (on a store a conditional put), so that of two launches one wins.

Source: leases as in C. Gray and D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency", SOSP 1989. The clocks of the machines must agree to within a small part of the lease.
"""

import contextlib
import dataclasses
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import filelock

from beam_prep.errors import LockedError
from beam_prep.formats.manifest import dump
from beam_prep.storage.files import join
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import PreconditionFailed, is_local
from beam_prep.storage.stores.objects import read_version

log = logging.getLogger("beam_prep")

LEASE = 600.0
"""Seconds."""
_ATTEMPTS = 5
_at_work: set[str] = set()
"""The launches of this process that hold claims."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the claim of a launch says.

    Attributes:
        launch: the launch.
        host, pid: its launcher.
        process: the launcher among all processes of all machines, see `this_process`.
        dies: the job ends with its launcher: all of its processes are the launcher's.
        started: when the launch began, in seconds since the epoch.
        renewed: when the claim was last renewed.
        lease: seconds after that, when it ends. 0: the launch has failed, and its claim has ended.
        version_name: the name of the version that it makes.
        job: the runner's id and URL of its job, once there is one.
        left: (launch, version) of those before it that did not end well, and of which something may be left.
    """

    launch: str
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: this_process())
    dies: bool = False
    started: float = field(default_factory=time.time)
    renewed: float = field(default_factory=time.time)
    lease: float = LEASE
    version_name: str | None = None
    job: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[Sequence[str | None]] = ()

    def ended(self) -> list[Sequence[str | None]]:
        """`left` for the launch that takes this claim over."""
        return [*self.left, (self.launch, self.version_name)]

    @property
    def is_due(self) -> bool:
        """True if it should be renewed."""
        return time.time() - self.renewed > self.lease / 3

    def who(self) -> str:
        """Who holds the output, for messages."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        job = f", job {' '.join(self.job.values())}" if self.job else ""
        return f"pid {self.pid} on {self.host}, since {since}{job}"

    def has_ended(self) -> bool:
        """True if another launch may take it over."""
        if time.time() > self.renewed + self.lease:
            return True
        if not self.dies:
            return False
        if self.process == this_process():  # which has failed, and could not end its claim: the store did not answer
            return self.launch not in _at_work
        return _is_gone(self.process, self.pid)


class _Found(NamedTuple):
    claim: Claim
    version: str


class _ClaimFile(Protocol):
    path: str

    def read(self) -> tuple[bytes, str] | None:
        """(content, version), or None."""
        ...

    def write(self, data: bytes, version: str | None) -> bool:
        """Writes it if it still has this version, or (None) is not there; False if not."""
        ...

    def remove(self) -> None: ...


class Claims:
    """The claim on an output, as one launch sees it.

    Args:
        folder: where the claim is: the folder of all launches on the output, next to it.
        output: the output, for messages.
        launch: this launch.
    """

    def __init__(self, folder: str, output: str, launch: str) -> None:
        path = join(folder, "claim.json")
        self._file: _ClaimFile = _LocalFile(path) if is_local(path) else _Object(path)
        self._output, self._launch = output, launch

    @property
    def path(self) -> str:
        """Where the claim is."""
        return self._file.path

    def take(self, mine: Claim, *, alone: bool = False, launched: bool = True) -> Claim | None:
        """Claims the output for this launch. If it has claimed it already, nothing is done.

        Args:
            mine: what the claim will say.
            alone: this process holds the lock of the output on this machine: no launcher of another claim of this
                machine lives.

        Returns:
            the claim of a launch that did not end well and whose claim was taken over; None if there was none.

        Raises:
            LockedError: another launch holds the output.
        """
        other = None
        if launched:  # else nobody tells when it fails: the next chain of this process takes over
            _at_work.add(mine.launch)
        for _ in range(_ATTEMPTS):
            found = self._read()
            if found is None:
                other = None
                if self._file.write(dump(asdict(mine)), None):
                    return None
                continue
            if found.claim.launch == self._launch:
                return other  # the answer to the write was lost, or a step runs again
            other = found.claim
            if not self._may_be_taken(other, alone):
                raise LockedError(self._held_by(other))
            if self._file.write(dump(asdict(replace(mine, left=other.ended()))), found.version):
                log.info("%s was claimed by launch %s, which did not end well", self._output, other.launch)
                return other
        raise LockedError(f"{self._output} is being claimed by several jobs at once (see {self.path}): run again later")

    def ended(self, alone: bool) -> Claim | None:
        """The claim of a launch that did not end well; None if there is none. For `alone` see `take`.

        Raises:
            LockedError: another launch holds the output.
        """
        other = self.holder()
        if other is None or other.launch == self._launch:
            return None
        if not self._may_be_taken(other, alone):
            raise LockedError(self._held_by(other))
        return other

    def _may_be_taken(self, other: Claim, alone: bool) -> bool:
        return other.has_ended() or (alone and other.dies and _machine(other.process) == _machine(this_process()))

    def check(self) -> None:
        """Makes sure that the output is still this launch's, and renews the claim if that is due.

        Raises:
            LockedError: it is another launch's, or nobody's.
        """
        found = self._read()
        if found is None:
            raise LockedError(
                f"the claim of this job on {self._output} is gone ({self.path}): another job has made the output, or "
                "somebody removed the claim; run again"
            )
        if found.claim.launch != self._launch:
            raise LockedError(f"another job has claimed {self._output} meanwhile: {self._held_by(found.claim)}")
        if found.claim.is_due:
            # If the write loses, another worker of this launch was faster; or the next check finds another launch.
            self._file.write(dump(asdict(replace(found.claim, renewed=time.time()))), found.version)

    def update(self, **changes: Any) -> bool:
        """Changes what the claim says, if it is still this launch's; False if it is not."""
        for _ in range(_ATTEMPTS):
            found = self._read()
            if found is None or found.claim.launch != self._launch:
                return False
            if self._file.write(dump(asdict(replace(found.claim, **changes))), found.version):
                return True
        return False

    def holder(self) -> Claim | None:
        """The claim that is there, or None."""
        found = self._read()
        return None if found is None else found.claim

    def release(self) -> None:
        """Gives the claim up. Another launch's is left."""
        _at_work.discard(self._launch)
        found = self._read()
        if found is not None and found.claim.launch == self._launch:
            self._file.remove()

    def end(self) -> None:
        """Ends the claim and leaves it there: it tells the next launch that what lies in the output is ours."""
        _at_work.discard(self._launch)
        self.update(lease=0.0)

    def end_without_launcher(self) -> None:
        """Ends the claim of a job that may have outlived its launcher. Others are released by their launcher."""
        holder = self.holder()
        if holder is not None and not holder.dies:
            self.end()

    @contextlib.contextmanager
    def renewed(self, lease: float) -> Iterator[None]:
        """Renews the claim in a thread as long as the context lasts. The steps notice if it was lost."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(lease / 3):
                try:
                    self.update(renewed=time.time())
                except Exception as error:  # a store that does not answer now; the job's steps will meet it, too
                    log.warning("the claim on %s could not be renewed (%s)", self._output, error)

        thread = threading.Thread(target=renew, daemon=True, name="beam_prep-claim")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _read(self) -> _Found | None:
        content = self._file.read()
        if content is None:
            return None
        try:
            fields = json.loads(content[0])
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or fields.keys() != {each.name for each in dataclasses.fields(Claim)}:
            raise LockedError(f"{self.path} is not a claim of this version of beam_prep: {self._breaking()}")
        return _Found(Claim(**fields), content[1])

    def _held_by(self, claim: Claim) -> str:
        left = max(0, round(claim.renewed + claim.lease - time.time()))
        return (
            f"another job is writing {self._output}: {claim.who()}. Wait for it, or choose another output. If it has "
            f"ended: its claim ends {left} s from now, or {self._breaking()}"
        )

    def _breaking(self) -> str:
        command = {"gs": "gcloud storage rm", "s3": "aws s3 rm"}.get(self.path.partition("://")[0], "rm")
        return f"type: {command} {self.path}"


class _LocalFile:
    """A claim on a disk. Its version is its content. A lock of the file system makes compare and write one step."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> tuple[bytes, str] | None:
        try:
            content = Path(self.path).read_bytes()
        except FileNotFoundError:
            return None
        return content, content.decode("utf-8", "replace")

    def write(self, data: bytes, version: str | None) -> bool:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with filelock.FileLock(f"{self.path.removesuffix('.json')}.lock"):
            found = self.read()
            if (None if found is None else found[1]) != version:
                return False
            made = f"{self.path}.new"
            Path(made).write_bytes(data)
            os.replace(made, self.path)
        return True

    def remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)


class _Object:
    """A claim in a store, written by conditional puts."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> tuple[bytes, str] | None:
        return read_version(self.path)

    def write(self, data: bytes, version: str | None) -> bool:
        try:
            if version is None:
                objects.put_if_absent(self.path, data)
            else:
                objects.put_if_version(self.path, data, version)
        except (PreconditionFailed, FileNotFoundError):
            return False
        return True

    def remove(self) -> None:
        objects.delete([self.path])


def this_process() -> str:
    """This process among all processes of all machines: boot of the kernel, process namespace, start. Linux only.

    "" on other systems, where nobody can tell that a process is gone.
    """
    return _process(os.getpid())


def _process(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        # Field 22 of proc_pid_stat(5). The second one, the name of the program, may contain blanks.
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{boot} {namespace} {start}"


def _machine(process: str) -> str:
    return process.partition(" ")[0] or platform.node()


def _is_gone(process: str, pid: int) -> bool:
    """True if a process of this machine, in the namespace of this process, is no more. False if nobody can tell."""
    mine = this_process()
    if not process or process.rpartition(" ")[0] != mine.rpartition(" ")[0]:
        return False
    return _process(pid) != process
