"""examples/train_tiny.py, as a user starts it: the loss falls, and is that of the trained tokens and of no others."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

from transformers import AutoTokenizer  # noqa: E402

import beam_prep as bp  # noqa: E402
from beam_prep import cli  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

SUMS = [(f"What is {a} and {b}?", f"{a} and {b} is {a + b}.") for a in range(7) for b in range(7)]
CONFIG = {
    "input": {"sections": [{"field": "question", "action": "mask"}, {"field": "answer", "action": "train"}]},
    "preprocessing": {"eos": "if_missing"},
    "output": {"columns": "labels"},
}
LENGTH = 128
SCRIPT = ROOT / "examples" / "train_tiny.py"


class Step(NamedTuple):
    epoch: int
    loss: float
    tokens: int


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "in.jsonl").write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in SUMS))
    command = ["run", str(folder / "in.jsonl"), "-o", str(folder / "out"), "-c", str(folder / "config.json")]
    assert cli.main([*command, "--tokenizer_path", tokenizer_path]) == 0
    return folder / "out"


def train(output: Path, *options: str, processes: int = 1) -> list[Step]:
    """The steps that the script prints."""
    alone = [sys.executable]
    together = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [*(alone if processes == 1 else together), str(SCRIPT), str(output)]
    found = subprocess.run(
        [*command, f"--length={LENGTH}", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = re.findall(r"epoch (\d+) step \d+ loss (\S+) trained_tokens (\d+)", found.stdout)
    return [Step(int(epoch), float(loss), int(tokens)) for epoch, loss, tokens in lines]


@pytest.fixture(scope="module")
def trained(output: Path) -> int:
    """The tokens of all answers, each with its EOS, counted by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    return sum(len(tokenizer.encode(answer, add_special_tokens=False)) + 1 for _, answer in SUMS)


def test_each_trained_token_is_trained_once_an_epoch(output: Path, trained: int) -> None:
    steps = train(output, "--epochs=2")
    assert [sum(step.tokens for step in steps if step.epoch == epoch) for epoch in (0, 1)] == [trained, trained]


def test_the_loss_is_that_of_the_answers_alone(output: Path) -> None:
    """Computed answer by answer, without packing, from the texts."""
    (first,) = train(output, "--steps=1", "--batch_size=1")
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    model = runpy.run_path(str(SCRIPT))["tiny_model"](len(tokenizer))
    texts = {}
    for question, answer in SUMS:
        asked, told = (tokenizer.encode(text, add_special_tokens=False) for text in (question, answer))
        texts[(*asked, *told, tokenizer.eos_token_id)] = len(asked)
    row = bp.open(output).packed(LENGTH, seed=1)[0]
    total, count = 0.0, 0
    for ids in torch.from_numpy(row["input_ids"]).long().split(row["seq_lens"].tolist()):
        begin = texts[tuple(ids.tolist())]
        with torch.no_grad():
            chances = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        total -= sum(chances[place - 1, ids[place]].item() for place in range(begin, len(ids)))
        count += len(ids) - begin
    assert first.tokens == count
    assert first.loss == pytest.approx(total / count, rel=1e-5)


def test_another_number_of_processes_goes_on_from_a_checkpoint(output: Path, trained: int, tmp_path: Path) -> None:
    whole = train(output, "--epochs=1", "--batch_size=2")
    checkpoint = f"--checkpoint={tmp_path / 'tiny.pt'}"
    begun = train(output, "--steps=2", "--batch_size=1", checkpoint, processes=2)
    ended = train(output, "--epochs=1", "--batch_size=2", checkpoint)
    assert sum(step.tokens for step in begun + ended) == trained
    assert [step.loss for step in begun + ended] == pytest.approx([step.loss for step in whole], rel=1e-4)
