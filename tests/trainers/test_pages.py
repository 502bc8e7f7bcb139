"""docs/quickstart.md and docs/readers.md, as typed: from a run to training steps whose loss falls."""

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

from tests.test_docs import printed_by, texts  # noqa: E402

STEP = re.compile(r"^epoch (\d+) step (\d+) loss (\S+) trained_tokens (\d+)$", re.M)


def run_code(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the code of a page leaves behind, run from top to bottom."""
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page"}
    for text in texts("python", page):
        exec(compile(text, page, "exec"), names)
    return names


def test_the_quick_start_ends_with_training_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = STEP.findall(printed_by("docs/quickstart.md", tmp_path))
    assert [int(step) for _, step, _, _ in steps] == list(range(1, 21))
    assert all(int(tokens) > 0 for *_, tokens in steps)
    assert round(float(steps[0][2]), 1) == 8.3  # the page says so
    assert float(steps[-1][2]) == pytest.approx(7.3, abs=0.3)

    run_code("docs/quickstart.md", tmp_path, monkeypatch)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 33  # 260 rows, 8 a step
    assert losses[-1] < losses[0]


def test_the_readers_page_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = STEP.findall(printed_by("docs/readers.md", tmp_path))
    # One epoch alone, then two more by two processes.
    assert sorted({int(epoch) for epoch, *_ in steps}) == [0, 1, 2]
    names = run_code("docs/readers.md", tmp_path, monkeypatch)
    assert names["padded"]["input_ids"].shape == names["padded"]["attention_mask"].shape
    assert torch.isfinite(names["batch_loss"])
    assert len(names["packed"]) > 0  # what is left of the epoch
