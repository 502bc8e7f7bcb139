"""A config -> its chain of PTransforms, its layout, and the facts that identify its output."""

import dataclasses
import hashlib
import itertools
import json
import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam

from beam_prep._version import __version__
from beam_prep.chat.apply import COMPARED
from beam_prep.chat.chat_format import TEMPLATE_LIMITS
from beam_prep.config import PipelineConfig
from beam_prep.config.combinations import position_ids_mode_of
from beam_prep.data.block import AnyPath, AnyPaths, InputFile
from beam_prep.data.schema import Output, TextRules, TurnsApart
from beam_prep.errors import ConfigError, InputError, RunError
from beam_prep.formats.cached_block import CACHE_VERSION
from beam_prep.hints import check_settings
from beam_prep.reading.decontaminate import IndexSource
from beam_prep.reading.records import MAX_LINE_BYTES, RawBlock, Records
from beam_prep.reading.sources import source_of
from beam_prep.shards.compose import Compose, DomainMix, Splits
from beam_prep.shards.layout import Chunking, Layout
from beam_prep.shards.pack import longest_row
from beam_prep.storage.files import list_inputs, total_size
from beam_prep.storage.publish import library_version
from beam_prep.storage.shipped import References, load_tokenizer, read_references
from beam_prep.storage.stores import is_local, read_bytes
from beam_prep.tokens.backends import GIGATOKEN_VERSION, Backend
from beam_prep.tokens.batch import IN_FULL, Batch, Check, first_difference
from beam_prep.tokens.rows import Padding
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms import steps
from beam_prep.transforms.shard import Shard
from beam_prep.transforms.steps import BlockStep, ByGroup

GROUP_FILES = "group_files"
"""The fact with the number of input files of each of `input.groups`, in order."""
REFERENCES = "references"
"""The fact that names the evaluation data that records were compared with."""

# They make the tokens: another version makes other blocks and outputs.
_TOKEN_LIBRARIES = ("tokenizers", "transformers", "jinja2")

# They also make cached blocks: with another version, a block is made again, but the output remains up to date.
# orjson and pyarrow parse, numpy computes, pyarrow packs the block.
_BLOCK_LIBRARIES = ("orjson", "pyarrow", "numpy")


def read_config(given: PipelineConfig | dict[str, Any] | AnyPath) -> PipelineConfig:
    """A config as it may be given: as it is, as a dict, or a file, local or in a store, with its chat template.

    Raises:
        ConfigError: the file cannot be read, or the config is wrong.
    """
    if not isinstance(given, str | os.PathLike):
        return given if isinstance(given, PipelineConfig) else PipelineConfig.from_dict(given)
    name = os.fspath(given)
    if is_local(name):
        return PipelineConfig.from_json(name)
    try:
        text = read_bytes(name).decode("utf-8-sig")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: the config cannot be read: {error}") from None
    return PipelineConfig.from_text(text, name, read_bytes, files="below")


def tokenizer_of(config: PipelineConfig, path: AnyPath) -> Tokenizer:
    """The tokenizer of a job, with the chat template of its config. The output keeps it."""
    loaded, template = load_tokenizer(os.fspath(path)), config.input.chat_template
    return loaded if template is None else loaded.with_template(template)


