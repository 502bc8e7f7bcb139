"""docs/training.md: its code runs, and keeps documents apart; what it warns of lets them see each other."""

import os
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")
pytest.importorskip("trl", reason="no TRL here: make test-trainers")


import beam_prep as bp  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.test_docs import texts  # noqa: E402
from tests.trainers import documents as alone  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402

PAGE = "docs/training.md"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the page's code leaves behind, run from top to bottom after its commands."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    commands = [line for text in texts("sh", PAGE) for line in text.splitlines() if line.startswith("beam-prep run")]
    for command in commands:
        run = [sys.executable, "-m", "beam_prep.cli", *shlex.split(command)[1:]]
        subprocess.run(run, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found: dict[str, Any] = {"__name__": "page", "path": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # The page names a class of another page.
        (masked,) = [text for text in texts("python", "docs/formats.md") if "class MaskedGPTDataset" in text]
        for text in (masked, *texts("python", PAGE)):
            exec(compile(text, PAGE, "exec"), found)
    return found


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
