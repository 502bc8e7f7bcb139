"""`Pipeline`: a config, inputs and an output directory -> a run."""

import contextlib
import functools
import itertools
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import apache_beam as beam
import filelock
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.data.hashing import CHUNK
from beam_prep.errors import BeamPrepError, ConfigError, InputError, LockedError, OutputError, RunError, StorageError
from beam_prep.formats.manifest import MANIFEST, RUN, load
from beam_prep.process import Stopped, received_signal
from beam_prep.progress import Progress
from beam_prep.reading.blocks import MAX_LINE_BYTES
from beam_prep.reading.decontaminate import IndexSource
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.records import Records
from beam_prep.reading.verdicts import verdicts, warning_of
from beam_prep.renamed import GONE_VALUES
from beam_prep.runners import choose_runner, plain_size, without_effect, workers_of
from beam_prep.running import (
    cancel,
    counters_of,
    has_ended,
    job_id_of,
    quiet_beam,
    raised_by_worker,
    told_job,
    wait_until_done,
)
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, ConfigView, check_rates, how_made
from beam_prep.storage.claims import LEASE, Claim, Claims
from beam_prep.storage.files import join, total_size
from beam_prep.storage.foreign import advice_on, check_heads
from beam_prep.storage.input_digests import digest_of_input, stores_checksum
from beam_prep.storage.output import normalise_path, output_at
from beam_prep.storage.preflight import Preflight
from beam_prep.storage.publish import up_to_date
from beam_prep.storage.references import ship as ship_references
from beam_prep.storage.reuse import EarlierOutput, earlier_path
from beam_prep.storage.splits import BLOCK_BYTES, first_records, is_stream, records_at
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores.client import StoreOptions, is_local
from beam_prep.storage.stores.objects import read_bytes
from beam_prep.storage.token_cache import EarlierBlocks, TokenCache
from beam_prep.storage.tokenizers import load_tokenizer, ship
from beam_prep.storage.uses import Launch
from beam_prep.storage.versions import Versions, check_name, new_name
from beam_prep.tokens.backends import Backend, choose
from beam_prep.tokens.check import IN_FULL, CachePolicy, Check
from beam_prep.transforms.records import ReadJSONL
from beam_prep.transforms.shard import Shard

log = logging.getLogger("beam_prep")

MIN_LEASE = 60.0
_UNTIL_WORKERS_START = 3600.0
"""Seconds."""
REFERENCE_ALONE = 2_000_000
"""Bytes of input that the reference encodes sooner than another backend is loaded and compared with it."""
_GROUPS_PROBED = 16
"""Groups of inputs whose first records are tried before a run: each is a file to open. In the run, blocks of all are
checked by sample."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        output: the output directory.
        manifest: its manifest; None if the job was launched and not waited for.
        up_to_date: the output was there already, and nothing was done.
        job_id: the runner's id of a job that was not waited for, if it has one.
    """

    output: str
    manifest: dict[str, Any] | None
    up_to_date: bool
    job_id: str | None = None


