"""The output that a launch writes, on a disk or in a store: its files, its claim, and its publication."""

import ctypes
import errno
import functools
import glob
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from beam_prep.errors import LockedError, OutputError
from beam_prep.formats import manifest as manifests
from beam_prep.formats.manifest import FAILURE, MANIFEST, REPORT, RUN, UNLISTED, ShardReceipt, WrittenFile
from beam_prep.storage import stores
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import delete, exists, join, names_in, naming, remove_folder, write_file
from beam_prep.storage.stores import Changed, StoreOptions, is_local, read_bytes, shortened
from beam_prep.verify import file_is_listed

_KEPT = ("token_cache", "tokenizers", "references")
"""Folders that stay after a failed run, for the next launch on the same output."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The folders of one launch's unfinished files.

    Attributes:
        root: the folder of all launches on this output. It holds the default token cache, so the next launch finds it.
        home: like `root`, but always next to the output, whatever `--staging` is: all launches on the output find the
            same claim there, and a directory that was built there can take the output's place.
        launch: the id of this launch.
        options: see `StoreOptions`.
    """

    root: str
    home: str
    launch: str
    options: StoreOptions = field(default_factory=StoreOptions.current)

    @classmethod
    def beside(cls, output: str, staging: str | None = None) -> "Staging":
        """A new launch, in `<staging>/<output's name and digest>/`; by default in `.beam_prep/` next to the output."""
        output = os.path.realpath(output) if is_local(output) else output
        folder, name = os.path.split(output)
        name = f"{shortened(name)}-{hashlib.sha256(output.encode()).hexdigest()[:12]}"
        home = join(folder, ".beam_prep", name)
        if staging is None:
            return cls(home, home, uuid.uuid4().hex)
        base = os.path.abspath(staging) if is_local(staging) else staging
        return cls(join(base, name), home, uuid.uuid4().hex)

    def claims(self, output: str) -> Claims:
        """The claim of all launches on the output.

        Args:
            output: its path, for messages.
        """
        return Claims(self.home, output, self.launch)

    @property
    def local(self) -> bool:
        """True if the folder is on a local disk, False if it is in a store."""
        return is_local(self.root)

    def path(self, *names: str) -> str:
        """A path in this launch's folder."""
        return join(self.root, self.launch, *names)

    def beside_output(self, *names: str) -> str:
        """A path in this launch's folder next to the output."""
        return join(self.home, self.launch, *names)

    def create(self) -> None:
        """Makes the launch's folder and the folder of its progress reports. (Stores have no folders.)"""
        if self.local:
            os.makedirs(self.path("progress"), exist_ok=True)

    def remove(self) -> None:
        """Removes the launch's folders."""
        for folder in {self.path(), self.beside_output()}:
            remove_folder(folder)

    def remove_kept(self) -> None:
        """Removes what the next launch could reuse: tokenised blocks, the tokenizer, evaluation data."""
        for name in _KEPT:
            remove_folder(join(self.root, name))

    def remove_others(self) -> None:
        """Removes the folders of all other launches. Only the launch that holds the claim may call it."""
        for root in {self.root, self.home}:
            for name in names_in(root) - {*_KEPT, self.launch}:
                remove_folder(join(root, name))  # a file stays


@dataclass(frozen=True, slots=True)
class EarlierShard:
    """A shard of the earlier output that has the key of a new shard.

    Attributes:
        folder: the earlier output.
        receipt: the receipt of the new shard.
        files: (file of the earlier output, path in the new output).
    """

    folder: str
    receipt: ShardReceipt
    files: tuple[tuple[WrittenFile, str], ...]


class Damaged(Exception):
    """A file of the earlier output is not what its manifest says."""


