"""`output`: what is written."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from beam_prep.config.presets import PresetName
from beam_prep.config.problems import Problem
from beam_prep.config.values import DType, Formats, Name, Strict, Text
from beam_prep.data.fim import Fim, FimMode
from beam_prep.data.metadata import FILE, OFFSET, MetadataType, metadata_column
from beam_prep.hints import shown


def _three(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) != 3:
        raise ValueError(f"found {len(value)} tokens; must be 3: those before prefix, middle and suffix")
    return tuple(value) if isinstance(value, list) else value


def _as_strings(value: object) -> object:
    """A list of fields, each once, as fields of strings."""
    if not isinstance(value, list | tuple):
        return value
    if not all(isinstance(name, str) for name in value) or len(set(value)) < len(value):
        raise ValueError(f"found {shown(value)}; must be a list of fields, each once, or an object: field to type")
    return dict.fromkeys(value, "string")


class FimConfig(Strict):
    """Fill in the middle: documents of plain text are cut into prefix, middle and suffix, and reordered."""

    rate: float = Field(ge=0, le=1, description="Share of the documents that are reordered, 0 to 1.")
    mode: FimMode | None = Field(
        default=None,
        description="psm: prefix, suffix, middle; spm: suffix, then prefix and middle together; spm_v1: suffix, "
        "prefix, middle; codestral: as spm, and no sentinel before prefix and middle but the prefix's; null: that of "
        "the tokenizer's models.",
    )
    seed: int = Field(default=0, ge=0, description="Another seed reorders others, and cuts at other places.")
    sentinels: Annotated[
        tuple[Text, ...] | None,
        BeforeValidator(_three),
    ] = Field(
        default=None,
        description="The tokens before prefix, middle and suffix; null: the known ones that the tokenizer has.",
    )

    def build(self) -> Fim:
        """The rule, as a function on texts."""
        named = None if self.sentinels is None else (self.sentinels[0], self.sentinels[1], self.sentinels[2])
        return Fim(self.rate, self.mode, self.seed, named)


Seed = Annotated[int, Field(ge=0, lt=1 << 64)]
SplitName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_NO_SPLITS = re.compile(r"all|reject|rejects|tokenizer|latest|con|prn|aux|nul|com[0-9]|lpt[0-9]")
"""All splits, for readers; no split, for `split_missing`; what an output has besides; and devices of Windows."""
Share = Annotated[float, Field(gt=0, le=1)]


class ShuffleConfig(Strict):
    """The order of the rows: a permutation of all of them, over all shards."""

    seed: Seed = Field(description="Another seed gives another order; blocks are not made again.")


class DomainMixConfig(Strict):
    """How much of a domain is written. One of tokens, share and epochs."""

    tokens: Annotated[float, Field(gt=0, le=1e18)] | None = Field(default=None, description="A budget of tokens.")
    share: Share | None = Field(default=None, description="Share of the tokens of the output.")
    epochs: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        default=None, description="How often each record is written; 0.5 is half of them, 1.5 half of them twice."
    )
    repeat: bool = Field(
        default=False, description="With tokens or share: records are repeated where there are too few of them."
    )

    def _problems(self) -> Iterator[Problem]:
        given = [name for name in ("tokens", "share", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"found {' and '.join(given) or 'none of them'}; give one of tokens, share and epochs"
        elif self.repeat and self.epochs is not None:
            yield ("repeat",), "found true beside epochs, which says already how often"


class OutputConfig(Strict):
    """The columns, formats and shards that are written."""

    preset: PresetName | None = Field(
        default=None,
        description="The settings of a trainer, where the config does not give them; what it would misread is refused.",
    )
    domain_key: Text | None = Field(default=None, description="Key of the record that names its domain (a folder).")
    storage_format: Formats = Field(default=("bin",), description="Format, or list of formats, of the shards.")
    max_tokens_per_shard: int = Field(
        default=100_000_000,
        gt=0,
        description="When the tokens of all domains since the last flush reach this, every domain that has rows gets a "
        "shard. A record is never split over shards.",
    )
    dtype: dict[str, DType] = Field(default={}, description="Column to dtype; others are int32, values float32.")
    columns: Literal["loss_mask", "labels", "prompt_completion"] = Field(
        default="loss_mask",
        description="labels: input_ids and labels (-100 where masked), for input.sections only. prompt_completion: "
        "chosen_ids, rejected_ids and prompt_ids, for the sources chosen and rejected.",
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
    keep_fields: Annotated[
        dict[Text, MetadataType],
        BeforeValidator(_as_strings),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True},
                    {"type": "object", "additionalProperties": {"enum": list(get_args(MetadataType))}},
                ]
            }
        ),
    ] = Field(
        default={},
        description="Fields of the record that are kept beside its tokens, as strings; or field to type: string, "
        "int32, int64, float32, float64, bool.",
    )
    provenance: bool = Field(
        default=False,
        description="Add where each row comes from: file, the number of the input, and offset, the byte at which its "
        "line begins; of Parquet and Arrow, the rows before it.",
    )
    fim: FimConfig | None = Field(
        default=None,
        description="Fill in the middle: reorders a part of the documents. For one section of text that is trained.",
    )

    shuffle: ShuffleConfig | None = Field(
        default=None, description="Shuffle the rows over all shards; null: they are in the order of the input."
    )
    splits: dict[SplitName, Share] | None = Field(
        default=None,
        description="Split to its share of the records, such as train, validation and test; shares add up to 1.",
    )
    split_key: Text | None = Field(
        default=None,
        description="Key of the record: records with the same value are in one split; null: the entire record.",
    )
    split_seed: Seed = Field(default=0, description="Another seed puts other records into each split.")
    split_missing: Text = Field(
        default="reject",
        description="Records without split_key: reject them, or the name of the split that takes them all.",
    )
    mix: dict[Text, DomainMixConfig] | None = Field(
        default=None,
        description="Domain to how much of it is written; others are written whole. Needs shuffle.",
    )

    def _problems(self) -> Iterator[Problem]:
        if self.splits is not None:
            total = sum((Fraction(str(share)) for share in self.splits.values()), Fraction(0))
            if abs(float(total - 1)) > 1e-9:
                yield ("splits",), f"found shares that add up to {float(total):g}; they must add up to 1"
        for name in filter(_NO_SPLITS.fullmatch, self.splits or ()):
            yield ("splits", name), "found a split with a name that is taken for something else: choose another"
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
        if self.mix is not None:
            shares = sum((Fraction(str(each.share or 0)) for each in self.mix.values()), Fraction(0))
            if shares > 1:
                yield ("mix",), f"found shares that add up to {float(shares):g}; at most 1"

    def metadata(self) -> dict[str, str]:
        """Column to dtype, of metadata beside the tokens."""
        columns = [metadata_column(name, kind) for name, kind in self.keep_fields.items()]
        return {column.name: column.dtype for column in (*columns, *((FILE, OFFSET) if self.provenance else ()))}

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats to write, each once, in a fixed order."""
        return self.storage_format
