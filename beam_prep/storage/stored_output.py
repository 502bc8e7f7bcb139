"""An output in an object store: every file under its final name, and the manifest last.

A store has no rename. There the manifest of an output that is replaced is removed first. Then every file is written
once, under its final name, and the new manifest when all files are there as they were written. So a reader, who trusts
only a manifest, sees the old output, none, or the new one; with generations, the old or the new one. Later only files
that the old manifest lists are removed, and never a file because a listing shows it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_prep.errors import LockedError, OutputError
from beam_prep.formats.manifest import FAILURE, MANIFEST, REPORT, RUN, ShardReceipt, WrittenFile, dump
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import join
from beam_prep.storage.output_target import is_manifest, listed_files
from beam_prep.storage.paths import is_local
from beam_prep.storage.reuse import EarlierShard, copy_objects, linked_receipt
from beam_prep.storage.staging import HashedFiles, Staging, temporary_files
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import PreconditionFailed
from beam_prep.storage.stores.reader import parts, read_bytes


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """Objects below a path of a store."""

    path: str
    staging: Staging
    failed: str

    @property
    def claims(self) -> Claims:
        return self.staging.claims(self.path)

    def check_claim(self) -> None:
        try:
            self.claims.check()
        except LockedError:
            if self.claims.holder() is None and self.is_published():
                return  # this step runs again after the last one
            raise

    def fails(self) -> None:
        """Ends the claim, and leaves it: it tells the next launch that the files in the output are a job's of ours."""
        self.claims.end()

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

    def is_published(self) -> bool:
        run = _read(join(self.path, RUN))
        return run is not None and json.loads(run).get("launch") == self.staging.launch

    def _remove_manifest(self, text: bytes) -> None:
        """Removes the manifest that is replaced. A copy stays until the files that only it lists are removed, too."""
        objects.put(join(self.staging.home, f"replaced-{hashlib.sha256(text).hexdigest()[:32]}.json"), text)
        objects.delete([join(self.path, MANIFEST)])

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        self.check_claim()
        with temporary_files() as files:
            yield files
            self._upload(files, self.path)

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
            self._upload(files, self.staging.path("output"))

    def _upload(self, files: HashedFiles, folder: str) -> None:
        """Writes files, each only if what is there is what was there when this launch held the claim.

        So a job that sleeps after it has looked at its claim, and loses it, replaces no file of another launch.

        Raises:
            LockedError: it lost the claim.
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
            self._upload(files, self.path)
        self._copy_rejects([file["path"] for file in manifest["rejects"]], self.path)
        if (wrong := self._first_wrong(listed_files(manifest))) is not None:
            raise OutputError(f"{wrong} is not as this job wrote it: another program writes to {self.path}; run again")
        there = self.manifest()
        self.claims.check()
        if there is not None and there != text:
            self._remove_manifest(there)
        self.write_run(run, page)
        self.claims.check()
        try:  # only if there is none: a job that slept since the check must not replace the manifest of another
            objects.put_if_absent(join(self.path, MANIFEST), text, hashlib.sha256(text).hexdigest())
        except PreconditionFailed:
            if self.manifest() != text:  # otherwise the answer was lost, or nothing but another file was
                raise LockedError(f"another job has published {self.path} meanwhile") from None

    def write_run(self, run: Mapping[str, Any], page: bytes) -> None:
        objects.put(join(self.path, REPORT), page)
        objects.put(join(self.path, RUN), dump({**run, "launch": self.staging.launch}))

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        mine = {file["path"] for file in listed_files(manifest)}
        for found in objects.listed(join(self.staging.home, "replaced-")):
            text = _read(found.path)
            if text is not None and is_manifest(text):
                removed = [file["path"] for file in listed_files(json.loads(text)) if file["path"] not in mine]
                objects.delete(join(self.path, name) for name in removed)
            objects.delete([found.path])
        if _read(join(self.failed, FAILURE)) is not None:  # of an earlier run; this one succeeded
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
