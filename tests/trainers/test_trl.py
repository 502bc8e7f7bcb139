"""TRL's own `SFTTrainer` on our output: its batches have our rows, with borders, and are those that TRL prepares."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")
pytest.importorskip("trl", reason="no TRL here: make test-trainers")

import datasets  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from tests.conftest import ROOT  # noqa: E402
from tests.trainers import documents as alone  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402

PACKED = {"padding_free": True, "packing": False, "max_length": None}
"""What docs/training.md says."""


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SFTTrainer]:
    """Two rows a batch. `of_texts`: TRL may tokenise."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the trainer tokenises again")

    def _trainer(model: Any, rows: Any, of_texts: bool = False, **settings: Any) -> SFTTrainer:
        tokenizer = alone.tokenizer()
        for name in () if of_texts else ("__call__", "encode", "apply_chat_template"):
            monkeypatch.setattr(type(tokenizer), name, refuse)
        arguments = SFTConfig(
            output_dir=str(tmp_path / "trained"),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            report_to=[],
            **{**PACKED, **settings},
        )
        return SFTTrainer(model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)

    return _trainer


def first_batch(trainer: SFTTrainer) -> dict[str, Any]:
    """The first two rows as the trainer hands them to the model, in order."""
    return dict(next(iter(trainer.get_eval_dataloader())))


# Packed rows.


def test_the_batch_holds_our_ids_and_labels_and_the_borders_of_the_documents(packed: Outputs, trainer: Any) -> None:
    rows = alone.rows_of(packed())
    made = trainer(alone.tiny(), rows)
    for column in ("input_ids", "labels", "seq_lengths"):
        assert made.train_dataset[column][:] == rows[column][:]
    batch, first = first_batch(made), [rows[0], rows[1]]
    positions = [place for row in first for place in row["position_ids"]]
    labels = [label for row in first for label in row["labels"]]
    sizes = [length for row in first for length in row["seq_lengths"]]
    assert len(sizes) > 3
    assert batch["input_ids"].tolist() == [[token for row in first for token in row["input_ids"]]]
    assert batch["position_ids"].tolist() == [positions]
    assert batch["labels"].tolist() == [[-100 if place == 0 else y for place, y in zip(positions, labels, strict=True)]]
    assert batch["cu_seq_lens_q"].diff().tolist() == batch["cu_seq_lens_k"].diff().tolist() == sizes
    assert "attention_mask" not in batch


# What TRL prepares itself from the same conversations.


def conversations(items: int = 24) -> Any:
    lines = (ROOT / "examples" / "data" / "chat.jsonl").read_text("utf-8").splitlines()[:items]
    return datasets.Dataset.from_list([{"messages": json.loads(line)["messages"]} for line in lines])


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in batch.items()}


def batches(trainer: SFTTrainer) -> list[dict[str, Any]]:
    return [plain(batch) for batch in trainer.get_eval_dataloader()]


@pytest.mark.parametrize("padding_free", [False, True])
def test_batches_are_those_of_trl_from_the_conversations(padding_free: bool, outputs: Outputs, trainer: Any) -> None:
    theirs = trainer(alone.tiny(), conversations(), of_texts=True, assistant_only_loss=True, padding_free=padding_free)
    wanted = batches(theirs)
    ours = trainer(alone.tiny(), alone.rows_of(outputs("sft_conversation")), padding_free=padding_free)
    assert len(wanted) == 12
    assert any(label != -100 for batch in wanted for row in batch["labels"] for label in row)
    assert batches(ours) == wanted