@dataclasses.dataclass(eq=False)
class Prepare(beam.PTransform):
    """`Records` -> `Batch`: everything of a config between ReadJSONL and Shard, which packs and pads.

    >>> config = bp.PipelineConfig.from_json("configs/sft_chat.json")
    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> with beam.Pipeline(runner="FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL(["examples/data/chat.jsonl"])
    ...     batches = records | bp.Prepare(config, tokenizer)
    ...     _ = batches | bp.testing.rows() | beam.combiners.Count.Globally() | beam.Map(print)
    260

    Attributes:
        config: the config.
        tokenizer: its tokenizer.
        tokenizer_backend: see `Tokenize`.
        check: `sample`: see `ApplyTemplate.compared` and `Tokenize.sampled`; `full`: see `check_in_full`.
        references: the evaluation data of `preprocessing.decontaminate`, as workers get it; None: it is read here, and
            becomes a part of the pipeline.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    tokenizer_backend: Backend = "auto"
    check: Check = "sample"
    references: IndexSource | None = None

    def __post_init__(self) -> None:
        super().__init__()
        check_settings(self)
        self.steps = chain(self.config, self.tokenizer, self.tokenizer_backend, self.check, self.references)

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Batch]:
        blocks: Any = records
        for transform in self.steps:
            blocks |= transform
        return blocks


def chain(
    config: PipelineConfig,
    tokenizer: Tokenizer,
    backend: Backend = "transformers",
    check: Check | None = None,
    references: IndexSource | None = None,
) -> list[BlockStep]:
    """All steps of a config between ReadJSONL and Shard, in order: the one place that lists them.

    A config with groups of inputs has one step, which picks the steps of each block's group. Without Beam, take the
    steps of `config.part(GROUP)`.

    `Prepare` runs them in Beam; `run_steps` runs them without Beam, in the preview and in checks.

    Args:
        config: the config.
        tokenizer: its tokenizer.
        backend: see `Tokenize`.
        check: `sample`: the reference encodes a sample of each block, too; `full`: see `check_in_full`; None: neither.
        references: see `Prepare`.

    Raises:
        ConfigError, InputError, TokenizerError: a step cannot be made with this tokenizer.
    """
    if references is None and (found := references_of(config)) is not None:
        references = found.index  # read once: for all groups, and for the check
    if config.input.groups is not None:
        return [ByGroup([chain(part, tokenizer, backend, check, references) for part in config.parts()])]
    steps = mask_steps(config, tokenizer, backend, check, references)
    if check == "full":
        reference = [] if config.input.tokenized else mask_steps(config, tokenizer, check=check, references=references)
        steps.append(CheckInFull(reference))
    return steps + row_steps(config, tokenizer)


def outputs_of(config: PipelineConfig) -> tuple[Output, ...]:
    """The outputs of each record: what a row consists of."""
    return config.input.outputs(config.preprocessing.encode == "joint", config.output.loss_weights)


def mask_steps(
    config: PipelineConfig,
    tokenizer: Tokenizer,
    backend: Backend = "transformers",
    check: Check | None = None,
    references: IndexSource | None = None,
) -> list[BlockStep]:
    """The steps from records to ids and masks, before truncation. For the arguments see `chain`."""
    config.check_vocabulary(tokenizer.max_id)
    preprocessing, given = config.preprocessing, config.input
    domain_key = config.output.domain_key
    made = key_steps(config)
    if (use := config.field_use).answers:
        made.append(steps.CountBadAnswers(use))
    if config.output.keep_fields:
        made.append(steps.KeepFields(config.output.keep_fields))
    compared: list[BlockStep] = []
    if (rule := preprocessing.decontaminate) is not None:
        source = references or read_references(rule.against, rule.field, rule.ngram).index
        compared.append(steps.Decontaminate(source, fields=config.decontaminated_fields, mode=rule.mode))
    if given.rollouts is not None:
        made += [*compared, steps.FromRollouts(given.rollouts.fields, tokenizer, domain_key)]
    elif given.tokenized:
        made += [*compared, steps.FromTokens(outputs_of(config)[0], tokenizer, domain_key)]
    else:
        if given.adapter is not None:
            made.append(steps.AdaptRecords(given.adapter.build()))
        if fields := config.char_filter_fields:
            made.append(steps.FilterByChars(preprocessing.min_chars, preprocessing.max_chars, fields))
        rules, conversations = text_rules(config), COMPARED if check == "sample" else 0 if check is None else None
        made += [
            *compared,
            steps.ApplyTemplate(outputs_of(config), tokenizer, domain_key, rules, conversations),
            steps.Tokenize(tokenizer, backend, check == "sample"),
            steps.BuildMask(config.mask, config.mask_default, rules.mask_options),
        ]
    if given.domain is not None:
        made.append(steps.InDomain(given.domain))
    return made


def key_steps(config: PipelineConfig) -> list[BlockStep]:
    """The step that digests records for splits and deduplication; [] if the config has neither."""
    output, rule = config.output, config.preprocessing.deduplicate
    if output.splits is None and rule is None:
        return []
    by, normalize = ([], "none") if rule is None else (rule.by or sorted(config.field_use.tokens), rule.normalize)
    return [
        steps.KeyRecords(output.splits is not None, output.split_key, output.split_missing == "reject", by, normalize)
    ]


def compose(config: PipelineConfig, inputs: Iterable[InputFile] | None = None) -> Compose:
    """How a config composes its output from the rows of all blocks.

    Args:
        config: the config.
        inputs: the files, whose bytes decide the number of buckets of digests; None: unknown.
    """
    output = config.output
    splits = None
    if output.splits is not None:
        missing = None if output.split_missing == "reject" else output.split_missing
        splits = Splits.of(output.splits, output.split_seed, missing)
    mixed = (output.mix or {}).items()
    mix = tuple((domain, DomainMix(**each.model_dump())) for domain, each in mixed)
    seed = None if output.shuffle is None else output.shuffle.seed
    made = Compose(seed, splits, mix, config.preprocessing.deduplicate is not None)
    return made if inputs is None else dataclasses.replace(made, buckets=max(16, total_size(inputs) // _BUCKET_BYTES))


_BUCKET_BYTES = 1 << 30
"""Bytes of input whose digests make one bucket, about: a million records of 1 KB."""


def row_steps(config: PipelineConfig, tokenizer: Tokenizer) -> list[BlockStep]:
    """The steps from ids and masks to the rows of a block."""
    preprocessing = config.preprocessing
    made: list[BlockStep] = []
    if preprocessing.truncation_mode != "chunk":  # `Layout.chunking` cuts chunks when a shard is written
        made.append(steps.Truncate(preprocessing.max_seq_len, preprocessing.truncation_mode, tokenizer))
    if config.output.columns == "prompt_completion":
        made.append(steps.SplitPrompt(preprocessing.rows_without_loss))
    if config.output.columns == "labels":
        made.append(steps.Shift() if preprocessing.shift else steps.Labels())
    return made


def run_steps(steps: Iterable[BlockStep], block: Any) -> Any:
    """Runs steps on a block, without Beam."""
    for step in steps:
        block = step.step()(block)
    return block


def inputs_of(config: PipelineConfig, given: AnyPaths | None) -> list[InputFile]:
    """The input files of a job, in order: the given ones, or those of the config's groups.

    Args:
        config: the config.
        given: paths and globs, see `list_inputs`; None or []: none.

    Raises:
        ConfigError: both are given, or neither.
        InputError: see `list_inputs`.
    """
    given = [given] if isinstance(given, (str, os.PathLike)) else list(given or ())
    if config.input.groups is None:
        if not given:
            raise ConfigError("no input: give files or quoted globs, or name them in the config: input.groups")
        return list_inputs(given)
    if given:
        raise ConfigError(
            f"found the input {os.fspath(given[0])!r} beside input.groups of the config, which names its files itself: "
            "leave out one of them"
        )
    files: list[InputFile] = []
    groups: dict[str, int] = {}
    for number, group in enumerate(config.input.groups):
        try:
            listed = list_inputs(group.files)
        except InputError as error:
            raise InputError(f"input.groups[{number}].files: {error}") from None
        for file in listed:
            place = os.path.realpath(file.path) if is_local(file.path) else file.path
            if (other := groups.setdefault(place, number)) != number:
                raise InputError(
                    f"{file.path!r} is in input.groups[{other}] and in input.groups[{number}]: name each file once"
                )
            files.append(dataclasses.replace(file, group=number))
    return files


def files_of_groups(files: Iterable[InputFile]) -> list[int]:
    """The number of files of each group; [] without groups. The files of a group are adjacent."""
    return [sum(1 for _ in run) for group, run in itertools.groupby(file.group for file in files) if group is not None]


def check_in_full(batch: Batch, reference: Sequence[BlockStep]) -> Batch:
    """The batch, if the reference gives the same for every line of its block, starting from the bytes.

    The reference encodes texts with the Rust library of transformers. The text of each conversation was compared with
    transformers' own when it was rendered. The code behind the masks is the same for all backends.

    Args:
        batch: the batch with its masks.
        reference: the reference's steps, from records to masks; none if the records hold ids.

    Raises:
        RunError: the reference gives something else; the message names file and byte offset of the first such line.
    """
    if batch.receipt is not None:  # the block was checked when it was made
        return batch
    if reference:
        origin = batch.origin
        raw = RawBlock(origin.start, origin.size, origin.skip, batch.ledger.raw, b"")
        records = source_of(origin.source.path).parse(raw, origin)
        if (found := first_difference(batch, run_steps(reference, records))) is not None:
            line, how = found
            raise RunError(
                f"--check full: {batch.place(line)} is not what transformers gives: "
                f"{how}; run with --tokenizer_backend transformers, and tell us about it"
            )
        batch.made["compared_with_transformers"] = len(batch)
    batch.made[IN_FULL] = 1
    return batch


class CheckInFull(BlockStep):
    """`Batch` -> the same `Batch`: see `check_in_full`."""

    reference: Sequence[BlockStep]

    work, gives = check_in_full, Batch


def text_rules(config: PipelineConfig) -> TextRules:
    """The rules of a config that turn text into pieces, apart from its sections."""
    rules, given = config.preprocessing, config.input
    return TextRules(
        rules.eos,
        rules.bos,
        given.implicit_prompt,
        given.chat_template,
        rules.control_tokens,
        given.date,
        None if config.output.fim is None else config.output.fim.build(),
        None if config.mask_options is None else config.mask_options.build(),
        given.template_variables or None,
        given.not_rendered,
        given.tool_arguments,
        None if given.turns == "together" else TurnsApart(given.turns == "auto", config.mask, config.mask_default),
        given.not_text,
    )


def layout(config: PipelineConfig, tokenizer: Tokenizer) -> Layout:
    """The packing, padding and names of a config's shards.

    Raises:
        ConfigError: rows are padded, and the tokenizer has no id for that.
    """
    preprocessing, multiple, pad_id = config.preprocessing, config.pad_multiple, tokenizer.pad_id
    if multiple is not None and pad_id is None:
        raise ConfigError("preprocessing.padding: this tokenizer has no pad_token and no eos_token; name one in it")
    return Layout(
        preprocessing.packing_strategy,
        preprocessing.max_packed_len or preprocessing.max_seq_len,
        preprocessing.packing_group,
        position_ids_mode_of(preprocessing, config.output),
        config.columns(),
        config.names,
        "keep_start" if preprocessing.truncation_mode == "chunk" else preprocessing.truncation_mode,
        None if multiple is None or pad_id is None else Padding(multiple, pad_id),
        Chunking(preprocessing.chunk_size, preprocessing.stride, preprocessing.rows_without_loss == "keep")
        if preprocessing.chunks
        else None,
        config.output.provenance,
    )


def prepare(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    """The rows of a block that a run caches: everything of a config but packing, padding and position ids.

    Raises:
        BeamPrepError: see `chain` and the steps.
    """
    made = run_steps(chain(config.part(records.origin.source.group), tokenizer), records)
    return layout(config, tokenizer).cached(made, tokenizer.id_of("eos_token"), config.preprocessing.rows_without_loss)


def shard(config: PipelineConfig, tokenizer: Tokenizer, output: str, **more: Any) -> Shard:
    """The last transform of a config.

    Args:
        config, tokenizer, output: of the job.
        more: other arguments of `Shard`.

    Raises:
        ConfigError: see `layout`.
        ValueError, OutputError: see `Shard`.
    """
    return Shard(
        output,
        config.output.max_tokens_per_shard,
        config.output.storage_format,
        max_items=config.preprocessing.max_items,
        pack=layout(config, tokenizer),
        rows_without_loss=config.preprocessing.rows_without_loss,
        tokenizer=tokenizer,
        **more,
    )


def references_of(config: PipelineConfig) -> References | None:
    """The evaluation data of a config; None if the config names none.

    Raises:
        InputError, StorageError: see `read_references`.
    """
    rule = config.preprocessing.decontaminate
    return None if rule is None else read_references(rule.against, rule.field, rule.ngram)


def facts(
    config: PipelineConfig,
    tokenizer: Tokenizer,
    max_reject_chars: int,
    max_line_bytes: int = MAX_LINE_BYTES,
    references: References | None = None,
    inputs: Iterable[InputFile] = (),
) -> dict[str, Any]:
    """Everything that an output is a function of, apart from the content of its inputs. The manifest keeps these facts.

    Of `inputs`, only the number of files of each group is a fact.
    """
    groups = files_of_groups(inputs)
    versions = {name: library_version(name) for name in _TOKEN_LIBRARIES}
    return {
        "config": config.canonical(),
        "options": {
            "max_reject_chars": max_reject_chars,
            "max_line_bytes": max_line_bytes,
            **TEMPLATE_LIMITS,
        },
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "special_tokens": tokenizer.special_tokens},
        "versions": {"beam_prep": __version__, **versions},
        **({} if references is None else {REFERENCES: references.facts()}),
        **({GROUP_FILES: groups} if groups else {}),
    }


AFTER_BLOCKS = {
    "preprocessing": ("max_items", "packing_strategy", "packing_group"),
    "output": (
        *("max_tokens_per_shard", "storage_format", "position_ids_mode", "names", "preset"),
        *("shuffle", "splits", "split_seed", "split_missing", "mix"),
    ),
}
"""Fields of a config that only the plan and Write read: another value makes the same blocks."""


def cache_recipe(job_facts: dict[str, Any]) -> str:
    """Digest of what a cached block is a function of, apart from its bytes and its group: all facts but `AFTER_BLOCKS`.
    For groups see `group_recipes`."""
    config = json.loads(json.dumps(job_facts["config"]))
    facts = {name: value for name, value in job_facts.items() if name != GROUP_FILES}
    if "groups" in config["input"]:
        config["input"]["groups"] = True
    preprocessing = config["preprocessing"]
    if longest_row(preprocessing) == preprocessing["max_seq_len"]:
        del preprocessing["max_packed_len"]  # no row is cut to it
    if "splits" in config["output"]:  # a block has the digests of its records, whatever the shares are
        config["output"]["by_split"] = config["output"].get("split_missing", "reject") == "reject"
    for part, fields in AFTER_BLOCKS.items():
        for field in fields:
            config[part].pop(field, None)  # `canonical` leaves some out
    for key in ("attention_mask", "position_ids", "seq_lens"):
        config["output"]["dtype"].pop(key, None)
    versions = {name: library_version(name) for name in _BLOCK_LIBRARIES}
    # Python's version decides its Unicode tables, and what `json` and templates do.
    versions |= {"gigatoken": GIGATOKEN_VERSION, "python": ".".join(platform.python_version_tuple()[:2])}
    # Unsorted: the order of sources matters.
    text = json.dumps([CACHE_VERSION, versions, {**facts, "config": config}])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def group_recipes(job_facts: dict[str, Any]) -> tuple[str, ...]:
    """A digest of each group's settings. So one group may change, or be added, and the cached blocks of the others are
    used again."""
    groups = job_facts["config"]["input"].get("groups") or ()
    fields = [{name: value for name, value in group.items() if name != "files"} for group in groups]
    return tuple(hashlib.sha256(json.dumps(each).encode("utf-8", "surrogatepass")).hexdigest() for each in fields)
