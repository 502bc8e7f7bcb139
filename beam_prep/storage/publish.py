"""Writes shards, or links unchanged shards of the earlier output (in a store the server copies them); publishes.

A shard's *key* is the digest of everything that its bytes depend on. The keys of an output are in `.slices.json` beside
its manifest. Two shards with the same key have the same bytes. A linked file is compared with the sha256 in the old
manifest, so a damaged file is never reused.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from beam_prep._version import __version__
from beam_prep.data.block import MICROSECONDS
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError, OutputError, RunError, check_planned
from beam_prep.formats import FORMATS, FilesOfShard
from beam_prep.formats import manifest as manifests
from beam_prep.formats.manifest import FAILURE, MANIFEST, SLICES, TOKENIZER, ShardReceipt, WrittenFile
from beam_prep.reading.verdicts import BAD_ANSWERS
from beam_prep.shards.layout import ROW_LENGTHS, Layout, Rows, split_rows
from beam_prep.shards.plan import Dropped, Plan
from beam_prep.shards.report import ConfigView, failure, nothing_trained, warnings
from beam_prep.shards.slices import RejectsPlan, ShardPlan
from beam_prep.storage import output as outputs
from beam_prep.storage.arrange import Arranger
from beam_prep.storage.claims import Claim
from beam_prep.storage.files import join
from beam_prep.storage.output import Damaged, EarlierShard, OutputTarget, Staging
from beam_prep.storage.stores import is_local, read_bytes
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.versions import Versions
from beam_prep.tokens.tokenizer import Tokenizer

log = logging.getLogger("beam_prep")

SHARD_VERSION = 1
"""Raise this with every change of the bytes for the same rows: then older shards are not linked."""

_WRITING_LIBRARIES = ("numpy", "pyarrow")


MakePage = Callable[[Mapping[str, Any], Mapping[str, Any], Tokenizer | None, str], bytes]
"""(manifest, run, tokenizer, title) -> the content of `report.html`."""

_CHAIN_LEASE = 60.0
"""Lease in seconds of a chain written by hand. Every shard renews it; without a launcher nobody ends it after a
failure."""
_ENCODER = "encoder: "
"""Prefix of the counters of `made` that name an encoder and its version."""


def earlier_path(root: str, keep_versions: int | None) -> str | None:
    """The path of the output whose shards are linked: the output that is replaced, or the latest version."""
    if keep_versions is None:
        return root
    latest = Versions(root).latest()
    return None if latest is None else Versions(root).path(latest)


@dataclass(frozen=True, slots=True)
class KeyedShard:
    """A shard to write, the columns of its rows, its key, and the earlier shard with this key."""

    plan: ShardPlan
    columns: tuple[Column, ...]
    key: str
    earlier: EarlierShard | None = None


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that was written or linked.

    Attributes:
        receipt: its entry in the manifest.
        key: its key.
        how: `linked`, `written`; `damaged`: written, because the earlier shard differs from its manifest.
        seconds: how long it took.
    """

    receipt: ShardReceipt
    key: str
    how: str
    seconds: float = 0.0


def facts_of_bytes(formats: Sequence[str], layout: Layout, columns: Sequence[Column], rows: Arranger) -> dict[str, Any]:
    """What the bytes of all shards of an output depend on.

    The cache policy (`trust`) is among these facts: a run that needs blocks that were compared with the reference in
    full does not link shards of other blocks.
    """
    token_cache, splits = rows.token_cache, rows.compose.splits
    libraries = [*_WRITING_LIBRARIES, *(library for name in formats for library in FORMATS[name].libraries)]
    return {
        "version": SHARD_VERSION,
        "libraries": {name: library_version(name) for name in libraries},
        "beam_prep": __version__,
        "python": platform.python_version_tuple()[:2],
        "recipe": token_cache.recipe,
        "trust": asdict(token_cache.trust),
        "formats": formats,
        "layout": asdict(layout),
        "columns": [asdict(column) for column in columns],
        **({} if splits is None else {"splits": asdict(splits)}),
    }


def key_of(plan: ShardPlan, of_all: Mapping[str, Any]) -> str:
    """The key of a shard. It includes the names of its blocks, which are digests of their bytes and the recipe.

    `of_all`: see `facts_of_bytes`.
    """
    facts = {**of_all, "cut": plan.cut, "slices": plan.slices}
    if (merge := plan.merge) is not None:
        facts["merge"] = (merge.facts, merge.part, merge.first, merge.stop, merge.bins, merge.most)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


