"""`beam-prep gc`: blocks that no output and no running job uses are removed; every other stays."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from beam_prep import cli
from beam_prep.errors import ConfigError, RunError, TokenCacheError
from beam_prep.storage.claims import Claim, Claims
from beam_prep.storage.gc import Collected, collect
from beam_prep.storage.uses import Launch, Output, Uses, is_among
from tests.test_refresh import CONFIG, Jobs, texts

pytestmark = pytest.mark.long

DAY = 24 * 3600.0


@pytest.fixture
def jobs(tmp_path: Path, tokenizer_path: str) -> Jobs:
    return Jobs(tmp_path, tokenizer_path)


def blocks(jobs: Jobs) -> set[str]:
    found = (jobs.folder / "token_cache").glob("??/*")
    return {f"{path.parent.name}/{path.name.partition('.')[0]}" for path in found}


def age(jobs: Jobs, days: float, names: set[str] | None = None) -> None:
    for path in (jobs.folder / "token_cache").glob("??/*"):
        if names is None or f"{path.parent.name}/{path.name.partition('.')[0]}" in names:
            os.utime(path, (time.time() - days * DAY,) * 2)


def swept(jobs: Jobs, days: float = 7, **options: Any) -> Collected:
    return collect(str(jobs.folder / "token_cache"), days * DAY, **options)


def test_blocks_that_no_output_uses_go(jobs: Jobs) -> None:
    jobs.run()
    first = blocks(jobs)
    (jobs.inputs / "a.jsonl").write_text(texts("other", 1200))
    jobs.run()
    second = blocks(jobs) - first
    age(jobs, 8)
    told = swept(jobs, dry_run=True)
    assert (told.removed, told.in_use, told.outputs, told.running) == (len(first), len(second), 1, 0)
    assert blocks(jobs) == first | second
    assert swept(jobs) == told
    assert blocks(jobs) == second
    (jobs.inputs / "b.jsonl").write_text(texts("more", 10))
    assert jobs.run()["blocks_reused"] == len(second)


def test_blocks_of_every_kept_version_stay(jobs: Jobs) -> None:
    options: dict[str, Any] = {"keep_versions": 2, "overwrite": False}
    made = []
    for number in range(3):
        (jobs.inputs / "a.jsonl").write_text(texts(f"night {number}", 300))
        before = blocks(jobs)
        jobs.job("many", version_name=f"g{number}", **options).run(["--runner=FnApiRunner"])
        made.append(blocks(jobs) - before)
    age(jobs, 30)
    assert swept(jobs).outputs == 2
    assert blocks(jobs) == made[1] | made[2]


def test_young_blocks_stay_unless_the_cache_is_too_large(jobs: Jobs) -> None:
    jobs.run()
    first = blocks(jobs)
    shutil.rmtree(jobs.folder / "out")
    oldest = set(sorted(first)[:2])
    age(jobs, 3, oldest)
    assert swept(jobs).removed == 0
    size = swept(jobs).kept_bytes
    told = swept(jobs, most_bytes=size - 1)
    assert told.removed == 1
    assert first - blocks(jobs) < oldest
    assert swept(jobs, most_bytes=0).kept == 0


def test_blocks_that_are_used_again_are_young(jobs: Jobs) -> None:
    jobs.run()
    age(jobs, 8)
    jobs.run("other")
    shutil.rmtree(jobs.folder / "out")
    shutil.rmtree(jobs.folder / "other")
    assert swept(jobs).removed == 0


def test_blocks_of_a_running_job_stay(jobs: Jobs) -> None:
    jobs.run()
    shutil.rmtree(jobs.folder / "out")
    age(jobs, 8)
    job = jobs.job()
    claims = Claims(str(jobs.folder / "claims"), job.output, "mine")
    recipe = job.cache_of_run().recipe[:16]
    Uses(str(jobs.folder / "token_cache")).begin(Launch("mine", recipe, job.output, str(jobs.folder / "claims")))
    claims.take(Claim("mine"))
    assert (swept(jobs).running, swept(jobs).removed) == (1, 0)
    claims.end()  # it was killed, or failed
    assert swept(jobs, dry_run=True).removed > 0
    assert swept(jobs).kept == 0
    assert list(Uses(str(jobs.folder / "token_cache")).launches()) == []


def test_a_job_that_begins_meanwhile_keeps_its_blocks(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.run()
    shutil.rmtree(jobs.folder / "out")
    age(jobs, 8)
    mine = Launch("mine", jobs.job().cache_of_run().recipe[:16], "out", str(jobs.folder / "claims"))
    answers = iter([[], [], [("mine", mine)]])
    monkeypatch.setattr(Uses, "launches", lambda *_: next(answers))
    Claims(mine.claims, "out", "mine").take(Claim("mine"))
    assert swept(jobs).removed == 0


def test_an_output_on_a_disk_that_is_not_mounted_keeps_its_blocks(jobs: Jobs) -> None:
    (jobs.folder / "disk").mkdir()
    jobs.run("disk/out")
    age(jobs, 8)
    (jobs.folder / "disk").rename(jobs.folder / "elsewhere")
    assert swept(jobs).removed == 0
    (jobs.folder / "disk").mkdir()
    assert swept(jobs).kept == 0


def test_what_killed_writers_and_damage_left_goes(jobs: Jobs) -> None:
    jobs.run()
    path = next((jobs.folder / "token_cache").glob("??/*.arrow"))
    left = [Path(f"{path}.{'0' * 32}"), Path(f"{path}.damaged")]
    for each in left:
        shutil.copy(path, each)
    assert swept(jobs).removed_bytes == 0
    age(jobs, 8)
    assert swept(jobs).removed_bytes == 2 * path.stat().st_size
    assert not any(each.exists() for each in left)


def test_nothing_goes_while_a_note_is_damaged(jobs: Jobs) -> None:
    jobs.run()
    (note,) = (jobs.folder / "token_cache" / "uses").glob("*.blocks")
    data = bytearray(note.read_bytes())
    data[len(data) // 3] ^= 1
    note.write_bytes(data)
    age(jobs, 8)
    before = blocks(jobs)
    with pytest.raises(TokenCacheError, match="damaged"):
        swept(jobs)
    assert blocks(jobs) == before


def test_a_damaged_note_does_not_stop_its_own_job(jobs: Jobs) -> None:
    jobs.run()
    (note,) = (jobs.folder / "token_cache" / "uses").iterdir()
    note.write_bytes(note.read_bytes()[:-5])
    (jobs.inputs / "b.jsonl").write_text(texts("more", 10))
    jobs.run()
    age(jobs, 8)
    assert (swept(jobs).outputs, swept(jobs).removed) == (1, 0)


def test_a_run_that_failed_leaves_the_notes_of_the_output(jobs: Jobs) -> None:
    jobs.run()
    (note,) = (jobs.folder / "token_cache" / "uses").iterdir()
    before = note.read_bytes()
    (jobs.inputs / "b.jsonl").write_text("no record\n" * 100)
    with pytest.raises(RunError):
        jobs.run()
    assert [path.read_bytes() for path in (jobs.folder / "token_cache" / "uses").iterdir()] == [before]
    (jobs.inputs / "b.jsonl").write_text(texts("more", 10))
    jobs.run()
    assert [path.name for path in (jobs.folder / "token_cache" / "uses").iterdir()] == [note.name]


def test_what_a_killed_launch_noted_is_tidied_by_a_run_that_finds_its_output(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Uses, "end", killed)
        with pytest.raises(Killed):
            jobs.run()
    uses = jobs.folder / "token_cache" / "uses"
    assert sorted(path.suffix for path in uses.iterdir()) == [".blocks", ".json"]
    assert jobs.job().run().up_to_date
    (note,) = uses.iterdir()
    assert note.name.count(".") == 1  # the note of an output, not of a launch
    age(jobs, 8)
    assert swept(jobs).removed == 0


def test_a_note_that_a_killed_writer_has_not_renamed_goes_with_the_next_run_on_that_output(jobs: Jobs) -> None:
    jobs.run()
    uses = jobs.folder / "token_cache" / "uses"
    (note,) = uses.iterdir()
    of_this = [Path(f"{note}.{'0' * 32}"), note.with_suffix(f".launch.json.{'1' * 32}")]
    of_another = uses / f"{'f' * 12}-{'f' * 12}.blocks.{'0' * 32}"
    for each in (*of_this, of_another):
        shutil.copy(note, each)
    assert jobs.job().run().up_to_date
    assert set(uses.iterdir()) == {note, of_another}


def test_a_million_blocks_are_noted_in_a_small_file(tmp_path: Path) -> None:
    digits = np.random.default_rng(0).bytes(16 * 1_000_000).hex()
    names = [f"{digits[at : at + 2]}/{digits[at + 2 : at + 32]}-{'ab' * 8}" for at in range(0, len(digits), 32)]
    uses = Uses(str(tmp_path))
    uses.note("out", "out", "launch", pa.array(names))
    (path,) = (tmp_path / "uses").iterdir()
    assert path.stat().st_size < 9_000_000
    ((_, found),) = uses.outputs()
    assert isinstance(found, Output)
    assert (found.path, found.recipe, len(found.blocks)) == ("out", "ab" * 8, 1_000_000)
    assert all(is_among(name, found.blocks) for name in names[:100])
    assert not is_among(f"00/{'0' * 30}-{'ab' * 8}", found.blocks)


def test_the_command(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.run()
    count = len(blocks(jobs))
    shutil.rmtree(jobs.folder / "out")
    age(jobs, 2)
    cache_dir = str(jobs.folder / "token_cache")
    assert cli.main(["gc", cache_dir]) == 0
    assert capsys.readouterr().out.startswith(f"{cache_dir}: 0 blocks, 0.00 GB removed; {count} blocks, ")
    assert cli.main(["gc", cache_dir, "--older_than", "36h", "--dry_run"]) == 0
    assert f"{count} blocks, 0.00 GB would be removed" in capsys.readouterr().out
    assert cli.main(["gc", cache_dir, "--older_than=90d", "--max_bytes=0.5KB"]) == 0
    assert blocks(jobs) == set()
    for wrong in (["--older_than", "week"], ["--max_bytes", "5 GB"]):
        assert cli.main(["gc", cache_dir, *wrong]) == 2
    with pytest.raises(ConfigError):
        collect(str(jobs.folder / "no"), 0.0)


def test_a_job_in_worker_processes_is_noted_and_forgotten(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "beam_prep.cli", "run", str(jobs.inputs / "a.jsonl"), "-o", str(tmp_path / "out")]
    command += ["-c", str(tmp_path / "config.json"), "--tokenizer_path", jobs.tokenizer_path]
    subprocess.run([*command, "--cache_dir", str(tmp_path / "token_cache"), "--direct_num_workers=2"], check=True)
    assert [path.suffix for path in (tmp_path / "token_cache" / "uses").iterdir()] == [".blocks"]
    assert swept(jobs, -1).removed == 0
