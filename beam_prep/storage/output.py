"""How an output is put in place: a directory by a rename, objects by writing the manifest last.

An object store has no rename. There the manifest of an output that is replaced is removed first. Then every file is
written once, under its final name, and the new manifest when all files are there as they were written. So a reader,
who trusts only a manifest, sees the old output, none, or the new one. Later only files that the old manifest lists are
removed, and never a file because a listing shows it.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from beam_prep.errors import OutputError
from beam_prep.formats.manifest import FAILURE, MANIFEST, RUN, ShardReceipt, WrittenFile, dump
from beam_prep.storage.exchange import replace_directory
from beam_prep.storage.files import join, write_file
from beam_prep.storage.paths import is_local
from beam_prep.storage.reuse import EarlierShard, copy_objects, link_files, linked_receipt
from beam_prep.storage.staging import HashedFiles, Staging, mark, temporary_files
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import Changed, PreconditionFailed
from beam_prep.storage.stores.reader import parts, read_bytes

log = logging.getLogger("beam_prep")

_KEYS = {"manifest_version", "ledger", "shards", "rejects"}


class OutputTarget(Protocol):
    """An output that a launch is making."""

    def claim(self, started: float) -> None:
        """Claims the output for this launch.

        Args:
            started: when this launch began, in seconds since the epoch.

        Raises:
            OutputError: another launch claimed it at the same moment, or began later and has claimed it.
        """
        ...

    def release(self) -> None:
        """Gives the claim up, once the output is published."""
        ...

    def manifest(self) -> bytes | None:
        """The current manifest, or None."""
        ...

    def is_published(self) -> bool:
        """True if this launch has published the output, and one of its steps runs again."""
        ...

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        """True if every file that a manifest lists is there and has the size that it lists."""
        ...

    def is_empty(self) -> bool:
        """True if nothing is there, or only unfinished files of a job of ours."""
        ...

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        """Removes the manifest of the output that will be replaced. Called before the first file is written.

        Args:
            is_ours: tells whether a manifest is of the same job as this launch.
            overwrite: allows to replace another job's output.

        Raises:
            OutputError: another job's output may not be replaced, or another launch has claimed the output.
        """
        ...

    def files(self) -> contextlib.AbstractContextManager[HashedFiles]:
        """New files of a shard. They are kept if the context ends without an error."""
        ...

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        """Puts the files of an earlier shard in the place of a new one. None if that cannot be done here.

        Raises:
            Damaged: they are not what they were.
        """
        ...

    def rejects(self) -> contextlib.AbstractContextManager[HashedFiles]:
        """The same for files of rejects, which a failed run keeps, too."""
        ...

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any]
    ) -> None:
        """Puts everything in place, the manifest last.

        Args:
            manifest, text: the manifest, and its bytes.
            others: the files that belong to no shard: `tokenizer/...`, `features.json`.
            run: the content of `run.json`.
        """
        ...

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Replaces `run.json` alone, when a run made the same output again."""
        ...

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        """Removes the files of the replaced output that the new one does not have."""
        ...

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        """Writes the rejects, and then `failure.json`, to `OUTPUT.failed`."""
        ...


def output_at(path: str, staging: Staging) -> OutputTarget:
    """The target for an output on a local disk or in an object store."""
    return LocalOutput(path, staging) if is_local(path) else StoredOutput(path, staging)


def normalise_path(path: str) -> str:
    """An output's path in its one normal form: links are followed, so that all jobs on it find the same lock.

    Raises:
        OutputError: it names a bucket and no folder.
    """
    if is_local(path):
        return os.path.realpath(path)
    path = path.rstrip("/")
    if path.count("/") < 3:
        raise OutputError(f"{path}: wanted a folder in the bucket, for instance {path}/out")
    return path


