"""A run that will probably lack room on a disk says so before it begins; one that has it is never stopped."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from beam_prep.config import PipelineConfig
from beam_prep.first_records import lacks_room
from beam_prep.pipeline import Pipeline

pytestmark = pytest.mark.long

GB = 10**9


class Usage(NamedTuple):
    free: int


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(size))


def test_what_is_written_to_one_disk_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, out = str(tmp_path / "cache" / "token_cache"), str(tmp_path)
    needs = [(cache, "the token cache", 4.5 * GB), (out, "the output", 12.0 * GB), (cache, "the output", 12.0 * GB)]
    free(monkeypatch, 16 * GB)
    (line,) = lacks_room(needs)
    assert line.startswith(f"the token cache in {cache} and the output in {out}: about 16.5 GB are needed, by the ")
    assert "16.0 GB are free: make room" in line
    free(monkeypatch, 17 * GB)
    assert lacks_room(needs) == []


CONFIG: dict[str, Any] = {
    "preprocessing": {},
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "output": {"storage_format": ["bin", "tfrecord", "arrow", "h5"]},
}


TEXTS = "".join(json.dumps({"text": f"{row} " + "the cat sat on the mat " * 20}) + "\n" for row in range(300))


def job(tmp_path: Path, tokenizer_path: str, change: dict[str, Any], **options: Any) -> Pipeline:
    (tmp_path / "in.jsonl").write_text(TEXTS)
    config = PipelineConfig.from_dict(CONFIG | {name: CONFIG[name] | change[name] for name in change})
    return Pipeline(config, str(tmp_path / "in.jsonl"), tmp_path / "out", tokenizer_path=tokenizer_path, **options)


def test_a_run_says_before_it_begins_what_it_lacks_room_for(
    tmp_path: Path, tokenizer_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"output": {"shuffle": {"seed": 17}}}
    made = job(tmp_path, tokenizer_path, change, cache_dir=tmp_path / "cache")
    free(monkeypatch, 1000)
    done = made.run(["--runner=FnApiRunner"])
    assert done.manifest is not None
    (line,) = (each for each in json.loads((tmp_path / "out/run.json").read_text())["warnings"] if "are needed" in each)
    whats = [part.partition(" in ")[0] for part in line.partition(": about ")[0].split(" and ")]
    assert " and ".join(whats) == "the token cache and sorted runs and the output"
