"""`preprocessing`: what is dropped, cut, packed, padded and shifted."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from beam_prep.config.values import Strict, Text, Texts
from beam_prep.data.schema import Packing


class DeduplicateConfig(Strict):
    """Exact deduplication: of the records that are equal, the first one is kept."""

    by: Annotated[list[Text], Field(min_length=1)] | None = Field(
        default=None,
        description="Keys of the record: records are equal if the values of all of these are; null: the fields that "
        "the config reads, of each group its own.",
    )
    normalize: Literal["none", "whitespace", "nfkc_casefold"] = Field(
        default="none",
        description="whitespace: runs of white space count as one blank, those at the ends of a text not; "
        "nfkc_casefold: that, and neither case nor Unicode form counts.",
    )


class DecontaminateConfig(Strict):
    """The evaluation data that no record may share an n-gram of words with."""

    against: Texts = Field(description="The files of the evaluation data: paths and globs.")
    field: Texts | None = Field(
        default=None, description="The fields of their records that are looked for; null: all texts."
    )
    fields: Texts | None = Field(
        default=None, description="The fields of the input's records that are looked at; null: those of the sections."
    )
    ngram: int = Field(default=13, ge=1, description="Words of an n-gram.")
    mode: Literal["drop", "mark"] = Field(
        default="drop", description="drop the records that share one; or mark them: they are kept, counted and listed."
    )


class PreprocessingConfig(Strict):
    """Rules for dropping, cutting, packing, padding and shifting."""

    max_seq_len: int = Field(default=2048, gt=0, description="Longest sequence in tokens; longer ones are cut.")
    min_chars: int = Field(default=50, ge=0, description="Shorter all-trained text fields are left out (code points).")
    max_chars: int = Field(default=2_000_000, ge=1, description="Longer all-trained text fields are left out.")
    max_items: int | None = Field(default=None, gt=0, description="Most records to keep; null means no limit.")
    rows_without_loss: Literal["drop", "keep", "reject"] = Field(
        default="drop", description="What is done with rows that have nothing to train on."
    )
    truncation_mode: Literal["keep_start", "keep_end", "drop", "error", "chunk"] = Field(
        default="keep_start",
        description="Sequences longer than max_seq_len: keep their start or end, drop the record, fail the run; or "
        "chunk: cut them into several rows, so that nothing is lost.",
    )
    stride: int = Field(
        default=0,
        ge=0,
        description="With chunk: the tokens of the chunk before with which a chunk begins, as context. Where there is "
        "a mask or labels, they are not trained a second time.",
    )
    encode: Literal["separate", "joint"] = Field(
        default="separate", description="joint: text sections are joined, then encoded; the masked ones are the prompt."
    )
    eos: Literal["never", "if_missing", "always"] = Field(
        default="never", description="Add the EOS token's text after text records; with it a blank text is a record."
    )
    bos: Literal["keep", "strip", "tokenizer"] = Field(
        default="keep",
        description="A conversation's leading BOS: keep; strip; tokenizer: strip, and let the tokenizer add its own.",
    )
    control_tokens: Literal["keep", "escape", "reject"] = Field(
        default="keep",
        description="Texts of control tokens in what people wrote: keep (as the tokens), escape, or reject the record.",
    )
    padding: Literal["none", "max_length"] | Annotated[int, Field(gt=0)] = Field(
        default="none", description="max_length: every row padded to max_seq_len; a number: to a multiple of it."
    )
    packing_strategy: Packing = Field(
        default="none",
        description="Put several documents into a row. bfd: best fit decreasing, longer ones are cut; bfd_split: cut "
        "into pieces; wrapped: joined and cut anywhere; simple: one document a row.",
    )
    max_packed_len: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="Tokens of a packed row; null means max_seq_len."
    )
    packing_group: int = Field(default=5000, gt=0, description="Consecutive rows of a shard that are packed together.")
    decontaminate: DecontaminateConfig | None = Field(
        default=None,
        description="Evaluation data: records that share an n-gram of words with it are dropped or marked.",
    )
    shift: bool = Field(default=False, description="Shift the labels by one, which transformers' models do themselves.")

    deduplicate: DeduplicateConfig | None = Field(
        default=None, description="Drop records that are equal to one before them (duplicate); null: keep all."
    )

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
