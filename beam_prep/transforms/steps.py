"""The steps of a chain: one PTransform for each function on blocks. The function of the same name does the work.

`BlockStep` is their base: a function, its settings and its coder. Sources make blocks of records from files, and from
collections of dicts.
"""

import dataclasses
import logging
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from time import perf_counter
from typing import Any, ClassVar, dataclass_transform, get_args

import apache_beam as beam
from apache_beam import coders
from apache_beam.transforms.window import GlobalWindows

from beam_prep.chat.apply import COMPARED, render_records
from beam_prep.chat.chat_format import chat_format_of
from beam_prep.data.block import AnyPaths, Block, InputFile, Split
from beam_prep.data.hashing import CHUNK
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import DefaultRule, MaskOptions, MetadataType, Output, RoleRule, TextRules
from beam_prep.errors import ConfigError
from beam_prep.hints import check_least, check_settings
from beam_prep.reading.adapters import Adapter, adapt_records, filter_by_chars, filter_records, map_records
from beam_prep.reading.collection import MOST_BUCKETS, blocks, bucket_of, encode_record, line_size
from beam_prep.reading.decontaminate import IndexSource, Mode, decontaminate
from beam_prep.reading.keys import Normalize, keep_fields, key_records
from beam_prep.reading.records import MAX_LINE_BYTES, Record, Records
from beam_prep.reading.rollouts import RolloutFields
from beam_prep.reading.verdicts import FieldUse, count_bad_answers
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import BLOCK_BYTES, pack_files, read_split, split_files
from beam_prep.storage.shipped import read_references
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens import rows
from beam_prep.tokens.backends import Backend, choose
from beam_prep.tokens.batch import Batch, in_domain
from beam_prep.tokens.tokenize import from_rollouts, from_tokens, tokenize_with
from beam_prep.tokens.tokenizer import Tokenizer

log = logging.getLogger("beam_prep")


class BlockCoder(coders.Coder):
    """Pickle, with a cheap estimate of the size.

    Beam encodes nothing between fused steps, but its size counter needs sizes there. For a coder without
    `estimate_size`, it encodes the block to get the size (105 ms each time).
    """

    def encode(self, value: Block) -> bytes:
        return pickle.dumps(value, protocol=5)

    def decode(self, encoded: bytes) -> Any:
        return pickle.loads(encoded)

    def estimate_size(self, value: Block) -> int:
        if not isinstance(value, Block):
            raise TypeError(f"a step gave {type(value).__name__}, wanted a block: does its function return one?")
        return value.origin.bytes

    def to_type_hint(self) -> Any:
        return Block


for _element in (Records, Rendered, Batch):
    coders.registry.register_coder(_element, BlockCoder)


def timed(transform: "BlockStep") -> Callable[[Any], Any]:
    """The function of a step, which also notes its time."""
    return partial(_timed, transform.step(), type(transform).__name__)


def _timed(step: Callable[[Any], Any], name: str, block: Any) -> Any:
    started = perf_counter()
    made = step(block)
    if made is block:
        made = dataclasses.replace(block)  # other steps may get this block, too
    if made.receipt is None:  # with a receipt, the step did nothing
        made.spent(name, perf_counter() - started)
    return made


