"""`Pipeline`: runs a job of a config, inputs and an output directory. `dry_run`: what it would do.

`OutputClaim` is the right to write an output: its lock, its claim, its versions, and the files of failed launches.
"""

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from rich import filesize

from beam_prep import errors, recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import AnyPath, AnyPaths, Origin, Split
from beam_prep.errors import BeamPrepError, ConfigError, LockedError, OutputError
from beam_prep.first_records import FirstRecords, free_bytes, lacks_room, sizes
from beam_prep.formats.manifest import MANIFEST, RUN, is_manifest, load
from beam_prep.hints import shortened
from beam_prep.options import RunOptions
from beam_prep.process import Stopped, quiet_beam, received_signal
from beam_prep.progress import Progress, reports_folder
from beam_prep.runners import Engine, Job, choose_runner, raised_by_worker, without_effect, workers_of
from beam_prep.shards.report import how_made
from beam_prep.storage.claims import Claim, Claims
from beam_prep.storage.files import check_writable, join, remove_folder
from beam_prep.storage.inputs import blocks_of, first_changed, split_file, stores_checksum
from beam_prep.storage.output import OutputTarget, Staging, normalise_path, output_at, put_back
from beam_prep.storage.publish import EarlierOutput, earlier_path, same_facts
from beam_prep.storage.shipped import ship, ship_references
from beam_prep.storage.stores import is_local, read_bytes
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.versions import Versions, check_name, new_name
from beam_prep.tokens.batch import IN_FULL, CachePolicy
from beam_prep.transforms.steps import ReadJSONL

log = logging.getLogger("beam_prep")

_UNTIL_WORKERS_START = 3600.0
"""Seconds that workers may take to start."""


def manifest_of(output: str) -> dict[str, Any]:
    """The manifest of an existing output."""
    path = join(output, MANIFEST)
    return load(read_bytes(path), path)


def is_within(folder: str | None, outer: str) -> bool:
    """Whether a folder is another one, or lies in it."""
    # With a name behind it, as `normalise_path` takes no bucket alone.
    return folder is not None and normalise_path(f"{folder}/x").startswith(f"{normalise_path(outer)}/")


def folders_of(output_dir: AnyPath, options: RunOptions) -> tuple[str, Staging]:
    """The normalised path of an output, and the folders of a new launch.

    Raises:
        ConfigError: a folder of the options lies in the output, which is replaced as a whole; a path is not UTF-8; or
            see `check_name`.
    """
    output = normalise_path(os.fspath(output_dir))
    for path in (output, options.cache_dir or "", options.staging or ""):
        if path.encode(errors="ignore").decode() != path:  # Arrow cannot open a file below it
            raise ConfigError(f"{path}: this path is not UTF-8: choose another, or rename its folders")
    if options.version_name is not None:
        check_name(options.version_name)
    for name, folder in (("cache_dir", options.cache_dir), ("staging", options.staging)):
        if is_within(folder, output) and options.keep_versions is None:
            raise ConfigError(f"--{name} {folder} lies in the output {output}: give a folder outside of it")
    return output, Staging.beside(output, options.staging)


