"""docs/quickstart.md, as typed: from a run to training steps whose loss falls."""

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

from tests.test_docs import printed_by, texts  # noqa: E402

PAGE = "docs/quickstart.md"


def test_the_quick_start_ends_with_training_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = printed_by(PAGE, tmp_path)
    steps = re.findall(r"^epoch 0 step (\d+) loss (\S+) trained_tokens (\d+)$", printed, re.M)
    assert [int(step) for step, _, _ in steps] == list(range(1, 21))
    assert all(int(tokens) > 0 for _, _, tokens in steps)
    assert round(float(steps[0][1]), 1) == 8.3  # the page says so
    assert float(steps[-1][1]) == pytest.approx(7.3, abs=0.3)

    (loop,) = texts("python", PAGE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(loop, PAGE, "exec"), names)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 33  # 260 rows, 8 a step
    assert losses[-1] < losses[0]
