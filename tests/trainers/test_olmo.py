"""`npy`, read by OLMo-core's own data sets."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("olmo_core", reason="no OLMo-core here: make test-trainers")

from olmo_core.data import (
    NumpyDatasetDType,
    NumpyFSLDatasetConfig,
    NumpyPackedFSLDatasetConfig,
    TokenizerConfig,
)
from olmo_core.data.utils import get_labels

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT

LENGTH = 64


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Path:
    config = json.loads((ROOT / "configs" / "sft_chat.json").read_text())
    config["preprocessing"] = {**config.get("preprocessing", {}), "max_items": 40}
    config["output"] = {"storage_format": "npy", "max_tokens_per_shard": 1500}
    made = tmp_path_factory.mktemp("olmo") / "out"
    source = str(ROOT / "examples" / "data" / "chat.jsonl")
    Pipeline(PipelineConfig.from_dict(config), [source], made, tokenizer_path).run(["--runner=FnApiRunner"])
    return made


def shards(output: Path) -> list[list[dict[str, Any]]]:
    """The rows of each shard."""
    ds = bp.open(output)
    borders = np.cumsum([0, *(shard["rows"] for shard in ds.manifest["shards"])])
    return [list(ds[a:b]) for a, b in pairwise(borders.tolist())]


def settings(output: Path, folder: Path) -> dict[str, Any]:
    tokenizer = bp.open(output).tokenizer
    assert tokenizer is not None
    eos = tokenizer.id_of("eos_token")
    assert eos is not None
    return {
        "paths": [str(output / "__default__" / "sequence" / "*.npy")],
        "label_mask_paths": [str(output / "__default__" / "loss_mask" / "*.npy")],
        "expand_glob": True,
        "sequence_length": LENGTH,
        "tokenizer": TokenizerConfig(vocab_size=60_000, eos_token_id=eos, pad_token_id=eos),
        "dtype": NumpyDatasetDType.uint32,
        "work_dir": str(folder),
    }


def test_instances_of_a_fixed_length_are_the_rows_one_after_the_other(output: Path, tmp_path: Path) -> None:
    dataset = NumpyFSLDatasetConfig(**settings(output, tmp_path)).build()
    dataset.prepare()
    ids: list[Any] = []
    masks: list[Any] = []
    for rows in shards(output):
        for name, parts in (("sequence", ids), ("loss_mask", masks)):
            flat = np.concatenate([row[name] for row in rows])
            parts += [flat[at : at + LENGTH] for at in range(0, len(flat) - LENGTH + 1, LENGTH)]
    assert len(dataset) == len(ids) > 20
    for found, row, mask in zip(dataset, ids, masks, strict=True):
        assert found["input_ids"].tolist() == row.tolist()
        assert found["label_mask"].tolist() == mask.astype(bool).tolist()
        # The loss is taken exactly on the tokens of the mask.
        labels = get_labels({name: found[name][None] for name in ("input_ids", "label_mask")})[0]
        wanted = np.where(mask, row, -100)
        assert labels.tolist() == [*wanted[1:].tolist(), -100]


def test_packed_instances_keep_ids_and_masks_together(output: Path, tmp_path: Path) -> None:
    """Its documents of local files end with EOS, wherever rows end; what is after a file's last EOS is not read."""
    given = settings(output, tmp_path)
    dataset = NumpyPackedFSLDatasetConfig(**given).build()
    dataset.prepare()
    wanted: Counter[int] = Counter()
    for rows in shards(output):
        ids, mask = (np.concatenate([row[name] for row in rows]) for name in ("sequence", "loss_mask"))
        for start, stop in pairwise([0, *(np.flatnonzero(ids == given["tokenizer"].eos_token_id) + 1).tolist()]):
            document = slice(start, min(stop, start + LENGTH))
            wanted.update(ids[document][mask[document] == 1].tolist())
    found = Counter(token for each in dataset for token in each["input_ids"][each["label_mask"]].tolist())
    assert found == wanted
    assert wanted.total() > 100