class OutputClaim:
    """The claim of one launch on the output of its job.

    Attributes:
        job: the job.
        root: the output, or the folder of its versions.
        staging: the folder of this launch's unfinished files.
        options: of the job.
        output: the directory to make: `root`, or a version in it.
        is_taken: True once this launch has taken the claim.
    """

    def __init__(self, job: "Pipeline") -> None:
        self.job, self.root, self.staging, self.options = job, job.root, job.staging, job.options
        self.output, self.is_taken = self.root, False

    @property
    def claims(self) -> Claims:
        """The claims of all launches on this output."""
        return self.staging.claims(self.root)

    @contextmanager
    def entered(self, dry: bool = False) -> Iterator[str | None]:
        """What a run and a dry run look at first: may this user write, does no other job, is there anything to do?

        It holds the output's lock, and gives the path of the existing output if it is complete and of this job.

        Args:
            dry: changes nothing.

        Raises:
            OutputError: a folder cannot be written; or the output was made without the requested check.
            LockedError: another job is writing the output.
        """
        beside = os.path.dirname(self.root) if self.options.keep_versions is None else self.root
        for folder in (beside, self.staging.home, self.staging.root):
            if is_local(folder):
                check_writable(folder)
        with self.claims.locked(dry):
            made = self._made_already(dry)
            if made is None:
                self.claims.check_free()
            yield made

    def _made_already(self, dry: bool) -> str | None:
        keep = self.options.keep_versions
        if keep is None:
            return self.root if self.is_made(self.root) else None
        made = Versions(self.root)
        if not dry:
            made.clean()
        other = self.claims.holder()
        claimed = None if other is None else other.version_name
        # A launch may have been killed before `latest` pointed to its version, so these names are checked, too. Without
        # a `latest` and a claim, an output of this name is no version.
        if claimed is not None and not dry and made.has(claimed):
            made.point(claimed)
        latest = made.latest()
        for name in dict.fromkeys(filter(None, (latest, latest and self.options.version_name, claimed))):
            if self.is_made(made.path(name)):
                if not dry:
                    made.point(name)
                    made.remove_old(keep, name)
                return made.path(name)
        return None

    def earlier(self) -> str | None:
        """The path of the earlier output whose shards may be linked."""
        return earlier_path(self.root, self.options.keep_versions)

    def is_made(self, output: str) -> bool:
        """True if an output is complete, of this job, and made with the requested check."""
        target = output_at(output, self.staging)
        text = target.manifest()
        if text is None or not is_manifest(text):
            return False
        manifest = load(text, join(output, MANIFEST))
        same = same_facts(manifest, self.job.facts) and self._same_inputs(target, manifest["inputs"])
        if not same or not target.is_complete(manifest):
            return False
        if self.options.check != "full":
            return True
        run = target.run()
        checked = bool(run) and run.get(IN_FULL) == run.get("blocks")
        if not checked and not self.options.overwrite:
            raise OutputError(
                f"{output} is up to date, but, by its {RUN}, was made without --check full: pass --overwrite to "
                "make it again"
            )
        return checked

    def _same_inputs(self, target: OutputTarget, listed: list[dict[str, Any]]) -> bool:
        mine = [(file.path, file.size) for file in self.job.inputs]
        if [(entry["path"], entry["size"]) for entry in listed] != mine:
            return False
        return first_changed(self.job.inputs, listed, target.run) is None

    def finish_for_others(self, output: str) -> None:
        """Finishes what earlier launches left undone, for instance one that was killed after it had published."""
        if not is_local(self.root) and self.claims.holder() is None:
            return
        try:
            self.take(here=True, wait=True)
        except LockedError:
            return  # another job is running
        output_at(output, self.staging).remove_replaced(manifest_of(output))
        self.staging.remove()
        self.release(here=True)

    def choose_version(self) -> str:
        """Chooses the path of the output. The version of a launch that failed keeps its name."""
        if self.options.keep_versions is not None:
            made, other = Versions(self.root), self.claims.holder()
            unfinished = None if other is None or made.has(other.version_name or "") else other.version_name
            self.output = made.path(self.options.version_name or unfinished or new_name())
        return self.output

    def take(self, here: bool, wait: bool) -> None:
        """Claims the output.

        Args:
            here: True: the job ends with this process.
            wait: True: this process renews the claim. False: the workers renew it, and may take an hour to start.

        Raises:
            LockedError: another launch holds the output.
        """
        name = None if self.output == self.root else self.output.rpartition("/")[2]
        lease = self.options.lease
        lease = lease if here or wait else max(lease, _UNTIL_WORKERS_START)
        mine = Claim(self.staging.launch, lock=self.claims.lock if here else None, lease=lease, version_name=name)
        other = self.claims.take(mine, is_locked=True)
        self.is_taken = True
        self._remove_others()
        if other is not None:
            if other.version_name is not None:
                self._clear_up(other.version_name)
            self.claims.update(version_name=name)

    def _remove_others(self) -> None:
        """Removes the unfinished files of all other launches, because none of them has the claim."""
        if is_local(self.root):
            put_back(self.output, self.staging.home)
        self.staging.remove_others()

    def _clear_up(self, version_name: str) -> None:
        """Removes what a failed launch left of its version, or of what it replaced, if it was published."""
        made = Versions(self.root)
        output = made.path(version_name)
        if not made.has(version_name):
            if not is_local(output):
                remove_folder(output)
            return
        output_at(output, self.staging).remove_replaced(manifest_of(output))

    def check(self) -> None:
        """Raises LockedError if this launch had the claim, and another has taken it."""
        if self.is_taken:
            output_at(self.output, self.staging).check_claim()

    def fails(self) -> None:
        """Ends the claim of a job that has failed. In a store its file stays: the output holds files of this job."""
        if not self.is_taken:
            return
        if is_local(self.root):
            self.claims.release()
        else:
            self.claims.end()

    def release(self, here: bool) -> None:
        """Ends the claim of a finished job, and removes its blocks unless they are kept."""
        # A job that may outlive its launcher ends its own claim. A launch that takes over the claim cleans up, too.
        if here or self.claims.update(lease=self.options.lease, renewed=time.time()):
            # Blocks of an earlier launch go, too, even if this one has a --cache_dir, unless that is their folder.
            if not is_within(self.options.cache_dir, self.staging.root):
                self.staging.remove_kept()
            self.claims.release()

    def say_how_made(self, said: int) -> None:
        """Logs what `run.json` says of the run, without its first `said` warnings, which are logged already."""
        run = output_at(self.output, self.staging).run()
        log.info("%s", how_made(run))
        for warning in run["warnings"][said:]:
            log.warning("warning: %s", warning)


