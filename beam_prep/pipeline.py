"""`Pipeline`: runs a job of a config, inputs and an output directory."""

import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.errors import BeamPrepError, ConfigError, RunError, StorageError
from beam_prep.first_records import FirstRecords
from beam_prep.formats.manifest import RUN
from beam_prep.options import RunOptions
from beam_prep.output_claim import OutputClaim, manifest_of
from beam_prep.process import Stopped, quiet_beam, received_signal
from beam_prep.progress import Progress, reports_folder
from beam_prep.reading.decontaminate import IndexSource
from beam_prep.room import AMPLE, free_bytes, lacks_room, sizes
from beam_prep.runners import (
    Engine,
    cancel,
    choose_runner,
    counters_of,
    has_ended,
    job_id_of,
    raised_by_worker,
    told_job,
    wait_until_done,
    without_effect,
    workers_of,
)
from beam_prep.shards.report import how_made
from beam_prep.storage.files import join, total_size
from beam_prep.storage.inputs import stores_checksum
from beam_prep.storage.output import Staging, normalise_path
from beam_prep.storage.references import ship as ship_references
from beam_prep.storage.reuse import EarlierOutput, earlier_path
from beam_prep.storage.stores.client import StoreOptions, is_local
from beam_prep.storage.stores.objects import read_bytes
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.tokenizers import load_tokenizer, ship
from beam_prep.storage.versions import check_name
from beam_prep.tokens.batch import CachePolicy
from beam_prep.transforms.records import ReadJSONL

log = logging.getLogger("beam_prep")

_SHOWN = 5
"""Warnings about the first records that are logged at the start."""
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


