"""Writes what transformers, TRL and datasets make of the records, as ids, with the versions of these libraries.

    python=$(python -m tests.trainers.build)     # an environment of 6 GB, built if it is not there
    HF_HUB_OFFLINE=1 $python -m tests.material.make_expected

Nothing here imports beam_prep.
"""

import gzip
import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch
from jinja2 import TemplateError
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

DATA, EXPECTED, FOLDER = (Path(__file__).with_name(name) for name in ("data", "expected", "tokenizers"))
TOKENIZERS = ("byte_bpe", "llama_bpe", "unigram")
VERSIONS = ("transformers", "tokenizers", "trl", "datasets", "torch", "jinja2", "pyarrow")

Row = dict[str, Any]
Case = tuple[str, str, str, list[Row | None]]
"""Tokenizer, file of records, name of the run, rows."""

SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "assistant_only": {"assistant_only_loss": True},
    "cut_64": {"max_length": 64},
    "keep_end_64": {"max_length": 64, "truncation_mode": "keep_end"},
    "bfd_128": {"max_length": 128, "packing": True},
    "bfd_256": {"max_length": 256, "packing": True},
    "bfd_split_100": {"max_length": 100, "packing": True, "packing_strategy": "bfd_split"},
    "wrapped_256": {"max_length": 256, "packing": True, "packing_strategy": "wrapped"},
}
"""What SFTTrainer is told."""

SFT_RUNS: dict[str, dict[str, tuple[str, ...]]] = {
    "byte_bpe": {
        "chats": ("bfd_split_100",),
        "sharegpt": ("full",),
        "chat_pairs": ("assistant_only", "keep_end_64"),
        "pairs": ("bfd_256",),
        "texts": ("full",),
    },
    "llama_bpe": {"chats": ("wrapped_256",), "odd_chats": ("bfd_128",), "chat_pairs": ("cut_64",), "pairs": ("full",)},
    "unigram": {"chats": ("bfd_256",)},
}
DPO_RUNS: dict[str, tuple[str, ...]] = {
    "byte_bpe": ("chat_preferences", "implicit_preferences"),
    "llama_bpe": ("preferences", "implicit_chat_preferences"),
    "unigram": (),
}
"""Each of these is a job in the tests, of half a second: every form of records and every run once."""


def records(file: str) -> list[Row]:
    with (DATA / f"{file}.jsonl").open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def dataset(file: str) -> datasets.Dataset:
    rows = [{key: value for key, value in row.items() if key not in ("what", "language")} for row in records(file)]
    return datasets.Dataset.from_list(rows)


def conversations(name: str) -> Iterator[Case]:
    """Ids and assistant masks of transformers; None where the template refuses."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / name)
    for file in ("chats", "odd_chats", "tool_chats"):
        rows: list[Row | None] = []
        for record in records(file):
            try:
                made: Any = tokenizer.apply_chat_template(
                    record["messages"],
                    tools=record.get("tools"),
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                )
            except TemplateError:
                rows.append(None)
            else:
                rows.append({"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]})
        yield name, file, "assistant_masks", rows


def prompts(name: str) -> Iterator[Case]:
    """Ids of prompts, without a generation prompt, and of the responses to each."""
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER / name)
    rows: list[Row | None] = [
        {
            "prompts": tokenizer.apply_chat_template(record["prompt"], tokenize=True, return_dict=True)["input_ids"],
            "responses": tokenizer(record["responses"], add_special_tokens=False)["input_ids"],
        }
        for record in records("rollouts")
    ]
    yield name, "rollouts", "prompts", rows


def mapped(name: str) -> Iterator[Case]:
    """Ids of texts through `Dataset.map`; padded as well where there is a token to pad with, and no EOS to keep."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / name)
    texts = dataset("texts")
    made = texts.map(lambda batch: {"input_ids": tokenizer(batch["text"])["input_ids"]}, batched=True)
    yield name, "texts", "map", [{"input_ids": ids} for ids in made["input_ids"]]
    if name == "byte_bpe":
        padded = texts.map(
            lambda batch: dict(tokenizer(batch["text"], padding="max_length", truncation=True, max_length=64)),
            batched=True,
        )
        columns = ("input_ids", "attention_mask")
        yield name, "texts", "padded_64", [{key: row[key] for key in columns} for row in padded]


def model_config() -> LlamaConfig:
    made: Any = LlamaConfig  # its stubs do not know `num_labels`
    return made(
        vocab_size=4000, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=1
    )


def arguments(kind: Any, folder: str, **settings: Any) -> Any:
    return kind(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, **{"max_length": None, **settings}
    )


def fine_tuning(name: str, folder: str) -> Iterator[Case]:
    """Ids and labels of SFTTrainer. `labels` are left out where they equal the ids in all rows of a run."""
    for file, runs in SFT_RUNS[name].items():
        for run in runs:
            trainer = SFTTrainer(
                LlamaForCausalLM(model_config()),
                arguments(SFTConfig, folder, **SETTINGS[run]),
                train_dataset=dataset(file),
                processing_class=AutoTokenizer.from_pretrained(FOLDER / name),
            )
            made = trainer.train_dataset
            columns = [column for column in ("input_ids", "labels", "seq_lengths") if column in made.column_names]
            if made["labels"][:] == made["input_ids"][:]:
                columns.remove("labels")
            yield name, file, run, [{key: row[key] for key in columns} for row in made]


def preferences(name: str, folder: str) -> Iterator[Case]:
    """Ids of DPOTrainer."""
    for file in DPO_RUNS[name]:
        made = DPOTrainer(
            LlamaForCausalLM(model_config()),
            LlamaForCausalLM(model_config()),
            args=arguments(DPOConfig, folder),
            train_dataset=dataset(file),
            processing_class=AutoTokenizer.from_pretrained(FOLDER / name),
        ).train_dataset
        columns = ("prompt_ids", "chosen_ids", "rejected_ids")
        yield name, file, "dpo", [{key: row[key] for key in columns} for row in made]


def rewards(name: str, folder: str) -> Iterator[Case]:
    """Ids of RewardTrainer, which drops rows with a longer side."""
    made = RewardTrainer(
        LlamaForSequenceClassification(model_config()),
        arguments(RewardConfig, folder, max_length=128),
        train_dataset=dataset("chat_preferences"),
        processing_class=AutoTokenizer.from_pretrained(FOLDER / name),
    ).train_dataset
    columns = ("chosen_ids", "rejected_ids")
    yield name, "chat_preferences", "reward_128", [{key: row[key] for key in columns} for row in made]


def write(file: str, cases: Iterator[Case]) -> None:
    """One line for the versions, and one for each case."""
    lines: list[Row] = [{"versions": {name: importlib.metadata.version(name) for name in VERSIONS}}]
    for tokenizer, source, run, rows in cases:
        lines.append({"tokenizer": tokenizer, "file": source, "run": run, "rows": rows})
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{file}.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))


def main() -> None:
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        write("transformers", (case for name in TOKENIZERS for make in (conversations, prompts) for case in make(name)))
        write("datasets", (case for name in TOKENIZERS for case in mapped(name)))
        write(
            "trl",
            (
                case
                for name in TOKENIZERS
                for make in (fine_tuning, preferences, *((rewards,) if name == "byte_bpe" else ()))
                for case in make(name, folder)
            ),
        )


if __name__ == "__main__":
    main()