@dataclass_transform(eq_default=False)
class BlockStep(beam.PTransform):
    """A PTransform that makes one block from each block, with a function of the block and of settings.

    A subclass is a dataclass of its settings; `check` may check or change them. The transform only applies `step()`, so
    the same step runs without Beam:

    >>> from beam_prep.tokens.rows import pad
    >>> from beam_prep.transforms.steps import BlockStep
    >>> class PadToEight(BlockStep):
    ...     multiple: int = 8
    ...     pad_id: int = 0
    ...     work, gives = pad, bp.Batch
    >>> batch = bp.FromTokens(bp.Output("ids", "ids", (), "mask"), bp.Tokenizer.load("examples/tokenizer")).step()(
    ...     bp.testing.records([{"input_ids": [7, 9], "loss_mask": [0, 1]}])
    ... )
    >>> bp.testing.to_rows(PadToEight().step()(batch))[0]["ids"]
    [7, 9, 0, 0, 0, 0, 0, 0]

    Attributes:
        work: the function (block, settings by name) -> block.
        gives: the type of the resulting blocks, by which Beam chooses their coder.
    """

    work: ClassVar[Callable[..., Any]]
    gives: ClassVar[type]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(eq=False)(cls)

    def __post_init__(self) -> None:
        super().__init__()
        check_settings(self)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a setting is wrong, apart from choices."""

    def settings(self) -> dict[str, Any]:
        """The arguments of the function, apart from the block."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def step(self) -> Callable[[Any], Any]:
        """The pure function (block) -> block. It can be pickled."""
        return partial(type(self).work, **self.settings())

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        takes = next(iter(signature(type(self).work).parameters.values())).annotation
        # With a label: Beam's default would be the text of all arguments.
        return blocks | "Blocks" >> beam.Map(timed(self)).with_input_types(takes).with_output_types(self.gives)


# Texts to ids


class Tokenize(BlockStep):
    """`Rendered` -> `Batch`: encodes every piece of text, and joins the pieces of a sequence: ids in flat arrays.

    Attributes:
        tokenizer: the tokenizer. Each process loads it once, at its first block.
        backend: `auto`: gigatoken, many times faster, if it gives the same ids as transformers (see `tokens.backends`);
            `transformers`: always the reference; `gigatoken`: gigatoken, or an error.
        sampled: the reference encodes a sample of each block, too, and the entire block if one text differs. A
            difference outside the sample goes unnoticed: `Pipeline(check="full")` compares all texts instead.

    Raises:
        TokenizerError: the backend is `gigatoken`, and cannot be used for this tokenizer.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> block = bp.testing.records([{"text": "Hello"}])
    >>> block = bp.ApplyTemplate([bp.Output("ids", "ids", (bp.Section("text", "train"),))], tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Tokenize(tokenizer).step()(block))
    [{'ids': [43, 520, 82]}]
    """

    tokenizer: Tokenizer
    backend: Backend = "auto"
    sampled: bool = True

    work, gives = tokenize_with, Batch

    def check(self) -> None:
        self.chosen, problem = choose(self.tokenizer, self.backend)
        if problem is not None:
            log.info("%s", problem)

    def settings(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "backend": self.chosen, "sampled": self.sampled}


# Records


class FilterByChars(BlockStep):
    """`Records` -> `Records`: removes text fields outside the limits; drops a record with no text field left.

    Attributes:
        min_chars, max_chars: code points, both inclusive.
        fields: the text fields that are checked. Records that have none of them pass.

    >>> block = bp.testing.records([{"text": "short"}, {"text": "long enough"}])
    >>> bp.testing.to_rows(bp.FilterByChars(min_chars=8).step()(block))
    [{'text': 'long enough'}]
    """

    min_chars: int = 50
    max_chars: int = 2_000_000
    fields: Sequence[str] = ("text",)

    work, gives = filter_by_chars, Records

    def check(self) -> None:
        if not 0 <= self.min_chars <= self.max_chars:
            raise ValueError(f"wanted 0 <= min_chars <= max_chars, got {self.min_chars} and {self.max_chars}")
        self.fields = _names(self.fields)


class FilterRecords(BlockStep):
    """`Records` -> `Records`: keeps the records for which `function(record)` is True.

    False drops the record (counted as `filtered`); a string rejects the record, and is the reason.
    An exception in `function` ends the run and names the record.

    >>> block = bp.testing.records([{"text": "one", "score": 0.2}, {"text": "two", "score": 0.9}])
    >>> bp.testing.to_rows(bp.FilterRecords(lambda record: record["score"] > 0.5).step()(block))
    [{'text': 'two', 'score': 0.9}]
    """

    function: Callable[[Record], bool | str]

    work, gives = filter_records, Records