library_version = functools.cache(importlib.metadata.version)
"""The version of an installed library. It is cached, because each lookup reads and parses a file."""


def slices_text(shards: Sequence[WrittenShard], manifest: bytes) -> bytes:
    """The content of `.slices.json`.

    Args:
        shards: all shards, in the order of the manifest.
        manifest: the text of the manifest.
    """
    return manifests.dump({"manifest": hashlib.sha256(manifest).hexdigest(), "keys": [shard.key for shard in shards]})


class EarlierOutput:
    """The shards of the output that is replaced, by key. There are none without a `.slices.json` of its manifest.

    Args:
        path: the path of that output; None: there is no such output.
    """

    def __init__(self, path: str | None) -> None:
        self._folder = path or ""
        self.manifest: dict[str, Any] | None = None
        self._by_key: dict[str, ShardReceipt] = {}
        self._shards: Counter[str] = Counter()
        if path is None:
            return
        with contextlib.suppress(OSError, FormatError, ValueError, KeyError, TypeError):
            text = read_bytes(join(path, MANIFEST))
            self.manifest = manifests.load(text, join(path, MANIFEST))
            found = json.loads(read_bytes(join(path, SLICES)))
            receipts = manifests.receipts_of(self.manifest)
            if found["manifest"] == hashlib.sha256(text).hexdigest() and len(found["keys"]) == len(receipts):
                self._by_key = dict(zip(found["keys"], receipts, strict=True))
                self._shards = Counter(receipt.part for receipt in receipts)

    def __len__(self) -> int:
        return len(self._by_key)

    def shard(
        self, key: str, plan: ShardPlan, formats: Sequence[str], columns: Sequence[Column]
    ) -> EarlierShard | None:
        """The shard with this key, or None.

        Args:
            key: the key of the new shard.
            plan: the new shard.
            formats, columns: of the new output.
        """
        receipt = self._by_key.get(key)
        if receipt is None or self.manifest is None:
            return None
        before = files_named(formats, columns, receipt.shard, self._shards[receipt.part])
        after = files_named(formats, columns, plan.shard, plan.shards)
        # A file whose content depends on the number of shards may differ.
        if before is None or after is None or [*before.values()] != [*after.values()]:
            return None
        folder = manifests.folder_of_shard(self.manifest, receipt.domain, receipt.split)
        written = {file.path: file for file in receipt.files}
        files = tuple(
            (written[f"{folder}/{old}"], f"{plan.folder}/{new}") for old, new in zip(before, after, strict=True)
        )
        here = sorted((WrittenFile(name, file.bytes, file.sha256) for file, name in files), key=lambda file: file.path)
        receipt = replace(receipt, domain=plan.domain, shard=plan.shard, split=plan.split, files=tuple(here))
        return EarlierShard(self._folder, receipt, files)


def files_named(formats: Sequence[str], columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard | None:
    """The files of a shard in all formats; None if a format does not name its files."""
    found: FilesOfShard = {}
    for name in formats:
        files = FORMATS[name].files(columns, shard, shards)
        if files is None:
            return None
        found |= files
    return found


def written_files(contents: Mapping[str, bytes]) -> list[WrittenFile]:
    """The entries of files in a manifest; `contents`: path -> content."""
    return [WrittenFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()]


def numbers(shards: Sequence[WrittenShard]) -> dict[str, Any]:
    """The counts of shards in `run.json`."""
    hows = Counter(shard.how for shard in shards)
    damaged = {"shards_damaged": hows["damaged"]} if hows["damaged"] else {}
    return {"shards_linked": hows["linked"], "shards_written": hows["written"] + hows["damaged"], **damaged}


def _counted(plan: ShardPlan, arranger: Arranger) -> Iterator[Rows]:
    """The rows of a shard.

    Raises:
        EngineError: their number differs from the plan.
    """
    found = 0
    for rows in arranger.rows(plan):
        found += len(next(iter(rows.values())))
        yield rows
    check_planned(f"rows of shard {plan.shard} of {plan.folder}", found, plan.rows)


def write_rejects(plan: RejectsPlan, token_cache: TokenCache, output: OutputTarget) -> WrittenFile:
    """Writes rejects as JSON lines: file, offset (in bytes; in a table rows), line (from 1), reason, message, text."""
    name = f"rejects/rejects-{plan.index:05d}.jsonl"
    with output.files() as files:
        file = files.open(name)
        rows_of = token_cache.rejects([piece.name for piece in plan.slices])
        for piece, rows in zip(plan.slices, rows_of, strict=True):
            for row in rows[piece.start : piece.stop]:
                entry = {"file": piece.path, "offset": 0, **row}
                entry["offset"] += piece.first_byte
                entry["line"] += piece.first_line + 1
                file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))
        file.close()
        (written,) = files.written
    return written


