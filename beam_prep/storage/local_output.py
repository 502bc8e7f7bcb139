"""An output on a disk: built in the staging area, and put in place by a rename."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beam_prep.formats.manifest import FAILURE, MANIFEST, REPORT, RUN, ShardReceipt, WrittenFile, dump
from beam_prep.storage.claims import Claims
from beam_prep.storage.exchange import replace_directory
from beam_prep.storage.files import join, write_file
from beam_prep.storage.output_target import listed_files
from beam_prep.storage.reuse import EarlierShard, link_files, linked_receipt
from beam_prep.storage.staging import HashedFiles, Staging, mark


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """A directory. It is built in the staging area and renamed."""

    path: str
    staging: Staging
    failed: str

    @property
    def claims(self) -> Claims:
        return self.staging.claims(self.path)

    def check_claim(self) -> None:
        if not self.is_published():
            self.claims.check()

    def fails(self) -> None:
        self.claims.release()

    def is_published(self) -> bool:
        try:
            run = json.loads(Path(self.path, RUN).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return False
        return bool(run.get("launch") == self.staging.launch)

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
        """Checks the claim alone: no file is in the output before all are."""
        self.check_claim()

    @property
    def _files(self) -> HashedFiles:
        return HashedFiles(self.staging.path("output"), self.staging.path("unfinished"))

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        self.check_claim()
        yield self._files

    rejects = files

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        self.check_claim()
        if not link_files(earlier, self.staging.path("output"), self.staging.path("unfinished")):
            return None
        for name, content in earlier.described.items():
            self._files.write(name, content)
        return linked_receipt(earlier)

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any], page: bytes
    ) -> None:
        self.check_claim()
        files = self._files
        for name, data in others.items():
            files.write(name, data)
        files.write(REPORT, page)
        files.write(RUN, dump({**run, "launch": self.staging.launch}))
        files.write(MANIFEST, text)
        self._replace(self.staging.path("output"), self.path)

    def write_run(self, run: Mapping[str, Any], page: bytes) -> None:
        write_file(join(self.path, REPORT), page)
        write_file(join(self.path, RUN), dump({**run, "launch": self.staging.launch}))

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        failed = Path(self.failed)
        if (failed / FAILURE).exists():
            # Of an earlier run; this one succeeded. Renamed first: a part of it without `failure.json` would stay.
            with self._on_same_disk("replaced") as aside:
                os.rename(failed, aside)

    @contextmanager
    def _on_same_disk(self, name: str) -> Iterator[str]:
        """A path in this launch's folder next to the output, where nothing is. It is removed at the end."""
        folder = os.path.join(self.staging.home, self.staging.launch)
        os.makedirs(folder, exist_ok=True)
        if self.staging.is_marked:
            mark(folder)
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)  # of an attempt that was killed: engines run a step again
        yield path
        shutil.rmtree(path, ignore_errors=True)
        if folder != self.staging.path():
            replace(self.staging, root=os.path.dirname(folder)).remove()

    def _replace(self, made: str, target: str) -> None:
        """Puts a staged directory in the place of another, which is removed.

        Until then the staged one stays as it is: if this attempt ends early, the next one finds all of it.
        """
        os.makedirs(os.path.dirname(target), exist_ok=True)  # the folder of generations
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
        made = self.staging.path("failed")
        shutil.rmtree(made, ignore_errors=True)  # of an attempt that was killed
        os.makedirs(made)
        staged = self.staging.path("output", "rejects")
        if os.path.isdir(staged):
            shutil.copytree(staged, os.path.join(made, "rejects"))
        Path(made, FAILURE).write_bytes(report)
        self._replace(made, self.failed)
