"""`preprocessing`: what is dropped, cut, packed, padded and shifted."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from beam_prep.config.strict import Strict
from beam_prep.config.values import Text, Texts, Whole
from beam_prep.data.schema import Packing


class DeduplicateConfig(Strict):
    """Exact deduplication: of the records that are equal, the first one is kept."""

    by: Annotated[list[Text], Field(min_length=1)] | None = None
    """Fields of the record: records are equal if the values of all of these are. Null: the fields that the config
    reads, of each group its own."""
    normalize: Literal["none", "whitespace", "nfkc_casefold"] = "none"
    """What in texts makes no difference. `whitespace`: runs of white space count as one blank, those at the ends of a
    text not; `nfkc_casefold`: that, and neither case nor Unicode form counts."""


class DecontaminateConfig(Strict):
    """The evaluation data that no record may share an n-gram of words with."""

    against: Texts
    """The files of the evaluation data: paths and globs, from the folder of the run, or in a store."""
    field: Texts | None = None
    """The fields of its records that are looked for. Null: all texts."""
    fields: Texts | None = None
    """The fields of the input's records that are looked at. Null: those of all sections."""
    ngram: Whole = Field(default=13, ge=1)
    """Words of an n-gram."""
    mode: Literal["drop", "mark"] = "drop"
    """Records that share one are dropped (`contaminated`), or kept, counted and listed."""


class PreprocessingConfig(Strict):
    """Rules for dropping, cutting, packing, padding and shifting."""

    max_seq_len: Whole = Field(default=2048, gt=0)
    """The longest sequence, in tokens; in lists, the longest element."""
    min_chars: Whole = Field(default=50, ge=0)
    """Shorter text fields count as absent. Only where every section is plain text with action `train` (pretraining).
    Counts code points."""
    max_chars: Whole = Field(default=2_000_000, ge=1)
    """Longer text fields count as absent, too."""
    max_items: Whole | None = Field(default=None, gt=0)
    """Keep at most this many records, in input order; null means no limit. The lines after the last one are counted as
    `not_read`."""
    rows_without_loss: Literal["drop", "keep", "reject"] = "drop"
    """What is done with rows that have nothing to train on after cutting."""
    truncation_mode: Literal["keep_start", "keep_end", "drop", "error", "chunk"] = "keep_start"
    """What is done with longer ones: they are cut at their end or at their start, the record is dropped (`too_long`),
    the run fails, or they become [several rows](config.md#chunks). Counted: `truncated_rows`, `truncated_tokens`, and
    `truncated_eos` (rows that lost their final EOS)."""
    stride: Whole = Field(default=0, ge=0)
    """With `truncation_mode: "chunk"`: the tokens of the chunk before with which a chunk begins, as context; less than
    a chunk."""
    encode: Literal["separate", "joint"] = "separate"
    """`"joint"`: text sections are joined, then encoded; the leading `mask` sections are the prompt."""
    eos: Literal["never", "if_missing", "always"] = "never"
    """Add the EOS token's text after the last text section. With it, a blank text is a record. Not for templates."""
    bos: Literal["keep", "strip", "tokenizer"] = "keep"
    """For `template: "conversation"`: the BOS that the template writes is kept; stripped; or stripped, and the
    tokenizer adds its own special tokens."""
    control_tokens: Literal["keep", "escape", "reject"] = "keep"
    """Texts of [control tokens](config.md#control-tokens) in what people wrote, such as `<|im_end|>` typed by a user:
    they become the tokens (as in transformers); or an invisible character keeps them text; or the record is rejected
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
    """Consecutive rows of a shard that are packed together."""
    decontaminate: DecontaminateConfig | None = None
    """Evaluation data that no record may share an n-gram of words with: see [decontaminate.md](decontaminate.md)."""
    shift: bool = False
    """With `output.columns: "labels"`: label i is the token that follows input i. For trainers that do not shift labels
    themselves. The models of transformers do: leave it `false` for them."""

    deduplicate: DeduplicateConfig | None = None
    """Drop records that are equal to one before them (`duplicate`): see [compose.md](compose.md#deduplication). Null:
    keep all."""

    @property
    def chunks(self) -> bool:
        """True if longer sequences are cut into several rows."""
        return self.truncation_mode == "chunk"

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk, at most."""
        packed = self.max_packed_len if self.packing_strategy != "none" else None
        return min(self.max_seq_len, packed or self.max_seq_len)

    # On the field, not in `_problems`, so that it is reported together with an unknown key.
    @field_validator("max_chars")
    @classmethod
    def _not_below_min_chars(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min_chars", 0):
            raise ValueError(f"found {value}; must not be less than min_chars, which is {info.data['min_chars']}")
        return value
