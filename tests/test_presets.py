"""Presets: the same config as one that is spelled out, and errors where a trainer would misread an output."""

import json
from pathlib import Path
from typing import Any, get_args

import datasets
import numpy as np
import pytest

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.config.presets import PRESETS, PresetName
from beam_prep.errors import ConfigError
from tests.conftest import ROOT

CHAT = {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]}
TEXT = {"sections": [{"field": "text", "action": "train"}]}


def config(preset: str | None, given: Any = CHAT, preprocessing: Any = None, **output: Any) -> dict[str, Any]:
    named = {} if preset is None else {"preset": preset}
    return {
        "input": given,
        "mask": {"assistant": "train"},
        "preprocessing": preprocessing or {},
        "output": {**named, **output},
    }


def canonical(obj: dict[str, Any]) -> dict[str, Any]:
    return bp.PipelineConfig.from_dict(obj).canonical()


PACKED = {"packing_strategy": "bfd"}
DTYPES = {"sequence": "uint32", "loss_mask": "bool"}


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (config("trl_sft"), config(None, storage_format="arrow", columns="labels")),
        (
            config("trl_sft", preprocessing=PACKED),
            config(
                None,
                preprocessing=PACKED,
                storage_format="arrow",
                columns="labels",
                names={"seq_lens": "seq_lengths"},
            ),
        ),
        (
            config("trl_sft", storage_format="parquet", dtype={"labels": "int64"}),
            config(None, storage_format="parquet", columns="labels", dtype={"labels": "int64"}),
        ),
        (config("transformers"), config(None, storage_format="arrow", columns="labels")),
        (
            config("trl_kto"),
            config(None, storage_format="arrow", columns="labels", keep_fields={"label": "bool"}),
        ),
        (
            config("trl_kto", keep_fields=["id"]),
            config(None, storage_format="arrow", columns="labels", keep_fields={"label": "bool", "id": "string"}),
        ),
        (
            config("trl_kto", keep_fields={"id": "int64"}),
            config(None, storage_format="arrow", columns="labels", keep_fields={"label": "bool", "id": "int64"}),
        ),
        (
            config("maxtext", TEXT),
            config(None, TEXT, {"eos": "if_missing"}, storage_format="array_record"),
        ),
        (config("megatron"), config(None, storage_format="megatron")),
        (config("olmo"), config(None, storage_format="npy", dtype=DTYPES)),
        (
            config("olmo", TEXT, dtype={"sequence": "uint16"}),
            config(
                *(None, TEXT, {"eos": "if_missing"}),
                storage_format="npy",
                dtype={"sequence": "uint16", "loss_mask": "bool"},
            ),
        ),
        (
            config("torchtune", preprocessing=PACKED, names={"seq_lens": "lens"}),
            config(
                *(None, CHAT, PACKED),
                storage_format="arrow",
                columns="labels",
                names={"input_ids": "tokens", "position_ids": "input_pos", "seq_lens": "lens"},
            ),
        ),
        (config("astrai", position_ids_mode="doc_reset"), config(None, position_ids_mode="doc_reset")),
    ],
)
def test_a_preset_is_the_config_that_spells_it_out(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert canonical(short) == canonical(long)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config("trl_sft", preprocessing={"shift": True}), "preprocessing.shift: found true, wanted false"),
        (config("transformers", columns="loss_mask"), "output.columns: found 'loss_mask', wanted 'labels'"),
        (config("megatron", preprocessing=PACKED), "preprocessing.packing_strategy: found 'bfd', wanted 'none'"),
        (config("trl_kto", preprocessing=PACKED), "preprocessing.packing_strategy: found 'bfd', wanted 'none'"),
        (config("olmo", storage_format=["bin"]), "output.storage_format: found ['bin'], wanted 'npy'"),
        (config("olmo", preprocessing={"padding": 64}), "preprocessing.padding: found 64, wanted 'none'"),
        (config("maxtext"), "input.sections: found sections that are not trained in full"),
        (config("maxtext", TEXT, storage_format="bin"), "output.storage_format: found 'bin', wanted 'array_record' or"),
        (config("torch"), "output.preset: found 'torch'; did you mean 'torchtune'?"),
        (config("trl_sft", {"sources": {"a": {"sections": TEXT["sections"]}}}), "output.preset: found 'trl_sft'"),
    ],
)
def test_what_a_trainer_would_misread_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bp.PipelineConfig.from_dict(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("part", ["input", "output", "preprocessing"])
@pytest.mark.parametrize("wrong", [3, [], None, "text"])
def test_a_config_that_is_none_is_told_so(part: str, wrong: Any) -> None:
    with pytest.raises(ConfigError):
        bp.PipelineConfig.from_dict({**config("trl_sft"), part: wrong} if part != "output" else {"output": wrong})


def test_several_formats_may_be_written_beside_that_of_the_trainer() -> None:
    assert canonical(config("megatron", storage_format=["bin", "megatron"]))["output"]["storage_format"] == [
        "bin",
        "megatron",
    ]


def test_the_manifest_does_not_tell_how_the_config_was_written(tmp_path: Path) -> None:
    made = []
    for number, given in enumerate((config("trl_sft"), config(None, storage_format="arrow", columns="labels"))):
        job = bp.Pipeline(
            bp.PipelineConfig.from_dict(given),
            [str(ROOT / "examples/data/chat.jsonl")],
            tmp_path / str(number),
            ROOT / "examples/tokenizer",
        )
        job.run(["--runner=FnApiRunner"])
        made.append((tmp_path / str(number) / "manifest.json").read_bytes())
    assert made[0] == made[1]
    rows = datasets.load_from_disk(str(tmp_path / "0"))["__default__"]
    assert rows.column_names == ["input_ids", "labels"]
    labels = np.array(rows[0]["labels"])
    assert (labels[labels != -100] == np.array(rows[0]["input_ids"])[labels != -100]).all()


def test_presets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{name}\n" in f"\n{told}" for name in get_args(PresetName))
    assert PRESETS.keys() == set(get_args(PresetName))
    assert "output.names: seq_lens -> seq_lengths" in told
    assert json.dumps("megatron") in told
