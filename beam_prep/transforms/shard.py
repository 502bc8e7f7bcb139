"""Shard: batches -> an output directory, in four phases: token cache, plan, write, publish."""

import dataclasses
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.combiners import ToListCombineFn

from beam_prep.data.block import of_this_run
from beam_prep.errors import ConfigError, OutputError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import WrittenFile, count_tokens
from beam_prep.progress import report, reported_rows
from beam_prep.shards.compose import Compose
from beam_prep.shards.layout import Layout
from beam_prep.shards.plan import Plan
from beam_prep.shards.receipts import BlockReceipt, placed
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, check_rates
from beam_prep.shards.slices import RejectsPlan
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.output import Staging, normalise_path
from beam_prep.storage.publish import KeyedShard, Publisher, WrittenShard, write_rejects
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import RowsWithoutLoss
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms.plan import RECEIPTS, merge_shards, packed, plan_output, view_blocks

_CHECK_EVERY = 20.0
"""Seconds between two checks of the claim by a worker, well below the shortest lease."""


@dataclasses.dataclass(eq=False, kw_only=True)
class CacheBlocks(beam.DoFn):
    """Writes each block to the token cache, and passes on only its receipt."""

    token_cache: TokenCache
    publisher: Publisher
    rows_without_loss: RowsWithoutLoss
    progress: str | None = None

    def setup(self) -> None:
        self.token_cache.options.activate()
        self._checked = float("-inf")

    def process(self, batch: Batch) -> Iterable[BlockReceipt]:
        started = time.perf_counter()
        if self.publisher.launched and time.monotonic() - self._checked > _CHECK_EVERY:
            self.publisher.target.check_claim()  # raises if the job has lost its claim; otherwise renews the claim
            self._checked = time.monotonic()
        name = self.token_cache.name(self.token_cache.digest(batch.origin))
        receipt, reused, trained = batch.receipt, batch.receipt is not None, {}
        if receipt is None:
            layout, tokenizer = self.publisher.layout, self.publisher.tokenizer
            eos_id = None if tokenizer is None else tokenizer.id_of("eos_token")
            batch = layout.cached(batch, eos_id, self.rows_without_loss)
            receipt = self.token_cache.write(batch, layout.tokens(batch), self.publisher.max_reject_chars)
            trained = _trained(batch) if self.progress is not None else {}
        else:
            self.token_cache.used(name)
        counts = {
            "stored": batch.origin.stored,
            "lines": receipt["lines"],
            "kept": receipt.kept,
            "rejected": sum(receipt.counts("rejected").values()),
            "tokens": receipt.tokens,
        }
        for counter, count in counts.items():
            Metrics.counter("beam_prep", counter).inc(count)
        report(self.progress, **counts, **trained)
        batch.spent("TokenCache", time.perf_counter() - started)
        made = {name: count for name, count in batch.made.items() if of_this_run(name)} | receipt.counts("made")
        yield placed(receipt, batch.origin, name, reused, made)


def _trained(batch: Batch) -> dict[str, int]:
    """Trained tokens, and all tokens of the same columns, of a block with masks or labels."""
    trained = count_tokens([*batch.schema.values()], batch.columns)["trained"]
    return {"trained": sum(trained.values()), "maybe_trained": sum(len(batch[name].flat) for name in trained)}


def write(
    work: KeyedShard | RejectsPlan, arranger: Arranger, publisher: Publisher, progress: str | None
) -> WrittenShard | WrittenFile:
    """Writes one shard in every format, or one file of rejects."""
    arranger.token_cache.options.activate()
    if not isinstance(work, KeyedShard):
        return write_rejects(work, arranger.token_cache, publisher.target)
    started = time.perf_counter()
    with reported_rows(progress) as tell:
        written = publisher.write_shard(work, arranger, tell)
    return dataclasses.replace(written, seconds=time.perf_counter() - started)


