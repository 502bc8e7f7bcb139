"""TRL's DPOTrainer over our rows: its collator reads them, and no text is prepared a second time."""

from pathlib import Path

import datasets
import pytest

import beam_prep as bp
from tests.conftest import ROOT

trl = pytest.importorskip("trl")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Path:
    config = bp.PipelineConfig.from_json(ROOT / "configs" / "dpo_conversation.json").canonical()
    given = {
        "input": {"sources": config["input"]["sources"], "implicit_prompt": True},
        "preprocessing": {"max_items": 12},
        "output": {"preset": "trl_dpo"},
    }
    for source in given["input"]["sources"].values():
        source.pop("mask_key")
    folder = tmp_path_factory.mktemp("dpo") / "out"
    source = str(ROOT / "examples/data/preference.jsonl")
    bp.Pipeline(bp.PipelineConfig.from_dict(given), [source], folder, tokenizer_path).run(["--runner=FnApiRunner"])
    return folder


def test_the_collator_gives_prompts_and_completions(output: Path) -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    rows = datasets.load_from_disk(str(output))["__default__"]
    batch = DataCollatorForPreference(pad_token_id=0)([rows[0], rows[1]])
    for place, side in enumerate(("chosen", "rejected")):
        for number in range(2):
            row = rows[number]
            at = 2 * place + number
            ids = row["prompt_ids"] + row[f"{side}_ids"]
            assert batch["input_ids"][at, : len(ids)].tolist() == ids
            completion = batch["completion_mask"][at].nonzero()[:, 0].tolist()
            assert completion == list(range(len(row["prompt_ids"]), len(ids)))
