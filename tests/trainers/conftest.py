"""What the tests on trainers share: outputs, and a tiny model with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT, config_of

Outputs = Callable[..., Path]


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Outputs:
    """Makes an output of a config in configs/ over some of its records, to `arrow` or as `output` says; each once."""
    made: dict[str, Path] = {}

    def _outputs(
        name: str, data: str = "chat", items: int = 24, names: Any = None, output: Any = None, **preprocessing: Any
    ) -> Path:
        named = {} if names is None else {"names": names}
        written = {"storage_format": "arrow", **named, **(output or {})}
        config = config_of(name, preprocessing={**preprocessing, "max_items": items}, output=written)
        key = json.dumps([config, data])
        if key not in made:
            made[key] = tmp_path_factory.mktemp(name) / "out"
            source = str(ROOT / "examples" / "data" / f"{data}.jsonl")
            job = Pipeline(PipelineConfig.from_dict(config), [source], made[key], tokenizer_path)
            job.run(["--runner=FnApiRunner"])
        return made[key]

    return _outputs


@pytest.fixture(scope="session")
def packed(outputs: Outputs) -> Outputs:
    """`configs/sft_packed.json`: documents of up to 120 tokens in rows of 400."""
    return lambda **changes: outputs("sft_packed", **{"max_seq_len": 120, "max_packed_len": 400, **changes})