class HashedFiles:
    """Files that are written at the same time below one local folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Where a file is; its folder is made if it is missing."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def open(self, name: str) -> BinaryIO:
        """Opens a new file; `name`: its path in the folder."""
        return open(self.path(name), "wb")

    def write(self, name: str, data: bytes) -> None:
        """Writes an entire file."""
        Path(self.path(name)).write_bytes(data)

    @functools.cached_property
    def written(self) -> tuple[WrittenFile, ...]:
        """All files, sorted by name. They must be closed, and no other may follow."""
        found = []
        for path in Path(self.folder).rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found.append(WrittenFile(path.relative_to(self.folder).as_posix(), path.stat().st_size, digest))
        return tuple(sorted(found, key=lambda file: file.path))


@contextmanager
def temporary_files(within: str | None = None) -> Iterator[HashedFiles]:
    """Files in a temporary folder, which is removed at the end. `within`: the folder where it is made."""
    if within is not None:
        os.makedirs(within, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="beam_prep-", dir=within) as folder, naming(folder):
        yield HashedFiles(folder)


@dataclass(frozen=True, slots=True)
class _Output(ABC):
    """The base class of local and stored outputs.

    Attributes:
        path: the output's path.
        staging: the folder of the launch that writes it.
        failed: the folder in which a failed run leaves its report and its rejects.
    """

    path: str
    staging: Staging
    failed: str

    @abstractmethod
    def _place(self, files: Iterable[Mapping[str, Any]], folder: str) -> None:
        """Copies complete files from `made` to a folder."""

    @property
    def claims(self) -> Claims:
        """The claim on the output."""
        return self.staging.claims(self.path)

    @property
    def made(self) -> str:
        """The folder of this launch's complete files, until the output is published."""
        return self.staging.beside_output("output")

    def check_claim(self) -> None:
        """Checks that this launch holds the claim, or has published the output (then a step runs again).

        Raises:
            LockedError: another launch holds the claim.
        """
        try:
            self.claims.check()
        except LockedError:
            if self.claims.holder() is not None or not self.is_published():
                raise

    def is_published(self) -> bool:
        """True if this launch has already published the output, and the engine runs a step again."""
        return bool(self.run().get("launch") == self.staging.launch)

    def run(self) -> dict[str, Any]:
        """The content of `run.json`; {} if there is none, or a damaged one: no manifest vouches for it."""
        return manifests.parsed(_read(join(self.path, RUN)))

    def manifest(self) -> bytes | None:
        """The content of the current `manifest.json`, or None. It may be another program's file."""
        return _read(join(self.path, MANIFEST))

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        """Writes the rejects, then `failure.json`, to `failed`."""
        self.check_claim()
        self._remove_failed()
        remove_folder(join(self.failed, "rejects"))  # of a run that was killed before it wrote its report
        self._place(map(asdict, rejects), self.failed)
        write_file(join(self.failed, FAILURE), report)

    def _remove_failed(self) -> None:
        """Removes what a failed run left: this run is later."""
        if exists(join(self.failed, FAILURE)):
            remove_folder(join(self.failed, "rejects"))
            delete([join(self.failed, FAILURE)])

    def write_run(self, run: Mapping[str, Any], page: bytes) -> None:
        """Replaces only `run.json` and `report.html`, if a run made the same output again."""
        write_file(join(self.path, REPORT), page)
        write_file(join(self.path, RUN), manifests.dump({**run, "launch": self.staging.launch}))


class LocalOutput(_Output):
    """An output on a disk. It is built in the launch's folder next to it, then renamed."""

    __slots__ = ()

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        """True if every file of a manifest exists and has the listed size."""
        paths = [(os.path.join(self.path, file["path"]), file["bytes"]) for file in listed_files(manifest)]
        return all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths)

    def is_empty(self) -> bool:
        """True if nothing is there, or only unfinished files of a job of beam_prep."""
        if not os.path.lexists(self.path):
            return True
        return os.path.isdir(self.path) and not os.listdir(self.path)

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        """Opens new files. They move to `made` if the context ends without an error.

        The folder `made` is published as it is, so it must hold no incomplete file, which a killed attempt may leave.
        """
        self.check_claim()
        with temporary_files(self.staging.beside_output("unfinished")) as files:
            yield files
            made = HashedFiles(self.made)
            for folder, _, names in os.walk(files.folder):
                for path in (os.path.join(folder, name) for name in names):
                    os.replace(path, made.path(os.path.relpath(path, files.folder)))

    def takes(self, earlier: EarlierShard, files: HashedFiles) -> bool:
        """Links the files of an earlier shard. False if a link cannot be made, for instance to another disk.

        Raises:
            Damaged: a file's bytes are not what the earlier manifest lists.
        """
        for file, name in earlier.files:
            linked = files.path(name)
            try:
                os.link(os.path.join(earlier.folder, file.path), linked)
            except FileNotFoundError:
                raise Damaged(f"{earlier.folder}/{file.path} is gone") from None
            except OSError:
                return False
            # The link, as the other path may have been replaced since.
            for problem in file_is_listed(Path(files.folder), replace(file, path=name)):
                raise Damaged(f"{earlier.folder}: {problem}")
        return True

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
        with self.files() as files:
            run_text = manifests.dump({**run, "launch": self.staging.launch})
            for name, data in {**others, REPORT: page, RUN: run_text, MANIFEST: text}.items():
                files.write(name, data)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)  # the folder of versions
        self.check_claim()
        replace_directory(self.made, self.path)
        shutil.rmtree(self.made, ignore_errors=True)

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        """Removes files of the replaced output that the new output does not have, and the report of a failed run."""
        self._remove_failed()
        with suppress(OSError):  # it is not there, or not empty
            os.rmdir(self.failed)

    def _place(self, files: Iterable[Mapping[str, Any]], folder: str) -> None:
        """Copies complete files from `made` to a folder."""
        for file in files:
            shutil.copyfile(os.path.join(self.made, file["path"]), HashedFiles(folder).path(file["path"]))


