"""Claims: one job at a time may write an output. A job that has lost its claim stops.

* The launcher holds a lock of the operating system as long as it lives (`locked`). For an output on a disk the lock
  file is next to the output; for an output in a store it is among this machine's temporary files. Each lock has a
  random name, drawn when it was first held.
* A claim is a small file next to the output. It names the launch, and a lease that launcher and workers renew as long
  as they live. The lock alone is not enough: a job on a runner may outlive its launcher, and launchers on several
  machines share no lock for a store. A claim is made, renewed and taken over by conditional writes (`files.write_if`),
  so only one of two launches wins.
* Another launch may take the claim over when its lease has ended. It may do so at once if the job ends with its
  launcher and this process holds the same lock, by its name: equal host names prove nothing.

Source: leases as in C. Gray and D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency", SOSP 1989. The clocks of the machines must agree to within a small part of the lease.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock

from beam_prep.errors import LockedError
from beam_prep.formats.manifest import dump
from beam_prep.process import lives
from beam_prep.storage.files import delete, join, write_file, write_if
from beam_prep.storage.stores import StoreOptions, is_local, read_version

log = logging.getLogger("beam_prep")

LEASE = 600.0
"""Seconds that a claim lasts after it was renewed."""
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a claim.

    Attributes:
        launch: the id of the launch.
        host, pid: the launcher's machine and process.
        lock: the name of the lock that the launcher holds as long as the job lasts; None: the job may outlive it.
        started: when the launch began, in seconds since the epoch.
        renewed: when the claim was last renewed, in seconds since the epoch.
        lease: the claim ends so many seconds after `renewed`. 0: the launch has failed, and its claim has ended.
        version_name: the name of the version that the launch makes. After a takeover: the version of the launch before,
            until its leftovers are removed.
        job: id and URL of the runner's job, once there is one.
    """

    launch: str
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    lock: str | None = None
    started: float = field(default_factory=time.time)
    renewed: float = field(default_factory=time.time)
    lease: float = LEASE
    version_name: str | None = None
    job: Mapping[str, str] = field(default_factory=dict)

    def who(self) -> str:
        """Who holds the output, for messages."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        job = f", job {' '.join(self.job.values())}" if self.job else ""
        return f"pid {self.pid} on {self.host}, since {since}{job}"


class Claims:
    """The claim on an output, as one launch sees it.

    Args:
        folder: the folder of all launches on the output, next to the output; it holds the claim.
        output: the output, for messages.
        launch: the id of this launch.
    """

    def __init__(self, folder: str, output: str, launch: str) -> None:
        self.path = join(folder, "claim.json")
        self._output, self._launch = output, launch

    @property
    def _lock_path(self) -> str:
        path = f"{self.path.removesuffix('claim.json')}lock"
        if is_local(path):
            return path
        server = dict(StoreOptions.current().given).get("s3_endpoint_url") or os.getenv("STORAGE_EMULATOR_HOST", "")
        of_server = hashlib.sha256(str(server).encode()).hexdigest()[:8]  # another server has other buckets
        return os.path.join(tempfile.gettempdir(), f"beam_prep-{path.split('/')[-2]}-{of_server}.lock")

    @property
    def lock(self) -> str | None:
        """The name of the output's lock on this machine; None if it was never held."""
        path = Path(f"{self._lock_path}.name")
        return path.read_text() if path.exists() else None

    @contextlib.contextmanager
    def locked(self, dry: bool = False) -> Iterator[None]:
        """Holds the lock of the output on this machine. `dry`: makes no file; without a file nobody holds the lock.

        Raises:
            LockedError: another launcher holds it.
        """
        if dry and not os.path.exists(self._lock_path):
            yield
            return
        os.makedirs(os.path.dirname(self._lock_path), exist_ok=True)
        lock = filelock.FileLock(self._lock_path, timeout=0, mode=0o666)
        try:
            lock.acquire()
        except filelock.Timeout:
            holder = self.holder()  # None if it has its lock, but no claim yet
            if holder is not None and holder.host == platform.node() and not lives(holder.pid):
                holder = None  # the claim is of a launcher that was killed before; its number may be another's soon
            who = f": {holder.who()}" if holder else ""
            stop = f"; to stop it, type on {holder.host}: kill {holder.pid}" if holder else ""
            raise LockedError(
                f"another job is writing {self._output}{who}. Wait for it, or choose another output{stop}"
            ) from None
        try:
            if self.lock is None and not dry:
                write_file(f"{self._lock_path}.name", uuid.uuid4().hex.encode())
            yield
        finally:
            lock.release()

    def take(self, mine: Claim, *, is_locked: bool = False) -> Claim | None:
        """Claims the output for this launch. Does nothing if this launch already holds the claim.

        Args:
            mine: the content of the new claim.
            is_locked: this process holds the lock.

        Returns:
            the claim that was taken over, of a launch that did not end well; None if there was none.

        Raises:
            LockedError: another launch holds the output.
        """
        taken = None
        for _ in range(_ATTEMPTS):
            other, version = self._read()
            if other is not None and other.launch == self._launch:
                return taken  # the answer to the write was lost, or a step runs again
            if other is not None:
                self._check_ended(other, is_locked)
            taken = other
            if self._write(mine if other is None else replace(mine, version_name=other.version_name), version):
                if other is not None:
                    log.info("%s: launch %s failed or was killed; this run takes over", self._output, other.launch)
                return other
        raise LockedError(f"{self._output} is being claimed by several jobs at once (see {self.path}): run again later")

    def check_free(self) -> None:
        """Checks that no other launch holds the claim. Call it with the lock.

        Raises:
            LockedError: another launch holds the output.
        """
        other = self.holder()
        if other is not None and other.launch != self._launch:
            self._check_ended(other, is_locked=True)

    def _check_ended(self, other: Claim, is_locked: bool) -> None:
        """Checks that a claim may be taken over.

        Raises:
            LockedError: its job may still be running.
        """
        is_gone = is_locked and other.lock is not None and other.lock == self.lock
        if time.time() <= other.renewed + other.lease and not is_gone:
            raise LockedError(self._held_by(other))

    def check(self) -> None:
        """Checks that this launch still holds the claim, and renews it if that is due.

        Raises:
            LockedError: another launch holds the claim, or nobody.
        """
        found, version = self._read()
        if found is None:
            raise LockedError(
                f"the claim of this job on {self._output} is gone ({self.path}): another job has made the output, or "
                "somebody removed the claim; run again"
            )
        if found.launch != self._launch:
            raise LockedError(f"another job has claimed {self._output} meanwhile: {self._held_by(found)}")
        if time.time() - found.renewed > found.lease / 3:
            # If the write fails, another worker of this launch was faster, or the next check finds another launch.
            self._write(replace(found, renewed=time.time()), version)

    def update(self, **changes: Any) -> bool:
        """Changes fields of the claim. False if this launch no longer holds it."""
        for _ in range(_ATTEMPTS):
            found, version = self._read()
            if found is None or found.launch != self._launch:
                return False
            if self._write(replace(found, **changes), version):
                return True
        return False

    def holder(self) -> Claim | None:
        """The current claim, or None."""
        return self._read()[0]

    def release(self) -> None:
        """Removes the claim, if this launch holds it."""
        found = self.holder()
        if found is not None and found.launch == self._launch:
            delete([self.path])

    def end(self) -> None:
        """Ends the claim, but keeps its file: it tells the next launch that a job of ours wrote files in the output."""
        self.update(lease=0.0)

    def end_without_launcher(self) -> None:
        """Ends the claim if the job may have outlived its launcher. Otherwise the launcher releases it."""
        holder = self.holder()
        if holder is not None and holder.lock is None:
            self.end()

    @contextlib.contextmanager
    def renewed(self, lease: float) -> Iterator[None]:
        """Renews the claim in a thread as long as the context lasts. The job's steps notice a lost claim."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(lease / 3):
                try:
                    self.update(renewed=time.time())
                except Exception as error:  # a store without an answer, for instance; the job's steps fail on it, too
                    log.warning("the claim on %s could not be renewed (%s)", self._output, error)

        thread = threading.Thread(target=renew, daemon=True, name="beam_prep-claim")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _read(self) -> tuple[Claim | None, str | None]:
        """The current claim, and the version of its file."""
        content, version = read_version(self.path) or (None, None)
        if content is None:
            return None, None
        try:
            return Claim(**json.loads(content)), version
        except (ValueError, TypeError):
            raise LockedError(f"{self.path} is not a claim of this version of beam_prep: {self._breaking()}") from None

    def _write(self, claim: Claim, version: str | None) -> bool:
        return write_if(self.path, dump(asdict(claim)), version)

    def _held_by(self, claim: Claim) -> str:
        left = max(0, round(claim.renewed + claim.lease - time.time()))
        return (
            f"another job is writing {self._output}: {claim.who()}. Wait for it, or choose another output. If it has "
            f"ended: its claim ends {left} s from now, or {self._breaking()}"
        )

    def _breaking(self) -> str:
        command = {"gs": "gcloud storage rm", "s3": "aws s3 rm"}.get(self.path.partition("://")[0], "rm")
        return f"type: {command} {self.path}"