class MapRecords(BlockStep):
    """`Records` -> `Records`: replaces each record by `function(record)`, a dict.

    A string rejects the record, and is the reason. An exception ends the run and names the record.

    >>> block = bp.testing.records([{"text": "  one "}])
    >>> bp.testing.to_rows(bp.MapRecords(lambda record: {"text": record["text"].strip()}).step()(block))
    [{'text': 'one'}]
    """

    function: Callable[[Record], Record | str]

    work, gives = map_records, Records


class AdaptRecords(BlockStep):
    """`Records` -> `Records`: converts records of another form (ShareGPT, Alpaca) to the fields that sections read.

    Attributes:
        adapter: see `beam_prep.reading.adapters.adapter`.

    >>> from beam_prep.reading.adapters import adapter
    >>> block = bp.testing.records([{"conversations": [{"from": "human", "value": "Hi"}]}])
    >>> bp.testing.to_rows(bp.AdaptRecords(adapter("sharegpt")).step()(block))
    [{'messages': [{'role': 'user', 'content': 'Hi'}]}]
    """

    adapter: Adapter

    work, gives = adapt_records, Records


class KeyRecords(BlockStep):
    """`Records` -> `Records`: computes the digests by which `Shard` splits and deduplicates.

    Put it before every step that changes records. Without it, `Shard` can neither split nor deduplicate.

    Attributes:
        split: True: digest records for splits, by `split_key` or by the entire record.
        split_key: a field; records without it are rejected (`no_split_key`), unless `reject_missing` is False.
        duplicate: fields; records with equal values in all of them are duplicates. (): no deduplication.
        normalize: `none`, `whitespace` or `nfkc_casefold`: see `normalized`.

    >>> block = bp.testing.records([{"id": 1, "text": "one"}, {"text": "two"}])
    >>> keyed = bp.KeyRecords(split=True, split_key="id").step()(block)
    >>> keyed.ledger.digests["split"].shape, bp.testing.rejects(keyed)
    ((2,), [(1, 'no_split_key')])
    """

    split: bool = False
    split_key: str | None = None
    reject_missing: bool = True
    duplicate: Sequence[str] = ()
    normalize: Normalize = "none"

    work, gives = key_records, Records

    def check(self) -> None:
        self.duplicate = _names(self.duplicate)


class CountBadAnswers(BlockStep):
    """`Records` -> the same `Records`: counts records with a field that marks the answer as bad. Drops none.

    Put it before every step that changes records. `run.json` has the counts as `bad_answers`, by field.

    Attributes:
        use: which fields are trained, and which others are kept or read: see `FieldUse`.

    >>> use = bp.FieldUse(trained=frozenset({"completion"}))
    >>> block = bp.testing.records([{"completion": "2", "label": True}, {"completion": "3", "label": False}])
    >>> bp.CountBadAnswers(use).step()(block).made
    {'bad_answers: label': 1}
    """

    use: FieldUse

    work, gives = count_bad_answers, Records


class KeepFields(BlockStep):
    """`Records` -> the same `Records`: keeps fields as metadata columns of the rows that `Shard` writes.

    Put it right after the records are read: metadata columns hold the values as earlier steps left them.
    See `beam_prep.reading.keys.keep_fields` for what fields may hold.

    Attributes:
        fields: field -> `string`, `int32`, `int64`, `float32`, `float64` or `bool`; or only the fields, as strings.
            A column has the name of its field, unless `names` of `Shard` gives another.

    >>> block = bp.testing.records([{"id": "a1", "text": "one"}, {"id": 7, "text": "two"}])
    >>> kept = bp.KeepFields(["id"]).step()(block).ledger.metadata
    >>> [bytes(value).decode() for value in kept.values["id"]]
    ['a1', '7']
    """

    fields: Mapping[str, MetadataType] | Sequence[str]

    work, gives = keep_fields, Records

    def check(self) -> None:
        given = self.fields if isinstance(self.fields, Mapping) else dict.fromkeys(_names(self.fields), "string")
        for name, kind in given.items():
            if kind not in (known := get_args(MetadataType)):
                raise ValueError(f"field {name!r} has type {kind!r}, wanted one of {', '.join(known)}")
        self.fields = dict(given)  # type: ignore[arg-type]


