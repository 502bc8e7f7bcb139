"""A run that lacks room on a disk stops at its first blocks, with the numbers; one that has it is never stopped."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.config import PipelineConfig
from beam_prep.errors import StorageError
from beam_prep.pipeline import Pipeline
from beam_prep.progress import Counts
from beam_prep.storage import preflight
from beam_prep.storage.preflight import Preflight

pytestmark = pytest.mark.long

GB = 10**9


def room(**change: Any) -> Preflight:
    values: dict[str, Any] = {
        "input_bytes": 4 * GB,
        "token_cache": "/token_cache",
        "outputs": ("/out",),
        "cache_is_new": True,
        "linked": 0,
        "limited": False,
        "single_use": False,
    }
    return Preflight(**(values | change))


def done(size: int, cached: float = 1.5, made: float = 1.0, ratio: float = 2.0) -> Counts:
    return Counts(size, 1, 0, 10, int(size * made), int(size * made * cached), ratio)


def test_what_a_run_needs() -> None:
    found = room().need(done(GB))
    assert found is not None
    assert (found.token_cache, found.output, found.on_one_disk) == (4.5 * GB, 12 * GB, 16.5 * GB)


def test_blocks_of_a_single_use_cache_make_room_for_the_output() -> None:
    found = room(single_use=True).need(done(GB))
    assert found is not None
    assert found.on_one_disk == 12 * GB - 1.5 * GB  # what is cached so far is freed
    smaller = room(single_use=True).need(done(GB, ratio=0.5))
    assert smaller is not None
    assert smaller.on_one_disk == 4.5 * GB


@pytest.mark.parametrize(("shuffled", "runs"), [(True, 6 * GB), (False, 0)])
def test_sorted_runs_are_as_large_as_the_cache(shuffled: bool, runs: int) -> None:
    found = room(shuffled=shuffled, scratch="/token_cache").need(done(GB))
    assert found is not None
    assert (found.runs, found.on_one_disk) == (runs, 16.5 * GB + runs)


def test_a_run_without_room_for_sorted_runs_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_disk", lambda folder: hash(folder))
    monkeypatch.setattr(preflight, "free_bytes", lambda folder: 5 * GB if folder == "/scratch" else 100 * GB)
    with pytest.raises(StorageError, match=r"the sorted runs in /scratch: about 6\.00 GB more are needed, 5\.00 GB"):
        room(shuffled=True, scratch="/scratch").check(done(4 * GB))
    room(scratch="/scratch").check(done(4 * GB))


def test_what_is_not_known_is_not_counted() -> None:
    assert room().need(done(GB // 1000)) is None  # too little is done
    known = [room(cache_is_new=False), room(limited=True), room(linked=12 * GB)]
    found = [each.need(done(GB)) for each in known]
    assert [(each.token_cache > 0, each.output > 0) for each in found if each] == [
        (False, True),
        (True, False),
        (True, False),
    ]


@given(
    st.integers(2 * GB, 4 * GB), st.floats(0.5, 3), st.floats(0.1, 4), st.booleans(), st.integers(0, 3), st.booleans()
)
def test_a_run_that_fits_is_never_stopped(
    total: int, cached: float, ratio: float, single_use: bool, quarter: int, one_disk: bool
) -> None:
    """Blocks are alike: at any place, what is free is what the run will have used at the end, and not a byte more."""
    checked = room(input_bytes=total, single_use=single_use)
    size = max(total * quarter // 4, total // 50)
    so_far = done(size, cached, 1.0, ratio)
    token_cache, output = cached * total, cached * total * ratio
    most = max(token_cache, output) if single_use else token_cache + output
    used = so_far.cached
    free = {
        "/token_cache": most - used if one_disk else token_cache - used,
        "/out": most - used if one_disk else output,
    }
    disks = {"/token_cache": 1, "/out": 1 if one_disk else 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "_disk", disks.__getitem__)
        patch.setattr(preflight, "free_bytes", lambda folder: int(free[folder]) + 4096)
        checked.check(so_far)


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (
            {"/token_cache": 3 * GB, "/out": 100 * GB},
            "the token cache in /token_cache: about 4.50 GB more are needed, 3.00 GB are free",
        ),
        (
            {"/token_cache": 5 * GB, "/out": 9 * GB},
            "the output in /out: about 12.00 GB more are needed, 9.00 GB are free",
        ),
    ],
)
def test_a_run_that_lacks_room_is_stopped(free: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_disk", {"/token_cache": 1, "/out": 2}.__getitem__)
    monkeypatch.setattr(preflight, "free_bytes", free.__getitem__)
    with pytest.raises(StorageError, match=words):
        room().check(done(GB))


def test_one_disk_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_disk", lambda _: 1)
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 12 * GB)
    with pytest.raises(
        StorageError, match=r"the token cache in /token_cache and the output in /out: about 16.50 GB more"
    ):
        room().check(done(GB))


CONFIG: dict[str, Any] = {
    "preprocessing": {},
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "output": {"storage_format": ["bin", "tfrecord", "arrow", "h5"]},
}


@pytest.mark.parametrize(
    ("section", "change", "limited"),
    [
        ("preprocessing", {}, False),
        ("output", {"shuffle": {"seed": 17}}, False),
        ("preprocessing", {"max_items": 5}, True),
        ("preprocessing", {"deduplicate": {}}, True),
        ("output", {"shuffle": {"seed": 17}, "mix": {"web": {"epochs": 0.1}}}, True),
    ],
)
def test_rows_that_may_be_left_out_of_the_output_need_no_room(
    section: str, change: dict[str, Any], limited: bool, tmp_path: Path, tokenizer_path: str
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "to be"}')
    config = PipelineConfig.from_dict({**CONFIG, section: {**CONFIG[section], **change}})
    job = Pipeline(config, str(source), output_dir=str(tmp_path / "out"), tokenizer_path=tokenizer_path)
    found = job._preflight(job.cache_of_run())
    assert found.limited is limited
    need = dataclasses.replace(found, input_bytes=4 * GB, shuffled=True).need(done(GB))
    assert need is not None
    assert (need.output > 0, need.runs > 0) == (not limited, not limited)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("runner", [["--runner=FnApiRunner"], ["--direct_num_workers=2"]])
def test_a_disk_that_is_too_small_is_found_early(
    small_disk: Path, tmp_path: Path, tokenizer_path: str, runner: list[str]
) -> None:
    source = tmp_path / "in.jsonl"

    def write(rows: int) -> None:
        lines = (json.dumps({"text": f"{row} " + "the cat sat on the mat " * 20}) + "\n" for row in range(rows))
        source.write_text("".join(lines))

    def job() -> Pipeline:
        config, output = PipelineConfig.from_dict(CONFIG), small_disk / "out"
        return Pipeline(config, str(source), output, tokenizer_path=tokenizer_path, block_bytes=65536)

    write(1500)  # needs about 4 MB
    job().run(runner)
    (small_disk / "out" / "manifest.json").unlink()
    subprocess.run(["rm", "-r", str(small_disk / "out")], check=True)
    write(15000)
    with pytest.raises(StorageError, match=r"GB more are needed, 0.0. GB are free"):
        job().run(runner)