_OF_SHARD = {"max_reject_rate", "max_no_loss_rate", "max_reject_chars", "overwrite", "keep_versions"}
"""Options of a run that are arguments of `Shard`."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        output: the output directory.
        manifest: its manifest; None if the job was launched with `wait=False`.
        up_to_date: the output existed already, and nothing was done.
        job_id: the runner's id of the job, if `wait=False` and the runner has one.
    """

    output: str
    manifest: dict[str, Any] | None
    up_to_date: bool
    job_id: str | None = None


def set_beam_options(given: Sequence[str] | PipelineOptions | None) -> PipelineOptions:
    """Beam's options. Given ones become those of this process: they say where a store is."""
    if isinstance(given, str | dict):  # Beam would ignore its letters or keys
        raise errors.ConfigError(f"beam_options is {given!r}, wanted a list such as ['--runner=FlinkRunner']")
    options = given if isinstance(given, PipelineOptions) else PipelineOptions(list(given or []))
    if given is not None:
        FileSystems.set_options(options)
    return options


class Pipeline:
    """A job: JSONL or Parquet files, a config and a tokenizer -> an output directory.

    Args:
        config: a `PipelineConfig`, a dict, or the path of a JSON file.
        inputs: paths, globs and `@LIST`s (files with one path or glob a line), in order; None: the config names them in
            `input.groups`.
        output_dir: the directory to make.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub. All paths may be on `gs://` or
            `s3://`: see docs/storage.md.
        beam_options: any options of Beam; the default of `run`. Options that say where a store is
            (`--s3_endpoint_url` ...) are needed here, because the inputs are listed here.
        options: those of the command line, by name without `--` (`overwrite`, `max_reject_rate`, `cache_dir` ...), as
            `beam_prep.options.RunOptions` lists them and docs/config.md explains them.

    Raises:
        ConfigError, InputError, TokenizerError, OutputError, StorageError: before anything runs.

    >>> job = bp.Pipeline(
    ...     "configs/sft_chat.json", "examples/data/chat.jsonl", "out/pipeline", tokenizer_path="examples/tokenizer"
    ... )
    >>> job.run().manifest["totals"]["rows"]
    260
    """

    def __init__(
        self,
        config: PipelineConfig | dict[str, Any] | AnyPath,
        inputs: AnyPaths | None,
        output_dir: AnyPath,
        tokenizer_path: AnyPath,
        *,
        beam_options: Sequence[str] | PipelineOptions | None = None,
        **options: Any,
    ) -> None:
        self.options = RunOptions.of(options)
        self.beam_options = beam_options
        set_beam_options(beam_options)
        self.config = recipe.read_config(config)
        self.root, self.staging = folders_of(output_dir, self.options)
        self.output = self.root
        self.inputs = recipe.inputs_of(self.config, inputs)
        self.tokenizer = recipe.tokenizer_of(self.config, tokenizer_path)
        self.compose = recipe.compose(self.config, self.inputs)
        recipe.check_template(self.config, self.tokenizer)
        # Read once: the data that is compared must be the data in the facts, even if a file changes meanwhile.
        self._references = recipe.references_of(self.config)
        rejected, longest = self.options.max_reject_chars, self.options.max_line_bytes
        self.facts = recipe.facts(self.config, self.tokenizer, rejected, longest, self._references, self.inputs)
        self.about: dict[str, Any] = {}  # further entries of `run.json`

    def run(self, beam_options: Sequence[str] | PipelineOptions | None = None, *, wait: bool = True) -> Result:
        """Runs the job, or finds that its output is up to date.

        Args:
            beam_options: any options of Beam. Without a runner, small inputs run in this process, and large ones in one
                worker process for each core.
            wait: wait for the end. If False, the job is only launched (on runners that work elsewhere), and a later
                launch removes its unfinished files.

        Raises:
            BeamPrepError: one of its subclasses. The message says what to do.
        """
        options = set_beam_options(self.beam_options if beam_options is None else beam_options)
        _, self.staging = folders_of(self.root, self.options)  # of this launch, in the stores of these options
        claim = self.claim()
        with claim.entered() as output:
            if output is not None:
                claim.finish_for_others(output)
                return Result(output, manifest_of(output), up_to_date=True)
            job = Job(choose_runner(options, self.inputs))
            token_cache = self.cache_of_run(single_use=job.engine.here and self.staging.local)
            warnings = self._look_at_inputs(job.engine, claim, token_cache, without_effect(options, wait))
            self.output = claim.choose_version()
            with self._launched(job, claim) as reports:
                pipeline = self._pipeline(job.engine, token_cache, warnings, reports)
                claim.take(job.engine.here, wait)
                progress = Progress(reports, self.inputs, limited=self.config.preprocessing.max_items is not None)
                with progress, quiet_beam(), claim.claims.renewed(self.options.lease):
                    job.running = pipeline.run()
                    if not job.engine.here:
                        claim.claims.update(job=job.told())
                        progress.ask(job.counters)
                    job.is_left = not job.engine.here and not wait
                    if job.is_left:
                        return Result(self.output, None, False, job.id)
                    job.wait()
            claim.release(job.engine.here)
            claim.say_how_made(len(warnings))
            return Result(self.output, manifest_of(self.output), up_to_date=False)

    def claim(self) -> OutputClaim:
        """The claim on the output."""
        return OutputClaim(self)

    def cache_of_run(self, single_use: bool = False) -> TokenCache:
        """The token cache. `single_use`: blocks may be removed as their rows are written, if nobody else needs them."""
        given, options = self.options.cache_dir or None, self.options
        folder = given or join(self.staging.root, "token_cache")
        return TokenCache(
            os.path.abspath(folder) if is_local(folder) else folder,
            recipe.cache_recipe(self.facts),
            single_use=single_use and given is None and not self.compose.composes,
            trust=CachePolicy(options.tokenizer_backend, options.check),
            kept=given is not None,
            groups=recipe.group_recipes(self.facts),
        )

    def _look_at_inputs(
        self, engine: Engine, claim: OutputClaim, token_cache: TokenCache, unused: list[str]
    ) -> list[str]:
        """Logs what will be done, and warnings. Returns all warnings, with those of unused options.

        Raises:
            InputError, TokenizerError: an input or the backend cannot be used.
        """
        first, chars = self._first_records, self.options.max_reject_chars
        index = None if self._references is None else self._references.index
        self._backend = first.backend(self.options.tokenizer_backend, index)
        first.check_files()
        unused = [*unused, *first.lacks_room(token_cache, self.staging, claim.earlier(), chars)]
        return first.tell(engine.how, unused, self._references)

    @property
    def _first_records(self) -> FirstRecords:
        return FirstRecords(self.config, self.tokenizer, self.inputs)

    @contextlib.contextmanager
    def _launched(self, job: Job, claim: OutputClaim) -> Iterator[str | None]:
        """Makes the folder of unfinished files. Ends job, claim and folder, as far as they end with this launch.

        Yields the folder of the workers' reports; None: they share none.
        """
        is_done = False
        shared = self.staging.path("progress") if self.staging.local else None
        try:
            self.staging.create()
            with reports_folder(shared, job.engine.here) as reports:
                yield reports
            is_done = not job.is_left
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            refused = claim.is_taken and job.running is None and not job.engine.here
            found = job.refused(error) if refused else raised_by_worker(error)
            if not isinstance(found, (errors.StorageError, errors.RunError)):
                claim.check()  # a job that has lost its claim may fail in any way
            raise self._first_records.with_advice(found) from error
        finally:
            if received_signal() is not None:
                job.cancel()
            if not is_done and not job.is_left and not job.may_run:
                claim.fails()
            # On another runner the job may still run: a later launch removes its files.
            if job.engine.here or is_done:
                try:
                    self.staging.remove()
                except Stopped:  # there is no second signal
                    self.staging.remove()
                    raise

    def _pipeline(
        self, engine: Engine, token_cache: TokenCache, warnings: list[str], reports: str | None
    ) -> beam.Pipeline:
        """The job's steps.

        Raises:
            ConfigError: a step or Beam refuses an option.
        """
        config, options = self.config, self.options
        folder, found = self.staging.root, self._references
        references = None if found is None else ship_references(found, folder)
        tokenizer = self.tokenizer if engine.here else ship(self.tokenizer, folder)
        checksum = stores_checksum(self.inputs)
        run = {
            "how": engine.how,
            "warnings": warnings,
            **self.about,
            "block_bytes": options.block_bytes,
            "check": options.check,
            "started": time.time(),
            **({} if checksum is None else {"inputs_checksum": checksum}),
        }
        try:
            pipeline = beam.Pipeline(engine.runner, options=engine.options)
            workers = workers_of(pipeline.options)
            _ = (
                pipeline
                | ReadJSONL(self.inputs, options.block_bytes, token_cache, options.max_line_bytes, workers)
                | recipe.Prepare(config, tokenizer, self._backend, options.check, references)
                | recipe.shard(
                    config,
                    tokenizer,
                    self.output,
                    **options.model_dump(include=_OF_SHARD),
                    token_cache=token_cache,
                    staging=self.staging,
                    progress=reports,
                    compose=self.compose,
                    facts=self.facts,
                    run=run,
                )
            )
        except ValueError as error:
            raise error if isinstance(error, BeamPrepError) else ConfigError(str(error)) from None
        return pipeline