class Decontaminate(BlockStep):
    """`Records` -> `Records`: drops or marks records that share an n-gram of words with evaluation data.

    See docs/decontaminate.md for what a word is. The evaluation data is read when the step is made, and becomes a part
    of the pipeline. A `Pipeline` with `preprocessing.decontaminate` sends it to the workers as a file instead.

    Attributes:
        against: paths and globs of the evaluation data.
        field: the compared fields of the evaluation data; None: all texts.
        fields: the compared fields of the records; None: all texts.
        ngram: words of an n-gram, 1 or more.
        mode: `drop`: drop such records (`contaminated`); `mark`: keep, count and list them.

    Raises:
        InputError: a file of the evaluation data cannot be read, or has no n-gram.

    >>> block = bp.testing.records([{"text": "THERE is - a particular Silence"}, {"text": "There is silence"}])
    >>> step = bp.Decontaminate("examples/data/text.jsonl", field="text", ngram=5)
    >>> bp.testing.to_rows(step.step()(block))
    [{'text': 'There is silence'}]
    """

    against: AnyPaths | IndexSource
    field: str | Sequence[str] | None = None
    fields: str | Sequence[str] | None = None
    ngram: int = 13
    mode: Mode = "drop"

    work, gives = decontaminate, Records

    def check(self) -> None:
        if self.ngram < 1:
            raise ValueError(f"ngram is {self.ngram}, wanted 1 word or more")
        self.field, self.fields = (each if each is None else _names(each) for each in (self.field, self.fields))
        self._index: Any = self.against
        if isinstance(self.against, str | os.PathLike | Sequence):
            self._index = read_references(self.against, self.field, self.ngram).index

    def settings(self) -> dict[str, Any]:
        return {"references": self._index, "fields": self.fields, "mode": self.mode}


# Texts


class ApplyTemplate(BlockStep):
    """`Records` -> `Rendered`: renders each record as pieces of text with roles, by the sections of each output.

    Records that cannot be used are rejected. Records without any text are dropped (`empty`).

    Attributes:
        outputs: the outputs of each record, or a config's `input`, whose `date` then becomes the date of `rules`.
        tokenizer: its chat template renders messages.
        domain_key: the field of a record that names its domain.
        rules: BOS, EOS, implicit prompts, another chat template.
        compared: number of conversations of each block that are compared with transformers: the texts with its
            rendering, the trained spans with renderings of prefixes. If one differs, the block is rendered again, see
            `ChatTemplate.render_plainly`. A difference outside the sample goes unnoticed. None compares all, as
            `Pipeline(check="full")` does; then a difference ends the run.

    Raises:
        TokenizerError: the tokenizer lacks a template that a section needs, or a special token that a rule needs; or
            the template would give other texts in another run: see `ChatTemplate`.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
    >>> block = bp.testing.records([{"messages": [{"role": "user", "content": "Hi"}]}])
    >>> bp.testing.to_rows(bp.ApplyTemplate([row], tokenizer).step()(block))
    [{'ids': ['<|im_start|>user\\nHi<|im_end|>\\n']}]
    """

    outputs: Sequence[Output]
    tokenizer: Tokenizer
    domain_key: str | None = None
    rules: TextRules = dataclasses.field(default_factory=TextRules)
    compared: int | None = COMPARED

    work, gives = render_records, Rendered

    def check(self) -> None:
        if self.rules.date is None:
            self.rules = dataclasses.replace(self.rules, date=getattr(self.outputs, "date", None))
        outputs = getattr(self.outputs, "outputs", None)
        self.outputs = tuple(outputs() if callable(outputs) else self.outputs)
        chat_format_of(self.outputs, self.tokenizer, self.rules)