class StoredOutput(_Output):
    """An output in a store. For its methods see `LocalOutput`."""

    __slots__ = ()

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        files = listed_files(manifest)
        found = stores.find_all(join(self.path, file["path"]) for file in files)
        # Stores keep our digests, so no file is read. A copy that another tool made may have lost the digest.
        return all(
            here is not None and here.size == file["bytes"] and here.sha256 in (None, file["sha256"])
            for file, here in zip(files, found, strict=True)
        )

    def is_empty(self) -> bool:
        # A claim file means that a job of beam_prep did not finish.
        return self.claims.holder() is not None or not stores.listed(f"{self.path}/")

    @contextmanager
    def files(self) -> Iterator[HashedFiles]:
        self.check_claim()
        with temporary_files() as files:
            yield files
            self.check_claim()
            for file in files.written:
                stores.upload(join(self.made, file.path), os.path.join(files.folder, file.path), file.sha256)

    def takes(self, earlier: EarlierShard, files: HashedFiles) -> bool:
        """Copies the files of an earlier shard, on the server. No file is read: the store keeps our digests.

        Returns:
            False if a file is not as the earlier manifest lists it.
        """
        found = stores.find_all(join(earlier.folder, file.path) for file, _ in earlier.files)
        for (file, name), here in zip(earlier.files, found, strict=True):
            if here is None or (here.size, here.sha256) != (file.bytes, file.sha256):
                return False
            if here.path != join(self.path, name):  # else it is in its place
                try:
                    stores.copy(here, join(self.made, name), file.sha256)
                except (Changed, FileNotFoundError):
                    return False
        return True

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any], page: bytes
    ) -> None:
        # Not `check_claim`: a launch that has written `run.json` and nothing more has not published.
        self.claims.check()
        with self.files() as files:
            for name, data in others.items():
                files.write(name, data)
        there = self.manifest()
        self.claims.check()
        if there is not None and there != text:
            # A copy of the manifest that is replaced stays until the files that only it lists are removed.
            stores.put(join(self.staging.home, f"replaced-{hashlib.sha256(there).hexdigest()[:32]}.json"), there)
            stores.delete([join(self.path, MANIFEST)])
        listed = [*listed_files(manifest), *map(asdict, files.written)]
        self._place({file["path"]: file for file in listed}.values(), self.path)
        if not self.is_complete(manifest):
            raise OutputError(f"{self.path}: another program writes to it; run again")
        self.write_run(run, page)
        self.claims.check()
        try:  # conditional: a job that was suspended after the check must not replace another job's manifest
            stores.put(join(self.path, MANIFEST), text, None)
        except Changed:
            if self.manifest() != text:  # if equal, only the answer to the write was lost
                raise LockedError(f"another job has published {self.path} meanwhile") from None

    def _place(self, files: Iterable[Mapping[str, Any]], folder: str) -> None:
        """Copies complete files from `made` to a folder, on the server. Those that are there already stay.

        Raises:
            LockedError: this launch lost the claim.
            OutputError: a file is gone.
        """

        def place(file: Mapping[str, Any]) -> None:
            target, wanted = join(folder, file["path"]), (file["bytes"], file["sha256"])
            while (there := stores.find(target)) is None or (there.size, there.sha256) != wanted:
                here = stores.find(join(self.made, file["path"]))
                if here is None:
                    raise OutputError(f"{target}: its copy is gone: another program removed it; run again")
                self.claims.check()
                with suppress(Changed):  # by another launch; or by this one, and the answer was lost
                    stores.copy(here, target, file["sha256"], None if there is None else there.version)
                    return

        with ThreadPoolExecutor(stores.CONNECTIONS) as pool:
            list(pool.map(place, files))

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        mine = {file["path"] for file in listed_files(manifest)}
        for found in stores.listed(join(self.staging.home, "replaced-")):
            text = _read(found.path)
            if text is not None and manifests.is_manifest(text):
                removed = [file["path"] for file in listed_files(json.loads(text)) if file["path"] not in mine]
                stores.delete(join(self.path, name) for name in removed)
            stores.delete([found.path])
        self._remove_failed()
        remove_folder(self.made)


def _read(path: str) -> bytes | None:
    """A file's content; None if there is no file."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return read_bytes(path)
    return None


OutputTarget = LocalOutput | StoredOutput


def foreign_within(folder: str, manifest: bytes) -> str | None:
    """A file in a local output that is not of it; or None. A hidden file, which file browsers leave, does not count."""
    own = {file["path"] for file in listed_files(json.loads(manifest))} | {MANIFEST, *UNLISTED}
    for path in Path(folder).rglob("*"):
        name = path.relative_to(folder)
        is_ours = name.as_posix() in own or ".beam_prep" in name.parts  # unfinished files
        if path.is_file() and not is_ours and not path.name.startswith("."):
            return str(path)
    return None


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
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # neither glibc 2.28 nor musl 1.2
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), other, None, one)


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