def is_manifest(text: bytes | None) -> bool:
    """Tells a manifest of ours from other programs' files of that name (a web page's, a browser extension's)."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() >= _KEYS


def listed_files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All files that a manifest lists: path, bytes, sha256."""
    of_shards: list[dict[str, Any]] = [file for shard in manifest["shards"] for file in shard["files"]]
    return [*of_shards, *manifest["rejects"], *manifest["files"]]


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """A directory. It is built in the staging area and renamed."""

    path: str
    staging: Staging

    def claim(self, started: float) -> None:
        """Does nothing: the launcher holds a lock."""

    def is_published(self) -> bool:
        """False: nothing asks for it where there are no claims."""
        return False

    def release(self) -> None:
        """See `claim`."""

    def manifest(self) -> bytes | None:
        try:
            return Path(self.path, MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            return b""  # not a manifest of ours

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        paths = [(os.path.join(self.path, file["path"]), file["bytes"]) for file in listed_files(manifest)]
        return all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths)

    def is_empty(self) -> bool:
        return not os.path.lexists(self.path) or (os.path.isdir(self.path) and not os.listdir(self.path))

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        """Does nothing: no file is in the output before all are."""

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        yield HashedFiles(self.staging.path("output"))

    rejects = files

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        folder = self.staging.path("output")
        if not link_files(earlier, folder):
            return None
        for name, content in earlier.described.items():
            HashedFiles(folder).write(name, content)
        return linked_receipt(earlier)

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any]
    ) -> None:
        files = HashedFiles(self.staging.path("output"))
        for name, data in others.items():
            files.write(name, data)
        files.write(RUN, dump(run))
        files.write(MANIFEST, text)
        self._replace(self.staging.path("output"), self.path)

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_file(join(self.path, RUN), dump(run))

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        failed = Path(f"{self.path}.failed")
        if (failed / FAILURE).exists():
            # Of an earlier run; this one succeeded. Renamed first: a part of it without `failure.json` would stay.
            with self._on_same_disk("replaced") as aside:
                os.rename(failed, aside)

    @contextmanager
    def _on_same_disk(self, name: str) -> Iterator[str]:
        """A path in this launch's folder next to the output, which is removed at the end."""
        folder = os.path.join(Staging.beside(self.path).root, self.staging.launch)
        os.makedirs(folder, exist_ok=True)
        if self.staging.is_marked:
            mark(folder)
        yield os.path.join(folder, name)
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        if folder != self.staging.path():
            replace(self.staging, root=os.path.dirname(folder)).remove()

    def _replace(self, made: str, target: str) -> None:
        """Puts a staged directory in the place of another, which is removed."""
        with self._on_same_disk("new") as new:
            if os.stat(made).st_dev == os.stat(os.path.dirname(new)).st_dev:
                os.rename(made, new)
            else:
                shutil.copytree(made, new)
            replace_directory(new, target)

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        made = self.staging.path("failed")
        os.makedirs(made, exist_ok=True)
        staged = self.staging.path("output", "rejects")
        if os.path.isdir(staged):
            shutil.copytree(staged, os.path.join(made, "rejects"), dirs_exist_ok=True)
        Path(made, FAILURE).write_bytes(report)
        self._replace(made, f"{self.path}.failed")


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """Objects below a path of a store."""

    path: str
    staging: Staging

    # Next to the output, wherever the staging is: all jobs on this output must look for claims in the same folder.

    @property
    def _beside(self) -> str:
        return Staging.beside(self.path).root

    @property
    def _claim(self) -> str:
        return join(self._beside, "claim.json")

    def claim(self, started: float) -> None:
        claim = dump({"launch": self.staging.launch, "host": platform.node(), "started": started})
        try:
            found = objects.find(self._claim)
            if found is None:
                objects.put_if_absent(self._claim, claim)
                return
            other = json.loads(objects.get(self._claim, 0, found.size, found.version))
            if other["launch"] != self.staging.launch and other["started"] <= started:
                log.warning(
                    "%s was claimed by another launch (%s), which did not end well, or will fail now",
                    self.path,
                    other["launch"],
                )
                objects.put_if_version(self._claim, claim, found.version)
                return
        except (PreconditionFailed, Changed, FileNotFoundError):
            pass  # another launch was faster; or this one claimed it, and the answer was lost
        if (launch := self._claimed_by()) != self.staging.launch:
            raise self._lost(launch)

    def release(self) -> None:
        if self._claimed_by() == self.staging.launch:
            objects.delete([self._claim])

    def _claimed_by(self) -> str | None:
        found = _read(self._claim)
        return None if found is None else str(json.loads(found)["launch"])

    def _check_claim(self) -> None:
        other = self._claimed_by()
        if other is None and self.is_published():
            return  # this step runs again after the last one
        if other != self.staging.launch:
            raise self._lost(other)

    def _lost(self, other: str | None) -> OutputError:
        what = "another job has claimed" if other is not None else "the claim of this job is gone from"
        return OutputError(
            f"{what} {self.path} (see {self._claim}): one job at a time may make an output; wait for the other to "
            "end and run again, or choose another output"
        )

    def manifest(self) -> bytes | None:
        return _read(join(self.path, MANIFEST))

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        return self._first_wrong(listed_files(manifest)) is None

    def _first_wrong(self, files: Sequence[Mapping[str, Any]]) -> str | None:
        """The first file that is not there as it was written, or None. Stores keep our digests, so no file is read."""
        found = objects.find_all(join(self.path, file["path"]) for file in files)
        for file, here in zip(files, found, strict=True):
            # A copy that another tool made may have lost the digest.
            if here is None or here.size != file["bytes"] or here.sha256 not in (None, file["sha256"]):
                return join(self.path, file["path"])
        return None

    def is_empty(self) -> bool:
        # A claim means that a job of ours has not ended.
        return self._claimed_by() is not None or not objects.listed(f"{self.path}/")

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        self._check_claim()
        text = self.manifest()
        if text is None:
            return
        if is_manifest(text) and (is_ours(json.loads(text)) or self.is_published()):
            return  # the same job gives the same bytes; or this step runs again after the last one
        if not overwrite or not is_manifest(text):
            raise OutputError(f"{self.path} was written by another job meanwhile: choose another -o, or run again")
        self._remove_manifest(text)

    def is_published(self) -> bool:
        run = _read(join(self.path, RUN))
        return run is not None and json.loads(run).get("launch") == self.staging.launch

    def _remove_manifest(self, text: bytes) -> None:
        """Removes the manifest that is replaced. A copy stays until the files that only it lists are removed, too."""
        objects.put(join(self._beside, f"replaced-{hashlib.sha256(text).hexdigest()[:32]}.json"), text)
        objects.delete([join(self.path, MANIFEST)])

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        with temporary_files() as files:
            yield files
            self._check_claim()
            self._upload(files, self.path)

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        self._check_claim()
        if not copy_objects(earlier, self.path):
            return None
        for name, content in earlier.described.items():
            objects.put(join(self.path, name), content, hashlib.sha256(content).hexdigest())
        return linked_receipt(earlier)

    @contextmanager
    def rejects(self) -> Iterator[HashedFiles]:
        with temporary_files() as files:
            yield files
            self._upload(files, self.staging.path("output"))

    def _upload(self, files: HashedFiles, folder: str) -> None:
        for file in files.written():
            target = join(folder, file.path)
            if is_local(target):  # --staging
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(os.path.join(files.folder, file.path), f"{target}.{self.staging.launch}")
                os.replace(f"{target}.{self.staging.launch}", target)
                continue
            found = objects.find(target)
            if found is None or (found.size, found.sha256) != (file.bytes, file.sha256):
                objects.upload(target, os.path.join(files.folder, file.path), file.sha256)

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any]
    ) -> None:
        self._check_claim()
        for name, data in others.items():
            objects.put(join(self.path, name), data, hashlib.sha256(data).hexdigest())
        self._copy_rejects([file["path"] for file in manifest["rejects"]], self.path)
        if (wrong := self._first_wrong(listed_files(manifest))) is not None:
            raise OutputError(f"{wrong} is not as this job wrote it: another program writes to {self.path}; run again")
        if (there := self.manifest()) is not None and there != text:
            self._remove_manifest(there)
        self.write_run(run)
        self._check_claim()
        objects.put(join(self.path, MANIFEST), text, hashlib.sha256(text).hexdigest())

    def write_run(self, run: Mapping[str, Any]) -> None:
        objects.put(join(self.path, RUN), dump({**run, "launch": self.staging.launch}))

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        mine = {file["path"] for file in listed_files(manifest)}
        for found in objects.listed(join(self._beside, "replaced-")):
            text = _read(found.path)
            if text is not None and is_manifest(text):
                removed = [file["path"] for file in listed_files(json.loads(text)) if file["path"] not in mine]
                objects.delete(join(self.path, name) for name in removed)
            objects.delete([found.path])
        if _read(join(f"{self.path}.failed", FAILURE)) is not None:  # of an earlier run; this one succeeded
            self._remove_failed()

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        self._remove_failed()
        self._copy_rejects([file.path for file in rejects], f"{self.path}.failed")
        objects.put(join(f"{self.path}.failed", FAILURE), report)

    def _remove_failed(self) -> None:
        objects.delete([join(f"{self.path}.failed", FAILURE)])
        objects.delete(found.path for found in objects.listed(f"{self.path}.failed/rejects/"))

    def _copy_rejects(self, names: Sequence[str], folder: str) -> None:
        for name in names:
            with temporary_files() as files:
                file = files.open(name)
                for data in _parts(self.staging.path("output", name)):
                    file.write(data)
                file.close()
                self._upload(files, folder)


def _parts(path: str) -> Iterator[bytes]:
    """A file's content, in parts.

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
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