# Rows


class FromTokens(BlockStep):
    """`Records` -> `Batch`: takes tokenised records, in place of ApplyTemplate, Tokenize and BuildMask.

    Attributes:
        output: the names of the columns.
        tokenizer: the tokenizer that made the ids. Records with larger ids than it has are rejected.
        domain_key: the field of a record that names its domain.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("input_ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> bp.testing.to_rows(bp.FromTokens(row, tokenizer).step()(block))
    [{'input_ids': [7, 8, 9], 'loss_mask': [0, 1, 1]}]
    """

    output: Output
    tokenizer: Tokenizer
    domain_key: str | None = None

    work, gives = from_tokens, Batch

    def settings(self) -> dict[str, Any]:
        return {"output": self.output, "max_id": self.tokenizer.max_id, "domain_key": self.domain_key}


class FromRollouts(BlockStep):
    """`Records` -> `Batch`: takes rollouts of token ids, in place of ApplyTemplate, Tokenize and BuildMask.

    Attributes:
        fields: the names of a record's fields.
        tokenizer: the tokenizer that made the ids. Records with larger ids than it has are rejected.
        domain_key: the field of a record that names its domain.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> fields = bp.RolloutFields(logprobs="logprobs", rewards="rewards")
    >>> record = {"prompt_ids": [5], "response_ids": [[6, 7], [8]], "logprobs": [[-0.5, 0], [-2]], "rewards": [1, 0]}
    >>> bp.testing.to_rows(bp.FromRollouts(fields, tokenizer).step()(bp.testing.records([record])))
    [{'response_ids': [[6, 7], [8]], 'logprobs': [[-0.5, 0.0], [-2.0]], 'prompt_ids': [5], 'rewards': [1.0, 0.0]}]
    """

    fields: RolloutFields
    tokenizer: Tokenizer
    domain_key: str | None = None

    work, gives = from_rollouts, Batch

    def settings(self) -> dict[str, Any]:
        return {"fields": self.fields, "max_id": self.tokenizer.max_id, "domain_key": self.domain_key}


class InDomain(BlockStep):
    """`Batch` -> `Batch`: puts all rows into one domain.

    Attributes:
        domain: the name of the domain.
    """

    domain: str

    work, gives = in_domain, Batch


class BuildMask(BlockStep):
    """`Batch` -> `Batch`: adds the loss mask column of each output that has one: 1 for trained tokens.

    Attributes:
        policy: a config's `mask` (role -> `train`, `mask` or `last`), or a function on `Segments` that returns
            bool [segments]: True for the segments that are trained.
        default: the rule of roles that a mapping leaves out.
        options: for a mapping: what is trained within messages. The rules of `ApplyTemplate` need the same options.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
    >>> chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    >>> block = bp.ApplyTemplate([row], tokenizer).step()(bp.testing.records([{"messages": chat}]))
    >>> batch = bp.BuildMask({"assistant": "train"}).step()(bp.Tokenize(tokenizer).step()(block))
    >>> tokenizer.decode(batch["ids"].flat[batch["loss_mask"].flat == 1].tolist())
    'Yes.<|im_end|>'
    """

    policy: Mapping[str, RoleRule] | rows.MaskPolicy
    default: DefaultRule = "mask"
    options: MaskOptions | None = None

    work, gives = rows.build_mask, Batch

    def check(self) -> None:
        if isinstance(self.policy, Mapping):
            wrong = {role: rule for role, rule in self.policy.items() if rule not in get_args(RoleRule)}
            if wrong:
                raise ValueError(f"policy is {wrong}, wanted one of {', '.join(get_args(RoleRule))} for a role")
            self.policy = rows.RoleMask(dict(self.policy), self.default, self.options)
        elif not callable(self.policy):
            raise ValueError(f'policy is {self.policy!r}, wanted a function or a dict such as {{"assistant": "train"}}')

    def settings(self) -> dict[str, Any]:
        return {"policy": self.policy}


