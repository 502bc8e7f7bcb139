"""The output that a launch writes, on a disk or in a store: its files, its claim, and its publication."""

import contextlib
import ctypes
import errno
import functools
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beam_prep.errors import LockedError, OutputError
from beam_prep.formats.manifest import FAILURE, MANIFEST, REPORT, RUN, ShardReceipt, WrittenFile, dump
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import join, write_file
from beam_prep.storage.reuse import EarlierShard, copy_objects, link_files, linked_receipt
from beam_prep.storage.staging import HashedFiles, Staging, temporary_files
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import PreconditionFailed, is_local, shortened
from beam_prep.storage.stores.objects import parts, read_bytes


@dataclass(frozen=True, slots=True)
class _Output:
    """The base class of local and stored outputs.

    Attributes:
        path: the output's path.
        staging: the folder of the launch that writes it.
        failed: the folder in which a failed run leaves its report and its rejects.
    """

    path: str
    staging: Staging
    failed: str

    @property
    def claims(self) -> Claims:
        """The claim on the output."""
        return self.staging.claims(self.path)

    def is_published(self) -> bool:
        """True if this launch has already published the output, and the engine runs a step again."""
        run = _read(join(self.path, RUN))
        return bool(json.loads(run).get("launch") == self.staging.launch) if run else False

    def manifest(self) -> bytes | None:
        """The content of the current `manifest.json`, or None. It may be another program's file."""
        return _read(join(self.path, MANIFEST))

    def within(self) -> str | None:
        """Another output in the folder of this one, which would be removed with it; None: there is none."""
        return None

    def write_run(self, run: Mapping[str, Any], page: bytes) -> None:
        """Replaces only `run.json` and `report.html`, if a run made the same output again."""
        write_file(join(self.path, REPORT), page)
        write_file(join(self.path, RUN), dump({**run, "launch": self.staging.launch}))


