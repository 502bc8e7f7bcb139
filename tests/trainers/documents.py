"""Documents of packed rows, each alone through a model: what a packed row has to give."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import datasets
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tests.conftest import ROOT

torch.set_num_threads(1)  # models of this size are slower with more

Row = Mapping[str, Sequence[int]]

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


def lengths(row: Row) -> list[int]:
    """Of the documents in a row; an unpacked row is one document."""
    return list(row.get("seq_lengths", row.get("seq_lens", [len(row["input_ids"])])))


def logits_alone(model: PreTrainedModel, rows: Iterable[Row]) -> torch.Tensor:
    """Of each document alone, one after the other: [tokens, vocabulary]."""
    documents = [part for row in rows for part in torch.tensor(row["input_ids"]).split(lengths(row))]
    return torch.cat([model(input_ids=ids[None], use_cache=False).logits[0] for ids in documents])


def loss_alone(model: PreTrainedModel, rows: Iterable[Row]) -> tuple[torch.Tensor, int]:
    """The sum of the loss over each document alone, counted by hand, and the number of tokens in it."""
    total, count = torch.zeros(()), 0
    for row in rows:
        documents = torch.tensor(row["labels"]).split(lengths(row))
        for logits, labels in zip(logits_alone(model, [row]).split(lengths(row)), documents, strict=True):
            total = total + cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")
            count += int((labels[1:] != -100).sum())
    return total, count


def farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference between two tensors of one shape."""
    assert one.shape == other.shape
    return float((one - other).abs().max().detach())