class Truncate(BlockStep):
    """`Batch` -> `Batch`: cuts sequences to `max_seq_len` tokens; of lists, each element.

    Attributes:
        max_seq_len: tokens.
        mode: `keep_start` and `keep_end` cut a longer sequence, `drop` drops its record (counted as `too_long`),
            `error` fails the run.
        eos_id: the token that ends an answer, or a tokenizer (its EOS token). Rows that lose this token are counted.

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Truncate(2).step()(batch))
    [{'ids': [7, 8], 'loss_mask': [0, 1]}]
    """

    max_seq_len: int
    mode: rows.TruncationMode = "keep_start"
    eos_id: int | Tokenizer | None = None

    work, gives = rows.truncate, Batch

    def check(self) -> None:
        check_least(1, max_seq_len=self.max_seq_len)

    def settings(self) -> dict[str, Any]:
        eos = self.eos_id.id_of("eos_token") if isinstance(self.eos_id, Tokenizer) else self.eos_id
        return {"max_seq_len": self.max_seq_len, "mode": self.mode, "eos_id": eos}


class SplitPrompt(BlockStep):
    """`Batch` -> `Batch`: `chosen_ids`, `rejected_ids` and `prompt_ids`, as TRL's preference collator reads them.

    The prompt is the ids before the first trained token of both sides. Rejects: `equal_sides`, `prompt_differs`,
    `not_prompt_first`.

    Attributes:
        rows_without_loss: `reject` rejects rows without a completion; `drop` and `keep` drop them.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> texts = [("prompt", "mask"), ("chosen", "train")], [("prompt", "mask"), ("rejected", "train")]
    >>> rows = [
    ...     bp.Output(side[1][0], "ids", tuple(bp.Section(*part) for part in side), f"{side[1][0]}_mask")
    ...     for side in texts
    ... ]
    >>> records = bp.testing.records([{"prompt": "How far? ", "chosen": "Far.", "rejected": "No."}])
    >>> batch = bp.Tokenize(tokenizer).step()(bp.ApplyTemplate(rows, tokenizer).step()(records))
    >>> (row,) = bp.testing.to_rows(bp.SplitPrompt().step()(bp.BuildMask({}).step()(batch)))
    >>> {name: tokenizer.decode(ids) for name, ids in row.items()}
    {'chosen_ids': 'Far.', 'rejected_ids': 'No.', 'prompt_ids': 'How far? '}
    """

    rows_without_loss: rows.RowsWithoutLoss = "drop"

    work, gives = rows.split_prompt, Batch


class Labels(BlockStep):
    """`Batch` -> `Batch`: `input_ids` and `labels` (-100 where there is no loss), position by position.

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Labels().step()(batch))
    [{'input_ids': [7, 8, 9], 'labels': [-100, 8, 9]}]
    """

    work, gives = partial(rows.to_labels, shift=False), Batch


class Shift(BlockStep):
    """`Batch` -> `Batch`: `input_ids` without the last token, `labels` without the first: label i follows input i.

    Use it for trainers that do not shift labels; the models of transformers shift them. Rows of fewer than 2 tokens are
    rejected (`too_short_to_shift`).

    >>> tokenizer, row = bp.Tokenizer.load("examples/tokenizer"), bp.Output("ids", "ids", (), "loss_mask")
    >>> block = bp.testing.records([{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}])
    >>> batch = bp.FromTokens(row, tokenizer).step()(block)
    >>> bp.testing.to_rows(bp.Shift().step()(batch))
    [{'input_ids': [7, 8], 'labels': [8, 9]}]
    """

    work, gives = partial(rows.to_labels, shift=True), Batch


