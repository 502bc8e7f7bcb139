"""`Pipeline`: runs a job of a config, inputs and an output directory."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import AnyPath, AnyPaths
from beam_prep.errors import BeamPrepError, ConfigError, RunError, StorageError
from beam_prep.first_records import FirstRecords
from beam_prep.options import RunOptions
from beam_prep.output_claim import OutputClaim, folders_of, manifest_of
from beam_prep.process import Stopped, quiet_beam, received_signal
from beam_prep.progress import Progress, reports_folder
from beam_prep.runners import Job, choose_runner, raised_by_worker, workers_of
from beam_prep.storage.files import join
from beam_prep.storage.inputs import stores_checksum
from beam_prep.storage.publish import earlier_path
from beam_prep.storage.shipped import ship, ship_references
from beam_prep.storage.stores import is_local
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.batch import CachePolicy
from beam_prep.transforms.steps import ReadJSONL

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
        raise ConfigError(f"beam_options is {given!r}, wanted a list such as ['--runner=FlinkRunner']")
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
        # Read once: the data that is compared must be the data in the facts, even if a file changes meanwhile.
        self._references = recipe.references_of(self.config)
        index = None if self._references is None else self._references.index
        recipe.chain(self.config, self.tokenizer, references=index)  # raises what its steps raise
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
            job = choose_runner(options, self.inputs)
            token_cache = self.cache_of_run(single_use=job.here and self.staging.local)
            warnings = self._look_at_inputs(job, token_cache)
            self.output = claim.choose_version()
            with self._launched(job, claim) as reports:
                pipeline = self._pipeline(job, token_cache, warnings, reports)
                claim.take(job.here, wait)
                limited = self.config.preprocessing.max_items is not None
                progress = nullcontext() if reports is None else Progress(reports, self.inputs, limited)
                with progress, quiet_beam(), claim.claims.renewed(self.options.lease):
                    job.running = pipeline.run()
                    if not job.here:
                        claim.claims.update(job=job.told())
                    job.is_left = not job.here and not wait
                    if job.is_left:
                        return Result(self.output, None, False, job.id)
                    job.wait()
            claim.release(job.here)
            claim.say_how_made(len(warnings))
            return Result(self.output, manifest_of(self.output), up_to_date=False)

    def claim(self) -> OutputClaim:
        """The claim on the output."""
        return OutputClaim(self.root, self.staging, self.options, self.facts, self.inputs)

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

    def _look_at_inputs(self, job: Job, token_cache: TokenCache) -> list[str]:
        """Logs what will be done, and warnings. Returns all warnings.

        Raises:
            InputError, TokenizerError: an input or the backend cannot be used.
        """
        first, chars = self._first_records, self.options.max_reject_chars
        self._backend = first.backend(self.options.tokenizer_backend)
        first.check_files()
        earlier = earlier_path(self.root, self.options.keep_versions)
        lacks = first.lacks_room(token_cache, self.staging, earlier, chars)
        return first.tell(job.how, lacks, self._references)

    @property
    def _first_records(self) -> FirstRecords:
        return FirstRecords(self.config, self.tokenizer, self.inputs)

    @contextmanager
    def _launched(self, job: Job, claim: OutputClaim) -> Iterator[str | None]:
        """Makes the folder of unfinished files. Ends job, claim and folder, as far as they end with this launch.

        Yields the folder of the workers' reports; None: they share none.
        """
        is_done = False
        shared = self.staging.path("progress") if self.staging.local else None
        try:
            self.staging.create()
            with reports_folder(shared, job.here) as reports:
                yield reports
            is_done = not job.is_left
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            refused = claim.is_taken and job.running is None and not job.here
            found = job.refused(error) if refused else raised_by_worker(error)
            if not isinstance(found, (StorageError, RunError)):
                claim.check()  # a job that has lost its claim may fail in any way
            raise self._first_records.with_advice(found) from error
        finally:
            if received_signal() is not None:
                job.cancel()
            if not is_done and not job.is_left and not job.may_run:
                claim.fails()
            # On another runner the job may still run: a later launch removes its files.
            if job.here or is_done:
                try:
                    self.staging.remove()
                except Stopped:  # there is no second signal
                    self.staging.remove()
                    raise

    def _pipeline(self, job: Job, token_cache: TokenCache, warnings: list[str], reports: str | None) -> beam.Pipeline:
        """The job's steps.

        Raises:
            ConfigError: a step or Beam refuses an option.
        """
        config, options = self.config, self.options
        folder, found = self.staging.root, self._references
        references = None if found is None else ship_references(found, folder)
        tokenizer = self.tokenizer if job.here else ship(self.tokenizer, folder)
        checksum = stores_checksum(self.inputs)
        run = {
            "how": job.how,
            "warnings": warnings,
            **self.about,
            "block_bytes": options.block_bytes,
            "check": options.check,
            "started": time.time(),
            **({} if checksum is None else {"inputs_checksum": checksum}),
        }
        try:
            pipeline = beam.Pipeline(job.runner, options=job.options)
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
