"""`preprocessing` and `output`: what is dropped, cut and packed; which columns, formats and shards are written."""

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from beam_prep.config.presets import PRESETS, PresetName
from beam_prep.config.strict import DType, Formats, Name, Problem, Strict, Text, Texts, Whole
from beam_prep.data.fim import Fim, FimMode
from beam_prep.data.schema import FILE, OFFSET, MetadataType, metadata_column
from beam_prep.hints import shown
from beam_prep.shards.compose import rest
from beam_prep.shards.pack import Packing


class DeduplicateConfig(Strict):
    """Exact deduplication: of equal records only the first is kept."""

    by: Annotated[list[Text], Field(min_length=1)] | None = None
    """Fields of the record. Records are equal if the values of all these fields are equal. Null: the fields that the
    config reads; each group compares its own."""
    normalize: Literal["none", "whitespace", "nfkc_casefold"] = "none"
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
    if not isinstance(value, list | tuple):
        return value
    if not all(isinstance(name, str) for name in value) or len(set(value)) < len(value):
        raise ValueError(f"found {shown(value)}; must be a list of fields, each once, or an object: field to type")
    return dict.fromkeys(value, "string")


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
    position_ids_mode: Literal["none", "doc_reset", "continuous"] | None = None
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