def publish(written: list[WrittenShard | WrittenFile], plan: Plan, publisher: Publisher) -> str:
    """Publishes the complete output with its manifest, or fails and leaves only the rejects. Returns its path."""
    from beam_prep.inspect.output import report_page  # only one worker needs it, at the end

    publisher.staging.options.activate()
    shards = [shard for shard in written if isinstance(shard, WrittenShard)]
    files = [file for file in written if isinstance(file, WrittenFile)]
    return publisher.publish(plan, shards, files, report_page)


@dataclasses.dataclass(eq=False)
class Shard(beam.PTransform):
    """`Batch` -> the output's path: cuts rows in input order into shards, writes each once, publishes all at the end.

    Shard borders are those of a sequential program: all domains are flushed when the tokens since the last flush
    reach `max_tokens`. The same input gives the same bytes on every runner, with any number of workers and retries.

    Attributes:
        output: the directory to make: a local path, or one on gs:// or s3://.
        max_tokens: tokens of a shard over all domains, after which it is flushed.
        formats: one or more names of `formats.FORMATS`. Records are tokenised once for all of them.
        max_items: the largest number of kept records.
        pack: how rows are packed or padded, and which position ids they get; by default neither. Its `truncation_mode`
            says whether a row that is too long for a packed row is cut, dropped (`too_long`), or fails the run.
        rows_without_loss: rows without a trained token: `drop`, `keep` or `reject`.
        dtype: column -> dtype, if not the default (ids, masks and labels int32, values float32).
        names: column -> the name under which it is written, in every format. `dtype` uses the column's own name.
        max_reject_rate: a larger share of rejected records fails the run.
        max_no_loss_rate: a larger share of records that are dropped without loss (`empty`, `rows_without_loss`) fails
            the run.
        max_reject_chars: most characters kept of a rejected record; 0: no text.
        tokenizer: kept in the output, so that its rows can be decoded.
        overwrite: replace an earlier output.
        token_cache, staging: the folders of blocks and of unfinished files; by default next to the output. Both are for
            launchers: a launcher that gives `staging` claims the output (`Claims.take`), and removes the folder.
        keep_versions: the output is a version, `OUT/<name>`, and this many versions are kept.
        progress: the folder of the workers' reports; for launchers.
        compose: shuffle, splits, mix and deduplication: see `Compose`.
        facts: other facts that the output depends on, for the manifest.
        run: facts about this run, for `run.json`.

    Raises:
        ConfigError: `names` gives a name that a column cannot have; a library of a format is missing; (when run) a
            column of `names` or `dtype` is not written.
        OutputError: the output exists and `overwrite` is not set, or it is not an output of ours.
        LockedError: (when run) another job is writing the output.
        RunError: (when run) too many rejects or drops, nothing kept, nothing trained. Rejects are in `OUTPUT.failed/`.

    >>> config = bp.PipelineConfig.from_json("configs/pretrain.json")
    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL("examples/data/text.jsonl")
    ...     batches = records | bp.Prepare(config, tokenizer)
    ...     _ = batches | bp.Shard("out/shard", formats=["arrow"], tokenizer=tokenizer)
    >>> len(bp.open("out/shard"))
    69
    """

    output: str
    max_tokens: int = 100_000_000
    formats: Sequence[str] = ("bin",)
    max_items: int | None = None
    pack: Layout = dataclasses.field(default_factory=Layout)
    rows_without_loss: RowsWithoutLoss = "drop"
    dtype: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_reject_rate: float = MAX_REJECT_RATE
    max_no_loss_rate: float = MAX_NO_LOSS_RATE
    max_reject_chars: int = 1000
    tokenizer: Tokenizer | None = None
    overwrite: bool = False
    token_cache: TokenCache | None = None
    staging: Staging | None = None
    progress: str | None = None
    keep_versions: int | None = None
    compose: Compose = dataclasses.field(default_factory=Compose)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.output = normalise_path(self.output)
        self.formats = (self.formats,) if isinstance(self.formats, str) else tuple(self.formats)
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise ValueError(f"formats are {self.formats!r}, wanted one or more of {', '.join(FORMATS)}")
        for name in self.formats:
            try:
                FORMATS[name].require()
            except ImportError as error:
                raise ConfigError(f"output.storage_format: {error}") from None
        for name, value in (("max_tokens", self.max_tokens), ("max_items", self.max_items)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, wanted at least 1")
        check_rates(self.max_reject_rate, self.max_no_loss_rate)
        if self.rows_without_loss not in ("drop", "keep", "reject"):
            raise ValueError(f"rows_without_loss is {self.rows_without_loss!r}, wanted drop, keep or reject")
        dtype, names = {**self.pack.dtype, **self.dtype}, {**self.pack.names, **self.names}
        self.pack = dataclasses.replace(self.pack, dtype=dtype, names=names)
        self.pack.check_names([*self.pack.names])  # the columns are known only with the first block
        launched = self.staging is not None  # by a launcher, which claims, shows progress and cleans up
        self.staging = self.staging or Staging.beside(self.output)
        if self.token_cache is None:
            # The earlier steps are unknown, so no other run may use these blocks.
            self.token_cache = TokenCache(self.staging.path("token_cache"), uuid.uuid4().hex)
        self.publisher = Publisher(
            self.output,
            self.staging,
            tuple(self.formats),
            self.pack,
            self.max_reject_rate,
            self.max_no_loss_rate,
            self.tokenizer,
            self.overwrite,
            dict(self.facts),
            {"started": time.time(), **self.run},
            launched=launched,
            max_reject_chars=self.max_reject_chars,
            keep_versions=self.keep_versions,
        )
        if problem := self.publisher.refusal():
            raise OutputError(problem)

    def expand(self, batches: beam.PCollection[Batch]) -> beam.PCollection[str]:
        assert self.token_cache is not None
        assert self.staging is not None
        token_cache = CacheBlocks(
            token_cache=self.token_cache,
            publisher=self.publisher,
            rows_without_loss=self.rows_without_loss,
            progress=self.progress,
        )
        receipts = batches | "TokenCache" >> beam.ParDo(token_cache).with_output_types(BlockReceipt)
        compose, scratch = self.compose, Scratch(self.staging.path("scratch"))
        if compose.views:
            buckets = compose.buckets if compose.deduplicate else None
            receipts = view_blocks(receipts, self.token_cache, scratch, compose.splits, buckets)
        parts = (
            receipts
            | "Batch" >> beam.BatchElements(RECEIPTS, RECEIPTS)
            | "Pack" >> beam.Map(packed).with_output_types(tuple[int, bytes])
            | "Parts" >> beam.GroupByKey()
        )
        arranger, publisher = Arranger(self.token_cache, scratch, compose, self.pack.provenance), self.publisher
        of_job = (arranger, publisher, self.max_tokens, self.max_items, self.progress)
        made = (
            batches.pipeline
            | "Once" >> beam.Impulse()
            | "Plan"
            >> beam.FlatMap(plan_output, beam.pvalue.AsMultiMap(parts), *of_job).with_outputs(
                "plan", "unsorted", "groups", main="work"
            )
        )
        work, plan = made.work, made.plan
        if compose.shuffle is not None:
            merged = merge_shards(made.unsorted, made.groups, arranger, publisher)
            work = (work, merged.work) | "AllWork" >> beam.Flatten()
            plan = (plan, merged.plan) | "OnePlan" >> beam.Flatten()
        return (
            work
            | "Spread" >> beam.Reshuffle()
            | "Write" >> beam.Map(write, arranger, publisher, self.progress)
            | "Written" >> beam.CombineGlobally(ToListCombineFn())
            | "Publish" >> beam.Map(publish, beam.pvalue.AsSingleton(plan), publisher)
        )