NEW, OTHER_FACTS, DAMAGED, UNTRUSTED = (
    "new content",
    "made with other facts",
    "damaged",
    "made in a way that this run does not trust",
)
"""The reasons to tokenise a block."""
_FILES_NAMED = 5


@dataclass(slots=True)
class DryRun:
    """What a run would do.

    Attributes:
        output: the path of its output.
        state: `up to date`, `new`, `version`, `replaced`, or `refused`.
        problem: why the run would be refused.
        changed: facts that differ from those of the existing output: `config.output.dtype: X -> Y`.
        blocks, reused: number of blocks of the input, and of those in the token cache.
        reasons: reason -> number of blocks to tokenise.
        files: file -> number of its blocks to tokenise.
        writes: (what is written, bytes, about, free bytes on that disk; None in a store).
        lacks: a warning for each disk that is too small for all that is written there.
    """

    output: str
    state: str
    problem: str = ""
    changed: list[str] = field(default_factory=list)
    blocks: int = 0
    reused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    writes: list[tuple[str, int, int | None]] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The result as text for people."""
        found = {
            "up to date": f"{self.output} is up to date: nothing would be done",
            "new": f"{self.output} would be made",
            "version": f"a new version of {self.output} would be made",
            "replaced": f"{self.output} would be replaced",
            "refused": f"the run would be refused: {self.problem}",
        }
        lines = [found[self.state]]
        if self.state == "up to date":
            return lines
        lines += [f"  {fact}" for fact in self.changed]
        made = self.blocks - self.reused
        lines.append(f"blocks: {self.blocks:,}; {self.reused:,} are in the token cache, {made:,} would be tokenised")
        lines += [f"  {count:,}: {reason}" for reason, count in self.reasons.items()]
        lines += [f"  {count:,} of {path}" for path, count in list(self.files.items())[:_FILES_NAMED]]
        if len(self.files) > _FILES_NAMED:
            lines.append(f"  ... of {len(self.files):,} files")
        for what, size, free in self.writes:
            there = "" if free is None else f" ({filesize.decimal(free)} are free)"
            lines.append(f"{what}: at most about {filesize.decimal(size)} would be written{there}")
        return [*lines, *self.lacks]


def dry_run(job: Pipeline) -> DryRun:
    """Finds out what `job.run()` would do.

    Reads the inputs, the token cache and the manifest of the existing output, and tokenises the first records to
    estimate sizes.
    """
    path = job.claim().earlier()
    earlier = EarlierOutput(path)
    found = DryRun(job.output, "new" if earlier.manifest is None else "replaced")
    found.state = found.state if job.options.keep_versions is None else "version"
    try:
        with job.claim().entered(dry=True) as made:
            if made is not None:
                return DryRun(job.output, "up to date")
            _check_output(job)
    except OutputError as error:
        found.state, found.problem = "refused", str(error)
    found.changed = [] if earlier.manifest is None else _changes(earlier.manifest, job.facts)
    token_cache, options = job.cache_of_run(), job.options
    splits = [split for place in enumerate(job.inputs) for split in split_file(place, options.block_bytes)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_splits = pool.map(lambda split: _blocks(split, job, token_cache), splits)
        blocks = [block for blocks in of_splits for block in blocks]
    to_do = {token_cache.digest(origin): (origin, why) for origin, why in blocks if why is not None}
    found.blocks, found.reused = len(blocks), len(blocks) - len(to_do)
    found.reasons = dict(Counter(why for _, why in to_do.values()))
    found.files = dict(Counter(origin.source.path for origin, _ in to_do.values()))
    cached, written = sizes(job.config, job.tokenizer, job.inputs, options.max_reject_chars)
    cached *= sum(origin.bytes for origin, _ in to_do.values())
    written *= sum(origin.bytes for origin, _ in blocks)
    needs = [(token_cache.folder, "token cache", cached), (os.path.dirname(job.output), "output", written)]
    for folder, what, size in needs:
        found.writes.append((what, int(size), free_bytes(folder) if is_local(folder) else None))
    found.lacks = lacks_room(need for need in needs if is_local(need[0]))
    return found


def _check_output(job: Pipeline) -> None:
    """Raises OutputError if the job may not write its output."""
    keep, output = job.options.keep_versions, job.output
    output = output if keep is None else join(output, job.options.version_name or new_name())
    more = {"overwrite": job.options.overwrite, "keep_versions": keep, "token_cache": job.cache_of_run()}
    recipe.shard(job.config, job.tokenizer, output, staging=job.staging, facts=job.facts, **more)


def _blocks(split: Split, job: Pipeline, token_cache: TokenCache) -> list[tuple[Origin, str | None]]:
    """The blocks of a split, and why each would be tokenised, see `_why`."""
    found = blocks_of(split, job.options.block_bytes, job.options.max_line_bytes)
    return [(origin, _why(origin, token_cache)) for _, origin in found]


def _why(origin: Origin, token_cache: TokenCache) -> str | None:
    """The reason to tokenise a block; None: the token cache has it."""
    digest = token_cache.digest(origin)
    try:
        receipt = token_cache.find(digest)
    except errors.TokenCacheError:
        return DAMAGED
    if receipt is None:
        return OTHER_FACTS if token_cache.has_other(digest) else NEW
    return None if token_cache.trust.holds(receipt.counts("made")) else UNTRUSTED


def _changes(old: Any, new: Any, place: str = "") -> list[str]:
    """The facts of a job that differ from those of a manifest, a line for each."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        # A manifest has more entries than facts.
        names = [*new, *(name for name in old if name not in new and place)]
        return [
            line
            for name in names
            for line in _changes(old.get(name), new.get(name), f"{place}.{name}" if place else str(name))
        ]
    return [] if old == new else [f"{place}: {shortened(repr(old), 60)} -> {shortened(repr(new), 60)}"]