class Pipeline:
    """A job: JSONL or Parquet files, a config and a tokenizer -> an output directory.

    Args:
        config: a `PipelineConfig`, or the path of its JSON file.
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
        config: PipelineConfig | str | os.PathLike[str],
        inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None,
        output_dir: str | os.PathLike[str],
        tokenizer_path: str | os.PathLike[str],
        *,
        beam_options: Sequence[str] | PipelineOptions | None = None,
        **options: Any,
    ) -> None:
        self.options = RunOptions.of(options)
        self.beam_options = beam_options
        if beam_options is not None:
            FileSystems.set_options(_options(beam_options))
        self.config = config if isinstance(config, PipelineConfig) else recipe.read_config(config)
        self.root = self.output = normalise_path(os.fspath(output_dir))
        if self.options.version_name is not None:
            check_name(self.options.version_name)
        staging, cache_dir = self.options.staging, self.options.cache_dir
        for name, folder in (("cache_dir", cache_dir), ("staging", staging)):
            # With a name behind it, as `normalise_path` takes no bucket alone.
            inside = folder is not None and normalise_path(f"{folder}/x").startswith(f"{self.root}/")
            if inside and self.options.keep_versions is None:  # the folder of an output is replaced as a whole
                raise ConfigError(f"--{name} {folder} lies in the output {self.root}: give a folder outside of it")
        self.inputs = recipe.inputs_of(self.config, inputs)
        self.tokenizer = load_tokenizer(os.fspath(tokenizer_path))
        if self.config.input.chat_template is not None:
            # The output keeps this template, because it made the output.
            self.tokenizer = self.tokenizer.with_template(self.config.input.chat_template)
        self.compose = recipe.compose(self.config, total_size(self.inputs))
        self.cache_dir = os.path.abspath(cache_dir) if cache_dir and is_local(cache_dir) else cache_dir
        self.staging = Staging.beside(self.output, staging)
        self.config.check_vocabulary(self.tokenizer.max_id)
        recipe.check_template(self.config, self.tokenizer)
        # Read once: the data that is compared must be the data in the facts, even if a file changes meanwhile.
        self._references = recipe.references_of(self.config)
        self.references: IndexSource | None = None if self._references is None else self._references.index
        self.facts = recipe.facts(
            self.config,
            self.tokenizer,
            self.options.max_reject_chars,
            self.options.max_line_bytes,
            self._references,
            self.inputs,
        )
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
        options = self._set_beam_options(beam_options)
        claim = self.claim()
        with claim.claims.locked():
            if (output := claim.made_already()) is not None:
                claim.finish_for_others(output)
                return Result(output, manifest_of(output), up_to_date=True)
            ignored = without_effect(options, wait)
            engine = choose_runner(options, self.inputs)
            warnings = self._look_at_inputs(engine, ignored)
            self.output = claim.choose_version()
            with self._launched(engine, claim) as job:
                pipeline = self._pipeline(engine, warnings, job.reports)
                claim.take(engine.here, wait)
                progress = Progress(job.reports, self.inputs, limited=self.config.preprocessing.max_items is not None)
                with progress, quiet_beam(), claim.claims.renewed(self.options.lease):
                    job.running = pipeline.run()
                    if not engine.here:
                        claim.claims.update(job=told_job(job.running, engine.options))
                        progress.ask(functools.partial(counters_of, job.running, engine.options))
                    if not engine.here and not wait:
                        job.is_left = True
                        return Result(self.output, None, False, job_id_of(job.running))
                    wait_until_done(job.running)
            claim.release(engine.here)
            self._say_how_made(len(warnings))
            return Result(self.output, manifest_of(self.output), up_to_date=False)

    def _set_beam_options(self, given: Sequence[str] | PipelineOptions | None) -> PipelineOptions:
        given = self.beam_options if given is None else given
        options = _options(given)
        if given is not None:
            FileSystems.set_options(options)
            self.staging = replace(self.staging, options=StoreOptions.current())
        return options

    def claim(self) -> OutputClaim:
        """The claim on the output."""
        return OutputClaim(self.root, self.staging, self.options, self.facts, self.inputs)

    def _look_at_inputs(self, engine: Engine, ignored: list[str]) -> list[str]:
        """Logs what will be done, and warnings. Returns all warnings, with those of ignored options.

        Raises:
            InputError, TokenizerError: an input or the backend cannot be used.
        """
        self._backend = self._first_records.backend(self.options.tokenizer_backend, self.references)
        files = "1 file" if len(self.inputs) == 1 else f"{len(self.inputs)} files"
        log.info("%s; %s, %.1f MB", engine.how, files, total_size(self.inputs) / 1e6)
        self._first_records.check_files()
        ignored = [*ignored, *self._lacks_room(self._is_single_use(engine))]
        for warning in ignored:
            log.warning("warning: %s", warning)
        of_config = [f"config: {warning}" for warning in self.config.warnings]
        of_config += [] if self._references is None else self._references.warnings
        most, longest = self.tokenizer.model_max_length, self.config.preprocessing.max_seq_len
        if most is not None and longest is not None and most < longest:
            of_config.append(
                f"tokenizer: its model_max_length is {most:,}, and preprocessing.max_seq_len is {longest:,}: rows may "
                "be longer than the model takes"
            )
        for warning in of_config:
            log.warning("%s", warning)
        of_records = self._first_records.warnings()
        for warning in of_records[:_SHOWN]:
            log.warning("warning: %s", warning)
        if of_records:
            more = f"{len(of_records) - _SHOWN} more are in run.json; " if len(of_records) > _SHOWN else ""
            log.info("%s`beam-prep audit` of these files, config and tokenizer shows records of each", more)
        return [*ignored, *of_config, *of_records]

    @property
    def _first_records(self) -> FirstRecords:
        return FirstRecords(self.config, self.tokenizer, self.inputs)

    @contextlib.contextmanager
    def _launched(self, engine: Engine, claim: OutputClaim) -> Iterator["_Job"]:
        """Makes the folder of unfinished files. Ends job, claim and folder, as far as they end with this launch."""
        job, is_done = _Job(), False
        shared = self.staging.path("progress") if self.staging.local else None
        try:
            self.staging.create()
            if not engine.here:  # workers on other machines do not have the tokenizer's folder
                self.tokenizer = ship(self.tokenizer, self.staging.root)
            if self._references is not None:
                self.references = ship_references(self._references, self.staging.root)
            with reports_folder(shared, engine.here) as job.reports:
                yield job
            is_done = not job.is_left
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            found = raised_by_worker(error)
            if claim.is_taken and not isinstance(found, (StorageError, RunError)):
                claim.check()  # a job that has lost its claim may fail in any way
            raise self._first_records.with_advice(found) from error
        finally:
            if job.running is not None and not engine.here and received_signal() is not None:
                cancel(job.running, engine.options)
            has_failed = not is_done and not job.is_left
            if claim.is_taken and has_failed and (engine.here or job.running is None or has_ended(job.running)):
                claim.fails()
            # On another runner the job may still run: a later launch removes its files.
            if engine.here or is_done:
                try:
                    self.staging.remove()
                except Stopped:  # there is no second signal
                    self.staging.remove()
                    raise

    def _pipeline(self, engine: Engine, warnings: list[str], reports: str | None) -> beam.Pipeline:
        """The job's steps.

        Raises:
            ConfigError: a step or Beam refuses an option.
        """
        config, options = self.config, self.options
        token_cache = self.cache_of_run(self._is_single_use(engine))
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
                | recipe.Prepare(config, self.tokenizer, self._backend, options.check, self.references)
                | recipe.shard(
                    config,
                    self.tokenizer,
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

    def _say_how_made(self, said: int) -> None:
        """Logs what `run.json` says of the run, without its first `said` warnings, which are logged already."""
        run = json.loads(read_bytes(join(self.output, RUN)))
        log.info("%s", how_made(run))
        for warning in run["warnings"][said:]:
            log.warning("warning: %s", warning)

    def _is_single_use(self, engine: Engine) -> bool:
        alone = engine.here and self.options.cache_dir is None and self.staging.local
        return alone and not self.compose.composes

    def cache_of_run(self, single_use: bool = False) -> TokenCache:
        """The token cache. For `single_use` see `TokenCache`."""
        folder = self.cache_dir or join(self.staging.root, "token_cache")
        trust = CachePolicy(self.options.tokenizer_backend, self.options.check)
        made_by, kept = recipe.cache_recipe(self.facts), self.cache_dir is not None
        groups = recipe.group_recipes(self.facts)
        return TokenCache(folder, made_by, single_use=single_use, trust=trust, kept=kept, groups=groups)

    def earlier_output(self) -> str | None:
        """The path of the earlier output whose shards may be linked."""
        return earlier_path(self.root, self.options.keep_versions)

    def _lacks_room(self, single_use: bool) -> list[str]:
        """Warnings about disks that will probably be too small, as far as the inputs tell.

        No room is counted for what a run may not write: blocks in an existing token cache, shards of an earlier output,
        rows that are left out.
        """
        cache_folder, root, home = self.cache_of_run().folder, self.staging.root, self.staging.home
        total = total_size(self.inputs)
        free = [free_bytes(each) for each in (cache_folder, root, home) if is_local(each)]
        if not free or min(free) > AMPLE * total:
            return []
        cached, output = sizes(self.config, self.tokenizer, self.inputs, self.options.max_reject_chars)
        fewer = self.compose.mix or self.compose.deduplicate or self.config.preprocessing.max_items is not None
        output = 0.0 if fewer or len(EarlierOutput(self.earlier_output())) else output
        runs = 0.0 if fewer or self.compose.shuffle is None else cached
        freed = output if single_use else 0.0  # blocks are removed as their rows are written
        cached = 0.0 if os.path.isdir(cache_folder) else max(0.0, cached - freed)
        needs = [(cache_folder, "the token cache", cached), (root, "sorted runs", runs), (home, "the output", output)]
        return lacks_room((folder, what, size * total) for folder, what, size in needs if is_local(folder))


@dataclass(slots=True)
class _Job:
    """A job.

    Attributes:
        running: Beam's result, once it runs.
        is_left: True: it is left to its runner.
        reports: the folder of the workers' reports; None: they share none.
    """

    running: Any = None
    is_left: bool = False
    reports: str | None = None


def _options(given: Sequence[str] | PipelineOptions | None) -> PipelineOptions:
    return given if isinstance(given, PipelineOptions) else PipelineOptions(list(given or []))
