"""`beam-prep gc`: blocks that no run used for a time are removed, then the oldest; every other stays."""

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from beam_prep.errors import ConfigError
from beam_prep.storage import stores
from beam_prep.storage.token_cache import Collected, TokenCache, collect
from tests.conftest import Command, Patch
from tests.storage.memory import MemoryStore
from tests.test_refresh import Jobs, texts
from tests.test_refresh import jobs as jobs

pytestmark = pytest.mark.long

DAY = 24 * 3600.0


def blocks(jobs: Jobs) -> set[str]:
    found = (jobs.folder / "token_cache").glob("??/*")
    return {f"{path.parent.name}/{path.name.partition('.')[0]}" for path in found}


def age(jobs: Jobs, days: float, names: set[str] | None = None) -> None:
    for path in (jobs.folder / "token_cache").glob("??/*"):
        if names is None or f"{path.parent.name}/{path.name.partition('.')[0]}" in names:
            os.utime(path, (time.time() - days * DAY,) * 2)


def swept(jobs: Jobs, days: float = 7, **options: Any) -> Collected:
    return collect(str(jobs.folder / "token_cache"), days * DAY, **options)


def test_blocks_that_no_run_used_for_a_time_go(jobs: Jobs) -> None:
    jobs.run()
    first = blocks(jobs)
    age(jobs, 8)
    (jobs.inputs / "a.jsonl").write_text(texts("other", 1200))
    jobs.run()
    second = blocks(jobs) - first
    told = swept(jobs, dry_run=True)
    assert (told.removed, told.kept) == (len(first), len(second))
    assert blocks(jobs) == first | second
    assert swept(jobs) == told
    assert blocks(jobs) == second
    (jobs.inputs / "b.jsonl").write_text(texts("more", 10))
    assert jobs.run()["blocks_reused"] == len(second)


def test_young_blocks_stay_unless_the_cache_is_too_large(jobs: Jobs) -> None:
    jobs.run()
    first = blocks(jobs)
    oldest = set(sorted(first)[:2])
    age(jobs, 3, oldest)
    assert swept(jobs).removed == 0
    size = swept(jobs).kept_bytes
    told = swept(jobs, most_bytes=size - 1)
    assert told.removed == 1
    assert first - blocks(jobs) < oldest
    assert swept(jobs, most_bytes=0).kept == 0


def test_blocks_in_a_store_that_are_used_again_are_young(store: MemoryStore, monkeypatch: Patch) -> None:
    cache, names = "mem://bucket/cache", [f"ab/{digit * 30}-{'c' * 16}" for digit in "12"]
    for name in names:
        stores.put(f"{cache}/{name}.rows.arrow", b"rows")
    monkeypatch.setattr(store, "clock", lambda: time.time())
    TokenCache(cache, "recipe", kept=True).used(names[1])
    assert (collect(cache, DAY).kept, collect(cache, DAY).removed) == (1, 0)
    left = {each.path.removeprefix(f"{cache}/{names[1]}") for each in stores.listed(cache)}
    assert left == {".rows.arrow", ".used"}
    assert collect(cache, 0, most_bytes=0).removed == 1
    assert stores.listed(cache) == []


def test_what_killed_writers_and_damage_left_goes(jobs: Jobs) -> None:
    jobs.run()
    path = next((jobs.folder / "token_cache").glob("??/*.arrow"))
    left = [Path(f"{path}.{'0' * 32}"), Path(f"{path}.damaged")]
    for each in left:
        shutil.copy(path, each)
    assert swept(jobs).removed_bytes == 0
    for each in left:
        os.utime(each, (time.time() - 8 * DAY,) * 2)
    assert swept(jobs).removed_bytes == 2 * path.stat().st_size
    assert not any(each.exists() for each in left)


def test_the_command(jobs: Jobs, command: Command) -> None:
    jobs.run()
    count = len(blocks(jobs))
    age(jobs, 2)
    cache_dir = str(jobs.folder / "token_cache")
    assert command("gc", cache_dir).startswith(f"{cache_dir}: 0 blocks, 0 bytes removed; {count} blocks, ")
    told = command("gc", cache_dir, "--older_than", "36h", "--dry_run")
    assert re.search(rf"{count} blocks, [\d.]+ (kB|bytes) would be removed", told)
    command("gc", cache_dir, "--older_than=90d", "--max_bytes=0.5KB")
    assert blocks(jobs) == set()
    for wrong in (["--older_than", "week"], ["--older_than", "7"], ["--max_bytes", "5 XB"]):
        command("gc", cache_dir, *wrong, code=2)
    with pytest.raises(ConfigError):
        collect(str(jobs.folder / "no"), 0.0)
