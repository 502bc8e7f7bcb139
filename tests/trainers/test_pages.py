"""docs/training.md, docs/quickstart.md and docs/readers.md, as typed: their code trains.

What keeps documents apart does so, and what docs/training.md warns of lets them see each other.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

import beam_prep as bp  # noqa: E402
from tests.conftest import ROOT, checkout  # noqa: E402
from tests.test_docs import printed_by, texts  # noqa: E402
from tests.trainers import documents as alone  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402

PAGE = "docs/training.md"
STEP = re.compile(r"^epoch (\d+) step (\d+) loss (\S+) trained_tokens (\d+)$", re.M)


def run_code(page: str, folder: Path, *before: str) -> dict[str, Any]:
    """The names that the code of a page leaves behind, run from top to bottom."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page", "path": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for text in (*before, *texts("python", page)):
            exec(compile(text, page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the page's code leaves behind, run from top to bottom after its commands."""
    pytest.importorskip("trl", reason="no TRL here: make test-trainers")
    folder = checkout(tmp_path_factory.mktemp("page"))
    commands = [line for text in texts("sh", PAGE) for line in text.splitlines() if line.startswith("beam-prep run")]
    for command in commands:
        run = [sys.executable, "-m", "beam_prep.cli", *shlex.split(command)[1:]]
        subprocess.run(run, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    # The page names a class of another page.
    (masked,) = [text for text in texts("python", "docs/formats.md") if "class MaskedGPTDataset" in text]
    return run_code(PAGE, folder, masked)


def test_the_code_of_the_page_trains(names: Any) -> None:
    steps = [entry["loss"] for entry in names["trainer"].state.log_history if "loss" in entry]
    assert len(steps) == 2
    assert torch.isfinite(names["loss"])
    assert names["difference"] < alone.CLOSE


def test_each_trainers_loop_takes_the_loss_exactly_on_the_trained_tokens(names: Any) -> None:
    """All tokens but the first one, which nothing foretells, and those after the last full window."""
    ds = names["bp"].open(names["path"] / "out/astrai")
    mask = np.concatenate([row["loss_mask"] for row in ds])
    windows = (len(mask) - 1) // 256
    assert names["plain_trained"] == mask[1 : 256 * windows + 1].sum() > 0
    # OLMo-core shifts within its windows, so the first token of each has no label.
    full = mask[: 256 * (len(mask) // 256)].reshape(-1, 256)
    assert names["olmo_trained"] == full[:, 1:].sum() > 0
    # Megatron shuffles the rows, then cuts windows as the plain loop does.
    stream = np.concatenate([ds[int(row)]["loss_mask"] for row in names["samples"].document_index])
    assert names["megatron_trained"] == stream[1 : 256 * windows + 1].sum() > 0
    for loop in ("olmo", "megatron", "plain"):
        assert torch.isfinite(names[f"{loop}_loss"])


def test_the_check_of_the_page_finds_a_model_that_does_not_keep_documents_apart(names: Any, packed: Outputs) -> None:
    row, model = bp.open(packed())[0], alone.tiny()
    assert names["leak"](model, row) < alone.CLOSE

    class Leaking(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, **given: Any) -> Any:
            given.pop("position_ids", None)
            return model(**given)

    assert names["leak"](Leaking(), row) > alone.FAR


# docs/quickstart.md and docs/readers.md: from a run to training steps whose loss falls


def test_the_quick_start_ends_with_training_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = STEP.findall(printed_by("docs/quickstart.md", tmp_path))
    assert [int(step) for _, step, _, _ in steps] == list(range(1, 21))
    assert all(int(tokens) > 0 for *_, tokens in steps)
    assert round(float(steps[0][2]), 1) == 8.3  # the page says so
    assert float(steps[-1][2]) == pytest.approx(7.3, abs=0.3)

    run_code("docs/quickstart.md", tmp_path)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 33  # 260 rows, 8 a step
    assert losses[-1] < losses[0]


def test_the_readers_page_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    steps = STEP.findall(printed_by("docs/readers.md", tmp_path))
    # One epoch alone, then two more by two processes.
    assert sorted({int(epoch) for epoch, *_ in steps}) == [0, 1, 2]
    names = run_code("docs/readers.md", tmp_path)
    assert names["padded"]["input_ids"].shape == names["padded"]["attention_mask"].shape
    assert torch.isfinite(names["batch_loss"])
    assert len(names["packed"]) > 0  # what is left of the epoch