class Pipeline:
    """A job: JSONL or Parquet files, a config and a tokenizer -> an output directory.

    Args:
        config: a `PipelineConfig`, or the path of its JSON file.
        inputs: paths, globs and `@LIST`s (files that name these, one a line), in order; None: the config names them, in
            `input.groups`.
        output_dir: the directory to make.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub. This and the other paths may be on
            `gs://` or `s3://`: see docs/storage.md.
        overwrite: replace another job's output.
        max_reject_rate: a larger share of rejected records fails the run.
        max_no_loss_rate: so does a larger share of records that are dropped with nothing to train on (`empty`,
            `rows_without_loss`).
        max_reject_chars: characters of a rejected record that are kept; 0 keeps texts out of the rejects.
        max_line_bytes: a longer line is rejected (`line_too_long`), and is not kept in memory.
        block_bytes: bytes of input in a block; a multiple of 65536. Changes no byte of the output.
        cache_dir: a folder that keeps tokenised blocks for later runs; without it they are removed when the run
            succeeds.
        staging: the folder of unfinished files; by default a hidden folder next to the output.
        staging_ttl: seconds after which the unfinished files of failed launches are removed.
        keep_versions: make a version, `OUTPUT_DIR/<version_name>`, to which `OUTPUT_DIR/latest` points at the end, and
            keep this many.
        version_name: its name; by default the time of the launch in UTC, `20261122T180738Z`.
        lease: seconds after which a launch that was killed no longer holds the output.
        tokenizer_backend: `auto`, `transformers` or `gigatoken`: see `Tokenize`.
        check: how much of the fast ways' results is compared with the reference: `sample`, a few records of every
            block, or `full`, everything; then a difference fails the run. docs/masks.md says what a sample can miss.
        beam_options: any options of Beam, for `run` if it is given none. The options that say where a store is
            (`--s3_endpoint_url` ...) are needed here, because the inputs are listed here.

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
        overwrite: bool = False,
        max_reject_rate: float = MAX_REJECT_RATE,
        max_no_loss_rate: float = MAX_NO_LOSS_RATE,
        max_reject_chars: int = 1000,
        max_line_bytes: int = MAX_LINE_BYTES,
        block_bytes: int = BLOCK_BYTES,
        cache_dir: str | None = None,
        staging: str | None = None,
        staging_ttl: float = 7 * 24 * 3600,
        keep_versions: int | None = None,
        version_name: str | None = None,
        lease: float = LEASE,
        tokenizer_backend: Backend = "auto",
        check: Check = "sample",
        beam_options: Sequence[str] | PipelineOptions | None = None,
    ) -> None:
        self.beam_options = beam_options
        if beam_options is not None:
            FileSystems.set_options(_options(beam_options))
        self.config = config if isinstance(config, PipelineConfig) else recipe.read_config(config)
        if max_reject_chars < 0:
            raise ConfigError(f"max_reject_chars is {max_reject_chars}, wanted 0 or more characters")
        if not 1 <= max_line_bytes < 1 << 31:
            raise ConfigError(f"max_line_bytes is {max_line_bytes}, wanted 1 or more, below 2 GiB")
        check_rates(max_reject_rate, max_no_loss_rate)
        self.root = self.output = normalise_path(os.fspath(output_dir))
        if version_name is not None:
            check_name(version_name)
            if keep_versions is None:
                raise ConfigError(f"version_name is {version_name!r} without keep_versions: say how many are kept")
        if keep_versions is not None and keep_versions < 1:
            raise ConfigError(f"keep_versions is {keep_versions}, wanted how many are kept, 1 or more")
        if lease < MIN_LEASE:
            raise ConfigError(f"lease is {lease:g}, wanted {MIN_LEASE:g} seconds or more")
        self.keep_versions, self.version_name, self.lease = keep_versions, version_name, lease
        if is_local(self.output) and not is_local(staging or ""):
            raise ConfigError(
                f"staging is {staging}, and the output is a local directory: give a local one for it, too"
            )
        self.inputs = recipe.inputs_of(self.config, inputs)
        self.tokenizer = load_tokenizer(os.fspath(tokenizer_path))
        if self.config.input.chat_template is not None:
            # Then the output keeps the template that made it.
            self.tokenizer = self.tokenizer.with_template(self.config.input.chat_template)
        if tokenizer_backend not in get_args(Backend):
            wanted = GONE_VALUES.get(tokenizer_backend, f"wanted one of {', '.join(get_args(Backend))}")
            raise ConfigError(f"tokenizer_backend is {tokenizer_backend!r}, {wanted}")
        if check not in get_args(Check):
            raise ConfigError(f"check is {check!r}, wanted {' or '.join(get_args(Check))}")
        self.tokenizer_backend = tokenizer_backend
        self.check = check
        self.compose = recipe.compose(self.config, total_size(self.inputs))
        self.overwrite = overwrite
        self.max_reject_rate = max_reject_rate
        self.max_no_loss_rate = max_no_loss_rate
        self.max_reject_chars = max_reject_chars
        self.max_line_bytes = max_line_bytes
        self.block_bytes = block_bytes
        self.cache_dir = os.path.abspath(cache_dir) if cache_dir and is_local(cache_dir) else cache_dir
        self.staging = Staging.beside(self.output, staging)
        self.staging_ttl = staging_ttl
        self.config.check_vocabulary(self.tokenizer.max_id)
        recipe.check_template(self.config, self.tokenizer)
        self._dies = False
        # Read once: what is compared must be what the facts say, also if a file changes meanwhile.
        self._references = recipe.references_of(self.config)
        self.references: IndexSource | None = None if self._references is None else self._references.index
        self.facts = recipe.facts(
            self.config, self.tokenizer, max_reject_chars, max_line_bytes, self._references, self.inputs
        )
        self.earlier: EarlierBlocks | None = None  # of a replay
        self.about: dict[str, Any] = {}  # what else `run.json` says

    def run(self, beam_options: Sequence[str] | PipelineOptions | None = None, *, wait: bool = True) -> Result:
        """Runs the job, or finds that its output is up to date.

        Args:
            beam_options: any options of Beam. Without a runner, small inputs are worked on in this process, and large
                ones in one worker process for each core.
            wait: wait for the end. Otherwise the job is only launched (on runners that work elsewhere), and a later
                launch removes its unfinished files after `staging_ttl`.

        Raises:
            BeamPrepError: one of its subclasses. The message says what to do.
        """
        beam_options = self.beam_options if beam_options is None else beam_options
        options = _options(beam_options)
        if beam_options is not None:
            FileSystems.set_options(options)
            self.staging = replace(self.staging, options=StoreOptions.current())
        with self._locked():
            alone = False
            if is_local(self.root):  # in a store nothing is locked, but claimed
                alone = self.staging.remove_ended()
                replace(self.staging, root=self.staging.home).remove_ended()  # copies of another disk's staging
            if (output := self._current()) is not None:
                result = self._result(output, up_to_date=True)
                self._finish_for_others(result, alone)
                return result
            try:
                return self._run(options, wait)
            except Stopped:
                if self._dies:  # the signal may have come while the folder was being removed
                    self.staging.remove()
                raise

    def _finish_for_others(self, made: Result, alone: bool) -> None:
        """Does what a launch that was killed after it had published this output left to do.

        Args:
            made: the output.
            alone: on a disk: no other launch's folder is left.
        """
        if self._claims.holder() is not None:
            try:
                self._claim(dies=True, wait=True)
            except LockedError:
                return  # a job is at work
            output_at(made.output, self.staging).remove_replaced(made.manifest or {})
            if self.cache_dir is None and not is_local(self.root):
                self.staging.remove_kept()
            self._claims.release()
        if (uses := self.cache_of_run().uses) is not None:
            uses.tidy(self.root)
        if alone and self.cache_dir is None:
            self.staging.remove_kept()

    def _current(self) -> str | None:
        """The output that is there, if it is complete and of this job; else None.

        Raises:
            OutputError: it is, but may not be used: see `_checked`.
        """
        if self.keep_versions is None:
            current = up_to_date(self.root, self.facts, self._same_inputs) and self._checked(self.root)
            return self.root if current else None
        made = Versions(self.root)
        made.clean()
        latest, other = made.latest(), self._claims.holder()
        ended = other.version_name if other is not None and other.has_ended() else None
        # Of this name or of that launch, too: it was killed, perhaps, before `latest` pointed to what it had made.
        for name in dict.fromkeys(filter(None, (latest, self.version_name, ended))):
            output = made.path(name)
            if up_to_date(output, self.facts, self._same_inputs) and self._checked(output):
                made.point(name)
                made.remove_old(self.keep_versions, name)
                return output
        return None

    @property
    def _claims(self) -> Claims:
        return self.staging.claims(self.root)

    def _choose_version(self) -> None:
        """Sets the output. A launch that did not end well has given its version a name, which is kept.

        Raises:
            LockedError: another launch holds the output.
        """
        if self.keep_versions is None:
            return
        made, other = Versions(self.root), self._claims.ended(alone=is_local(self.root))
        name = self.version_name or new_name()
        if self.version_name is None and other is not None and other.version_name and not made.has(other.version_name):
            name = other.version_name
        self.output = made.path(name)

    def _claim(self, dies: bool, wait: bool) -> None:
        """Claims the output.

        Args:
            dies: the job ends with this process.
            wait: this process renews the claim. Otherwise the workers do, and may take an hour to start.

        Raises:
            LockedError: another launch holds the output.
        """
        name = None if self.output == self.root else self.output.rpartition("/")[2]
        lease = self.lease if dies or wait else max(self.lease, _UNTIL_WORKERS_START)
        mine = Claim(self.staging.launch, dies=dies, lease=lease, version_name=name)
        other = self._claims.take(mine, alone=is_local(self.root))
        if other is not None:
            for launch, version_name in other.ended():
                self._clear_up(str(launch), version_name)
            self._claims.update(left=())

    def _clear_up(self, launch: str, version_name: str | None) -> None:
        """Removes what a launch left that did not end well, or ends its work if it had published."""
        if not is_local(self.root):
            replace(self.staging, launch=launch).remove()
        made = Versions(self.root)
        if version_name is None:
            return
        if not made.has(version_name):
            made.remove_unfinished(version_name)
            return
        output = made.path(version_name)
        output_at(output, self.staging).remove_replaced(self._result(output, False).manifest or {})
        made.point(version_name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the output against other jobs. (In a store, claims do that: see `StoredOutput`.)"""
        if not is_local(self.output):
            yield
            return
        # Next to the output, wherever the staging is: all jobs on this output must find the same lock.
        folder = self.staging.home
        os.makedirs(folder, exist_ok=True)
        lock = filelock.FileLock(os.path.join(folder, "lock"))
        try:
            held = lock.acquire(timeout=0)
        except filelock.Timeout:
            holder = self._claims.holder()  # None between its lock and its claim
            who = f": {holder.who()}" if holder else ""
            stop = f"; to stop it, type on {holder.host}: kill {holder.pid}" if holder else ""
            raise LockedError(
                f"another job is writing {self.root}{who}. Wait for it, or choose another output{stop}"
            ) from None
        with held:
            yield

    def _run(self, options: PipelineOptions, wait: bool) -> Result:
        ignored = without_effect(options, wait)
        runner, options, how = choose_runner(options, self.inputs)
        _ = self._backend  # it may be refused, before anything runs
        here = isinstance(runner, FnApiRunner)
        files = "1 file" if len(self.inputs) == 1 else f"{len(self.inputs)} files"
        log.info("%s; %s, %.1f MB", how, files, total_size(self.inputs) / 1e6)
        for warning in ignored:
            log.warning("warning: %s", warning)
        parts = self.config.parts()
        for group, some in itertools.groupby(self.inputs, lambda file: file.group):
            check_heads(list(some), parts[group or 0].input.fields)
        config_warnings = [f"config: {warning}" for warning in self.config.warnings]
        config_warnings += [] if self._references is None else self._references.warnings
        most, longest = self.tokenizer.model_max_length, self.config.preprocessing.max_seq_len
        if most is not None and longest is not None and most < longest:
            config_warnings.append(
                f"tokenizer: its model_max_length is {most:,}, and preprocessing.max_seq_len is {longest:,}: rows may "
                "be longer than the model takes"
            )
        for warning in config_warnings:
            log.warning("%s", warning)
        of_first = self._first_records_warnings()
        for warning in of_first:
            log.warning("warning: %s", warning)
        first_warnings = [*ignored, *config_warnings, *of_first]
        self._choose_version()
        self._dies = here
        self.staging.remove_older(self.staging_ttl)
        self.staging.create(ends_with_launcher=here)
        if not here:
            # Workers on other machines do not have the tokenizer's folder.
            self.tokenizer = ship(self.tokenizer, self.staging.root)
        if self._references is not None:
            self.references = ship_references(self._references, self.staging.root)
        folder = self.staging.path("progress") if self.staging.local else None
        reports = None
        if folder is None and here:  # workers of this machine need no store for their reports
            reports = tempfile.TemporaryDirectory(prefix="beam_prep-progress-", ignore_cleanup_errors=True)
            folder = reports.name
        progress = Progress(folder, self.inputs, limited=self.config.preprocessing.max_items is not None)
        done = claimed = left = False
        running = None
        try:
            try:
                pipeline = beam.Pipeline(runner, options=options)
                about = {"how": how, "warnings": first_warnings}
                single_use = here and self.cache_dir is None and self.staging.local and not self.compose.composes
                self.apply(pipeline, about, single_use, folder)
            except ValueError as error:  # an option that a step or Beam refuses
                raise error if isinstance(error, BeamPrepError) else ConfigError(str(error)) from None
            self._claim(here, wait)
            claimed = True
            self._note_launch(begins=True)
            with progress, quiet_beam(), self._claims.renewed(self.lease):
                running = pipeline.run()
                if not here:
                    self._claims.update(job=told_job(running, options))
                    progress.ask(functools.partial(counters_of, running, options))
                if not here and not wait:
                    left = True
                    return Result(self.output, None, False, job_id_of(running))
                wait_until_done(running)
            done = True
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            found = raised_by_worker(error)
            if claimed and not isinstance(found, (StorageError, RunError)):
                output_at(self.output, self.staging).check_claim()  # a job that has lost it may fail in any way
            if isinstance(found, RunError):
                fields = ConfigView.of(self.config.canonical()).fields
                if (advice := advice_on(self.inputs, str(found), fields)) is not None:
                    found = RunError(f"{found}; {advice}")
            raise found from error
        finally:
            if reports is not None:
                reports.cleanup()
            if running is not None and not here and received_signal() is not None:
                cancel(running, options)
            if claimed and not done and not left and (here or running is None or has_ended(running)):
                output_at(self.output, self.staging).fails()
            # On another runner the job may still be at work: a later launch removes its files.
            if here or done:
                self._note_launch(begins=False)
                self.staging.remove()
        # A job that may outlive its launcher ends its claim itself. Whoever takes it over clears up, too.
        if here or self._claims.update(lease=self.lease, renewed=time.time()):
            if self.cache_dir is None:
                self.staging.remove_kept()
            self._claims.release()
        result = self._result(self.output, up_to_date=False)
        run = json.loads(read_bytes(join(self.output, RUN)))
        log.info("%s", how_made(run))
        for warning in run["warnings"][len(first_warnings) :]:
            log.warning("warning: %s", warning)
        return result

    def _first_records_warnings(self) -> list[str]:
        """What records of each group show: bad answers that are trained, roles without an end token."""
        found: dict[str, None] = {}
        firsts = {file.group or 0: file for file in reversed(self.inputs)}
        for group, part in [*enumerate(self.config.parts())][:_GROUPS_PROBED]:
            if (records := _first_records(firsts[group])) is None:
                continue
            rows = records.rows
            files = [file for file in self.inputs if (file.group or 0) == group]
            looked = [row for file in _spread(files, _FILES_PROBED // len(firsts)) for row in _looked_at(file)]
            use = part.field_use
            if (text := warning_of(verdicts(looked, use), len(looked))) is not None:
                more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
                found[f"{firsts[group].path}{more}: {text}"] = None
            found.update(dict.fromkeys(fields_of_files(looked, use.known) if use.answers else ()))
            found.update(dict.fromkeys(recipe.missing_ends(part, self.tokenizer, records)))
            key = part.output.domain_key
            numbers = [row[key] for row in rows if key is not None and isinstance(row.get(key), int | float)]
            if numbers:
                found[
                    f"{firsts[group].path}: output.domain_key {key!r} is a number or a boolean (as "
                    f"{json.dumps(numbers[0])}) in {len(numbers)} of the first {len(rows)} records: these are in the "
                    "domain '__default__'; write it as a text for a domain of its own"
                ] = None
        return list(found)

    @functools.cached_property
    def _backend(self) -> Backend:
        """The backend that encodes, chosen with the first records of the input as probes."""
        parts = {group: part for group, part in enumerate(self.config.parts()) if not part.input.tokenized}
        if not parts:  # nothing is encoded
            return "transformers"
        wanted = self.tokenizer_backend
        if wanted == "auto" and plain_size(self.inputs) <= REFERENCE_ALONE:
            wanted = "transformers"
        if wanted == "transformers" and not self.tokenizer.resolved_here:
            return wanted
        firsts = {file.group or 0: file for file in reversed(self.inputs)}
        index = None if self._references is None else self._references.index
        texts = [
            text
            for group, part in [*parts.items()][:_GROUPS_PROBED]
            for text in _first_texts(firsts[group], recipe.text_steps(part, self.tokenizer, index))
        ]
        self.tokenizer.check_texts(texts)
        chosen, problem = choose(self.tokenizer, wanted, texts)
        if problem is not None:
            log.info("%s", problem)
        return chosen

    def apply(
        self, pipeline: beam.Pipeline, run: dict[str, Any], single_use: bool = False, progress: str | None = None
    ) -> beam.PCollection[str]:
        """Adds the job's steps to a pipeline.

        Args:
            pipeline: the pipeline.
            run: what else `run.json` says of this run.
            single_use: see `TokenCache`.
            progress: see `Shard`.
        """
        token_cache, config = self.cache_of_run(single_use), self.config
        return (
            pipeline
            | ReadJSONL(
                self.inputs,
                self.block_bytes,
                token_cache,
                self.max_line_bytes,
                workers_of(pipeline.options),
            )
            | recipe.Prepare(config, self.tokenizer, self._backend, self.check, self.references, releases=True)
            | Shard(
                self.output,
                config.output.max_tokens_per_shard,
                config.output.formats,
                max_items=config.preprocessing.max_items,
                pack=recipe.layout(config, self.tokenizer),
                rows_without_loss=config.preprocessing.rows_without_loss,
                dtype=config.columns(),
                max_reject_rate=self.max_reject_rate,
                max_no_loss_rate=self.max_no_loss_rate,
                max_reject_chars=self.max_reject_chars,
                tokenizer=self.tokenizer,
                overwrite=self.overwrite,
                token_cache=token_cache,
                staging=self.staging,
                preflight=self._preflight(token_cache),
                progress=progress,
                keep_versions=self.keep_versions,
                compose=self.compose,
                facts=self.facts,
                run={
                    **run,
                    **self.about,
                    "block_bytes": self.block_bytes,
                    "check": self.check,
                    "started": time.time(),
                    **({} if (checksum := stores_checksum(self.inputs)) is None else {"inputs_checksum": checksum}),
                },
            )
        )

    def cache_of_run(self, single_use: bool = False) -> TokenCache:
        """The token cache; for `single_use` see there."""
        folder = self.cache_dir or join(self.staging.root, "token_cache")
        trust = CachePolicy(self.tokenizer_backend, self.check)
        made_by, kept = recipe.cache_recipe(self.facts), self.cache_dir is not None
        groups = recipe.group_recipes(self.facts)
        return TokenCache(
            folder, made_by, single_use=single_use, trust=trust, kept=kept, earlier=self.earlier, groups=groups
        )

    def _note_launch(self, begins: bool) -> None:
        """Notes in a token cache that is kept that this launch uses it, or that it has ended."""
        token_cache, launch = self.cache_of_run(), self.staging.launch
        if token_cache.uses is not None and begins:
            token_cache.uses.begin(Launch(launch, token_cache.recipe[:16], self.root, self.staging.home))
        elif token_cache.uses is not None:
            token_cache.uses.end(self.root, launch)

    def earlier_output(self) -> str | None:
        """The path of the output whose shards are linked."""
        return earlier_path(self.root, self.keep_versions)

    def _preflight(self, token_cache: TokenCache) -> Preflight:
        places = (self.staging.root, self.staging.home)
        fewer = bool(self.compose.mix) or self.compose.deduplicate
        return Preflight(
            input_bytes=total_size(self.inputs),
            token_cache=token_cache.folder if is_local(token_cache.folder) else None,
            outputs=tuple(dict.fromkeys(place for place in places if is_local(place))),
            cache_is_new=token_cache.is_new(),
            linked=EarlierOutput(self.earlier_output()).bytes,
            limited=fewer or self.config.preprocessing.max_items is not None,
            single_use=token_cache.single_use,
            shuffled=self.compose.shuffle is not None,
            scratch=self.staging.root if is_local(self.staging.root) else None,
        )

    def _checked(self, output: str) -> bool:
        """True if this job's output was made with the check that is asked for.

        Raises:
            OutputError: it was not, and may not be replaced.
        """
        run = json.loads(read_bytes(join(output, RUN))) if self.check == "full" else {}
        checked = bool(run.get(IN_FULL) == run.get("blocks"))
        if not checked and not self.overwrite:
            raise OutputError(
                f"{output} is up to date, but was made without --check full: pass --overwrite to make it again"
            )
        return checked

    def _same_inputs(self, listed: list[dict[str, Any]]) -> bool:
        mine = [(file.path, file.size) for file in self.inputs]
        if [(entry["path"], entry["size"]) for entry in listed] != mine:
            return False
        checksum = stores_checksum(self.inputs)
        if checksum is not None and json.loads(read_bytes(join(self.output, RUN))).get("inputs_checksum") == checksum:
            return True  # by the stores' checksums; no file is read
        return all(digest_of_input(file) == entry["digest"] for file, entry in zip(self.inputs, listed, strict=True))

    def _result(self, output: str, up_to_date: bool) -> Result:
        path = join(output, MANIFEST)
        return Result(output, load(read_bytes(path), path), up_to_date)


_FILES_PROBED = 16
_PROBE_BYTES = 4 * CHUNK
_PROBES = 64
_PROBE_CHARACTERS = 4096  # a line may be of any length, and this is start-up


def _first_texts(source: InputFile, steps: Iterable[Callable[[Any], Any]]) -> list[str]:
    """Texts of the first records of a file, as they are encoded."""
    records = _first_records(source)
    if records is None:
        return []
    block: Any = records
    for step in steps:
        block = step(block)
    return [text[:_PROBE_CHARACTERS] for each in block.pieces.values() for text in each.texts[:_PROBES]]


def _first_records(source: InputFile) -> Records | None:
    """The first records of a file. None if it has none, or cannot be read, which the run will report."""
    try:
        records = first_records(source, block_bytes=_PROBE_BYTES)
    except InputError:
        return None
    return None if records is None else records.part(range(min(len(records), _PROBES)))


def _spread(files: Sequence[InputFile], most: int) -> list[InputFile]:
    """So many of the files, first and last among them."""
    count = min(len(files), max(2, most))
    return [files[place * (len(files) - 1) // max(1, count - 1)] for place in range(count)]


def _looked_at(source: InputFile) -> list[dict[str, Any]]:
    """Records of a file's beginning, and of its middle and its end, where these can be read by themselves."""
    places = [] if is_stream(source) else [source.size // 2, source.size - CHUNK]
    found: list[dict[str, Any]] = []
    with contextlib.suppress(InputError):  # the run will report it
        blocks = [first_records(source, block_bytes=_PROBE_BYTES)]
        blocks += [records_at(source, 0, place // CHUNK * CHUNK, 2 * CHUNK) for place in places if place >= CHUNK]
        for rows in (block.rows for block in blocks if block is not None):
            half = min(len(rows), _PROBES // 2)
            found += rows[:half] + rows[max(half, len(rows) - half) :]
    return found


def _options(given: Sequence[str] | PipelineOptions | None) -> PipelineOptions:
    return given if isinstance(given, PipelineOptions) else PipelineOptions(list(given or []))
