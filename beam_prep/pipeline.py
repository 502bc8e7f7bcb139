"""`Pipeline`: a config, inputs and an output directory -> a run."""

import contextlib
import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import apache_beam as beam
import filelock
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_prep import recipe, worker
from beam_prep.config import PipelineConfig
from beam_prep.core.data.block import InputFile
from beam_prep.core.data.hashing import Node, tree_digest, tree_nodes
from beam_prep.core.encoding.backends import INHERITED, Backend, choose
from beam_prep.core.shards.report import MAX_DROP_RATE, MAX_REJECT_RATE
from beam_prep.core.tokens.check import IN_FULL, Check, Trust
from beam_prep.errors import BeamPrepError, ConfigError, OutputError
from beam_prep.formats.manifest import MANIFEST, RUN, load
from beam_prep.progress import Progress
from beam_prep.runners import choose_runner
from beam_prep.running import job_id_of, quiet_beam, raised_by_worker, wait_until_done
from beam_prep.storage.files import join, list_inputs, open_input, total_size
from beam_prep.storage.output import normal
from beam_prep.storage.paths import is_local
from beam_prep.storage.publish import up_to_date
from beam_prep.storage.spool import Spool
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores.options import StoreOptions
from beam_prep.storage.stores.reader import read_bytes
from beam_prep.storage.tokenizers import load_tokenizer, ship
from beam_prep.transforms.read import BLOCK_BYTES, ReadJSONL
from beam_prep.transforms.shard import Shard
from beam_prep.transforms.template import Render

