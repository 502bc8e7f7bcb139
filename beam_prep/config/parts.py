"""The parts of a config: `input`, what is read from a record, and the outputs that it becomes; `preprocessing` and
`output`, what is dropped, cut and packed, and which columns, formats and shards are written."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date as Date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr

from beam_prep.config.presets import PRESETS, PresetName
from beam_prep.config.strict import DType, Formats, Name, Problem, Strict, Text, Texts, Whole
from beam_prep.data.fim import Fim, FimMode
from beam_prep.data.schema import (
    FILE,
    LOSS_WEIGHTS,
    OFFSET,
    RESERVED,
    Action,
    MetadataType,
    Output,
    OutputKind,
    Section,
    metadata_column,
)
from beam_prep.errors import ConfigError
from beam_prep.hints import shown
from beam_prep.reading.adapters import AdapterName, Alpaca, ShareGPT, adapter, fields_read
from beam_prep.reading.keys import Normalize
from beam_prep.reading.rollouts import RolloutFields
from beam_prep.shards.compose import rest
from beam_prep.shards.pack import Packing, Positions


class DeduplicateConfig(Strict):
    """Exact deduplication: of equal records only the first is kept."""

    by: Annotated[list[Text], Field(min_length=1)] | None = None
    """Fields of the record. Records are equal if the values of all these fields are equal. Null: the fields that the
    config reads; each group compares its own."""
    normalize: Normalize = "none"
    """Differences between texts that are ignored. `whitespace`: a run of white space counts as one blank, and white
    space at the ends of a text does not count; `nfkc_casefold`: case and Unicode form are ignored, too."""


class DecontaminateConfig(Strict):
    """Evaluation data. No record may share an n-gram of words with it."""

    against: Texts
    """The files of the evaluation data: paths and globs, from the folder of the run, or in a store."""
    field: Texts | None = None
    """The fields of the evaluation data that are searched for. Null: all texts."""
    fields: Texts | None = None
    """The fields of the input that are searched. Null: the fields of all sections."""
    ngram: Whole = Field(default=13, ge=1)
    """Words of an n-gram."""
    mode: Literal["drop", "mark"] = "drop"
    """Records that share an n-gram are dropped (`contaminated`), or kept, counted and listed."""


class PreprocessingConfig(Strict):
    """Rules for dropping, cutting, packing, padding and shifting."""

    max_seq_len: Whole = Field(default=2048, gt=0)
    """The longest sequence, in tokens; in lists, the longest element."""
    min_chars: Whole = Field(default=50, ge=0)
    """Shorter text fields count as absent. Only if every section is plain text with action `train` (pretraining). In
    code points."""
    max_chars: Whole = Field(default=2_000_000, ge=1)
    """Longer text fields count as absent, too."""
    max_items: Whole | None = Field(default=None, gt=0)
    """Keep at most this many records, in input order; null means no limit. Lines after the last record are counted as
    `not_read`."""
    rows_without_loss: Literal["drop", "keep", "reject"] = "drop"
    """What happens to rows without a trained token after cutting."""
    truncation_mode: Literal["keep_start", "keep_end", "drop", "error", "chunk"] = "keep_start"
    """What happens to longer sequences: they are cut at their end or at their start, the record is dropped
    (`too_long`), the run fails, or they become [several rows](config.md#chunks). Counters: `truncated_rows`,
    `truncated_tokens`, and `truncated_eos` (rows that lost their final EOS)."""
    stride: Whole = Field(default=0, ge=0)
    """With `truncation_mode: "chunk"`: how many tokens of the previous chunk a chunk repeats as context; less than a
    chunk."""
    encode: Literal["separate", "joint"] = "separate"
    """`"joint"`: text sections are joined, then encoded; the leading `mask` sections are the prompt."""
    eos: Literal["never", "if_missing", "always"] = "never"
    """Add the EOS token's text after the last text section. Then a record with a blank text is kept. Not for
    templates, lists, and outputs that do not train."""
    bos: Literal["keep", "strip", "tokenizer"] = "keep"
    """For `template: "conversation"`: keep the BOS that the template writes; strip it; or strip it, and let the
    tokenizer add its special tokens."""
    control_tokens: Literal["keep", "escape", "reject"] = "keep"
    """If a record's text has the text of a [control token](config.md#control-tokens), such as `<|im_end|>` typed by a
    user: it becomes the token (as in transformers), or an invisible character keeps it text, or the record is rejected
    (`control_token`)."""
    padding: Literal["none", "max_length"] | Annotated[Whole, Field(gt=0)] = "none"
    """Pad rows at their end to `max_seq_len`, or to a multiple of the number, and add an `attention_mask`. Labels of
    padding are -100, masks 0."""
    packing_strategy: Packing = "none"
    """Put several documents into a row. `bfd`: best fit decreasing, longer ones are cut; `bfd_split`: cut into pieces
    first; `wrapped`: joined and cut anywhere; `simple`: one document a row. See [packing](config.md#packing). Adds
    `seq_lens`, the length of each document in the row."""
    max_packed_len: Annotated[Whole, Field(gt=0)] | None = None
    """Tokens of a packed row; null: `max_seq_len`. Ignored without packing, with a warning."""
    packing_group: Whole = Field(default=5000, gt=0)
    """How many consecutive rows of a shard are packed together."""
    decontaminate: DecontaminateConfig | None = None
    """Evaluation data. No record may share an n-gram of words with it: see [decontaminate.md](decontaminate.md)."""
    shift: bool = False
    """With `output.columns: "labels"`: label i is the token that follows input i. For trainers that do not shift labels
    themselves. The models of transformers shift them: leave it `false` for them."""

    deduplicate: DeduplicateConfig | None = None
    """Drop records that are equal to an earlier record (`duplicate`): see [compose.md](compose.md#deduplication). Null:
    keep all."""

    @property
    def chunks(self) -> bool:
        """True if longer sequences are cut into several rows."""
        return self.truncation_mode == "chunk"

    @property
    def chunk_size(self) -> int:
        """Most tokens of a chunk."""
        packed = self.max_packed_len if self.packing_strategy != "none" else None
        return min(self.max_seq_len, packed or self.max_seq_len)

    @property
    def row_size(self) -> int:
        """Most tokens of a row of one sequence, packed or padded."""
        if self.packing_strategy != "none":
            return self.max_packed_len or self.max_seq_len
        multiple = self.padding if isinstance(self.padding, int) else 1
        return -(-self.max_seq_len // multiple) * multiple


def _as_strings(value: object) -> object:
    """A list of fields becomes an object: field -> "string"."""
    if isinstance(value, dict):
        return value
    if (
        not isinstance(value, list | tuple)
        or not all(isinstance(name, str) for name in value)
        or len(set(value)) < len(value)
    ):
        raise ValueError(f"found {shown(value)}; must be a list of fields, each once, or an object: field to type")
    return dict.fromkeys(value, "string")


def _as_iso(day: str) -> str:
    try:
        return Date.fromisoformat(day).isoformat()
    except ValueError as error:
        raise ValueError(f"{error}; wanted a day such as '2026-11-30'") from error


Seed = Annotated[int, Field(ge=0, lt=1 << 64)]


class FimConfig(Strict):
    """Fill in the middle: documents of plain text are cut into prefix, middle and suffix, and reordered."""

    rate: float = Field(ge=0, le=1)
    """The share of documents that are reordered, 0 to 1."""
    mode: FimMode | None = None
    """The order of the parts: see [the orders](config.md#fill-in-the-middle). Null: the order of the models that have
    these sentinels, `psm` for other sentinels."""
    seed: Seed = 0
    """Another seed reorders other documents, and cuts them at other places."""
    sentinels: Annotated[tuple[Text, Text, Text], Field(strict=False)] | None = None
    """The 3 tokens before prefix, middle and suffix. Null: the sentinels of [a known
    family](config.md#fill-in-the-middle) that the tokenizer has."""

    def build(self) -> Fim:
        """The rule, as a function on texts."""
        return Fim(self.rate, self.mode, self.seed, self.sentinels)


SplitName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_NO_SPLITS = re.compile(r"all|reject|rejects|tokenizer|latest|con|prn|aux|nul|com[0-9]|lpt[0-9]")
"""Names with a meaning: `all` for readers, `reject` for `split_missing`, files of an output, devices of Windows."""
Share = Annotated[float, Field(gt=0, le=1)]


class ShuffleConfig(Strict):
    """The order of the rows: a permutation of all of them, over all shards."""

    seed: Seed
    """Another seed gives another order. Blocks in the token cache are used again."""


class DomainMixConfig(Strict):
    """How much of a domain is written. Give one of tokens, share and epochs."""

    tokens: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """How many tokens are written. Give one of `tokens`, `share` and `epochs`."""
    share: Share | None = None
    """The share of the output's tokens."""
    epochs: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How often each record is written. 0.5: half of the records; 1.5: half of the records twice."""
    repeat: bool = False
    """With `tokens` or `share`: repeat records, up to 1,000 times, if the domain has too few."""

    def _problems(self) -> Iterator[Problem]:
        given = [name for name in ("tokens", "share", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"found {' and '.join(given) or 'none of them'}; give one of tokens, share and epochs"
        elif self.repeat and self.epochs is not None:
            yield ("repeat",), "found true beside epochs, which says already how often"


class OutputConfig(Strict):
    """The columns, formats and shards that are written."""

    preset: PresetName | None = None
    """Fills in the settings of a trainer, and refuses settings that the trainer would misread: see
    [presets](config.md#presets)."""
    domain_key: Text | None = None
    """Key of the record that names its domain; every domain has a folder. A list or an object is a reject
    (`wrong_type`). For null, a number, a boolean, or a missing key the domain is `__default__`; a run warns at its
    start if the first records have numbers or booleans, or if none has the key."""
    storage_format: Formats = ("bin",)
    """The formats to write, all from one tokenisation: see [formats.md](formats.md). `h5` needs `pip install h5py`,
    `array_record` needs `pip install 'beam-prep[array_record]'`."""
    max_tokens_per_shard: Whole = Field(default=100_000_000, gt=0)
    """When the tokens of all domains since the last flush reach this, every domain that has rows gets a shard. A record
    is never split over shards."""
    dtype: dict[str, DType] = Field(default={})
    """Column to dtype. By default ids, masks, labels and added columns are `int32`, values `float32`; in
    [rollouts](rollouts.md#records) `policy_version` is `int64`, and texts are `uint8`."""
    columns: Literal["loss_mask", "labels", "prompt_completion"] = "loss_mask"
    """`"labels"`: the columns are `input_ids` and `labels` (-100 where there is no loss) instead of `sequence` and
    `loss_mask`. Not with `sources`. `"prompt_completion"`: `chosen_ids`, `rejected_ids` and `prompt_ids` of the sources
    `chosen` and `rejected`; the prompt is everything before the first trained token, and must be equal on both
    sides."""
    loss_weights: bool = False
    """Adds `loss_weights` (float32): the weight of each token, from `weight` of its message and of its record, 0 where
    nothing is trained. See [weights](masks.md#weights). Only with `input.sections`. The mask is then written even if
    every token is trained."""
    position_ids_mode: Positions | None = None
    """Adds `position_ids`: from 0 in every document, or through the row. Null: `doc_reset` with packing, else none."""
    names: dict[str, Name] = Field(default={})
    """Column to the name under which it is written: `{"seq_lens": "seq_lengths"}` for TRL. All other keys (`dtype`,
    `mask_key` ...) use the name before renaming. New names do not invalidate a kept token cache."""
    keep_fields: Annotated[
        dict[Text, MetadataType],
        BeforeValidator(_as_strings, json_schema_input_type=list[Text] | dict[str, MetadataType]),
    ] = Field(default={})
    """Fields of the record that are kept as metadata columns: a list (strings), or field to type (`"string"`,
    `"int32"`, `"int64"`, `"float32"`, `"float64"`, `"bool"`): see [ids](config.md#ids-beside-the-tokens)."""
    provenance: bool = False
    """Adds `file` (int32, the number of the file in the manifest's `inputs`, from 0) and `offset` (int64, the
    position of the record's line in the content, in bytes; in [tables](sources.md#tables), the rows before it)."""
    fim: FimConfig | None = None
    """Fill in the middle: reorders some of the documents. Needs one section of text that is trained. See
    [fill in the middle](config.md#fill-in-the-middle)."""

    shuffle: ShuffleConfig | None = None
    """Shuffle the rows over all shards: see [compose.md](compose.md). Null: rows are in the order of the input."""
    splits: dict[SplitName, Share] | None = None
    """Split to its share of the records. Shares add up to 1. Names are lower-case letters, digits and `_`. Each split
    has a folder: see [compose.md](compose.md#splits)."""
    split_key: Text | None = None
    """Field of the record: records with the same value are in one split. Null: the entire record decides."""
    split_seed: Seed = 0
    """Another seed puts other records into each split."""
    split_missing: Text = "reject"
    """Records without `split_key`: `"reject"` (`no_split_key`), or the name of the split that gets all of them."""
    mix: dict[Text, DomainMixConfig] | None = None
    """Domain to how much of it is written. Other domains are written once, completely. Needs `shuffle`: see
    [compose.md](compose.md#mix)."""

    def new_names(self, columns: Collection[str]) -> dict[str, str]:
        """Column -> the name under which it is written. The names of a preset are for these columns alone."""
        found = {} if self.preset is None else PRESETS[self.preset].names
        return {**{column: name for column, name in found.items() if column in columns}, **self.names}

    def _problems(self) -> Iterator[Problem]:
        if self.splits is not None and (left := rest(self.splits.values())):
            yield ("splits",), f"found shares that add up to {float(1 - left):g}; they must add up to 1"
        for name in filter(_NO_SPLITS.fullmatch, self.splits or ()):
            yield ("splits", name), "found a split with a reserved name: choose another"
        for name in ("split_key", "split_seed", "split_missing"):
            if self.splits is None and name in self.model_fields_set:
                yield (name,), f"found {getattr(self, name)!r}; it works only with output.splits"
        if self.splits is not None and self.split_missing != "reject":
            if self.split_missing not in self.splits:
                known = ", ".join(map(repr, ["reject", *self.splits]))
                yield ("split_missing",), f"found {self.split_missing!r}; allowed: {known}"
            elif self.split_key is None:
                yield ("split_missing",), f"found {self.split_missing!r}; it works only with output.split_key"
        if self.mix is not None and self.shuffle is None:
            yield ("mix",), 'found a mix without output.shuffle, which draws its records: add "shuffle": {"seed": 0}'
        if self.mix is not None and (left := rest(each.share or 0 for each in self.mix.values())) < 0:
            yield ("mix",), f"found shares that add up to {float(1 - left):g}; at most 1"

    def metadata(self) -> dict[str, str]:
        """Metadata column -> dtype."""
        columns = [metadata_column(name, kind) for name, kind in self.keep_fields.items()]
        return {column.name: column.dtype for column in (*columns, *((FILE, OFFSET) if self.provenance else ()))}


# Input


class SectionConfig(Strict):
    """One field of the record, and what is done with it."""

    field: Text
    """Key of the record that is read."""
    action: Action
    """`train` or `mask`; `$role`: the rule of each message's role; `$last`: trains only the last message, all messages
    before it are the prompt; `value`: numbers, which are not tokenised. See [actions](config.md#actions)."""
    template: Annotated[
        Literal[False, True, "message", "conversation"],
        AfterValidator(lambda value: "message" if value is True else value),
    ] = False
    """`true` or `"message"`: the chat template renders each message of a list alone; `"conversation"`: it renders all
    messages together. See [templates](config.md#templates)."""
    add_special_tokens: bool | None = None
    """The tokenizer adds its special tokens to this text. Null: yes for the first section with text, no in lists and
    for messages."""

    def build(self) -> Section:
        """The section, for `Output`."""
        template = None if isinstance(self.template, bool) else self.template
        return Section(self.field, self.action, template, self.add_special_tokens)

    def _problems(self) -> Iterator[Problem]:
        if self.action == "$role" and not self.template:
            yield ("action",), "found '$role' on text, which has no roles; set template: true, or use 'train' or 'mask'"
        if self.action == "value" and self.template:
            yield ("template",), "found with action 'value', which takes numbers as they are; leave it out"
        if self.action == "$last" and self.template != "conversation":
            yield ("action",), "found '$last'; it needs template: 'conversation'"
        if self.add_special_tokens is not None and (self.template or self.action == "value"):
            yield ("add_special_tokens",), "found beside a template or action 'value'; it is for text: leave it out"


Sections = Annotated[tuple[SectionConfig, ...], Field(strict=False)]  # a list becomes a tuple


class SourceConfig(Strict):
    """One of several outputs."""

    sections: Sections = Field(min_length=1)
    """The sections of this output, in order."""
    list_field: bool = False
    """The fields hold lists. Every element is tokenised alone, and a row is a list of lists."""
    mask_key: Name | None = None
    """The column of its mask; null: `<name>_mask`. With a name, the mask is written even if every token is trained."""

    def _problems(self) -> Iterator[Problem]:
        actions = [section.action for section in self.sections]
        yield from conversation_problems(self.sections)
        if self.list_field and ("value" in actions or any(each.template == "conversation" for each in self.sections)):
            yield ("list_field",), "found true; it works only with lists of texts, and with template: true"
        if "value" in actions and len(actions) > 1:
            text = "found 'value'; it must be the only section of its source"
            yield ("sections", actions.index("value"), "action"), text
        if "value" in actions and self.mask_key is not None:
            yield ("mask_key",), f"found {self.mask_key!r} with action 'value', which has no mask; leave it out"


def conversation_problems(sections: tuple[SectionConfig, ...]) -> Iterator[Problem]:
    """Problems of the sections of an output with template 'conversation'."""
    if not any(section.template == "conversation" for section in sections):
        return
    actions = [section.action for section in sections]
    if not all(section.template == "conversation" for section in sections):
        yield ("sections",), "found template 'conversation' beside others; all sections of an output must have it"
    elif "$last" in actions and len(actions) > 1:
        yield ("sections", actions.index("$last"), "action"), "found '$last'; it must be the only section of its output"
    elif not prompt_first(actions):
        yield ("sections",), "found 'mask' after 'train'; what is masked (the prompt) must come first"


def prompt_first(actions: Sequence[str]) -> bool:
    """True if all `mask` sections are before all `train` sections."""
    ranks = [("mask", "train").index(action) for action in actions if action in ("mask", "train")]
    return ranks == sorted(ranks)


def _of_source(name: str, mask: str, source: SourceConfig, forced: bool, weights: str | None = None) -> Output:
    """The output of a source; `forced`: it has a mask even if every token is trained."""
    kind: OutputKind = "list" if source.list_field else "value" if source.sections[0].action == "value" else "ids"
    made = Output(name, kind, tuple(section.build() for section in source.sections), weights_name=weights)
    if forced or (kind != "value" and made.trains and not made.plain):
        return replace(made, mask_name=mask)
    return made


class RolloutsConfig(Strict):
    """Rollouts as ids, which are not encoded again. Each setting is the key of the record for a column."""

    prompt_ids: Text = "prompt_ids"
    """Key of the prompt's ids."""
    response_ids: Text | None = "response_ids"
    """Key of the ids of the responses, a list of lists. Null: the records have only prompts."""
    loss_mask: Text | None = None
    """Key of the masks, 0 and 1, one for each id of each response. Null: all tokens are trained."""
    logprobs: Text | None = None
    """Key of the log probabilities, one for each id of each response."""
    rewards: Text | None = None
    """Key of the rewards, one for each response."""
    policy_version: Text | None = None
    """Key of the version of the policy: an integer, or an integer for each response."""
    values: dict[Name, Text] = Field(default={})
    """Column to key, for more numbers: one number for the record, or one for each response."""
    texts: dict[Name, Text] = Field(default={})
    """Column to key, for texts, which are kept as UTF-8 bytes."""
    grouped: bool = True
    """A record has all responses to its prompt, in lists. `false`: a record has one response."""

    @property
    def fields(self) -> RolloutFields:
        """These keys, for `from_rollouts`."""
        return RolloutFields.of(self.model_dump())

    def _problems(self) -> Iterator[Problem]:
        if self.response_ids is None:
            for name in ("loss_mask", "logprobs", "rewards", "policy_version"):
                if getattr(self, name) is not None:
                    yield (name,), f"found {getattr(self, name)!r} with response_ids: null; leave it out"
        taken = {name.lower() for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "rewards")}
        taken |= {"policy_version", *RESERVED}
        for part in ("values", "texts"):
            for name in getattr(self, part):
                if name.lower() in taken:
                    yield (part, name), f"found column {name!r}, which is reserved or there already; choose another"
                taken.add(name.lower())


class AdapterConfig(Strict):
    """The adapter that reads records of another shape."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: AdapterName
    """The shape of the records; other keys are its options."""

    def build(self) -> ShareGPT | Alpaca:
        """The adapter as a function on records."""
        return adapter(self.name, **(self.model_extra or {}))

    def _problems(self) -> Iterator[Problem]:
        try:
            if self.name != "tokenized":
                self.build()
            elif self.model_extra:
                yield (), f"found {shown(self.model_extra)}; adapter 'tokenized' has no options"
        except ConfigError as error:
            yield (), str(error)


class FieldsConfig(Strict):
    """The fields that are read from a record: `sections` for one output, `sources` for several."""

    sections: Sections | None = None
    """The sections of the only sequence, in order. Columns: `sequence`, `loss_mask`."""
    sources: dict[Name, SourceConfig] | None = None
    """Several outputs by name; the name is the column. Letters, digits and `_`, a letter first."""
    adapter: Annotated[
        AdapterConfig | None,
        BeforeValidator(
            lambda value: {"name": value} if isinstance(value, str) else value,
            json_schema_input_type=str | dict[str, Any] | None,
        ),
    ] = None
    """Records of another shape: `sharegpt`, `alpaca`, or `tokenized`; or an object with its name and options: see
    [adapters](config.md#adapters)."""
    rollouts: RolloutsConfig | None = None
    """Records that hold the ids of prompts and responses, which are not encoded again: see [rollouts](rollouts.md).
    Replaces sections and sources."""

    @property
    def tokenized(self) -> bool:
        """True if the records are already tokenised."""
        return self.rollouts is not None or (self.adapter is not None and self.adapter.name == "tokenized")

    @property
    def one_sequence(self) -> bool:
        """True if a row is one sequence."""
        return not self.sources and self.rollouts is None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that are read."""
        if self.adapter is not None:
            return fields_read(self.adapter.name, **(self.adapter.model_extra or {}))
        if self.rollouts is not None:
            return tuple(dict.fromkeys(self.rollouts.fields.columns.values()))
        return tuple(
            dict.fromkeys(section.field for each in outputs_of(self, OutputConfig()) for section in each.sections)
        )

    def _problems(self) -> Iterator[Problem]:
        if self.tokenized:
            if self.sources or self.sections or (self.rollouts is not None and self.adapter is not None):
                one = "rollouts" if self.rollouts is not None else "adapter"
                yield (one,), "found beside sections, sources or another adapter; it reads token ids: leave these out"
        elif self.sources:
            yield from self._name_problems()
            if all(each.kind == "value" for each in outputs_of(self, OutputConfig())):
                yield ("sources",), "found only values; at least one source must hold text or messages"
        elif not self.sections:
            yield (), "found neither sections nor sources; give sections for one output, sources for several"
        elif "value" in (actions := [section.action for section in self.sections]):
            text = "found 'value'; it needs a source of its own in input.sources"
            yield ("sections", actions.index("value"), "action"), text
        elif not any(each.trains for each in outputs_of(self, OutputConfig())):
            yield ("sections",), "found no section that can train; give one the action 'train' or '$role'"
        else:
            yield from conversation_problems(self.sections)

    def _name_problems(self) -> Iterator[Problem]:
        taken: dict[str, str] = {}
        for output in outputs_of(self, OutputConfig()):
            for column in filter(None, (output.name, output.mask_name)):
                at, why = ("sources", output.name), "columns become file names, so upper and lower case count as equal"
                if column.lower() in RESERVED:
                    yield at, f"found column {column!r}; reserved names: {', '.join(RESERVED)}"
                if (other := taken.get(column.lower())) is not None:
                    yield at, f"found column {column!r}, which source {other!r} has already; {why}"
                taken[column.lower()] = output.name


class GroupConfig(FieldsConfig):
    """A group of files with its own settings of fields."""

    files: Texts
    """The files of the group: paths and globs, from the folder of the run, or in a store."""
    domain: Text | None = None
    """The domain of all records of the group. Null: `output.domain_key` gives the domain."""


class InputConfig(FieldsConfig):
    """The input: `sections` for one output, `sources` for several, `groups` for files with different fields."""

    chat_template: Text | None = None
    """Replaces the tokenizer's chat template: a path beside the config, the template itself, or the name of a template
    of the tokenizer (a word without a dot)."""
    date: Annotated[str, AfterValidator(_as_iso), Field(json_schema_extra={"format": "date"})] | None = None
    """The day that the chat template gets as today's date (`strftime_now`): midnight, in English. A template that asks
    for the date is refused without this setting."""
    template_variables: dict[str, Any] = Field(default={})
    """Variables for the chat template, for all records: `{"enable_thinking": false}`. A record's
    `chat_template_kwargs` override them. See [templates.md](templates.md#variables)."""
    not_rendered: Literal["reject", "keep"] = "reject"
    """If the chat template does not write a content or a call: reject the record (`not_rendered`), or keep the rest of
    the record. See [templates.md](templates.md#not_rendered)."""
    tool_arguments: Literal["auto", "object", "string", "as_is"] = "auto"
    """The form of the arguments of calls that the chat template gets: the form that the template takes (`auto`), always
    an object, always a string, or unchanged. See [templates.md](templates.md#forms)."""
    not_text: Literal["reject", "drop_parts"] = "reject"
    """If a record has images, audio or video: reject it (`not_text`), or drop these parts and keep its text. See
    [what is no text](config.md#what-is-no-text)."""
    turns: Literal["together", "apart", "auto"] = "together"
    """`together`: a conversation is one row. `apart`: each trained turn of the assistant gets its own row, with the
    conversation before it as at inference; only this turn is trained. `auto`: a new row begins only if the template
    writes earlier turns differently from how they were generated. See [turns apart](masks.md#turns-apart)."""
    implicit_prompt: bool = False
    """For preference pairs whose prompt is absent, null or empty: the longest common beginning of both sides is the
    prompt. (A prompt that both sides repeat [is written once](which_config.md#preference-pairs) without this option.)
    The first two sources must each have a section for the prompt (the same field, action `mask`) and a section for the
    side: see `configs/dpo_conversation.json`."""
    groups: Annotated[tuple[GroupConfig, ...], Field(min_length=1, strict=False)] | None = None
    """Groups of files with different fields: see [groups.md](groups.md). They replace `sections`, `sources`, `adapter`,
    `rollouts`, and inputs on the command line."""

    # In a group: outputs that have a mask because the same output of another group needs one.
    _masked: frozenset[str] = PrivateAttr(default=frozenset())
    _domain: str | None = PrivateAttr(default=None)

    @property
    def domain(self) -> str | None:
        """The domain of all records of a group; None without groups."""
        return self._domain

    def parts(self, output: OutputConfig) -> tuple["InputConfig", ...]:
        """The input of each group as if it were alone, with masks that other groups need; without groups: (self,)."""
        if self.groups is None:
            return (self,)
        made = []
        for group in self.groups:
            fields = {name: getattr(group, name) for name in FieldsConfig.model_fields}
            made.append(self.model_copy(update={**fields, "groups": None}))
            made[-1]._domain = group.domain
        masked = frozenset(each.name for part in made for each in outputs_of(part, output) if each.mask_name)
        for part in made:
            part._masked = masked
        return tuple(made)

    def outputs(self, joint: bool = False, loss_weights: bool = False) -> tuple[Output, ...]:
        """The outputs of each record, for ApplyTemplate: `sequence` and `loss_mask`, or the sources.

        Args:
            joint: text sections are joined before they are encoded.
            loss_weights: with the weights of tokens.
        """
        outputs = outputs_of(self, OutputConfig(loss_weights=loss_weights))
        return tuple(replace(each, joint=joint and each.kind == "ids" and not each.has_template) for each in outputs)

    def _problems(self) -> Iterator[Problem]:
        if self.groups is None:
            yield from super()._problems()
        else:
            for name in FieldsConfig.model_fields:
                if getattr(self, name) is not None:
                    yield (name,), f"found {name} beside groups; give each group its own, and leave it out here"
        for name in ("messages", "tools", "add_generation_prompt"):
            if name in self.template_variables:
                yield ("template_variables", name), f"found {name!r}, which is not for a config to set; take it out"


def outputs_of(given: FieldsConfig, output: OutputConfig) -> tuple[Output, ...]:
    """The outputs that each record becomes, in config order; with groups: the outputs of each group in turn."""
    masked = frozenset[str]()
    if isinstance(given, InputConfig):
        if given.groups is not None:
            return tuple(each for part in given.parts(output) for each in outputs_of(part, output))
        masked = given._masked
    if given.rollouts is not None:
        return given.rollouts.fields.outputs
    if given.sources:
        return tuple(
            _of_source(name, source.mask_key or f"{name}_mask", source, source.mask_key is not None or name in masked)
            for name, source in given.sources.items()
        )
    sections = (SectionConfig(field="input_ids", action="train"),) if given.tokenized else given.sections or ()
    labels, weights = output.columns == "labels", LOSS_WEIGHTS if output.loss_weights else None
    names = ("input_ids", "labels") if labels else ("sequence", "loss_mask")
    forced = given.tokenized or labels or output.loss_weights or "sequence" in masked
    return (_of_source(*names, SourceConfig(sections=sections), forced, weights),)