class LocalOutput(_Output):
    """An output on a disk. It is written to the staging folder, then renamed."""

    __slots__ = ()

    def check_claim(self) -> None:
        """Checks that this launch holds the claim, or has published the output (then a step runs again).

        Raises:
            LockedError: another launch holds the claim.
        """
        if not self.is_published():
            self.claims.check()

    def fails(self) -> None:
        """Gives up the claim of a launch that fails."""
        self.claims.release()

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        """True if every file of a manifest exists and has the listed size."""
        paths = [(os.path.join(self.path, file["path"]), file["bytes"]) for file in listed_files(manifest)]
        return all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths)

    def within(self) -> str | None:
        """See `_Output`. On a disk a folder is replaced with all that lies in it."""
        for place, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]  # unfinished files
            if MANIFEST in names and place != self.path:
                return place
        return None

    def is_empty(self) -> bool:
        """True if nothing is there, or only unfinished files of a job of beam_prep."""
        return not os.path.lexists(self.path) or (os.path.isdir(self.path) and not os.listdir(self.path))

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        """Removes the manifest of the output that will be replaced. Called before the first file is written.

        On a disk it only checks the claim: the output changes only when all files are written.

        Args:
            is_ours: tells whether a manifest belongs to the same job as this launch.
            overwrite: allows replacing the output of another job.

        Raises:
            OutputError: another job's output may not be replaced.
            LockedError: another launch has claimed the output.
        """
        self.check_claim()

    @property
    def _files(self) -> HashedFiles:
        return HashedFiles(self.staging.path("output"), self.staging.path("unfinished"))

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        """Opens new files of a shard. They are kept if the context ends without an error."""
        self.check_claim()
        yield self._files

    rejects = files
    """Like `files`, for files of rejects. A failed run keeps these, too."""

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        """Uses the files of an earlier shard for a new shard. None if that is not possible here.

        Raises:
            Damaged: the files have changed since they were written.
        """
        self.check_claim()
        if not link_files(earlier, self.staging.path("output"), self.staging.path("unfinished")):
            return None
        for name, content in earlier.described.items():
            self._files.write(name, content)
        return linked_receipt(earlier)

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any], page: bytes
    ) -> None:
        """Puts all files in place, the manifest last.

        Args:
            manifest, text: the manifest, and its bytes.
            others: name -> content of files that belong to no shard: `tokenizer/...`, `features.json`.
            run: the content of `run.json`.
            page: the content of `report.html`.
        """
        self.check_claim()
        files = self._files
        for name, data in others.items():
            files.write(name, data)
        files.write(REPORT, page)
        files.write(RUN, dump({**run, "launch": self.staging.launch}))
        files.write(MANIFEST, text)
        self._replace(self.staging.path("output"), self.path)

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        """Removes files of the replaced output that the new output does not have, and the report of a failed run."""
        failed = Path(self.failed)
        if (failed / FAILURE).exists():
            # It belongs to an earlier run. It is renamed first, so a killed process leaves no part of it here.
            with self._on_same_disk("replaced") as aside:
                os.rename(failed, aside)

    @contextmanager
    def _on_same_disk(self, name: str) -> Iterator[str]:
        """An unused path in this launch's folder next to the output. It is removed at the end."""
        folder = os.path.join(self.staging.home, self.staging.launch)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)  # left by a killed attempt: engines run a step again
        yield path
        shutil.rmtree(path, ignore_errors=True)
        if folder != self.staging.path():
            replace(self.staging, root=os.path.dirname(folder)).remove()

    def _replace(self, made: str, target: str) -> None:
        """Replaces a directory by a staged directory.

        The staged directory is complete until then: if this attempt ends early, the next attempt finds it.
        """
        os.makedirs(os.path.dirname(target), exist_ok=True)  # the folder of versions
        if os.stat(made).st_dev == os.stat(os.path.dirname(target)).st_dev:
            self.check_claim()
            replace_directory(made, target)
            shutil.rmtree(made, ignore_errors=True)
            return
        with self._on_same_disk("new") as new:
            shutil.copytree(made, new)
            self.check_claim()
            replace_directory(new, target)

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        """Writes the rejects, then `failure.json`, to `failed`."""
        made = self.staging.path("failed")
        shutil.rmtree(made, ignore_errors=True)  # left by a killed attempt
        os.makedirs(made)
        staged = self.staging.path("output", "rejects")
        if os.path.isdir(staged):
            shutil.copytree(staged, os.path.join(made, "rejects"))
        Path(made, FAILURE).write_bytes(report)
        self._replace(made, self.failed)


