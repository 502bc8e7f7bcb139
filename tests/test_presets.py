"""Presets: the same config as one that is spelled out, and errors where a trainer would misread an output."""

import json
from typing import Any, get_args

import pytest

import beam_prep as bp
from beam_prep.config.presets import PRESETS, PresetName
from beam_prep.errors import ConfigError
from tests.conftest import Command, chat_config, text_config

CHAT, TEXT = chat_config()["input"], text_config()["input"]


def config(preset: str | None, given: Any = CHAT, preprocessing: Any = None, **output: Any) -> dict[str, Any]:
    named = {} if preset is None else {"preset": preset}
    return chat_config() | {"input": given, "preprocessing": preprocessing or {}, "output": {**named, **output}}


def canonical(obj: dict[str, Any]) -> dict[str, Any]:
    return bp.PipelineConfig.from_dict(obj).canonical()


PACKED = {"packing_strategy": "bfd"}


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (config("trl_sft"), config(None, storage_format="arrow", columns="labels")),
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
    ],
)
def test_a_preset_is_the_config_that_spells_it_out(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert canonical(short) == canonical(long)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config("trl_sft", preprocessing={"shift": True}), "preprocessing.shift: found true, wanted false"),
        (config("megatron", preprocessing=PACKED), "preprocessing.packing_strategy: found 'bfd', wanted 'none'"),
        (config("olmo", storage_format=["bin", "tfrecord"]), "output.storage_format: found ['bin', 'tfrecord'], "),
        (config("maxtext"), "input.sections: found sections that are not trained in full"),
        (config("torch"), "output.preset: found 'torch'; did you mean 'torchtune'?"),
        (config("trl_sft", {"sources": {"a": {"sections": TEXT["sections"]}}}), "output.preset: found 'trl_sft'"),
    ],
)
def test_what_a_trainer_would_misread_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bp.PipelineConfig.from_dict(given)
    assert message in str(caught.value)


def test_presets_are_printed(command: Command) -> None:
    told = command("presets")
    assert all(f"\n{name}\n" in f"\n{told}" for name in get_args(PresetName))
    assert PRESETS.keys() == set(get_args(PresetName))
    assert "output.names: seq_lens -> seq_lengths" in told
    assert json.dumps("megatron") in told