class Pad(BlockStep):
    """`Batch` -> `Batch`: pads every row at its end to a multiple of `multiple`, and adds an `attention_mask`.

    `Layout.padding` does the same while shards are written, which takes far less memory if rows are short.

    >>> pad = bp.Pad(2048, pad_id=0)

    Attributes:
        multiple: tokens; the maximum length makes all rows equally long.
        pad_id: the id of the added tokens.
    """

    multiple: int
    pad_id: int

    work, gives = rows.pad, Batch

    def check(self) -> None:
        rows.Padding(self.multiple, self.pad_id)  # it checks them


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@dataclasses.dataclass(eq=False)
class ReadJSONL(beam.PTransform):
    """Files -> `Records`: every line exactly once, in blocks that are the same on every runner.

    Plain files are split by byte ranges, Parquet files (`.parquet`) by their row groups. `.gz`, `.bz2` and `.zst`
    files, `.json` files with one list of records, and Arrow streams (`.arrow`, or the folder of a dataset) are read as
    streams, in blocks too. A line that is not a JSON object is rejected, a blank line is counted.
    The files are listed when the pipeline is built.

    Attributes:
        inputs: paths and globs.
        block_bytes: bytes of input in a block; a multiple of 65536, so that digests of inputs do not depend on it.
        token_cache: the cache of blocks of earlier runs, which are reused; for launchers.
        max_line_bytes: a longer line is rejected (`line_too_long`), and is not kept in memory.
        workers: expected number of workers: as many share a large compressed file.

    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | bp.ReadJSONL("examples/data/text.jsonl") | bp.testing.rows()
    ...     _ = records | beam.combiners.Count.Globally() | beam.Map(print)
    72
    """

    inputs: AnyPaths | Sequence[InputFile]
    block_bytes: int = BLOCK_BYTES
    token_cache: TokenCache | None = None
    max_line_bytes: int = MAX_LINE_BYTES
    workers: int = 1

    def __post_init__(self) -> None:
        super().__init__()
        if not CHUNK <= self.block_bytes < 1 << 31 or self.block_bytes % CHUNK:
            raise ValueError(f"block_bytes is {self.block_bytes}, wanted a multiple of {CHUNK} below 2 GiB")
        if not 1 <= self.max_line_bytes < 1 << 31:
            raise ValueError(f"max_line_bytes is {self.max_line_bytes}, wanted 1 or more, below 2 GiB")
        if isinstance(self.inputs, str | os.PathLike) or not self.inputs or not isinstance(self.inputs[0], InputFile):
            self.inputs = list_inputs(self.inputs)  # type: ignore[arg-type]

    def __str__(self) -> str:
        # Beam writes this into the graph; its default would name every file.
        return f"ReadJSONL of {len(self.inputs)} files"  # type: ignore[arg-type]

    def expand(self, start: beam.pvalue.PBegin) -> beam.PCollection[Records]:
        packed = pack_files(self.inputs)  # type: ignore[arg-type]
        made = beam.FlatMap(read_split, self.block_bytes, self.token_cache, self.max_line_bytes)
        return (
            start
            | "Once" >> beam.Impulse()
            | "Splits" >> beam.FlatMap(split_files, packed, self.block_bytes, self.workers).with_output_types(Split)
            # Otherwise one process would read all blocks.
            | "Spread" >> beam.Reshuffle()
            | "Blocks" >> made.with_output_types(Records)
        )


Step = Callable[[Any], Any]


class ByGroup(BlockStep):
    """`Records` -> `Batch`: applies to each block the steps of its file's group.

    One step for all groups: if Beam separated and joined the blocks, it would need several times their memory.

    Attributes:
        steps: the steps of each group, in order; the last step of each group makes a `Batch`.
    """

    steps: Sequence[Sequence[BlockStep]]

    gives = Batch

    def step(self) -> Callable[[Records], Batch]:
        return partial(_by_group, groups=tuple(tuple(map(timed, each)) for each in self.steps))

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        return blocks | "Blocks" >> beam.Map(self.step()).with_output_types(Batch)  # the steps note their times