SAMPLE_TOKENS, SAMPLE_LISTS = 512, 4
"""Most tokens of a sequence, and most sequences of a list, that a report shows."""


def samples(plan: Plan, arranger: Arranger) -> tuple[dict[str, Any], ...]:
    """The rows that were drawn for the report: domain, columns, and the first tokens of each column."""
    schema = {column.name: column for column in plan.columns if column != ROW_LENGTHS}
    columns = [asdict(column) for column in schema.values()]
    found = []
    for domain, piece in plan.drawn:
        rows = arranger.slice(piece)
        if ROW_LENGTHS.name in rows:
            rows = split_rows(rows, schema)  # the first row of the record is shown
        whole = {name: values[:1].to_lists()[0] for name, values in rows.items()}
        row = {name: _beginning(values) for name, values in whole.items()}
        found.append({"domain": domain, "columns": columns, "row": row, "cut": row != whole})
    return tuple(found)


def _beginning(values: list[Any]) -> list[Any]:
    if values and isinstance(values[0], list):
        return [_beginning(each) for each in values[:SAMPLE_LISTS]]
    return values[:SAMPLE_TOKENS]


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes an output when all shards are written, or reports why the run failed.

    Attributes:
        output: the output's path.
        staging: the folder of its unfinished files.
        formats, layout, max_reject_rate, max_no_loss_rate, tokenizer, overwrite: see `Shard`, which gives all that has
            the same name there.
        facts: entries of the manifest that describe the job.
        run: entries of `run.json`.
        launched: a launcher claims the output before the run, and removes the launch's folder afterwards. In a chain
            written by hand there is no launcher: `prepare` claims, and `publish` removes.
        keep_versions: how many versions are kept; None: the output is no version.
        max_reject_chars: see `Shard`; 0: the report shows no text.
    """

    output: str
    staging: Staging
    formats: tuple[str, ...]
    layout: Layout
    max_reject_rate: float
    max_no_loss_rate: float
    tokenizer: Tokenizer | None
    overwrite: bool
    facts: Mapping[str, Any]
    run: Mapping[str, Any]
    launched: bool = False
    keep_versions: int | None = None
    max_reject_chars: int = 1000

    @property
    def root(self) -> str:
        """The path that the launch has claimed: the output, or the folder of versions."""
        return self.output if self.keep_versions is None else self.output.rpartition("/")[0]

    @property
    def target(self) -> OutputTarget:
        """The output on a disk or in a store."""
        return outputs.output_at(self.output, self.staging, outputs.failed_at(self.root))

    def refusal(self) -> str | None:
        """The reason why the output may not be written, or None."""
        if self.keep_versions is not None and (problem := Versions(self.root).problem(self.output.rpartition("/")[2])):
            return problem
        text = self.target.manifest()
        if text is None:
            if self.target.is_empty():
                return None
            if Versions(self.output).latest() is not None:
                return f"{self.output} holds versions: pass --keep_versions N, or choose another -o"
            return f"{self.output} is no output of beam_prep (no {MANIFEST} in it): choose another -o"
        if not manifests.is_manifest(text):
            return manifests.no_manifest(join(self.output, MANIFEST))
        if not self.overwrite:
            other = "-o" if self.keep_versions is None else "--version_name"
            advice = f"choose another {other}, or pass --overwrite (overwrite=True)"
            return f"{self.output} holds an output of other inputs or settings, or a damaged one: {advice}"
        if is_local(self.output) and (foreign := outputs.foreign_within(self.output, text)):
            return f"{self.output} would be replaced with all that lies in it, and {foreign} is not of it: move it"
        return None

    def prepare(self, plan: Plan) -> bool:
        """Prepares the output for its shards. Called before the first is written.

        Returns:
            False if the run will fail with this plan: then no shard is written.

        Raises:
            ConfigError: see `Layout.columns`.
            LockedError: another launch has claimed the output.
        """
        if not self.launched and not self.target.is_published():
            claim = Claim(self.staging.launch, started=self.run["started"], lease=_CHAIN_LEASE)
            self.target.claims.take(claim)
        if self.problem(plan) is not None:
            return False
        self.layout.columns(plan.columns)
        self.target.check_claim()
        return True

    def keyed(
        self, plan: Plan, shards: Iterable[ShardPlan], arranger: Arranger, last: bool = False
    ) -> Iterator[KeyedShard]:
        """The shards of a plan with their keys, and the shards with the same keys of the output that is replaced.

        Args:
            plan, shards: the plan, and its shards.
            arranger: the source of their rows.
            last: see `ShardPlan`.
        """
        earlier = EarlierOutput(earlier_path(self.root, self.keep_versions) if self.facts else None)
        columns = self.layout.columns(plan.columns)
        facts = facts_of_bytes(self.formats, self.layout, columns, arranger)
        for shard in shards:
            shard = replace(shard, last=last, cut=plan.cut)
            key = key_of(shard, facts)
            yield KeyedShard(shard, columns, key, earlier.shard(key, shard, self.formats, columns))

    def write_shard(self, shard: KeyedShard, arranger: Arranger) -> WrittenShard:
        """Links a shard from the earlier output, if it is there; otherwise writes the shard.

        Args:
            shard, arranger: the shard, and the source of its rows.
        """
        how = "written"
        if shard.earlier is not None:
            try:
                with self.target.files() as files:
                    is_taken = self.target.takes(shard.earlier, files)
                if is_taken:
                    return WrittenShard(shard.earlier.receipt, shard.key, "linked")
            except Damaged as error:
                log.warning("%s; the shard is written anew", error)
                how = "damaged"
        return WrittenShard(self._written(shard, arranger), shard.key, how)

    def _written(self, shard: KeyedShard, arranger: Arranger) -> ShardReceipt:
        """Streams a shard's rows from the token cache into every format.

        Memory does not depend on the size of the shard: it holds one slice (the rows of a block in one domain) or one
        bin of a merge, and one packing group.
        """
        plan, columns, layout, rows = shard.plan, shard.columns, self.layout, 0
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        with self.target.files() as files:
            writers = [
                FORMATS[name].writer(lambda file: files.open(f"{plan.folder}/{file}"), columns, plan.shard, plan.shards)
                for name in self.formats
            ]
            for data, stats in layout.rows(_counted(plan, arranger), columns):
                for writer in writers:
                    writer.write(data)
                rows += len(data[columns[0].name])
                for kind, found in {**manifests.count_tokens(columns, data), **stats}.items():
                    counts[kind].update(found)
            for writer in writers:
                writer.close()
            written = files.written
        return ShardReceipt(
            plan.domain,
            plan.shard,
            rows,
            dict(counts["tokens"]),
            dict(counts["trained"]),
            {"capacity": layout.capacity, **counts["packing"]} if layout.packing != "none" else None,
            written,
            dict(counts["chunks"]) if layout.chunking is not None else None,
            plan.split,
            dict(counts["turns"]) if counts["turns"] else None,
        )

    def publish(self, plan: Plan, made: list[WrittenShard], rejects: list[WrittenFile], make_page: MakePage) -> str:
        """Publishes the output, or fails and leaves the rejects in `OUTPUT.failed/`. Returns the output's path.

        `make_page` makes the content of `report.html`.

        Raises:
            RunError: see `Shard`.
            OutputError: another output appeared there meanwhile.
        """
        made = sorted(made, key=lambda shard: _place(plan, shard.receipt))
        shards = [shard.receipt for shard in made]
        rejects = sorted(rejects, key=lambda file: file.path)
        problem = self.problem(plan)
        if problem is None:
            wanted = {(part, shard) for part, count in plan.shards_of.items() for shard in range(count)}
            check_planned("shards", len(shards), len(wanted))
            check_planned("of these shards", len(wanted & {(shard.part, shard.shard) for shard in shards}), len(wanted))
            plan = replace(plan, columns=self.layout.columns(plan.columns))
            masks = [column.name for column in plan.columns if column.role in ("mask", "labels")]
            if masks and not any(shard.trained[name] for shard in shards for name in masks):
                problem = nothing_trained(plan, self._config)
        if problem is not None:
            message = self._fail(plan, rejects, problem)
            self.target.claims.end()  # not released: the engine may run this step again
            raise RunError(message)
        others = self._others(plan, shards)
        manifest = manifests.build_manifest(plan, shards, rejects, written_files(others), self.formats, self.facts)
        text, target, run = manifests.dump(manifest), self.target, self._run(plan, manifest, made)
        page = functools.partial(make_page, manifest, run, self.tokenizer, self.output.rpartition("/")[2])
        # If the output is complete already, the engine runs this step again.
        if target.manifest() != text or not target.is_complete(manifest):
            if refusal := self.refusal():
                raise OutputError(refusal)
            target.publish(manifest, text, others | {SLICES: slices_text(made, text)}, run, page())
        elif self.run.get("check") == "full":
            target.write_run(run, page())
        target.remove_replaced(manifest)
        if self.keep_versions is not None:
            keep_versions = Versions(self.root)
            keep_versions.point(name := self.output.rpartition("/")[2])
            keep_versions.remove_old(self.keep_versions, name)
        if self.launched:
            target.claims.end_without_launcher()
        else:
            target.claims.release()
            self.staging.remove()
        return self.output

    def _others(self, plan: Plan, shards: Sequence[ShardReceipt]) -> dict[str, bytes]:
        """Name -> content of the files that belong to no shard."""
        others: dict[str, bytes] = {}
        for name in self.formats:
            others |= FORMATS[name].described(plan.columns, plan.domains, shards)
        if self.tokenizer is not None:
            others |= {f"{TOKENIZER}/{name}": content for name, content in self.tokenizer.contents().items()}
        return others

    @property
    def _config(self) -> ConfigView:
        return ConfigView.of(self.facts.get("config"), self.facts.get("group_files", ()))

    def problem(self, plan: Plan) -> str | None:
        """The reason why the run fails with this plan, or None."""
        return failure(plan, self._config, self.max_reject_rate, self.max_no_loss_rate)

    def _run(self, plan: Plan, manifest: Mapping[str, Any], made: Sequence[WrittenShard]) -> dict[str, Any]:
        spent = {name: count / 1e6 for name, count in _of(plan.made, MICROSECONDS).items()}
        others = (_ENCODER, MICROSECONDS, BAD_ANSWERS)
        counted = {name: count for name, count in plan.made.items() if not name.startswith(others)}
        bad = _of(plan.made, BAD_ANSWERS)
        claim = self.target.claims.holder()
        return {
            **self.run,
            "finished": time.time(),
            "host": platform.node(),
            **({"job": claim.job} if claim is not None and claim.job else {}),
            "blocks": plan.blocks,
            "blocks_reused": plan.reused,
            **counted,
            "encoders": _of(plan.made, _ENCODER),
            **({"bad_answers": bad} if bad else {}),
            **numbers(made),
            "seconds": {**spent, "Write": sum(shard.seconds for shard in made)},
            "warnings": [*self.run.get("warnings", ()), *warnings(manifest, self._config, bad)],
            "report": {
                "lengths": {"kept": plan.lengths[0], "uncut": plan.lengths[1]},
                "dropped": [_shown(drop) for drop in plan.shown_as("dropped")],
                **({"marked": marked} if (marked := [*map(_shown, plan.shown_as("marked"))]) else {}),
                "rejected": [_shown(reject) for reject in plan.shown_as("rejected")],
                "samples": plan.samples,
            },
        }

    def _fail(self, plan: Plan, rejects: list[WrittenFile], problem: str) -> str:
        """Writes ledger and rejects to `OUTPUT.failed/`. Returns the complete error message."""
        report = {"problem": problem, "ledger": plan.ledger.as_dict(), "inputs": plan.inputs}
        self.target.fail(manifests.dump(report), rejects)
        where = f"see {self.target.failed}/{'rejects' if rejects else FAILURE}"
        return f"{problem}; nothing was published, {where}"


def _place(plan: Plan, shard: ShardReceipt) -> tuple[int, str, int]:
    """The sort key of a shard in the manifest: split in the order of the config, domain by name, number."""
    return (plan.splits.index(shard.split) if shard.split is not None else 0), shard.domain, shard.shard


def _of(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name[len(prefix) :]: count for name, count in counts.items() if name.startswith(prefix)}


def _shown(drop: Dropped) -> dict[str, Any]:
    found = drop.found
    note = {"message" if found.kind == "rejected" else "note": found.note} if found.note else {}
    place = {"file": drop.path, "offset": drop.offset, "line": drop.line}
    kept = {} if drop.same_as is None else {"same_as": dict(zip(place, drop.same_as, strict=True))}
    return {**place, "reason": found.reason, **note, **kept, "text": found.text}


def same_facts(manifest: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """True if a manifest has these facts. They are compared as text: the order of the config's sources matters."""
    return json.dumps(facts) == json.dumps({key: manifest.get(key) for key in facts})
