"""A tiny model, the tokenizer, and the rows of an output as `datasets` gives them."""

from pathlib import Path

import datasets
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tests.conftest import ROOT

torch.set_num_threads(1)  # models of this size are slower with more

CLOSE = 1e-4
"""Rounding changes logits by less: they go up to about 15."""

FAR = 1.0
"""Other documents in sight change logits by more."""


def tokenizer() -> PreTrainedTokenizerBase:
    """Ours for examples; each caller has its own, as trainers change it."""
    return AutoTokenizer.from_pretrained(ROOT / "examples" / "tokenizer")


def tiny() -> PreTrainedModel:
    """A Llama of two layers, always the same; weights large enough for logits that depend on all that is seen."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config)


def rows_of(output: Path) -> datasets.Dataset:
    """The rows of an output's only domain."""
    return datasets.load_from_disk(str(output))["__default__"]
