"""TRL's DPOTrainer over our rows: its collator reads them, and no text is prepared a second time."""

import copy
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

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


def test_a_trainer_that_skips_the_preparation_trains_our_rows(output: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer

    class PreparedDPOTrainer(DPOTrainer):
        """Takes rows that have their ids already."""

        def _prepare_dataset(self, dataset: Any, *args: Any) -> Any:
            return dataset

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(output / "tokenizer"))
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    settings = DPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        max_steps=12,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    rows = datasets.load_from_disk(str(output))["__default__"]
    reference = copy.deepcopy(model)  # TRL would load it by its name
    trainer = PreparedDPOTrainer(model, reference, args=settings, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(0.6931, abs=0.01)  # both models are the same: log 2
    assert losses[-1] < 0.5
