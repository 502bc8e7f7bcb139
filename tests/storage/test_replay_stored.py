"""A replay of an output in a store."""

import json
from pathlib import Path
from typing import Any

import pytest

from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline
from beam_prep.replay import Replay
from beam_prep.storage.stores.objects import read_bytes
from tests.conftest import tree
from tests.storage.memory import MemoryStore
from tests.test_replay import MENDED, config, talks

RUNNER = ("--runner=FnApiRunner",)


@pytest.mark.parametrize("keep_versions", [None, 3])
def test_an_output_in_a_store(
    store: MemoryStore, tmp_path: Path, tokenizer_path: str, keep_versions: int | None
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in talks(60, (3, 59))))
    options: dict[str, Any] = {"max_reject_rate": 1.0, "max_no_loss_rate": 1.0}
    old, new = (PipelineConfig.from_dict(text) for text in (config(), config(MENDED)))
    first: dict[str, Any] = {
        "cache_dir": "mem://bucket/token_cache",
        "keep_versions": keep_versions,
        "version_name": keep_versions and "1",
    }
    Pipeline(old, path, "mem://bucket/out", tokenizer_path, **first, **options).run(RUNNER)
    again: dict[str, Any] = {"overwrite": True} if keep_versions is None else {"version_name": "2"}
    done = Replay("mem://bucket/out", new, cache_dir="mem://bucket/token_cache", **again, **options).run(RUNNER)
    assert done.result is not None
    assert "template_error" not in done.still.counts
    Pipeline(new, path, tmp_path / "scratch", tokenizer_path, **options).run(RUNNER)
    for name, content in tree(tmp_path / "scratch").items():
        assert read_bytes(f"{done.result.output}/{name}") == content, name