class StoredOutput(_Output):
    """An output in a store. For its methods see `LocalOutput`."""

    __slots__ = ()

    def check_claim(self) -> None:
        try:
            self.claims.check()
        except LockedError:
            if self.claims.holder() is None and self.is_published():
                return  # this step runs again after the last one
            raise

    def fails(self) -> None:
        """Ends the claim, but keeps its file: it tells the next launch that a job of beam_prep wrote the output."""
        self.claims.end()

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        return self._first_wrong(listed_files(manifest)) is None

    def _first_wrong(self, files: Sequence[Mapping[str, Any]]) -> str | None:
        """The first file that is missing or changed, or None. Stores keep our digests, so no file is read."""
        found = objects.find_all(join(self.path, file["path"]) for file in files)
        for file, here in zip(files, found, strict=True):
            # A copy that another tool made may have lost the digest.
            if here is None or here.size != file["bytes"] or here.sha256 not in (None, file["sha256"]):
                return join(self.path, file["path"])
        return None

    def is_empty(self) -> bool:
        # A claim file means that a job of beam_prep did not finish.
        return self.claims.holder() is not None or not objects.listed(f"{self.path}/")

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        self.check_claim()
        text = self.manifest()
        if text is None:
            return
        if is_manifest(text) and (is_ours(json.loads(text)) or self.is_published()):
            return  # the same job gives the same bytes; or this step runs again after the last one
        if not overwrite or not is_manifest(text):
            raise OutputError(f"{self.path} was written by another job meanwhile: choose another -o, or run again")
        self._remove_manifest(text)

    def _remove_manifest(self, text: bytes) -> None:
        """Removes the manifest that is replaced. A copy stays until the files that only it lists are removed."""
        objects.put(join(self.staging.home, f"replaced-{hashlib.sha256(text).hexdigest()[:32]}.json"), text)
        objects.delete([join(self.path, MANIFEST)])

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        self.check_claim()
        with temporary_files() as files:
            yield files
            self.upload(files, self.path)

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        self.check_claim()
        if not copy_objects(earlier, self.path):
            return None
        for name, content in earlier.described.items():
            objects.put(join(self.path, name), content, hashlib.sha256(content).hexdigest())
        return linked_receipt(earlier)

    @contextmanager
    def rejects(self) -> Iterator[HashedFiles]:
        with temporary_files() as files:
            yield files
            self.upload(files, self.staging.path("output"))

    def upload(self, files: HashedFiles, folder: str) -> None:
        """Writes files. Each is written only if its target has not changed since this launch held the claim.

        So a job that is suspended after it checked its claim, and loses the claim, replaces no file of another launch.

        Raises:
            LockedError: this launch lost the claim.
        """
        written = files.written()
        targets = [join(folder, file.path) for file in written]
        if is_local(folder):  # --staging
            for file, target in zip(written, targets, strict=True):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(os.path.join(files.folder, file.path), f"{target}.{self.staging.launch}")
                os.replace(f"{target}.{self.staging.launch}", target)
            return
        before = objects.find_all(targets)
        if folder == self.path:
            self.check_claim()
        for file, target, found in zip(written, targets, before, strict=True):
            if found is None or (found.size, found.sha256) != (file.bytes, file.sha256):
                version = None if found is None else found.version
                try:
                    objects.upload(target, os.path.join(files.folder, file.path), file.sha256, version)
                except PreconditionFailed:
                    raise LockedError(f"{target} was written by another job meanwhile") from None

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any], page: bytes
    ) -> None:
        # Not `check_claim`: a launch that has written `run.json` and nothing more has not published.
        self.claims.check()
        with temporary_files() as files:
            for name, data in others.items():
                files.write(name, data)
            self.upload(files, self.path)
        self._copy_rejects([file["path"] for file in manifest["rejects"]], self.path)
        if (wrong := self._first_wrong(listed_files(manifest))) is not None:
            raise OutputError(f"{wrong} is not as this job wrote it: another program writes to {self.path}; run again")
        there = self.manifest()
        self.claims.check()
        if there is not None and there != text:
            self._remove_manifest(there)
        self.write_run(run, page)
        self.claims.check()
        try:  # conditional: a job that was suspended after the check must not replace another job's manifest
            objects.put_if(join(self.path, MANIFEST), text, None, hashlib.sha256(text).hexdigest())
        except PreconditionFailed:
            if self.manifest() != text:  # if equal, only the answer to the write was lost
                raise LockedError(f"another job has published {self.path} meanwhile") from None

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        mine = {file["path"] for file in listed_files(manifest)}
        for found in objects.listed(join(self.staging.home, "replaced-")):
            text = _read(found.path)
            if text is not None and is_manifest(text):
                removed = [file["path"] for file in listed_files(json.loads(text)) if file["path"] not in mine]
                objects.delete(join(self.path, name) for name in removed)
            objects.delete([found.path])
        if _read(join(self.failed, FAILURE)) is not None:  # left by an earlier run; this run succeeded
            self._remove_failed()

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        self._remove_failed()
        self._copy_rejects([file.path for file in rejects], self.failed)
        objects.put(join(self.failed, FAILURE), report)

    def _remove_failed(self) -> None:
        objects.delete([join(self.failed, FAILURE)])
        objects.delete(found.path for found in objects.listed(f"{self.failed}/rejects/"))

    def _copy_rejects(self, names: Sequence[str], folder: str) -> None:
        for name in names:
            with temporary_files() as files:
                file = files.open(name)
                for data in _parts(self.staging.path("output", name)):
                    file.write(data)
                file.close()
                self.upload(files, folder)


