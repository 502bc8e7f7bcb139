"""Which models keep the documents of a packed row apart: tiny ones with random weights, against docs/training.md."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")
pytest.importorskip("trl", reason="no TRL here: make test-trainers")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # noqa: E402

from tests.conftest import ROOT  # noqa: E402
from tests.trainers import documents as alone  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LINEAR = {f"linear_{name}": size for name, size in {"num_value_heads": 4, "num_key_heads": 2}.items()} | {
    f"linear_{name}_head_dim": 8 for name in ("key", "value")
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 20},
    "gemma2": {"sliding_window": 20},
    "gemma3_text": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {"num_key_value_heads": 4},
    "olmo2": {},
    "phi3": {"pad_token_id": 0},
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "state_size": 16, "n_groups": 1, "chunk_size": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 64},
    "qwen3_5_text": {"num_hidden_layers": 4, **LINEAR},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 16},
}
LENGTHS = [10, 30, 1, 20]


def told() -> dict[str, str]:
    """Model type -> what the page says that it does."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (apart|together|refused)\b[^|]*\| (.*?) \|", page, re.MULTILINE)
    return {name: kind for kind, names in rows for name in re.findall(r"`(\w+)`", names)}


def found(name: str) -> str:
    """`apart`, `together`, or `refused` by an error that says why."""
    torch.manual_seed(0)
    ids = torch.randint(1, SIZES["vocab_size"], (sum(LENGTHS),))
    row = {"input_ids": ids.tolist(), "labels": ids.tolist(), "seq_lengths": LENGTHS}
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True).torch_call([row])
    kinds = {_kind(model, row, batch) for model in _models(name)}
    (kind,) = kinds
    return kind


def _models(name: str) -> Iterator[Any]:
    """With each attention that it has and that runs here."""
    for attention in ("eager", "sdpa"):
        config = AutoConfig.for_model(name, **{**SIZES, **MODELS[name]})
        try:
            yield AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
        except ValueError as error:
            if attention == "eager" or "does not support an attention implementation" not in str(error):
                raise


@torch.no_grad()
def _kind(model: Any, row: Any, batch: Any) -> str:
    try:
        logits = model(**alone.without_labels(batch), use_cache=False).logits[0]
    except ValueError as error:
        if "can't keep packed sequences apart" not in str(error):
            raise
        return "refused"
    difference = alone.farthest(logits, alone.logits_alone(model, [row]))
    assert difference < alone.CLOSE or difference > alone.FAR
    return "apart" if difference < alone.CLOSE else "together"


def test_the_page_has_every_model() -> None:
    assert told().keys() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_documents_are_kept_apart_or_not_as_the_page_says(name: str) -> None:
    assert found(name) == told()[name]
