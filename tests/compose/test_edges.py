"""Composed jobs at their edges: nothing, one record, copies alone, odd sources, and a run that failed half-way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_prep.shards.runs import MergedShards
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.transforms import shard
from tests.compose.test_jobs import SPLITS, config, ids, naive_of, records, run, small, write
from tests.conftest import tree

__all__ = ["small"]


def test_in_input_order_with_splits_and_copies(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", records(300, filler=400)), write(tmp_path / "b.jsonl", records(200, 1))]
    rules = {"deduplicate": {"by": ["text", "user"]}, "max_items": 300}
    given = config({"splits": SPLITS, "split_key": "text", "split_seed": 3}, rules)
    manifest = run(given, files, tmp_path / "out", block_bytes=65536)
    assert ids(tmp_path / "out", manifest) == naive_of(given, files).shards


def failing(wrapped: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Fails at its n-th call and at all after."""
    calls = 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= times:
            raise RuntimeError(f"call {calls}")
        return wrapped(*given, **named)

    return call


PLACES: dict[str, tuple[Any, str, int]] = {
    "half of the runs": (Arranger, "write_run", 2),
    "half of the second level": (Arranger, "merge_runs", 2),
    "all runs, no shard": (MergedShards, "of", 1),
    "two shards": (shard, "write_shard", 3),
    "one file of copies": (Scratch, "write_copies", 2),
}


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_run_after_one_that_failed_publishes_the_same_bytes(place: str, tmp_path: Path, small: None) -> None:
    holder, name, times = PLACES[place]
    files = [write(tmp_path / "a.jsonl", records(300, filler=300)), write(tmp_path / "b.jsonl", records(200, 1))]
    given: dict[str, Any] = config({"shuffle": {"seed": 1}, "splits": SPLITS}, {"deduplicate": {"by": ["text"]}})
    cache_dir, output = str(tmp_path / "token_cache"), tmp_path / "there" / "out"
    output.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, failing(getattr(holder, name), times))
        with pytest.raises(Exception, match=f"call {times}"):
            run(given, files, output, block_bytes=65536, cache_dir=cache_dir)
    assert not output.exists()
    run(given, files, output, block_bytes=65536, cache_dir=cache_dir)
    run(given, files, tmp_path / "other")
    assert tree(output) == tree(tmp_path / "other")
    left = {path.name for path in output.parent.rglob("*") if path.is_file() and output not in path.parents}
    assert left <= {"lock", "lock.name", "claim.json.lock"}, left


def test_records_without_the_split_key_are_rejected(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", rows := records(60))]
    manifest = run(config({"shuffle": {"seed": 1}, "splits": SPLITS, "split_key": "user"}), files, tmp_path / "out")
    assert manifest["ledger"]["rejected"] == {"no_split_key": sum(row["user"] is None for row in rows)}
    (file,) = (tmp_path / "out" / "rejects").iterdir()
    first = json.loads(file.read_text().splitlines()[0])
    assert first["message"] == "the record has no 'user', which decides its split"