log = logging.getLogger("beam_prep")


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave.

    Attributes:
        output: the output directory.
        manifest: its manifest; None: the job was launched and not waited for.
        up_to_date: the output was there already; nothing was done.
        job_id: what the runner calls a job that was not waited for, where it says so.
    """

    output: str
    manifest: dict[str, Any] | None
    up_to_date: bool
    job_id: str | None = None


class Pipeline:
    """A job: JSONL files, a config and a tokenizer -> an output directory.

    >>> job = bp.Pipeline("configs/sft_conversation.json", "examples/data/chat.jsonl", "out/mine", "examples/tokenizer")
    >>> result = job.run(["--runner=FnApiRunner"])
    >>> result.manifest["ledger"]["kept"], result.up_to_date
    (260, False)

    Args:
        config: a `PipelineConfig`, or the path of its JSON file.
        inputs: paths, globs and `@LIST`s (files that name these, one a line), in order.
        output_dir: the directory to make.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub. Like the other paths, it may be one
            on `gs://` or `s3://`: see docs/storage.md.
        overwrite: replace another job's output.
        max_reject_rate: a larger share of rejected records fails the run.
        max_drop_rate: so does a larger share of records that are dropped with nothing to train on (`empty`,
            `untrained`).
        reject_text: characters of a rejected record that are kept; 0 keeps texts out of the rejects.
        block_bytes: bytes of input that are worked on at a time; a multiple of 65536. Changes no byte of the output.
        spool: a folder that keeps tokenised blocks for later runs; without it they go when the run has succeeded.
        staging: where unfinished files lie; by default a hidden folder beside the output.
        staging_ttl: seconds after which what failed launches left is removed.
        tokenizer_backend: `auto`, `transformers` or `gigatoken`: see `Tokenize`.
        render: `auto` or `jinja`: see `ApplyTemplate`.
        check: how much of what the fast ways give is compared with the reference: `sample`, some records of every
            block, or `full`, all of it; then a difference fails the run. docs/masks.md says what a sample can miss.
        beam_options: any options of Beam, which `run` takes where it is given none. Those that say where a store is
            (`--s3_endpoint_url` ...) are needed here, where the inputs are listed.

    Raises:
        ConfigError, InputError, TokenizerError, OutputError, StorageError: before anything runs.
    """

    def __init__(
        self,
        config: PipelineConfig | str | os.PathLike[str],
        inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        tokenizer_path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        max_reject_rate: float = MAX_REJECT_RATE,
        max_drop_rate: float = MAX_DROP_RATE,
        reject_text: int = 1000,
        block_bytes: int = BLOCK_BYTES,
        spool: str | None = None,
        staging: str | None = None,
        staging_ttl: float = 7 * 24 * 3600,
        tokenizer_backend: Backend = "auto",
        render: Render = "auto",
        check: Check = "sample",
        beam_options: Sequence[str] | PipelineOptions | None = None,
    ) -> None:
        self.beam_options = beam_options
        if beam_options is not None:
            FileSystems.set_options(_options(beam_options))
        self.config = config if isinstance(config, PipelineConfig) else recipe.read_config(config)
        if reject_text < 0:
            raise ConfigError(f"reject_text is {reject_text}, wanted 0 or more characters")
        for name, share in (("max_reject_rate", max_reject_rate), ("max_drop_rate", max_drop_rate)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}, wanted a share between 0 and 1")
        self.output = normal(os.fspath(output_dir))
        if is_local(self.output) and not is_local(staging or ""):
            raise ConfigError(
                f"staging is {staging}, and the output is a local directory: give a local one for it, too"
            )
        self.inputs = list_inputs(inputs)
        self.tokenizer = load_tokenizer(tokenizer_path)
        if self.config.input.chat_template is not None:
            # So the output keeps the template that made it.
            self.tokenizer = self.tokenizer.with_template(self.config.input.chat_template)
        if tokenizer_backend not in get_args(Backend):
            wanted = ", ".join(get_args(Backend))
            raise ConfigError(f"tokenizer_backend is {tokenizer_backend!r}, wanted one of {wanted}")
        if render not in get_args(Render):
            raise ConfigError(f"render is {render!r}, wanted {' or '.join(get_args(Render))}")
        if check not in get_args(Check):
            raise ConfigError(f"check is {check!r}, wanted {' or '.join(get_args(Check))}")
        self.tokenizer_backend = tokenizer_backend
        self.render = render
        self.check = check
        self.overwrite = overwrite
        self.max_reject_rate = max_reject_rate
        self.max_drop_rate = max_drop_rate
        self.reject_text = reject_text
        self.block_bytes = block_bytes
        self.spool = os.path.abspath(spool) if spool and is_local(spool) else spool
        self.staging = Staging.beside(self.output, staging)
        self.staging_ttl = staging_ttl
        self.config.check_vocabulary(self.tokenizer.max_id)
        recipe.check_template(self.config, self.tokenizer)
        self.facts = recipe.facts(self.config, self.tokenizer, reject_text)

    def run(self, beam_options: Sequence[str] | PipelineOptions | None = None, *, wait: bool = True) -> Result:
        """Runs the job, or finds that its output is up to date.

        Args:
            beam_options: any options of Beam. Without a runner: in-process for small inputs, else one worker process
                a core.
            wait: wait for the end; else the job is only launched (on runners that work elsewhere), and a later launch
                removes its unfinished files, after `staging_ttl`.

        Raises:
            BeamPrepError: see the subclasses; the message says what to do.
        """
        beam_options = self.beam_options if beam_options is None else beam_options
        options = _options(beam_options)
        if beam_options is not None:
            FileSystems.set_options(options)
            self.staging = replace(self.staging, options=StoreOptions.current())
        with self._locked():
            if up_to_date(self.output, self.facts, self._same_inputs) and self._checked():
                return self._result(up_to_date=True)
            return self._run(options, wait)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """No other job on this output. (In a store, the claim of the last launch counts: see `StoredOutput`.)"""
        if not is_local(self.output):
            yield
            return
        os.makedirs(self.staging.root, exist_ok=True)
        lock = filelock.FileLock(os.path.join(self.staging.root, "lock"))
        try:
            held = lock.acquire(timeout=0)
        except filelock.Timeout:
            raise OutputError(f"another job is writing {self.output}: wait for it, or choose another output") from None
        with held:
            yield

    def _run(self, options: PipelineOptions, wait: bool) -> Result:
        runner, options, how = choose_runner(options, self.inputs, lambda: self._gate[1])
        if not worker.are_forked():  # else the first of them passes the gate
            _ = self._backend
        here = isinstance(runner, FnApiRunner)
        files = "1 file" if len(self.inputs) == 1 else f"{len(self.inputs)} files"
        log.info("%s; %s, %.1f MB", how, files, total_size(self.inputs) / 1e6)
        said = [f"config: {warning}" for warning in self.config.warnings]
        for warning in said:
            log.warning("%s", warning)
        self.staging.remove_older(self.staging_ttl)
        self.staging.create()
        if not here:
            # Workers of other machines do not have the folder where the tokenizer lies.
            self.tokenizer = ship(self.tokenizer, self.staging.root)
        watched = self.staging.local  # else workers report to nobody
        progress = Progress(self.staging.path("progress"), self.inputs) if watched else contextlib.nullcontext()
        done = False
        try:
            try:
                pipeline = beam.Pipeline(runner, options=options)
                about = {"how": how, "warnings": said}
                self.apply(pipeline, about, once=here and self.spool is None and self.staging.local)
            except ValueError as error:  # an option that a step or Beam refuses
                raise error if isinstance(error, BeamPrepError) else ConfigError(str(error)) from None
            with progress, quiet_beam():
                running = pipeline.run()
                if not here and not wait:
                    return Result(self.output, None, False, job_id_of(running))
                wait_until_done(running)
            done = True
        except Exception as error:  # runners wrap what a worker raised, each in its own way
            raise raised_by_worker(error) from error
        finally:
            # Elsewhere a job that failed here may still be at work: a later launch removes what it left.
            if here or done:
                self.staging.remove()
        if self.spool is None:
            self.staging.remove_kept()
        result = self._result(up_to_date=False)
        run = json.loads(read_bytes(join(self.output, RUN)))
        log.info("%s", _how_made(run))
        for warning in run["warnings"][len(said) :]:
            log.warning("warning: %s", warning)
        return result

    @functools.cached_property
    def _gate(self) -> tuple[Backend, str | None]:
        """See `choose`. The first records of the input are probes too."""
        if self.config.input.tokenized:
            return "transformers", None
        columns = recipe.columns_of(self.config, self.render)
        spans = columns is None or columns.kind != "texts"
        with _single_threaded():
            texts = recipe.first_texts(self.config, self.tokenizer, self.inputs[0])
            return choose(self.tokenizer, self.tokenizer_backend, texts, spans)

    @functools.cached_property
    def _backend(self) -> Backend | Literal["inherited"]:
        """What encodes."""
        if worker.are_forked():
            return INHERITED
        chosen, problem = self._gate
        if problem is not None:
            log.info("%s", problem)
        return chosen

    def apply(self, pipeline: beam.Pipeline, run: dict[str, Any], once: bool = False) -> beam.PCollection[str]:
        """Puts the job's steps into a pipeline.

        Args:
            pipeline: where to.
            run: what `run.json` says of this run, beside what is known here.
            once: see `Spool`.
        """
        folder = self.spool or join(self.staging.root, "spool")
        trust = Trust(self.tokenizer_backend, self.render, self.check)
        spool = Spool(folder, recipe.spool_recipe(self.facts), once=once, trust=trust)
        config = self.config
        return (
            pipeline
            | ReadJSONL(self.inputs, self.block_bytes, spool, recipe.columns_of(config, self.render))
            | recipe.Prepare(config, self.tokenizer, self._backend, self.render, self.check)
            | Shard(
                self.output,
                config.output.max_tokens_per_shard,
                config.output.formats,
                max_items=config.preprocessing.max_items,
                pack=recipe.layout(config),
                untrained=config.preprocessing.untrained,
                dtype=config.columns(),
                max_reject_rate=self.max_reject_rate,
                max_drop_rate=self.max_drop_rate,
                reject_text=self.reject_text,
                tokenizer=self.tokenizer,
                overwrite=self.overwrite,
                spool=spool,
                staging=self.staging,
                facts=self.facts,
                run={
                    **run,
                    "block_bytes": self.block_bytes,
                    "check": self.check,
                    "started": time.time(),
                    **({} if (checksum := self._inputs_checksum()) is None else {"inputs_checksum": checksum}),
                },
            )
        )

    def _checked(self) -> bool:
        """Whether an output of this very job went through the check that is asked for.

        Raises:
            OutputError: it did not, and may not be replaced.
        """
        run = json.loads(read_bytes(join(self.output, RUN))) if self.check == "full" else {}
        checked = bool(run.get(IN_FULL) == run.get("blocks"))
        if not checked and not self.overwrite:
            raise OutputError(
                f"{self.output} is up to date, but was made without --check full: pass --overwrite to make it again"
            )
        return checked

    def _same_inputs(self, listed: list[dict[str, Any]]) -> bool:
        mine = [(file.path, file.size) for file in self.inputs]
        if [(entry["path"], entry["size"]) for entry in listed] != mine:
            return False
        checksum = self._inputs_checksum()
        if checksum is not None and json.loads(read_bytes(join(self.output, RUN))).get("inputs_checksum") == checksum:
            return True  # the store says so, and nothing need be read
        return all(digest_of(file) == entry["digest"] for file, entry in zip(self.inputs, listed, strict=True))

    def _inputs_checksum(self) -> str | None:
        """What stores say of the inputs' content; None: some are local, and no store says."""
        if any(file.checksum is None for file in self.inputs):
            return None
        told = [(file.path, file.size, file.checksum) for file in self.inputs]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def _result(self, up_to_date: bool) -> Result:
        path = join(self.output, MANIFEST)
        return Result(self.output, load(read_bytes(path), path), up_to_date)