def _parts(path: str) -> Iterator[bytes]:
    """A file's content, in pieces.

    Raises:
        OutputError: there is no such object.
    """
    if is_local(path):
        yield Path(path).read_bytes()
        return
    found = objects.find(path)
    if found is None:
        raise OutputError(f"{path} is gone: another launch removed it; run again")
    yield from parts(found)


def _read(path: str) -> bytes | None:
    """A file's content; None if there is no file; b"" for a directory."""
    try:
        return read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        return b""


OutputTarget = LocalOutput | StoredOutput
_KEYS = {"manifest_version", "ledger", "shards", "rejects"}


def is_manifest(text: bytes | None) -> bool:
    """True for a manifest of beam_prep. Web pages and browser extensions have files of that name, too."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() >= _KEYS


def listed_files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All files that a manifest lists: path, bytes, sha256."""
    of_shards: list[dict[str, Any]] = [file for shard in manifest["shards"] for file in shard["files"]]
    return [*of_shards, *manifest["rejects"], *manifest["files"]]


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of kernels before Linux 3.15, and of file systems that cannot exchange (NFS, a few FUSE ones)."""


def replace_directory(made: str, target: str) -> None:
    """Moves a directory to `target`, and replaces what is there.

    An old directory is at `made` afterwards; the caller removes it. On Linux the exchange is one step (`renameat2` with
    `RENAME_EXCHANGE`, man 2 rename). If kernel or file system cannot do that, there are two renames, and between them
    nothing is at `target`. A process that is killed between them leaves the old directory next to `made`, until
    `put_back`.

    Args:
        made: the new directory, on the same disk.
        target: its new path.

    Raises:
        OSError: neither way works; `target` is unchanged.
    """
    try:
        os.rename(made, target)  # nothing is there, or an empty directory
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchanged(made, target):
        return
    aside = os.path.join(os.path.dirname(made), _aside(target))
    os.rename(target, aside)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(aside, target)
        raise
    os.rename(aside, made)


def _aside(target: str) -> str:
    return f"{shortened(os.path.basename(target))}.replaced"


def put_back(target: str, root: str) -> None:
    """Moves a directory back to `target`, if `replace_directory` was killed when nothing was there.

    Args:
        target: the path of an output.
        root: the folder of all launches on it.
    """
    for found in Path(root).glob(f"*/{glob.escape(_aside(target))}"):
        if not os.path.lexists(target):
            os.rename(found, target)


def _exchanged(one: str, other: str) -> bool:
    """Exchanges two directories. False if that is not possible here."""
    if (renameat2 := _renameat2()) is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), one, None, other)


@functools.cache
def _renameat2() -> "Callable[[int, bytes, int, bytes, int], int] | None":
    """The function of glibc 2.28 or musl 1.2; None on other systems."""
    with contextlib.suppress(AttributeError, OSError):
        function = ctypes.CDLL(None, use_errno=True).renameat2
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return function
    return None


def output_at(path: str, staging: Staging, failed: str | None = None) -> OutputTarget:
    """The target for an output on a local disk or in an object store.

    Args:
        path: the output.
        staging: the folder of the launch that writes it.
        failed: the folder in which a failed run leaves report and rejects; by default see `failed_at`.
    """
    made = LocalOutput if is_local(path) else StoredOutput
    return made(path, staging, failed or failed_at(path))


def failed_at(output: str) -> str:
    """The folder in which a failed run leaves its report and its rejects: `OUTPUT.failed`, next to the output."""
    folder, _, name = output.rpartition("/")
    return join(folder, f"{shortened(name)}.failed")


def normalise_path(path: str) -> str:
    """The path of an output with links resolved, so all jobs on the output find the same lock.

    Raises:
        OutputError: the path names a bucket without a folder.
    """
    if is_local(path):
        return os.path.realpath(path)
    path = path.rstrip("/")
    if path.count("/") < 3:
        raise OutputError(f"{path}: wanted a folder in the bucket, for instance {path}/out")
    return path
