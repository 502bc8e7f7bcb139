"""`npy`, read by OLMo-core's own data sets."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("olmo_core", reason="no OLMo-core here: make test-trainers")

from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.utils import get_labels

import beam_prep as bp
from tests.trainers.conftest import Outputs

LENGTH = 64


@pytest.fixture(scope="module")
def output(outputs: Outputs) -> Path:
    return outputs("sft_chat", items=40, output={"storage_format": "npy", "max_tokens_per_shard": 1500})


def shards(output: Path) -> list[list[dict[str, Any]]]:
    """The rows of each shard."""
    ds = bp.open(output)
    borders = np.cumsum([0, *(shard["rows"] for shard in ds.manifest["shards"])])
    return [list(ds[a:b]) for a, b in pairwise(borders.tolist())]


def test_instances_of_a_fixed_length_are_the_rows_one_after_the_other(output: Path, tmp_path: Path) -> None:
    tokenizer = bp.open(output).tokenizer
    assert tokenizer is not None
    eos = tokenizer.id_of("eos_token")
    assert eos is not None
    dataset = NumpyFSLDatasetConfig(
        paths=[str(output / "__default__" / "sequence" / "*.npy")],
        label_mask_paths=[str(output / "__default__" / "loss_mask" / "*.npy")],
        expand_glob=True,
        sequence_length=LENGTH,
        tokenizer=TokenizerConfig(vocab_size=60_000, eos_token_id=eos, pad_token_id=eos),
        dtype=NumpyDatasetDType.uint32,
        work_dir=str(tmp_path),
    ).build()
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
