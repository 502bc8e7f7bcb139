"""Presets: the settings that a trainer wants, under one name.

A preset fills in fields that a config leaves out. A field that the config gives, and that the trainer would misread in
silence, is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from beam_prep.config.strict import Problem
from beam_prep.hints import shown

PresetName = Literal[
    "trl_sft", "trl_dpo", "trl_kto", "transformers", "maxtext", "megatron", "olmo", "torchtune", "astrai"
]


@dataclass(frozen=True, slots=True)
class Preset:
    """The settings for a trainer.

    Attributes:
        reads: what reads the output, and how.
        settings: (part, field) -> value, where the config does not say otherwise.
        names: column -> the name that the trainer looks for.
        wanted: (part, field) -> (values, why): the only values that the trainer reads rightly.
        reads_masks: False if it trains every token.
        pairs: it reads the sources chosen and rejected, and not input.sections.
    """

    reads: str
    settings: Mapping[tuple[str, str], Any]
    names: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[tuple[str, str], tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    reads_masks: bool = True
    pairs: bool = False


_SHIFT = {("preprocessing", "shift"): ((False,), "it shifts labels by itself")}
_LABELS = {("output", "columns"): (("labels",), "it reads labels, and ignores a mask")}
_MASK = {("output", "columns"): (("loss_mask",), "it reads a mask, and no labels")}
_UNPACKED = {
    ("preprocessing", "packing_strategy"): (("none",), "it joins rows by itself"),
    ("preprocessing", "padding"): (("none",), "it has no use for padding, and would train it"),
}

PRESETS: dict[PresetName, Preset] = {
    "trl_sft": Preset(
        "TRL's SFTTrainer: datasets.load_from_disk, max_length=None; packed rows with padding_free=True",
        {("output", "storage_format"): "arrow", ("output", "columns"): "labels"},
        {"seq_lens": "seq_lengths"},
        {**_SHIFT, **_LABELS},
    ),
    "trl_dpo": Preset(
        "TRL's preference collator, by the DPOTrainer of docs/training.md: datasets.load_from_disk",
        {("output", "storage_format"): "arrow", ("output", "columns"): "prompt_completion"},
        {},
        {
            ("output", "columns"): (
                ("prompt_completion",),
                "its collator looks for prompt_ids, chosen_ids, rejected_ids",
            )
        },
        pairs=True,
    ),
    "trl_kto": Preset(
        "TRL's unpaired preference collator, with the columns of docs/training.md: datasets.load_from_disk",
        {
            ("output", "storage_format"): "arrow",
            ("output", "columns"): "labels",
            ("output", "keep_fields"): {"label": "bool"},
        },
        {},
        {
            **_SHIFT,
            **_LABELS,
            ("preprocessing", "packing_strategy"): (("none",), "each answer has a label of its own"),
        },
    ),
    "transformers": Preset(
        "transformers' Trainer, or a loop of your own: datasets.load_from_disk, or bp.open and bp.collate",
        {("output", "storage_format"): "arrow", ("output", "columns"): "labels"},
        {},
        {**_SHIFT, **_LABELS},
    ),
    "maxtext": Preset(
        "MaxText's grain pipeline: grain_file_type arrayrecord, tokenize_train_data false (docs/formats.md)",
        {
            ("output", "storage_format"): "array_record",
            ("output", "columns"): "loss_mask",
            ("preprocessing", "eos"): "if_missing",
        },
        {},
        {
            **_UNPACKED,
            ("output", "columns"): (("loss_mask",), "it makes its own targets"),
            ("output", "storage_format"): (
                ("array_record", "tfrecord", "parquet"),
                "it opens these, as grain_file_type says",
            ),
        },
        reads_masks=False,
    ),
    "megatron": Preset(
        "Megatron-LM's GPTDataset by --data-path; the mask by MaskedGPTDataset (docs/formats.md)",
        {("output", "storage_format"): "megatron", ("output", "columns"): "loss_mask"},
        {},
        {
            **_MASK,
            **_UNPACKED,
            **_SHIFT,
            ("output", "storage_format"): (("megatron",), "it opens pairs of .bin and .idx"),
        },
    ),
    "olmo": Preset(
        "OLMo-core's NumpyFSLDatasetConfig and its packed data sets, with dtype=NumpyDatasetDType.uint32",
        {
            ("output", "storage_format"): "npy",
            ("output", "columns"): "loss_mask",
            ("output", "dtype"): {"sequence": "uint32", "loss_mask": "bool"},
            ("preprocessing", "eos"): "if_missing",
        },
        {},
        {**_MASK, **_UNPACKED, ("output", "storage_format"): (("npy",), "it opens flat token files")},
    ),
    "torchtune": Preset(
        "torchtune's collate functions: datasets.load_from_disk gives tokens and labels, which the recipe shifts",
        {("output", "storage_format"): "arrow", ("output", "columns"): "labels"},
        {"input_ids": "tokens", "position_ids": "input_pos"},
        {**_SHIFT, **_LABELS},
    ),
    "astrai": Preset(
        "AstrAI's MmapStore and H5Store; the August version's SFT data set wants position_ids",
        {("output", "storage_format"): "bin", ("output", "columns"): "loss_mask"},
        {},
        {**_MASK, **_SHIFT},
    ),
}


def with_preset(config: Any) -> tuple[Any, list[Problem]]:
    """A config, as JSON, with the settings of its preset filled in; and what contradicts the preset.

    Anything that is no config is given back as it is: its problems are found later.
    """
    output = config.get("output") if isinstance(config, dict) else None
    name = output.get("preset") if isinstance(output, dict) else None
    if not isinstance(name, str) or name not in get_args(PresetName):
        return config, []
    preset = PRESETS[name]  # type: ignore[index]
    given, parts = config.get("input"), {part: config.get(part, {}) for part in ("preprocessing", "output")}
    if not isinstance(given, dict) or not all(isinstance(part, dict) for part in parts.values()):
        return config, []
    groups = given.get("groups") or [given]
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return config, []
    if not all(group.get("sources" if preset.pairs else "sections") for group in groups):
        wanted = "the sources chosen and rejected" if preset.pairs else "input.sections, whose rows are one sequence"
        return config, [(("output", "preset"), f"found {name!r}, which is for {wanted}")]
    problems = list(_problems(preset, name, parts))
    if not preset.reads_masks and not all(_trains_all(group["sections"]) for group in groups):
        text = f"found sections that are not trained in full; the preset {name!r} trains every token, prompts too"
        problems.append((("input", "groups" if groups[0] is not given else "sections"), text))
    made = {**config, **{part: dict(fields) for part, fields in parts.items()}}
    for (part, key), value in preset.settings.items():
        if key == "eos" and all(_has_template(group.get("sections")) for group in groups):
            continue  # which ends its own texts
        if key == "keep_fields" and isinstance(names := made[part].get(key), list):
            made[part][key] = {name: "string" for name in names if isinstance(name, str)}  # as a list says it
        if isinstance(value, dict) and isinstance(made[part].get(key, {}), dict):
            value = {**value, **made[part].pop(key, {})}
        made[part].setdefault(key, value)
    if isinstance(names := made["output"].get("names", {}), dict):
        added = {column: new for column, new in preset.names.items() if column in _written(made)}
        made["output"]["names"] = {**added, **names}
    return made, problems


def _has_template(sections: Any) -> bool:
    return isinstance(sections, list) and any(isinstance(each, dict) and each.get("template") for each in sections)


def _trains_all(sections: Any) -> bool:
    if _has_template(sections) or not isinstance(sections, list):
        return False
    return all(isinstance(each, dict) and each.get("action") == "train" for each in sections)


def _written(config: Mapping[str, Any]) -> set[str]:
    """Columns that a config may rename, and that it writes."""
    packed = config["preprocessing"].get("packing_strategy", "none") != "none"
    mode = config["output"].get("position_ids_mode")
    columns = {"seq_lens": packed, "position_ids": packed if mode is None else mode != "none"}
    columns["input_ids"] = config["output"].get("columns") == "labels"
    return {column for column, there in columns.items() if there}


def _problems(preset: Preset, name: str, parts: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for (part, key), (values, why) in preset.wanted.items():
        found = parts[part].get(key, values[0])
        formats = found if isinstance(found, list) and key == "storage_format" else [found]
        if not any(each in values for each in formats):
            wanted = " or ".join(map(shown, values))
            yield (part, key), f"found {shown(found)}, wanted {wanted} for the preset {name!r}: {why}"
