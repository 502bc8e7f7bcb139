"""`preprocessing`: what is dropped, cut, packed, padded and shifted."""

from typing import Annotated, Literal

from pydantic import Field

from beam_prep.config.strict import Strict, Text, Texts, Whole
from beam_prep.data.schema import Packing


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
    templates."""
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
