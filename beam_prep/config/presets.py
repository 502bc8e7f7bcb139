"""Presets: the settings that a trainer needs, under one name.

A preset fills in fields that a config leaves out. Values that the trainer would misread in silence are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PresetName = Literal[
    "trl_sft", "trl_dpo", "trl_kto", "transformers", "maxtext", "megatron", "olmo", "torchtune", "astrai"
]


@dataclass(frozen=True, slots=True)
class Preset:
    """The settings for a trainer.

    Attributes:
        reads: which code of the trainer reads the output, and how.
        settings: `part.field` -> default value.
        only: `part.field` -> (values, why): the only values that the trainer reads correctly; the first is the default.
        names: column -> the name that the trainer expects.
        reads_masks: False if the trainer trains every token.
        pairs: the trainer reads the sources chosen and rejected, not input.sections.
    """

    reads: str
    settings: Mapping[str, Any]
    only: Mapping[str, tuple[tuple[Any, ...], str]]
    names: Mapping[str, str] = field(default_factory=dict)
    reads_masks: bool = True
    pairs: bool = False


_ARROW = {"output.storage_format": "arrow"}
_SHIFTS = {"preprocessing.shift": ((False,), "it shifts labels by itself")}
_LABELS = {"output.columns": (("labels",), "it reads labels, and ignores a mask"), **_SHIFTS}
_MASK = {"output.columns": (("loss_mask",), "it reads a mask, and no labels")}
_UNPACKED = {
    "preprocessing.packing_strategy": (("none",), "it joins rows by itself"),
    "preprocessing.padding": (("none",), "it has no use for padding, and would train it"),
}

PRESETS: dict[str, Preset] = {
    "trl_sft": Preset(
        "TRL's SFTTrainer: datasets.load_from_disk, max_length=None; packed rows with padding_free=True",
        settings=_ARROW,
        only=_LABELS,
        names={"seq_lens": "seq_lengths"},
    ),
    "trl_dpo": Preset(
        "TRL's preference collator, by the DPOTrainer of docs/training.md: datasets.load_from_disk",
        settings=_ARROW,
        only={
            "output.columns": (("prompt_completion",), "its collator looks for prompt_ids, chosen_ids, rejected_ids")
        },
        pairs=True,
    ),
    "trl_kto": Preset(
        "TRL's unpaired preference collator, with the columns of docs/training.md: datasets.load_from_disk",
        settings={**_ARROW, "output.keep_fields": {"label": "bool"}},
        only={**_LABELS, "preprocessing.packing_strategy": (("none",), "each answer has a label of its own")},
    ),
    "transformers": Preset(
        "transformers' Trainer, or a loop of your own: datasets.load_from_disk, or bp.open and bp.collate",
        settings=_ARROW,
        only=_LABELS,
    ),
    "maxtext": Preset(
        "MaxText's grain pipeline: grain_file_type arrayrecord, tokenize_train_data false (docs/formats.md)",
        settings={"preprocessing.eos": "if_missing"},
        only={
            "output.storage_format": (
                ("array_record", "tfrecord", "parquet"),
                "it opens these, as grain_file_type says",
            ),
            "output.columns": (("loss_mask",), "it makes its own targets"),
            **_UNPACKED,
        },
        reads_masks=False,
    ),
    "megatron": Preset(
        "Megatron-LM's GPTDataset by --data-path; the mask by MaskedGPTDataset (docs/formats.md)",
        settings={},
        only={
            "output.storage_format": (("megatron",), "it opens pairs of .bin and .idx"),
            **_MASK,
            **_SHIFTS,
            **_UNPACKED,
        },
    ),
    "olmo": Preset(
        "OLMo-core's NumpyFSLDatasetConfig and its packed data sets, with dtype=NumpyDatasetDType.uint32",
        settings={"output.dtype": {"sequence": "uint32", "loss_mask": "bool"}, "preprocessing.eos": "if_missing"},
        only={"output.storage_format": (("npy",), "it opens flat token files"), **_MASK, **_UNPACKED},
    ),
    "torchtune": Preset(
        "torchtune's collate functions: datasets.load_from_disk gives tokens and labels, which the recipe shifts",
        settings=_ARROW,
        only=_LABELS,
        names={"input_ids": "tokens", "position_ids": "input_pos"},
    ),
    "astrai": Preset(
        "AstrAI's MmapStore and H5Store; the August version's SFT data set wants position_ids",
        settings={"output.storage_format": "bin"},
        only={**_MASK, **_SHIFTS},
    ),
}


def with_preset(config: Any) -> Any:
    """The config as JSON, with the settings of its preset where it says nothing.

    JSON that is no config is returned unchanged; later checks find its problems.
    """
    found: dict[str, Any] = config if isinstance(config, dict) else {}
    parts = [found.get(part, {}) for part in ("input", "preprocessing", "output")]
    if not all(isinstance(part, dict) for part in parts) or parts[2].get("preset") not in [*PRESETS]:
        return config
    preset, groups = PRESETS[parts[2]["preset"]], parts[0].get("groups")
    groups = groups if isinstance(groups, list) and groups else [parts[0]]
    made = {**config, "preprocessing": dict(parts[1]), "output": dict(parts[2])}
    first = {place: values[0] for place, (values, _) in preset.only.items()}
    for place, value in {**first, **preset.settings}.items():
        part, key = place.split(".")
        if key == "eos" and all(map(_has_template, groups)):
            continue  # a chat template ends its texts itself
        if key == "keep_fields" and isinstance(names := made[part].get(key), list):
            made[part][key] = {name: "string" for name in names if isinstance(name, str)}  # a list means strings
        if isinstance(value, dict) and isinstance(made[part].get(key, {}), dict):
            value = {**value, **made[part].pop(key, {})}
        made[part].setdefault(key, value)
    return made


def _has_template(group: Any) -> bool:
    sections = group.get("sections") if isinstance(group, dict) else None
    return isinstance(sections, list) and any(isinstance(each, dict) and each.get("template") for each in sections)
