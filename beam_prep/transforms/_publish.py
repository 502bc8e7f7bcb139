"""Writing shards into a staging area beside the output, and putting the whole in its place at the end."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from beam_prep.core.layout import Layout
from beam_prep.core.pack import PackStats
from beam_prep.core.plan import Plan, RejectsPlan, ShardPlan
from beam_prep.core.tokenizer import Tokenizer
from beam_prep.errors import OutputError, RunError
from beam_prep.formats import FORMATS
from beam_prep.formats.arrow import dataset_dict
from beam_prep.formats.manifest import (
    DATASET_DICT,
    FEATURES,
    MANIFEST,
    RUN,
    TOKENIZER,
    ShardReceipt,
    WrittenFile,
    build_manifest,
    columns_of,
    count_tokens,
    dump,
    load,
)
from beam_prep.formats.tfrecord import features
from beam_prep.transforms._spool import Spool


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder of unfinished things of one launch.

    Attributes:
        root: the folder of the output's launches; the default spool lies here, where the next launch finds it.
        launch: this launch's own name.
    """

    root: str
    launch: str

    @classmethod
    def beside(cls, output: str, staging: str | None = None) -> "Staging":
        """`<staging>/<output's name and digest>/<new name>`; by default in a hidden folder beside it."""
        digest = hashlib.sha256(os.path.abspath(output).encode()).hexdigest()[:12]
        folder = staging or os.path.join(os.path.dirname(os.path.abspath(output)), ".beam_prep")
        return cls(os.path.join(os.path.abspath(folder), f"{os.path.basename(output)}-{digest}"), uuid.uuid4().hex)

    def path(self, *names: str) -> str:
        """A path in this launch's folder."""
        return os.path.join(self.root, self.launch, *names)

    def create(self) -> None:
        """Makes the launch's folder, and the one where workers report."""
        os.makedirs(self.path("progress"), exist_ok=True)

    def remove(self) -> None:
        """Removes the launch's folder."""
        shutil.rmtree(self.path(), ignore_errors=True)

    def remove_kept(self) -> None:
        """Removes what the next launch would use again: tokenised blocks, the tokenizer."""
        for name in _KEPT:
            shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)

    def remove_older(self, seconds: float) -> None:
        """Removes folders that earlier launches on this output left, if they are older."""
        for entry in Path(self.root).iterdir() if os.path.isdir(self.root) else ():
            old = entry.is_dir() and entry.name not in (*_KEPT, self.launch)
            if old and time.time() - entry.stat().st_mtime > seconds:
                shutil.rmtree(entry, ignore_errors=True)


_KEPT = ("spool", "tokenizers")
"""Folders beside those of launches, for the next one after a failure."""

_WRITING = ThreadPoolExecutor(thread_name_prefix="beam_prep-write")
"""Files are written and hashed beside the work on the next rows: a shard is one worker's, whatever cores are idle."""