_WAYS = {
    "encoded_by_gigatoken": "encoded by gigatoken",
    "encoded_by_transformers": "encoded by transformers",
    "blocks_encoded_again": "blocks in which gigatoken differed",
    "rendered_as_columns": "rendered as columns",
    "rendered_by_plans": "rendered by plans",
    "rendered_by_jinja": "rendered by jinja",
    "blocks_rendered_again": "blocks in which plans differed",
    "compared_with_transformers": "compared with transformers' ids",
    "compared_with_jinja": "compared with jinja's text",
    IN_FULL: "blocks compared whole",
    "blocks_reused": "blocks that were in the spool",
    "blocks_replaced": "blocks of the spool that were made in other ways, and made again",
    "blocks_damaged": "blocks of the spool that were damaged, and made again",
}


def _how_made(run: dict[str, Any]) -> str:
    """Which backend and which renderer did how many records, of a `run.json`: a slower path never hides."""
    return "records " + ", ".join(f"{words}: {run[name]:,}" for name, words in _WAYS.items() if run.get(name))


def digest_of(source: InputFile) -> str:
    """Digest of a file's content, as in a manifest."""
    nodes: list[Node] = []
    start = 0
    with open_input(source) as stream:
        buffer = b""
        while part := stream.read(BLOCK_BYTES - len(buffer)):
            buffer += part
            if len(buffer) == BLOCK_BYTES:
                nodes += tree_nodes(buffer, start)
                start, buffer = start + len(buffer), b""
        nodes += tree_nodes(buffer, start)
    return tree_digest(nodes)


def _options(given: Sequence[str] | PipelineOptions | None) -> PipelineOptions:
    return given if isinstance(given, PipelineOptions) else PipelineOptions(list(given or []))


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """No threads of the Rust tokenizers: a process that has some cannot be forked, and a few texts need none."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before