def _by_group(records: Records, groups: tuple[tuple[Step, ...], ...]) -> Batch:
    source = records.origin.source
    if source.group is None or source.group >= len(groups):
        raise ConfigError(
            f"{source.path!r} is of no group: the config has input.groups, whose files only beam-prep run and "
            "Pipeline read; in a chain of your own, write one Prepare for each group"
        )
    block: Any = records
    for step in groups[source.group]:
        block = step(block)
    made: Batch = block
    return made


@dataclasses.dataclass(eq=False)
class FromRecords(beam.PTransform):
    """A collection of dicts, or of Rows -> `Records`, in place of ReadJSONL: from BigQuery, Iceberg, your own read.

    A collection has no order, so records are ordered by their digests (of sorted keys). Equal records all stay. The
    output is the same for any order of arrival, any `buckets` and `block_bytes`, and on every runner. In the manifest
    and in rejects, the file is `records`; lines and byte offsets are those of the ordered records as JSON.

    Dates, times, `Decimal` and `UUID` become text; named tuples become objects; tuples and numpy arrays become lists.
    Values that JSON cannot hold reject the record: `not_json` (bytes, sets, NaN, a key that is no string ...),
    `not_an_object` (the element is neither dict nor Row), `bad_text`, `bad_number`, `too_deep`, `line_too_long`.

    Windows and timestamps are ignored: a bounded collection is one output.

    Attributes:
        buckets: a power of 2, up to 65536. A worker holds and sorts one bucket in memory: all records as JSON, divided
            by `buckets`, should be at most a tenth of its memory. 256 buckets are enough for 100 GB with 4 GB workers.
        block_bytes: bytes of JSON in a block; steps hold one block at a time.

    Raises:
        ValueError: `buckets` or `block_bytes` is out of range.
        ConfigError: the collection is unbounded.
        InputError: (when run) the source gave other records when a part of the job ran again.

    >>> rows = [{"text": "One."}, {"text": "Two."}, {"text": "Two."}, {"text": b"Three."}]
    >>> with beam.Pipeline("FnApiRunner") as pipeline:
    ...     records = pipeline | beam.Create(rows) | bp.FromRecords() | bp.testing.rows()
    ...     _ = records | beam.combiners.Count.Globally() | beam.Map(print)
    3
    """

    buckets: int = 256
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        super().__init__()
        if type(self.buckets) is not int or not 1 <= self.buckets <= MOST_BUCKETS or self.buckets.bit_count() > 1:
            raise ValueError(f"buckets is {self.buckets!r}, wanted a power of 2 from 1 to {MOST_BUCKETS}")
        if type(self.block_bytes) is not int or not 1 <= self.block_bytes < 1 << 31:
            raise ValueError(f"block_bytes is {self.block_bytes!r}, wanted 1 or more, below 2 GiB")

    def expand(self, records: beam.PCollection[Any]) -> beam.PCollection[Records]:
        if not records.is_bounded:
            raise ConfigError(
                "FromRecords was given an unbounded collection (a stream), wanted one that ends: "
                "write the stream to a table or to files, and read a snapshot of them"
            )
        keyed = (
            records
            | "OneWindow" >> beam.WindowInto(GlobalWindows())
            | "Encode" >> beam.Map(encode_record)
            | "Key" >> beam.WithKeys(bucket_of, self.buckets).with_output_types(tuple[int, bytes])
        )
        size = beam.MapTuple(lambda bucket, encoded: (bucket, line_size(encoded)))
        sizes = (
            keyed
            | "Size" >> size.with_output_types(tuple[int, int])
            | "Sizes" >> beam.CombinePerKey(sum).with_output_types(tuple[int, int])
        )
        made = beam.FlatMap(blocks, beam.pvalue.AsDict(sizes), self.buckets, self.block_bytes)
        return keyed | "Buckets" >> beam.GroupByKey() | "Blocks" >> made.with_output_types(Records)