class _Hashed:
    """A file that is hashed while it is written; it takes its name when it is closed, whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._made = f"{path}.{uuid.uuid4().hex}"
        self._file = open(self._made, "wb")  # noqa: SIM115  (closed in `close`)
        self._digest = hashlib.sha256()
        self._pending: list[Future[Any]] = []
        self._size = 0

    def write(self, data: Any) -> int:
        """Writes bytes that nobody changes later, until the next call or `close`; these raise its errors."""
        self._wait()
        self._pending = [_WRITING.submit(work, data) for work in (self._digest.update, self._file.write)]
        size = memoryview(data).nbytes
        self._size += size
        return size

    def _wait(self) -> None:
        for future in self._pending:
            future.result()
        self._pending = []

    def close(self) -> None:
        self._wait()
        self._file.close()
        os.replace(self._made, self.path)

    def written(self, name: str) -> WrittenFile:
        return WrittenFile(name, self._size, self._digest.hexdigest())


def write_shard(
    plan: ShardPlan, spool: Spool, staging: Staging, formats: Sequence[str], layout: Layout
) -> ShardReceipt:
    """Streams a shard's slices from the spool into every format.

    Memory: one slice (a block's rows of one domain) and one packing group, whatever the size of the shard.
    """
    columns = layout.columns(spool.receipt(plan.slices[0].name).columns)
    files: dict[str, _Hashed] = {}

    def open_file(name: str) -> BinaryIO:
        path = f"{plan.folder}/{name}"
        files[path] = _Hashed(staging.path("output", path))
        return files[path]  # type: ignore[return-value]

    writers = [FORMATS[name].writer(open_file, columns, plan.shard, plan.shards) for name in formats]
    rows = 0
    counts: dict[str, Counter[str]] = {"tokens": Counter(), "trained": Counter()}
    packed: list[PackStats] = []
    slices = (spool.rows(piece.name, piece.domain, piece.start, piece.stop) for piece in plan.slices)
    for data, stats in layout.rows(slices):
        for writer in writers:
            writer.write(data)
        rows += len(data[columns[0].name])
        packed += [stats] if stats is not None else []
        for kind, found in count_tokens(columns, data).items():
            counts[kind].update(found)
    for writer in writers:
        writer.close()
    written = tuple(files[name].written(name) for name in sorted(files))
    packing = asdict(sum(packed, PackStats(layout.capacity))) if layout.packing != "none" else None
    return ShardReceipt(
        plan.domain, plan.shard, rows, dict(counts["tokens"]), dict(counts["trained"]), packing, written
    )


def write_rejects(plan: RejectsPlan, spool: Spool, staging: Staging) -> WrittenFile:
    """Rejects as JSON lines: file, offset (bytes), line (from 1), reason, message, text."""
    name = f"rejects/rejects-{plan.index:05d}.jsonl"
    file = _Hashed(staging.path("output", name))
    for piece in plan.slices:
        for row in spool.rejects(piece.name)[piece.start : piece.stop]:
            entry = {
                "file": piece.path,
                "offset": piece.first_byte + row["offset"],
                "line": piece.first_line + row["line"] + 1,
                "reason": row["reason"],
                "message": row["message"],
                "text": row["text"],
            }
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))
    file.close()
    return file.written(name)


def failure(plan: Plan, max_reject_rate: float) -> str | None:
    """Why a plan must not be carried out, or None."""
    ledger = plan.ledger
    if ledger.reject_rate > max_reject_rate:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(ledger.rejected.items()))
        rejected = sum(ledger.rejected.values())
        return (
            f"{rejected} of {ledger.read} records were rejected ({ledger.reject_rate:.2%}; {reasons}), "
            f"more than --max_reject_rate {max_reject_rate}"
        )
    if ledger.lines == ledger.blank:
        files = ", ".join(repr(entry["path"]) for entry in plan.inputs[:3])
        return f"the input has no record, only {ledger.blank} blank lines: {files}"
    if ledger.kept == 0:
        gone = {**ledger.dropped, **ledger.rejected}
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(gone.items()))
        advice = "check the field names in the config against the input"
        if max(gone, key=gone.__getitem__) in ("untrained", "spans_unproven"):
            advice = "no token of any record is trained: check `mask` and the actions in the config"
        return f"nothing is kept of {ledger.read} records ({reasons}): {advice}"
    return None


@dataclass(frozen=True, slots=True)
class Publisher:
    """Puts an output in its place, whole.

    Attributes:
        output: the directory to make.
        staging: where its files were written.
        formats, layout, max_reject_rate, tokenizer, overwrite: see `Shard`.
        facts: for the manifest.
        run: for `run.json`.
        remove_staging: the launch's folder goes with the last step; where no launcher does it.
    """

    output: str
    staging: Staging
    formats: tuple[str, ...]
    layout: Layout
    max_reject_rate: float
    tokenizer: Tokenizer | None
    overwrite: bool
    facts: Mapping[str, Any]
    run: Mapping[str, Any]
    remove_staging: bool = False

    def refuse(self) -> str | None:
        """Why the output may not be written, or None."""
        if not os.path.lexists(self.output) or (os.path.isdir(self.output) and not os.listdir(self.output)):
            return None
        if not _is_output(self.output):
            return (
                f"{self.output} exists and is no output of beam_prep (no {MANIFEST} of ours): "
                "choose another -o, or remove it"
            )
        if not self.overwrite:
            advice = "choose another -o, or pass --overwrite (overwrite=True)"
            return f"{self.output} holds the output of another job: {advice}"
        return None

    def publish(self, plan: Plan, shards: list[ShardReceipt], rejects: list[WrittenFile]) -> str:
        """Publishes, or fails and leaves the rejects in `OUTPUT.failed/`. Gives the output's path.

        Raises:
            RunError: see `Shard`.
            OutputError: the output appeared meanwhile.
        """
        shards = sorted(shards, key=lambda receipt: (receipt.domain, receipt.shard))
        rejects = sorted(rejects, key=lambda file: file.path)
        problem = failure(plan, self.max_reject_rate)
        if problem is None:
            self._check_shards(plan, shards)
            masks = [column.name for column in plan.columns if column.role in ("mask", "labels")]
            if masks and not any(shard.trained[name] for shard in shards for name in masks):
                problem = "nothing is trained on: no token of any record has a mask of 1; check `mask` in the config"
        if problem is not None:
            raise RunError(self._fail(plan, rejects, problem))
        plan = replace(plan, columns=self.layout.columns(plan.columns))
        manifest = build_manifest(plan, shards, rejects, self._others(plan), self.formats, self.facts)
        text = dump(manifest)
        final = Path(self.output, MANIFEST)
        if final.exists() and final.read_bytes() == text and _is_whole(self.output, manifest):
            return self.output  # a retry of this very step, after it had done its work
        if refusal := self.refuse():
            raise OutputError(refusal)
        self._write(RUN, dump(self._run(plan)))
        self._write(MANIFEST, text)
        self._swap()
        if self.remove_staging:
            self.staging.remove()
        return self.output

    def _check_shards(self, plan: Plan, shards: list[ShardReceipt]) -> None:
        wanted = sorted((shard.domain, shard.shard) for shard in plan.shards)
        found = [(shard.domain, shard.shard) for shard in shards]
        if wanted != found:
            raise RunError(f"the runner gave {len(found)} shards of {len(wanted)} that were planned: run again")

    def _others(self, plan: Plan) -> list[WrittenFile]:
        others = []
        if "tfrecord" in self.formats:
            others.append(self._write(FEATURES, dump(features(plan.columns))))
        if "arrow" in self.formats:
            others.append(self._write(DATASET_DICT, dump(dataset_dict(sorted(plan.domains.values())))))
        if self.tokenizer is not None:
            for name in self.tokenizer.files():
                others.append(self._write(f"{TOKENIZER}/{name}", Path(self.tokenizer.folder, name).read_bytes()))
        return others

    def _write(self, name: str, data: bytes) -> WrittenFile:
        file = _Hashed(self.staging.path("output", name))
        file.write(data)
        file.close()
        return file.written(name)

    def _run(self, plan: Plan) -> dict[str, Any]:
        return {
            **self.run,
            "finished": time.time(),
            "host": platform.node(),
            "blocks": plan.blocks,
            "blocks_reused": plan.reused,
            **plan.made,
        }

    def _swap(self) -> None:
        """The staged directory takes the output's place by renames; the old version goes whole."""
        os.makedirs(os.path.dirname(self.output), exist_ok=True)
        made = self.staging.path("output")
        if os.stat(made).st_dev != os.stat(os.path.dirname(self.output)).st_dev:
            # Another disk: copied beside the output first, so that the rename is one step.
            beside = f"{self.output}.{uuid.uuid4().hex}"
            shutil.copytree(made, beside)
            made = beside
        _replace(made, self.output)
        failed = Path(f"{self.output}.failed")
        if (failed / "failure.json").exists():
            shutil.rmtree(failed)  # of an earlier try, which this run made good

    def _fail(self, plan: Plan, rejects: list[WrittenFile], problem: str) -> str:
        """Leaves the ledger and the rejects in `OUTPUT.failed/`; gives the whole message."""
        folder = f"{self.output}.failed"
        made = self.staging.path("failed")
        os.makedirs(made, exist_ok=True)
        staged = self.staging.path("output", "rejects")
        if os.path.isdir(staged):
            shutil.copytree(staged, os.path.join(made, "rejects"), dirs_exist_ok=True)
        report = {"problem": problem, "ledger": plan.ledger.as_dict(), "inputs": plan.inputs}
        Path(made, "failure.json").write_bytes(dump(report))
        os.makedirs(os.path.dirname(self.output), exist_ok=True)
        _replace(made, folder)
        where = f"see {folder}/{'rejects' if rejects else 'failure.json'}"
        return f"{problem}; nothing was published, {where}"


def _is_output(folder: str) -> bool:
    """Whether a directory is ours to replace: other programs have files of that name too (a web page, an extension)."""
    try:
        found = json.loads(Path(folder, MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.keys() >= {"manifest_version", "ledger", "shards", "rejects"}


def _replace(made: str, target: str) -> None:
    """`made` takes the place of the directory `target`."""
    old = f"{target}.{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(old, ignore_errors=True)


def up_to_date(output: str, facts: Mapping[str, Any], same_inputs: Callable[[list[dict[str, Any]]], bool]) -> bool:
    """Whether an output is whole and of this very job.

    Args:
        output: the directory.
        facts: of this job, as they would stand in its manifest.
        same_inputs: says whether the manifest's inputs are this job's.
    """
    if not _is_output(output):
        return False
    path = Path(output, MANIFEST)
    manifest = load(path.read_bytes(), str(path))
    # As text: the order of the config's sources matters.
    if json.dumps(facts) != json.dumps({key: manifest.get(key) for key in facts}):
        return False
    if not same_inputs(manifest["inputs"]):
        return False
    return _is_whole(output, manifest) and bool(columns_of(manifest))


def _is_whole(output: str, manifest: Mapping[str, Any]) -> bool:
    """Whether every file that a manifest lists is there, in its size."""
    files = [file for shard in manifest["shards"] for file in shard["files"]] + manifest["rejects"] + manifest["files"]
    paths = [(os.path.join(output, file["path"]), file["bytes"]) for file in files]
    return all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths)
