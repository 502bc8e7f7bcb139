"""`output`: what is written."""

from typing import Literal

from pydantic import Field

from beam_prep.config.values import DType, Formats, Name, Strict, Text


class OutputConfig(Strict):
    """The columns, formats and shards that are written."""

    domain_key: Text | None = Field(default=None, description="Key of the record that names its domain (a folder).")
    storage_format: Formats = Field(default=("bin",), description="Format, or list of formats, of the shards.")
    max_tokens_per_shard: int = Field(
        default=100_000_000,
        gt=0,
        description="When the tokens of all domains since the last flush reach this, every domain that has rows gets a "
        "shard. A record is never split over shards.",
    )
    dtype: dict[str, DType] = Field(default={}, description="Column to dtype; others are int32, values float32.")
    columns: Literal["loss_mask", "labels"] = Field(
        default="loss_mask", description="labels: input_ids and labels (-100 where masked), for input.sections only."
    )
    loss_weights: bool = Field(
        default=False,
        description="Add a float32 column loss_weights: the weight of each token, from `weight` of record and message; "
        "0 where nothing is trained. For input.sections only.",
    )
    position_ids_mode: Literal["none", "doc_reset", "continuous"] | None = Field(
        default=None,
        description="position_ids: from 0 in every document, or through the row; null: doc_reset with packing.",
    )
    names: dict[str, Name] = Field(
        default={},
        description="Column to the name under which it is written; all other keys use the column's own name.",
    )

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats to write, each once, in a fixed order."""
        return self.storage_format
